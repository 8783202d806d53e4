//! The warden of one command: starts it and tells how it ended.
//!
//! Orphans become the warden's children, so whatever descends from the command descends from it,
//! and it stays until nobody does: who holds the line knows by the kernel's word who speaks on it,
//! and finds them all below (executors/process_tree.py). It says, one message each:
//! `{"warden":PID}`; `{"started":PID}` or `{"failed":"cwd"|"exec"|…,"errno":N}`;
//! `{"exited":CODE,…}` or `{"killed":SIGNAL,…}`. The end of the line is its end.

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

use super::Request;
use crate::kernel::sys;
use crate::plan::wire::bytes::Text;
use crate::sandbox::command::Command;

/// How a warden ends that leaves nobody behind; and one that may.
pub const ALL_GONE: i32 = 0;
const SOME_LEFT: i32 = 1;

struct Failure {
    step: &'static str,
    errno: Errno,
}

pub fn refuse(line: &OwnedFd, step: &'static str, errno: Errno) -> i32 {
    say(line, &format!("{{\"errno\":{},\"failed\":\"{step}\"}}", errno.raw_os_error()), None);
    SOME_LEFT
}

/// The life of a warden.
pub fn look_after(request: &Request, standard: Vec<OwnedFd>, line: &OwnedFd) -> i32 {
    // From here on an end without a word is a command's work: it can kill us before we could say
    // that it runs.
    let own = rustix::process::getpid().as_raw_nonzero();
    say(line, &format!("{{\"warden\":{own}}}"), None);
    // The attendant's own line is not for its copies.
    let started = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .and_then(|null| rustix::stdio::dup2_stdin(&null))
        .and_then(|()| rustix::process::set_child_subreaper(Some(rustix::process::getpid())))
        .map_err(|errno| Failure { step: "warden", errno })
        .and_then(|()| start(request, standard, line));
    match started {
        Ok(command) => attend_to(command, line),
        Err(Failure { step, errno }) => refuse(line, step, errno),
    }
}

fn start(request: &Request, standard: Vec<OwnedFd>, line: &OwnedFd) -> Result<Pid, Failure> {
    let at = |step| move |errno| Failure { step, errno };
    let (terminal, standard) = match request.terminal {
        // In the sandbox, so that it is of the sandbox's own /dev/pts.
        Some(size) if standard.is_empty() => {
            let (ours, theirs) = open_terminal(size).map_err(at("terminal"))?;
            let copy = || {
                theirs.try_clone().map_err(|_| Failure { step: "terminal", errno: Errno::MFILE })
            };
            (Some(ours), vec![copy()?, copy()?, theirs])
        }
        _ => (None, standard),
    };
    let [stdin, stdout, stderr] = &standard[..] else {
        return Err(Failure { step: "request", errno: Errno::BADF });
    };
    let strings = |texts: &[Text]| {
        texts.iter().map(|text| text.as_c_str().into_owned()).collect::<Vec<CString>>()
    };
    let command = Command::new(strings(&request.argv), environment(strings(&request.environment)));
    let cwd = request.cwd.as_ref().map(|cwd| cwd.as_c_str().into_owned());
    // Closed by the exec. Waiting for that in the kernel, as vfork does, would be for ever where a
    // person is asked.
    let (heard, told) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(at("warden"))?;
    let child = sys::fork(|| {
        let entered = || -> Result<(), Failure> {
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
            // Who answers for its exec has to see what it asks for. Others may look too from here
            // on, and find nothing that is not its own.
            sys::close_all_but(&told);
            rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)
                .map_err(at("warden"))?;
            sys::reset_signal(libc::SIGPIPE);
            sys::reset_signal(libc::SIGXFSZ);
            sys::unblock_every_signal();
            Err(Failure { step: "exec", errno: command.exec() })
        };
        if let Err(Failure { step, errno }) = entered() {
            let _ = rustix::io::write(&told, format!("{} {step}", errno.raw_os_error()).as_bytes());
        }
        125
    })
    .map_err(at("fork"))?;
    drop(told);
    drop(standard);
    let mut word = [0; 32];
    let failed = loop {
        let mut ready = [PollFd::new(&heard, PollFlags::IN), PollFd::new(line, PollFlags::IN)];
        match rustix::event::poll(&mut ready, None) {
            // Nobody wants it any more, before it was anything.
            Ok(_) if !ready[1].revents().is_empty() => {
                let _ = rustix::process::kill_process(child, Signal::KILL);
                return Err(Failure { step: "ended", errno: Errno::INTR });
            }
            Ok(_) => {}
            Err(_) => continue,
        }
        match rustix::io::read(&heard, &mut word) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure { step: "warden", errno }),
            Ok(length) => break parse(&word[..length]),
        }
    };
    if let Some(failure) = failed {
        let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        return Err(failure);
    }
    let pid = child.as_raw_nonzero();
    say(
        line,
        &format!("{{\"started\":{pid}}}"),
        terminal.as_ref().map(|terminal| terminal.as_fd()),
    );
    Ok(child)
}

fn environment(given: Vec<CString>) -> Vec<CString> {
    let name =
        |entry: &CString| entry.as_bytes().split(|byte| *byte == b'=').next().map(<[u8]>::to_vec);
    let names: BTreeSet<_> = given.iter().map(name).collect();
    let own =
        sys::inherited_environment().into_iter().filter(|entry| !names.contains(&name(entry)));
    own.chain(given).collect()
}

/// None: nothing failed.
fn parse(word: &[u8]) -> Option<Failure> {
    let (errno, step) = std::str::from_utf8(word).ok()?.split_once(' ')?;
    let steps = ["exec", "cwd", "terminal", "warden"];
    let step = steps.into_iter().find(|known| *known == step)?;
    Some(Failure { step, errno: Errno::from_raw_os_error(errno.parse().ok()?) })
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

/// Until nothing is left of it, or nobody wants to know.
fn attend_to(command: Pid, line: &OwnedFd) -> i32 {
    let Ok(children) = sys::child_signal_descriptor() else { return SOME_LEFT };
    loop {
        sys::discard_child_signals();
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == command => tell_end(line, status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return ALL_GONE, // ECHILD
            }
        }
        let mut ready = [PollFd::new(line, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        if rustix::event::poll(&mut ready, None).is_ok() && !ready[0].revents().is_empty() {
            return SOME_LEFT;
        }
    }
}

fn tell_end(line: &OwnedFd, status: WaitStatus) {
    let used = sys::child_usage();
    let how = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("\"exited\":{code}"),
        (None, Some(signal)) => format!("\"killed\":{signal}"),
        (None, None) => return,
    };
    say(
        line,
        &format!("{{\"cpu_us\":{},{how},\"max_rss_kib\":{}}}", used.cpu_us, used.max_rss_kib),
        None,
    );
}

/// Whoever does not listen any more learns nothing.
pub fn say(line: &OwnedFd, word: &str, descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let given: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
    if !given.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&given));
    }
    let _ = rustix::net::sendmsg(
        line,
        &[IoSlice::new(word.as_bytes())],
        &mut control,
        SendFlags::NOSIGNAL,
    );
}
