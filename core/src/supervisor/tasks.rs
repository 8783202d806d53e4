//! What the supervisor serves besides waiting: it guards names, watches limits, answers calls,
//! reads the relay's decisions, and reports events.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;

use super::call_handlers::Calls;
use super::event_loop::{Due, TASK_FDS, Tasks};
use super::observer::Observer;
use super::session_owner::SessionOwner;
use crate::files::cover::{Cover, CoverKind, CoverResult};
use crate::files::git;
use crate::files::guard::{CoveredName, Guard, GuardError};
use crate::files::workspace::whiteouts::{self, Whiteouts};
use crate::files::writes::{ChangedName, MAX_CHANGED_NAMES, RefusalCause, RefusedWrite};
use crate::gate::ExecGate;
use crate::journal::Journal;
use crate::journal::event::Event;
use crate::journal::event::files::RefusedFileAccess;
use crate::journal::event::limits::ExceededLimit;
use crate::journal::event::network::NetworkDecision;
use crate::kernel::errno_names::errno_text;
use crate::kernel::mount;
use crate::kernel::stderr::{self, NonBlockingStderr};
use crate::limits::watchdog::Watchdog;
use crate::network::supervisor::relay_process::{RelayEvent, RelayProcess};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::sandbox::init::{OverlayFds, SandboxNamespaces};

/// At most this many lines about events are printed.
const MAX_LINES: usize = 20;
/// At most this many changed names that are executed outside later are printed.
const MAX_CHANGED_SHOWN: usize = 5;

#[derive(Clone, Copy)]
pub struct CopiedWorkspace<'a> {
    pub workspace: &'a AbsPath,
    pub whiteouts: &'a Whiteouts,
}

/// The result of all tasks at the end of a run.
pub struct TasksEnd {
    pub exceeded: Option<ExceededLimit>,
    /// See [`Guard::disband`].
    pub watches: Option<OwnedFd>,
    /// The guard worked until the end. Otherwise the run fails, whatever the command's exit code is.
    pub is_guarded: bool,
}

pub struct SupervisorTasks<'a> {
    pub guard: Option<Guard>,
    /// The sandbox's namespaces and, if the workspace is a copy, that copy with its whiteouts.
    pub namespaces: Option<(&'a SandboxNamespaces, Option<CopiedWorkspace<'a>>)>,
    pub limits: Option<Watchdog<'a>>,
    pub calls: Option<Calls<'a>>,
    /// None: the network is not filtered.
    pub relay: Option<RelayProcess<'a>>,
    pub journal: Option<&'a Journal>,
    pub session_owner: Option<SessionOwner>,
    pub exceeded: Option<ExceededLimit>,
    failure: Option<GuardError>,
    /// Lines that are printed at the end. A terminal or pipe that takes no more would block the
    /// supervisor, and the command can cause that.
    lines: Vec<(&'static str, String)>,
    live: NonBlockingStderr,
    last_denial: Option<(u32, String)>,
    quiet: bool,
}

impl<'a> SupervisorTasks<'a> {
    pub fn new(
        guard: Option<Guard>,
        namespaces: Option<(&'a SandboxNamespaces, Option<CopiedWorkspace<'a>>)>,
        limits: Option<Watchdog<'a>>,
        calls: Option<Calls<'a>>,
        relay: Option<RelayProcess<'a>>,
        journal: Option<&'a Journal>,
        quiet: bool,
    ) -> SupervisorTasks<'a> {
        SupervisorTasks {
            guard,
            namespaces,
            limits,
            calls,
            relay,
            journal,
            session_owner: None,
            exceeded: None,
            failure: None,
            lines: Vec::new(),
            live: NonBlockingStderr::new(),
            last_denial: None,
            quiet,
        }
    }

    /// Called when every process has ended.
    pub fn finish(mut self) -> TasksEnd {
        self.finish_relay();
        self.report_execs();
        let observer = self.calls.as_mut().and_then(|calls| calls.handlers.observer.as_mut());
        let missed = observer.and_then(Observer::finish);
        self.report_refused_files();
        if let Some(missed) = missed {
            self.complain(
                &missed,
                "for a single path, type `paddock why --path PATH --op read|write|exec`",
            );
        }
        let mut changed = Vec::new();
        if let Some(calls) = &mut self.calls {
            calls.finish();
            changed = std::mem::take(&mut calls.handlers.changed_names);
        }
        self.report_refused_writes();
        if let Some(renames) = self.calls.take().and_then(|calls| calls.renames) {
            renames.finish();
        }
        self.say_all();
        let is_guarded = self.failure.is_none();
        if let Some(error) = self.failure.take() {
            let text = error.to_string();
            stderr::print_error(&text, error.hint());
            self.append(&[Event::Partial { text: text.as_bytes() }]);
            self.say_all();
        }
        self.report_changed(changed);
        let watches = self.guard.take().map(Guard::disband);
        TasksEnd { exceeded: self.exceeded, watches, is_guarded }
    }

    /// Ends the relay, and reports its last decisions.
    fn finish_relay(&mut self) {
        self.report_unproxied();
        if let Some(mut relay) = self.relay.take() {
            relay.finish(|decision, denial| self.report_connection(decision, denial, None));
        }
    }

    /// Reports changed files that are executed outside of the sandbox, because a person should
    /// check them first.
    fn report_changed(&self, changed: Vec<ChangedName>) {
        let is_full = changed.iter().any(|name| name.path.is_empty());
        let paths = in_listed_order(changed);
        if let Some(journal) = self.journal {
            let events: Vec<_> = paths.iter().map(|path| Event::NameFlagged { path }).collect();
            // In chunks: other runs write to the same journal.
            let failed =
                events.chunks(500).filter_map(|some| journal.append_all(some).err()).last();
            if let Some(error) = failed {
                stderr::print_error(&error.to_string(), error.hint());
            }
        }
        if self.quiet {
            return;
        }
        if is_full {
            let text = format!(
                "more than {MAX_CHANGED_NAMES} files that programs outside the sandbox run were \
                    changed; the others are not listed"
            );
            stderr::print_line("paddock", &text);
        }
        if paths.is_empty() {
            return;
        }
        let shown: Vec<String> = paths
            .iter()
            .take(MAX_CHANGED_SHOWN)
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        let more = match paths.len().saturating_sub(MAX_CHANGED_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more: type `paddock audit query --kind name` to list all"),
        };
        let text = format!(
            "changed during the run, and programs outside the sandbox run them: {}{more}",
            shown.join(", ")
        );
        stderr::print_line("paddock", &text);
    }

    /// Writes the gate's decisions to the journal. Prints denials at once, unless stderr blocks.
    fn report_execs(&mut self) {
        let Some(gate) = self.calls.as_mut().and_then(|calls| calls.handlers.gate.as_mut()) else {
            return;
        };
        for decided in gate.decided() {
            self.append(&[Event::Exec(&decided)]);
            let Some(line) = decided.refusal() else { continue };
            self.tell_session_owner(&Event::Exec(&decided), decided.branch);
            if !self.quiet {
                self.say_once(decided.process.pid, line);
            }
        }
    }

    /// Tells the relay which processes were connected to the proxy. Reports connections that
    /// programs tried without it.
    fn report_unproxied(&mut self) {
        let supervised_connect =
            self.calls.as_mut().and_then(|calls| calls.handlers.supervised_connect.as_mut());
        let (refused, arrivals) = supervised_connect
            .map(|supervised_connect| {
                (supervised_connect.refused(), supervised_connect.proxy_clients())
            })
            .unwrap_or_default();
        if let Some(relay) = &mut self.relay {
            relay.expect(arrivals);
        }
        for decision in refused {
            let denial = self.relay.as_mut().and_then(|relay| relay.denial(&decision));
            self.report_connection(&decision, denial, None);
        }
    }

    /// Reports the relay's decisions, or that the relay has ended.
    fn report_relay(&mut self) {
        let Some(mut relay) = self.relay.take() else { return };
        for message in relay.turn(self.calls.as_mut().map(|calls| &mut calls.handlers.questions)) {
            match message {
                RelayEvent::Decisions(decision) => {
                    self.append(&decision.iter().map(Event::Network).collect::<Vec<_>>());
                    for decision in decision.iter().filter(|decision| decision.is_denial()) {
                        let (denial, branch) = (relay.denial(decision), relay.branch_of(decision));
                        self.report_denial(decision, denial, branch);
                    }
                }
                RelayEvent::HttpHelperLost(reason) => {
                    let reason = format!("the HTTP helper: {reason}");
                    self.append(&[Event::NetworkLost { reason: &reason }]);
                    self.say_at_once(&format!(
                        "routes and inspected hosts cannot be reached any more: {reason}"
                    ));
                }
                RelayEvent::RelayLost(reason) => {
                    self.append(&[Event::NetworkLost { reason: &reason }]);
                    self.say_at_once(&format!(
                        "the relay has ended, so no host can be reached any more: {reason}"
                    ));
                }
            }
        }
        self.relay = Some(relay);
    }

    fn report_connection(
        &mut self,
        decision: &NetworkDecision,
        denial: Option<String>,
        branch: Option<u32>,
    ) {
        self.append(&[Event::Network(decision)]);
        if decision.is_denial() {
            self.report_denial(decision, denial, branch);
        }
    }

    fn report_denial(
        &mut self,
        decision: &NetworkDecision,
        denial: Option<String>,
        branch: Option<u32>,
    ) {
        self.tell_session_owner(&Event::Network(decision), branch);
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

    fn tell_session_owner(&self, event: &Event<'_>, branch: Option<u32>) {
        if let Some(session_owner) = &self.session_owner {
            session_owner.tell(event, branch);
        }
    }

    /// Reports writes to protected names.
    fn report_refused_writes(&mut self) {
        let Some(calls) = &mut self.calls else { return };
        for refused in std::mem::take(&mut calls.handlers.refused_writes) {
            let Some(access) = refused_access(&refused) else { continue };
            self.append(&[Event::FileRefused(&access)]);
            self.tell_session_owner(&Event::FileRefused(&access), None);
            if !self.quiet {
                self.say_once(refused.thread, access.line());
            }
        }
    }

    /// Reports the refused file accesses that the observer has seen.
    fn report_refused_files(&mut self) {
        let observer = self.calls.as_mut().and_then(|calls| calls.handlers.observer.as_mut());
        for refused in observer.map(Observer::refused).unwrap_or_default() {
            self.append(&[Event::FileRefused(&refused)]);
            self.tell_session_owner(&Event::FileRefused(&refused), None);
            if !self.quiet {
                self.say(&refused.line());
            }
        }
    }

    /// Prints a line once: a program that is searched in several directories is denied in each.
    fn say_once(&mut self, pid: u32, line: String) {
        let denial_line = (pid, line);
        if self.last_denial.as_ref() == Some(&denial_line) {
            return;
        }
        self.say_at_once(&denial_line.1);
        self.last_denial = Some(denial_line);
    }

    fn say_at_once(&mut self, line: &str) {
        if let Some(line) = self.live.print_line(line) {
            self.say(line);
        }
    }

    fn report_covered(&mut self, covered: CoveredName) {
        let CoveredName { path, window } = covered;
        let window_us = window.as_micros();
        self.append(&[Event::NameMasked { path: path.as_bytes(), window_us }]);
    }

    fn say(&mut self, line: &str) {
        match self.lines.len() {
            ..MAX_LINES => self.lines.push(("paddock", line.to_owned())),
            MAX_LINES => self.lines.push((
                "paddock",
                "more events are not shown: type `paddock audit show` to see all".to_owned(),
            )),
            _ => {}
        }
    }

    fn say_all(&mut self) {
        for (prefix, line) in self.lines.drain(..) {
            stderr::print_line(prefix, &line);
        }
    }

    /// Notes an error of Paddock itself, once.
    fn complain(&mut self, what: &str, hint: &str) {
        if !self.lines.iter().any(|(_, line)| line == what) && self.lines.len() < 2 * MAX_LINES {
            self.lines.extend([("paddock", what.to_owned()), ("hint", hint.to_owned())]);
        }
    }
}

fn refused_access(refused: &RefusedWrite) -> Option<RefusedFileAccess> {
    let text = |bytes: &[u8]| Text::from_bytes(bytes.to_vec()).ok();
    let setting = String::from_utf8_lossy(&refused.setting);
    let kept = format!("{setting} stays as it was before the run: run the command outside");
    let (path, reason): (&[u8], &[u8]) = match &refused.path[..] {
        b"" => (
            b"an unknown name",
            b"the file of the program cannot be read, so the kernel hides its memory",
        ),
        path if refused.cause == RefusalCause::Denied => (path, b"a deny rule closes this name"),
        path if refused.cause == RefusalCause::TwoGrants => (
            path,
            b"the old name is in another grant, and the kernel renames only inside one (EXDEV): copy \
              and remove, or grant a directory above both",
        ),
        path if !setting.is_empty() => (path, kept.as_bytes()),
        path if would_make_repository(path) => {
            (path, b"git would take the directory for a repository and obey its configuration")
        }
        path => (path, b"the name is protected: a program outside the sandbox obeys it"),
    };
    Some(RefusedFileAccess {
        op: text(b"write")?,
        path: text(path)?,
        program: text(&refused.program)?,
        reason: text(reason)?,
        allow: None,
    })
}

/// Outside of git directories these names are refused for this reason alone.
fn would_make_repository(path: &[u8]) -> bool {
    let mut names = path.rsplit(|byte| *byte == b'/');
    let name = names.next().unwrap_or_default();
    let is_in_git = names.any(|above| above == b".git");
    !is_in_git && git::GIT_DIR_NAMES.iter().any(|part| part.to_bytes() == name)
}

/// The paths that still exist: names that existed before the run come first, then names nearer the
/// root. So decoys push none of them out of the printed ones.
fn in_listed_order(mut changed: Vec<ChangedName>) -> Vec<Vec<u8>> {
    changed.retain(|name| !name.path.is_empty() && exists(&name.path));
    let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
    changed.sort_by_cached_key(|name| (!name.existed, depth(&name.path), name.path.clone()));
    changed.into_iter().map(|name| name.path).collect()
}

/// A path whose state is not known counts as one that exists.
fn exists(path: &[u8]) -> bool {
    !matches!(rustix::fs::lstat(path), Err(Errno::NOENT | Errno::NOTDIR))
}

/// Places covers in the running sandbox. It is no error if the object is gone or covered already.
fn place_covers(
    namespaces: &SandboxNamespaces,
    copied: Option<CopiedWorkspace<'_>>,
    covers: &[Cover],
) -> Result<Vec<CoverResult>, Errno> {
    // The copy does not show the host's object at a hidden name. An object there is the command's
    // own.
    let hidden = |cover: &Cover| {
        copied.is_some_and(|copied| copied.whiteouts.hides(copied.workspace, &cover.path))
    };
    let in_copy =
        |cover: &Cover| copied.is_some_and(|copied| cover.path.is_within(copied.workspace));
    let bare: Vec<Cover> = covers.iter().filter(|cover| !hidden(cover)).cloned().collect();
    if let (Some(copied), Some(overlay)) = (copied, namespaces.overlay()) {
        let masks = bare.iter().filter(|cover| cover.kind == CoverKind::Mask);
        copied.hide_later_names(overlay, masks.map(|cover| &cover.path))?;
    }
    let mut results = namespaces.cover(&bare, in_copy)?.into_iter();
    covers
        .iter()
        .map(|cover| match if hidden(cover) { None } else { results.next() } {
            None => Ok(CoverResult::Needless),
            Some(Err(Errno::NOENT)) => Ok(CoverResult::Absent),
            Some(Err(Errno::NOTDIR | Errno::STALE | Errno::LOOP)) => Ok(CoverResult::Unknown),
            Some(placed) => placed,
        })
        .collect()
}

impl CopiedWorkspace<'_> {
    /// A cover lies on the object that the copy has found. A whiteout hides what the copy finds at
    /// this path later.
    fn hide_later_names<'p>(
        &self,
        overlay: &OverlayFds,
        paths: impl Iterator<Item = &'p AbsPath>,
    ) -> Result<(), Errno> {
        let mut whiteouts = Whiteouts::default();
        // If the host has moved the whole workspace, the covers are enough.
        let workspace = match mount::open_host(&self.workspace.as_c_str()) {
            Ok(workspace) => workspace,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error),
        };
        for (dir, name) in paths.filter_map(|path| whiteouts::split(self.workspace, path)) {
            whiteouts.hide(workspace.as_fd(), dir, [name.to_vec()]);
        }
        whiteouts.lay(workspace.as_fd(), overlay.whiteouts.as_fd())
    }
}

impl Tasks for SupervisorTasks<'_> {
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; TASK_FDS] {
        let [listener, renames, gate, observer, supervised_connect] =
            self.calls.as_ref().map_or([None; 5], Calls::descriptors);
        let relay = self.relay.as_ref().and_then(RelayProcess::fd);
        let other = self.relay.as_ref().and_then(RelayProcess::http_helper_fd);
        let session_owner = self.session_owner.as_ref().and_then(SessionOwner::fd);
        [
            self.guard.as_ref().map(Guard::fd),
            listener,
            renames,
            gate,
            observer,
            supervised_connect,
            relay,
            other,
            session_owner,
        ]
    }

    fn deadline(&self) -> Option<Instant> {
        let limits = self.limits.as_ref().and_then(Watchdog::next_check);
        let guard = self.guard.as_ref().and_then(Guard::timeout).map(|left| Instant::now() + left);
        let calls = self.calls.as_ref().and_then(Calls::deadline);
        let relay = self.relay.as_ref().and_then(RelayProcess::deadline);
        let session_owner = self.session_owner.as_ref().and_then(SessionOwner::deadline);
        [limits, guard, calls, relay, session_owner].into_iter().flatten().min()
    }

    fn turn(&mut self, due: Due) -> ControlFlow<()> {
        let question =
            self.session_owner.as_mut().filter(|_| due == Due::All).and_then(SessionOwner::receive);
        if self
            .session_owner
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
        self.report_execs();
        self.report_refused_writes();
        self.report_refused_files();
        self.report_unproxied();
        if due < Due::All {
            return ControlFlow::Continue(());
        }
        self.report_relay();
        if let (Some(session_owner), Some(question)) = (&self.session_owner, question) {
            session_owner.answer(question);
        }
        if let (Some(mut guard), Some((namespaces, copied))) = (self.guard.take(), self.namespaces)
        {
            let turned = guard
                .turn(&mut |covers| place_covers(namespaces, copied, covers), &mut |covered| {
                    self.report_covered(covered)
                });
            self.guard = Some(guard);
            // Without a working guard the run ends.
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
            || self.relay.as_ref().is_some_and(RelayProcess::is_due)
            || self.limits.as_mut().is_some_and(|watch| watch.check().is_some())
    }

    fn is_tracing(&self) -> bool {
        self.calls
            .as_ref()
            .and_then(|calls| calls.handlers.gate.as_ref())
            .is_some_and(ExecGate::is_tracing)
    }

    fn has_session_owner(&self) -> bool {
        self.session_owner.is_some()
    }

    fn is_asking(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.handlers.questions.is_asking())
    }

    fn dismiss_helpers(&mut self) {
        if let Some(calls) = &mut self.calls {
            calls.handlers.questions.dismiss_approver();
        }
        // In the landlock tier the relay is one of the descendants that are killed next.
        if self.relay.as_ref().is_some_and(RelayProcess::uses_loopback_proxy) {
            self.finish_relay();
        }
    }
}
