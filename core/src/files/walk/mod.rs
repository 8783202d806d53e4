//! Walks trees by descriptor.
//!
//! A walk has one open directory for each level of its current path, and opens a child from its
//! parent by one name and through no symlink. So nothing outside is ever listed, whatever happens
//! to names meanwhile. Memory grows with the depth and the pending names, and time with the
//! entries. A tree may be deeper than the limit of open files: then the levels nearest the root are
//! closed, and opened again by `..` on the way back. The type of an entry comes from the listing.
//! Only a matching entry is examined further, by the [`Visitor`].
//!
//! Only ENOENT means that a name does not exist. A name that has become another object is examined
//! again. The visitor decides about a directory without the right to list or search it. Every other
//! error ends the walk, or the visitor stores it: nothing is left out silently.
//!
//! A tree ends where another one begins. Mounts are walked through, because a grant shows them.

mod walker;

use std::collections::TryReserveError;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::git::{self, UnreadableGitFile};
use super::patterns::{NameMatch, NamePatterns, NamePatternsError, PrefixId, StateId};
use super::tree_roots::OpenTree;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::{AbsPath, Text};

pub use walker::{Walker, searchable, shown};

/// No tree is searched deeper: a path of PATH_MAX bytes has half as many names.
pub const MAX_DEPTH: usize = 4096;
/// A new name is handled within this time, or the run ends.
pub const MAX_NAME_DELAY: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error("cannot search {path} for denied or protected names: {source}")]
    Root { path: AbsPath, source: Errno },
    #[error("cannot list {path}, which may contain denied or protected names: {source}")]
    List { path: AbsPath, source: Errno },
    #[error("cannot examine {path}, which may be denied or protected: {source}")]
    Look { path: AbsPath, source: Errno },
    #[error(
        "{path} is more than {MAX_DEPTH} directories deep, so the scan cannot search it for denied \
            or protected names"
    )]
    Deep { path: AbsPath },
    #[error("{path} was moved while the scan searched it for denied or protected names")]
    Moved { path: AbsPath },
    #[error(
        "{path} and other directories of settings and secrets contain more than {} directories: \
            the scan cannot follow their links",
        crate::files::linked_dirs::MAX_LINKED_DIRS
    )]
    Crowded { path: AbsPath },
    #[error("not enough memory for the scan of names")]
    Memory,
    #[error("the paths of the found names need more than {} MB", MAX_FOUND_PATHS_BYTES >> 20)]
    TooMuch,
    #[error("new names appear faster than the guard can check them: the oldest waited for {} s", MAX_NAME_DELAY.as_secs())]
    Behind,
    #[error("symlinks at protected names form a loop ({path})")]
    Links { path: AbsPath },
    #[error("a signal stopped the scan for denied or protected names")]
    Interrupted,
    #[error("cannot read {path}, which git outside the sandbox may obey: {source}")]
    Git { path: AbsPath, source: Errno },
    #[error(transparent)]
    Names(#[from] NamePatternsError),
    #[error("the scan found an invalid name: {0}")]
    Path(#[from] crate::plan::wire::bytes::TextError),
}

impl From<UnreadableGitFile> for WalkError {
    fn from(UnreadableGitFile { path, source }: UnreadableGitFile) -> WalkError {
        match Text::from_bytes(path).and_then(AbsPath::new) {
            Ok(path) => WalkError::Git { path, source },
            Err(error) => WalkError::Path(error),
        }
    }
}

impl WalkError {
    pub fn hint(&self) -> &'static str {
        match self {
            WalkError::Root { .. } => "check the path and its permissions",
            WalkError::List { .. } => {
                "make the directory readable to you, remove it, or deny the whole directory"
            }
            WalkError::Look { .. } => {
                "make it accessible to you, remove it, or deny its whole directory"
            }
            WalkError::Deep { .. } => "remove that directory: no tool reaches it by a path",
            WalkError::Moved { .. } => {
                "run the command again when no program moves directories in \
                the workspace"
            }
            WalkError::Crowded { .. } => "remove directories that you do not need there",
            WalkError::Memory => "free some memory, or raise the limit on it (ulimit -v)",
            WalkError::TooMuch => "remove directories with very long paths from the workspace",
            WalkError::Behind => {
                "let the command create fewer directories at a time, or run it with --cow"
            }
            WalkError::Links { .. } => "remove one of the links",
            WalkError::Interrupted => "start the run again, and let the scan finish",
            WalkError::Git { .. } => "make the file readable to you, or remove it",
            WalkError::Names(error) => error.hint(),
            WalkError::Path(_) => "please report this: it is a bug of Paddock",
        }
    }
}

impl From<TryReserveError> for WalkError {
    fn from(_: TryReserveError) -> WalkError {
        WalkError::Memory
    }
}

/// The memory for the paths of all found names. A path may be much longer than PATH_MAX.
const MAX_FOUND_PATHS_BYTES: usize = 64 << 20;

/// Counts a path that is stored.
pub fn count_stored_path(stored_path_bytes: &mut usize, path: &[u8]) -> Result<(), WalkError> {
    *stored_path_bytes += path.len();
    if *stored_path_bytes > MAX_FOUND_PATHS_BYTES { Err(WalkError::TooMuch) } else { Ok(()) }
}

/// The decision on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameDecision {
    /// The pattern that matched, if it was one.
    Deny(Option<PrefixId>),
    Protect(Option<PrefixId>),
    /// A symlink that leads to a denied or protected path.
    Link(Option<PrefixId>),
    /// A symlink that patterns go through.
    OnPath,
    /// A symlink that other programs follow unaware: git, which writes to names in its own
    /// directory, and readers of locked directories. A FIFO or a device in a git directory.
    Through,
    Socket,
    Free,
}

/// How the entries of a directory are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    Plain,
    /// Protected, with exceptions.
    Carved,
    /// Read-only as a whole: only denies count.
    Locked,
    /// Closed as a whole: nothing counts.
    Masked,
}

/// A directory, open.
pub struct Dir<'a> {
    pub tree: &'a OpenTree,
    /// The index of the tree.
    pub tree_index: usize,
    pub fd: BorrowedFd<'a>,
    /// Relative to the tree; empty for its root.
    pub path: &'a [u8],
    pub identity: Identity,
    pub state: StateId,
    pub below: Below,
    pub folding: bool,
    /// Do the inode numbers of the listing agree with stat(2)?
    pub numbers_agree: bool,
    /// The visitor's number for the directory above, then for this one.
    pub node: u32,
}

impl Dir<'_> {
    /// The path of an entry, relative to the tree.
    pub fn join(&self, name: &[u8]) -> Result<Vec<u8>, WalkError> {
        let mut path = Vec::new();
        path.try_reserve_exact(self.path.len() + 1 + name.len())?;
        path.extend_from_slice(self.path);
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Ok(path)
    }

    pub fn absolute(&self, name: &[u8]) -> Result<AbsPath, WalkError> {
        self.tree.absolute(&self.join(name)?)
    }

    /// The error for an entry that can not be examined.
    pub fn unseen(&self, name: &[u8], source: Errno) -> WalkError {
        match self.join(name) {
            Ok(path) => WalkError::Look { path: shown(self.tree, &path), source },
            Err(error) => error,
        }
    }

    /// Is it inside a git directory?
    pub fn is_in_git(&self, names: &NamePatterns) -> bool {
        names.guards_git && names.git.holds(&git::whole_path(self), self.folding)
    }

    /// The last name of its path.
    pub fn own_name(&self) -> &[u8] {
        let path = if self.path.is_empty() { self.tree.path.as_bytes() } else { self.path };
        path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    pub fn stat(&self, name: &CStr) -> Result<Stat, Errno> {
        rustix::fs::statat(self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

pub struct Entry<'a> {
    pub name: &'a CStr,
    pub file_type: FileType,
    /// From the listing; 0 if there was none.
    pub inode: u64,
    pub decision: NameDecision,
    pub look: NameMatch,
}

/// The names that together make a directory a git directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GitParts {
    pub head: bool,
    pub objects: bool,
    pub refs: bool,
    pub commondir: bool,
}

impl GitParts {
    pub fn see(&mut self, name: &[u8], folding: bool) {
        let part = match name.len() {
            4 => [(&b"HEAD"[..], &mut self.head), (b"refs", &mut self.refs)],
            7 | 9 => [(&b"objects"[..], &mut self.objects), (b"commondir", &mut self.commondir)],
            _ => return,
        };
        for (known, seen) in part {
            *seen |= name == known || (folding && name.eq_ignore_ascii_case(known));
        }
    }

    /// Does git treat such a directory as a repository (setup.c, is_git_directory)?
    pub fn make_a_repository(self) -> bool {
        self.head && (self.commondir || (self.objects && self.refs))
    }
}

/// Handles the entries of a walk.
pub trait Visitor {
    type Error: From<WalkError>;

    /// A directory was opened and is not listed yet. None: do not list it.
    fn enter(&mut self, names: &NamePatterns, dir: &Dir<'_>) -> Result<Option<u32>, Self::Error>;

    /// The root of a tree, or the file that is the whole tree, has a decision. None: do not walk
    /// it.
    fn root(
        &mut self,
        tree: &OpenTree,
        decision: NameDecision,
        look: NameMatch,
    ) -> Result<Option<Below>, Self::Error>;

    /// An entry with a decision. None: do not walk it. Otherwise it is walked if it is a directory.
    fn found(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, Self::Error>;

    /// Examines an entry. None: it does not exist.
    fn stat(&mut self, dir: &Dir<'_>, name: &CStr) -> Result<Option<Stat>, Self::Error> {
        match dir.stat(name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(dir.unseen(name.to_bytes(), source).into()),
        }
    }

    /// Called for every regular file without a decision, if `wants_files`.
    fn file(&mut self, _dir: &Dir<'_>, _entry: &Entry<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    fn wants_files(&self, _below: Below) -> bool {
        false
    }

    /// A flagged symlink without a decision.
    fn flagged_link(&mut self, _dir: &Dir<'_>, _name: &CStr) -> Result<(), Self::Error> {
        Ok(())
    }

    /// All entries were seen.
    fn leave(
        &mut self,
        _names: &mut NamePatterns,
        _dir: &Dir<'_>,
        _parts: GitParts,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A directory can not be listed, or not be searched. It is open with O_PATH. True: the visitor
    /// has restored the rights.
    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd)
    -> Result<bool, Self::Error>;

    /// The visitor itself had an error, at one entry or one directory. Ok: the walk continues with
    /// the rest.
    fn goes_on(&mut self, error: Self::Error) -> Result<(), Self::Error> {
        Err(error)
    }

    /// A part of the tree can not be walked. Ok: the walk continues with the rest.
    fn failed(&mut self, error: WalkError) -> Result<(), Self::Error> {
        Err(error.into())
    }
}

fn is_last(path: &[u8], name: &[u8]) -> bool {
    path.rsplit(|byte| *byte == b'/').next().is_some_and(|last| last.eq_ignore_ascii_case(name))
}

fn decide_name(
    names: &NamePatterns,
    dir: &Dir<'_>,
    name: &[u8],
    file_type: FileType,
    look: NameMatch,
) -> NameDecision {
    if dir.below == Below::Masked {
        return NameDecision::Free;
    }
    if look.deny.is_some() {
        return NameDecision::Deny(look.deny);
    }
    let link = file_type == FileType::Symlink;
    if dir.tree.writable && dir.below != Below::Locked && !look.opened {
        // Parts of a git directory are protected, but as a whole it has to stay writable. So has
        // the directory .jj/repo: a file of that name leads jj to another repository.
        let jj = || name.eq_ignore_ascii_case(b"repo") && is_last(dir.path, b".jj");
        let git = file_type == FileType::Directory && (names.is_git(name, dir.folding) || jj());
        let branch = || names.git.is_branch(&[&git::whole_path(dir)[..], b"/", name].concat());
        if (look.protect.is_some() && !git && !branch()) || dir.below == Below::Carved {
            return NameDecision::Protect(look.protect);
        }
        // Patterns protect parts of the directory. A file or a link in its place leads git
        // elsewhere as a whole (G8, G9).
        if names.guards_git && file_type != FileType::Directory && names.is_git(name, dir.folding) {
            return NameDecision::Protect(None);
        }
        if link && look.way_to_protected {
            return NameDecision::OnPath;
        }
        if link && look.link.is_some() {
            return NameDecision::Link(look.link);
        }
    }
    match file_type {
        FileType::Symlink if look.way_to_denied => NameDecision::OnPath,
        FileType::Symlink
            if dir.tree.writable && (dir.below == Below::Locked || dir.is_in_git(names)) =>
        {
            NameDecision::Through
        }
        // A connection needs no right to write: every visible socket leads out.
        FileType::Socket => NameDecision::Socket,
        FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice
            if dir.tree.writable && dir.is_in_git(names) =>
        {
            NameDecision::Through
        }
        _ => NameDecision::Free,
    }
}
