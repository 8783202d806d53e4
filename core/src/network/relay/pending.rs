//! Connections that are not simply allowed. Whose they are is found out first, by the supervisor;
//! then they are refused, or somebody is asked.
//!
//! A host and a port are one question, however many connections wait for the answer; they wait as
//! they are, with what their clients have sent in the kernel's hands. `once` is for those,
//! `session` for all that follow; who was denied and tries again at once is denied without another
//! question.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::connection::{Connection, Doubt, Turn};
use super::decision_log::{ConnectionResult, PersonAnswer};
use super::relay_messages::{Process, Reply, Request};
use super::socket_owner::Owner;
use super::{CLIENT, Peer, Relay, event};
use crate::approve::approver_process::Answer;
use crate::plan::host_name::Name;

/// So long it is waited for who a caller is.
const WHO: Duration = Duration::from_secs(1);
/// So often it is looked whether a client that has said all is still there.
const ROLL_CALL: Duration = Duration::from_secs(1);
/// Clients try again, at the other address of a name for one.
const DENIED: Duration = Duration::from_secs(60);
/// So many answers are remembered.
const REMEMBERED: usize = 4096;

const SAID_NO: &str = "the approver denied it";

type Place = (Name, u16);

#[derive(Default)]
pub struct Questions {
    last: u64,
    open: HashMap<u64, Open>,
    numbers: HashMap<Place, u64>,
    /// Until the run ends.
    allowed: HashSet<Place>,
    denied: HashMap<Place, Denial>,
}

struct Denial {
    reason: String,
    until: Instant,
}

struct Open {
    place: Place,
    waiting: Vec<u64>,
}

enum Known {
    Allowed,
    Denied(String),
    Open(u64),
    No,
}

impl Questions {
    fn about(&self, place: &Place, now: Instant) -> Known {
        match (self.numbers.get(place), self.denied.get(place)) {
            _ if self.allowed.contains(place) => Known::Allowed,
            (Some(number), _) => Known::Open(*number),
            (None, Some(denial)) if denial.until > now => Known::Denied(denial.reason.clone()),
            _ => Known::No,
        }
    }

    fn open(&mut self, place: Place) -> u64 {
        self.last += 1;
        self.numbers.insert(place.clone(), self.last);
        self.open.insert(self.last, Open { place, waiting: Vec::new() });
        self.last
    }

    fn close(&mut self, number: u64) -> Option<Open> {
        let open = self.open.remove(&number)?;
        self.numbers.remove(&open.place);
        Some(open)
    }

    fn remember(&mut self, place: Place, verdict: Answer, reason: &str, now: Instant) {
        match verdict {
            Answer::Once => {}
            Answer::Session if self.allowed.len() < REMEMBERED => drop(self.allowed.insert(place)),
            // Then it is asked again.
            Answer::Session => {}
            Answer::Deny => {
                if self.denied.len() >= REMEMBERED {
                    self.denied.retain(|_, denial| denial.until > now);
                }
                if self.denied.len() < REMEMBERED {
                    self.denied
                        .insert(place, Denial { reason: reason.to_owned(), until: now + DENIED });
                }
            }
        }
    }
}

impl<'t> Relay<'t> {
    pub(super) fn doubt(
        &mut self,
        connection: &mut Connection<'t>,
        doubt: Doubt,
        number: u64,
    ) -> Turn {
        connection.doubt = Some(doubt);
        match connection
            .ends()
            .map_or(Owner::Unknown, |(client, dialled)| self.owners.of(client, dialled))
        {
            Owner::Socket(socket) => {
                self.told.ask(&Request::Who { id: number, socket });
                connection.deadline = Some(self.now + WHO);
                Turn::Wait
            }
            Owner::Nobody | Owner::Unknown => Turn::Decide,
        }
    }

    pub(super) fn replied(&mut self, reply: Reply) {
        match reply {
            Reply::Who { id, process } => self.identified(id, process),
            Reply::Answer { id, verdict, by, reason, ms } => {
                let reason = reason.as_deref().unwrap_or(SAID_NO);
                self.answered(id, verdict, reason, &PersonAnswer { by, ms });
            }
        }
    }

    fn identified(&mut self, number: u64, process: Option<Process>) {
        let Some((mut connection, generation, index)) = self.take(number) else { return };
        // It may have been too late, and the connection is further by now.
        let is_awaited = matches!(connection.doubt, Some(Doubt::Refused(_) | Doubt::Unasked));
        connection.subject.process = connection.subject.process.take().or(process);
        self.settle(
            connection,
            if is_awaited { Turn::Decide } else { Turn::Wait },
            generation,
            index,
        );
    }

    /// What a connection in doubt waits for is there, or has taken too long; or its client has said
    /// all it will say.
    pub(super) fn decide(
        &mut self,
        connection: &mut Connection<'t>,
        generation: u16,
        index: usize,
    ) -> Turn {
        connection.deadline = None;
        match connection.doubt {
            None => Turn::Wait,
            Some(Doubt::Refused(reason)) => {
                connection.doubt = None;
                self.refuse(connection, reason, ConnectionResult::Denied)
            }
            Some(Doubt::Unasked) => self.ask(connection, generation, index),
            Some(Doubt::Asked(_)) if connection.has_heard_all() => {
                match connection
                    .ends()
                    .map_or(Owner::Nobody, |(client, dialled)| self.owners.of(client, dialled))
                {
                    Owner::Nobody => Turn::Over,
                    Owner::Socket(_) | Owner::Unknown => {
                        connection.deadline = Some(self.now + ROLL_CALL);
                        Turn::Wait
                    }
                }
            }
            Some(Doubt::Asked(_)) => Turn::Wait,
        }
    }

    fn ask(&mut self, connection: &mut Connection<'t>, generation: u16, index: usize) -> Turn {
        connection.doubt = None;
        let Some(name) = connection.subject.name.clone() else { return Turn::Over };
        let place = (name, connection.subject.port);
        let number = match self.questions.about(&place, self.now) {
            Known::Allowed => {
                connection.subject.asked =
                    Some(PersonAnswer { by: Some("session".to_owned()), ms: 0 });
                return self.go_on(connection, generation, index);
            }
            Known::Denied(reason) => {
                return self.refuse(connection, &reason, ConnectionResult::Denied);
            }
            Known::Open(number) => number,
            Known::No => {
                let (host, port) = (place.0.to_string(), place.1);
                let id = self.questions.open(place);
                let process = connection.subject.process.clone();
                self.told.ask(&Request::Ask { id, host, port, process });
                id
            }
        };
        connection.doubt = Some(Doubt::Asked(number));
        if let Some(open) = self.questions.open.get_mut(&number) {
            open.waiting.push(event(CLIENT, generation, index));
        }
        // It may have gone meanwhile.
        if connection.has_heard_all() { Turn::Decide } else { Turn::Wait }
    }

    fn answered(&mut self, question: u64, verdict: Answer, reason: &str, asked: &PersonAnswer) {
        // Nobody waits for it any more.
        let Some(Open { place, waiting }) = self.questions.close(question) else { return };
        self.questions.remember(place, verdict, reason, self.now);
        for number in waiting {
            let Some((mut connection, generation, index)) = self.take(number) else { continue };
            connection.doubt = None;
            connection.deadline = None;
            connection.subject.asked = Some(asked.clone());
            let turn = match verdict {
                Answer::Once | Answer::Session => self.go_on(&mut connection, generation, index),
                Answer::Deny => self.refuse(&mut connection, reason, ConnectionResult::Denied),
            };
            self.settle(connection, turn, generation, index);
        }
    }

    /// A connection ended before its question was answered.
    pub(super) fn give_up(&mut self, question: u64, number: u64) {
        let Some(open) = self.questions.open.get_mut(&question) else { return };
        open.waiting.retain(|waiting| *waiting != number);
        if open.waiting.is_empty() {
            self.questions.close(question);
            self.told.ask(&Request::Withdrawn { id: question });
        }
    }

    fn take(&mut self, number: u64) -> Option<(Box<Connection<'t>>, u16, usize)> {
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
