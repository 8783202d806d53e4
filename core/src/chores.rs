//! What the supervisor does beside waiting: it guards names, watches limits and answers calls, and remembers what it has to tell.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::io::Errno;

use crate::cover::Cover;
use crate::event::Event;
use crate::guard::{Guard, GuardError, GuardEvent, Placed};
use crate::journal::Journal;
use crate::kernel_names::errno_text;
use crate::limits::Exceeded;
use crate::namespaces::Inside;
use crate::notify::{Listener, Next};
use crate::rename::Renames;
use crate::stderr;
use crate::supervise::{CHORES, Chores};
use crate::text::AbsPath;
use crate::veil::Veil;
use crate::watch::Watch;

/// So many calls are answered before everything else gets its turn.
const MOST_CALLS: usize = 256;
/// More lines than this about names that were taken away say nothing new.
const MOST_LINES: usize = 20;

/// System calls that wait for our answer, and who knows it.
pub struct Calls<'a> {
    listener: Listener,
    renames: Renames<'a>,
    /// Nobody is left who could call.
    over: bool,
}

impl<'a> Calls<'a> {
    pub fn new(listener: Listener, renames: Renames<'a>) -> Calls<'a> {
        Calls { listener, renames, over: false }
    }

    fn turn(&mut self) -> Result<(), Errno> {
        self.renames.turn(&self.listener);
        for _ in 0..MOST_CALLS {
            match self.listener.next()? {
                Next::Call(call) => self.renames.take(&self.listener, call),
                Next::Nothing => break,
                Next::Over => {
                    self.over = true;
                    break;
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub struct Copied<'a> {
    pub workspace: &'a AbsPath,
    pub veil: &'a Veil,
}

pub struct Duties<'a> {
    pub guard: Option<Guard>,
    /// The sandbox's mounts, and what is a copy in them, with what it hides.
    pub inside: Option<(&'a Inside, Option<Copied<'a>>)>,
    pub limits: Option<Watch<'a>>,
    pub calls: Option<Calls<'a>>,
    pub journal: Option<&'a Journal>,
    pub exceeded: Option<Exceeded>,
    failure: Option<GuardError>,
    lines: usize,
}

impl<'a> Duties<'a> {
    pub fn new(
        guard: Option<Guard>,
        inside: Option<(&'a Inside, Option<Copied<'a>>)>,
        limits: Option<Watch<'a>>,
        calls: Option<Calls<'a>>,
        journal: Option<&'a Journal>,
    ) -> Duties<'a> {
        Duties { guard, inside, limits, calls, journal, exceeded: None, failure: None, lines: 0 }
    }

    /// When everything has ended: what is left in the trees is looked at once more, and nothing can interfere.
    pub fn finish(mut self) -> Option<Exceeded> {
        if let Some(calls) = self.calls.take() {
            calls.renames.finish();
        }
        if let Some(mut guard) = self.guard.take() {
            let finished = guard.finish(&mut |event| self.tell(event));
            if let Err(error) = self.failure.take().map_or(finished, Err) {
                stderr::complain(&error.to_string(), error.hint());
                if let Some(journal) = self.journal {
                    let text = error.to_string();
                    let _ = journal.append(&Event::Partial { text: text.as_bytes() });
                }
            }
            guard.disband();
        }
        self.exceeded
    }

    fn tell(&mut self, event: GuardEvent) {
        let event = match &event {
            GuardEvent::Taken { path, kept, whole } => {
                self.say(&format!("took away {path}, made during the run: it is kept in {kept}"));
                Event::NameTaken { path: path.as_bytes(), kept: kept.as_bytes(), whole: *whole }
            }
            GuardEvent::Masked { path, window } => {
                Event::NameMasked { path: path.as_bytes(), window_us: window.as_micros() }
            }
            GuardEvent::Removed { path, source } => {
                self.say(&format!("removed {path}, made during the run: it can not be kept: {source}"));
                Event::NameRemoved { path: path.as_bytes(), errno: *source }
            }
            GuardEvent::Failed { path, source } => {
                self.say(&format!("{path}, made during the run, can not be taken away: {source}"));
                Event::NameLeft { path: path.as_bytes(), errno: *source }
            }
        };
        if let Some(journal) = self.journal
            && let Err(error) = journal.append(&event)
        {
            stderr::complain(&error.to_string(), error.hint());
        }
    }

    fn say(&mut self, line: &str) {
        self.lines += 1;
        match self.lines {
            ..MOST_LINES => stderr::say("paddock", line),
            MOST_LINES => stderr::say("paddock", "more names were taken away: `paddock audit show` has them all"),
            _ => {}
        }
    }
}

/// Puts covers into the running sandbox. One whose object is gone, or covered already, is no loss.
fn put(inside: &Inside, copied: Option<Copied<'_>>, covers: &[Cover]) -> Result<Vec<Placed>, Errno> {
    // What the host has there does not show; if the command has made such a name, it is its own.
    let hidden = |cover: &Cover| copied.is_some_and(|copied| copied.veil.hides(copied.workspace, &cover.path));
    let bare: Vec<Cover> = covers.iter().filter(|cover| !hidden(cover)).cloned().collect();
    let mut results = inside.cover(&bare, copied.is_some())?.into_iter();
    covers
        .iter()
        .map(|cover| match if hidden(cover) { None } else { results.next() } {
            Some(Ok(())) => Ok(Placed::Now),
            None | Some(Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::LOOP)) => Ok(Placed::Needless),
            Some(Err(errno)) => Err(errno),
        })
        .collect()
}

impl Chores for Duties<'_> {
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; CHORES] {
        let calls = self.calls.as_ref();
        let listener = calls.filter(|calls| !calls.over).map(|calls| calls.listener.fd());
        [self.guard.as_ref().map(Guard::fd), listener, calls.and_then(|calls| calls.renames.fd())]
    }

    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits.as_ref().and_then(Watch::next_check);
        let guard = self.guard.as_ref().and_then(Guard::timeout).map(|left| Instant::now() + left);
        [limits, guard].into_iter().flatten().min()
    }

    fn turn(&mut self) -> ControlFlow<()> {
        if let Some(Err(errno)) = self.calls.as_mut().map(Calls::turn) {
            let error = format!("system calls of the command can not be answered: {}", errno_text(errno));
            stderr::complain(&error, "this is a bug of paddock, or of the kernel");
            return ControlFlow::Break(());
        }
        if let (Some(mut guard), Some((inside, copied))) = (self.guard.take(), self.inside) {
            let turned = guard.turn(&mut |covers| put(inside, copied, covers), &mut |event| self.tell(event));
            self.guard = Some(guard);
            // A guard that can not do its work is no guard.
            if let Err(error) = turned {
                self.failure = Some(error);
                return ControlFlow::Break(());
            }
        }
        if let Some(watch) = &mut self.limits
            && let Some(exceeded) = watch.check()
        {
            watch.kill();
            self.exceeded = Some(exceeded);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}
