//! Connections that are not simply allowed. The supervisor first finds their owner. Then they are
//! denied, or a person is asked.
//!
//! A host and a port are one question for all connections that wait for it. What their clients send
//! stays in the kernel. `once` applies to the waiting connections, `session` also to later ones.
//! After a denial, further attempts are denied without a question for a while.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::connection::{Connection, PendingReason, Turn};
use super::decision_log::{ConnectionResult, PersonAnswer};
use super::relay_messages::{RelayRequest, SocketProcess, SupervisorReply};
use super::socket_owner::SocketOwner;
use super::{CLIENT, Peer, Relay, event};
use crate::approve::approver_process::Answer;
use crate::plan::host_name::HostName;

/// Timeout for finding the process that owns a socket.
const OWNER_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval of the check whether a client that closed its sending side still exists.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Clients retry, for example at the other address of a name.
const DENIAL_TTL: Duration = Duration::from_secs(60);
/// Answers that are stored.
const MAX_REMEMBERED_ANSWERS: usize = 4096;

const DENIED_BY_PERSON: &str = "the approver denied it";

type HostPort = (HostName, u16);

#[derive(Default)]
pub struct RelayQuestions {
    last: u64,
    open: HashMap<u64, WaitingConnections>,
    numbers: HashMap<HostPort, u64>,
    /// Allowed until the run ends.
    allowed: HashSet<HostPort>,
    denied: HashMap<HostPort, RememberedDenial>,
}

struct RememberedDenial {
    reason: String,
    until: Instant,
}

struct WaitingConnections {
    host_port: HostPort,
    waiting: Vec<u64>,
}

enum KnownAnswer {
    Allowed,
    Denied(String),
    Open(u64),
    Unknown,
}

impl RelayQuestions {
    fn answer_for(&self, host_port: &HostPort, now: Instant) -> KnownAnswer {
        match (self.numbers.get(host_port), self.denied.get(host_port)) {
            _ if self.allowed.contains(host_port) => KnownAnswer::Allowed,
            (Some(number), _) => KnownAnswer::Open(*number),
            (None, Some(denial)) if denial.until > now => {
                KnownAnswer::Denied(denial.reason.clone())
            }
            _ => KnownAnswer::Unknown,
        }
    }

    fn open(&mut self, host_port: HostPort) -> u64 {
        self.last += 1;
        self.numbers.insert(host_port.clone(), self.last);
        self.open.insert(self.last, WaitingConnections { host_port, waiting: Vec::new() });
        self.last
    }

    fn close(&mut self, number: u64) -> Option<WaitingConnections> {
        let open = self.open.remove(&number)?;
        self.numbers.remove(&open.host_port);
        Some(open)
    }

    fn remember(&mut self, host_port: HostPort, answer: Answer, reason: &str, now: Instant) {
        match answer {
            Answer::Once => {}
            Answer::Session if self.allowed.len() < MAX_REMEMBERED_ANSWERS => {
                self.allowed.insert(host_port);
            }
            // Not stored: the next connection asks again.
            Answer::Session => {}
            Answer::Deny => {
                if self.denied.len() >= MAX_REMEMBERED_ANSWERS {
                    self.denied.retain(|_, denial| denial.until > now);
                }
                if self.denied.len() < MAX_REMEMBERED_ANSWERS {
                    self.denied.insert(
                        host_port,
                        RememberedDenial { reason: reason.to_owned(), until: now + DENIAL_TTL },
                    );
                }
            }
        }
    }
}

impl<'t> Relay<'t> {
    pub(super) fn find_owner(
        &mut self,
        connection: &mut Connection<'t>,
        pending: PendingReason,
        number: u64,
    ) -> Turn {
        connection.pending = Some(pending);
        match connection
            .socket_addresses()
            .map_or(SocketOwner::Unknown, |(client, dialled)| self.owners.of(client, dialled))
        {
            SocketOwner::Socket(socket) => {
                self.decisions.ask(&RelayRequest::FindOwner { id: number, socket });
                connection.deadline = Some(self.now + OWNER_LOOKUP_TIMEOUT);
                Turn::Wait
            }
            SocketOwner::Nobody | SocketOwner::Unknown => Turn::Decide,
        }
    }

    pub(super) fn handle_reply(&mut self, reply: SupervisorReply) {
        match reply {
            SupervisorReply::Owner { id, process } => self.owner_found(id, process),
            SupervisorReply::Answer { id, answer, by, reason, ms } => {
                let reason = reason.as_deref().unwrap_or(DENIED_BY_PERSON);
                self.question_answered(id, answer, reason, &PersonAnswer { by, ms });
            }
        }
    }

    fn owner_found(&mut self, number: u64, process: Option<SocketProcess>) {
        let Some((mut connection, generation, index)) = self.take_connection(number) else {
            return;
        };
        // The reply can be late, and the connection can have continued.
        let is_awaited =
            matches!(connection.pending, Some(PendingReason::Denied(_) | PendingReason::NotAsked));
        connection.target.process = connection.target.process.take().or(process);
        self.apply_turn(
            connection,
            if is_awaited { Turn::Decide } else { Turn::Wait },
            generation,
            index,
        );
    }

    /// Called when what a pending connection waits for has arrived or timed out, or when its client
    /// has closed.
    pub(super) fn decide(
        &mut self,
        connection: &mut Connection<'t>,
        generation: u16,
        index: usize,
    ) -> Turn {
        connection.deadline = None;
        match connection.pending {
            None => Turn::Wait,
            Some(PendingReason::Denied(reason)) => {
                connection.pending = None;
                self.refuse(connection, reason, ConnectionResult::Denied)
            }
            Some(PendingReason::NotAsked) => self.ask(connection, generation, index),
            Some(PendingReason::AwaitingAnswer(_)) if connection.client_closed() => {
                match connection
                    .socket_addresses()
                    .map_or(SocketOwner::Nobody, |(client, dialled)| {
                        self.owners.of(client, dialled)
                    }) {
                    SocketOwner::Nobody => Turn::Over,
                    SocketOwner::Socket(_) | SocketOwner::Unknown => {
                        connection.deadline = Some(self.now + CLIENT_CHECK_INTERVAL);
                        Turn::Wait
                    }
                }
            }
            Some(PendingReason::AwaitingAnswer(_)) => Turn::Wait,
        }
    }

    fn ask(&mut self, connection: &mut Connection<'t>, generation: u16, index: usize) -> Turn {
        connection.pending = None;
        let Some(name) = connection.target.name.clone() else { return Turn::Over };
        let host_port = (name, connection.target.port);
        let number = match self.questions.answer_for(&host_port, self.now) {
            KnownAnswer::Allowed => {
                connection.target.answer =
                    Some(PersonAnswer { by: Some("session".to_owned()), ms: 0 });
                return self.connect_allowed(connection, generation, index);
            }
            KnownAnswer::Denied(reason) => {
                return self.refuse(connection, &reason, ConnectionResult::Denied);
            }
            KnownAnswer::Open(number) => number,
            KnownAnswer::Unknown => {
                let (host, port) = (host_port.0.to_string(), host_port.1);
                let id = self.questions.open(host_port);
                let process = connection.target.process.clone();
                self.decisions.ask(&RelayRequest::Ask { id, host, port, process });
                id
            }
        };
        connection.pending = Some(PendingReason::AwaitingAnswer(number));
        if let Some(open) = self.questions.open.get_mut(&number) {
            open.waiting.push(event(CLIENT, generation, index));
        }
        // The client may have closed meanwhile.
        if connection.client_closed() { Turn::Decide } else { Turn::Wait }
    }

    fn question_answered(
        &mut self,
        question: u64,
        answer: Answer,
        reason: &str,
        answered_by: &PersonAnswer,
    ) {
        // No connection waits for it any more.
        let Some(WaitingConnections { host_port, waiting }) = self.questions.close(question) else {
            return;
        };
        self.questions.remember(host_port, answer, reason, self.now);
        for number in waiting {
            let Some((mut connection, generation, index)) = self.take_connection(number) else {
                continue;
            };
            connection.pending = None;
            connection.deadline = None;
            connection.target.answer = Some(answered_by.clone());
            let turn = match answer {
                Answer::Once | Answer::Session => {
                    self.connect_allowed(&mut connection, generation, index)
                }
                Answer::Deny => self.refuse(&mut connection, reason, ConnectionResult::Denied),
            };
            self.apply_turn(connection, turn, generation, index);
        }
    }

    /// A connection ended before its question was answered.
    pub(super) fn abandon_question(&mut self, question: u64, number: u64) {
        let Some(open) = self.questions.open.get_mut(&question) else { return };
        open.waiting.retain(|waiting| *waiting != number);
        if open.waiting.is_empty() {
            self.questions.close(question);
            self.decisions.ask(&RelayRequest::Withdrawn { id: question });
        }
    }

    fn take_connection(&mut self, number: u64) -> Option<(Box<Connection<'t>>, u16, usize)> {
        let (index, generation) = (number as u32 as usize, (number >> 32) as u16);
        let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        match slot.peer.take() {
            Some(Peer::Relayed(connection)) => Some((connection, generation, index)),
            other => {
                slot.peer = other;
                None
            }
        }
    }
}
