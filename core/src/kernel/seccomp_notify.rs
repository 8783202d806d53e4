//! System calls that wait for the supervisor's answer (seccomp_unotify(2)). A task has at most one
//! listener, so all intercepted calls share it. The handlers elsewhere choose the answers.
//!
//! The caller can change its memory at any time. The supervisor may act on what it read from there.
//! It must not let the call continue because of it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::pid_namespace::PidNamespace;
use super::process_memory::ProcessMemory;
use super::sys::{self, Notification, Response};

/// PATH_MAX, including the NUL.
pub const MAX_PATH_BYTES: usize = 4096;
const CONTINUE_FLAG: u32 = 1; // SECCOMP_USER_NOTIF_FLAG_CONTINUE

pub struct NotifyListener {
    fd: OwnedFd,
    /// Another process receives the calls, and sends the others here.
    receiver: Option<CallReceiver>,
}

/// The process that receives the calls.
struct CallReceiver {
    socket: OwnedFd,
    /// The pid namespace of that process, if it is not the one of the supervisor.
    namespace: Option<PidNamespace>,
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
    /// A rename in a copy, which that process has left to the supervisor.
    RenameInCopy(InterceptedCall),
    /// Another message of the process that receives the calls.
    Message(Vec<u8>),
    Nothing,
    /// No process with this filter is left.
    Closed,
}

impl NotifyListener {
    pub fn new(fd: OwnedFd) -> NotifyListener {
        NotifyListener { fd, receiver: None }
    }

    /// From now on another process receives the calls. It sends those that it does not answer.
    pub fn forward_from(&mut self, socket: OwnedFd, namespace: Option<PidNamespace>) {
        self.receiver = Some(CallReceiver { socket, namespace });
    }

    /// The descriptor of the kernel.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Readable when a call waits.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_ref().map_or(&self.fd, |receiver| &receiver.socket).as_fd()
    }

    /// Sends a call to the process that receives the calls.
    pub fn hand_over(&self, call: &InterceptedCall) -> Result<(), Errno> {
        let CallReceiver { socket, namespace } = self.receiver.as_ref().ok_or(Errno::NOTCONN)?;
        let thread = match namespace {
            Some(namespace) => namespace.thread_there(call.thread).ok_or(Errno::SRCH)?,
            None => call.thread,
        };
        InterceptedCall { thread, ..*call }.send(socket.as_fd())
    }

    /// The id here of a thread that the process with the calls has named. None: it has ended.
    pub fn thread_here(&self, there: u32) -> Option<u32> {
        match self.receiver.as_ref().and_then(|receiver| receiver.namespace.as_ref()) {
            Some(namespace) => namespace.thread_here(there),
            None => Some(there),
        }
    }

    /// The next message of the process that receives the calls.
    fn next_forwarded(&self, socket: &OwnedFd) -> Result<NextCall, Errno> {
        let mut bytes = [0; MAX_FORWARDED_BYTES];
        loop {
            let length = match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(NextCall::Nothing),
                Err(Errno::CONNRESET) => return Ok(NextCall::Closed),
                Err(errno) => return Err(errno),
                Ok((_, 0)) => return Ok(NextCall::Closed),
                Ok((_, length)) => length,
            };
            let Some((tag, call)) = InterceptedCall::parse_any(&bytes[..length]) else {
                return Ok(NextCall::Message(bytes[..length].to_vec()));
            };
            // The thread has ended, or its id can not be read. A waiting caller gets an answer.
            let Some(thread) = self.thread_here(call.thread) else {
                self.answer(&call, NotifyAnswer::Fail(Errno::ACCESS));
                continue;
            };
            let call = InterceptedCall { thread, ..call };
            return Ok(match tag {
                RENAME_IN_COPY_TAG => NextCall::RenameInCopy(call),
                _ => NextCall::Call(call),
            });
        }
    }

    /// Takes a call without waiting for one. `seen`: the descriptor is already known to be ready. A
    /// caller that is killed meanwhile still makes the kernel return.
    pub fn next(&self, mut seen: bool) -> Result<NextCall, Errno> {
        if let Some(receiver) = &self.receiver {
            return self.next_forwarded(&receiver.socket);
        }
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

    /// Gives the caller a descriptor as the answer. ENOENT: the caller is gone. This process closes
    /// its own copy before the caller goes on: nobody can execute a file that is open for writing.
    pub fn answer_with_fd(
        &self,
        call: &InterceptedCall,
        descriptor: OwnedFd,
        close_on_exec: bool,
    ) -> Result<(), Errno> {
        let listener = self.fd.as_fd();
        let number = sys::add_descriptor(listener, call.id, descriptor.as_fd(), close_on_exec)?;
        drop(descriptor);
        self.answer(call, NotifyAnswer::Value(number));
        Ok(())
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

/// A message with this first byte is a call.
const CALL_TAG: u8 = b'C';
/// A message with this first byte is a rename in a copy.
const RENAME_IN_COPY_TAG: u8 = b'M';
const CALL_BYTES: usize = 1 + 8 + 4 + 4 + 6 * 8;
/// A call, or a message with a path.
pub const MAX_FORWARDED_BYTES: usize = MAX_PATH_BYTES + 256;

impl InterceptedCall {
    /// Sends the call to another process with the same listener.
    pub fn send(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.send_as(CALL_TAG, socket)
    }

    /// Leaves a rename in a copy to the supervisor.
    pub fn send_rename_in_copy(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        self.send_as(RENAME_IN_COPY_TAG, socket)
    }

    fn send_as(&self, tag: u8, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut bytes = Vec::with_capacity(CALL_BYTES);
        bytes.push(tag);
        bytes.extend(self.id.to_ne_bytes());
        bytes.extend(self.thread.to_ne_bytes());
        bytes.extend(self.number.to_ne_bytes());
        self.arguments.iter().for_each(|argument| bytes.extend(argument.to_ne_bytes()));
        rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    /// None: the message is no call.
    pub fn parse(bytes: &[u8]) -> Option<InterceptedCall> {
        let (tag, call) = InterceptedCall::parse_any(bytes)?;
        (tag == CALL_TAG).then_some(call)
    }

    fn parse_any(bytes: &[u8]) -> Option<(u8, InterceptedCall)> {
        let [tag @ (CALL_TAG | RENAME_IN_COPY_TAG), bytes @ ..] = bytes else { return None };
        let (id, bytes) = bytes.split_first_chunk()?;
        let (thread, bytes) = bytes.split_first_chunk()?;
        let (number, mut bytes) = bytes.split_first_chunk()?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            let (word, rest) = bytes.split_first_chunk()?;
            (*argument, bytes) = (u64::from_ne_bytes(*word), rest);
        }
        let call = InterceptedCall {
            id: u64::from_ne_bytes(*id),
            thread: u32::from_ne_bytes(*thread),
            number: i32::from_ne_bytes(*number),
            arguments,
        };
        bytes.is_empty().then_some((*tag, call))
    }

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
