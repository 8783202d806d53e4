//! Connects a decided connection: to its server, to the HTTP helper, or to its end.

use std::fmt;
use std::rc::Rc;

use rustix::io::Errno;

use super::connection::{Connection, Direction, Turn};
use super::decision_log::{ConnectionResult, RelayDecision};
use super::dialer::{DialResult, Dialer};
use super::host_resolver::{self, Addresses, LookupFailure};
use super::refusal_response::{self, DENIED_STATUS, RefusalText, UNREACHABLE_STATUS};
use super::{CLIENT, LOOKUP, Relay, SERVER, event};
use crate::network::rules::http_hosts::HandoverKind;

/// Why a host of the HTTP helper is not reached.
const HTTP_HELPER_GONE: &str = "the HTTP helper has ended, or is overloaded";

impl<'t> Relay<'t> {
    /// Continues an allowed connection.
    pub(super) fn connect_allowed(
        &mut self,
        connection: &mut Connection<'t>,
        generation: u16,
        index: usize,
    ) -> Turn {
        match (&connection.target.name, connection.target.address) {
            (Some(name), _) => {
                if let Some(kind) = self.table.handover_kind(name) {
                    return if self.handover.can_take() {
                        connection.hand_over(kind)
                    } else {
                        self.refuse(connection, HTTP_HELPER_GONE, ConnectionResult::Failed)
                    };
                }
                let registration = host_resolver::EventRegistration {
                    epoll: &self.epoll,
                    tag: event(LOOKUP, 0, 0),
                };
                match self.resolver.look_up(
                    name,
                    event(CLIENT, generation, index),
                    self.now,
                    &registration,
                ) {
                    None => Turn::Wait,
                    Some(found) => self.addresses_found(connection, found, generation, index),
                }
            }
            (None, Some(address)) => self.dial(connection, Rc::new([address]), generation, index),
            (None, None) => Turn::Over,
        }
    }

    /// Hands the connection to the HTTP helper, which reports it. Only a person's answer is
    /// reported here.
    pub(super) fn hand_over_connection(
        &mut self,
        connection: Connection<'t>,
        kind: HandoverKind,
        index: usize,
    ) {
        let (client, unsent, target) = connection.hand_over_client(&self.epoll);
        if let Some(name) = &target.name {
            self.handover.hand_over(client, kind, name, target.port, &unsent);
            if target.answer.is_some() {
                self.decisions.report(&RelayDecision {
                    result: ConnectionResult::Allowed,
                    process: target.process.as_ref(),
                    answer: target.answer.as_ref(),
                    host: Some(name),
                    port: Some(target.port),
                    ..RelayDecision::denial(target.direction.layer())
                });
                self.allowed_by_person.insert((name.clone(), target.port));
            }
        }
        if let Some(address) = target.synthetic {
            self.stub.synthetic.release(address);
        }
        self.free_slot(index);
    }

    pub(super) fn addresses_found(
        &mut self,
        connection: &mut Connection<'t>,
        found: Result<Addresses, LookupFailure>,
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
        let is_inward = matches!(connection.target.direction, Direction::Inward(_));
        if !is_inward
            && !self.guards_are_known(connection.target.port, event(CLIENT, generation, index))
        {
            connection.store_addresses(addresses);
            return Turn::Wait;
        }
        let number = event(SERVER, generation, index);
        let dialled = connection.dial(addresses, &self.dialer(), self.now, number);
        self.after_dial(connection, dialled, Errno::HOSTUNREACH)
    }

    /// True if the addresses of all guarded upstreams for this port are known. Otherwise `waiter`
    /// gets an event later.
    pub(super) fn guards_are_known(&mut self, port: u16, waiter: u64) -> bool {
        let mut is_known = true;
        for name in self.guards.to_look_up(port, self.now) {
            let registration =
                host_resolver::EventRegistration { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
            match self.resolver.look_up(name, waiter, self.now, &registration) {
                Some(found) => self.guards.learn_lookup(name, &found, self.now),
                None => is_known = false,
            }
        }
        is_known
    }

    pub(super) fn dialer(&self) -> Dialer<'_> {
        Dialer {
            table: self.table,
            guards: &self.guards,
            epoll: &self.epoll,
            command_network: self.command_network.as_ref(),
        }
    }

    pub(super) fn after_dial(
        &mut self,
        connection: &mut Connection<'t>,
        dialled: DialResult,
        errno: Errno,
    ) -> Turn {
        match dialled {
            DialResult::Started => Turn::Wait,
            DialResult::Forbidden(reason) => {
                self.refuse(connection, reason, ConnectionResult::Denied)
            }
            DialResult::Unreachable => {
                let reason = format!("cannot connect: {errno}");
                self.refuse(connection, &reason, ConnectionResult::Failed)
            }
        }
    }

    pub(super) fn refuse(
        &mut self,
        connection: &mut Connection<'t>,
        reason: &str,
        result: ConnectionResult,
    ) -> Turn {
        let target = &connection.target;
        let rule = target.rule.as_ref().map(|rule| rule as &dyn fmt::Display);
        let host = target.name.as_ref().map(|name| name as &dyn fmt::Display);
        self.decisions.report(&RelayDecision {
            result,
            process: target.process.as_ref(),
            answer: target.answer.as_ref(),
            host,
            port: Some(target.port),
            address: target.address,
            rule,
            reason: Some(reason),
            ..RelayDecision::denial(target.direction.layer())
        });
        let address = target.address.as_ref().map(|address| address as &dyn fmt::Display);
        let status =
            if result == ConnectionResult::Failed { UNREACHABLE_STATUS } else { DENIED_STATUS };
        let answer = refusal_response::answer(
            host.or(address),
            target.port,
            &RefusalText { rule, reason, status },
        );
        let answer = match connection.protocol() {
            Some(protocol) => protocol.denial_reply(answer, status),
            None => answer,
        };
        connection.refuse(answer, &mut self.tools, self.now)
    }
}
