//! Answers to questions for names from inside, whatever server they were meant for. A name that may
//! be reached at some port gets addresses that lead back to it; nobody else is asked before it is
//! dialled. All others do not exist.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::byte_pump::End;
use super::decision_log::{Decision, DecisionLog, Layer};
use super::synthetic_addresses::Synthetic;
use crate::network::parse::dns_message::{self, Answer, DnsQuestion, Kind, Query};
use crate::network::rules::host_table::Table;
use crate::plan::Action;

/// A name that is denied is told once in this time.
const SAID: Duration = Duration::from_secs(60);

/// So many denied names are remembered for that.
const REMEMBERED: usize = 4096;

/// A stream on which nothing is asked for so long is closed.
const IDLE: Duration = Duration::from_secs(30);

/// So many questions of one stream are answered before others get their turn.
const IN_A_ROW: usize = 64;

/// Names of addresses. Programs ask for them on their own account; nobody has to hear that they do
/// not exist.
const REVERSE: [&[u8]; 2] = [b".in-addr.arpa", b".ip6.arpa"];

pub struct Stub<'t> {
    table: &'t Table,
    pub synthetic: Synthetic,
    said: HashMap<String, Instant>,
}

impl<'t> Stub<'t> {
    pub fn new(table: &'t Table) -> Stub<'t> {
        Stub { table, synthetic: Synthetic::default(), said: HashMap::new() }
    }

    /// The answer to a message, if it gets any.
    pub fn answer(
        &mut self,
        message: &[u8],
        told: &mut DecisionLog,
        now: Instant,
    ) -> Option<Vec<u8>> {
        match Query::read(message) {
            DnsQuestion::Nothing => None,
            DnsQuestion::Refused(answer) => Some(answer),
            DnsQuestion::Query(query) => {
                let answer = self.judge(&query, told, now);
                Some(dns_message::answer(&query, answer))
            }
        }
    }

    fn judge(&mut self, query: &Query, told: &mut DecisionLog, now: Instant) -> Answer {
        let Some(name) = &query.name else {
            let reason = Some("this is not a host name");
            self.say(query, now, told, &Decision { reason, ..Decision::about_nobody(Layer::Name) });
            return Answer::NoName;
        };
        let verdict = self.table.judge_name(name, None);
        // One that would be asked about is asked about when it is dialled: then the port is known,
        // and until then nobody has to be.
        if verdict.action == Action::Deny {
            if !REVERSE.iter().any(|end| name.as_bytes().ends_with(end)) {
                let rule = verdict.rule.as_ref().map(|rule| rule as _);
                let denied = Decision {
                    rule,
                    reason: verdict.reason,
                    ..Decision::about_nobody(Layer::Name)
                };
                self.say(query, now, told, &denied);
            }
            return Answer::NoName;
        }
        if let Kind::Other(_) = query.kind {
            return Answer::Nothing;
        }
        match (self.synthetic.address_of(name), query.kind) {
            (None, _) => Answer::Failed,
            (Some((v4, _)), Kind::A) => Answer::V4(v4),
            (Some((_, v6)), _) => Answer::V6(v6),
        }
    }

    fn say(
        &mut self,
        query: &Query,
        now: Instant,
        told: &mut DecisionLog,
        decision: &Decision<'_>,
    ) {
        let name = query.asked_name();
        if self.said.get(&name).is_some_and(|said| now - *said < SAID) {
            return;
        }
        told.say(&Decision { host: Some(&name), ..*decision });
        if self.said.len() >= REMEMBERED {
            self.said.retain(|_, said| now - *said < SAID);
        }
        if self.said.len() >= REMEMBERED {
            self.said.clear();
        }
        self.said.insert(name, now);
    }
}

/// Questions by TCP: each has its length before it (RFC 7766).
pub struct Stream {
    end: End,
    received: Vec<u8>,
    answers: Vec<u8>,
    pub deadline: Instant,
}

/// What becomes of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Wait,
    /// It could go on at once, but others come first.
    Again,
    Over,
}

impl Stream {
    pub fn new(socket: OwnedFd, now: Instant) -> Stream {
        Stream {
            end: End::new(socket),
            received: Vec::new(),
            answers: Vec::new(),
            deadline: now + IDLE,
        }
    }

    pub fn note(&mut self, flags: EventFlags) {
        self.end.note(flags);
    }

    pub fn turn(
        &mut self,
        stub: &mut Stub<'_>,
        told: &mut DecisionLog,
        scratch: &mut [u8],
        now: Instant,
    ) -> Next {
        let mut answered = 0;
        loop {
            while !self.answers.is_empty() {
                match rustix::net::send(&self.end.socket, &self.answers, SendFlags::NOSIGNAL) {
                    Ok(sent) => drop(self.answers.drain(..sent)),
                    Err(Errno::INTR) => {}
                    // Nobody is asked anything by who does not read the answers.
                    Err(Errno::AGAIN) => return Next::Wait,
                    Err(_) => return Next::Over,
                }
            }
            if answered == IN_A_ROW {
                return Next::Again;
            }
            if let Some((length, rest)) = self.received.split_first_chunk::<2>()
                && let Some(message) = rest.get(..u16::from_be_bytes(*length).into())
            {
                let length = 2 + message.len();
                let Some(answer) = stub.answer(message, told, now) else { return Next::Over };
                self.answers.extend_from_slice(&(answer.len() as u16).to_be_bytes());
                self.answers.extend_from_slice(&answer);
                self.received.drain(..length);
                self.deadline = now + IDLE;
                answered += 1;
                continue;
            }
            if !self.end.readable {
                return Next::Wait;
            }
            match rustix::net::recv(&self.end.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return Next::Over,
                Ok((length, _)) => self.received.extend_from_slice(&scratch[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.end.readable = false,
                Err(_) => return Next::Over,
            }
        }
    }
}
