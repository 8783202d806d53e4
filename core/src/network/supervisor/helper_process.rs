//! A helper process outside of the sandbox, and the socket on which it reports decisions.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::process::{Signal, WaitId, WaitIdOptions};

use crate::journal::event::network::NetworkDecision;
use crate::kernel::errno_names;
use crate::network::relay::relay_messages::{MAX_MESSAGE_BYTES, RelayRequest, SupervisorReply};
use crate::plan::wire::reader;

/// Time for its last messages after the sandbox has ended.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

pub struct HelperProcess {
    process: OwnedFd,
    pub socket: OwnedFd,
    /// Replies that do not fit into the socket now.
    unsent: VecDeque<String>,
}

pub enum HelperMessage {
    /// At least one decision.
    Decisions(Vec<NetworkDecision>),
    Request(RelayRequest),
    Nothing,
    End,
    Invalid,
}

impl HelperProcess {
    pub fn new(process: OwnedFd, socket: OwnedFd) -> HelperProcess {
        HelperProcess { process, socket, unsent: VecDeque::new() }
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub fn receive(&self) -> HelperMessage {
        let mut buffer = [MaybeUninit::<u8>::uninit(); MAX_MESSAGE_BYTES];
        loop {
            match rustix::net::recv(
                &self.socket,
                &mut buffer[..],
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return HelperMessage::Nothing,
                Ok((_, 0)) | Err(_) => return HelperMessage::End,
                // The full length, even if the message does not fit.
                Ok(((message, _), length)) if length <= MAX_MESSAGE_BYTES => {
                    let count = 1 + message.iter().filter(|byte| **byte == b'\n').count();
                    let mut decisions = Vec::with_capacity(count);
                    for socket in message.split(|byte| *byte == b'\n') {
                        match reader::from_slice(socket) {
                            Ok(one) => decisions.push(one),
                            Err(_) => {
                                return reader::from_slice(message)
                                    .map_or(HelperMessage::Invalid, HelperMessage::Request);
                            }
                        }
                    }
                    return HelperMessage::Decisions(decisions);
                }
                Ok(_) => return HelperMessage::Invalid,
            }
        }
    }

    pub fn reply(&mut self, reply: &SupervisorReply) {
        self.unsent.push_back(reply.message());
        self.flush();
    }

    pub fn flush(&mut self) {
        while let Some(message) = self.unsent.front() {
            match rustix::net::send(
                &self.socket,
                message.as_bytes(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return,
                // On another error the helper is gone; the next read reports that.
                Ok(_) | Err(_) => drop(self.unsent.pop_front()),
            }
        }
    }

    /// Tells the helper that the run has ended, and reads its last messages.
    pub fn finish(self, mut receive: impl FnMut(&NetworkDecision)) {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        loop {
            match self.receive() {
                HelperMessage::Decisions(decisions) => decisions.iter().for_each(&mut receive),
                // Too late for a request.
                HelperMessage::Request(_) => {}
                HelperMessage::End | HelperMessage::Invalid => return,
                HelperMessage::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || !is_ready(self.socket.as_fd(), left) {
                        return;
                    }
                }
            }
        }
    }

    /// Ends the helper and returns how it ended.
    pub fn end(&self) -> String {
        // A helper that closed its socket is about to exit. If it is not, the signal ends it.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        match rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("it ended with {code}"),
                (None, Some(signal)) => format!("it was killed by {}", errno_names::signal(signal)),
                (None, None) => "it ended".to_owned(),
            },
            // Another wait for all children has reaped it.
            _ => "it ended".to_owned(),
        }
    }
}

impl Drop for HelperProcess {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        let _ = rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
    }
}

pub fn is_ready(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    // Signals are blocked and do not interrupt this poll.
    matches!(rustix::event::poll(&mut waiting, timeout.as_ref()), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::event::network::tests::MESSAGE;
    use crate::kernel::socket_pair;
    use rustix::process::PidfdFlags;

    const FIND_OWNER: &str = "{\"who\":{\"id\":1,\"socket\":2}}";

    #[test]
    fn invalid_relay_messages_are_recognised() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let process =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let relay = std::mem::ManuallyDrop::new(HelperProcess::new(process, ours));
        let say = |text: &[u8]| rustix::net::send(&theirs, text, SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(relay.receive(), HelperMessage::Nothing));
        say(MESSAGE.as_bytes());
        assert!(
            matches!(relay.receive(), HelperMessage::Decisions(decisions) if decisions.len() == 1)
        );
        say(format!("{MESSAGE}\n{MESSAGE}").as_bytes());
        assert!(
            matches!(relay.receive(), HelperMessage::Decisions(decisions) if decisions.len() == 2)
        );
        for nonsense in [
            format!("{MESSAGE}\n"),
            format!("{MESSAGE}\n{{}}"),
            format!("{MESSAGE}\n{FIND_OWNER}"),
            format!("{FIND_OWNER}\n{FIND_OWNER}"),
        ] {
            say(nonsense.as_bytes());
            assert!(matches!(relay.receive(), HelperMessage::Invalid), "{nonsense}");
        }
        say(b"{}");
        assert!(matches!(relay.receive(), HelperMessage::Invalid));
        say(&[b' '; MAX_MESSAGE_BYTES + 1]);
        assert!(matches!(relay.receive(), HelperMessage::Invalid));
        say(FIND_OWNER.as_bytes());
        assert!(matches!(
            relay.receive(),
            HelperMessage::Request(RelayRequest::FindOwner { id: 1, socket: 2 })
        ));
        drop(theirs);
        assert!(matches!(relay.receive(), HelperMessage::End));
    }
}
