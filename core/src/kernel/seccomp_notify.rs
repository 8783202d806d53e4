//! System calls that wait for the supervisor's answer (seccomp_unotify(2)). A task has at most one
//! listener, so all intercepted calls share it. The handlers elsewhere choose the answers.
//!
//! The caller can change its memory at any time. The supervisor may act on what it read from there.
//! It must not let the call continue because of it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::process_memory::ProcessMemory;
use super::sys::{self, Notification, Response};

/// PATH_MAX, including the NUL.
pub const MAX_PATH_BYTES: usize = 4096;
const CONTINUE_FLAG: u32 = 1; // SECCOMP_USER_NOTIF_FLAG_CONTINUE

pub struct NotifyListener {
    fd: OwnedFd,
}

/// A waiting call. It ends at any time if its caller is killed.
#[derive(Clone, Copy, Debug)]
pub struct InterceptedCall {
    id: u64,
    /// Thread id of the caller in the supervisor's pid namespace. It can be reused once the call
    /// has ended.
    pub thread: u32,
    pub number: i32,
    pub arguments: [u64; 6],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyAnswer {
    /// The kernel runs the call with the arguments that are in memory by then.
    Continue,
    Fail(Errno),
    Value(i64),
}

pub enum NextCall {
    Call(InterceptedCall),
    Nothing,
    /// No process with this filter is left.
    Closed,
}

impl NotifyListener {
    pub fn new(fd: OwnedFd) -> NotifyListener {
        NotifyListener { fd }
    }

    /// Readable when a call waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Takes a call without waiting for one. `seen`: the descriptor is already known to be ready. A
    /// caller that is killed meanwhile still makes the kernel return.
    pub fn next(&self, mut seen: bool) -> Result<NextCall, Errno> {
        loop {
            // SECCOMP_IOCTL_NOTIF_RECV blocks if no call waits, even on a non-blocking descriptor.
            let mut ready = [PollFd::new(&self.fd, PollFlags::IN)];
            if !std::mem::take(&mut seen) {
                match rustix::event::poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                    Err(Errno::INTR) => continue,
                    polled => polled?,
                };
                let seen = ready[0].revents();
                if !seen.contains(PollFlags::IN) {
                    return Ok(if seen.is_empty() { NextCall::Nothing } else { NextCall::Closed });
                }
            }
            match sys::notification(self.fd.as_fd()) {
                Ok(Notification { id, thread, number, arguments, .. }) => {
                    return Ok(NextCall::Call(InterceptedCall { id, thread, number, arguments }));
                }
                // The caller was killed meanwhile.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Facts that were read by the caller's thread id are valid only if this returns true
    /// afterwards.
    pub fn still_waits(&self, call: &InterceptedCall) -> bool {
        sys::notification_is_valid(self.fd.as_fd(), call.id)
    }

    /// Errors are ignored: the caller can be gone.
    pub fn answer(&self, call: &InterceptedCall, answer: NotifyAnswer) {
        let none = Response { id: call.id, value: 0, error: 0, flags: 0 };
        let response = match answer {
            NotifyAnswer::Continue => Response { flags: CONTINUE_FLAG, ..none },
            NotifyAnswer::Fail(errno) => Response { error: -errno.raw_os_error(), ..none },
            NotifyAnswer::Value(value) => Response { value, ..none },
        };
        let _ = sys::respond(self.fd.as_fd(), response);
    }
}

impl InterceptedCall {
    #[cfg(test)]
    pub fn for_test(thread: u32, number: i32, arguments: [u64; 6]) -> InterceptedCall {
        InterceptedCall { id: 0, thread, number, arguments }
    }

    /// The path at an address of the caller, without its NUL. A path that the kernel would refuse
    /// is an error.
    pub fn path(&self, address: u64) -> Result<Vec<u8>, Errno> {
        let mut path = Vec::with_capacity(256);
        ProcessMemory::of(self.thread).string(
            address,
            MAX_PATH_BYTES,
            Errno::NAMETOOLONG,
            &mut path,
        )?;
        Ok(path)
    }
}
