//! The state of a guard between two turns.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::fs::inotify::WatchFlags;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::files::cover::{Cover, CoverKind};
use crate::files::quarantine::Quarantine;
use crate::files::scan::{GitLink, HeldName, ScanResult};
use crate::files::tree_roots::OpenTree;
use crate::files::walk::{Dir, WalkError};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::AbsPath;

use super::foreign_sockets::SilentSockets;
use super::watches::Watches;
use super::{GuardEvent, watch};

/// The state of a guard.
pub struct GuardState {
    pub nodes: Watches,
    pub store: Quarantine,
    pub guards_git: bool,
    /// Names that were locked or denied at the start, in order, without those that went away since.
    /// A name that went away took its mount with it, so a new object there may be the command's. A
    /// name that stays is a mount point inside, which the command can not replace. So only the host
    /// replaces it, and it is locked again. A name belongs to its directory: another directory at
    /// the same path is new.
    pub held: Vec<HeldName>,
    /// Objects that were covered at the start, in order: never quarantined.
    pub covered: Vec<Object>,
    /// The watches of closed files.
    file_watches: HashMap<i32, Identity>,
    /// Files that are masked or locked under some name, sorted by inode, as a listing has it. The
    /// host can give such a file another name (link(2)), which is covered too.
    closed: BTreeMap<(u64, Identity), CoverKind>,
    /// Bare repositories of the start, in order.
    pub bare: Vec<Object>,
    /// Bare repositories at a new path: the host has moved them.
    pub moved: Vec<Vec<u8>>,
    /// Symlinks in git directories of the start, in order.
    pub through: Vec<GitLink>,
    /// Git directories of the start with state that git trusts, by their numbers in `nodes`.
    pub git_state: Vec<u32>,
    /// When the run began, in seconds and nanoseconds, by the clock of file timestamps.
    pub since: (i64, i64),
    /// Directories that could not be listed, and were closed as a whole.
    pub shut: Vec<Object>,
    /// Objects that were denied at the start, in order.
    pub masked: Vec<Object>,
    /// Events were lost, so names and directories may have changed unseen: only the objects of the
    /// start are not new.
    pub lost: bool,
    /// Flagged names of the last scan: the tree, and the path in it.
    pub flagged: Vec<(usize, Vec<u8>)>,
    /// The number of flagged names that were left out.
    pub unlisted: usize,
    pub quarantined: usize,
    pub covers: Vec<Cover>,
    /// Bytes of the paths of covers, and of flagged names.
    pub stored_path_bytes: usize,
    /// The first error of the last scan.
    pub unfinished: Option<WalkError>,
    pub events: Vec<GuardEvent>,
    /// Names whose failure was already reported.
    pub failed: Vec<AbsPath>,
    pub content: Vec<u8>,
    /// Some directory can not be watched.
    pub blind: bool,
    /// The name itself made the event: it was not found below another one.
    pub direct: bool,
    /// Events were lost: covered names may be uncovered.
    pub again: bool,
    /// Sockets that no process answers on yet.
    pub silent: SilentSockets,
    /// The sandbox has ended; nothing is covered any more.
    pub finishing: bool,
}

impl GuardState {
    pub fn new(
        nodes: Watches,
        store: Quarantine,
        guards_git: bool,
        found: ScanResult,
        since: Timespec,
    ) -> GuardState {
        let ScanResult {
            mut held,
            mut bare,
            mut through,
            git_state,
            shut,
            flagged,
            mut masked,
            ..
        } = found;
        masked.sort_unstable();
        through.sort_unstable();
        held.sort_unstable();
        held.dedup_by(|one, other| (one.parent, &one.name) == (other.parent, &other.name));
        bare.sort_unstable();
        GuardState {
            nodes,
            store,
            guards_git,
            held,
            covered: Vec::new(),
            file_watches: HashMap::new(),
            closed: BTreeMap::new(),
            bare,
            moved: Vec::new(),
            through,
            git_state,
            since: (since.tv_sec, since.tv_nsec),
            shut,
            masked,
            lost: false,
            flagged,
            unlisted: 0,
            quarantined: 0,
            covers: Vec::new(),
            stored_path_bytes: 0,
            unfinished: None,
            events: Vec::new(),
            failed: Vec::new(),
            content: Vec::new(),
            blind: false,
            direct: false,
            again: false,
            silent: SilentSockets::default(),
            finishing: false,
        }
    }

    fn find_held(&self, parent: Identity, name: &[u8]) -> Option<usize> {
        self.held.binary_search_by(|held| (held.parent, &*held.name).cmp(&(parent, name))).ok()
    }

    /// Notes that a name went away.
    pub fn gone(&mut self, parent: Identity, name: &[u8]) {
        if let Some(index) = self.find_held(parent, name) {
            self.held.remove(index);
        }
    }

    pub fn holds_in(&self, parent: Identity) -> bool {
        let first = self.held.partition_point(|held| held.parent < parent);
        self.held.get(first).is_some_and(|held| held.parent == parent)
    }

    /// Is this a name that was locked or denied at the start, with its object of the start or one
    /// that the host has put there? Only a complete sequence of events tells that.
    pub fn is_held(&self, parent: Identity, name: &[u8], object: Object) -> bool {
        self.find_held(parent, name)
            .is_some_and(|index| !self.lost || self.held[index].object == object)
    }

    /// Is this a repository of the start? If the birth time of a directory is not known, git's
    /// writes change its identity. Then its inode number counts, as long as no event was lost.
    pub fn was_bare(&self, dir: &Dir<'_>) -> bool {
        let first = self.bare.partition_point(|object| object.identity < dir.identity);
        let known = self.bare.get(first).filter(|object| object.identity == dir.identity);
        known.is_some_and(|known| {
            !self.lost || Object::at(dir.fd, c"").is_ok_and(|now| now == *known)
        })
    }

    /// Stores the objects that were covered at the start, in order.
    pub fn remember(&mut self, mut covered: Vec<Object>, mut masked: Vec<Object>) {
        covered.sort_unstable();
        masked.sort_unstable();
        (self.covered, self.masked) = (covered, masked);
    }

    /// Closes a file under each name that it gets. The file is watched, because a free inode number
    /// may become another file's. A file that can not be watched stays closed until the end of the
    /// run.
    pub fn close(
        &mut self,
        inotify: BorrowedFd<'_>,
        object: BorrowedFd<'_>,
        stat: &Stat,
        kind: CoverKind,
    ) -> Result<(), Errno> {
        let is_kept = matches!(kind, CoverKind::Mask | CoverKind::Lock) && !self.finishing;
        if !is_kept || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(());
        }
        let identity = Identity::from(stat);
        match self.closed.get(&(identity.inode(), identity)) {
            Some(CoverKind::Mask) => return Ok(()),
            Some(known) if *known == kind => return Ok(()),
            _ => {}
        }
        match watch(inotify, object, WatchFlags::DELETE_SELF | WatchFlags::MASK_ADD) {
            Ok(watch) if self.nodes.of_watch(watch).is_none() => {
                self.file_watches.insert(watch, identity);
            }
            Ok(_) | Err(Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
        self.closed.insert((identity.inode(), identity), kind);
        Ok(())
    }

    /// How a file is closed, under any of its names.
    pub fn closed(&self, identity: Identity) -> Option<CoverKind> {
        self.closed.get(&(identity.inode(), identity)).copied()
    }

    pub fn closes_files(&self) -> bool {
        !self.closed.is_empty()
    }

    pub fn closes_inode(&self, inode: u64) -> bool {
        let first = (inode, Identity::from((0, 0)));
        self.closed.range(first..).next().is_some_and(|((known, _), _)| *known == inode)
    }

    fn forget(&mut self, watch: i32) -> Option<Identity> {
        let node = self.nodes.remove(watch);
        let identity = self.file_watches.remove(&watch).or(node)?;
        self.held.retain(|held| held.parent != identity);
        Some(identity)
    }

    /// A directory is not watched any more: it may change and end unseen.
    pub fn unwatched(&mut self, watch: i32) {
        let identity = self.forget(watch);
        self.lost |= self.bare.iter().any(|object| Some(object.identity) == identity);
    }

    /// The kernel has dropped a watch: its object has ended, and the inode number may be reused.
    pub fn ended(&mut self, watch: i32) {
        if let Some(identity) = self.forget(watch) {
            self.bare.retain(|object| object.identity != identity);
            self.closed.remove(&(identity.inode(), identity));
        }
    }

    pub fn is_shut(&self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(!self.shut.is_empty() && self.shut.contains(&Object::at(dir, c"")?))
    }

    /// Opens a directory whose owner has removed its own rights, from it or from one above it. They
    /// are restored for good.
    pub fn open_shut(&self, tree: &OpenTree, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut dir = tree.open(b"", OFlags::PATH | OFlags::DIRECTORY)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            self.give_rights(dir.as_fd())?;
            dir = open_beneath::open(&dir, name, OFlags::PATH | OFlags::DIRECTORY)?;
        }
        self.give_rights(dir.as_fd())?;
        Ok(dir)
    }

    /// Restores the owner's rights to list and search a directory. False: it belongs to another
    /// user, or was shut at the start and is closed as a whole.
    pub fn give_rights(&self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        let stat = rustix::fs::fstat(dir)?;
        if stat.st_uid != rustix::process::getuid().as_raw() || self.is_shut(dir)? {
            return Ok(false);
        }
        if stat.st_mode & 0o500 != 0o500 {
            let mut buffer = [0; 32];
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o500);
            rustix::fs::chmod(open_beneath::proc_fd_path(dir, &mut buffer), mode)?;
        }
        Ok(true)
    }
}
