//! Calls on sockets of other processes, with addresses as raw bytes.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;

use super::{Result, check};

/// A duplicate of a descriptor of another thread's process.
pub fn duplicate_descriptor(thread: u32, number: i32) -> Result<OwnedFd> {
    const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
    // SAFETY: takes numbers, makes a new descriptor.
    let open = |flags: u32| check(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) });
    // Before Linux 6.9 only a whole process has a pidfd.
    let handle = open(PIDFD_THREAD).or_else(|_| open(0))?;
    // SAFETY: the kernel just made this descriptor, and no other value owns it.
    let handle = unsafe { OwnedFd::from_raw_fd(handle as i32) };
    // SAFETY: takes numbers, makes a new descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), number, 0) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Another process sent SIGALRM while this timer ran.
static FOREIGN_ALARM: AtomicBool = AtomicBool::new(false);

extern "C" fn on_alarm(_signal: i32, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a pointer to a siginfo_t that lives as long as the handler runs.
    if unsafe { (*info).si_code } <= 0 {
        FOREIGN_ALARM.store(true, Ordering::SeqCst);
    }
}

/// Connects, and returns soon after `timeout` (EINTR). The socket also belongs to the command, so
/// its flags and timeouts can change at any time and are not used. A started connection continues.
/// All signals are blocked before and after.
pub fn connect_within(socket: BorrowedFd<'_>, address: &[u8], timeout: Duration) -> Result<()> {
    let pause =
        libc::timeval { tv_sec: timeout.as_secs() as _, tv_usec: timeout.subsec_micros() as _ };
    let never = libc::timeval { tv_sec: 0, tv_usec: 0 };
    // The timer repeats: a signal that arrives before connect blocks would be lost.
    let armed = libc::itimerval { it_interval: pause, it_value: pause };
    let disarmed = libc::itimerval { it_interval: never, it_value: never };
    // SAFETY: all structs are plain numbers on this stack, for which zero is a value; the handler
    // only stores to a static; the kernel reads as many bytes of the address as it has.
    let connected = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction =
            on_alarm as extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
        let mut alarm: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigemptyset(&raw mut alarm);
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        libc::setitimer(libc::ITIMER_REAL, &raw const armed, ptr::null_mut());
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, ptr::null_mut());
        let length = address.len() as libc::socklen_t;
        let connected =
            check(libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length).into())
                .map(drop);
        libc::setitimer(libc::ITIMER_REAL, &raw const disarmed, ptr::null_mut());
        libc::sigprocmask(libc::SIG_BLOCK, &raw const alarm, ptr::null_mut());
        connected
    };
    if FOREIGN_ALARM.swap(false, Ordering::SeqCst) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::ALARM);
    }
    connected
}

pub fn bind_to(socket: BorrowedFd<'_>, address: &[u8]) -> Result<()> {
    let length = address.len() as libc::socklen_t;
    // SAFETY: the kernel reads as many bytes of the address as it has.
    check(unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr().cast(), length) }.into())
        .map(drop)
}
