//! Answers DNS questions from inside, to any server. An allowed name gets synthetic addresses that
//! lead back to it. Nothing is resolved before the name is dialled. All other names do not exist.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::byte_pump::PumpSocket;
use super::decision_log::{DecisionLayer, DecisionLog, RelayDecision};
use super::synthetic_addresses::SyntheticAddresses;
use crate::network::parse::dns_message::{self, DnsAnswer, DnsQuestion, Query, RecordKind};
use crate::network::rules::host_table::HostTable;
use crate::plan::Action;

/// A denied name is reported once in this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Denied names that are stored for that.
const MAX_REPORTED_NAMES: usize = 4096;

/// An idle stream is closed after this time.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Questions of one stream before others get their turn.
const MAX_ANSWERS_PER_TURN: usize = 64;

/// Reverse lookups. Programs make them on their own, so their denials are not reported.
const REVERSE_SUFFIXES: [&[u8]; 2] = [b".in-addr.arpa", b".ip6.arpa"];

pub struct DnsStub<'t> {
    table: &'t HostTable,
    pub synthetic: SyntheticAddresses,
    reported: HashMap<String, Instant>,
}

impl<'t> DnsStub<'t> {
    pub fn new(table: &'t HostTable) -> DnsStub<'t> {
        DnsStub { table, synthetic: SyntheticAddresses::default(), reported: HashMap::new() }
    }

    /// The answer to a message, if there is one.
    pub fn answer(
        &mut self,
        message: &[u8],
        decisions: &mut DecisionLog,
        now: Instant,
    ) -> Option<Vec<u8>> {
        match Query::read(message) {
            DnsQuestion::Nothing => None,
            DnsQuestion::Refused(answer) => Some(answer),
            DnsQuestion::Query(query) => {
                let answer = self.judge(&query, decisions, now);
                Some(dns_message::answer(&query, answer))
            }
        }
    }

    fn judge(&mut self, query: &Query, decisions: &mut DecisionLog, now: Instant) -> DnsAnswer {
        let Some(name) = &query.name else {
            let reason = Some("this is not a host name");
            self.report(
                query,
                now,
                decisions,
                &RelayDecision { reason, ..RelayDecision::denial(DecisionLayer::Name) },
            );
            return DnsAnswer::NoName;
        };
        let decision = self.table.judge_name(name, None);
        // A name that needs a question is asked about when it is dialled: only then the port is
        // known.
        if decision.action == Action::Deny {
            if !REVERSE_SUFFIXES.iter().any(|end| name.as_bytes().ends_with(end)) {
                let rule = decision.rule.as_ref().map(|rule| rule as _);
                let denied = RelayDecision {
                    rule,
                    reason: decision.reason,
                    ..RelayDecision::denial(DecisionLayer::Name)
                };
                self.report(query, now, decisions, &denied);
            }
            return DnsAnswer::NoName;
        }
        if let RecordKind::Other(_) = query.kind {
            return DnsAnswer::Nothing;
        }
        match (self.synthetic.address_of(name), query.kind) {
            (None, _) => DnsAnswer::Failed,
            (Some((v4, _)), RecordKind::A) => DnsAnswer::V4(v4),
            (Some((_, v6)), _) => DnsAnswer::V6(v6),
        }
    }

    fn report(
        &mut self,
        query: &Query,
        now: Instant,
        decisions: &mut DecisionLog,
        decision: &RelayDecision<'_>,
    ) {
        let name = query.asked_name();
        if self.reported.get(&name).is_some_and(|reported| now - *reported < REPORT_INTERVAL) {
            return;
        }
        decisions.report(&RelayDecision { host: Some(&name), ..*decision });
        if self.reported.len() >= MAX_REPORTED_NAMES {
            self.reported.retain(|_, reported| now - *reported < REPORT_INTERVAL);
        }
        if self.reported.len() >= MAX_REPORTED_NAMES {
            self.reported.clear();
        }
        self.reported.insert(name, now);
    }
}

/// DNS over TCP: each question follows its length (RFC 7766).
pub struct DnsStream {
    end: PumpSocket,
    received: Vec<u8>,
    answers: Vec<u8>,
    pub deadline: Instant,
}

/// The next step of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamTurn {
    Wait,
    /// It can continue at once, but others come first.
    Again,
    Over,
}

impl DnsStream {
    pub fn new(socket: OwnedFd, now: Instant) -> DnsStream {
        DnsStream {
            end: PumpSocket::new(socket),
            received: Vec::new(),
            answers: Vec::new(),
            deadline: now + STREAM_IDLE_TIMEOUT,
        }
    }

    pub fn note_events(&mut self, flags: EventFlags) {
        self.end.note_events(flags);
    }

    pub fn turn(
        &mut self,
        stub: &mut DnsStub<'_>,
        decisions: &mut DecisionLog,
        scratch: &mut [u8],
        now: Instant,
    ) -> StreamTurn {
        let mut answered = 0;
        loop {
            while !self.answers.is_empty() {
                match rustix::net::send(&self.end.socket, &self.answers, SendFlags::NOSIGNAL) {
                    Ok(sent) => drop(self.answers.drain(..sent)),
                    Err(Errno::INTR) => {}
                    // A client that does not read its answers gets no further ones.
                    Err(Errno::AGAIN) => return StreamTurn::Wait,
                    Err(_) => return StreamTurn::Over,
                }
            }
            if answered == MAX_ANSWERS_PER_TURN {
                return StreamTurn::Again;
            }
            if let Some((length, rest)) = self.received.split_first_chunk::<2>()
                && let Some(message) = rest.get(..u16::from_be_bytes(*length).into())
            {
                let length = 2 + message.len();
                let Some(answer) = stub.answer(message, decisions, now) else {
                    return StreamTurn::Over;
                };
                self.answers.extend_from_slice(&(answer.len() as u16).to_be_bytes());
                self.answers.extend_from_slice(&answer);
                self.received.drain(..length);
                self.deadline = now + STREAM_IDLE_TIMEOUT;
                answered += 1;
                continue;
            }
            if !self.end.readable {
                return StreamTurn::Wait;
            }
            match rustix::net::recv(&self.end.socket, &mut *scratch, RecvFlags::empty()) {
                Ok((0, _)) => return StreamTurn::Over,
                Ok((length, _)) => self.received.extend_from_slice(&scratch[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.end.readable = false,
                Err(_) => return StreamTurn::Over,
            }
        }
    }
}
