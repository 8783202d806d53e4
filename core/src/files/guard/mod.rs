//! The guard of names that appear while a command runs.
//!
//! Every directory of the trees is watched (inotify) before it is listed, so a name is either
//! listed or makes an event. A denied name that appears is masked inside. The kernel reports names,
//! not objects. So the guard looks up each name again, by descriptor, below a directory that is
//! compared with the watched one, and judges the object that it finds.
//!
//! The guard is for names that the host makes. Writes of the command are judged before they happen
//! (`files/writes/mod.rs`). The guard covers:
//! - a denied name that appears or is replaced, with the target of a symlink: masked;
//! - a socket that answers and was made outside: masked;
//! - another name of a masked or locked file (link(2)): covered in the same way;
//! - a name that was locked at the start and is replaced: locked again.

mod foreign_sockets;
mod guard_events;
mod guard_state;
mod handle_new_name;
mod overlay_view;
#[cfg(test)]
mod tests;
mod watches;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use super::cover::{Cover, CoverKind, CoverResult};
use super::patterns::NamePatterns;
use super::scan;
use super::tree_roots::{GrantedTree, OpenTree, TreeRoots};
use super::walk::{Below, Dir, Visitor, WalkError, Walker};
use super::writes::FoundObjects;
use crate::kernel::resolved_path::{Identity, Object};
use crate::kernel::{open_beneath, sys};
use crate::plan::wire::bytes::AbsPath;

use guard_events::{OpenDir, PendingEvents};
use guard_state::GuardState;
use handle_new_name::NameHandler;
use overlay_view::OverlayView;
use watches::{NO_NODE, Watches};

/// Directories that can not be watched are scanned this often.
const PATROL_INTERVAL: Duration = Duration::from_secs(1);
/// One turn takes at most this long, so that the supervisor can serve signals.
const TURN_TIMEOUT: Duration = Duration::from_millis(50);
/// Other events are judged for at most this long before the guard checks for new denied names.
const EVENT_SLICE_TIMEOUT: Duration = Duration::from_millis(2);

#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    #[error(transparent)]
    Walk(#[from] WalkError),
    #[error("cannot watch for new names: {0}")]
    Init(#[source] Errno),
    #[error("cannot watch {path} for new names: {source}")]
    Watch { path: AbsPath, source: Errno },
    #[error("cannot read the events of the watched directories: {0}")]
    Read(#[source] Errno),
    #[error("cannot cover a new name in the sandbox: {0}")]
    Cover(#[source] Errno),
}

impl GuardError {
    pub fn hint(&self) -> &'static str {
        match self {
            GuardError::Walk(error) => error.hint(),
            GuardError::Init(Errno::MFILE | Errno::NFILE) => {
                "raise the limit: sysctl fs.inotify.max_user_instances=1024"
            }
            GuardError::Watch { source: Errno::NOSPC, .. } => {
                "raise the limit (sysctl fs.inotify.max_user_watches=1048576), or make less writable"
            }
            _ => "type `paddock doctor` to test every mechanism on this machine",
        }
    }
}

/// A name that was denied or locked, and is covered again inside. `window`: how long it could be
/// seen.
#[derive(Debug, PartialEq, Eq)]
pub struct CoveredName {
    pub path: AbsPath,
    pub window: Duration,
}

/// Places covers inside the sandbox, and returns the result of each.
pub type PlaceCovers<'a> = dyn FnMut(&[Cover]) -> Result<Vec<CoverResult>, Errno> + 'a;

pub struct Guard {
    inotify: OwnedFd,
    names: NamePatterns,
    roots: TreeRoots,
    walker: Walker,
    state: GuardState,
    view: Option<OverlayView>,
    buffer: Vec<MaybeUninit<u8>>,
    pending: PendingEvents,
    /// Directories that are open for the events that are being judged, the last one last. So a deep
    /// directory is not opened from its root for each event.
    open_dirs: Vec<OpenDir>,
    last_patrol: Instant,
    /// Writes of the command are judged.
    is_judged: bool,
}

impl Guard {
    /// Watches and lists the trees. The returned covers have to be placed before the command
    /// starts. Paths in `left_out` are held by other means. So are the files `closed`, under one of
    /// their names. `is_judged`: writes are judged. `found_objects` gets what the judge needs besides
    /// patterns.
    pub fn arm(
        mut names: NamePatterns,
        trees: &[GrantedTree],
        left_out: &[AbsPath],
        closed: &[Identity],
        is_judged: bool,
        found_objects: &mut FoundObjects,
    ) -> Result<(Guard, Vec<Cover>), GuardError> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(GuardError::Init)?;
        let roots = TreeRoots::open(trees, left_out)?;
        let mut walker = Walker::default();
        walker.is_interrupted = Some(sys::has_end_signal);
        let mut nodes = Watches::default();
        let mut watch_dir = |names: &NamePatterns, dir: &Dir<'_>| {
            // In read-only trees the guard holds names that are denied by path. The directories
            // above them are few.
            let is_watched = dir.tree.watched || names.leads_to_denied(dir.state);
            if !is_watched || dir.below == Below::Masked {
                return Ok(NO_NODE);
            }
            match watch(inotify.as_fd(), dir.fd, appear(dir.tree)) {
                Ok(watch) => Ok(nodes.put_dir(watch, dir)),
                Err(source) => Err(GuardError::Watch { path: dir.absolute(b"")?, source }),
            }
        };
        let mut found = scan::scan_trees(&mut names, &roots, &mut walker, closed, &mut watch_dir)?;
        *found_objects = found.take_found_objects();
        let mut covers = std::mem::take(&mut found.covers);
        let state = GuardState::new(nodes, found);
        let mut guard = Guard {
            inotify,
            names,
            roots,
            walker,
            state,
            view: None,
            buffer: Vec::new(),
            pending: PendingEvents::default(),
            open_dirs: Vec::new(),
            last_patrol: Instant::now(),
            is_judged,
        };
        guard.give_up_stale();
        guard.watch_covered(&covers)?;
        covers.retain(|cover| !is_judged || !cover.is_left_to_judge(&guard.names.git));
        guard.walker.is_interrupted = None;
        Ok((guard, covers))
    }

    /// The patterns of the plan, and those that the scan has added.
    pub fn patterns(&self) -> &NamePatterns {
        &self.names
    }

    /// Makes a tree a copy: `seen` is what the command sees, `own` what it has written. From then
    /// on the guard checks both.
    pub fn show(&mut self, tree: &AbsPath, seen: OwnedFd, own: OwnedFd) -> Result<(), GuardError> {
        self.view = OverlayView::of(&self.roots, tree, seen, own)?;
        Ok(())
    }

    pub fn names(&mut self) -> &mut NamePatterns {
        &mut self.names
    }

    /// The watched directories of a tree, relative to it, if there are at most `most`.
    pub fn directories(&self, tree: &AbsPath, most: usize) -> Option<Vec<Vec<u8>>> {
        let index = self.roots.trees.iter().position(|rooted| rooted.path == *tree)?;
        let numbers: Vec<u32> = self.state.nodes.directories(index).take(most + 1).collect();
        let path = |number: u32| {
            let mut path = Vec::new();
            self.state.nodes.path(number, &mut path).then_some(path)
        };
        (numbers.len() <= most).then(|| numbers.into_iter().filter_map(path).collect())
    }

    /// The watched directories of a tree without its root, relative to it, each with its inode
    /// number.
    pub fn numbered(&self, tree: &AbsPath) -> Vec<(Vec<u8>, u64)> {
        let Some(index) = self.roots.trees.iter().position(|rooted| rooted.path == *tree) else {
            return Vec::new();
        };
        let one = |number: u32| {
            let mut path = Vec::new();
            let known = self.state.nodes.path(number, &mut path) && !path.is_empty();
            known.then_some((path, self.state.nodes.get(number)?.identity.inode()))
        };
        self.state.nodes.directories(index).filter_map(one).collect()
    }

    /// The symlinks in git directories that were found at the start, and their targets.
    pub fn links_in_git(&self) -> &[(AbsPath, Vec<u8>)] {
        &self.state.links_in_git
    }

    /// Readable when there is something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// When the next turn is due without an event.
    pub fn timeout(&self) -> Option<Duration> {
        if !self.pending.is_empty() {
            return Some(Duration::ZERO);
        }
        let patrol =
            self.state.blind.then(|| PATROL_INTERVAL.saturating_sub(self.last_patrol.elapsed()));
        let view = self.view.as_ref().and_then(OverlayView::next_look);
        patrol.into_iter().chain(view).chain(self.state.silent.next_look()).min()
    }

    pub fn is_due(&self) -> bool {
        let mut readable = [PollFd::new(&self.inotify, PollFlags::IN)];
        let _ = rustix::event::poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !readable[0].revents().is_empty() || self.timeout() == Some(Duration::ZERO)
    }

    /// Judges new names.
    pub fn turn(
        &mut self,
        put_covers: &mut PlaceCovers<'_>,
        on_event: &mut dyn FnMut(CoveredName),
    ) -> Result<(), GuardError> {
        let started = Instant::now();
        // Pending names have waited since the supervisor woke up. Later ones came after the last
        // read.
        let mut available = started;
        loop {
            let reading = Instant::now();
            // Denied names come first.
            let any = self.read()?;
            if any {
                self.judge_denied()?;
                self.deliver(available, put_covers, on_event)?;
            }
            self.judge_waiting(reading + EVENT_SLICE_TIMEOUT)?;
            self.deliver(available, put_covers, on_event)?;
            available = reading;
            if (!any && self.pending.is_empty()) || started.elapsed() > TURN_TIMEOUT {
                break;
            }
        }
        self.open_dirs.clear();
        if self.state.silent.look_again(&self.roots, &mut self.state.covers)? {
            self.deliver(Instant::now(), put_covers, on_event)?;
        }
        if self.state.blind && self.last_patrol.elapsed() >= PATROL_INTERVAL {
            let since = self.last_patrol;
            self.patrol(false)?;
            self.deliver(since, put_covers, on_event)?;
        }
        if self.view.as_ref().and_then(OverlayView::next_look) == Some(Duration::ZERO) {
            let since = Instant::now();
            self.look_around()?;
            self.deliver(since, put_covers, on_event)?;
        }
        Ok(())
    }

    /// The inotify descriptor. The kernel takes tens of milliseconds to close it, so the caller
    /// passes it to `init_channel::abandon`.
    pub fn disband(self) -> OwnedFd {
        self.inotify
    }

    /// Scans everything that is watched.
    fn patrol(&mut self, again: bool) -> Result<(), GuardError> {
        self.last_patrol = Instant::now();
        self.state.blind = false;
        self.state.direct = false;
        self.state.again = again;
        let mut handler = NameHandler {
            inotify: self.inotify.as_fd(),
            roots: &self.roots,
            state: &mut self.state,
        };
        for index in 0..self.roots.trees.len() {
            let tree = &self.roots.trees[index];
            if tree.watched || tree.is_read_only() {
                let walked = self.walker.tree(&mut self.names, &self.roots, index, &mut handler);
                walked.or_else(|error| handler.goes_on(error))?;
            }
        }
        self.state.again = false;
        self.look_around()
    }

    /// Scans everything that the command sees of its copy.
    fn look_around(&mut self) -> Result<(), GuardError> {
        match &mut self.view {
            Some(view) => {
                view.look_around(&mut self.walker, &mut self.names, &mut self.state.covers)
            }
            None => Ok(()),
        }
    }

    /// Drops watches of directories that are closed because of a symlink that was found later.
    fn give_up_stale(&mut self) {
        let names = &self.names;
        for watch in self.state.nodes.failing(|node| names.is_current(node.state)) {
            let _ = inotify::remove_watch(&self.inotify, watch);
            self.state.forget(watch);
        }
    }

    /// Remembers covered objects. A file among them is watched: its inode number may become another
    /// file's.
    fn watch_covered(&mut self, covers: &[Cover]) -> Result<(), GuardError> {
        let mut covered = Vec::new();
        for cover in covers.iter().filter(|cover| cover.kind != CoverKind::Pin) {
            if self.roots.tree_of(&cover.path).is_none() {
                continue;
            }
            let unwatched = |source| GuardError::Watch { path: cover.path.clone(), source };
            let looked = self
                .roots
                .look(&cover.path)
                .and_then(|fd| Ok((Object::at(&fd, c"")?, rustix::fs::fstat(&fd)?, fd)));
            match looked {
                Ok((object, stat, fd)) if object.identity == cover.identity => {
                    covered.push(object);
                    self.state
                        .close(self.inotify.as_fd(), fd.as_fd(), &stat, cover.kind)
                        .map_err(unwatched)?;
                }
                // It was replaced since, which makes an event.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(source) => return Err(unwatched(source)),
            }
        }
        covered.sort_unstable();
        self.state.covered = covered;
        Ok(())
    }

    /// Places the covers and reports the events.
    fn deliver(
        &mut self,
        available: Instant,
        put_covers: &mut PlaceCovers<'_>,
        on_event: &mut dyn FnMut(CoveredName),
    ) -> Result<(), GuardError> {
        self.state.direct = false;
        self.state.stored_path_bytes = 0;
        // A denied name may be elsewhere in the copy too, or instead.
        if self.place(available, put_covers)? {
            self.look_around()?;
            self.place(available, put_covers)?;
        }
        self.state.events.drain(..).for_each(on_event);
        Ok(())
    }

    /// True: the view of the command has to be scanned.
    fn place(
        &mut self,
        available: Instant,
        put_covers: &mut PlaceCovers<'_>,
    ) -> Result<bool, GuardError> {
        let (state, git) = (&mut self.state, &self.names.git);
        let is_judged = self.is_judged;
        state.covers.retain(|cover| !is_judged || !cover.is_left_to_judge(git));
        if state.covers.is_empty() {
            return Ok(false);
        }
        state.covers.sort_by(|one, other| one.path.cmp(&other.path));
        state.covers.dedup();
        let astray = self
            .view
            .as_ref()
            .is_some_and(|view| state.covers.iter().any(|cover| view.may_show_elsewhere(cover)));
        let results = put_covers(&state.covers).map_err(GuardError::Cover)?;
        let window = available.elapsed();
        for (cover, result) in state.covers.drain(..).zip(&results) {
            match result {
                CoverResult::Now if cover.kind != CoverKind::Pin => {
                    state.events.push(CoveredName { path: cover.path, window });
                }
                CoverResult::Unknown => {
                    match self.view.as_mut().filter(|view| view.shows(&cover.path)) {
                        Some(view) => view.is_astray = true,
                        None => state.blind = true,
                    }
                }
                CoverResult::Now | CoverResult::Needless | CoverResult::Absent => {}
            }
        }
        Ok(astray
            || results
                .iter()
                .any(|result| matches!(result, CoverResult::Absent | CoverResult::Unknown)))
    }
}

const APPEAR: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);
/// In a copy a directory that was moved away matters too: the copy may still show it.
fn appear(tree: &OpenTree) -> WatchFlags {
    if tree.writable { APPEAR } else { APPEAR.union(WatchFlags::MOVED_FROM) }
}

/// inotify has no call that takes a descriptor, so the path is that of /proc/self/fd.
fn watch(inotify: BorrowedFd<'_>, object: BorrowedFd<'_>, flags: WatchFlags) -> Result<i32, Errno> {
    let mut buffer = [0; 32];
    inotify::add_watch(inotify, open_beneath::proc_fd_path(object, &mut buffer), flags)
}
