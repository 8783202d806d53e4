//! A cover: a mount over a name inside the sandbox.

use super::git::{KnownGitDirs, Role};
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverKind {
    /// An empty object that no process may open.
    Mask,
    /// A mask over a socket, unless a process inside made the socket.
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

/// The result of placing a cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverResult {
    Now,
    /// The name is covered already.
    Needless,
    /// The object is not there, or not any more.
    Absent,
    /// It is not known whether the object is there. The guard looks again.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    /// Its path, outside and inside, without symlinks.
    pub path: AbsPath,
    /// The object that was seen there: another object may have the name by now.
    pub identity: Identity,
    pub directory: bool,
    pub kind: CoverKind,
}

impl Cover {
    /// Is it a lock of a file whose content the judge of writes decides on? Git replaces such files
    /// by renames, which a mount would refuse.
    pub fn is_left_to_judge(&self, git: &KnownGitDirs) -> bool {
        self.kind == CoverKind::Lock
            && !self.directory
            && git.role(self.path.as_bytes()).is_some_and(Role::has_content)
    }
}
