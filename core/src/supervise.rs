//! Waiting for the command: the supervisor stays in its process group and on its terminal, takes no part in either, and
//! makes sure that the end of the command is the end of everything it started.

use std::time::{Duration, Instant};

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::command::Command;
use crate::fence::{self, Fence, FenceError};
use crate::sys::{self, Arrival, SignalMask};

/// Descendants get this long to die of SIGKILL; only one stuck inside the kernel takes longer.
const REAP_LIMIT: Duration = Duration::from_secs(5);
const REAP_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    #[error("the supervisor can not adopt orphaned processes: {0}")]
    Subreaper(#[source] Errno),
    #[error("no process can be started: {0}")]
    Spawn(#[source] Errno),
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error("the command can not be waited for: {0}")]
    Wait(#[source] Errno),
}

/// What became of the start.
pub enum Started {
    Running(Pid),
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

/// Starts the command inside the fence. Signals are held since before; `mask` is what the command gets back.
pub fn start(fence: &Fence, command: &Command, mask: &SignalMask) -> Result<Started, SuperviseError> {
    let supervisor = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(supervisor)).map_err(SuperviseError::Subreaper)?;
    let mut fence_failure = None;
    let mut exec_failure = None;
    let child = sys::spawn_sharing_memory(|| {
        match fence::become_command(Some(supervisor), Some(mask)).and_then(|()| fence.enter()) {
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

/// Returns when the command has ended and nothing that it started is left.
pub fn wait(command: Pid) -> Result<End, SuperviseError> {
    let mut foreground = None;
    let end = loop {
        if let Some(status) = reap(command).map_err(SuperviseError::Wait)? {
            match status {
                Status::Ended(end) => break end,
                Status::Stopped(signal) => {
                    foreground = foreground_of(command);
                    // Our parent has to see us stop as it would see the command stop. SIGCONT brings us back here.
                    sys::stop_by(signal);
                }
            }
            continue;
        }
        if let Some(arrival) = sys::next_signal(None) {
            pass_on(command, &arrival, &mut foreground);
        }
    };
    end_descendants();
    Ok(end)
}

enum Status {
    Ended(End),
    Stopped(i32),
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

fn pass_on(command: Pid, arrival: &Arrival, foreground: &mut Option<Pid>) {
    match arrival.signal {
        libc::SIGCHLD | libc::SIGWINCH | libc::SIGTTIN | libc::SIGTTOU | libc::SIGURG => {}
        libc::SIGCONT => {
            if let Some(group) = foreground.take() {
                give_terminal_to(group);
            }
            let _ = sys::send_signal(command, libc::SIGCONT);
        }
        // From the keyboard they reach the whole foreground group, the command included; only what was sent to us alone goes on.
        libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP if arrival.sender.is_none() => {}
        // The command does not signal itself by way of us.
        _ if arrival.sender == Some(command.as_raw_nonzero().get()) => {}
        signal => {
            let _ = sys::send_signal(command, signal);
        }
    }
}

fn terminals() -> [BorrowedFd<'static>; 3] {
    [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()]
}

/// The command's own process group, if it has one and holds the terminal: an interactive shell does.
fn foreground_of(command: Pid) -> Option<Pid> {
    let group = rustix::process::getpgid(Some(command)).ok()?;
    let holds = |fd: &BorrowedFd<'_>| rustix::termios::tcgetpgrp(fd) == Ok(group);
    (group != rustix::process::getpgrp() && terminals().iter().any(holds)).then_some(group)
}

/// Only if our own group was brought to the foreground: a job continued in the background stays there.
fn give_terminal_to(group: Pid) {
    for fd in terminals() {
        if rustix::termios::tcgetpgrp(fd) == Ok(rustix::process::getpgrp()) {
            let _ = rustix::termios::tcsetpgrp(fd, group);
            return;
        }
    }
}

/// Kills and buries what is left, until the kernel says that we have no child any more.
fn end_descendants() {
    let deadline = Instant::now() + REAP_LIMIT;
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Ok(None) => {}
            Err(_) => return, // ECHILD
        }
        // The children of those we kill become our children, and get their turn in the next round.
        for child in children() {
            let _ = rustix::process::kill_process(child, Signal::KILL);
        }
        if Instant::now() >= deadline {
            return;
        }
        sys::next_signal(Some(REAP_PAUSE));
    }
}

/// Our children, from every process's own word on its parent.
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    let numbered = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    numbered
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| crate::ancestry::parent_of(*pid) == Some(own.as_raw_nonzero().get()))
        .filter_map(Pid::from_raw)
        .collect()
}
