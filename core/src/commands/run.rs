//! `run`: one story from the plan to the command, and to the end of the command if there is
//! something to supervise or to clean up.
//!
//! Read the plan, open the journal, prepare, start the command in its sandbox, supervise it,
//! finish, write the end event. Each step is a method, in this order.

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::Refusal;
use super::{plan_fd, standard_fds};
use crate::approve::approver_process::ApproverProcess;
use crate::approve::open_questions::OpenQuestions;
use crate::files::guard::Guard;
use crate::files::workspace::session_dir::Session;
use crate::files::workspace::whiteouts::Whiteouts;
use crate::files::writes::written_trees::{self, BeforeStart, WrittenTree};
use crate::files::writes::{self, KnownNames, WriteLock, Writer};
use crate::gate::ExecGate;
use crate::journal::event::exec::ExecReport;
use crate::journal::event::limits::ExceededLimit;
use crate::journal::event::{self, Event};
use crate::journal::{self, Journal, JournalError};
use crate::kernel::random_name::random_name;
use crate::kernel::seccomp_notify::NotifyListener;
use crate::kernel::sys::{self, SignalMask};
use crate::kernel::{ancestry, errno_names, stderr};
use crate::limits::Limits;
use crate::limits::process_usage::ProcessTree;
use crate::network::NetworkError;
use crate::network::supervised_connect::SupervisedConnect;
use crate::network::supervisor::host_questions::HostQuestions;
use crate::network::supervisor::http_helper::HttpHelper;
use crate::network::supervisor::prepare::NetworkSetup;
use crate::network::supervisor::proxy_password::ProxyToken;
use crate::network::supervisor::relay_process::RelayProcess;
use crate::plan::exit_codes::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_REFUSED};
use crate::plan::{self, Namespaces, NoticeLevel, Plan, Tier};
use crate::sandbox::apply_restrictions::{self, Restrictions};
use crate::sandbox::command::Command;
use crate::sandbox::container::ContainerSandbox;
use crate::sandbox::error::SandboxError;
use crate::sandbox::full_tier::{FullTier, RunRecord};
use crate::sandbox::init::{self, AnswerCalls, Launch, OverlayFds};
use crate::sandbox::landlock::{self, FileGrants};
use crate::sandbox::preflight::Preflight;
use crate::sandbox::temp_dir::TempDir;
use crate::sandbox::{closed_links, environment, init_channel, start_scan};
use crate::supervisor::call_handlers::{self, CallHandlers, Calls};
use crate::supervisor::event_loop::{self, SuperviseError, SupervisedCommand};
use crate::supervisor::observer::Observer;
use crate::supervisor::rename_handler::RenameHandler;
use crate::supervisor::session_owner::SessionOwner;
use crate::supervisor::tasks::{CopiedWorkspace, SupervisorTasks, TasksEnd};

/// The arguments of `paddock-core run`.
pub struct RunArguments {
    pub plan_fd: OwnedFd,
    pub argv: Vec<CString>,
    pub quiet: bool,
    pub approver: ApproverProcess,
    pub session_owner: Option<SessionOwner>,
}

/// Returns the exit code of the command, or a refusal: then nothing was run, or a step of Paddock
/// itself failed.
pub fn run(arguments: RunArguments, uid: u32) -> Result<i32, Refusal> {
    let RunArguments { plan_fd, argv, quiet, approver, session_owner } = arguments;
    sys::ignore_file_size_signal();
    let (plan, plan_bytes) = plan_fd::read(&plan_fd, uid)?;
    let session_id = random_name().map_err(Refusal::Random)?;
    // From here on a refusal leaves a trace. If the plan names a journal, nothing runs without it.
    let journal = open_journal(&plan, uid, &session_id)?;
    let started_at = journal.as_ref().map(|_| Instant::now());
    // Only the journal and the note of a session store the hash.
    let stores_hash = plan.journal.is_some() || plan.workspace.is_some();
    let plan_sha256 = if stores_hash { journal::hash(plan_bytes) } else { String::new() };
    let run = Run {
        plan,
        plan_fd: &plan_fd,
        plan_sha256: &plan_sha256,
        session_id: &session_id,
        journal: journal.as_ref(),
        session_owner,
        quiet,
    };
    let result = run.execute(argv, approver);
    if let (Some(journal), Some(started_at)) = (&journal, started_at) {
        write_end(journal, &result, started_at.elapsed());
    }
    Ok(result?.exit_code)
}

fn open_journal(plan: &Plan, uid: u32, session_id: &str) -> Result<Option<Journal>, Refusal> {
    landlock::check_journal_path(plan)?;
    Ok(match &plan.journal {
        Some(requested) => Some(Journal::open(requested, uid, session_id.to_owned())?),
        None => None,
    })
}

fn write_end(journal: &Journal, result: &Result<RunResult, Refusal>, duration: Duration) {
    match result {
        Ok(result) => {
            for event in result.events(duration.as_millis()) {
                if let Err(error) = journal.append(&event) {
                    stderr::print_error(&error.to_string(), error.hint());
                }
            }
        }
        Err(refusal) => {
            let error = refusal.to_string();
            let _ = journal.append(&Event::Refused { error: &error });
        }
    }
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

/// A run, from the open journal until the command has started.
struct Run<'r> {
    plan: Box<Plan>,
    plan_fd: &'r OwnedFd,
    plan_sha256: &'r str,
    session_id: &'r str,
    journal: Option<&'r Journal>,
    session_owner: Option<SessionOwner>,
    quiet: bool,
}

/// What is ready before the command starts, and does not depend on the paths of the grants.
struct Prepared {
    gate: Option<ExecGate>,
    limits: Limits,
    network: NetworkSetup,
    restrictions: Restrictions,
}

/// Err: the sandbox was complete, but the command could not be executed. This is a result of the
/// run, and no failure of Paddock.
type Attempt = Result<Running, Errno>;

impl Run<'_> {
    /// The order of the steps is a security property: see `docs/design/run.md`.
    fn execute(
        mut self,
        argv: Vec<CString>,
        approver: ApproverProcess,
    ) -> Result<RunResult, Refusal> {
        closed_links::close(&mut self.plan)?;
        let Prepared { gate, limits, network, restrictions } = self.prepare()?;
        // Every error in a path is found before the command starts. Namespaces take long to make:
        // with them the paths are checked while init makes them.
        let preflight = match self.full_tier() {
            None => Some(self.check_paths(&restrictions, &limits)?),
            Some(_) => None,
        };
        if !self.needs_supervisor(&restrictions, &limits) {
            drop(preflight);
            return self.become_command(&restrictions, argv);
        }

        let observer = Observer::start(&self.plan, self.plan_fd)?;
        let certificates = network.ready()?;
        // From here on there is something to clean up: no signal may end this process before.
        let mask = sys::block_signals();
        let temp = match &self.plan.temp {
            Some(requested) => {
                Some(TempDir::make(&requested.parent, self.plan.user.uid, self.session_id)?)
            }
            None => None,
        };
        // Without namespaces the supervisor connects the command's sockets.
        let granted = preflight.as_ref().and_then(|preflight| preflight.files.as_ref());
        let sockets = granted.map_or_else(Vec::new, FileGrants::sockets);
        let supervised_connect =
            SupervisedConnect::new(&self.plan, &sockets, network.loopback_proxy_address())
                .map_err(NetworkError::SupervisedConnect)?;
        let questions = OpenQuestions::new(approver);
        let mut handlers =
            CallHandlers::new(&self.plan, gate, questions, observer, supervised_connect);
        if let (Some(observer), Some(temp)) = (&mut handlers.observer, &temp) {
            observer.grant(temp.path().to_bytes());
        }
        let name = argv.first().map_or(Vec::new(), |name| name.as_bytes().to_vec());
        let attempt = self.start(StartInputs {
            argv,
            preflight,
            temp: temp.as_ref(),
            proxy: network.proxy(),
            certificates: certificates.as_ref(),
            restrictions: &restrictions,
            limits: &limits,
            mask: &mask,
            answer_calls: &mut |listener, other| handlers.answer_until_readable(listener, other),
        });

        let asker = self.plan.network.as_ref().map(HostQuestions::of);
        let Run { plan, plan_fd, journal, session_owner, quiet, .. } = self;
        // While the command runs, only what its end needs stays in memory.
        drop(plan);
        let result = match attempt {
            Ok(Ok(running)) => {
                let supervision = Supervision {
                    restrictions,
                    handlers,
                    asker,
                    limits,
                    network,
                    plan_fd,
                    journal,
                    session_owner,
                    quiet,
                };
                supervision.until_the_end(running)
            }
            Ok(Err(errno)) => {
                let decided = handlers.gate.as_mut().map(ExecGate::decided).unwrap_or_default();
                journal.map_or(Ok(()), |journal| record_decided(journal, &decided))?;
                Ok(not_executed(&name, errno, &decided))
            }
            Err(refusal) => Err(refusal),
        };
        if let Some(Err(error)) = temp.map(TempDir::remove) {
            stderr::print_error(&error.to_string(), "remove it by hand when no process uses it");
        }
        result
    }

    fn prepare(&self) -> Result<Prepared, Refusal> {
        let plan = &self.plan;
        // The HTTP helper comes first, because its start takes longest.
        let http = HttpHelper::start(plan, self.plan_fd)?;
        let gate = ExecGate::of(plan)?;
        standard_fds::check_sockets(plan)?;
        let limits = Limits::prepare(&plan.limits, plan.tier == Tier::Full, self.session_id)?;
        plan.files.as_ref().map_or(Ok(()), |files| limits.check_unwritable(files))?;
        let network = NetworkSetup::prepare(plan.network.as_ref(), plan.tier, http)?;
        let restrictions =
            Restrictions::prepare(plan, limits.rlimits(), call_handlers::answered(plan))?;
        Ok(Prepared { gate, limits, network, restrictions })
    }

    /// None: the command runs in the landlock tier, or in a container.
    fn full_tier(&self) -> Option<(&Namespaces, &plan::FilesPlan)> {
        match (&self.plan.namespaces, &self.plan.files, &self.plan.container) {
            (Some(namespaces), Some(requested), None) => Some((namespaces, requested)),
            _ => None,
        }
    }

    /// Opens every granted path, and prints the notices and warnings.
    fn check_paths<'p>(
        &'p self,
        restrictions: &'p Restrictions,
        limits: &Limits,
    ) -> Result<Preflight<'p>, SandboxError> {
        let preflight = Preflight::prepare(&self.plan, restrictions, self.journal)?;
        announce(&self.plan, &preflight, limits, self.quiet);
        Ok(preflight)
    }

    fn needs_supervisor(&self, restrictions: &Restrictions, limits: &Limits) -> bool {
        self.journal.is_some()
            || restrictions.listens()
            || limits.need_supervisor()
            || self.session_owner.is_some()
            || self.plan.temp.is_some()
            || self.plan.namespaces.is_some()
    }

    /// Without a supervisor nothing is left to do after the command: it replaces this process.
    fn become_command(
        &self,
        restrictions: &Restrictions,
        argv: Vec<CString>,
    ) -> Result<RunResult, Refusal> {
        let command = command(&self.plan, argv, None, None)?;
        apply_restrictions::become_command(None, None)?;
        restrictions.bound()?;
        restrictions.enter(None)?;
        let errno = command.exec();
        Ok(not_executed(command.name(), errno, &[]))
    }

    fn start(&self, start: StartInputs<'_, '_>) -> Result<Attempt, Refusal> {
        let StartInputs {
            argv,
            preflight,
            temp,
            proxy,
            certificates,
            restrictions,
            limits,
            mask,
            answer_calls,
        } = start;
        let plan = &self.plan;
        let terminal = ancestry::terminal_name();
        let mut granted = None;
        if let Some(mut preflight) = preflight {
            if let (Some(temp), Some(files), Some(requested)) =
                (temp, &mut preflight.files, &plan.temp)
            {
                files.grant_temp(temp.dir(), plan.rights(&requested.access))?;
            }
            self.record_start(&argv, terminal.as_deref(), &preflight)?;
            granted = preflight.files;
        }
        let command = command(plan, argv, temp, proxy)?;
        let container = match (&plan.namespaces, &plan.container) {
            (Some(namespaces), Some(container)) => {
                Some(ContainerSandbox::prepare(plan, namespaces, container)?)
            }
            _ => None,
        };
        let full_tier = match self.full_tier() {
            Some((namespaces, requested)) => {
                let lock = write_lock(plan, &written_trees::of_plan(plan, None))?;
                let record = RunRecord {
                    session_id: self.session_id,
                    argv: command.argv(),
                    plan_sha256: self.plan_sha256,
                };
                Some(FullTier::prepare(plan, namespaces, requested, Some(record), lock)?)
            }
            None => None,
        };
        let payload = || command.exec().raw_os_error();
        let launch = Launch {
            restrictions,
            payload: &payload,
            mask,
            terminal: terminal.as_deref(),
            limits: Some(limits),
            answer_calls,
        };
        match (container, full_tier) {
            (Some(container), _) => start_container(container, launch),
            (None, Some(full_tier)) => {
                let look = || {
                    let preflight = self.check_paths(restrictions, limits)?;
                    self.record_start(command.argv(), terminal.as_deref(), &preflight)?;
                    Ok(preflight.files)
                };
                let chatty = is_chatty(plan, self.quiet);
                start_full_tier(full_tier, launch, certificates, look, chatty)
            }
            (None, None) => {
                let temporary = temp.map(|temp| temp.path().to_bytes());
                let trees = written_trees::of_plan(plan, temporary);
                let lock = write_lock(plan, &trees)?;
                let writer = judged_writer(plan, granted.as_ref(), trees, lock)?;
                start_landlock_tier(
                    restrictions,
                    &command,
                    limits,
                    mask,
                    writer,
                    launch.answer_calls,
                )
            }
        }
    }

    /// Tells the session owner and the journal what is enforced, before the command starts.
    fn record_start(
        &self,
        argv: &[CString],
        tty: Option<&CStr>,
        preflight: &Preflight<'_>,
    ) -> Result<(), JournalError> {
        let plan = &self.plan;
        if let Some(session_owner) = &self.session_owner {
            session_owner.tell_confinement(preflight.confines_writes(plan));
        }
        let Some(journal) = self.journal else { return Ok(()) };
        journal.append(&Event::Start(event::SessionStart {
            user: plan.user.name.as_bytes(),
            uid: plan.user.uid,
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            ppid_chain: &ancestry::parent_chain(),
            cwd: plan.workdir.as_bytes(),
            tty: tty.map(CStr::to_bytes),
            command: argv,
            profile: plan.profiles.first().map_or(b"", |profile| profile.as_bytes()),
            plan: self.plan_sha256,
            network_by: preflight.network_by(plan),
            requested: preflight.requested(plan),
            actual: preflight.actual(plan),
        }))?;
        // The journal names every weakness that the user has accepted.
        let noticed = plan.notices.iter().filter(|notice| notice.level == NoticeLevel::Unenforced);
        let noticed = noticed.map(|notice| notice.text.as_bytes());
        for text in noticed.chain(preflight.unenforced().map(|text| text.as_bytes())) {
            journal.append(&Event::Partial { text })?;
        }
        Ok(())
    }
}

/// What the start of a supervised command takes.
struct StartInputs<'a, 'p> {
    argv: Vec<CString>,
    /// None: the paths are checked while init makes its namespaces.
    preflight: Option<Preflight<'p>>,
    temp: Option<&'a TempDir>,
    proxy: Option<(SocketAddr, &'a ProxyToken)>,
    /// The certificates that programs inside trust.
    certificates: Option<&'a OwnedFd>,
    restrictions: &'a Restrictions,
    limits: &'a Limits,
    mask: &'a SignalMask,
    answer_calls: AnswerCalls<'a>,
}

/// The lock that the writers of all runs share. None: the plan has no writes to judge.
fn write_lock(plan: &Plan, trees: &[WrittenTree]) -> Result<Option<WriteLock>, SandboxError> {
    match writes::are_judged(plan) {
        true => WriteLock::open(&plan.sessions, &written_trees::shared(trees))
            .map(Some)
            .map_err(SandboxError::WriteLock),
        false => Ok(None),
    }
}

/// The process that does the writes of the command. None: the plan has no writes to judge.
pub fn judged_writer(
    plan: &Plan,
    granted: Option<&FileGrants<'_>>,
    trees: Vec<WrittenTree>,
    lock: Option<WriteLock>,
) -> Result<Option<Writer>, SandboxError> {
    let Some(files) = plan.files.as_ref().filter(|_| writes::are_judged(plan)) else {
        return Ok(None);
    };
    let granted = granted.ok_or(SandboxError::Usage("the plan has no files"))?;
    let known = match start_scan::known_names(files, granted, &trees)? {
        Some(known) => known,
        None => KnownNames::of_plan(files, &trees)?,
    };
    Ok(Some(Writer::new(plan, files, known, BeforeStart::now(trees), lock)))
}

fn start_landlock_tier(
    restrictions: &Restrictions,
    command: &Command,
    limits: &Limits,
    mask: &SignalMask,
    writer: Option<Writer>,
    answer_calls: AnswerCalls<'_>,
) -> Result<Attempt, Refusal> {
    Ok(match event_loop::start(restrictions, command, limits, mask, writer, answer_calls)? {
        event_loop::LandlockStart::Running(pid) => Ok(Running::of(SupervisedCommand::Child(pid))),
        event_loop::LandlockStart::UnderInit(sandbox) => {
            Ok(Running::of(SupervisedCommand::UnderLandlockInit(sandbox)))
        }
        event_loop::LandlockStart::NotExecuted(errno) => Err(errno),
    })
}

fn start_container(
    container: ContainerSandbox<'_>,
    launch: Launch<'_>,
) -> Result<Attempt, Refusal> {
    let started = container.start(launch)?;
    Ok(match started? {
        init::SandboxStart::Running(sandbox) => {
            Ok(Running::of(SupervisedCommand::UnderInit(sandbox)))
        }
        init::SandboxStart::NotExecuted(errno) => Err(Errno::from_raw_os_error(errno)),
    })
}

fn start_full_tier<'f>(
    mut full_tier: FullTier<'_>,
    launch: Launch<'_>,
    certificates: Option<&OwnedFd>,
    look: impl FnOnce() -> Result<Option<FileGrants<'f>>, SandboxError>,
    chatty: bool,
) -> Result<Attempt, Refusal> {
    let announce = |whiteouts: &Whiteouts| announce_copy(whiteouts, chatty);
    let started = full_tier.start(launch, certificates, look, announce);
    let FullTier { session, whiteouts, guard, .. } = full_tier;
    Ok(match started {
        Ok(init::SandboxStart::Running(sandbox)) => Ok(Running {
            guard,
            session,
            whiteouts,
            ..Running::of(SupervisedCommand::UnderInit(sandbox))
        }),
        Ok(init::SandboxStart::NotExecuted(errno)) => {
            session.map(Session::close);
            Err(Errno::from_raw_os_error(errno))
        }
        Err(refusal) => {
            session.map(Session::close);
            return Err(refusal.into());
        }
    })
}

/// The running command, and the parts of its sandbox that the supervisor serves.
struct Running {
    supervised: SupervisedCommand,
    guard: Option<Guard>,
    session: Option<Session>,
    whiteouts: Whiteouts,
}

impl Running {
    fn of(supervised: SupervisedCommand) -> Running {
        Running { supervised, guard: None, session: None, whiteouts: Whiteouts::default() }
    }

    fn take_listener(&mut self) -> Option<NotifyListener> {
        match &mut self.supervised {
            SupervisedCommand::UnderInit(sandbox) => sandbox.listener.take(),
            SupervisedCommand::UnderLandlockInit(sandbox) => sandbox.listener.take(),
            SupervisedCommand::Child(_) => None,
        }
    }

    fn relay<'a>(
        &mut self,
        network: NetworkSetup,
        plan_fd: &'a OwnedFd,
        asker: HostQuestions,
    ) -> Result<Option<RelayProcess<'a>>, SuperviseError> {
        let relay = match &mut self.supervised {
            SupervisedCommand::UnderInit(sandbox) => {
                let sockets = std::mem::take(&mut sandbox.sockets);
                network.relay_in_namespace(
                    sockets,
                    sandbox.namespaces().user(),
                    plan_fd,
                    sandbox.init,
                    asker,
                )
            }
            SupervisedCommand::UnderLandlockInit(sandbox) => {
                network.relay_at_loopback_proxy(plan_fd, sandbox.init_pid, asker)
            }
            SupervisedCommand::Child(child) => {
                network.relay_at_loopback_proxy(plan_fd, *child, asker)
            }
        };
        relay.map_err(SuperviseError::Wait)
    }
}

/// What the supervisor needs while the command runs, and at its end.
struct Supervision<'r> {
    restrictions: Restrictions,
    handlers: CallHandlers,
    asker: Option<HostQuestions>,
    limits: Limits,
    network: NetworkSetup,
    plan_fd: &'r OwnedFd,
    journal: Option<&'r Journal>,
    session_owner: Option<SessionOwner>,
    quiet: bool,
}

impl Supervision<'_> {
    fn until_the_end(self, mut running: Running) -> Result<RunResult, Refusal> {
        let Supervision { restrictions, handlers, asker, limits, network, plan_fd, .. } = self;
        let Supervision { journal, session_owner, quiet, .. } = self;
        if let Some(session) = &running.session {
            session.settle();
        }
        let listener = running.take_listener();
        let mut relay = match asker {
            Some(asker) => running.relay(network, plan_fd, asker)?,
            None => None,
        };
        if let Some(relay) = &mut relay
            && let Some(command) = running.supervised.pid().filter(|_| session_owner.is_some())
        {
            relay.track_branches(command);
        }
        let host_proc;
        let (namespaces, proc, tree, volatile) = match &running.supervised {
            SupervisedCommand::UnderInit(sandbox) => {
                let copied = running.session.as_ref().map(|session| CopiedWorkspace {
                    workspace: session.workspace(),
                    whiteouts: &running.whiteouts,
                });
                let namespaces = Some((sandbox.namespaces(), copied));
                (namespaces, sandbox.proc.as_fd(), ProcessTree::Namespace, &sandbox.volatile[..])
            }
            SupervisedCommand::Child(_) | SupervisedCommand::UnderLandlockInit(_) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                host_proc = rustix::fs::open(c"/proc", flags, Mode::empty())
                    .map_err(SuperviseError::Wait)?;
                let top = match &running.supervised {
                    SupervisedCommand::UnderLandlockInit(sandbox) => sandbox.init_pid,
                    _ => rustix::process::getpid(),
                };
                (None, host_proc.as_fd(), ProcessTree::DescendantsOf(top), &[][..])
            }
        };
        if let (Some(guard), Some(session), Some((namespaces, _))) =
            (&mut running.guard, &running.session, namespaces)
            && let Some(OverlayFds { view, .. }) = namespaces.overlay()
        {
            let duplicate =
                |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(SuperviseError::Wait);
            guard.show(session.workspace(), duplicate(view)?, duplicate(session.upper())?)?;
        }
        let watch =
            if limits.need_supervisor() { Some(limits.watch(proc, tree, volatile)?) } else { None };
        // A child that renames for the command enters the same sandbox. Only a copy needs it.
        let restrictions = running.session.is_some().then_some(restrictions);
        let renames = match (&running.session, &restrictions, namespaces) {
            (Some(session), Some(restrictions), Some((namespaces, _))) => {
                Some(RenameHandler::new(session.workspace(), namespaces, restrictions, &limits))
            }
            _ => None,
        };
        let calls = listener.map(|listener| Calls::new(listener, handlers, renames));
        let mut tasks =
            SupervisorTasks::new(running.guard, namespaces, watch, calls, relay, journal, quiet);
        tasks.session_owner = session_owner;
        sys::release_memory();
        let end = event_loop::wait(&running.supervised, &mut tasks)?;

        let TasksEnd { exceeded, watches, is_guarded } = tasks.finish();
        let by_signal = || end.signal().and_then(|signal| limits.behind_signal(signal));
        let ended_by = exceeded.or_else(by_signal);
        let exceeded = limits.finish(ended_by);
        for limit in exceeded.iter().filter(|limit| limit.ended) {
            stderr::print_line("paddock", &format!("ended: {limit}"));
        }
        let mut abandoned: Vec<OwnedFd> = watches.into_iter().collect();
        match (running.session, running.supervised) {
            (Some(session), _) => close_session(session, quiet),
            // The supervisor waits for the end of mounts only if one of them is a copy: `paddock
            // apply` needs the copy at rest.
            (None, SupervisedCommand::UnderInit(sandbox)) => abandoned.extend(sandbox.mounts()),
            (None, SupervisedCommand::Child(_) | SupervisedCommand::UnderLandlockInit(_)) => {}
        }
        init_channel::abandon(abandoned);
        let exit_code = if is_guarded { end.exit_code() } else { EXIT_REFUSED };
        Ok(RunResult { exit_code, signal: end.signal(), not_executed: None, exceeded })
    }
}

fn close_session(session: Session, quiet: bool) {
    let id = session.id.clone();
    if session.close() && !quiet {
        let text = format!(
            "the changes are in session {id}: type `paddock diff {id}`, `paddock apply {id}` or \
                 `paddock discard {id}`"
        );
        stderr::print_line("paddock", &text);
    }
}

fn command(
    plan: &Plan,
    argv: Vec<CString>,
    temp: Option<&TempDir>,
    proxy: Option<(SocketAddr, &ProxyToken)>,
) -> Result<Command, Refusal> {
    let inherited = sys::inherited_environment();
    let mut environment = match &plan.environment {
        Some(requested) => {
            let placeholder = match &requested.set[..] {
                [] => String::new(), // no variable shows it
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

fn is_chatty(plan: &Plan, quiet: bool) -> bool {
    !quiet
        && plan.notices.iter().any(|notice| notice.level == NoticeLevel::Info)
        && rustix::termios::isatty(rustix::stdio::stderr())
}

/// Prints how far a copy-on-write workspace hides names that appear on the host later.
fn announce_copy(whiteouts: &Whiteouts, chatty: bool) {
    if !chatty {
        return;
    }
    let text = if whiteouts.everywhere {
        "denied names stay hidden, even if the host creates them; a name that matches a pattern \
            with * is hidden after the guard sees it"
    } else {
        "denied names stay hidden in the root of the workspace and where they exist now, even if \
            the host creates them; elsewhere a name is hidden after the guard sees it"
    };
    stderr::print_line("paddock", text);
}

fn announce(plan: &Plan, preflight: &Preflight<'_>, limits: &Limits, quiet: bool) {
    let chatty = is_chatty(plan, quiet);
    for notice in &plan.notices {
        match notice.level {
            NoticeLevel::Warning | NoticeLevel::Unenforced => {
                stderr::print_line("paddock", &format!("warning: {}", notice.text))
            }
            NoticeLevel::Info if chatty => stderr::print_line("paddock", &notice.text.to_string()),
            NoticeLevel::Info => {}
        }
    }
    for held in limits.active().iter().filter(|_| chatty) {
        stderr::print_line("paddock", &format!("limit {held}"));
    }
    for warning in preflight.warnings() {
        stderr::print_line("paddock", &format!("warning: {warning}"));
    }
    if plan.workspace.is_some() && plan.seccomp.is_none() {
        stderr::print_line(
            "paddock",
            "warning: without seccomp, the command cannot rename directories of the workspace \
                (EXDEV)",
        );
    }
}

fn record_decided(journal: &Journal, decided: &[ExecReport]) -> Result<(), Refusal> {
    journal.append_all(&decided.iter().map(Event::Exec).collect::<Vec<_>>()).map_err(Refusal::from)
}

/// `decided`: the decisions of the gate on this command.
fn not_executed(name: &[u8], errno: Errno, decided: &[ExecReport]) -> RunResult {
    if let Some(refusal) =
        decided.iter().rev().find_map(ExecReport::refusal).filter(|_| errno == Errno::ACCESS)
    {
        stderr::print_error(
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
        Errno::LOOP => (
            EXIT_NOT_EXECUTABLE,
            "a link leads to itself, or a `#!` line names a script: type `ls -l FILE; head -1 FILE`",
        ),
        _ => (EXIT_NOT_EXECUTABLE, "the kernel cannot execute this file"),
    };
    stderr::print_error(&format!("cannot run {shown}: {}", errno_names::errno_text(errno)), hint);
    RunResult {
        exit_code,
        signal: None,
        not_executed: Some((name.to_vec(), errno)),
        exceeded: Vec::new(),
    }
}
