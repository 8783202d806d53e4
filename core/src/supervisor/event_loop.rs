//! Waiting for the command: the supervisor stays in its process group and on its terminal, takes no
//! part in either, and makes sure that the end of the command is the end of everything it started.

use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::spin_wait::Vigil;
use crate::kernel::seccomp_notify::Listener;
use crate::kernel::sys::{self, Arrival, SignalMask};
use crate::kernel::{ancestry, socket_pair};
use crate::limits::Limits;
use crate::limits::descendants::{REAP_PAUSE, end_descendants};
use crate::sandbox::command::Command;
use crate::sandbox::enter::{self, Fence, FenceError, Step};
use crate::sandbox::init::{self, Attend, Handed, Sandbox};
use crate::sandbox::init_channel::{self, InitMessage};
use crate::sandbox::landlock_init;

/// How long a command that somebody else continued is taken for stopped: nothing wakes us for that.
const STOP_BELIEF: Duration = Duration::from_millis(100);

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("the supervisor cannot adopt orphaned processes: {0}")]
    Subreaper(#[source] Errno),
    #[error("cannot start a process: {0}")]
    Spawn(#[source] Errno),
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("cannot wait for the command: {0}")]
    Wait(#[source] Errno),
}

/// What became of the start.
pub enum Started {
    Running(Pid),
    Kept(Kept),
    /// The fence stood, but there was nothing to execute.
    NotExecuted(Errno),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(i32),
}

impl End {
    pub fn exit_code(self) -> i32 {
        match self {
            End::Exited(code) => code,
            End::Killed(signal) => 128 + signal,
        }
    }

    pub fn signal(self) -> Option<i32> {
        match self {
            End::Exited(_) => None,
            End::Killed(signal) => Some(signal),
        }
    }
}

/// Starts the command inside the fence. Signals are held since before; `mask` is what the command
/// gets back.
pub fn start(
    fence: &Fence,
    command: &Command,
    limits: &Limits,
    mask: &SignalMask,
    attend: Attend<'_>,
) -> Result<Started, SuperviseError> {
    let supervisor = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(supervisor)).map_err(SuperviseError::Subreaper)?;
    let become_command = |parent: Pid, channel: Option<BorrowedFd<'_>>| {
        let admitted = limits
            .admit_self()
            .map_err(|error| FenceError { step: Step::Limits, errno: error.errno() });
        admitted?;
        enter::become_command(Some(parent), Some(mask))?;
        fence.bound()?;
        fence.enter(channel)
    };
    if fence.listens() {
        return start_kept(&become_command, command, attend);
    }
    let mut fence_failure = None;
    let mut exec_failure = None;
    let child = sys::spawn_sharing_memory(|| {
        match become_command(supervisor, None) {
            Ok(()) => exec_failure = Some(command.exec()),
            Err(error) => fence_failure = Some(error),
        }
        125
    })
    .map_err(SuperviseError::Spawn)?;
    if fence_failure.is_none() && exec_failure.is_none() {
        return Ok(Started::Running(child));
    }
    rustix::process::waitpid(Some(child), WaitOptions::empty()).map_err(SuperviseError::Wait)?;
    match (fence_failure, exec_failure) {
        (Some(error), _) => Err(error.into()),
        (None, errno) => Ok(Started::NotExecuted(errno.unwrap_or(Errno::NOENT))),
    }
}

/// In the process that is to be the command: puts it behind the fence. With its parent, and where
/// it says who answers for it.
type Become<'a> = &'a dyn Fn(Pid, Option<BorrowedFd<'_>>) -> Result<(), FenceError>;

/// The same where we have to answer for the program it executes: so we can not sleep until it did,
/// and a keeper starts it.
fn start_kept(
    become_command: Become<'_>,
    command: &Command,
    attend: Attend<'_>,
) -> Result<Started, SuperviseError> {
    let failure = sys::shared_number().map_err(SuperviseError::Spawn)?;
    let (ours, theirs) = socket_pair::pair().map_err(SuperviseError::Spawn)?;
    let (mut supervisors_end, mut keepers_end) = (Some(ours), Some(theirs));
    let keeper = sys::fork(|| {
        supervisors_end = None;
        let Some(channel) = keepers_end.take() else { return 125 };
        let Ok(spoken) = channel.try_clone() else { return 125 };
        landlock_init::keep(
            &|keeper| become_command(keeper, Some(spoken.as_fd())),
            command,
            channel,
            failure,
        )
    })
    .map_err(SuperviseError::Spawn)?;
    drop(keepers_end);
    let Some(channel) = supervisors_end else { return Err(SuperviseError::Spawn(Errno::PROTO)) };
    let mut handed = Handed::default();
    let heard = init::hear(&channel, attend, &mut handed);
    if let Ok(Some((InitMessage::Started, descriptors))) = heard {
        if let Some(command) = descriptors.into_iter().next() {
            return Ok(Started::Kept(Kept { keeper, channel, command, listener: handed.listener }));
        }
        init::bury(keeper);
        return Err(SuperviseError::Wait(Errno::PROTO));
    }
    init::bury(keeper);
    let failed = failure.load(Ordering::SeqCst);
    match FenceError::of_code(failed) {
        Some(error) => Err(error.into()),
        // killed before it came to anything
        None if failed == 0 => Err(SuperviseError::Wait(heard.err().unwrap_or(Errno::SRCH))),
        None => Ok(Started::NotExecuted(Errno::from_raw_os_error(failed as i32))),
    }
}

/// A command with a keeper, seen by its supervisor.
pub struct Kept {
    pub keeper: Pid,
    channel: OwnedFd,
    /// The command, by a descriptor that can not come to mean another process.
    command: OwnedFd,
    pub listener: Option<Listener>,
}

/// The command, as its supervisor sees it.
pub enum Subject {
    Child(Pid),
    Kept(Kept),
    /// Behind an init of its own.
    Sandbox(Sandbox),
}

/// As many descriptors as chores may wait for, and which of them is for calls that wait for an
/// answer.
pub const CHORES: usize = 9;
pub const CALLS: usize = 1;

/// What there is to do: each is more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    /// A process has stopped or ended, perhaps one that is traced.
    Traced,
    /// A call waits.
    Calls,
    All,
}

/// Work to be done beside the waiting.
pub trait Tasks {
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; CHORES];
    fn deadline(&self) -> Option<Instant>;
    /// One of the descriptors can be read, or the deadline has passed. Break: the run has to end.
    fn turn(&mut self, due: Due) -> ControlFlow<()>;
    /// The same, but only looking: is there something to be done?
    fn look(&mut self) -> bool;
    /// Is a turn due whenever a process stops or ends, and may we not stop ourselves meanwhile?
    fn is_tracing(&self) -> bool;
    /// Does somebody hold the run who is no shell? Then nobody has to see it stop, and a command of
    /// it does not get to stop the one that starts the others.
    fn is_held(&self) -> bool;
    /// Has somebody taken the terminal from the command, to ask a person? Who stops because of that
    /// is continued by whoever took it.
    fn is_asking(&self) -> bool;
    /// The command has ended: those who help us go, before everything that is left is killed.
    fn dismiss(&mut self);
}

/// Returns when the command has ended and nothing that it started is left.
pub fn wait(subject: &Subject, chores: &mut dyn Tasks) -> Result<End, SuperviseError> {
    let signals = sys::signal_descriptor().map_err(SuperviseError::Wait)?;
    let started_in_foreground = own_terminal().is_some();
    let mut foreground = None;
    // The signal that the command was stopped by, while it is.
    let mut stopped = None;
    let mut ending = false;
    let mut woken = Woken::UNKNOWN;
    let mut vigil = Vigil::default();
    let end = loop {
        let status = if subject.speaks(&woken) { subject.status() } else { Ok(None) };
        match status.map_err(SuperviseError::Wait)? {
            Some(Status::Ended(end)) => break end,
            Some(Status::Stopped(_)) if chores.is_held() => subject.send(libc::SIGCONT),
            Some(Status::Stopped(libc::SIGTTIN | libc::SIGTTOU | libc::SIGSTOP))
                if chores.is_asking() => {}
            // Whoever ends them all stops them first.
            Some(Status::Stopped(_)) if ending => {}
            Some(Status::Stopped(signal)) => {
                foreground = subject.pid().and_then(foreground_of);
                stopped = Some(signal);
            }
            None => {}
        }
        // Whoever is on his way through needs us until he is.
        let delayed = stopped.is_some() && chores.is_tracing();
        let lookout = if delayed {
            None
        } else {
            stopped.and_then(|signal| stop(signal, subject, &signals, chores))
        };
        woken = match lookout {
            Some(_) => Woken::UNKNOWN,
            None => sleep(signals.as_fd(), subject.channel(), chores, None, &mut vigil)
                .map_err(SuperviseError::Wait)?,
        };
        let mut called = false;
        for arrival in woken.by_signal.then(|| sys::arrivals(signals.as_fd())).into_iter().flatten()
        {
            let by_lookout =
                lookout.is_some_and(|pid| arrival.sender == Some(pid.as_raw_nonzero().get()));
            if by_lookout && arrival.signal == libc::SIGCONT {
                called = true;
            } else if arrival.signal == libc::SIGCHLD {
                woken.due = woken.due.max(chores.is_tracing().then_some(Due::Traced));
            } else {
                subject.pass_on(&arrival, &mut foreground);
            }
        }
        stopped = stopped.filter(|_| (called || delayed) && subject.is_stopped());
        if woken.due.is_some_and(|due| chores.turn(due).is_break()) {
            stopped = None;
            ending = true;
            subject.kill();
        }
    };
    chores.dismiss();
    match subject {
        Subject::Child(_) => end_descendants(),
        Subject::Kept(kept) => {
            init::bury(kept.keeper);
            // What it had adopted is ours now.
            end_descendants();
        }
        Subject::Sandbox(sandbox) => {
            init::bury(sandbox.init);
            // A shell inside can not give the terminal back: its owner has no number there.
            if started_in_foreground {
                take_terminal_back();
            }
        }
    }
    Ok(end)
}

/// Stops this process as the command was stopped: our parent has to see the same. Returns when
/// somebody continued us.
///
/// Not everything stops with the command, and what goes on has to be watched; it may even continue
/// the command, or end it. So a copy of us looks out meanwhile, and calls us when there is
/// something to do. Returns its number, to tell its call from others. None: there is nobody to do
/// it, and then we do not stop.
fn stop(signal: i32, subject: &Subject, signals: &OwnedFd, chores: &mut dyn Tasks) -> Option<Pid> {
    let supervisor = rustix::process::getpid();
    let lookout = sys::fork(|| look_out(supervisor, subject, signals, chores)).ok()?;
    sys::stop_by(signal);
    let _ = rustix::process::kill_process(lookout, Signal::KILL);
    let _ = rustix::process::waitpid(Some(lookout), WaitOptions::empty());
    Some(lookout)
}

/// The copy's part, until it is killed.
fn look_out(supervisor: Pid, subject: &Subject, signals: &OwnedFd, chores: &mut dyn Tasks) -> i32 {
    // What stops our group does not stop a group of its own.
    let _ = rustix::process::setpgid(None, None);
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    while rustix::process::getppid() == Some(supervisor) {
        let woken = sleep(signals.as_fd(), None, chores, Some(STOP_BELIEF), &mut Vigil::default());
        while sys::next_signal(Some(Duration::ZERO)).is_some() {}
        let due = !woken.is_ok_and(|woken| woken.due.is_none()) && chores.look();
        if due || !subject.is_stopped() {
            // Once is not enough: a call that comes before the stop is lost.
            let _ = rustix::process::kill_process(supervisor, Signal::CONT);
            sys::next_signal(Some(REAP_PAUSE));
        }
    }
    0
}

/// What ended a sleep.
struct Woken {
    by_signal: bool,
    by_channel: bool,
    due: Option<Due>,
}

impl Woken {
    /// By somebody who does not say: everything is looked at.
    const UNKNOWN: Woken = Woken { by_signal: true, by_channel: true, due: Some(Due::All) };
}

/// Until a signal waits, init has something to say, or the chores are due.
fn sleep(
    signals: BorrowedFd<'_>,
    channel: Option<BorrowedFd<'_>>,
    chores: &mut dyn Tasks,
    longest: Option<Duration>,
    vigil: &mut Vigil,
) -> Result<Woken, Errno> {
    let deadline = chores.deadline();
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let left = left.into_iter().chain(longest).min();
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let mut descriptors = ArrayOf::<{ 2 + CHORES }>::new(signals);
    if let Some(channel) = channel {
        descriptors.push(channel);
    }
    let own = descriptors.used;
    let waited_for = chores.descriptors();
    let calls = waited_for[CALLS].map(|_| own + waited_for[..CALLS].iter().flatten().count());
    waited_for.into_iter().flatten().for_each(|chore| descriptors.push(chore));
    let mut poll =
        |left: Option<&Timespec>| match rustix::event::poll(descriptors.as_mut_slice(), left) {
            Ok(came) => Ok(came > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        };
    let came = chores.is_tracing() && vigil.keep(|| poll(Some(&NO_TIME)))?;
    if !came {
        poll(left.as_ref())?;
    }
    let seen = |index: usize| !descriptors.descriptors[index].revents().is_empty();
    let called = calls.filter(|index| descriptors.descriptors[*index].revents() == PollFlags::IN);
    let other = (own..descriptors.used).any(|index| Some(index) != called && seen(index));
    let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
    let due = if other || late { Some(Due::All) } else { called.map(|_| Due::Calls) };
    Ok(Woken { by_signal: seen(0), by_channel: own > 1 && seen(1), due })
}

/// A few descriptors to poll, without asking for memory: this runs for as long as the command does.
struct ArrayOf<'fd, const N: usize> {
    descriptors: [PollFd<'fd>; N],
    used: usize,
}

impl<'fd, const N: usize> ArrayOf<'fd, N> {
    fn new(first: BorrowedFd<'fd>) -> Self {
        ArrayOf {
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

impl Subject {
    /// Is there something to be heard of the command? Who stands before it tells it; the end of a
    /// child is a signal.
    fn speaks(&self, woken: &Woken) -> bool {
        if self.channel().is_some() { woken.by_channel } else { woken.by_signal }
    }

    fn status(&self) -> Result<Option<Status>, Errno> {
        match self {
            Subject::Child(command) => reap(*command),
            Subject::Kept(kept) => told(&kept.channel),
            Subject::Sandbox(sandbox) => told(&sandbox.channel),
        }
    }

    fn channel(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Subject::Child(_) => None,
            Subject::Kept(kept) => Some(kept.channel.as_fd()),
            Subject::Sandbox(sandbox) => Some(sandbox.channel.as_fd()),
        }
    }

    pub fn pid(&self) -> Option<Pid> {
        match self {
            Subject::Child(command) => Some(*command),
            Subject::Kept(kept) => init::pid_of(&kept.command),
            Subject::Sandbox(sandbox) => init::pid_of(&sandbox.command),
        }
    }

    fn is_stopped(&self) -> bool {
        self.pid().is_some_and(|pid| ancestry::is_stopped(pid.as_raw_nonzero().get()))
    }

    fn send(&self, signal: i32) {
        let _ = match self {
            Subject::Child(command) => sys::send_signal(*command, signal),
            Subject::Kept(Kept { command, .. }) | Subject::Sandbox(Sandbox { command, .. }) => {
                sys::send_signal_to(command.as_fd(), signal)
            }
        };
    }

    /// Its end is the end of everything: at once with an init, else when it was waited for.
    fn kill(&self) {
        let _ = match self {
            Subject::Child(command) => rustix::process::kill_process(*command, Signal::KILL),
            Subject::Kept(kept) => sys::send_signal_to(kept.command.as_fd(), libc::SIGKILL),
            Subject::Sandbox(sandbox) => rustix::process::kill_process(sandbox.init, Signal::KILL),
        };
    }

    fn pass_on(&self, arrival: &Arrival, foreground: &mut Option<Pid>) {
        match arrival.signal {
            libc::SIGCHLD | libc::SIGWINCH | libc::SIGTTIN | libc::SIGTTOU | libc::SIGURG => {}
            libc::SIGCONT => {
                if let Some(group) = foreground.take() {
                    give_terminal_to(group);
                }
                self.send(libc::SIGCONT);
            }
            // From the keyboard they reach the whole foreground group, the command included; only
            // what was sent to us alone goes on.
            libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP if arrival.sender.is_none() => {}
            // The command does not signal itself by way of us.
            _ if matches!(self, Subject::Child(command) if arrival.sender == Some(command.as_raw_nonzero().get())) =>
                {}
            signal => self.send(signal),
        }
    }
}

enum Status {
    Ended(End),
    Stopped(i32),
}

/// What init or the keeper says of the command.
fn told(channel: &OwnedFd) -> Result<Option<Status>, Errno> {
    match init_channel::receive(channel, false) {
        Ok(Some((InitMessage::Exited(code), _))) => Ok(Some(Status::Ended(End::Exited(code)))),
        Ok(Some((InitMessage::Killed(signal), _))) => Ok(Some(Status::Ended(End::Killed(signal)))),
        Ok(Some((InitMessage::Stopped(signal), _))) => Ok(Some(Status::Stopped(signal))),
        Ok(Some(_)) => Err(Errno::PROTO),
        // It went without a word: somebody killed it, and the command with it.
        Ok(None) => Ok(Some(Status::Ended(End::Killed(libc::SIGKILL)))),
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Takes every status that waits; orphans we adopted are buried without a word.
fn reap(command: Pid) -> Result<Option<Status>, Errno> {
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

fn status_of(status: WaitStatus) -> Option<Status> {
    if let Some(code) = status.exit_status() {
        Some(Status::Ended(End::Exited(code)))
    } else if let Some(signal) = status.terminating_signal() {
        Some(Status::Ended(End::Killed(signal)))
    } else {
        status.stopping_signal().map(Status::Stopped)
    }
}

fn terminals() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

/// The command's own process group, if it has one and holds the terminal: an interactive shell
/// does.
fn foreground_of(command: Pid) -> Option<Pid> {
    let group = rustix::process::getpgid(Some(command)).ok()?;
    let holds = |fd: &BorrowedFd<'_>| rustix::termios::tcgetpgrp(fd) == Ok(group);
    (group != rustix::process::getpgrp() && terminals().iter().any(holds)).then_some(group)
}

/// A terminal of ours whose foreground is our own group.
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

/// Only if our own group was brought to the foreground: a job continued in the background stays
/// there.
fn give_terminal_to(group: Pid) {
    for fd in terminals() {
        if rustix::termios::tcgetpgrp(fd) == Ok(rustix::process::getpgrp()) {
            let _ = rustix::termios::tcsetpgrp(fd, group);
            return;
        }
    }
}
