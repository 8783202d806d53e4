//! The socket to the session owner: a program outside for which the exec server starts commands
//! (`commands/exec_server/mod.rs`). The supervisor reports refusals on it. When the socket closes,
//! the run ends. The exec server also sees the end of its own socket, but a command can stop the
//! exec server.

use std::fmt::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::journal::event::Event;
use crate::kernel::proc_text;

/// Time for the exec server to end by itself.
const EXEC_SERVER_TIMEOUT: Duration = Duration::from_secs(1);

pub struct SessionOwner {
    socket: OwnedFd,
    gone: Option<Instant>,
}

impl SessionOwner {
    pub fn new(socket: OwnedFd) -> SessionOwner {
        SessionOwner { socket, gone: None }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.gone.is_none().then(|| self.socket.as_fd())
    }

    /// The time by which the run has to end.
    pub fn deadline(&self) -> Option<Instant> {
        self.gone.map(|at| at + EXEC_SERVER_TIMEOUT)
    }

    /// Sends a refusal, as the journal has it, with the pid of the command reaper that it concerns.
    /// If the owner does not read, the journal still has the refusal.
    pub fn tell(&self, event: &Event<'_>, reaper: Option<u32>) {
        let mut message = format!("{{{},\"warden\":", event.body());
        let _ = match reaper {
            Some(reaper) => write!(message, "{reaper}}}"),
            None => write!(message, "null}}"),
        };
        self.say(message.as_bytes());
    }

    /// Sent once, before the command starts: whether the sandbox keeps the command from writing
    /// outside of its grants.
    pub fn tell_confinement(&self, writes: bool) {
        self.say(format!("{{\"event\":\"confinement\",\"writes\":{writes}}}").as_bytes());
    }

    /// The number of the owner's last question whether all events were sent. The owner waits for
    /// the answer.
    pub fn receive(&mut self) -> Option<u64> {
        let mut question = None;
        let mut word = [0; 16];
        while self.gone.is_none() {
            match rustix::net::recv(&self.socket, &mut word, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => self.gone = Some(Instant::now()),
                Ok((_, length)) => {
                    question = proc_text::number(&word[..length.min(word.len())]).or(question)
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.gone = Some(Instant::now()),
            }
        }
        question
    }

    pub fn answer(&self, question: u64) {
        self.say(format!("{{\"event\":\"told\",\"question\":{question}}}").as_bytes());
    }

    fn say(&self, message: &[u8]) {
        let _ = rustix::net::send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::socket_pair;

    fn received(theirs: &OwnedFd) -> String {
        let mut buffer = [0; 4096];
        let (_, length) = rustix::net::recv(theirs, &mut buffer, RecvFlags::DONTWAIT).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn the_last_question_is_answered_and_invalid_ones_are_dropped() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut session_owner = SessionOwner::new(ours);
        assert_eq!(session_owner.receive(), None);
        for word in [&b"1"[..], b"2", b"two"] {
            rustix::net::send(&theirs, word, SendFlags::empty()).unwrap();
        }
        assert_eq!(session_owner.receive(), Some(2));
        session_owner.answer(2);
        assert_eq!(received(&theirs), "{\"event\":\"told\",\"question\":2}");
        assert!(session_owner.fd().is_some() && session_owner.deadline().is_none());
    }

    #[test]
    fn a_refusal_is_sent_with_its_command_reaper() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let session_owner = SessionOwner::new(ours);
        for reaper in [Some(7), None] {
            session_owner.tell(&Event::Refused { error: "x" }, reaper);
            let message: serde_json::Value = serde_json::from_str(&received(&theirs)).unwrap();
            assert_eq!(message["warden"], serde_json::json!(reaper), "{message}");
        }
    }

    #[test]
    fn the_run_ends_soon_after_the_session_owner() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut session_owner = SessionOwner::new(ours);
        drop(theirs);
        assert_eq!(session_owner.receive(), None);
        assert!(session_owner.fd().is_none(), "it would be ready for ever");
        assert!(
            session_owner
                .deadline()
                .is_some_and(|deadline| deadline <= Instant::now() + EXEC_SERVER_TIMEOUT)
        );
        session_owner.tell(&Event::Refused { error: "x" }, None); // the socket is closed
    }
}
