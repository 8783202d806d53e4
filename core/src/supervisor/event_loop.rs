//! The event loop of the supervisor. The supervisor stays in its process group and on its terminal,
//! and takes no part in either. The end of the command is the end of everything that it started.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::files::writes::Writer;
use crate::kernel::seccomp_notify::NotifyListener;
use crate::kernel::sys::{self, ReceivedSignal, SignalMask};
use crate::kernel::{ancestry, socket_pair};
use crate::limits::descendants::{REAP_PAUSE, end_descendants};
use crate::limits::{Limits, LimitsError};
use crate::sandbox::apply_restrictions::{self, EnterError, EnterStep, Restrictions};
use crate::sandbox::command::Command;
use crate::sandbox::init::{self, AnswerCalls, HandedFds, Sandbox};
use crate::sandbox::init_channel::{self, InitMessage};
use crate::sandbox::{landlock_init, write_server};

/// The interval between two checks whether a stopped command was continued: no event reports that.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("the supervisor cannot adopt orphaned processes: {0}")]
    Subreaper(#[source] Errno),
    #[error("cannot start a process: {0}")]
    Spawn(#[source] Errno),
    #[error(transparent)]
    Enter(#[from] EnterError),
    #[error("cannot wait for the command: {0}")]
    Wait(#[source] Errno),
}

/// The result of a start in the landlock tier.
pub enum LandlockStart {
    Running(Pid),
    UnderInit(LandlockSandbox),
    /// The sandbox was complete, but the command could not be executed.
    NotExecuted(Errno),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    Exited(i32),
    Killed(i32),
}

impl CommandEnd {
    pub fn exit_code(self) -> i32 {
        match self {
            CommandEnd::Exited(code) => code,
            CommandEnd::Killed(signal) => 128 + signal,
        }
    }

    pub fn signal(self) -> Option<i32> {
        match self {
            CommandEnd::Exited(_) => None,
            CommandEnd::Killed(signal) => Some(signal),
        }
    }
}

/// Starts the command in its sandbox. Signals are already held; `mask` is what the command gets
/// back.
pub fn start(
    restrictions: &Restrictions,
    command: &Command,
    limits: &Limits,
    mask: &SignalMask,
    writer: Option<Writer>,
    answer_calls: AnswerCalls<'_>,
) -> Result<LandlockStart, SuperviseError> {
    let supervisor = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(supervisor)).map_err(SuperviseError::Subreaper)?;
    let writes = writer.is_some();
    let become_command = |parent: Pid, channel: Option<BorrowedFd<'_>>| {
        // An init that writes for the command has the rules already, and with it the command.
        let admitted = if writes { limits.join_groups() } else { limits.admit_self() };
        admitted.map_err(limits_error)?;
        apply_restrictions::become_command(Some(parent), Some(mask))?;
        restrictions.bound()?;
        restrictions.enter(channel)
    };
    if restrictions.listens() {
        return start_under_init(
            &become_command,
            command,
            restrictions,
            limits,
            writer,
            answer_calls,
        );
    }
    let mut enter_failure = None;
    let mut exec_failure = None;
    let child = sys::spawn_sharing_memory(|| {
        match become_command(supervisor, None) {
            Ok(()) => exec_failure = Some(command.exec()),
            Err(error) => enter_failure = Some(error),
        }
        125
    })
    .map_err(SuperviseError::Spawn)?;
    if enter_failure.is_none() && exec_failure.is_none() {
        return Ok(LandlockStart::Running(child));
    }
    rustix::process::waitpid(Some(child), WaitOptions::empty()).map_err(SuperviseError::Wait)?;
    match (enter_failure, exec_failure) {
        (Some(error), _) => Err(error.into()),
        (None, errno) => Ok(LandlockStart::NotExecuted(errno.unwrap_or(Errno::NOENT))),
    }
}

fn limits_error(error: LimitsError) -> EnterError {
    EnterError { step: EnterStep::Limits, errno: error.errno() }
}

/// Applies the restrictions to the calling process, which becomes the command. Takes its parent,
/// and the channel on which it sends the listener.
type BecomeCommand<'a> = &'a dyn Fn(Pid, Option<BorrowedFd<'_>>) -> Result<(), EnterError>;

/// The same, if the supervisor answers the command's execs. The supervisor can not sleep until the
/// exec is done, so the landlock init starts the command.
fn start_under_init(
    become_command: BecomeCommand<'_>,
    command: &Command,
    restrictions: &Restrictions,
    limits: &Limits,
    writer: Option<Writer>,
    answer_calls: AnswerCalls<'_>,
) -> Result<LandlockStart, SuperviseError> {
    let writes = writer.is_some();
    let failure = sys::shared_number().map_err(SuperviseError::Spawn)?;
    let (ours, theirs) = socket_pair::pair().map_err(SuperviseError::Spawn)?;
    let (mut supervisors_end, mut init_end) = (Some(ours), Some(theirs));
    let init_pid = sys::fork(|| {
        supervisors_end = None;
        let Some(channel) = init_end.take() else { return 125 };
        let Ok(spoken) = channel.try_clone() else { return 125 };
        let offered = if writes { limits.offer_to_oom_killer() } else { Ok(()) };
        if let Err(error) = offered.map_err(limits_error) {
            failure.store(error.code(), Ordering::SeqCst);
            return 125;
        }
        landlock_init::run(
            &|init_pid| become_command(init_pid, Some(spoken.as_fd())),
            command,
            restrictions,
            writer,
            channel,
            failure,
        )
    })
    .map_err(SuperviseError::Spawn)?;
    drop(init_end);
    let Some(channel) = supervisors_end else { return Err(SuperviseError::Spawn(Errno::PROTO)) };
    let mut fds = HandedFds::default();
    let received = init::receive_start(&channel, answer_calls, &mut fds);
    if let Ok(Some((InitMessage::Started, descriptors))) = received {
        if let Some(command) = descriptors.into_iter().next() {
            let handed = match &mut fds.listener {
                Some(listener) if writes => write_server::hand_listener(&channel, listener, None),
                _ => Ok(()),
            };
            if let Err(errno) = handed {
                init::kill_and_reap(init_pid);
                return Err(SuperviseError::Wait(errno));
            }
            return Ok(LandlockStart::UnderInit(LandlockSandbox {
                init_pid,
                channel,
                command,
                listener: fds.listener,
            }));
        }
        init::kill_and_reap(init_pid);
        return Err(SuperviseError::Wait(Errno::PROTO));
    }
    init::kill_and_reap(init_pid);
    let failed = failure.load(Ordering::SeqCst);
    match EnterError::of_code(failed) {
        Some(error) => Err(error.into()),
        // it was killed before it reported anything
        None if failed == 0 => Err(SuperviseError::Wait(received.err().unwrap_or(Errno::SRCH))),
        None => Ok(LandlockStart::NotExecuted(Errno::from_raw_os_error(failed as i32))),
    }
}

/// A command under a landlock init, as its supervisor sees it.
pub struct LandlockSandbox {
    pub init_pid: Pid,
    channel: OwnedFd,
    /// A pidfd of the command: it can not come to mean another process.
    command: OwnedFd,
    pub listener: Option<NotifyListener>,
}

/// The command, as its supervisor sees it.
pub enum SupervisedCommand {
    Child(Pid),
    UnderLandlockInit(LandlockSandbox),
    /// Under the init of new namespaces.
    UnderInit(Sandbox),
}

/// How many descriptors the tasks may wait for, and which of them is the listener of calls.
pub const TASK_FDS: usize = 9;
pub const LISTENER_INDEX: usize = 1;

/// What is due. Each value includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// A process has stopped or ended, perhaps a traced one.
    Traced,
    /// A call waits for an answer.
    Calls,
    All,
}

/// The work of the supervisor besides waiting.
pub trait Tasks {
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; TASK_FDS];
    fn deadline(&self) -> Option<Instant>;
    /// One of the descriptors is readable, or the deadline has passed. Break: the run has to end.
    fn turn(&mut self, due: Due) -> ControlFlow<()>;
    /// Is a turn due? Does none of the work.
    fn look(&mut self) -> bool;
    /// Is a process traced? Then a turn is due whenever a process stops or ends, and the supervisor
    /// must not stop itself.
    fn is_tracing(&self) -> bool;
    /// Is there a session owner? It is no shell, so no process needs to see the run stop. A command
    /// of the session can not stop the exec server.
    fn has_session_owner(&self) -> bool;
    /// Does the approver hold the terminal to ask a person? The approver continues a command that
    /// stops because of that.
    fn is_asking(&self) -> bool;
    /// The command has ended. Ends the helpers before all remaining processes are killed.
    fn dismiss_helpers(&mut self);
}

/// Returns when the command has ended and no process that it started is left.
pub fn wait(
    supervised: &SupervisedCommand,
    tasks: &mut dyn Tasks,
) -> Result<CommandEnd, SuperviseError> {
    let signals = sys::signal_descriptor().map_err(SuperviseError::Wait)?;
    let started_in_foreground = own_terminal().is_some();
    let mut foreground = None;
    // The signal that stopped the command, while it is stopped.
    let mut stopped = None;
    let mut ending = false;
    let mut wake_up = WakeUp::UNKNOWN;
    let end = loop {
        let status = if supervised.has_news(&wake_up) { supervised.status() } else { Ok(None) };
        match status.map_err(SuperviseError::Wait)? {
            Some(CommandStatus::Ended(end)) => break end,
            Some(CommandStatus::Stopped(_)) if tasks.has_session_owner() => {
                supervised.send(libc::SIGCONT)
            }
            Some(CommandStatus::Stopped(libc::SIGTTIN | libc::SIGTTOU | libc::SIGSTOP))
                if tasks.is_asking() => {}
            // The watchdog stops processes before it ends them.
            Some(CommandStatus::Stopped(_)) if ending => {}
            Some(CommandStatus::Stopped(signal)) => {
                foreground = supervised.pid().and_then(foreground_of);
                stopped = Some(signal);
            }
            None => {}
        }
        // A traced process needs the supervisor until its exec is done.
        let delayed = stopped.is_some() && tasks.is_tracing();
        let watcher = if delayed {
            None
        } else {
            stopped.and_then(|signal| stop(signal, supervised, &signals, tasks))
        };
        wake_up = match watcher {
            Some(_) => WakeUp::UNKNOWN,
            None => sleep(signals.as_fd(), supervised.channel(), tasks, None)
                .map_err(SuperviseError::Wait)?,
        };
        let mut called = false;
        for arrival in
            wake_up.by_signal.then(|| sys::received_signals(signals.as_fd())).into_iter().flatten()
        {
            let by_watcher =
                watcher.is_some_and(|pid| arrival.sender == Some(pid.as_raw_nonzero().get()));
            if by_watcher && arrival.signal == libc::SIGCONT {
                called = true;
            } else if arrival.signal == libc::SIGCHLD {
                wake_up.due = wake_up.due.max(tasks.is_tracing().then_some(Due::Traced));
            } else {
                supervised.pass_on(&arrival, &mut foreground);
            }
        }
        stopped = stopped.filter(|_| (called || delayed) && supervised.is_stopped());
        if wake_up.due.is_some_and(|due| tasks.turn(due).is_break()) {
            stopped = None;
            ending = true;
            supervised.kill();
        }
    };
    tasks.dismiss_helpers();
    match supervised {
        SupervisedCommand::Child(_) => end_descendants(),
        SupervisedCommand::UnderLandlockInit(sandbox) => {
            init::kill_and_reap(sandbox.init_pid);
            // The supervisor inherits the processes that the landlock init had adopted.
            end_descendants();
        }
        SupervisedCommand::UnderInit(sandbox) => {
            init::kill_and_reap(sandbox.init);
            // A shell inside can not give the terminal back: the caller's process group has no
            // number there.
            if started_in_foreground {
                take_terminal_back();
            }
        }
    }
    Ok(end)
}

/// Stops this process as the command was stopped, because the parent has to see the same. Returns
/// when another process has continued it.
///
/// Not everything stops with the command, and running processes have to be watched: one may even
/// continue or end the command. So a copy of the supervisor watches meanwhile, and continues the
/// supervisor when there is work. Returns the pid of the copy, to tell its signal from others.
/// None: there is no copy, and the supervisor does not stop.
fn stop(
    signal: i32,
    supervised: &SupervisedCommand,
    signals: &OwnedFd,
    tasks: &mut dyn Tasks,
) -> Option<Pid> {
    let supervisor = rustix::process::getpid();
    let watcher = sys::fork(|| watch_while_stopped(supervisor, supervised, signals, tasks)).ok()?;
    sys::stop_self_by(signal);
    let _ = rustix::process::kill_process(watcher, Signal::KILL);
    let _ = rustix::process::waitpid(Some(watcher), WaitOptions::empty());
    Some(watcher)
}

/// Runs in the copy, until it is killed.
fn watch_while_stopped(
    supervisor: Pid,
    supervised: &SupervisedCommand,
    signals: &OwnedFd,
    tasks: &mut dyn Tasks,
) -> i32 {
    // A signal that stops the group of the supervisor does not stop another group.
    let _ = rustix::process::setpgid(None, None);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    while rustix::process::getppid() == Some(supervisor) {
        let wake_up = sleep(signals.as_fd(), None, tasks, Some(STOP_CHECK_INTERVAL));
        while sys::next_signal(Some(Duration::ZERO)).is_some() {}
        let due = !wake_up.is_ok_and(|wake_up| wake_up.due.is_none()) && tasks.look();
        if due || !supervised.is_stopped() {
            // Repeated, because a SIGCONT that comes before the stop is lost.
            let _ = rustix::process::kill_process(supervisor, Signal::CONT);
            sys::next_signal(Some(REAP_PAUSE));
        }
    }
    0
}

/// The reasons why a sleep ended.
struct WakeUp {
    by_signal: bool,
    by_channel: bool,
    due: Option<Due>,
}

impl WakeUp {
    /// The reason is not known: check everything.
    const UNKNOWN: WakeUp = WakeUp { by_signal: true, by_channel: true, due: Some(Due::All) };
}

/// Sleeps until a signal or a message of init waits, or a task is due.
fn sleep(
    signals: BorrowedFd<'_>,
    channel: Option<BorrowedFd<'_>>,
    tasks: &mut dyn Tasks,
    longest: Option<Duration>,
) -> Result<WakeUp, Errno> {
    let deadline = tasks.deadline();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.into_iter().chain(longest).min();
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let mut descriptors = PollSet::<{ 2 + TASK_FDS }>::new(signals);
    if let Some(channel) = channel {
        descriptors.push(channel);
    }
    let own = descriptors.used;
    let waited_for = tasks.descriptors();
    let calls = waited_for[LISTENER_INDEX]
        .map(|_| own + waited_for[..LISTENER_INDEX].iter().flatten().count());
    waited_for.into_iter().flatten().for_each(|chore| descriptors.push(chore));
    match rustix::event::poll(descriptors.as_mut_slice(), left.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    let seen = |index: usize| !descriptors.descriptors[index].revents().is_empty();
    let called = calls.filter(|index| descriptors.descriptors[*index].revents() == PollFlags::IN);
    let other = (own..descriptors.used).any(|index| Some(index) != called && seen(index));
    let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let due = if other || late { Some(Due::All) } else { called.map(|_| Due::Calls) };
    Ok(WakeUp { by_signal: seen(0), by_channel: own > 1 && seen(1), due })
}

/// A few descriptors to poll. It allocates nothing: this code runs for as long as the command does.
struct PollSet<'fd, const N: usize> {
    descriptors: [PollFd<'fd>; N],
    used: usize,
}

impl<'fd, const N: usize> PollSet<'fd, N> {
    fn new(first: BorrowedFd<'fd>) -> Self {
        PollSet {
            descriptors: std::array::from_fn(|_| PollFd::from_borrowed_fd(first, PollFlags::IN)),
            used: 1,
        }
    }

    fn push(&mut self, descriptor: BorrowedFd<'fd>) {
        if let Some(slot) = self.descriptors.get_mut(self.used) {
            *slot = PollFd::from_borrowed_fd(descriptor, PollFlags::IN);
            self.used += 1;
        }
    }

    fn as_mut_slice(&mut self) -> &mut [PollFd<'fd>] {
        &mut self.descriptors[..self.used]
    }
}

impl SupervisedCommand {
    /// May there be news of the command? Init reports them on its channel; the end of a child is a
    /// signal.
    fn has_news(&self, wake_up: &WakeUp) -> bool {
        if self.channel().is_some() { wake_up.by_channel } else { wake_up.by_signal }
    }

    fn status(&self) -> Result<Option<CommandStatus>, Errno> {
        match self {
            SupervisedCommand::Child(command) => reap(*command),
            SupervisedCommand::UnderLandlockInit(sandbox) => received_status(&sandbox.channel),
            SupervisedCommand::UnderInit(sandbox) => received_status(&sandbox.channel),
        }
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        match self {
            SupervisedCommand::Child(_) => None,
            SupervisedCommand::UnderLandlockInit(sandbox) => Some(sandbox.channel.as_fd()),
            SupervisedCommand::UnderInit(sandbox) => Some(sandbox.channel.as_fd()),
        }
    }

    pub fn pid(&self) -> Option<Pid> {
        match self {
            SupervisedCommand::Child(command) => Some(*command),
            SupervisedCommand::UnderLandlockInit(sandbox) => init::pid_of(&sandbox.command),
            SupervisedCommand::UnderInit(sandbox) => init::pid_of(&sandbox.command),
        }
    }

    fn is_child(&self, pid: Option<i32>) -> bool {
        let SupervisedCommand::Child(command) = self else { return false };
        pid == Some(command.as_raw_nonzero().get())
    }

    fn is_stopped(&self) -> bool {
        self.pid().is_some_and(|pid| ancestry::is_stopped(pid.as_raw_nonzero().get()))
    }

    fn send(&self, signal: i32) {
        let _ = match self {
            SupervisedCommand::Child(command) => sys::send_signal(*command, signal),
            SupervisedCommand::UnderLandlockInit(LandlockSandbox { command, .. })
            | SupervisedCommand::UnderInit(Sandbox { command, .. }) => {
                sys::send_signal_to(command.as_fd(), signal)
            }
        };
    }

    /// Kills the command. Everything that it started ends at once with an init, else after the
    /// wait.
    fn kill(&self) {
        let _ = match self {
            SupervisedCommand::Child(command) => {
                rustix::process::kill_process(*command, Signal::KILL)
            }
            SupervisedCommand::UnderLandlockInit(sandbox) => {
                sys::send_signal_to(sandbox.command.as_fd(), libc::SIGKILL)
            }
            SupervisedCommand::UnderInit(sandbox) => {
                rustix::process::kill_process(sandbox.init, Signal::KILL)
            }
        };
    }

    fn pass_on(&self, arrival: &ReceivedSignal, foreground: &mut Option<Pid>) {
        match arrival.signal {
            libc::SIGCHLD | libc::SIGWINCH | libc::SIGTTIN | libc::SIGTTOU | libc::SIGURG => {}
            libc::SIGCONT => {
                if let Some(group) = foreground.take() {
                    give_terminal_to(group);
                }
                self.send(libc::SIGCONT);
            }
            // From the keyboard these reach the whole foreground group, the command included. Only
            // a signal that was sent to the supervisor alone is passed on.
            libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP if arrival.sender.is_none() => {}
            // A signal from the command itself is not sent back to it.
            _ if self.is_child(arrival.sender) => {}
            signal => self.send(signal),
        }
    }
}

enum CommandStatus {
    Ended(CommandEnd),
    Stopped(i32),
}

/// The next message of init about the command.
fn received_status(channel: &OwnedFd) -> Result<Option<CommandStatus>, Errno> {
    match init_channel::receive(channel, false) {
        Ok(Some((InitMessage::Exited(code), _))) => {
            Ok(Some(CommandStatus::Ended(CommandEnd::Exited(code))))
        }
        Ok(Some((InitMessage::Killed(signal), _))) => {
            Ok(Some(CommandStatus::Ended(CommandEnd::Killed(signal))))
        }
        Ok(Some((InitMessage::Stopped(signal), _))) => Ok(Some(CommandStatus::Stopped(signal))),
        Ok(Some(_)) => Err(Errno::PROTO),
        // Init was killed, and the command with it.
        Ok(None) => Ok(Some(CommandStatus::Ended(CommandEnd::Killed(libc::SIGKILL)))),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Takes every pending status. The status of an adopted orphan is dropped.
fn reap(command: Pid) -> Result<Option<CommandStatus>, Errno> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(None) => return Ok(None),
            Ok(Some((pid, status))) if pid == command => {
                if let Some(status) = status_of(status) {
                    return Ok(Some(status));
                }
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn status_of(status: WaitStatus) -> Option<CommandStatus> {
    if let Some(code) = status.exit_status() {
        Some(CommandStatus::Ended(CommandEnd::Exited(code)))
    } else if let Some(signal) = status.terminating_signal() {
        Some(CommandStatus::Ended(CommandEnd::Killed(signal)))
    } else {
        status.stopping_signal().map(CommandStatus::Stopped)
    }
}

fn terminals() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

/// The command's own process group, if it has one and it holds the terminal, as that of an
/// interactive shell does.
fn foreground_of(command: Pid) -> Option<Pid> {
    let group = rustix::process::getpgid(Some(command)).ok()?;
    let holds = |fd: &BorrowedFd<'_>| rustix::termios::tcgetpgrp(fd) == Ok(group);
    (group != rustix::process::getpgrp() && terminals().iter().any(holds)).then_some(group)
}

/// A standard descriptor that is a terminal with the supervisor's group in the foreground.
fn own_terminal() -> Option<BorrowedFd<'static>> {
    terminals()
        .into_iter()
        .find(|fd| rustix::termios::tcgetpgrp(fd) == Ok(rustix::process::getpgrp()))
}

fn take_terminal_back() {
    if own_terminal().is_some() {
        return;
    }
    for fd in terminals() {
        if rustix::termios::tcsetpgrp(fd, rustix::process::getpgrp()).is_ok() {
            return;
        }
    }
}

/// Only if the supervisor's group is in the foreground: a job that was continued in the background
/// stays there.
fn give_terminal_to(group: Pid) {
    for fd in terminals() {
        if rustix::termios::tcgetpgrp(fd) == Ok(rustix::process::getpgrp()) {
            let _ = rustix::termios::tcsetpgrp(fd, group);
            return;
        }
    }
}
