//! Answers to questions for names from inside, whatever server they were meant for. A name that may
//! be reached at some port gets addresses that lead back to it; nobody else is asked before it is
//! dialled. All others do not exist.

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

/// A name that is denied is told once in this time.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// So many denied names are remembered for that.
const MAX_REPORTED_NAMES: usize = 4096;

/// A stream on which nothing is asked for so long is closed.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// So many questions of one stream are answered before others get their turn.
const MAX_ANSWERS_PER_TURN: usize = 64;

/// Names of addresses. Programs ask for them on their own account; nobody has to hear that they do
/// not exist.
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

    /// The answer to a message, if it gets any.
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
            let reason = Some("this is no name of a host");
            self.report(
                query,
                now,
                decisions,
                &RelayDecision { reason, ..RelayDecision::denial(DecisionLayer::Name) },
            );
            return DnsAnswer::NoName;
        };
        let decision = self.table.judge_name(name, None);
        // One that would be asked about is asked about when it is dialled: then the port is known,
        // and until then nobody has to be.
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

/// Questions by TCP: each has its length before it (RFC 7766).
pub struct DnsStream {
    end: PumpSocket,
    received: Vec<u8>,
    answers: Vec<u8>,
    pub deadline: Instant,
}

/// What becomes of it.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamTurn {
    Wait,
    /// It could go on at once, but others come first.
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
        let mut question_answered = 0;
        loop {
            while !self.answers.is_empty() {
                match rustix::net::send(&self.end.socket, &self.answers, SendFlags::NOSIGNAL) {
                    Ok(sent) => drop(self.answers.drain(..sent)),
                    Err(Errno::INTR) => {}
                    // Nobody is asked anything by who does not read the answers.
                    Err(Errno::AGAIN) => return StreamTurn::Wait,
                    Err(_) => return StreamTurn::Over,
                }
            }
            if question_answered == MAX_ANSWERS_PER_TURN {
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
                question_answered += 1;
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
