//! A program of ours beside the run, and the line on which it tells what it decided.

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
use crate::network::relay::relay_messages::{LONGEST, Reply, Request};
use crate::plan::wire::reader;

/// For what it still has to say when everything inside has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub struct HelperProcess {
    process: OwnedFd,
    pub line: OwnedFd,
    /// Replies that it does not take now.
    unsent: VecDeque<String>,
}

pub enum Said {
    /// At least one.
    Decisions(Vec<NetworkDecision>),
    Asked(Request),
    Nothing,
    End,
    Nonsense,
}

impl HelperProcess {
    pub fn new(process: OwnedFd, line: OwnedFd) -> HelperProcess {
        HelperProcess { process, line, unsent: VecDeque::new() }
    }

    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub fn hear(&self) -> Said {
        let mut buffer = [MaybeUninit::<u8>::uninit(); LONGEST];
        loop {
            match rustix::net::recv(
                &self.line,
                &mut buffer[..],
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Said::Nothing,
                Ok((_, 0)) | Err(_) => return Said::End,
                // The whole length, also of one that does not fit.
                Ok(((message, _), length)) if length <= LONGEST => {
                    let count = 1 + message.iter().filter(|byte| **byte == b'\n').count();
                    let mut told = Vec::with_capacity(count);
                    for line in message.split(|byte| *byte == b'\n') {
                        match reader::from_slice(line) {
                            Ok(one) => told.push(one),
                            Err(_) => {
                                return reader::from_slice(message)
                                    .map_or(Said::Nonsense, Said::Asked);
                            }
                        }
                    }
                    return Said::Decisions(told);
                }
                Ok(_) => return Said::Nonsense,
            }
        }
    }

    pub fn reply(&mut self, reply: &Reply) {
        self.unsent.push_back(reply.message());
        self.flush();
    }

    pub fn flush(&mut self) {
        while let Some(message) = self.unsent.front() {
            match rustix::net::send(
                &self.line,
                message.as_bytes(),
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return,
                // If it failed it is gone, and that is heard.
                Ok(_) | Err(_) => drop(self.unsent.pop_front()),
            }
        }
    }

    /// Tells it that it is over, and hears its last words.
    pub fn finish(self, mut hear: impl FnMut(&NetworkDecision)) {
        let deadline = Instant::now() + LAST_WORDS;
        let _ = rustix::net::shutdown(&self.line, Shutdown::Write);
        loop {
            match self.hear() {
                Said::Decisions(told) => told.iter().for_each(&mut hear),
                // It is too late for that.
                Said::Asked(_) => {}
                Said::End | Said::Nonsense => return,
                Said::Nothing => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || !is_ready(self.line.as_fd(), left) {
                        return;
                    }
                }
            }
        }
    }

    /// Makes sure that it has ended, and says how.
    pub fn end(&self) -> String {
        // Who closed the line is about to go, and its end is as it is; who only did that goes as
        // well.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        match rustix::process::waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("it ended with {code}"),
                (None, Some(signal)) => format!("it was killed by {}", errno_names::signal(signal)),
                (None, None) => "it ended".to_owned(),
            },
            // Whoever waits for every child was here before.
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

pub fn is_ready(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let within = Timespec::try_from(within).ok();
    // Signals are held, and wake nobody here.
    matches!(rustix::event::poll(&mut waiting, within.as_ref()), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::event::network::tests::MESSAGE;
    use crate::kernel::socket_pair;
    use rustix::process::PidfdFlags;

    const WHO: &str = "{\"who\":{\"id\":1,\"socket\":2}}";

    #[test]
    fn a_relay_that_talks_nonsense_or_too_much_is_not_believed() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let process =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let relay = std::mem::ManuallyDrop::new(HelperProcess::new(process, ours));
        let say = |text: &[u8]| rustix::net::send(&theirs, text, SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(relay.hear(), Said::Nothing));
        say(MESSAGE.as_bytes());
        assert!(matches!(relay.hear(), Said::Decisions(told) if told.len() == 1));
        say(format!("{MESSAGE}\n{MESSAGE}").as_bytes());
        assert!(matches!(relay.hear(), Said::Decisions(told) if told.len() == 2));
        for nonsense in [
            format!("{MESSAGE}\n"),
            format!("{MESSAGE}\n{{}}"),
            format!("{MESSAGE}\n{WHO}"),
            format!("{WHO}\n{WHO}"),
        ] {
            say(nonsense.as_bytes());
            assert!(matches!(relay.hear(), Said::Nonsense), "{nonsense}");
        }
        say(b"{}");
        assert!(matches!(relay.hear(), Said::Nonsense));
        say(&[b' '; LONGEST + 1]);
        assert!(matches!(relay.hear(), Said::Nonsense));
        say(WHO.as_bytes());
        assert!(matches!(relay.hear(), Said::Asked(Request::Who { id: 1, socket: 2 })));
        drop(theirs);
        assert!(matches!(relay.hear(), Said::End));
    }
}
