//! The walk itself: levels, and the pending names in each.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::{
    Below, Dir, Entry, GitParts, MAX_DEPTH, NameDecision, Visitor, WalkError, decide_name,
};
use crate::files::patterns::{NamePatterns, StateId};
use crate::files::tree_roots::{OpenTree, TreeRoots};
use crate::kernel::filesystem::Filesystem;
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;

const LIST_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NONBLOCK);

/// For a directory whose children are opened, and which is not listed.
const PATH_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory that waits to be listed: a name in the directory of the top level.
struct PendingDir {
    /// The start of its name in the buffer of pending names. It ends with a NUL, and is the last
    /// one there.
    name: usize,
    state: StateId,
    below: Below,
}

/// The directory that is listed next.
struct NextDir<'n> {
    /// The level that has it. None: it is the root of the tree.
    parent: Option<usize>,
    name: &'n CStr,
    state: StateId,
    below: Below,
}

/// A directory on the current path. It was listed; some of its children may be pending.
struct WalkLevel {
    /// None: it is closed, because too many are open.
    fd: Option<OwnedFd>,
    identity: Identity,
    state: StateId,
    below: Below,
    folding: bool,
    numbers_agree: bool,
    node: u32,
    /// The length of its path.
    path: usize,
    /// Its first pending child.
    first: usize,
}

impl WalkLevel {
    fn dir<'a>(
        &self,
        tree: &'a OpenTree,
        tree_index: usize,
        fd: BorrowedFd<'a>,
        path: &'a [u8],
    ) -> Dir<'a> {
        let WalkLevel { identity, state, below, folding, numbers_agree, node, .. } = *self;
        Dir {
            tree,
            tree_index,
            fd,
            path: &path[..self.path],
            identity,
            state,
            below,
            folding,
            numbers_agree,
            node,
        }
    }
}

/// The memory that walks reuse.
#[derive(Default)]
pub struct Walker {
    levels: Vec<WalkLevel>,
    pending: Vec<PendingDir>,
    names: Vec<u8>,
    path: Vec<u8>,
    listing: Vec<u8>,
    volume: Option<Filesystem>,
    /// The depth of the first level.
    base: usize,
    /// Names that were another object when they were opened.
    changed: usize,
    /// Has a signal asked the walk to stop?
    pub is_interrupted: Option<fn() -> bool>,
    /// A walk ends at this time.
    pub deadline: Option<Instant>,
}

const LISTING_BUFFER_BYTES: usize = 32 * 1024;
/// Stale entries in one directory.
const MAX_STALE_ENTRIES: usize = 100_000;
/// Changed names in one walk.
const MAX_CHANGED_NAMES: usize = 10_000;
/// Levels whose descriptors are open.
const MAX_OPEN_LEVELS: usize = 64;
/// The walk checks whether it has to stop at every directory, and after so many entries of one.
const ENTRIES_PER_CHECK: usize = 1024;

impl Walker {
    /// Walks a whole tree.
    pub fn tree<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        roots: &TreeRoots,
        index: usize,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let tree = &roots.trees[index];
        // The user requested only writable trees and copies. A read-only tree may be the system's.
        let start = names.start(tree.path.as_bytes(), tree.writable || tree.watched);
        let look = start.look;
        let decision = match () {
            () if start.denied => NameDecision::Deny(look.deny),
            () if !tree.writable || look.opened => NameDecision::Free,
            () => look.protect.map_or(NameDecision::Free, |rule| NameDecision::Protect(Some(rule))),
        };
        let below = match decision {
            NameDecision::Free => Some(Below::Plain),
            decision => visitor.root(tree, decision, look)?,
        };
        let Some(below) = below.filter(|_| tree.is_dir()) else { return Ok(()) };
        self.path.clear();
        self.base = 0;
        let next = NextDir { parent: None, name: c"", state: look.next, below };
        let result = self.list(names, roots, index, next, visitor);
        let result = result.and_then(|()| self.run(names, roots, index, visitor));
        self.rest();
        result
    }

    /// Judges one entry of an open directory, and walks what is below it.
    pub fn entry<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        roots: &TreeRoots,
        dir: &Dir<'_>,
        name: &CStr,
        file_type: FileType,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        self.path.clear();
        let result = self.consider(names, dir, name, file_type, 0, visitor).and_then(|()| {
            if self.pending.is_empty() {
                return Ok(());
            }
            let fd = rustix::io::fcntl_dupfd_cloexec(dir.fd, 0)
                .map_err(|source| dir.unseen(b"", source))?;
            self.path.try_reserve(dir.path.len()).map_err(WalkError::from)?;
            self.path.extend_from_slice(dir.path);
            self.base = self.path.iter().filter(|byte| **byte == b'/').count();
            let Dir { identity, state, below, folding, numbers_agree, node, .. } = *dir;
            let path = self.path.len();
            let level = WalkLevel {
                fd: Some(fd),
                identity,
                state,
                below,
                folding,
                numbers_agree,
                node,
                path,
                first: 0,
            };
            self.levels.push(level);
            self.run(names, roots, dir.tree_index, visitor)
        });
        self.rest();
        result
    }

    /// Nothing is pending any more. Large buffers are freed.
    fn rest(&mut self) {
        const MAX_KEPT_BYTES: usize = 64 * 1024;
        self.levels.clear();
        self.pending.clear();
        self.names.clear();
        self.changed = 0;
        if self.names.capacity() > MAX_KEPT_BYTES {
            self.names = Vec::new();
            self.pending = Vec::new();
        }
        if self.path.capacity() > MAX_KEPT_BYTES {
            (self.path, self.levels) = (Vec::new(), Vec::new());
        }
    }

    fn check(&self) -> Result<(), WalkError> {
        if self.is_interrupted.is_some_and(|is_interrupted| is_interrupted()) {
            return Err(WalkError::Interrupted);
        }
        if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Err(WalkError::Behind);
        }
        Ok(())
    }

    fn run<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        roots: &TreeRoots,
        index: usize,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let mut name = Vec::new();
        while let Some(level) = self.levels.last() {
            if self.pending.len() == level.first {
                self.go_back(&roots.trees[index], visitor)?;
                continue;
            }
            let Some(next) = self.pending.pop() else { break };
            name.clear();
            name.extend_from_slice(&self.names[next.name..]);
            self.names.truncate(next.name);
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            self.path.truncate(level.path);
            self.path.try_reserve(1 + name.to_bytes().len()).map_err(WalkError::from)?;
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(name.to_bytes());
            let (parent, PendingDir { state, below, .. }) = (Some(self.levels.len() - 1), next);
            let next = NextDir { parent, name, state, below };
            self.list(names, roots, index, next, visitor)?;
        }
        Ok(())
    }

    /// Leaves the directory of the top level.
    fn go_back<V: Visitor>(&mut self, tree: &OpenTree, visitor: &mut V) -> Result<(), V::Error> {
        let Some(done) = self.levels.pop() else { return Ok(()) };
        let Some(level) = self.levels.last_mut().filter(|level| level.fd.is_none()) else {
            return Ok(());
        };
        let same = |fd: OwnedFd| {
            let stat = rustix::fs::fstat(&fd)?;
            Ok::<_, Errno>((Identity::from(&stat) == level.identity).then_some(fd))
        };
        let above =
            |fd: OwnedFd| rustix::fs::openat(fd, c"..", PATH_FLAGS, Mode::empty()).and_then(same);
        let path = &self.path[..level.path];
        level.fd = match done.fd.map(above) {
            Some(Ok(Some(fd))) => Some(fd),
            // The child was moved away, or shut: its parent may still be at its path.
            _ => match tree.open(path, PATH_FLAGS).and_then(same) {
                Ok(fd) => fd,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => None,
                Err(source) => {
                    visitor.failed(WalkError::List { path: shown(tree, path), source })?;
                    None
                }
            },
        };
        if level.fd.is_none() {
            let (first, waits) = (level.first, self.pending.len() > level.first);
            if waits {
                visitor.failed(WalkError::Moved { path: shown(tree, path) })?;
            }
            if let Some(pending) = self.pending.get(first) {
                self.names.truncate(pending.name);
            }
            self.pending.truncate(first);
        }
        Ok(())
    }

    /// Opens a directory by its name in the top level, or the root of a tree, and lists it.
    /// `self.path` is its path.
    fn list<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        roots: &TreeRoots,
        index: usize,
        next: NextDir<'_>,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let NextDir { parent, name, state, below } = next;
        self.check()?;
        let tree = &roots.trees[index];
        if self.base + self.levels.len() > MAX_DEPTH {
            return visitor.failed(WalkError::Deep { path: shown(tree, &self.path) });
        }
        let above = parent.and_then(|parent| self.levels[parent].fd.as_ref());
        let open = |flags: OFlags| match above {
            Some(above) => rustix::fs::openat(
                above,
                name,
                flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            ),
            None => tree.open(b"", flags),
        };
        let mut opened = searched(open(LIST_FLAGS));
        // The rights of the directory above may have been removed since it was listed, and then
        // those of this one.
        if let (Err(Errno::ACCESS), Some(above)) = (&opened, above)
            && matches!(searchable(above), Err(Errno::ACCESS))
        {
            let end = parent.map_or(0, |parent| self.levels[parent].path);
            match visitor.shut(tree, &self.path[..end], above) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => return visitor.goes_on(error),
            }
            opened = searched(open(LIST_FLAGS));
        }
        if let Err(Errno::ACCESS) = opened {
            opened = match open(PATH_FLAGS) {
                Ok(object) => match visitor.shut(tree, &self.path, &object) {
                    Ok(true) => searched(reopen(&object)),
                    Ok(false) => return Ok(()),
                    Err(error) => return visitor.goes_on(error),
                },
                Err(error) => Err(error),
            };
        }
        let (fd, stat) = match opened {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(()),
            // It is no directory any more.
            Err(Errno::NOTDIR | Errno::LOOP)
                if self.changed < MAX_CHANGED_NAMES && parent.is_some() =>
            {
                self.changed += 1;
                return self.look_again(names, tree, index, name, visitor);
            }
            Err(source) => {
                return visitor.failed(WalkError::List { path: shown(tree, &self.path), source });
            }
        };
        let volume = match self.volume {
            Some(volume) if volume.device == stat.st_dev => volume,
            _ => match Filesystem::of(&fd, stat.st_dev) {
                Ok(volume) => volume,
                Err(source) => {
                    return visitor
                        .failed(WalkError::List { path: shown(tree, &self.path), source });
                }
            },
        };
        self.volume = Some(volume);
        let mut level = WalkLevel {
            fd: None,
            identity: Identity::from(&stat),
            state,
            below,
            folding: volume.folds_case(&fd),
            numbers_agree: volume.lists_inodes,
            node: parent.map_or(0, |parent| self.levels[parent].node),
            path: self.path.len(),
            first: self.pending.len(),
        };
        let path = std::mem::take(&mut self.path);
        let mut listing = std::mem::take(&mut self.listing);
        let dir = level.dir(tree, index, fd.as_fd(), &path);
        let listed = self.entries(names, &mut level.node, dir, &mut listing, visitor);
        (self.path, self.listing) = (path, listing);
        if !listed? || self.pending.len() == level.first {
            return Ok(());
        }
        level.fd = Some(fd);
        self.levels.try_reserve(1).map_err(WalkError::from)?;
        self.levels.push(level);
        if let Some(oldest) = self.levels.len().checked_sub(MAX_OPEN_LEVELS + 1) {
            self.levels[oldest].fd = None;
        }
        Ok(())
    }

    /// Lists an open directory. False: the visitor does not want it.
    fn entries<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        node: &mut u32,
        mut dir: Dir<'_>,
        listing: &mut Vec<u8>,
        visitor: &mut V,
    ) -> Result<bool, V::Error> {
        match visitor.enter(names, &dir)? {
            Some(entered) => (*node, dir.node) = (entered, entered),
            None => return Ok(false),
        }
        let (mut parts, mut stale, mut seen) = (GitParts::default(), 0, 0);
        listing.try_reserve(LISTING_BUFFER_BYTES).map_err(WalkError::from)?;
        let mut entries = RawDir::new(dir.fd, listing.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::NOENT) => return Ok(true), // removed while it was listed
                // An overlay stops at a name that no process can look up, and continues after it.
                Err(Errno::STALE) if stale < MAX_STALE_ENTRIES => {
                    stale += 1;
                    continue;
                }
                Err(source) => {
                    visitor.failed(WalkError::List { path: shown(dir.tree, dir.path), source })?;
                    break;
                }
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            seen += 1;
            if seen % ENTRIES_PER_CHECK == 0 {
                self.check()?;
            }
            parts.see(name.to_bytes(), dir.folding);
            self.consider(names, &dir, name, entry.file_type(), entry.ino(), visitor)?;
        }
        visitor.leave(names, &dir, parts).or_else(|error| visitor.goes_on(error))?;
        Ok(true)
    }

    /// A directory's name now belongs to another object.
    fn look_again<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        tree: &OpenTree,
        index: usize,
        name: &CStr,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let Some(mut level) = self.levels.pop() else { return Ok(()) };
        let path = std::mem::take(&mut self.path);
        let result = match level.fd.take() {
            Some(fd) => {
                let dir = level.dir(tree, index, fd.as_fd(), &path);
                let result = self.consider(names, &dir, name, FileType::Unknown, 0, visitor);
                level.fd = Some(fd);
                result
            }
            None => Ok(()),
        };
        self.path = path;
        self.levels.push(level);
        result
    }

    /// Decides about an entry, and whether it has to be walked.
    fn consider<V: Visitor>(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        name: &CStr,
        file_type: FileType,
        inode: u64,
        visitor: &mut V,
    ) -> Result<(), V::Error> {
        let bytes = name.to_bytes();
        let look = names.look(dir.state, bytes, dir.folding);
        let file_type = match file_type {
            FileType::Unknown => match visitor.stat(dir, name)? {
                Some(stat) => FileType::from_raw_mode(stat.st_mode),
                None => return Ok(()),
            },
            known => known,
        };
        let decision = decide_name(names, dir, bytes, file_type, look);
        let entry = Entry { name, file_type, inode, decision, look };
        let below = match decision {
            NameDecision::Free if file_type == FileType::Directory => match dir.below {
                Below::Carved => Some(Below::Plain), // opened
                below => Some(below),
            },
            NameDecision::Free => {
                if file_type == FileType::Symlink
                    && look.flagged
                    && dir.tree.writable
                    && !names.is_shipped(dir.path)
                {
                    visitor.flagged_link(dir, name)?;
                }
                if file_type == FileType::RegularFile && visitor.wants_files(dir.below) {
                    visitor.file(dir, &entry)?;
                }
                None
            }
            _ if dir.tree.is_left_out(dir.path, bytes) => None,
            _ => match visitor.found(names, dir, &entry) {
                Ok(below) => below,
                Err(error) => visitor.goes_on(error).map(|()| None)?,
            },
        };
        if let Some(below) = below
            && file_type == FileType::Directory
            && dir.tree.is_worth_a_look(names, look.next)
            && !dir.tree.is_left_out(dir.path, bytes)
        {
            self.wait(name, look.next, below)?;
        }
        Ok(())
    }

    fn wait(&mut self, name: &CStr, state: StateId, below: Below) -> Result<(), WalkError> {
        let bytes = name.to_bytes_with_nul();
        self.names.try_reserve(bytes.len())?;
        self.pending.try_reserve(1)?;
        self.pending.push(PendingDir { name: self.names.len(), state, below });
        self.names.extend_from_slice(bytes);
        Ok(())
    }
}

/// Can names in it be looked up? `.` is one.
pub fn searchable(dir: &OwnedFd) -> Result<Stat, Errno> {
    rustix::fs::statat(dir, c".", AtFlags::empty())
}

/// A directory that was opened for listing, if names in it can be looked up too. With `r` and
/// without `x` it shows its names, but not whether they are denied.
fn searched(opened: Result<OwnedFd, Errno>) -> Result<(OwnedFd, Stat), Errno> {
    let fd = opened?;
    let stat = searchable(&fd)?;
    Ok((fd, stat))
}

/// Opens a directory for listing that is open with O_PATH.
fn reopen(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut buffer = [0; 32];
    rustix::fs::open(
        open_beneath::proc_fd_path(dir, &mut buffer),
        LIST_FLAGS | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// A path in a tree for a message; a long one is cut.
pub fn shown(tree: &OpenTree, path: &[u8]) -> AbsPath {
    const MAX_SHOWN_BYTES: usize = 200;
    let cut = match path.get(..MAX_SHOWN_BYTES) {
        Some(long) => [
            &long[..long.iter().rposition(|byte| *byte == b'/').unwrap_or(MAX_SHOWN_BYTES)],
            b"/...",
        ]
        .concat(),
        None => path.to_vec(),
    };
    tree.absolute(&cut).unwrap_or_else(|_| tree.path.clone())
}
