//! Signals: blocked, received one by one, and sent to one process.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;

use super::{Result, check, last_errno};

/// A signal mask to restore later.
pub struct SignalMask(libc::sigset_t);

/// One received signal.
pub struct ReceivedSignal {
    pub signal: i32,
    /// The process that sent it with kill(2) or a similar call. None: the kernel sent it (a key on
    /// the terminal, a timer).
    pub sender: Option<i32>,
}

fn every_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigfillset initialises the whole set. A fault in the core ends the process although
    // the signal is blocked: the kernel forces that.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Blocks all signals, to receive them one by one. SIGCHLD gets its default action: if it is
/// ignored, there are no children to wait for.
pub fn block_signals() -> SignalMask {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets are valid, `before` is written by the call; SIG_DFL installs no code.
    unsafe {
        libc::sigprocmask(libc::SIG_BLOCK, &every_signal(), before.as_mut_ptr());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        SignalMask(before.assume_init())
    }
}

pub fn restore_signal_mask(mask: &SignalMask) {
    // SAFETY: the mask was filled by sigprocmask.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &mask.0, ptr::null_mut()) };
}

/// Unblocks all signals, for a helper process that the core starts.
pub fn unblock_every_signal() {
    let mut none = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set before it is used.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Stops this process by a blocked signal, as the terminal would, so that the parent sees the same
/// stop. Returns after SIGCONT.
pub fn stop_self_by(signal: i32) {
    reset_signal(signal);
    // SAFETY: the set is initialised before use. Raising a blocked signal only marks it; unblocking
    // it stops this process.
    unsafe {
        let mut only = MaybeUninit::uninit();
        libc::sigemptyset(only.as_mut_ptr());
        let mut only = only.assume_init();
        libc::sigaddset(&mut only, signal);
        libc::kill(libc::getpid(), signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &only, ptr::null_mut());
    }
}

/// A closed peer is then an error of the call: splice(2) has no MSG_NOSIGNAL.
pub fn ignore_broken_pipe_signal() {
    // SAFETY: SIG_IGN installs no code.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// A file size limit is then an error of the write, instead of the end of this process.
pub fn ignore_file_size_signal() {
    // SAFETY: SIG_IGN installs no code.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Restores the default action of a signal that a Python interpreter before execve had set to
/// "ignore".
pub fn reset_signal(signal: i32) {
    // SAFETY: SIG_DFL installs no code; the number is a constant of libc.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Sleeps until a blocked signal arrives or the timeout passes.
pub fn next_signal(timeout: Option<Duration>) -> Option<ReceivedSignal> {
    let set = every_signal();
    let limit = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as _,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: all three point to live values of the right type; `info` is filled when a signal
        // is returned.
        let signal = unsafe { libc::sigtimedwait(&set, info.as_mut_ptr(), limit) };
        if signal > 0 {
            // SAFETY: filled by the call above; si_pid is defined for si_code <= 0 from kill, tkill
            // and sigqueue.
            let sender = unsafe {
                let info = info.assume_init();
                matches!(info.si_code, libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE)
                    .then(|| info.si_pid())
            };
            return Some(ReceivedSignal { signal, sender });
        }
        if last_errno() != Errno::INTR {
            return None;
        }
    }
}

/// True if a signal that asks this process to end is pending. The signal stays pending.
pub fn has_end_signal() -> bool {
    let mut waiting = MaybeUninit::uninit();
    // SAFETY: sigpending initialises the whole set before it is looked at.
    unsafe {
        if libc::sigpending(waiting.as_mut_ptr()) != 0 {
            return false;
        }
        let waiting = waiting.assume_init();
        let asks = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
        asks.into_iter().any(|signal| libc::sigismember(&waiting, signal) == 1)
    }
}

/// A descriptor that is readable while a blocked signal is pending. [`received_signals`] or
/// [`next_signal`] takes the signal.
pub fn signal_descriptor() -> Result<OwnedFd> {
    // SAFETY: makes a new descriptor; the set is valid and copied.
    let fd = unsafe { libc::signalfd(-1, &every_signal(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(fd.into())?;
    // SAFETY: the kernel just made this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The pending signals, up to `MAX_SIGNALS_PER_READ`. The descriptor stays readable if more are
/// pending.
pub fn received_signals(signals: BorrowedFd<'_>) -> impl Iterator<Item = ReceivedSignal> {
    const MAX_SIGNALS_PER_READ: usize = 8;
    let mut info: [MaybeUninit<libc::signalfd_siginfo>; MAX_SIGNALS_PER_READ] =
        [const { MaybeUninit::uninit() }; MAX_SIGNALS_PER_READ];
    // SAFETY: the kernel writes whole records, and no more than there is room for.
    let read =
        unsafe { libc::read(signals.as_raw_fd(), info.as_mut_ptr().cast(), size_of_val(&info)) };
    let count = usize::try_from(read).unwrap_or(0) / size_of::<libc::signalfd_siginfo>();
    info.into_iter().take(count).map(|info| {
        // SAFETY: so many were written.
        let info = unsafe { info.assume_init() };
        let sent = matches!(info.ssi_code, libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE);
        ReceivedSignal {
            signal: info.ssi_signo as i32,
            sender: sent.then_some(info.ssi_pid as i32),
        }
    })
}

/// A descriptor that is readable when a child ends or stops. [`discard_child_signals`] takes these
/// signals.
pub fn child_signal_descriptor() -> Result<OwnedFd> {
    // SAFETY: makes a new descriptor; the set is valid and copied.
    let fd =
        unsafe { libc::signalfd(-1, &child_signal_set(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    check(fd.into())?;
    // SAFETY: the kernel just made this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn discard_child_signals() {
    let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set and the time live on this stack; no facts are asked for.
    while unsafe { libc::sigtimedwait(&child_signal_set(), ptr::null_mut(), &none) } > 0 {}
}

fn child_signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// Sends a signal by number to the process behind a pidfd.
pub fn send_signal_to(process: BorrowedFd<'_>, signal: i32) -> Result<()> {
    let none: *const c_void = ptr::null();
    // SAFETY: numbers and a null pointer only.
    check(unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, none, 0)
    })
    .map(drop)
}

/// Sends a signal by number, real-time ones included.
pub fn send_signal(pid: Pid, signal: i32) -> Result<()> {
    // SAFETY: kill takes two numbers; pid is positive, so it names one process.
    check(unsafe { libc::kill(pid.as_raw_nonzero().get(), signal) }.into()).map(drop)
}
