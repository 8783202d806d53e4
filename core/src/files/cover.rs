//! What a mount puts over a name inside the sandbox.

use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverKind {
    /// An empty object that nobody may open.
    Mask,
    /// The same over a socket, unless who made it is inside.
    ForeignSocket,
    /// The object itself, read-only.
    Lock,
    /// The object itself, as it is: a mount point can not be renamed or removed.
    Pin,
}

impl CoverKind {
    pub fn name(self) -> &'static str {
        match self {
            CoverKind::Mask => "mask",
            CoverKind::ForeignSocket => "stranger",
            CoverKind::Lock => "lock",
            CoverKind::Pin => "pin",
        }
    }
}

/// What became of a cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverResult {
    Now,
    /// One lies there already.
    Needless,
    /// What it was meant for is not there, or not any more.
    Absent,
    /// It is not known whether that is there: it is looked for again.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Where it lies, outside and inside; no symlink is on the way.
    pub path: AbsPath,
    /// What was seen there: a name may have been given to something else since.
    pub identity: Identity,
    pub directory: bool,
    pub kind: CoverKind,
}
