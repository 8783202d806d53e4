//! The command reaper: one process for each command. It starts the command and reports how the
//! command ended.
//!
//! Orphans become children of the reaper, so every descendant of the command is a descendant of the
//! reaper. The reaper stays until none is left. The session owner learns from the kernel which
//! process is at the other end of the socket, and finds all descendants below it
//! (`executors/process_tree.py`). The reaper sends, one message each: `{"warden":PID}`;
//! `{"started":PID}` or `{"failed":"cwd"|"exec"|…,"errno":N}`; `{"exited":CODE,…}` or
//! `{"killed":SIGNAL,…}`. When the socket closes, the reaper ends.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions, WaitStatus};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::LaunchRequest;
use crate::kernel::sys;
use crate::plan::wire::bytes::Text;
use crate::sandbox::command::Command;

/// The exit status of a reaper that leaves no process behind, and of one that may.
pub const ALL_ENDED: i32 = 0;
const SOME_MAY_RUN: i32 = 1;

struct StartFailure {
    step: &'static str,
    errno: Errno,
}

pub fn refuse(socket: &OwnedFd, step: &'static str, errno: Errno) -> i32 {
    send(socket, &format!("{{\"errno\":{},\"failed\":\"{step}\"}}", errno.raw_os_error()), None);
    SOME_MAY_RUN
}

/// Runs as the reaper of one command.
pub fn run(request: &LaunchRequest, standard: Vec<OwnedFd>, socket: &OwnedFd) -> i32 {
    // From here on the command can end this process without a message: it can kill the reaper
    // before the reaper reports that the command runs.
    let own = rustix::process::getpid().as_raw_nonzero();
    send(socket, &format!("{{\"warden\":{own}}}"), None);
    // The reaper must not keep the exec server's own socket.
    let started = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .and_then(|null| rustix::stdio::dup2_stdin(&null))
        .and_then(|()| rustix::process::set_child_subreaper(Some(rustix::process::getpid())))
        .map_err(|errno| StartFailure { step: "warden", errno })
        .and_then(|()| start(request, standard, socket));
    match started {
        Ok(command) => report_end(command, socket),
        Err(StartFailure { step, errno }) => refuse(socket, step, errno),
    }
}

fn start(
    request: &LaunchRequest,
    standard: Vec<OwnedFd>,
    socket: &OwnedFd,
) -> Result<Pid, StartFailure> {
    let at = |step| move |errno| StartFailure { step, errno };
    let (terminal, standard) = match request.terminal {
        // Opened in the sandbox, so that the terminal belongs to the sandbox's own /dev/pts.
        Some(size) if standard.is_empty() => {
            let (ours, theirs) = open_terminal(size).map_err(at("terminal"))?;
            let copy = || {
                theirs
                    .try_clone()
                    .map_err(|_| StartFailure { step: "terminal", errno: Errno::MFILE })
            };
            (Some(ours), vec![copy()?, copy()?, theirs])
        }
        _ => (None, standard),
    };
    let [stdin, stdout, stderr] = &standard[..] else {
        return Err(StartFailure { step: "request", errno: Errno::BADF });
    };
    let strings = |texts: &[Text]| {
        texts.iter().map(|text| text.as_c_str().into_owned()).collect::<Vec<CString>>()
    };
    let command = Command::new(strings(&request.argv), environment(strings(&request.environment)));
    let cwd = request.cwd.as_ref().map(|cwd| cwd.as_c_str().into_owned());
    // The exec closes this pipe. A wait in the kernel, as vfork does, would not end while a person
    // is asked.
    let (exec_reader, exec_writer) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(at("warden"))?;
    let child = sys::fork(|| {
        let entered = || -> Result<(), StartFailure> {
            rustix::process::setsid().map_err(at("warden"))?;
            if request.terminal.is_some() {
                rustix::process::ioctl_tiocsctty(stdin).map_err(at("terminal"))?;
            }
            if let Some(cwd) = &cwd {
                rustix::process::chdir(cwd.as_c_str()).map_err(at("cwd"))?;
            }
            rustix::stdio::dup2_stdin(stdin).map_err(at("warden"))?;
            rustix::stdio::dup2_stdout(stdout).map_err(at("warden"))?;
            rustix::stdio::dup2_stderr(stderr).map_err(at("warden"))?;
            // The supervisor has to read this process's memory for its exec. From here on others
            // may read it too, and find only data of the command.
            sys::close_all_but(&[exec_writer.as_fd()]);
            rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)
                .map_err(at("warden"))?;
            sys::reset_signal(libc::SIGPIPE);
            sys::reset_signal(libc::SIGXFSZ);
            sys::unblock_every_signal();
            Err(StartFailure { step: "exec", errno: command.exec() })
        };
        if let Err(StartFailure { step, errno }) = entered() {
            let _ = rustix::io::write(
                &exec_writer,
                format!("{} {step}", errno.raw_os_error()).as_bytes(),
            );
        }
        125
    })
    .map_err(at("fork"))?;
    drop(exec_writer);
    drop(standard);
    let mut message = [0; 32];
    let failed = loop {
        let mut ready =
            [PollFd::new(&exec_reader, PollFlags::IN), PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            // The session owner has closed the socket before the command started.
            Ok(_) if !ready[1].revents().is_empty() => {
                let _ = rustix::process::kill_process(child, Signal::KILL);
                return Err(StartFailure { step: "ended", errno: Errno::INTR });
            }
            Ok(_) => {}
            Err(_) => continue,
        }
        match rustix::io::read(&exec_reader, &mut message) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(StartFailure { step: "warden", errno }),
            Ok(length) => break parse(&message[..length]),
        }
    };
    if let Some(failure) = failed {
        let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        return Err(failure);
    }
    let pid = child.as_raw_nonzero();
    send(
        socket,
        &format!("{{\"started\":{pid}}}"),
        terminal.as_ref().map(|terminal| terminal.as_fd()),
    );
    Ok(child)
}

fn environment(passed: Vec<CString>) -> Vec<CString> {
    let name =
        |entry: &CString| entry.as_bytes().split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
    let names: BTreeSet<_> = passed.iter().map(name).collect();
    let own =
        sys::inherited_environment().into_iter().filter(|entry| !names.contains(&name(entry)));
    own.chain(passed).collect()
}

/// None: no failure was reported.
fn parse(message: &[u8]) -> Option<StartFailure> {
    let (errno, step) = std::str::from_utf8(message).ok()?.split_once(' ')?;
    let steps = ["exec", "cwd", "terminal", "warden"];
    let step = steps.into_iter().find(|known| *known == step)?;
    Some(StartFailure { step, errno: Errno::from_raw_os_error(errno.parse().ok()?) })
}

fn open_terminal((rows, columns): (u16, u16)) -> Result<(OwnedFd, OwnedFd), Errno> {
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::unlockpt(&ours)?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(
        &ours,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&theirs, size)?;
    Ok((ours, theirs))
}

/// Runs until no descendant of the command is left, or the socket is closed.
fn report_end(command: Pid, socket: &OwnedFd) -> i32 {
    let Ok(children) = sys::child_signal_descriptor() else { return SOME_MAY_RUN };
    loop {
        sys::discard_child_signals();
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == command => tell_end(socket, status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return ALL_ENDED, // ECHILD
            }
        }
        let mut ready = [PollFd::new(socket, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        if rustix::event::poll(&mut ready, None).is_ok() && !ready[0].revents().is_empty() {
            return SOME_MAY_RUN;
        }
    }
}

fn tell_end(socket: &OwnedFd, status: WaitStatus) {
    let used = sys::child_usage();
    let how = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("\"exited\":{code}"),
        (None, Some(signal)) => format!("\"killed\":{signal}"),
        (None, None) => return,
    };
    send(
        socket,
        &format!("{{\"cpu_us\":{},{how},\"max_rss_kib\":{}}}", used.cpu_us, used.max_rss_kib),
        None,
    );
}

/// A closed socket is no error.
pub fn send(socket: &OwnedFd, message: &str, descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let passed: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !passed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&passed));
    }
    let _ = rustix::net::sendmsg(
        socket,
        &[IoSlice::new(message.as_bytes())],
        &mut control,
        SendFlags::NOSIGNAL,
    );
}
