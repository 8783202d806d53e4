//! The way of a connection that is decided: to its server, to whoever speaks HTTP for that, or to
//! its end.

use std::fmt;
use std::rc::Rc;

use rustix::io::Errno;

use super::connection::{Connection, Direction, Turn};
use super::decision_log::{ConnectionResult, Decision};
use super::host_resolver::{self, Addresses, Failure};
use super::origin::{Dialled, Origin};
use super::refusal_response::{self, DENIED, RefusalText, UNREACHABLE};
use super::{CLIENT, LOOKUP, Relay, SERVER, event};
use crate::network::rules::http_hosts::Kind as Handed;

/// Why a host that the Python half speaks for is not reached.
const NOBODY: &str = "the HTTP helper has ended, or is overloaded";

impl<'t> Relay<'t> {
    /// It is allowed.
    pub(super) fn go_on(
        &mut self,
        connection: &mut Connection<'t>,
        generation: u16,
        index: usize,
    ) -> Turn {
        match (&connection.subject.name, connection.subject.address) {
            (Some(name), _) => {
                if let Some(kind) = self.table.hands_over(name) {
                    return if self.handover.takes() {
                        connection.hand_over(kind)
                    } else {
                        self.refuse(connection, NOBODY, ConnectionResult::Failed)
                    };
                }
                let loop_ = host_resolver::Loop { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
                match self.resolver.look_up(
                    name,
                    event(CLIENT, generation, index),
                    self.now,
                    &loop_,
                ) {
                    None => Turn::Wait,
                    Some(found) => self.found(connection, found, generation, index),
                }
            }
            (None, Some(address)) => self.dial(connection, Rc::new([address]), generation, index),
            (None, None) => Turn::Over,
        }
    }

    /// It is the Python half's from here on, and told of by that; but not that somebody was asked
    /// about it.
    pub(super) fn part(&mut self, connection: Connection<'t>, kind: Handed, index: usize) {
        let (client, said, subject) = connection.part(&self.epoll);
        if let Some(name) = &subject.name {
            self.handover.give(client, kind, name, subject.port, &said);
            if subject.asked.is_some() {
                self.told.say(&Decision {
                    outcome: ConnectionResult::Allowed,
                    process: subject.process.as_ref(),
                    asked: subject.asked.as_ref(),
                    host: Some(name),
                    port: Some(subject.port),
                    ..Decision::about_nobody(subject.way.layer())
                });
                self.agreed.insert((name.clone(), subject.port));
            }
        }
        if let Some(address) = subject.synthetic {
            self.stub.synthetic.release(address);
        }
        self.vacate(index);
    }

    pub(super) fn found(
        &mut self,
        connection: &mut Connection<'t>,
        found: Result<Addresses, Failure>,
        generation: u16,
        index: usize,
    ) -> Turn {
        match found {
            Ok(addresses) => self.dial(connection, addresses, generation, index),
            Err(failure) => self.refuse(connection, failure.reason(), ConnectionResult::Failed),
        }
    }

    pub(super) fn dial(
        &mut self,
        connection: &mut Connection<'t>,
        addresses: Addresses,
        generation: u16,
        index: usize,
    ) -> Turn {
        let is_inward = matches!(connection.subject.way, Direction::Inward(_));
        if !is_inward
            && !self.knows_guards(connection.subject.port, event(CLIENT, generation, index))
        {
            connection.keep_found(addresses);
            return Turn::Wait;
        }
        let number = event(SERVER, generation, index);
        let dialled = connection.dial(addresses, &self.origin(), self.now, number);
        self.dialled(connection, dialled, Errno::HOSTUNREACH)
    }

    /// Is it known to which addresses the upstreams lead that may serve this port, and have
    /// endpoint rules? If not, `waiter` will be told.
    pub(super) fn knows_guards(&mut self, port: u16, waiter: u64) -> bool {
        let mut is_known = true;
        for name in self.guards.to_look_up(port, self.now) {
            let loop_ = host_resolver::Loop { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
            match self.resolver.look_up(name, waiter, self.now, &loop_) {
                Some(found) => self.guards.heard(name, &found, self.now),
                None => is_known = false,
            }
        }
        is_known
    }

    pub(super) fn origin(&self) -> Origin<'_> {
        Origin {
            table: self.table,
            guards: &self.guards,
            epoll: &self.epoll,
            within: self.within.as_ref(),
        }
    }

    pub(super) fn dialled(
        &mut self,
        connection: &mut Connection<'t>,
        dialled: Dialled,
        errno: Errno,
    ) -> Turn {
        match dialled {
            Dialled::Started => Turn::Wait,
            Dialled::Forbidden(reason) => self.refuse(connection, reason, ConnectionResult::Denied),
            Dialled::Unreachable => {
                let reason = format!("cannot connect: {errno}");
                self.refuse(connection, &reason, ConnectionResult::Failed)
            }
        }
    }

    pub(super) fn refuse(
        &mut self,
        connection: &mut Connection<'t>,
        reason: &str,
        outcome: ConnectionResult,
    ) -> Turn {
        let subject = &connection.subject;
        let rule = subject.rule.as_ref().map(|rule| rule as &dyn fmt::Display);
        let host = subject.name.as_ref().map(|name| name as &dyn fmt::Display);
        self.told.say(&Decision {
            outcome,
            process: subject.process.as_ref(),
            asked: subject.asked.as_ref(),
            host,
            port: Some(subject.port),
            address: subject.address,
            rule,
            reason: Some(reason),
            ..Decision::about_nobody(subject.way.layer())
        });
        let address = subject.address.as_ref().map(|address| address as &dyn fmt::Display);
        let status = if outcome == ConnectionResult::Failed { UNREACHABLE } else { DENIED };
        let answer = refusal_response::answer(
            host.or(address),
            subject.port,
            &RefusalText { rule, reason, status },
        );
        let answer = match connection.form() {
            Some(form) => form.refusal(answer, status),
            None => answer,
        };
        connection.refuse(answer, &mut self.tools, self.now)
    }
}
