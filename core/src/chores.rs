//! What the supervisor does beside waiting: it guards names, watches limits and answers calls, and remembers what it has to tell.

use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::io::Errno;

use crate::calls::{Attendants, Calls};
use crate::cover::Cover;
use crate::event::Event;
use crate::gate::Gate;
use crate::guard::{Guard, GuardError, GuardEvent, Placed};
use crate::journal::Journal;
use crate::kernel_names::errno_text;
use crate::limits::Exceeded;
use crate::namespaces::Inside;
use crate::observe::Observer;
use crate::stderr::{self, Live};
use crate::supervise::{CHORES, Chores};
use crate::text::AbsPath;
use crate::veil::Veil;
use crate::watch::Watch;

/// More lines than this about names that were taken away say nothing new.
const MOST_LINES: usize = 20;
/// Of names that were changed, and are executed outside later.
const MOST_SHOWN: usize = 5;
const MOST_FLAGGED: usize = 200;

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
    /// For the end: a terminal or a pipe that takes nothing more would keep us from our work, and the command can see to that.
    lines: Vec<(&'static str, String)>,
    live: Live,
    said_last: Option<(u32, String)>,
    quiet: bool,
}

impl<'a> Duties<'a> {
    pub fn new(
        guard: Option<Guard>,
        inside: Option<(&'a Inside, Option<Copied<'a>>)>,
        limits: Option<Watch<'a>>,
        calls: Option<Calls<'a>>,
        journal: Option<&'a Journal>,
        quiet: bool,
    ) -> Duties<'a> {
        Duties {
            guard,
            inside,
            limits,
            calls,
            journal,
            exceeded: None,
            failure: None,
            lines: Vec::new(),
            live: Live::new(),
            said_last: None,
            quiet,
        }
    }

    /// When everything has ended: what is left in the trees is looked at once more, and nothing can interfere.
    pub fn finish(mut self) -> Option<Exceeded> {
        self.tell_decided();
        let observer = self.calls.as_mut().and_then(|calls| calls.attendants.observer.as_mut());
        let missed = observer.and_then(Observer::finish);
        self.tell_refused();
        if let Some(missed) = missed {
            self.complain(&missed, "`paddock why --path PATH --op read|write|exec` answers for a single path");
        }
        if let Some(renames) = self.calls.take().and_then(|calls| calls.renames) {
            renames.finish();
        }
        let guard = self.guard.take();
        if guard.is_none() {
            self.say_all();
        }
        if let Some(mut guard) = guard {
            let finished = guard.finish(&mut |event| self.tell(event));
            self.say_all();
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

    /// What the gate has decided: to the journal, and what was refused to people at once, as far as they can take it.
    fn tell_decided(&mut self) {
        let Some(gate) = self.calls.as_mut().and_then(|calls| calls.attendants.gate.as_mut()) else { return };
        for decided in gate.decided() {
            if let Some(journal) = self.journal
                && let Err(error) = journal.append(&Event::Exec(&decided))
            {
                self.complain(&error.to_string(), error.hint());
            }
            if let Some(line) = decided.refusal().filter(|_| !self.quiet) {
                self.say_now(decided.process.pid, line);
            }
        }
    }

    /// What the fence has refused, as far as it was observed.
    fn tell_refused(&mut self) {
        let observer = self.calls.as_mut().and_then(|calls| calls.attendants.observer.as_mut());
        for refused in observer.map(Observer::refused).unwrap_or_default() {
            if let Some(journal) = self.journal
                && let Err(error) = journal.append(&Event::FileRefused(&refused))
            {
                self.complain(&error.to_string(), error.hint());
            }
            if !self.quiet {
                self.say(&refused.line());
            }
        }
    }

    /// Once: who looks for a program in several places is refused in each.
    fn say_now(&mut self, pid: u32, line: String) {
        let said = (pid, line);
        if self.said_last.as_ref() == Some(&said) {
            return;
        }
        if let Some(line) = self.live.say(&said.1) {
            self.say(line);
        }
        self.said_last = Some(said);
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
            self.complain(&error.to_string(), error.hint());
        }
    }

    fn say(&mut self, line: &str) {
        match self.lines.len() {
            ..MOST_LINES => self.lines.push(("paddock", line.to_owned())),
            MOST_LINES => self.lines.push(("paddock", "there is more: `paddock audit show` has it all".to_owned())),
            _ => {}
        }
    }

    fn say_all(&mut self) {
        for (prefix, line) in self.lines.drain(..) {
            stderr::say(prefix, &line);
        }
    }

    /// Something of ours went wrong, which is said once.
    fn complain(&mut self, what: &str, hint: &str) {
        if !self.lines.iter().any(|(_, line)| line == what) && self.lines.len() < 2 * MOST_LINES {
            self.lines.extend([("paddock", what.to_owned()), ("hint", hint.to_owned())]);
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
        let [listener, renames, gate, observer] = self.calls.as_ref().map_or([None; 4], Calls::descriptors);
        [self.guard.as_ref().map(Guard::fd), listener, renames, gate, observer]
    }

    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits.as_ref().and_then(Watch::next_check);
        let guard = self.guard.as_ref().and_then(Guard::timeout).map(|left| Instant::now() + left);
        let calls = self.calls.as_ref().and_then(Calls::deadline);
        [limits, guard, calls].into_iter().flatten().min()
    }

    fn turn(&mut self) -> ControlFlow<()> {
        if let Some(Err(errno)) = self.calls.as_mut().map(Calls::turn) {
            let error = format!("system calls of the command can not be answered: {}", errno_text(errno));
            self.complain(&error, "this is a bug of paddock, or of the kernel");
            return ControlFlow::Break(());
        }
        self.tell_decided();
        self.tell_refused();
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
        self.calls.as_ref().is_some_and(Calls::are_due)
            || self.guard.as_ref().is_some_and(Guard::is_due)
            || self.limits.as_mut().is_some_and(|watch| watch.check().is_some())
    }

    fn is_tracing(&self) -> bool {
        self.calls.as_ref().and_then(|calls| calls.attendants.gate.as_ref()).is_some_and(Gate::is_tracing)
    }

    fn is_asking(&self) -> bool {
        self.calls.as_ref().and_then(|calls| calls.attendants.gate.as_ref()).is_some_and(Gate::is_asking)
    }

    fn dismiss(&mut self) {
        if let Some(Calls { attendants: Attendants { gate: Some(gate), .. }, .. }) = &mut self.calls {
            gate.dismiss_companion();
        }
    }
}
