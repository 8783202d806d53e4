//! Clients that asked for a proxy: what they want is judged as if they had dialled it.

use std::os::fd::OwnedFd;

use super::connection::{Connection, Turn};
use super::decision_log::{Decision, Layer};
use super::{CLIENT, Relay, event};
use crate::network::parse::proxy_request::ProxyRequest;

impl<'t> Relay<'t> {
    pub(super) fn begin_greeting(&mut self, client: OwnedFd, generation: u16, index: usize) {
        let number = event(CLIENT, generation, index);
        match Connection::greeting(client, self.now, &self.epoll, number) {
            Ok(connection) => self.settle(Box::new(connection), Turn::Wait, generation, index),
            Err(_) => self.vacate(index),
        }
    }

    pub(super) fn asked(
        &mut self,
        connection: &mut Connection<'t>,
        asked: ProxyRequest,
        generation: u16,
        index: usize,
    ) -> Turn {
        let (subject, verdict) = self.subject_of(asked.host.clone(), asked.port);
        connection.go_on(subject, asked);
        self.judged(connection, verdict, generation, index)
    }

    /// Of a client that only has to come again with its password nothing is told.
    pub(super) fn misled(
        &mut self,
        connection: &mut Connection<'t>,
        words: Vec<u8>,
        why: Option<&str>,
    ) -> Turn {
        if why.is_some() {
            self.told.say(&Decision { reason: why, ..Decision::about_nobody(Layer::Connect) });
        }
        connection.dismiss(words, &mut self.tools, self.now)
    }
}
