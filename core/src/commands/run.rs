//! `run`: one story from the plan to the command and, when something has to outlive the start, to
//! its end.

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::Refusal;
use super::{closed_links, plan_fd, standard_fds};
use crate::approve::approver_process::ApproverProcess;
use crate::approve::open_questions::OpenQuestions;
use crate::files::guard::Guard;
use crate::files::unfinished_scans::Mark;
use crate::files::workspace::session_dir::Session;
use crate::files::workspace::whiteouts::Whiteouts;
use crate::gate::Gate;
use crate::journal::event::exec::ExecOutcome;
use crate::journal::event::limits::ExceededLimit;
use crate::journal::event::{Event, Start};
use crate::journal::{self, Journal, JournalError};
use crate::kernel::random::random_name;
use crate::kernel::sys::{self, SignalMask};
use crate::kernel::{ancestry, errno_names, stderr};
use crate::limits::Limits;
use crate::limits::process_usage::Tree;
use crate::network::NetworkError;
use crate::network::supervised_connect::SupervisedConnect;
use crate::network::supervisor::host_questions::Asker;
use crate::network::supervisor::http_helper::Http;
use crate::network::supervisor::prepare::Outside;
use crate::network::supervisor::proxy_password::Token;
use crate::plan::exit_codes::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED};
use crate::plan::{Level, Plan, Tier};
use crate::sandbox::command::Command;
use crate::sandbox::container::Jail;
use crate::sandbox::enter::{self, Fence};
use crate::sandbox::error::SandboxError;
use crate::sandbox::full_tier::{self, FullTier};
use crate::sandbox::init::{self, Attend, Overlaid};
use crate::sandbox::landlock::{self, Files};
use crate::sandbox::preflight::Preflight;
use crate::sandbox::temp_dir::Temp;
use crate::sandbox::{environment, init_channel};
use crate::supervisor::call_handlers::{self, CallHandlers, Calls};
use crate::supervisor::event_loop::{self, Subject, SuperviseError};
use crate::supervisor::finish_scans;
use crate::supervisor::observer::Observer;
use crate::supervisor::rename_handler::Renames;
use crate::supervisor::session_owner::SessionOwner;
use crate::supervisor::tasks::{self, Copied, Finished, SupervisorTasks};

/// Of Paddock itself: nothing was run, or the guard did not finish its work.
pub fn run(
    plan_fd: &OwnedFd,
    uid: u32,
    argv: Vec<CString>,
    quiet: bool,
    companion: ApproverProcess,
    holder: Option<SessionOwner>,
) -> Result<i32, Refusal> {
    sys::ignore_file_size_signal();
    let (plan, plan_bytes) = plan_fd::read(plan_fd, uid)?;
    let session = random_name().map_err(Refusal::Random)?;

    // The journal comes first: from here on a refusal leaves a trace, and without a journal that
    // was asked for nothing runs.
    landlock::check_journal_way(&plan)?;
    let journal = match &plan.journal {
        Some(requested) => Some(Journal::open(requested, uid, session.clone())?),
        None => None,
    };
    let started_at = journal.as_ref().map(|_| Instant::now());
    // The plan's name, for whatever is written down.
    let written = plan.journal.is_some() || plan.workspace.is_some();
    let sha256 = if written { journal::hash(plan_bytes) } else { String::new() };
    let outcome = fenced(
        plan,
        plan_bytes,
        plan_fd,
        &sha256,
        argv,
        quiet,
        journal.as_ref(),
        &session,
        companion,
        holder,
    );
    let (Some(journal), Some(started_at)) = (&journal, started_at) else {
        return Ok(outcome?.exit_code);
    };
    match &outcome {
        Ok(outcome) => {
            let last_words = outcome.events(started_at.elapsed().as_millis());
            for event in last_words {
                if let Err(error) = journal.append(&event) {
                    stderr::complain(&error.to_string(), error.hint());
                }
            }
        }
        Err(refusal) => {
            let error = refusal.to_string();
            let _ = journal.append(&Event::Refused { error: &error });
        }
    }
    Ok(outcome?.exit_code)
}

/// What the journal says at the end.
struct RunResult {
    exit_code: i32,
    signal: Option<i32>,
    not_executed: Option<(Vec<u8>, Errno)>,
    exceeded: Vec<ExceededLimit>,
}

impl RunResult {
    fn events(&self, duration_ms: u128) -> Vec<Event<'_>> {
        let mut events = Vec::with_capacity(2);
        match &self.not_executed {
            Some((exe, errno)) if *errno != Errno::NOENT => {
                events.push(Event::ExecDenied { exe, errno: *errno })
            }
            _ => {}
        }
        if self.signal == Some(libc::SIGSYS) {
            events.push(Event::SyscallKilled);
        }
        events.extend(self.exceeded.iter().copied().map(Event::LimitExceeded));
        events.push(Event::End { exit_code: self.exit_code, signal: self.signal, duration_ms });
        events
    }
}

#[allow(clippy::too_many_arguments, reason = "what a run is made of")]
fn fenced(
    mut plan: Box<Plan>,
    plan_bytes: &[u8],
    plan_fd: &OwnedFd,
    sha256: &str,
    argv: Vec<CString>,
    quiet: bool,
    journal: Option<&Journal>,
    session: &str,
    companion: ApproverProcess,
    holder: Option<SessionOwner>,
) -> Result<RunResult, Refusal> {
    finish_scans::finish_all(&plan.sessions, plan.user.uid, &mut |line| {
        stderr::say("paddock", line)
    })?;
    closed_links::close(&mut plan)?;
    let http = Http::start(&plan, plan_fd)?;
    let gate = Gate::of(&plan)?;
    standard_fds::check_sockets(&plan)?;
    let limits = Limits::prepare(&plan.limits, plan.tier == Tier::Full, session)?;
    plan.files.as_ref().map_or(Ok(()), |files| limits.check_unwritable(files))?;
    let outside = Outside::prepare(plan.network.as_ref(), plan.tier, http)?;
    let fence = Fence::prepare(&plan, limits.rlimits(), call_handlers::answered(&plan))?;
    let look = || {
        let preflight = Preflight::prepare(&plan, &fence, journal)?;
        announce(&plan, &preflight, &limits, quiet);
        Ok::<_, SandboxError>(preflight)
    };
    let enclosed = match (&plan.namespaces, &plan.files, &plan.container) {
        (Some(namespaces), Some(requested), None) => Some((namespaces, requested)),
        _ => None,
    };
    // Everything that can be wrong with paths is found before anything is started; in namespaces of
    // our own, which take long to make, before anything is started in them.
    let preflight = if enclosed.is_none() { Some(look()?) } else { None };

    let supervised =
        journal.is_some() || fence.listens() || limits.need_supervisor() || holder.is_some();
    if !supervised && plan.temp.is_none() && plan.namespaces.is_none() {
        // Nothing has to be done afterwards, so nobody has to wait: the command takes this process
        // over.
        drop(preflight);
        let command = command(&plan, argv, None, None)?;
        enter::become_command(None, None)?;
        fence.bound()?;
        fence.enter(None)?;
        let errno = command.exec();
        return Ok(not_executed(command.name(), errno, &[]));
    }

    let observer = Observer::start(&plan, plan_fd)?;
    let bundle = outside.ready()?;
    // From here on there is something to clean up: no signal may end us before.
    let mask = sys::hold_signals();
    let temp = match &plan.temp {
        Some(requested) => Some(Temp::make(&requested.parent, plan.user.uid, session)?),
        None => None,
    };
    // Connections are made for a command that no namespace keeps in.
    let granted = preflight.as_ref().and_then(|preflight| preflight.files.as_ref());
    let sockets = granted.map_or_else(Vec::new, Files::sockets);
    let pin = SupervisedConnect::new(&plan, &sockets, outside.door())
        .map_err(NetworkError::SupervisedConnect)?;
    let mut attendants =
        CallHandlers::new(&plan, gate, OpenQuestions::new(companion), observer, pin);
    if let (Some(observer), Some(temp)) = (&mut attendants.observer, &temp) {
        observer.grant(temp.path().to_bytes());
    }
    let name = argv.first().map_or(Vec::new(), |name| name.as_bytes().to_vec());
    let started = (|| {
        let terminal = ancestry::terminal();
        let record = |argv: &[CString], preflight: &Preflight<'_>| {
            if let Some(holder) = &holder {
                holder.tell_confinement(preflight.confines_writes(&plan));
            }
            match journal {
                Some(journal) => {
                    record_start(journal, &plan, sha256, argv, terminal.as_deref(), preflight)
                }
                None => Ok(()),
            }
        };
        if let Some(mut preflight) = preflight {
            if let (Some(temp), Some(files), Some(requested)) =
                (&temp, &mut preflight.files, &plan.temp)
            {
                files.grant_temp(temp.dir(), plan.rights(&requested.access))?;
            }
            record(&argv, &preflight)?;
        }
        let command = command(&plan, argv, temp.as_ref(), outside.proxy())?;
        let attend: Attend<'_> = &mut |listener, other| attendants.attend(listener, other);
        if let (Some(namespaces), Some(container)) = (&plan.namespaces, &plan.container) {
            let jail = Jail::prepare(&plan, namespaces, container)?;
            return start_jailed(
                jail,
                &fence,
                &command,
                terminal.as_deref(),
                &limits,
                &mask,
                attend,
            );
        }
        let Some((namespaces, requested)) = enclosed else {
            return start_as_child(&fence, &command, &limits, &mask, attend);
        };
        let look = || {
            let preflight = look()?;
            record(command.argv(), &preflight)?;
            Ok(preflight.files)
        };
        let enclosure = FullTier::prepare(
            &plan,
            namespaces,
            requested,
            Some(full_tier::Run { id: session, plan: plan_bytes }),
        )?;
        let (chatty, terminal, bundle) =
            (is_chatty(&plan, quiet), terminal.as_deref(), bundle.as_ref());
        start_enclosed(
            enclosure, &fence, look, &command, sha256, terminal, bundle, &limits, &mask, attend,
            chatty,
        )
    })();
    let asker = plan.network.as_ref().map(Asker::of);
    // While the command runs, only what its end needs stays in memory.
    drop(plan);
    let outcome = match started {
        Ok(Ok(running)) => running.until_the_end(
            fence, attendants, asker, limits, outside, journal, plan_fd, quiet, holder,
        ),
        Ok(Err(errno)) => {
            let decided = attendants.gate.as_mut().map(Gate::decided).unwrap_or_default();
            journal.map_or(Ok(()), |journal| record_decided(journal, &decided))?;
            Ok(not_executed(&name, errno, &decided))
        }
        Err(refusal) => Err(refusal),
    };
    if let Some(Err(error)) = temp.map(Temp::remove) {
        stderr::complain(&error.to_string(), "remove it by hand when no process uses it");
    }
    outcome
}

/// The command, and what has to be looked after while it runs.
struct Running {
    subject: Subject,
    guard: Option<Guard>,
    session: Option<Session>,
    veil: Whiteouts,
    mark: Option<Mark>,
}

impl Running {
    fn of(subject: Subject) -> Running {
        Running { subject, guard: None, session: None, veil: Whiteouts::default(), mark: None }
    }

    #[allow(clippy::too_many_arguments, reason = "what a run is made of")]
    fn until_the_end(
        mut self,
        fence: Fence,
        attendants: CallHandlers,
        asker: Option<Asker>,
        limits: Limits,
        outside: Outside,
        journal: Option<&Journal>,
        plan_fd: &OwnedFd,
        quiet: bool,
        holder: Option<SessionOwner>,
    ) -> Result<RunResult, Refusal> {
        if let Some(session) = &self.session {
            session.settle();
        }
        let listener = match &mut self.subject {
            Subject::Sandbox(sandbox) => sandbox.listener.take(),
            Subject::Kept(kept) => kept.listener.take(),
            Subject::Child(_) => None,
        };
        let outlet = match (&mut self.subject, asker) {
            (_, None) => None,
            (Subject::Sandbox(sandbox), Some(asker)) => {
                let sockets = std::mem::take(&mut sandbox.sockets);
                let user = sandbox.inside().user();
                outside
                    .outlet(sockets, user, plan_fd, sandbox.init, asker)
                    .map_err(SuperviseError::Wait)?
            }
            (Subject::Kept(kept), Some(asker)) => {
                outside.outlet_at_door(plan_fd, kept.keeper, asker).map_err(SuperviseError::Wait)?
            }
            (Subject::Child(child), Some(asker)) => {
                outside.outlet_at_door(plan_fd, *child, asker).map_err(SuperviseError::Wait)?
            }
        };
        let outlet = outlet.map(|mut outlet| {
            if let Some(command) = self.subject.pid().filter(|_| holder.is_some()) {
                outlet.tell_apart(command);
            }
            outlet
        });
        let host_proc;
        let (inside, proc, tree, volatile) = match &self.subject {
            Subject::Sandbox(sandbox) => {
                let session = self.session.as_ref();
                let copied = session
                    .map(|session| Copied { workspace: session.workspace(), veil: &self.veil });
                let inside = Some((sandbox.inside(), copied));
                (inside, sandbox.proc.as_fd(), Tree::Namespace, &sandbox.volatile[..])
            }
            Subject::Child(_) | Subject::Kept(_) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                host_proc = rustix::fs::open(c"/proc", flags, Mode::empty())
                    .map_err(SuperviseError::Wait)?;
                let top = match &self.subject {
                    Subject::Kept(kept) => kept.keeper,
                    _ => rustix::process::getpid(),
                };
                (None, host_proc.as_fd(), Tree::DescendantsOf(top), &[][..])
            }
        };
        if let (Some(guard), Some(session), Some((inside, _))) =
            (&mut self.guard, &self.session, inside)
            && let Some(Overlaid { view, .. }) = inside.overlaid()
        {
            let again =
                |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(SuperviseError::Wait);
            guard.show(session.workspace(), again(view)?, again(session.upper())?)?;
        }
        let watch =
            if limits.need_supervisor() { Some(limits.watch(proc, tree, volatile)?) } else { None };
        // Others act for the command only in a copy: they need what it is behind.
        let fence = self.session.is_some().then_some(fence);
        let renames = match (&self.session, &fence, inside) {
            (Some(session), Some(fence), Some((inside, _))) => {
                Some(Renames::new(session.workspace(), inside, fence, &limits))
            }
            _ => None,
        };
        let calls = listener.map(|listener| Calls::new(listener, attendants, renames));
        let mut duties =
            SupervisorTasks::new(self.guard, inside, watch, calls, outlet, journal, quiet);
        duties.holder = holder;
        sys::give_back_memory();
        let end = event_loop::wait(&self.subject, &mut duties)?;
        let Finished { exceeded: ended_by, watches, is_closed, is_scanned } = duties.finish();
        if is_scanned {
            unmark(self.mark);
        }
        let by_signal = || end.signal().and_then(|signal| limits.behind_signal(signal));
        let ended_by = ended_by.or_else(by_signal);
        let exceeded = limits.finish(ended_by);
        for one in exceeded.iter().filter(|exceeded| exceeded.ended) {
            stderr::say("paddock", &format!("ended: {one}"));
        }
        let mut left: Vec<OwnedFd> = watches.into_iter().collect();
        match (self.session, self.subject) {
            (Some(session), _) => {
                let id = session.id.clone();
                if session.close() && !quiet {
                    let text = format!(
                        "the changes are in session {id}: type `paddock diff {id}`, `paddock apply \
                            {id}` or `paddock discard {id}`"
                    );
                    stderr::say("paddock", &text);
                }
            }
            // A copy is not taken apart behind the back of whoever applies it.
            (None, Subject::Sandbox(sandbox)) => left.extend(sandbox.mounts()),
            (None, Subject::Child(_) | Subject::Kept(_)) => {}
        }
        init_channel::abandon(left);
        let exit_code = if is_closed { end.exit_code() } else { EXIT_REFUSED };
        Ok(RunResult { exit_code, signal: end.signal(), not_executed: None, exceeded })
    }
}

/// What kept the command from being executed, although the fence stood, is an outcome and no
/// failure of ours.
type Attempt = Result<Running, Errno>;

fn start_as_child(
    fence: &Fence,
    command: &Command,
    limits: &Limits,
    mask: &SignalMask,
    attend: Attend<'_>,
) -> Result<Attempt, Refusal> {
    Ok(match event_loop::start(fence, command, limits, mask, attend)? {
        event_loop::Started::Running(pid) => Ok(Running::of(Subject::Child(pid))),
        event_loop::Started::Kept(kept) => Ok(Running::of(Subject::Kept(kept))),
        event_loop::Started::NotExecuted(errno) => Err(errno),
    })
}

#[allow(clippy::too_many_arguments, reason = "what a start is made of")]
fn start_enclosed<'f>(
    mut enclosure: FullTier<'_>,
    fence: &Fence,
    look: impl FnOnce() -> Result<Option<Files<'f>>, SandboxError>,
    command: &Command,
    sha256: &str,
    terminal: Option<&CStr>,
    bundle: Option<&OwnedFd>,
    limits: &Limits,
    mask: &SignalMask,
    attend: Attend<'_>,
    chatty: bool,
) -> Result<Attempt, Refusal> {
    let payload = || command.exec().raw_os_error();
    let admit = |init| limits.admit(init).map_err(|error| error.errno());
    let pid_max = limits.pid_max();
    let announce = |veil: &Whiteouts| announce_copy(veil, chatty);
    let started = enclosure.start(
        fence,
        look,
        &payload,
        mask,
        terminal,
        bundle,
        pid_max,
        admit,
        attend,
        command.argv(),
        sha256,
        announce,
    );
    let FullTier { session, veil, guard, mark, .. } = enclosure;
    Ok(match started {
        Ok(init::Started::Running(sandbox)) => {
            Ok(Running { guard, session, veil, mark, ..Running::of(Subject::Sandbox(sandbox)) })
        }
        Ok(init::Started::NotExecuted(errno)) => {
            session.map(Session::close);
            unmark(mark);
            Err(Errno::from_raw_os_error(errno))
        }
        Err(refusal) => {
            session.map(Session::close);
            // It may have run for a moment.
            let mut say = |event| {
                tasks::telling(&event).0.iter().for_each(|line| stderr::say("paddock", line))
            };
            if guard.is_none_or(|mut guard| guard.finish(&mut say).is_ok()) {
                unmark(mark);
            }
            return Err(refusal.into());
        }
    })
}

/// Nothing that the command did is left to be looked through.
fn unmark(mark: Option<Mark>) {
    if let Some(Err(error)) = mark.map(Mark::remove) {
        stderr::complain(&error.to_string(), error.hint());
    }
}

fn start_jailed(
    jail: Jail<'_>,
    fence: &Fence,
    command: &Command,
    terminal: Option<&CStr>,
    limits: &Limits,
    mask: &SignalMask,
    attend: Attend<'_>,
) -> Result<Attempt, Refusal> {
    let payload = || command.exec().raw_os_error();
    let started = jail.start(fence, &payload, mask, terminal, limits, attend)?;
    Ok(match started? {
        init::Started::Running(sandbox) => Ok(Running::of(Subject::Sandbox(sandbox))),
        init::Started::NotExecuted(errno) => Err(Errno::from_raw_os_error(errno)),
    })
}

fn command(
    plan: &Plan,
    argv: Vec<CString>,
    temp: Option<&Temp>,
    proxy: Option<(SocketAddr, &Token)>,
) -> Result<Command, Refusal> {
    let inherited = sys::inherited_environment();
    let mut environment = match &plan.environment {
        Some(requested) => {
            let placeholder = match &requested.set[..] {
                [] => String::new(), // nobody would see it
                _ => format!(
                    "paddock-placeholder-{}{}",
                    random_name().map_err(Refusal::Random)?,
                    random_name().map_err(Refusal::Random)?
                ),
            };
            environment::build(
                requested,
                inherited,
                temp.map(|temp| temp.path().to_bytes()),
                placeholder.as_bytes(),
            )
        }
        None => inherited,
    };
    if let Some(proxy) = proxy {
        let set = plan.environment.as_ref().map_or(&[][..], |requested| &requested.set[..]);
        environment = environment::with_proxy(environment, set, proxy);
    }
    Ok(Command::new(argv, environment))
}

fn record_start(
    journal: &Journal,
    plan: &Plan,
    sha256: &str,
    argv: &[CString],
    tty: Option<&CStr>,
    preflight: &Preflight<'_>,
) -> Result<(), JournalError> {
    journal.append(&Event::Start(Start {
        user: plan.user.name.as_bytes(),
        uid: plan.user.uid,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        ppid_chain: &ancestry::parents(),
        cwd: plan.workdir.as_bytes(),
        tty: tty.map(CStr::to_bytes),
        command: argv,
        profile: plan.profiles.first().map_or(b"", |profile| profile.as_bytes()),
        plan: sha256,
        requested: preflight.requested(plan),
        actual: preflight.actual(plan),
    }))?;
    // What the user accepted as weaker is never silent.
    let noticed = plan.notices.iter().filter(|notice| notice.level == Level::Unenforced);
    let noticed = noticed.map(|notice| notice.text.as_bytes());
    for text in noticed.chain(preflight.unenforced().map(|text| text.as_bytes())) {
        journal.append(&Event::Partial { text })?;
    }
    Ok(())
}

fn is_chatty(plan: &Plan, quiet: bool) -> bool {
    !quiet
        && plan.notices.iter().any(|notice| notice.level == Level::Info)
        && rustix::termios::isatty(rustix::stdio::stderr())
}

/// What a copy holds that a live workspace does not, and what it does not.
fn announce_copy(veil: &Whiteouts, chatty: bool) {
    if !chatty {
        return;
    }
    let text = if veil.everywhere {
        "denied names stay hidden, even if the host creates them; a name that matches a pattern \
            with * is hidden after the guard sees it"
    } else {
        "denied names stay hidden in the root of the workspace and where they exist now, even if \
            the host creates them; elsewhere a name is hidden after the guard sees it"
    };
    stderr::say("paddock", text);
}

fn announce(plan: &Plan, preflight: &Preflight<'_>, limits: &Limits, quiet: bool) {
    let chatty = is_chatty(plan, quiet);
    for notice in &plan.notices {
        match notice.level {
            Level::Warning | Level::Unenforced => {
                stderr::say("paddock", &format!("warning: {}", notice.text))
            }
            Level::Info if chatty => stderr::say("paddock", &notice.text.to_string()),
            Level::Info => {}
        }
    }
    for held in limits.held().iter().filter(|_| chatty) {
        stderr::say("paddock", &format!("limit {held}"));
    }
    for warning in preflight.warnings() {
        stderr::say("paddock", &format!("warning: {warning}"));
    }
    if plan.workspace.is_some() && plan.seccomp.is_none() {
        stderr::say(
            "paddock",
            "warning: without seccomp, the command cannot rename directories of the workspace \
                (EXDEV)",
        );
    }
}

fn record_decided(journal: &Journal, decided: &[ExecOutcome]) -> Result<(), Refusal> {
    journal.append_all(&decided.iter().map(Event::Exec).collect::<Vec<_>>()).map_err(Refusal::from)
}

/// `decided`: what the gate had to say.
fn not_executed(name: &[u8], errno: Errno, decided: &[ExecOutcome]) -> RunResult {
    if let Some(refusal) =
        decided.iter().rev().find_map(ExecOutcome::refusal).filter(|_| errno == Errno::ACCESS)
    {
        stderr::complain(
            &refusal,
            "type `paddock why --exec COMMAND` to see the rule and its line",
        );
        return RunResult {
            exit_code: EXIT_NOT_EXECUTABLE,
            signal: None,
            not_executed: None,
            exceeded: Vec::new(),
        };
    }
    let searched = !name.contains(&b'/');
    let shown = String::from_utf8_lossy(name);
    let (exit_code, hint) = match errno {
        Errno::NOENT if searched => (
            EXIT_NOT_FOUND,
            "no directory in the command's PATH has this program; check the name and the PATH",
        ),
        Errno::NOENT => (
            EXIT_NOT_FOUND,
            "check the path; a script also needs the interpreter of its first line",
        ),
        Errno::ACCESS => (
            EXIT_NOT_EXECUTABLE,
            "the file is not executable, or the policy grants no execution: type `paddock why --op \
                exec --path FILE`",
        ),
        Errno::TOOBIG => {
            (EXIT_NOT_EXECUTABLE, "arguments and environment are longer than the kernel accepts")
        }
        _ => (EXIT_NOT_EXECUTABLE, "the kernel cannot execute this file"),
    };
    stderr::complain(&format!("cannot run {shown}: {}", errno_names::errno_text(errno)), hint);
    RunResult {
        exit_code,
        signal: None,
        not_executed: Some((name.to_vec(), errno)),
        exceeded: Vec::new(),
    }
}
