//! Proxy clients. Their target is judged like a direct connection.

use std::os::fd::OwnedFd;

use super::connection::{Connection, Turn};
use super::decision_log::{DecisionLayer, RelayDecision};
use super::{CLIENT, Relay, event};
use crate::network::parse::proxy_request::ProxyRequest;

impl<'t> Relay<'t> {
    pub(super) fn begin_proxy_greeting(&mut self, client: OwnedFd, generation: u16, index: usize) {
        let number = event(CLIENT, generation, index);
        match Connection::greeting(client, self.now, &self.epoll, number) {
            Ok(connection) => self.apply_turn(Box::new(connection), Turn::Wait, generation, index),
            Err(_) => self.free_slot(index),
        }
    }

    pub(super) fn proxy_requested(
        &mut self,
        connection: &mut Connection<'t>,
        request: ProxyRequest,
        generation: u16,
        index: usize,
    ) -> Turn {
        let (target, decision) = self.target_of(request.host.clone(), request.port);
        connection.accept_proxy_request(target, request);
        self.apply_decision(connection, decision, generation, index)
    }

    /// Without a reason nothing is reported: the client only has to send its password.
    pub(super) fn proxy_refused(
        &mut self,
        connection: &mut Connection<'t>,
        response: Vec<u8>,
        reason: Option<&str>,
    ) -> Turn {
        if reason.is_some() {
            self.decisions
                .report(&RelayDecision { reason, ..RelayDecision::denial(DecisionLayer::Connect) });
        }
        connection.refuse_greeting(response, &mut self.tools, self.now)
    }
}
