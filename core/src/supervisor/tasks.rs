//! What the supervisor does beside waiting: it guards names, watches limits, answers calls and
//! hears the relay, and remembers what it has to tell.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;

use super::call_handlers::Calls;
use super::event_loop::{CHORES, Due, Tasks};
use super::observer::Observer;
use super::session_owner::SessionOwner;
use crate::files::cover::{Cover, CoverKind, Placed};
use crate::files::guard::{Guard, GuardError, GuardEvent};
use crate::files::workspace::whiteouts::{self, Whiteouts};
use crate::gate::Gate;
use crate::journal::Journal;
use crate::journal::event::Event;
use crate::journal::event::limits::ExceededLimit;
use crate::journal::event::network::NetworkDecision;
use crate::kernel::errno_names::errno_text;
use crate::kernel::mount;
use crate::kernel::stderr::{self, Live};
use crate::limits::watchdog::Watch;
use crate::network::supervisor::relay_process::{Heard, RelayProcess};
use crate::plan::wire::bytes::AbsPath;
use crate::sandbox::init::{Inside, Overlaid};

/// More lines than this about names that were taken away say nothing new.
const MOST_LINES: usize = 20;
/// Of names that were changed, and are executed outside later.
const MOST_SHOWN: usize = 5;

#[derive(Clone, Copy)]
pub struct Copied<'a> {
    pub workspace: &'a AbsPath,
    pub veil: &'a Whiteouts,
}

/// How the duties of a run ended.
pub struct Finished {
    pub exceeded: Option<ExceededLimit>,
    /// See [`Guard::disband`].
    pub watches: Option<OwnedFd>,
    /// The guard did its work to the end, and so did the last scan. Otherwise the run fails,
    /// whatever the command's own exit code is: names that it planted may be left.
    pub is_closed: bool,
    /// The last scan was complete, or none was due.
    pub is_scanned: bool,
}

pub struct SupervisorTasks<'a> {
    pub guard: Option<Guard>,
    /// The sandbox's mounts, and what is a copy in them, with what it hides.
    pub inside: Option<(&'a Inside, Option<Copied<'a>>)>,
    pub limits: Option<Watch<'a>>,
    pub calls: Option<Calls<'a>>,
    /// Of a network that is filtered.
    pub outlet: Option<RelayProcess<'a>>,
    pub journal: Option<&'a Journal>,
    pub holder: Option<SessionOwner>,
    pub exceeded: Option<ExceededLimit>,
    failure: Option<GuardError>,
    /// For the end: a terminal or a pipe that takes nothing more would keep us from our work, and
    /// the command can see to that.
    lines: Vec<(&'static str, String)>,
    live: Live,
    said_last: Option<(u32, String)>,
    quiet: bool,
}

impl<'a> SupervisorTasks<'a> {
    pub fn new(
        guard: Option<Guard>,
        inside: Option<(&'a Inside, Option<Copied<'a>>)>,
        limits: Option<Watch<'a>>,
        calls: Option<Calls<'a>>,
        outlet: Option<RelayProcess<'a>>,
        journal: Option<&'a Journal>,
        quiet: bool,
    ) -> SupervisorTasks<'a> {
        SupervisorTasks {
            guard,
            inside,
            limits,
            calls,
            outlet,
            journal,
            holder: None,
            exceeded: None,
            failure: None,
            lines: Vec::new(),
            live: Live::new(),
            said_last: None,
            quiet,
        }
    }

    /// When everything has ended: the last scan looks through the trees once more, and nothing can
    /// interfere.
    pub fn finish(mut self) -> Finished {
        self.hear_last_words();
        self.tell_decided();
        let observer = self.calls.as_mut().and_then(|calls| calls.attendants.observer.as_mut());
        let missed = observer.and_then(Observer::finish);
        self.tell_refused();
        if let Some(missed) = missed {
            self.complain(
                &missed,
                "for a single path, type `paddock why --path PATH --op read|write|exec`",
            );
        }
        if let Some(renames) = self.calls.take().and_then(|calls| calls.renames) {
            renames.finish();
        }
        let (mut watches, mut is_closed, mut is_scanned) = (None, true, true);
        let guard = self.guard.take();
        if guard.is_none() {
            self.say_all();
        }
        if let Some(mut guard) = guard {
            let finished = guard.finish(&mut |event| self.tell(event));
            self.say_all();
            is_scanned = finished.is_ok();
            is_closed = is_scanned && self.failure.is_none();
            if let Some(error) = self.failure.take() {
                let text = error.to_string();
                stderr::complain(&text, error.hint());
                self.append(&[Event::Partial { text: text.as_bytes() }]);
            }
            if let Err(error) = finished {
                let text = error.to_string();
                stderr::complain(
                    &text,
                    "type `paddock doctor` to finish it; the next `paddock run` finishes it too",
                );
                self.append(&[Event::ScanUnfinished { error: &text }]);
            }
            self.say_all();
            self.tell_changed(&guard.changed(), guard.unlisted());
            watches = Some(guard.disband());
        }
        Finished { exceeded: self.exceeded, watches, is_closed, is_scanned }
    }

    /// Of the relay, which is to go.
    fn hear_last_words(&mut self) {
        self.tell_unproxied();
        if let Some(mut outlet) = self.outlet.take() {
            outlet.finish(|told, denial| self.tell_network(told, denial, None));
        }
    }

    /// What was written as it should be, and runs outside of the fence: a person looks first.
    /// `unlisted`: so many more there are, and whether they changed is not known.
    fn tell_changed(&self, paths: &[AbsPath], unlisted: usize) {
        if let Some(journal) = self.journal {
            let events: Vec<_> =
                paths.iter().map(|path| Event::NameFlagged { path: path.as_bytes() }).collect();
            // Some at a time: other runs write to the same journal.
            let failed =
                events.chunks(500).filter_map(|some| journal.append_all(some).err()).last();
            if let Some(error) = failed {
                stderr::complain(&error.to_string(), error.hint());
            }
        }
        if self.quiet {
            return;
        }
        if unlisted > 0 {
            let text = format!(
                "{unlisted} more files that programs outside the sandbox run may have changed; \
                    their paths are too long to list"
            );
            stderr::say("paddock", &text);
        }
        if paths.is_empty() {
            return;
        }
        let shown: Vec<String> = paths.iter().take(MOST_SHOWN).map(AbsPath::to_string).collect();
        let more = match paths.len().saturating_sub(MOST_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more: type `paddock audit query --kind name` to list all"),
        };
        let text = format!(
            "changed during the run, and programs outside the sandbox run them: {}{more}",
            shown.join(", ")
        );
        stderr::say("paddock", &text);
    }

    /// What the gate has decided: to the journal, and what was refused to people at once, as far as
    /// they can take it.
    fn tell_decided(&mut self) {
        let Some(gate) = self.calls.as_mut().and_then(|calls| calls.attendants.gate.as_mut())
        else {
            return;
        };
        for decided in gate.decided() {
            self.append(&[Event::Exec(&decided)]);
            let Some(line) = decided.refusal() else { continue };
            self.tell_holder(&Event::Exec(&decided), decided.branch);
            if !self.quiet {
                self.say_now(decided.process.pid, line);
            }
        }
    }

    /// Who was connected to the proxy, and what a program tried to reach itself, where only the
    /// proxy does.
    fn tell_unproxied(&mut self) {
        let pin = self.calls.as_mut().and_then(|calls| calls.attendants.pin.as_mut());
        let (refused, arrivals) =
            pin.map(|pin| (pin.refused(), pin.arrivals())).unwrap_or_default();
        if let Some(outlet) = &mut self.outlet {
            outlet.expect(arrivals);
        }
        for told in refused {
            let denial = self.outlet.as_mut().and_then(|outlet| outlet.denial(&told));
            self.tell_network(&told, denial, None);
        }
    }

    /// What the relay has decided, or that there is none any more.
    fn tell_heard(&mut self) {
        let Some(mut outlet) = self.outlet.take() else { return };
        for heard in outlet.turn(self.calls.as_mut().map(|calls| &mut calls.attendants.desk)) {
            match heard {
                Heard::Decisions(told) => {
                    self.append(&told.iter().map(Event::Network).collect::<Vec<_>>());
                    for told in told.iter().filter(|told| told.is_denial()) {
                        let (denial, branch) = (outlet.denial(told), outlet.branch_of(told));
                        self.tell_denied(told, denial, branch);
                    }
                }
                Heard::Mute(reason) => {
                    let reason = format!("the HTTP helper: {reason}");
                    self.append(&[Event::NetworkLost { reason: &reason }]);
                    self.say_at_once(&format!(
                        "routes and inspected hosts cannot be reached any more: {reason}"
                    ));
                }
                Heard::Lost(reason) => {
                    self.append(&[Event::NetworkLost { reason: &reason }]);
                    self.say_at_once(&format!(
                        "the relay has ended, so no host can be reached any more: {reason}"
                    ));
                }
            }
        }
        self.outlet = Some(outlet);
    }

    fn tell_network(
        &mut self,
        told: &NetworkDecision,
        denial: Option<String>,
        branch: Option<u32>,
    ) {
        self.append(&[Event::Network(told)]);
        if told.is_denial() {
            self.tell_denied(told, denial, branch);
        }
    }

    fn tell_denied(&mut self, told: &NetworkDecision, denial: Option<String>, branch: Option<u32>) {
        self.tell_holder(&Event::Network(told), branch);
        if let Some(line) = denial.filter(|_| !self.quiet) {
            self.say_at_once(&line);
        }
    }

    fn append(&mut self, events: &[Event<'_>]) {
        if let Some(journal) = self.journal
            && let Err(error) = journal.append_all(events)
        {
            self.complain(&error.to_string(), error.hint());
        }
    }

    fn tell_holder(&self, event: &Event<'_>, branch: Option<u32>) {
        if let Some(holder) = &self.holder {
            holder.tell(event, branch);
        }
    }

    /// What the fence has refused, as far as it was observed.
    fn tell_refused(&mut self) {
        let observer = self.calls.as_mut().and_then(|calls| calls.attendants.observer.as_mut());
        for refused in observer.map(Observer::refused).unwrap_or_default() {
            self.append(&[Event::FileRefused(&refused)]);
            self.tell_holder(&Event::FileRefused(&refused), None);
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
        self.say_at_once(&said.1);
        self.said_last = Some(said);
    }

    fn say_at_once(&mut self, line: &str) {
        if let Some(line) = self.live.say(line) {
            self.say(line);
        }
    }

    fn tell(&mut self, event: GuardEvent) {
        let (line, event) = telling(&event);
        line.iter().for_each(|line| self.say(line));
        self.append(&[event]);
    }

    fn say(&mut self, line: &str) {
        match self.lines.len() {
            ..MOST_LINES => self.lines.push(("paddock", line.to_owned())),
            MOST_LINES => self.lines.push((
                "paddock",
                "more events are not shown: type `paddock audit show` to see all".to_owned(),
            )),
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

/// What became of a name: the line for people, if they are told at once, and the event.
pub fn telling(event: &GuardEvent) -> (Option<String>, Event<'_>) {
    match event {
        GuardEvent::Taken { path, kept, whole } => (
            Some(format!("removed {path}, created during the run: it is kept in {kept}")),
            Event::NameTaken { path: path.as_bytes(), kept: kept.as_bytes(), whole: *whole },
        ),
        GuardEvent::Masked { path, window } => {
            (None, Event::NameMasked { path: path.as_bytes(), window_us: window.as_micros() })
        }
        GuardEvent::Removed { path, source } => (
            Some(format!("removed {path}, created during the run: it cannot be kept: {source}")),
            Event::NameRemoved { path: path.as_bytes(), errno: *source },
        ),
        GuardEvent::Failed { path, source } => (
            Some(format!("cannot remove {path}, created during the run: {source}")),
            Event::NameLeft { path: path.as_bytes(), errno: *source },
        ),
    }
}

/// Puts covers into the running sandbox. One whose object is gone, or covered already, is no loss.
fn put(
    inside: &Inside,
    copied: Option<Copied<'_>>,
    covers: &[Cover],
) -> Result<Vec<Placed>, Errno> {
    // What the host has there does not show; if the command has made such a name, it is its own.
    let hidden = |cover: &Cover| {
        copied.is_some_and(|copied| copied.veil.hides(copied.workspace, &cover.path))
    };
    let in_copy =
        |cover: &Cover| copied.is_some_and(|copied| cover.path.is_within(copied.workspace));
    let bare: Vec<Cover> = covers.iter().filter(|cover| !hidden(cover)).cloned().collect();
    if let (Some(copied), Some(overlaid)) = (copied, inside.overlaid()) {
        let masks = bare.iter().filter(|cover| cover.kind == CoverKind::Mask);
        copied.hide_from_now_on(overlaid, masks.map(|cover| &cover.path))?;
    }
    let mut results = inside.cover(&bare, in_copy)?.into_iter();
    covers
        .iter()
        .map(|cover| match if hidden(cover) { None } else { results.next() } {
            None => Ok(Placed::Needless),
            Some(Err(Errno::NOENT)) => Ok(Placed::Absent),
            Some(Err(Errno::NOTDIR | Errno::STALE | Errno::LOOP)) => Ok(Placed::Unknown),
            Some(placed) => placed,
        })
        .collect()
}

impl Copied<'_> {
    /// A cover lies on what the copy has found there. What it finds there later is hidden by its
    /// path.
    fn hide_from_now_on<'p>(
        &self,
        overlaid: &Overlaid,
        paths: impl Iterator<Item = &'p AbsPath>,
    ) -> Result<(), Errno> {
        let mut veil = Whiteouts::default();
        // If the host has moved it as a whole, there are only the covers.
        let workspace = match mount::open_host(&self.workspace.as_c_str()) {
            Ok(workspace) => workspace,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        for (dir, name) in paths.filter_map(|path| whiteouts::split(self.workspace, path)) {
            veil.hide(workspace.as_fd(), dir, [name.to_vec()]);
        }
        veil.lay(workspace.as_fd(), overlaid.veil.as_fd())
    }
}

impl Tasks for SupervisorTasks<'_> {
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; CHORES] {
        let [listener, renames, gate, observer, pin] =
            self.calls.as_ref().map_or([None; 5], Calls::descriptors);
        let outlet = self.outlet.as_ref().and_then(RelayProcess::fd);
        let other = self.outlet.as_ref().and_then(RelayProcess::other_fd);
        let holder = self.holder.as_ref().and_then(SessionOwner::fd);
        [
            self.guard.as_ref().map(Guard::fd),
            listener,
            renames,
            gate,
            observer,
            pin,
            outlet,
            other,
            holder,
        ]
    }

    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits.as_ref().and_then(Watch::next_check);
        let guard = self.guard.as_ref().and_then(Guard::timeout).map(|left| Instant::now() + left);
        let calls = self.calls.as_ref().and_then(Calls::deadline);
        let outlet = self.outlet.as_ref().and_then(RelayProcess::deadline);
        let holder = self.holder.as_ref().and_then(SessionOwner::deadline);
        [limits, guard, calls, outlet, holder].into_iter().flatten().min()
    }

    fn turn(&mut self, due: Due) -> ControlFlow<()> {
        let question =
            self.holder.as_mut().filter(|_| due == Due::All).and_then(SessionOwner::hear);
        if self
            .holder
            .as_ref()
            .and_then(SessionOwner::deadline)
            .is_some_and(|deadline| Instant::now() >= deadline)
        {
            return ControlFlow::Break(());
        }
        if let Some(Err(errno)) = self.calls.as_mut().map(|calls| calls.turn(due)) {
            let error = format!("cannot answer system calls of the command: {}", errno_text(errno));
            self.complain(&error, "please report this: it is a bug of Paddock or of the kernel");
            return ControlFlow::Break(());
        }
        self.tell_decided();
        self.tell_refused();
        self.tell_unproxied();
        if due < Due::All {
            return ControlFlow::Continue(());
        }
        self.tell_heard();
        if let (Some(holder), Some(question)) = (&self.holder, question) {
            holder.answer(question);
        }
        if let (Some(mut guard), Some((inside, copied))) = (self.guard.take(), self.inside) {
            let turned = guard
                .turn(&mut |covers| put(inside, copied, covers), &mut |event| self.tell(event));
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
            || self.outlet.as_ref().is_some_and(RelayProcess::is_due)
            || self.limits.as_mut().is_some_and(|watch| watch.check().is_some())
    }

    fn is_tracing(&self) -> bool {
        self.calls
            .as_ref()
            .and_then(|calls| calls.attendants.gate.as_ref())
            .is_some_and(Gate::is_tracing)
    }

    fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    fn is_asking(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.attendants.desk.is_asking())
    }

    fn dismiss(&mut self) {
        if let Some(calls) = &mut self.calls {
            calls.attendants.desk.dismiss_companion();
        }
        // Among the descendants that are killed next it is one.
        if self.outlet.as_ref().is_some_and(RelayProcess::is_at_door) {
            self.hear_last_words();
        }
    }
}
