//! Messages from the relay to the supervisor: decisions and questions
//! ([`crate::network::relay::relay_messages`]). None is dropped: if the supervisor falls behind,
//! the relay serves nothing until it has caught up. Otherwise a flood of connections could hide one
//! decision.
//!
//! Connections that end in the same turn are reported together: waking the supervisor for each
//! costs more than everything else about its end. Other decisions are reported before they take
//! effect.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::relay_messages::{MAX_MESSAGE_BYTES, RelayRequest, SocketProcess, SupervisorReply};
use crate::network::supervisor::loopback_proxy::{self, Received};
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};

/// The relay stops serving at this many unsent decisions; the socket holds some more.
const MAX_WAITING_DECISIONS: usize = 1024;

/// The supervisor must read within this time at the end.
const FINISH_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Decisions that wait for the end of a turn.
const MAX_BATCHED_DECISIONS: usize = 32;

/// Hosts come from inside. The longest name fits; a longer text is cut.
const MAX_TEXT_CHARS: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionLayer {
    /// A DNS question.
    Name,
    Connect,
    /// An HTTP request on an allowed connection.
    Request,
    /// A connection to a published port.
    Publish,
}

#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub sent: u64,
    pub received: u64,
    pub ms: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionResult {
    Allowed,
    Denied,
    /// Allowed, but not reachable.
    Failed,
}

/// A person's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonAnswer {
    /// None: there was no answer.
    pub by: Option<String>,
    pub ms: u64,
}

pub struct RelayDecision<'a> {
    pub layer: DecisionLayer,
    pub result: ConnectionResult,
    /// The process that owns the connection.
    pub process: Option<&'a SocketProcess>,
    pub answer: Option<&'a PersonAnswer>,
    pub host: Option<&'a dyn fmt::Display>,
    pub port: Option<u16>,
    pub address: Option<IpAddr>,
    pub rule: Option<&'a dyn fmt::Display>,
    pub reason: Option<&'a str>,
    pub traffic: Option<Traffic>,
}

impl RelayDecision<'_> {
    fn message(&self) -> String {
        let layer = match self.layer {
            DecisionLayer::Name => "name",
            DecisionLayer::Connect => "connect",
            DecisionLayer::Request => "request",
            DecisionLayer::Publish => "publish",
        };
        let action = match self.result {
            ConnectionResult::Allowed => "allow",
            ConnectionResult::Denied => "deny",
            ConnectionResult::Failed => "fail",
        };
        let mut out = String::with_capacity(384);
        let _ =
            write!(out, "{{\"event\":\"network\",\"layer\":\"{layer}\",\"action\":\"{action}\"");
        text(&mut out, "host", self.host);
        number(&mut out, "port", self.port.map(u128::from));
        text(
            &mut out,
            "address",
            self.address.as_ref().map(|address| address as &dyn fmt::Display),
        );
        text(&mut out, "rule", self.rule);
        text(&mut out, "reason", self.reason.as_ref().map(|reason| reason as &dyn fmt::Display));
        number(&mut out, "sent", self.traffic.map(|traffic| traffic.sent.into()));
        number(&mut out, "received", self.traffic.map(|traffic| traffic.received.into()));
        number(&mut out, "ms", self.traffic.map(|traffic| traffic.ms));
        number(&mut out, "pid", self.process.map(|process| process.pid.into()));
        text(&mut out, "exe", self.process.map(|process| &process.exe as &dyn fmt::Display));
        let by = self.answer.and_then(|answer| answer.by.as_ref());
        text(&mut out, "by", by.map(|by| by as &dyn fmt::Display));
        number(&mut out, "asked_ms", self.answer.map(|answer| answer.ms.into()));
        out.push('}');
        out
    }
}

fn text(out: &mut String, key: &str, value: Option<&dyn fmt::Display>) {
    let _ = write!(out, ",\"{key}\":");
    match value {
        Some(value) => {
            writer::string_within(out, value.to_string().as_bytes(), NonUtf8::Text, MAX_TEXT_CHARS)
        }
        None => out.push_str("null"),
    }
}

fn number(out: &mut String, key: &str, value: Option<u128>) {
    let _ = match value {
        Some(value) => write!(out, ",\"{key}\":{value}"),
        None => write!(out, ",\"{key}\":null"),
    };
}

/// What the supervisor says.
pub enum SupervisorMessage {
    Client(OwnedFd),
    Reply(SupervisorReply),
    Nothing,
    /// The run has ended: the other end is closed.
    Over,
}

pub struct DecisionLog {
    socket: OwnedFd,
    /// At most one for each connection.
    requests: VecDeque<String>,
    decisions: VecDeque<String>,
    is_over: bool,
}

impl DecisionLog {
    pub fn new(socket: OwnedFd) -> DecisionLog {
        DecisionLog {
            socket,
            requests: VecDeque::new(),
            decisions: VecDeque::new(),
            is_over: false,
        }
    }

    pub fn report(&mut self, decision: &RelayDecision<'_>) {
        self.decisions.push_back(decision.message());
        let due = decision.result != ConnectionResult::Allowed
            || self.decisions.len() >= MAX_BATCHED_DECISIONS;
        // While the supervisor is behind, no send is tried.
        if due && !self.is_behind() {
            self.flush();
        }
    }

    pub fn is_behind(&self) -> bool {
        self.decisions.len() >= MAX_WAITING_DECISIONS && !self.is_over
    }

    /// Waits until the supervisor reads or sends.
    pub fn wait(&self) -> Result<(), Errno> {
        match rustix::event::poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)],
            None,
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    pub fn ask(&mut self, request: &RelayRequest) {
        self.requests.push_back(request.message());
        self.flush();
    }

    /// Sends the waiting messages as far as the socket takes them.
    pub fn flush(&mut self) {
        while let Some(message) = self.requests.pop_front() {
            if !self.send(&message) {
                return self.requests.push_front(message);
            }
        }
        while let Some(first) = self.decisions.front() {
            let mut message = first.clone();
            let mut count = 1;
            for next in self.decisions.iter().skip(1) {
                if message.len() + 1 + next.len() > MAX_MESSAGE_BYTES {
                    break;
                }
                message.push('\n');
                message.push_str(next);
                count += 1;
            }
            if !self.send(&message) {
                return;
            }
            self.decisions.drain(..count);
        }
    }

    fn send(&mut self, message: &str) -> bool {
        match rustix::net::send(
            &self.socket,
            message.as_bytes(),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(_) => true,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM) => false,
            Err(_) => {
                self.is_over = true;
                false
            }
        }
    }

    /// Sends the last messages while the supervisor reads.
    pub fn finish(&mut self) {
        loop {
            self.flush();
            if self.decisions.is_empty() || self.is_over {
                return;
            }
            match rustix::event::poll(
                &mut [PollFd::new(&self.socket, PollFlags::OUT)],
                Some(&FINISH_TIMEOUT),
            ) {
                Ok(1..) | Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Reads a message. In the landlock tier clients arrive here too.
    pub fn next_message(&mut self) -> SupervisorMessage {
        let received =
            if self.is_over { Received::End } else { loopback_proxy::receive(self.socket.as_fd()) };
        match received {
            Received::Client(client) => return SupervisorMessage::Client(client),
            Received::Nothing => return SupervisorMessage::Nothing,
            Received::Message(message) => {
                if let Ok(reply) = reader::from_slice(&message) {
                    return SupervisorMessage::Reply(reply);
                }
                // An invalid message counts as the end: there is no other sender.
            }
            Received::End => {}
        }
        self.is_over = true;
        SupervisorMessage::Over
    }
}

impl AsFd for DecisionLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl RelayDecision<'_> {
    /// A denial without details.
    pub fn denial(layer: DecisionLayer) -> RelayDecision<'static> {
        RelayDecision {
            layer,
            result: ConnectionResult::Denied,
            process: None,
            answer: None,
            host: None,
            port: None,
            address: None,
            rule: None,
            reason: None,
            traffic: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
    use serde_json::Value;

    fn pair() -> (DecisionLog, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        (DecisionLog::new(ours), theirs)
    }

    fn received_lines(socket: &OwnedFd) -> Vec<Value> {
        let mut message = [0; MAX_MESSAGE_BYTES];
        let length = rustix::net::recv(socket, &mut message, RecvFlags::empty())
            .map_or(0, |(length, _)| length);
        let lines = message[..length].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn a_decision_is_one_line_with_every_field() {
        let (mut log, theirs) = pair();
        let traffic = Some(Traffic { sent: 5, received: 7, ms: 9 });
        let address = Some("192.0.2.1".parse().unwrap());
        let (host, rule): (&dyn fmt::Display, &dyn fmt::Display) =
            (&"a\n\u{1b}.example", &"paddock.toml:12");
        log.report(&RelayDecision {
            layer: DecisionLayer::Connect,
            result: ConnectionResult::Allowed,
            process: Some(&SocketProcess { pid: 11, exe: "/usr/bin/curl".to_owned() }),
            answer: Some(&PersonAnswer { by: Some("terminal".to_owned()), ms: 1200 }),
            host: Some(host),
            port: Some(443),
            address,
            rule: Some(rule),
            reason: None,
            traffic,
        });
        let expected = serde_json::json!({
            "event": "network", "layer": "connect", "action": "allow",
            "host": "a\n\u{1b}.example", "port": 443,
            "address": "192.0.2.1", "rule": "paddock.toml:12", "reason": null, "sent": 5,
            "received": 7, "ms": 9,
            "pid": 11, "exe": "/usr/bin/curl", "by": "terminal", "asked_ms": 1200,
        });
        assert_eq!(received_lines(&theirs), [Value::Null; 0], "it waits for others");
        log.flush();
        assert_eq!(received_lines(&theirs), [expected]);
        assert!(matches!(log.next_message(), SupervisorMessage::Nothing));
        drop(theirs);
        assert!(matches!(log.next_message(), SupervisorMessage::Over));
    }

    #[test]
    fn requests_are_not_dropped_and_replies_are_read() {
        let (mut log, theirs) = pair();
        for id in 0..5000 {
            log.ask(&RelayRequest::Withdrawn { id });
        }
        for id in 0..5000 {
            assert_eq!(received_lines(&theirs)[0]["withdrawn"]["id"], id);
            log.flush();
        }
        let reply = SupervisorReply::Owner { id: 3, process: None };
        rustix::net::send(&theirs, reply.message().as_bytes(), SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(log.next_message(),
            SupervisorMessage::Reply(received) if received == reply));
        assert!(matches!(log.next_message(), SupervisorMessage::Nothing));
        rustix::net::send(&theirs, b"{}", SendFlags::NOSIGNAL).unwrap();
        assert!(matches!(log.next_message(), SupervisorMessage::Over));
    }

    #[test]
    fn no_decision_is_lost_if_the_supervisor_is_slow() {
        let (mut log, theirs) = pair();
        let mut reported = 0_u16;
        while !log.is_behind() {
            log.report(&RelayDecision {
                port: Some(reported),
                ..RelayDecision::denial(DecisionLayer::Name)
            });
            reported += 1;
        }
        assert!(usize::from(reported) > MAX_WAITING_DECISIONS, "the socket holds some");
        // Further decisions of the same turn are still stored.
        for port in reported..reported + 500 {
            log.report(&RelayDecision {
                port: Some(port),
                ..RelayDecision::denial(DecisionLayer::Name)
            });
        }
        let mut ports = Vec::new();
        while ports.len() < usize::from(reported) + 500 {
            match received_lines(&theirs) {
                lines if lines.is_empty() => log.wait().unwrap(),
                lines => ports.extend(lines.iter().map(|one| one["port"].as_u64().unwrap())),
            }
            log.flush();
        }
        assert!(ports.iter().copied().eq(0..u64::from(reported) + 500), "{ports:?}");
        assert!(!log.is_behind());
        drop(theirs);
        log.finish();
    }

    #[test]
    fn ends_are_batched_and_denials_are_sent_at_once() {
        let (mut log, theirs) = pair();
        let ended = |port| RelayDecision {
            result: ConnectionResult::Allowed,
            port: Some(port),
            reason: Some(
                "long enough for several messages, if there are so many of it: \
                 ........................",
            ),
            ..RelayDecision::denial(DecisionLayer::Connect)
        };
        let ports = |theirs| {
            received_lines(theirs)
                .iter()
                .map(|one| one["port"].as_u64().unwrap())
                .collect::<Vec<u64>>()
        };
        log.report(&ended(1));
        log.report(&ended(2));
        assert_eq!(ports(&theirs), [0; 0]);
        log.report(&RelayDecision {
            port: Some(3),
            ..RelayDecision::denial(DecisionLayer::Connect)
        });
        assert_eq!(ports(&theirs), [1, 2, 3]);
        (0..MAX_BATCHED_DECISIONS as u16).for_each(|port| log.report(&ended(port)));
        assert_eq!(ports(&theirs).len(), MAX_BATCHED_DECISIONS);
        // Waiting decisions are sent in messages of bounded length.
        (0..900).for_each(|port| log.report(&ended(port)));
        let (mut all, mut messages) = (Vec::new(), 0);
        while all.len() < 900 {
            all.extend(ports(&theirs));
            messages += 1;
            log.flush();
        }
        assert!(all.is_sorted() && messages < 100, "{messages}");
    }
}
