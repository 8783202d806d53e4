//! Names that appear while a command runs.
//!
//! Every directory of the trees is watched (inotify) before it is listed, so a name is either
//! listed or makes an event. A denied name that appears is masked again, inside; a protected one
//! that was absent is taken away, unless it is one of git's own with harmless content. The kernel
//! tells names, not objects: each one is looked up again, by descriptor, below a directory that is
//! compared with the one watched, and what is found then is what is judged. Whoever changes names
//! faster than they are judged gains time, and the scan at the end, when nothing runs any more,
//! judges what he leaves.

mod flagged_names;
mod foreign_sockets;
mod guard_events;
mod handle_name;
mod overlay_view;
mod post;
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

use super::cover::{Cover, CoverKind, Placed};
use super::patterns::Names;
use super::quarantine::Quarantine;
use super::scan;
use super::tree_roots::{OpenTree, Tree, TreeRoots};
use super::walk::{Below, Visitor, WalkError, Walker};
use crate::kernel::resolved_path::{Identity, Object};
use crate::kernel::{open_beneath, sys};
use crate::plan::wire::bytes::AbsPath;

use flagged_names::Flagged;
use guard_events::{Near, Noted};
use handle_name::Visit;
use overlay_view::View;
use post::Post;
pub use saved_state::{Away, Memory};
use watches::{NO_NODE, Nodes};

/// Whoever makes more protected names than this is not at work.
const MAX_TAKEN: usize = 1000;
/// Directories that can not be watched are looked through this often.
const PATROL: Duration = Duration::from_secs(1);
/// One turn takes no longer, so that the supervisor gets to its signals.
const TURN: Duration = Duration::from_millis(50);
/// So long other events are judged, before it is looked whether a denied name has appeared.
const SLICE: Duration = Duration::from_millis(2);
/// Rounds of the last scan, while it finds something.
const LAST_ROUNDS: usize = 4;

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
    #[error("the command created more than {MAX_TAKEN} protected names")]
    TooManyTaken,
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
            GuardError::TooManyTaken => "the removed names are in the session's directory",
            _ => "type `paddock doctor` to test every mechanism on this machine",
        }
    }
}

/// What became of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum GuardEvent {
    /// Protected, absent at the start, and taken away; not whole, if it was too much to copy.
    Taken { path: AbsPath, kept: AbsPath, whole: bool },
    /// Denied or protected, replaced or new, and covered again inside, so long after it could be
    /// seen.
    Masked { path: AbsPath, window: Duration },
    /// The same, but it could not be kept: it is gone.
    Removed { path: AbsPath, source: Errno },
    /// Should have been taken away.
    Failed { path: AbsPath, source: Errno },
}

/// Puts covers inside the sandbox, and says what became of each.
pub type PutCovers<'a> = dyn FnMut(&[Cover]) -> Result<Vec<Placed>, Errno> + 'a;

pub struct Guard {
    inotify: OwnedFd,
    names: Names,
    ground: TreeRoots,
    walker: Walker,
    post: Post,
    view: Option<View>,
    buffer: Vec<MaybeUninit<u8>>,
    noted: Noted,
    /// Directories that were opened for the events that are being judged, the last one last: so a
    /// deep one is not opened from its root for each event.
    near: Vec<Near>,
    /// Nothing has happened yet that the last scan would have to look at.
    quiet: bool,
    last_patrol: Instant,
    /// By the clock that files are stamped with.
    since: Timespec,
    flagged: Flagged,
}

impl Guard {
    /// Watches and lists the trees. What is found is to be covered before the command starts. What
    /// lies in `left_out` is held by other means, and so are the files `closed`, under one of their
    /// names; names that are taken away go to `taken`, which is made when it is needed.
    pub fn arm(
        mut names: Names,
        trees: &[Tree],
        left_out: &[AbsPath],
        closed: &[Identity],
        taken: AbsPath,
    ) -> Result<(Guard, Vec<Cover>), GuardError> {
        let since = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(GuardError::Init)?;
        let left_out = [left_out, std::slice::from_ref(&taken)].concat();
        let ground = TreeRoots::open(trees, &left_out)?;
        let mut walker = Walker::default();
        walker.is_interrupted = Some(sys::is_asked_to_end);
        let mut nodes = Nodes::default();
        let mut survey =
            scan::survey(&mut names, &ground, &mut walker, closed, &mut |names,
                                                                         dir|
             -> Result<
                u32,
                GuardError,
            > {
                // In what is only read, names that are denied by their path are held, and the
                // directories on the way are few.
                let is_watched = dir.tree.watched || names.leads_to_denied(dir.state);
                if !is_watched || dir.below == Below::Masked {
                    return Ok(NO_NODE);
                }
                match watch(inotify.as_fd(), dir.fd, appear(dir.tree)) {
                    Ok(watch) => Ok(nodes.put_dir(watch, dir)),
                    Err(source) => Err(GuardError::Watch { path: dir.absolute(b"")?, source }),
                }
            })?;
        let covers = std::mem::take(&mut survey.covers);
        let flagged = Flagged::new(&ground, &survey.flagged);
        let post = Post::new(nodes, Quarantine::new(taken), names.guards_git, survey);
        let mut guard = Guard {
            inotify,
            names,
            ground,
            walker,
            post,
            view: None,
            buffer: Vec::new(),
            noted: Noted::default(),
            near: Vec::new(),
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

    /// A tree is a copy: what the command sees of it, and what of that is its own. From then on
    /// that is looked at too.
    pub fn show(&mut self, tree: &AbsPath, seen: OwnedFd, own: OwnedFd) -> Result<(), GuardError> {
        self.view = View::of(&self.ground, tree, seen, own)?;
        Ok(())
    }

    pub fn names(&mut self) -> &mut Names {
        &mut self.names
    }

    /// The watched directories of a tree, relative to it, if there are no more than so many.
    pub fn directories(&self, tree: &AbsPath, most: usize) -> Option<Vec<Vec<u8>>> {
        let index = self.ground.trees.iter().position(|rooted| rooted.path == *tree)?;
        let numbers: Vec<u32> = self.post.nodes.directories(index).take(most + 1).collect();
        let path = |number: u32| {
            let mut path = Vec::new();
            self.post.nodes.path(number, &mut path).then_some(path)
        };
        (numbers.len() <= most).then(|| numbers.into_iter().filter_map(path).collect())
    }

    /// The watched directories of a tree but its root, relative to it, each with its number.
    pub fn numbered(&self, tree: &AbsPath) -> Vec<(Vec<u8>, u64)> {
        let Some(index) = self.ground.trees.iter().position(|rooted| rooted.path == *tree) else {
            return Vec::new();
        };
        let one = |number: u32| {
            let mut path = Vec::new();
            let known = self.post.nodes.path(number, &mut path) && !path.is_empty();
            known.then_some((path, self.post.nodes.get(number)?.identity.inode()))
        };
        self.post.nodes.directories(index).filter_map(one).collect()
    }

    /// The symlinks in git directories that were found at the start, and what they say.
    pub fn links_in_git(&self) -> Result<Vec<(AbsPath, &[u8])>, GuardError> {
        let mut found = Vec::new();
        if self.post.through.is_empty() {
            return Ok(found);
        }
        for (index, rooted) in self.ground.trees.iter().enumerate() {
            for number in self.post.nodes.directories(index) {
                let Some(node) = self.post.nodes.get(number) else { continue };
                let mut dir = Vec::new();
                let links = self.post.through.iter().filter(|link| link.dir == node.identity);
                for link in links {
                    if self.post.nodes.path(number, &mut dir) {
                        let path = if dir.is_empty() {
                            link.name.to_vec()
                        } else {
                            [&dir[..], b"/", &link.name].concat()
                        };
                        found.push((rooted.absolute(&path)?, &link.said[..]));
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

    /// When the next turn is due even if nothing is readable.
    pub fn timeout(&self) -> Option<Duration> {
        if !self.noted.is_empty() {
            return Some(Duration::ZERO);
        }
        let patrol = self.post.blind.then(|| PATROL.saturating_sub(self.last_patrol.elapsed()));
        let view = self.view.as_ref().and_then(View::next_look);
        patrol.into_iter().chain(view).chain(self.post.silent.next_look()).min()
    }

    pub fn is_due(&self) -> bool {
        let mut readable = [PollFd::new(&self.inotify, PollFlags::IN)];
        let _ = rustix::event::poll(&mut readable, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !readable[0].revents().is_empty() || self.timeout() == Some(Duration::ZERO)
    }

    /// Judges what has appeared since. After an error the last scan looks at everything.
    pub fn turn(
        &mut self,
        put_covers: &mut PutCovers<'_>,
        on_event: &mut dyn FnMut(GuardEvent),
    ) -> Result<(), GuardError> {
        let turned = self.judge_all(put_covers, on_event);
        self.quiet &= turned.is_ok();
        turned
    }

    fn judge_all(
        &mut self,
        put_covers: &mut PutCovers<'_>,
        on_event: &mut dyn FnMut(GuardEvent),
    ) -> Result<(), GuardError> {
        let started = Instant::now();
        // What waits has waited since we were woken; what comes later came after the last read.
        let mut available = started;
        loop {
            let reading = Instant::now();
            // Denied names come first, whatever else waits.
            let any = self.read()?;
            if any {
                self.judge_denied()?;
                self.deliver(available, put_covers, on_event)?;
            }
            self.judge_waiting(reading + SLICE)?;
            if self.follow_moved()? {
                self.patrol(true)?;
                self.give_up_stale();
            }
            self.deliver(available, put_covers, on_event)?;
            available = reading;
            if (!any && self.noted.is_empty()) || started.elapsed() > TURN {
                break;
            }
        }
        self.near.clear();
        if self.post.silent.look_again(&self.ground, &mut self.post.covers)? {
            self.deliver(Instant::now(), put_covers, on_event)?;
        }
        if self.post.blind && self.last_patrol.elapsed() >= PATROL {
            let since = self.last_patrol;
            self.patrol(false)?;
            self.deliver(since, put_covers, on_event)?;
        }
        if self.view.as_ref().and_then(View::next_look) == Some(Duration::ZERO) {
            let since = Instant::now();
            self.look_around()?;
            self.deliver(since, put_covers, on_event)?;
        }
        Ok(())
    }

    /// The last scan. Nothing may run inside any more. A signal that comes from now on and asks
    /// this process to end stops the scan. Ok: all of the trees was looked through; otherwise the
    /// error is [`GuardError::Unfinished`].
    pub fn finish(&mut self, on_event: &mut dyn FnMut(GuardEvent)) -> Result<(), GuardError> {
        sys::forget_signals();
        self.walker.is_interrupted = Some(sys::is_asked_to_end);
        self.walker.deadline = None;
        let finished = self.scan_last(on_event);
        // What was found before an error is told too.
        self.post.events.drain(..).for_each(on_event);
        finished.map_err(|error| GuardError::Unfinished(Box::new(error)))
    }

    fn scan_last(&mut self, on_event: &mut dyn FnMut(GuardEvent)) -> Result<(), GuardError> {
        self.post.finishing = true;
        loop {
            let any = self.read()?;
            self.note_ends();
            if !any {
                break;
            }
        }
        if self.quiet && !self.post.blind {
            return Ok(());
        }
        let mut moved = false;
        for _ in 0..LAST_ROUNDS {
            self.post.flagged.clear();
            self.post.unlisted = 0;
            self.post.kept = 0;
            self.post.unfinished = None;
            let before = self.post.taken;
            self.patrol(true)?;
            self.post.events.drain(..).for_each(&mut *on_event);
            moved = self.follow_moved()?;
            if self.post.taken == before && !moved {
                break;
            }
        }
        if moved {
            // Repositories are moved faster than they are looked through.
            return Err(WalkError::Moved { path: self.ground.trees[0].path.clone() }.into());
        }
        self.post.unfinished.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// How many flagged names the last scan found beside those that it could note.
    pub fn unlisted(&self) -> usize {
        self.post.unlisted
    }

    /// Flagged names that were made or changed during the run, after the last scan.
    pub fn changed(&self) -> Vec<AbsPath> {
        self.flagged.changed(&self.ground, &self.post.flagged, self.since)
    }

    /// What holds the watches. It is not to be closed by who can not wait: the kernel takes tens of
    /// milliseconds to be sure that nobody looks at one any more.
    pub fn disband(self) -> OwnedFd {
        self.inotify
    }

    /// Looks through everything that is watched.
    fn patrol(&mut self, again: bool) -> Result<(), GuardError> {
        self.last_patrol = Instant::now();
        self.post.blind = false;
        self.post.direct = false;
        self.post.again = again;
        let mut visit =
            Visit { inotify: self.inotify.as_fd(), ground: &self.ground, post: &mut self.post };
        for index in 0..self.ground.trees.len() {
            let tree = &self.ground.trees[index];
            if tree.watched || (tree.is_read_only() && !visit.post.finishing) {
                let walked = self.walker.tree(&mut self.names, &self.ground, index, &mut visit);
                walked.or_else(|error| visit.goes_on(error))?;
            }
        }
        self.post.again = false;
        self.look_around()
    }

    /// Looks through all that the command sees of its copy.
    fn look_around(&mut self) -> Result<(), GuardError> {
        match &mut self.view {
            Some(view) if !self.post.finishing => {
                view.look_around(&mut self.walker, &mut self.names, &mut self.post.covers)
            }
            _ => Ok(()),
        }
    }

    /// Repositories that were moved: what git obeys is protected where they are now. True: all has
    /// to be looked through again.
    fn follow_moved(&mut self) -> Result<bool, GuardError> {
        for path in std::mem::take(&mut self.post.moved) {
            self.names.add_git_directory(&path).map_err(WalkError::from)?;
        }
        Ok(self.names.settle().map_err(WalkError::from)?)
    }

    /// Directories that were watched before a symlink showed that they are closed.
    fn give_up_stale(&mut self) {
        let names = &self.names;
        for watch in self.post.nodes.failing(|node| names.is_current(node.state)) {
            let _ = inotify::remove_watch(&self.inotify, watch);
            self.post.unwatched(watch);
        }
    }

    /// What is covered: whether its name goes away has to be known, to tell a replacement from
    /// something new.
    fn watch_covered(&mut self, covers: &[Cover]) -> Result<(), GuardError> {
        let (mut covered, mut masked) = (Vec::new(), Vec::new());
        for cover in covers.iter().filter(|cover| cover.kind != CoverKind::Pin) {
            let Some(tree) = self.ground.tree_of(&cover.path) else { continue };
            let unwatched = |source| GuardError::Watch { path: cover.path.clone(), source };
            let looked = self
                .ground
                .look(&cover.path)
                .and_then(|fd| Ok((Object::at(&fd, c"")?, rustix::fs::fstat(&fd)?, fd)));
            match looked {
                Ok((object, stat, fd)) if object.identity == cover.identity => {
                    covered.push(object);
                    masked.extend((cover.kind == CoverKind::Mask).then_some(object));
                    self.post
                        .close(self.inotify.as_fd(), fd.as_fd(), &stat, cover.kind)
                        .map_err(unwatched)?;
                }
                // It was replaced since, which is an event.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(source) => return Err(unwatched(source)),
            }
            if cover.kind == CoverKind::Stranger || !tree.watched || cover.path == tree.path {
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
        self.post.remember(covered, masked);
        Ok(())
    }

    /// Puts the covers in place and tells what happened.
    fn deliver(
        &mut self,
        available: Instant,
        put_covers: &mut PutCovers<'_>,
        on_event: &mut dyn FnMut(GuardEvent),
    ) -> Result<(), GuardError> {
        self.post.direct = false;
        self.post.kept = 0;
        // What is denied may be elsewhere in the copy as well, or instead.
        if self.place(available, put_covers)? {
            self.look_around()?;
            self.place(available, put_covers)?;
        }
        self.post.events.drain(..).for_each(on_event);
        Ok(())
    }

    /// True: what the command sees has to be looked through.
    fn place(
        &mut self,
        available: Instant,
        put_covers: &mut PutCovers<'_>,
    ) -> Result<bool, GuardError> {
        let post = &mut self.post;
        if post.covers.is_empty() {
            return Ok(false);
        }
        post.covers.sort_by(|one, other| one.path.cmp(&other.path));
        post.covers.dedup();
        let astray = self
            .view
            .as_ref()
            .is_some_and(|view| post.covers.iter().any(|cover| view.may_show_elsewhere(cover)));
        let placed = put_covers(&post.covers).map_err(GuardError::Cover)?;
        let window = available.elapsed();
        for (cover, placed) in post.covers.drain(..).zip(&placed) {
            match placed {
                Placed::Now if cover.kind != CoverKind::Pin => {
                    post.events.push(GuardEvent::Masked { path: cover.path, window });
                }
                Placed::Unknown => {
                    match self.view.as_mut().filter(|view| view.shows(&cover.path)) {
                        Some(view) => view.is_astray = true,
                        None => post.blind = true,
                    }
                }
                Placed::Now | Placed::Needless | Placed::Absent => {}
            }
        }
        Ok(astray || placed.iter().any(|placed| matches!(placed, Placed::Absent | Placed::Unknown)))
    }
}

const APPEAR: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);
/// In a copy it matters too that a directory was moved away: the copy may show it all the same.
fn appear(tree: &OpenTree) -> WatchFlags {
    if tree.writable { APPEAR } else { APPEAR.union(WatchFlags::MOVED_FROM) }
}

const DISAPPEAR: WatchFlags = WatchFlags::DELETE.union(WatchFlags::MOVED_FROM);
/// A hard link is a change of attributes.
const WRITTEN: WatchFlags =
    WatchFlags::MODIFY.union(WatchFlags::CLOSE_WRITE).union(WatchFlags::ATTRIB);

/// inotify has no call that takes a descriptor.
fn watch(inotify: BorrowedFd<'_>, object: BorrowedFd<'_>, flags: WatchFlags) -> Result<i32, Errno> {
    let mut buffer = [0; 32];
    inotify::add_watch(inotify, open_beneath::link_to(object, &mut buffer), flags)
}
