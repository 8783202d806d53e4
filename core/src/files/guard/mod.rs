//! The guard of names that appear while a command runs.
//!
//! Every directory of the trees is watched (inotify) before it is listed, so a name is either
//! listed or makes an event. A denied name that appears is masked inside. A protected name that was
//! absent is quarantined, unless it is one of git's own with harmless content. The kernel reports
//! names, not objects. So the guard looks up each name again, by descriptor, below a directory that
//! is compared with the watched one, and judges the object that it finds. A command that changes
//! names faster than the guard gains only time: the last scan, when no process runs any more,
//! judges what it leaves.

mod flagged_names;
mod foreign_sockets;
mod guard_events;
mod guard_state;
mod handle_new_name;
mod overlay_view;
mod saved_state;
#[cfg(test)]
mod tests;
mod watches;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

use super::cover::{Cover, CoverKind, CoverResult};
use super::patterns::NamePatterns;
use super::quarantine::Quarantine;
use super::scan;
use super::tree_roots::{GrantedTree, OpenTree, TreeRoots};
use super::walk::{Below, Dir, Visitor, WalkError, Walker};
use crate::kernel::resolved_path::{Identity, Object};
use crate::kernel::{open_beneath, sys};
use crate::plan::wire::bytes::AbsPath;

use flagged_names::FlaggedNames;
use guard_events::{OpenDir, PendingEvents};
use guard_state::GuardState;
use handle_new_name::NameHandler;
use overlay_view::OverlayView;
pub use saved_state::{MissingTree, SavedState};
use watches::{NO_NODE, Watches};

/// A command that makes more protected names than this is ended: no usual work does that.
const MAX_QUARANTINED: usize = 1000;
/// Directories that can not be watched are scanned this often.
const PATROL_INTERVAL: Duration = Duration::from_secs(1);
/// One turn takes at most this long, so that the supervisor can serve signals.
const TURN_TIMEOUT: Duration = Duration::from_millis(50);
/// Other events are judged for at most this long before the guard checks for new denied names.
const EVENT_SLICE_TIMEOUT: Duration = Duration::from_millis(2);
/// Rounds of the last scan, as long as it finds something.
const MAX_LAST_SCAN_ROUNDS: usize = 4;

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
    #[error("the command created more than {MAX_QUARANTINED} protected names")]
    TooManyQuarantined,
    #[error(
        "the last scan did not finish, and the workspace may still contain names that the command \
            created: {0}"
    )]
    Unfinished(#[source] Box<GuardError>),
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
            GuardError::Unfinished(error) => error.hint(),
            GuardError::TooManyQuarantined => "the removed names are in the session's directory",
            _ => "type `paddock doctor` to test every mechanism on this machine",
        }
    }
}

/// What the guard has done with a name.
#[derive(Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// Protected, absent at the start, and quarantined. Not whole if it was too large to copy.
    Quarantined { path: AbsPath, moved_to: AbsPath, whole: bool },
    /// Denied or protected, replaced or new, and covered again inside. `window`: how long it could
    /// be seen.
    Masked { path: AbsPath, window: Duration },
    /// Removed for good, because it could not be kept.
    Removed { path: AbsPath, source: Errno },
    /// It could not be quarantined.
    Failed { path: AbsPath, source: Errno },
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
    /// Nothing has happened yet that the last scan has to check.
    quiet: bool,
    last_patrol: Instant,
    /// By the clock of file timestamps.
    since: Timespec,
    flagged: FlaggedNames,
}

impl Guard {
    /// Watches and lists the trees. The returned covers have to be placed before the command
    /// starts. Paths in `left_out` are held by other means. So are the files `closed`, under one of
    /// their names. Quarantined names go to `taken`, which is made when it is needed.
    pub fn arm(
        mut names: NamePatterns,
        trees: &[GrantedTree],
        left_out: &[AbsPath],
        closed: &[Identity],
        quarantine_path: AbsPath,
    ) -> Result<(Guard, Vec<Cover>), GuardError> {
        let since = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(GuardError::Init)?;
        let left_out = [left_out, std::slice::from_ref(&quarantine_path)].concat();
        let roots = TreeRoots::open(trees, &left_out)?;
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
        let covers = std::mem::take(&mut found.covers);
        let flagged = FlaggedNames::new(&roots, &found.flagged);
        let state = GuardState::new(
            nodes,
            Quarantine::new(quarantine_path),
            names.guards_git,
            found,
            since,
        );
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
            quiet: true,
            last_patrol: Instant::now(),
            since,
            flagged,
        };
        guard.give_up_stale();
        guard.watch_covered(&covers)?;
        guard.walker.is_interrupted = None;
        Ok((guard, covers))
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
    pub fn links_in_git(&self) -> Result<Vec<(AbsPath, &[u8])>, GuardError> {
        let mut found = Vec::new();
        if self.state.through.is_empty() {
            return Ok(found);
        }
        for (index, rooted) in self.roots.trees.iter().enumerate() {
            for number in self.state.nodes.directories(index) {
                let Some(node) = self.state.nodes.get(number) else { continue };
                let mut dir = Vec::new();
                let links = self
                    .state
                    .through
                    .iter()
                    .filter(|link| link.dir == node.identity && !link.target.is_empty());
                for link in links {
                    if self.state.nodes.path(number, &mut dir) {
                        let path = if dir.is_empty() {
                            link.name.to_vec()
                        } else {
                            [&dir[..], b"/", &link.name].concat()
                        };
                        found.push((rooted.absolute(&path)?, &link.target[..]));
                    }
                }
            }
        }
        Ok(found)
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

    /// Judges new names. After an error the last scan checks everything.
    pub fn turn(
        &mut self,
        put_covers: &mut PlaceCovers<'_>,
        on_event: &mut dyn FnMut(GuardEvent),
    ) -> Result<(), GuardError> {
        let turned = self.judge_all(put_covers, on_event);
        self.quiet &= turned.is_ok();
        turned
    }

    fn judge_all(
        &mut self,
        put_covers: &mut PlaceCovers<'_>,
        on_event: &mut dyn FnMut(GuardEvent),
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
            if self.follow_moved()? {
                self.patrol(true)?;
                self.give_up_stale();
            }
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

    /// The last scan. No process may run inside any more. From now on a signal that asks this
    /// process to end stops the scan. Ok: all trees were scanned. Otherwise the error is
    /// [`GuardError::Unfinished`].
    pub fn finish(&mut self, on_event: &mut dyn FnMut(GuardEvent)) -> Result<(), GuardError> {
        sys::discard_signals();
        self.walker.is_interrupted = Some(sys::has_end_signal);
        self.walker.deadline = None;
        let finished = self.scan_last(on_event);
        // Events from before an error are reported too.
        self.state.events.drain(..).for_each(on_event);
        finished.map_err(|error| GuardError::Unfinished(Box::new(error)))
    }

    fn scan_last(&mut self, on_event: &mut dyn FnMut(GuardEvent)) -> Result<(), GuardError> {
        self.state.finishing = true;
        loop {
            let any = self.read()?;
            self.note_ends();
            if !any {
                break;
            }
        }
        if self.quiet && !self.state.blind && self.check_known_state()? {
            self.state.events.drain(..).for_each(&mut *on_event);
            return self.state.unfinished.take().map_or(Ok(()), |error| Err(error.into()));
        }
        let mut moved = false;
        for _ in 0..MAX_LAST_SCAN_ROUNDS {
            self.state.flagged.clear();
            self.state.unlisted = 0;
            self.state.stored_path_bytes = 0;
            self.state.unfinished = None;
            let before = self.state.quarantined;
            self.patrol(true)?;
            self.state.events.drain(..).for_each(&mut *on_event);
            moved = self.follow_moved()?;
            if self.state.quarantined == before && !moved {
                break;
            }
        }
        if moved {
            // The host moves repositories faster than the scan follows.
            return Err(WalkError::Moved { path: self.roots.trees[0].path.clone() }.into());
        }
        self.state.unfinished.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// The number of flagged names that the last scan could not list.
    pub fn unlisted(&self) -> usize {
        self.state.unlisted
    }

    /// Flagged names that were made or changed during the run. Called after the last scan.
    pub fn changed(&self) -> Vec<AbsPath> {
        self.flagged.changed(&self.roots, &self.state.flagged, self.since)
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
            if tree.watched || (tree.is_read_only() && !handler.state.finishing) {
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
            Some(view) if !self.state.finishing => {
                view.look_around(&mut self.walker, &mut self.names, &mut self.state.covers)
            }
            _ => Ok(()),
        }
    }

    /// Repositories that were moved: the paths that git trusts are protected at their new location.
    /// True: everything has to be scanned again.
    fn follow_moved(&mut self) -> Result<bool, GuardError> {
        for path in std::mem::take(&mut self.state.moved) {
            self.names.add_git_directory(&path).map_err(WalkError::from)?;
        }
        Ok(self.names.settle().map_err(WalkError::from)?)
    }

    /// Drops watches of directories that are closed because of a symlink that was found later.
    fn give_up_stale(&mut self) {
        let names = &self.names;
        for watch in self.state.nodes.failing(|node| names.is_current(node.state)) {
            let _ = inotify::remove_watch(&self.inotify, watch);
            self.state.unwatched(watch);
        }
    }

    /// Watches covered names, because the guard has to know whether one goes away. An object that
    /// comes to the name after that may be the command's. An object that replaces a name in one step
    /// is the host's: inside, the name is a mount point.
    fn watch_covered(&mut self, covers: &[Cover]) -> Result<(), GuardError> {
        let (mut covered, mut masked) = (Vec::new(), Vec::new());
        for cover in covers.iter().filter(|cover| cover.kind != CoverKind::Pin) {
            let Some(tree) = self.roots.tree_of(&cover.path) else { continue };
            let unwatched = |source| GuardError::Watch { path: cover.path.clone(), source };
            let looked = self
                .roots
                .look(&cover.path)
                .and_then(|fd| Ok((Object::at(&fd, c"")?, rustix::fs::fstat(&fd)?, fd)));
            match looked {
                Ok((object, stat, fd)) if object.identity == cover.identity => {
                    covered.push(object);
                    masked.extend((cover.kind == CoverKind::Mask).then_some(object));
                    self.state
                        .close(self.inotify.as_fd(), fd.as_fd(), &stat, cover.kind)
                        .map_err(unwatched)?;
                }
                // It was replaced since, which makes an event.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(source) => return Err(unwatched(source)),
            }
            if cover.kind == CoverKind::ForeignSocket || !tree.watched || cover.path == tree.path {
                continue;
            }
            let end = cover.path.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
            let below =
                cover.path.as_bytes()[..end].get(tree.path.as_bytes().len()..).unwrap_or_default();
            let below = below.strip_prefix(b"/").unwrap_or(below);
            let watched = tree.open(below, OFlags::PATH | OFlags::DIRECTORY).and_then(|dir| {
                watch(self.inotify.as_fd(), dir.as_fd(), DISAPPEAR | WatchFlags::MASK_ADD)
            });
            match watched {
                Ok(_) | Err(Errno::NOENT) => {}
                Err(source) => return Err(unwatched(source)),
            }
        }
        self.state.remember(covered, masked);
        Ok(())
    }

    /// Places the covers and reports the events.
    fn deliver(
        &mut self,
        available: Instant,
        put_covers: &mut PlaceCovers<'_>,
        on_event: &mut dyn FnMut(GuardEvent),
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
        let state = &mut self.state;
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
                    state.events.push(GuardEvent::Masked { path: cover.path, window });
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

const DISAPPEAR: WatchFlags = WatchFlags::DELETE.union(WatchFlags::MOVED_FROM);
/// A new hard link is a change of attributes.
const WRITTEN: WatchFlags =
    WatchFlags::MODIFY.union(WatchFlags::CLOSE_WRITE).union(WatchFlags::ATTRIB);

/// inotify has no call that takes a descriptor, so the path is that of /proc/self/fd.
fn watch(inotify: BorrowedFd<'_>, object: BorrowedFd<'_>, flags: WatchFlags) -> Result<i32, Errno> {
    let mut buffer = [0; 32];
    inotify::add_watch(inotify, open_beneath::proc_fd_path(object, &mut buffer), flags)
}
