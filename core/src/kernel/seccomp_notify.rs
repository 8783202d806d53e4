//! System calls that wait for the supervisor's answer (seccomp_unotify(2)). A task has one listener
//! at most, so whatever is to be answered shares this one; what the answers are is no matter of
//! this file.
//!
//! What a caller's memory holds may be changed by others at any time: what was read here is good
//! for acting on it ourselves, never for letting the call go on because of it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::process_memory::ProcessMemory;
use super::sys::{self, Notification, Response};

/// With its NUL (PATH_MAX).
pub const MAX_PATH_BYTES: usize = 4096;
const CONTINUE_FLAG: u32 = 1; // SECCOMP_USER_NOTIF_FLAG_CONTINUE

pub struct NotifyListener {
    fd: OwnedFd,
}

/// A call that waits. It may be given up at any time, when its caller is killed.
#[derive(Clone, Copy, Debug)]
pub struct InterceptedCall {
    id: u64,
    /// The caller, by its number on this side. It may be another's once the call is given up.
    pub thread: u32,
    pub number: i32,
    pub arguments: [u64; 6],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallAnswer {
    /// The kernel carries the call out, with whatever its arguments are by then.
    Continue,
    Fail(Errno),
    Value(i64),
}

pub enum NextCall {
    Call(InterceptedCall),
    Nothing,
    /// Nobody is left who could call.
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

    /// Takes a call, without waiting for one. `seen`: something is there for us, a call or the end
    /// of all; whoever was there and is killed meanwhile still counts for the kernel, so that it
    /// does not wait then either.
    pub fn next(&self, mut seen: bool) -> Result<NextCall, Errno> {
        loop {
            // Receiving waits where nobody calls, whatever the flags of the descriptor are.
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
                // The caller was killed since.
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Until this was seen to be true, what was found under the caller's number may have been
    /// another's.
    pub fn still_waits(&self, call: &InterceptedCall) -> bool {
        sys::notification_is_valid(self.fd.as_fd(), call.id)
    }

    /// A caller that is gone needs none.
    pub fn answer(&self, call: &InterceptedCall, answer: CallAnswer) {
        let none = Response { id: call.id, value: 0, error: 0, flags: 0 };
        let response = match answer {
            CallAnswer::Continue => Response { flags: CONTINUE_FLAG, ..none },
            CallAnswer::Fail(errno) => Response { error: -errno.raw_os_error(), ..none },
            CallAnswer::Value(value) => Response { value, ..none },
        };
        let _ = sys::respond(self.fd.as_fd(), response);
    }
}

impl InterceptedCall {
    #[cfg(test)]
    pub fn for_test(thread: u32, number: i32, arguments: [u64; 6]) -> InterceptedCall {
        InterceptedCall { id: 0, thread, number, arguments }
    }

    /// The path at an address of the caller's, without its NUL. One that the kernel would not take
    /// is an error here too.
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
