//! Reads the events of watched directories, and judges them in an order that lets no denied name
//! wait.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use rustix::fs::inotify::{self, ReadFlags, Reader};
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::handle_new_name::NameHandler;
use super::overlay_view::WatchedDir;
use super::{Guard, GuardError};
use crate::files::walk::{self, Below, Dir, MAX_NAME_DELAY, Visitor as _, WalkError};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::Identity;

const EVENT_BUFFER_BYTES: usize = 32 * 1024;
/// Events that wait here. The kernel queues the rest, and reports an overflow.
const MAX_PENDING_EVENTS: usize = 32 * 1024;
const MAX_OPEN_DIRS: usize = 16;
const APPEARED: ReadFlags = ReadFlags::CREATE.union(ReadFlags::MOVED_TO);

/// Events that wait to be judged, with their names in one buffer, each with its NUL.
#[derive(Default)]
pub(super) struct PendingEvents {
    pub events: Vec<PendingEvent>,
    names: Vec<u8>,
    /// The number of judged events.
    judged: usize,
    /// When they were read. Each time is for the events up to a number.
    read: VecDeque<(usize, Instant)>,
}

pub(super) struct PendingEvent {
    pub watch: i32,
    pub what: ReadFlags,
    name: Range<usize>,
    /// It was judged out of order.
    done: bool,
}

impl PendingEvents {
    pub fn is_empty(&self) -> bool {
        self.judged == self.events.len()
    }

    /// When the oldest pending event was read.
    fn since(&self) -> Option<Instant> {
        self.read.front().map(|(_, since)| *since)
    }

    pub fn clear(&mut self) {
        self.events.clear();
        self.names.clear();
        self.read.clear();
        self.judged = 0;
    }

    fn name(&self, at: usize) -> Option<&CStr> {
        CStr::from_bytes_with_nul(&self.names[self.events[at].name.clone()])
            .ok()
            .filter(|name| !name.is_empty())
    }
}

/// An open directory whose events are being judged.
pub(super) struct OpenDir {
    number: u32,
    fd: OwnedFd,
    path: Vec<u8>,
}

impl Guard {
    /// Reads the kernel's events. False: there were none.
    pub(super) fn read(&mut self) -> Result<bool, GuardError> {
        self.open_dirs.clear();
        if self.pending.is_empty() {
            self.pending.clear();
        }
        let before = self.pending.events.len();
        while self.pending.events.len() < MAX_PENDING_EVENTS && self.note()? {}
        let read = &self.pending.events[before..];
        let any = !read.is_empty();
        if read.iter().any(|event| event.what.contains(ReadFlags::QUEUE_OVERFLOW)) {
            self.make_up_for_lost()?;
        } else if any {
            self.pending.read.push_back((self.pending.events.len(), Instant::now()));
        }
        Ok(any)
    }

    /// Events were lost: everything is scanned, and the remaining events are dropped.
    fn make_up_for_lost(&mut self) -> Result<(), GuardError> {
        for at in self.pending.judged..self.pending.events.len() {
            let PendingEvent { watch, what, .. } = self.pending.events[at];
            if what.contains(ReadFlags::IGNORED) {
                self.state.ended(watch);
            }
        }
        self.pending.clear();
        if let Some(view) = &mut self.view {
            view.is_astray = true;
        }
        self.patrol(true)
    }

    /// Reads one buffer of events. False: there were none.
    fn note(&mut self) -> Result<bool, GuardError> {
        self.buffer.resize(EVENT_BUFFER_BYTES, MaybeUninit::uninit());
        let mut reader = Reader::new(&self.inotify, &mut self.buffer);
        let PendingEvents { events, names, .. } = &mut self.pending;
        let before = events.len();
        while events.len() == before || !reader.is_buffer_empty() {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(GuardError::Read(error)),
            };
            let name = event.file_name().unwrap_or_default().to_bytes_with_nul();
            names.try_reserve(name.len()).map_err(WalkError::from)?;
            events.try_reserve(1).map_err(WalkError::from)?;
            let start = names.len();
            names.extend_from_slice(name);
            let name = start..names.len();
            events.push(PendingEvent {
                watch: event.wd(),
                what: event.events(),
                name,
                done: false,
            });
        }
        Ok(true)
    }

    /// Judges the events of denied names, and opens nothing for others.
    pub(super) fn judge_denied(&mut self) -> Result<(), GuardError> {
        let new =
            self.pending.read.iter().rev().nth(1).map_or(self.pending.judged, |(end, _)| *end);
        for at in new.max(self.pending.judged)..self.pending.events.len() {
            let PendingEvent { watch, what, .. } = self.pending.events[at];
            let node = self
                .state
                .nodes
                .of_watch(watch)
                .and_then(|number| Some((number, self.state.nodes.get(number)?)));
            let Some((number, node)) = node.filter(|_| what.intersects(APPEARED)) else {
                continue;
            };
            let (state, folding) = (node.state, node.folding);
            let Some(name) = self.pending.name(at) else { continue };
            if self.names.look(state, name.to_bytes(), folding).deny.is_some() {
                let name = name.to_owned();
                self.pending.events[at].done = true;
                self.judge(number, what, &name)?;
            }
        }
        Ok(())
    }

    /// Judges events in order, until it is time to read new ones.
    pub(super) fn judge_waiting(&mut self, until: Instant) -> Result<(), GuardError> {
        while !self.pending.is_empty() {
            let Some(since) = self.pending.since() else { break };
            self.walker.deadline = Some(since + MAX_NAME_DELAY);
            if since.elapsed() > MAX_NAME_DELAY {
                return Err(WalkError::Behind.into());
            }
            let at = self.pending.judged;
            let PendingEvent { watch, what, done, .. } = self.pending.events[at];
            self.pending.judged += 1;
            if self.pending.read.front().is_some_and(|(end, _)| *end <= self.pending.judged) {
                self.pending.read.pop_front();
            }
            if what.contains(ReadFlags::IGNORED) {
                self.state.ended(watch);
            } else if !done
                && let Some(number) = self.state.nodes.of_watch(watch)
                && let Some(name) = self.pending.name(at).map(CStr::to_owned)
            {
                self.judge(number, what, &name)?;
            }
            if Instant::now() > until {
                break;
            }
        }
        self.walker.deadline = None;
        Ok(())
    }

    /// Judges a name in a watched directory.
    fn judge(&mut self, number: u32, what: ReadFlags, name: &CStr) -> Result<(), GuardError> {
        let Some(node) = self.state.nodes.get(number) else { return Ok(()) };
        if let Some(view) = self.view.as_mut().filter(|view| view.tree == node.tree)
            && what.contains(ReadFlags::ISDIR)
            && what.intersects(ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO)
        {
            view.is_astray = true;
        }
        if what.contains(ReadFlags::MOVED_FROM) {
            return Ok(());
        }
        if !what.contains(ReadFlags::ISDIR)
            && self.means_nothing(number, name.to_bytes())
            && !self.counts_by_kind(number, name)?
        {
            return Ok(());
        }
        self.look_at(number, name)
    }

    /// Is it a socket, or another name of a closed file? Asked for every new file: the directory is
    /// opened once for all events that come together.
    fn counts_by_kind(&mut self, number: u32, name: &CStr) -> Result<bool, GuardError> {
        let tree = self.state.nodes.get(number).map(|node| node.tree);
        let Some(is_copy) = tree.map(|tree| self.roots.trees[tree].is_copy()) else {
            return Ok(false);
        };
        if is_copy && !self.state.closes_files() {
            return Ok(false);
        }
        // If the kind is not known, the name is handled.
        let Ok(Some(open_dir)) =
            self.approach(number).map(|found| found.then(|| self.open_dirs.last()).flatten())
        else {
            return Ok(true);
        };
        let stat = match rustix::fs::statat(&open_dir.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(_) => return Ok(true),
        };
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.state.closed(Identity::from(&stat)).is_some(),
            FileType::Socket => !is_copy,
            _ => false,
        })
    }

    /// Opens a watched directory, from its parent if that is open. It becomes the last open one.
    /// False: it does not exist any more.
    fn approach(&mut self, number: u32) -> Result<bool, Errno> {
        if let Some(at) = self.open_dirs.iter().position(|open_dir| open_dir.number == number) {
            let open_dir = self.open_dirs.remove(at);
            self.open_dirs.push(open_dir);
            return Ok(true);
        }
        let Some(node) = self.state.nodes.get(number) else { return Ok(false) };
        let tree = &self.roots.trees[node.tree];
        let mut path = Vec::new();
        let opened = match self.open_dirs.iter().find(|open_dir| open_dir.number == node.above) {
            Some(above) => {
                path.try_reserve(above.path.len() + 1 + node.name.len())
                    .map_err(|_| Errno::NOMEM)?;
                path.extend_from_slice(&above.path);
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&node.name);
                open_beneath::open(&above.fd, &node.name, OFlags::PATH | OFlags::DIRECTORY)
            }
            None if !self.state.nodes.path(number, &mut path) => return Ok(false),
            None => tree.open(&path, OFlags::PATH | OFlags::DIRECTORY),
        };
        let opened = match opened {
            // An event comes from a directory that was shut, or is inside one.
            Err(Errno::ACCESS) => self.state.open_shut(tree, &path),
            opened => opened,
        };
        let fd = match opened.and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd))) {
            Ok((stat, fd)) if Identity::from(&stat) == node.identity => fd,
            Ok(_) | Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(error),
        };
        if self.open_dirs.len() == MAX_OPEN_DIRS {
            self.open_dirs.remove(0);
        }
        self.open_dirs.push(OpenDir { number, fd, path });
        Ok(true)
    }

    /// Is the name without meaning? Nearly every new file is.
    fn means_nothing(&mut self, number: u32, name: &[u8]) -> bool {
        let Some(node) = self.state.nodes.get(number) else { return true };
        let (state, folding, below) = (node.state, node.folding, node.below);
        let look = self.names.look(state, name, folding);
        below == Below::Plain && look.is_nothing() && !self.names.is_git(name, folding)
    }

    /// Handles a name in a watched directory, and everything below it.
    fn look_at(&mut self, number: u32, name: &CStr) -> Result<(), GuardError> {
        let found = self.approach(number);
        let Some(node) = self.state.nodes.get(number) else { return Ok(()) };
        let (tree_index, identity) = (node.tree, node.identity);
        let (watch, state, below, folding) = (node.watch, node.state, node.below, node.folding);
        let tree = &self.roots.trees[tree_index];
        let open_dirs = match found {
            Ok(true) => self.open_dirs.pop(),
            // The copy may still show it.
            Ok(false) if !tree.writable => None,
            // It does not exist any more. If it was renamed inside the trees, an event reports that
            // and it is watched again.
            Ok(false) => {
                let _ = inotify::remove_watch(&self.inotify, watch);
                self.state.forget(watch);
                None
            }
            // Another user has shut a directory on the path, for the command too, or it is no
            // directory now. The guard tries again later.
            Err(Errno::ACCESS | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => {
                self.state.blind = true;
                None
            }
            Err(source) => {
                let mut path = Vec::new();
                self.state.nodes.path(number, &mut path);
                return Err(WalkError::List { path: walk::shown(tree, &path), source }.into());
            }
        };
        if let Some(open_dirs) = &open_dirs {
            let dir = Dir {
                tree,
                tree_index,
                fd: open_dirs.fd.as_fd(),
                path: &open_dirs.path,
                identity,
                state,
                below,
                folding,
                numbers_agree: false,
                node: number,
            };
            self.state.direct = true;
            let mut handler = NameHandler {
                inotify: self.inotify.as_fd(),
                roots: &self.roots,
                state: &mut self.state,
            };
            if let Some(stat) = handler.stat(&dir, name)? {
                let file_type = FileType::from_raw_mode(stat.st_mode);
                self.walker.entry(
                    &mut self.names,
                    &self.roots,
                    &dir,
                    name,
                    file_type,
                    &mut handler,
                )?;
            }
        }
        if let Some(view) = self.view.as_mut().filter(|view| view.tree == tree_index) {
            let mut path = Vec::new();
            let known = match &open_dirs {
                Some(open_dirs) => Some(&open_dirs.path),
                None => self.state.nodes.path(number, &mut path).then_some(&path),
            };
            if let Some(path) = known {
                let place = WatchedDir { path, state, below, folding };
                view.look_at(
                    &mut self.walker,
                    &mut self.names,
                    place,
                    name,
                    &mut self.state.covers,
                )?;
            }
        }
        self.open_dirs.extend(open_dirs);
        Ok(())
    }
}
