//! Trees, listed by descriptor.
//!
//! A directory is opened below the root of its tree through no symlink, so whatever happens to names meanwhile, nothing outside is
//! ever listed. No descriptor stays open for the way back: a tree may be deeper than a process may have files. Entries are
//! told by the type that the listing gives; only what matches is looked at closer, by the [`Visitor`].
//!
//! A tree ends where another one begins. Mounts are walked through, as they are part of what a grant shows.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, OFlags, RawDir, Stat};
use rustix::io::Errno;

use crate::ground::{Ground, Rooted};
use crate::names::{Look, Names, NamesError, StateId, StemId};
use crate::place::Identity;
use crate::text::AbsPath;
use crate::volume::Volume;

#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error("{path} can not be searched for names that are denied or protected: {source}")]
    Root { path: AbsPath, source: Errno },
    #[error("{path} can not be listed, and may hold names that are denied or protected: {source}")]
    List { path: AbsPath, source: Errno },
    #[error("symlinks at protected names lead to one another without end ({path})")]
    Links { path: AbsPath },
    #[error("a signal stopped the search for names that are denied or protected")]
    Interrupted,
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error("a name that was found is none: {0}")]
    Path(#[from] crate::text::TextError),
}

impl WalkError {
    pub fn hint(&self) -> &'static str {
        match self {
            WalkError::Root { .. } => "check the path and its permissions",
            WalkError::List { .. } => "make the directory readable for you, remove it, or deny it as a whole",
            WalkError::Links { .. } => "remove one of the links",
            WalkError::Interrupted => "start the run again, and let it finish",
            WalkError::Names(error) => error.hint(),
            WalkError::Path(_) => "this is a bug of paddock",
        }
    }
}

/// What the rules say of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The rule that says so, if it was a pattern.
    Deny(Option<StemId>),
    Protect(Option<StemId>),
    /// A symlink on the way to something denied or protected.
    Link(Option<StemId>),
    /// A symlink that patterns go through.
    Way,
    /// A symlink that others go through who know nothing of it: git, which writes to names in its own directory, and whoever reads what is locked.
    Through,
    Socket,
    Free,
}

/// How what lies in a directory is to be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    Plain,
    /// Protected, all but what is opened.
    Carved,
    /// Read-only as a whole: only denies count.
    Locked,
    /// Closed as a whole: nothing counts.
    Masked,
}

/// A directory, open.
pub struct Dir<'a> {
    pub tree: &'a Rooted,
    /// Which of the ground's trees that is.
    pub tree_index: usize,
    pub fd: BorrowedFd<'a>,
    /// Relative to the tree; empty for its root.
    pub path: &'a [u8],
    pub identity: Identity,
    pub state: StateId,
    pub below: Below,
    pub folding: bool,
    /// Do the numbers of the listing say which files are one?
    pub numbers_agree: bool,
    /// What the visitor gave the directory above, then what it gives this one.
    pub node: u32,
}

impl Dir<'_> {
    /// The path of an entry, relative to the tree.
    pub fn join(&self, name: &[u8]) -> Vec<u8> {
        let separator: &[u8] = if self.path.is_empty() { b"" } else { b"/" };
        [self.path, separator, name].concat()
    }

    pub fn absolute(&self, name: &[u8]) -> Result<AbsPath, WalkError> {
        self.tree.absolute(&self.join(name))
    }

    /// Does it belong to a repository, of whatever work tree?
    pub fn is_in_git(&self, names: &Names) -> bool {
        let whole = [self.tree.path.as_bytes(), b"/", self.path].concat();
        names.guards_git && whole.split(|byte| *byte == b'/').any(|name| names.is_git(name, self.folding))
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
    /// As the listing has it; 0 when nobody listed.
    pub inode: u64,
    pub verdict: Verdict,
    pub look: Look,
}

/// The names that make a directory one of git's, when they come together.
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

    /// Git takes such a directory for a repository (setup.c, is_git_directory).
    pub fn make_a_repository(self) -> bool {
        self.head && (self.commondir || (self.objects && self.refs))
    }
}

/// What is done with what a walk comes by.
pub trait Visitor {
    type Error: From<WalkError>;

    /// A directory was opened and is not listed yet. None: it is not to be.
    fn enter(&mut self, dir: &Dir<'_>) -> Result<Option<u32>, Self::Error>;

    /// The root of a tree, or the file that is all of it, has a verdict. None: it is done with.
    fn root(&mut self, tree: &Rooted, verdict: Verdict, look: Look) -> Result<Option<Below>, Self::Error>;

    /// An entry that is not free. None: it is done with; otherwise, if it is a directory, it is walked.
    fn found(&mut self, names: &mut Names, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<Option<Below>, Self::Error>;

    /// Every regular file without a verdict, where they are asked for.
    fn file(&mut self, _dir: &Dir<'_>, _entry: &Entry<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    fn wants_files(&self, _below: Below) -> bool {
        false
    }

    /// A file or a link that is flagged and has no verdict.
    fn flagged(&mut self, _dir: &Dir<'_>, _name: &CStr) {}

    /// All entries were seen.
    fn leave(&mut self, _dir: &Dir<'_>, _parts: GitParts) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The directory may not be listed. None: it can be left alone.
    fn unlistable(&mut self, tree: &Rooted, path: &[u8]) -> Result<Option<OwnedFd>, Self::Error>;
}

pub const LIST: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NONBLOCK);

/// A directory that waits to be listed. Its path begins at `start` among the paths that wait, and is the last one there.
struct Pending {
    start: usize,
    tree: usize,
    state: StateId,
    below: Below,
    node: u32,
}

/// The memory that walks use again and again.
#[derive(Default)]
pub struct Walker {
    pending: Vec<Pending>,
    paths: Vec<u8>,
    path: Vec<u8>,
    listing: Vec<u8>,
    volume: Option<Volume>,
    /// Says whether a signal asks the walk to stop. It is called for every directory.
    pub is_interrupted: Option<fn() -> bool>,
}

const LISTING: usize = 32 * 1024;
/// In one directory.
const MOST_STALE: usize = 100_000;

impl Walker {
    /// Walks a whole tree.
    pub fn tree<V: Visitor>(
        &mut self,
        names: &mut Names,
        ground: &Ground,
        index: usize,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let tree = &ground.trees[index];
        // Only a tree that can be written, or a copy of it, was asked for by the user; what is read may be the system's.
        let start = names.start(tree.path.as_bytes(), tree.writable || tree.watched);
        let look = start.look;
        let verdict = match () {
            () if start.denied => Verdict::Deny(look.deny),
            () if !tree.writable || look.opened => Verdict::Free,
            () => look.protect.map_or(Verdict::Free, |rule| Verdict::Protect(Some(rule))),
        };
        let below = match verdict {
            Verdict::Free => Some(Below::Plain),
            verdict => visitor.root(tree, verdict, look)?,
        };
        match below {
            Some(below) if tree.is_dir() => self.directory(names, ground, index, b"", look.next, below, 0, visitor),
            _ => Ok(()),
        }
    }

    /// Walks a directory of a tree.
    #[allow(clippy::too_many_arguments, reason = "what a directory that waits is made of")]
    pub fn directory<V: Visitor>(
        &mut self,
        names: &mut Names,
        ground: &Ground,
        tree: usize,
        path: &[u8],
        state: StateId,
        below: Below,
        node: u32,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        self.push(tree, path, b"", state, below, node);
        self.run(names, ground, visitor)
    }

    /// Judges one entry of an open directory, and walks what is below it.
    pub fn entry<V: Visitor>(
        &mut self,
        names: &mut Names,
        ground: &Ground,
        dir: &Dir<'_>,
        name: &CStr,
        file_type: FileType,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        self.consider(names, dir, name, file_type, 0, visitor)?;
        self.run(names, ground, visitor)
    }

    fn push(&mut self, tree: usize, above: &[u8], name: &[u8], state: StateId, below: Below, node: u32) {
        let start = self.paths.len();
        self.paths.extend_from_slice(above);
        if !above.is_empty() && !name.is_empty() {
            self.paths.push(b'/');
        }
        self.paths.extend_from_slice(name);
        self.pending.push(Pending { start, tree, state, below, node });
    }

    fn run<V: Visitor>(&mut self, names: &mut Names, ground: &Ground, visitor: &mut V) -> Result<(), V::Error> {
        let mut path = std::mem::take(&mut self.path);
        let mut listing = std::mem::take(&mut self.listing);
        listing.reserve(LISTING);
        let mut outcome = Ok(());
        while let Some(next) = self.pending.pop() {
            if self.is_interrupted.is_some_and(|is_interrupted| is_interrupted()) {
                outcome = Err(WalkError::Interrupted.into());
                break;
            }
            path.clear();
            path.extend_from_slice(&self.paths[next.start..]);
            self.paths.truncate(next.start);
            outcome = self.list(names, ground, &next, &path, &mut listing, visitor);
            if outcome.is_err() {
                break;
            }
        }
        self.pending.clear();
        self.paths.clear();
        (self.path, self.listing) = (path, listing);
        outcome
    }

    fn list<V: Visitor>(
        &mut self,
        names: &mut Names,
        ground: &Ground,
        next: &Pending,
        path: &[u8],
        listing: &mut Vec<u8>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let tree = &ground.trees[next.tree];
        let failed = |source| match tree.absolute(path) {
            Ok(path) => WalkError::List { path, source },
            Err(error) => error,
        };
        let fd = match tree.open(path, LIST) {
            Ok(fd) => fd,
            // Gone since it was seen, or something else by now: whoever changed it made an event.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE) => return Ok(()),
            Err(Errno::ACCESS) => match visitor.unlistable(tree, path)? {
                Some(fd) => fd,
                None => return Ok(()),
            },
            Err(source) => return Err(failed(source).into()),
        };
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        let volume = match self.volume {
            Some(volume) if volume.device == stat.st_dev => volume,
            _ => Volume::of(&fd, stat.st_dev).map_err(failed)?,
        };
        self.volume = Some(volume);
        let mut dir = Dir {
            tree,
            tree_index: next.tree,
            fd: fd.as_fd(),
            path,
            identity: Identity::from(&stat),
            state: next.state,
            below: next.below,
            folding: volume.folds(&fd),
            numbers_agree: volume.numbers_agree,
            node: next.node,
        };
        match visitor.enter(&dir)? {
            Some(node) => dir.node = node,
            None => return Ok(()),
        }
        let mut parts = GitParts::default();
        let mut stale = 0;
        let mut entries = RawDir::new(dir.fd, listing.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::NOENT) => return Ok(()), // removed while it was listed
                // An overlay stops at a name that it can not look up, nobody can, and goes on behind it.
                Err(Errno::STALE) if stale < MOST_STALE => {
                    stale += 1;
                    continue;
                }
                Err(source) => return Err(failed(source).into()),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            parts.see(name.to_bytes(), dir.folding);
            self.consider(names, &dir, name, entry.file_type(), entry.ino(), visitor)?;
        }
        visitor.leave(&dir, parts)
    }

    /// What an entry is, and whether it has to be walked.
    fn consider<V: Visitor>(
        &mut self,
        names: &mut Names,
        dir: &Dir<'_>,
        name: &CStr,
        file_type: FileType,
        inode: u64,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let bytes = name.to_bytes();
        let look = names.look(dir.state, bytes, dir.folding);
        let file_type = match file_type {
            FileType::Unknown => match dir.stat(name) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(_) => return Ok(()), // gone
            },
            known => known,
        };
        let verdict = verdict(names, dir, bytes, file_type, look);
        let entry = Entry { name, file_type, inode, verdict, look };
        let below = match verdict {
            Verdict::Free if file_type == FileType::Directory => match dir.below {
                Below::Carved => Some(Below::Plain), // opened
                below => Some(below),
            },
            Verdict::Free => {
                if look.flagged && dir.tree.writable && dir.below == Below::Plain && !names.is_shipped(dir.path) {
                    visitor.flagged(dir, name);
                }
                if file_type == FileType::RegularFile && visitor.wants_files(dir.below) {
                    visitor.file(dir, &entry)?;
                }
                None
            }
            _ if dir.tree.is_left_out(dir.path, bytes) => None,
            _ => visitor.found(names, dir, &entry)?,
        };
        if let Some(below) = below
            && file_type == FileType::Directory
            && names.expects(look.next)
            && !dir.tree.is_left_out(dir.path, bytes)
        {
            self.push(dir.tree_index, dir.path, bytes, look.next, below, dir.node);
        }
        Ok(())
    }
}

fn verdict(names: &Names, dir: &Dir<'_>, name: &[u8], file_type: FileType, look: Look) -> Verdict {
    let link = file_type == FileType::Symlink;
    if dir.below == Below::Masked {
        return Verdict::Free;
    }
    if look.deny.is_some() {
        return Verdict::Deny(look.deny);
    }
    if dir.tree.writable && dir.below != Below::Locked && !look.opened {
        // Of a git directory parts are protected; as a whole it has to stay writable.
        let git = file_type == FileType::Directory && names.is_git(name, dir.folding);
        if (look.protect.is_some() && !git) || dir.below == Below::Carved {
            return Verdict::Protect(look.protect);
        }
        // The directory is split by patterns; a file or a link in its place leads git elsewhere as a whole (G8, G9).
        if names.guards_git && file_type != FileType::Directory && names.is_git(name, dir.folding) {
            return Verdict::Protect(None);
        }
        if link && look.way_to_protected {
            return Verdict::Way;
        }
        if link && look.link.is_some() {
            return Verdict::Link(look.link);
        }
    }
    match file_type {
        FileType::Symlink if look.way_to_denied => Verdict::Way,
        FileType::Symlink if dir.tree.writable && (dir.below == Below::Locked || dir.is_in_git(names)) => {
            Verdict::Through
        }
        // A connection needs no right to write: a socket is a way out wherever it can be seen.
        FileType::Socket => Verdict::Socket,
        _ => Verdict::Free,
    }
}
