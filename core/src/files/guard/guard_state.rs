//! The state of a guard between two turns.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::WatchFlags;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::files::cover::{Cover, CoverKind};
use crate::files::scan::{HeldName, ScanResult};
use crate::files::tree_roots::OpenTree;
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::AbsPath;

use super::foreign_sockets::SilentSockets;
use super::watches::Watches;
use super::{CoveredName, watch};

/// The state of a guard.
pub struct GuardState {
    pub nodes: Watches,
    /// Names that were locked at the start, in order. Inside, such a name is a mount point, which
    /// the command can not replace. So only the host replaces it, and it is locked again. A name
    /// belongs to its directory: another directory at the same path is new.
    held: Vec<HeldName>,
    /// Objects that were covered at the start, in order. They keep their covers when they move.
    pub covered: Vec<Object>,
    /// The watches of closed files.
    file_watches: HashMap<i32, Identity>,
    /// Files that are masked or locked under some name, sorted by inode, as a listing has it. The
    /// host can give such a file another name (link(2)), which is covered too.
    closed: BTreeMap<(u64, Identity), CoverKind>,
    /// Symlinks in git directories of the start, with their targets.
    pub links_in_git: Vec<(AbsPath, Vec<u8>)>,
    /// Directories that could not be listed, and were closed as a whole.
    pub shut: Vec<Object>,
    pub covers: Vec<Cover>,
    /// Bytes of the paths of covers.
    pub stored_path_bytes: usize,
    pub events: Vec<CoveredName>,
    /// Some directory can not be watched.
    pub blind: bool,
    /// The name itself made the event: it was not found below another one.
    pub direct: bool,
    /// Events were lost: covered names may be uncovered.
    pub again: bool,
    /// Sockets that no process answers on yet.
    pub silent: SilentSockets,
}

impl GuardState {
    pub fn new(nodes: Watches, found: ScanResult) -> GuardState {
        let ScanResult { mut held, links_in_git, shut, .. } = found;
        held.sort_unstable();
        GuardState {
            nodes,
            held,
            covered: Vec::new(),
            file_watches: HashMap::new(),
            closed: BTreeMap::new(),
            links_in_git,
            shut,
            covers: Vec::new(),
            stored_path_bytes: 0,
            events: Vec::new(),
            blind: false,
            direct: false,
            again: false,
            silent: SilentSockets::default(),
        }
    }

    /// Was this name locked at the start?
    pub fn is_held(&self, parent: Identity, name: &[u8]) -> bool {
        self.held.binary_search_by(|held| (held.parent, &*held.name).cmp(&(parent, name))).is_ok()
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
        let is_kept = matches!(kind, CoverKind::Mask | CoverKind::Lock);
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

    /// Drops a watch, and returns its object.
    pub fn forget(&mut self, watch: i32) -> Option<Identity> {
        let node = self.nodes.remove(watch);
        self.file_watches.remove(&watch).or(node)
    }

    /// The kernel has dropped a watch: its object has ended, and the inode number may be reused.
    pub fn ended(&mut self, watch: i32) {
        if let Some(identity) = self.forget(watch) {
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
