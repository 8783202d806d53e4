//! What the supervisor does beside waiting: it guards names and watches limits, and remembers what it has to tell.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::io::Errno;

use crate::cover::Cover;
use crate::event::Event;
use crate::guard::{Guard, GuardError, GuardEvent, Placed};
use crate::journal::Journal;
use crate::limits::Exceeded;
use crate::namespaces::Inside;
use crate::stderr;
use crate::supervise::Chores;
use crate::text::AbsPath;
use crate::watch::Watch;

/// More lines than this about names that were taken away say nothing new.
const MOST_LINES: usize = 20;
/// Of names that were changed, and are executed outside later.
const MOST_SHOWN: usize = 5;
const MOST_FLAGGED: usize = 200;

pub struct Duties<'a> {
    pub guard: Option<Guard>,
    /// The sandbox's mounts, and whether what is guarded in them is a copy.
    pub inside: Option<(&'a Inside, bool)>,
    pub limits: Option<Watch<'a>>,
    pub journal: Option<&'a Journal>,
    pub exceeded: Option<Exceeded>,
    failure: Option<GuardError>,
    lines: usize,
    quiet: bool,
}

impl<'a> Duties<'a> {
    pub fn new(
        guard: Option<Guard>,
        inside: Option<(&'a Inside, bool)>,
        limits: Option<Watch<'a>>,
        journal: Option<&'a Journal>,
        quiet: bool,
    ) -> Duties<'a> {
        Duties { guard, inside, limits, journal, exceeded: None, failure: None, lines: 0, quiet }
    }

    /// When everything has ended: what is left in the trees is looked at once more, and nothing can interfere.
    pub fn finish(mut self) -> Option<Exceeded> {
        if let Some(mut guard) = self.guard.take() {
            let finished = guard.finish(&mut |event| self.tell(event));
            if let Err(error) = self.failure.take().map_or(finished, Err) {
                stderr::complain(&error.to_string(), error.hint());
                if let Some(journal) = self.journal {
                    let text = error.to_string();
                    let _ = journal.append(&Event::Partial { text: text.as_bytes() });
                }
            }
            self.tell_changed(&guard.changed());
            guard.disband();
        }
        self.exceeded
    }

    /// What was written as it should be, and runs outside of the fence: a person looks first.
    fn tell_changed(&self, paths: &[AbsPath]) {
        let journaled = paths.iter().take(MOST_FLAGGED);
        if let Some(journal) = self.journal {
            for path in journaled {
                if let Err(error) = journal.append(&Event::NameFlagged { path: path.as_bytes() }) {
                    stderr::complain(&error.to_string(), error.hint());
                    break;
                }
            }
        }
        if paths.is_empty() || self.quiet {
            return;
        }
        let shown: Vec<String> = paths.iter().take(MOST_SHOWN).map(AbsPath::to_string).collect();
        let more = match paths.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let text = format!("changed during the run, and executed outside of the fence: {}{more}", shown.join(", "));
        stderr::say("paddock", &text);
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
fn put(inside: &Inside, copied: bool, covers: &[Cover]) -> Result<Vec<Placed>, Errno> {
    let results = inside.cover(covers, copied)?;
    results
        .into_iter()
        .map(|result| match result {
            Ok(()) => Ok(Placed::Now),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::LOOP) => Ok(Placed::Needless),
            Err(errno) => Err(errno),
        })
        .collect()
}

impl Chores for Duties<'_> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.guard.as_ref().map(Guard::fd)
    }

    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits.as_ref().and_then(Watch::next_check);
        let guard = self.guard.as_ref().and_then(Guard::timeout).map(|left| Instant::now() + left);
        [limits, guard].into_iter().flatten().min()
    }

    fn turn(&mut self) -> ControlFlow<()> {
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

    fn look(&mut self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_due)
            || self.limits.as_mut().is_some_and(|watch| watch.check().is_some())
    }
}
