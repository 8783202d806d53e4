//! Takes connections from the listeners, up to a limit. Beyond it, new ones wait in the kernel.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Resource, Rlimit};

use super::decision_log::{DecisionLayer, RelayDecision};
use super::dns_stub::DnsStream;
use super::host_resolver::MAX_LOOKUPS;
use super::{
    CLIENT, LISTENER, MAX_PER_TURN, MAX_PIPES, Peer, PeerSlot, Relay, SWEEP_INTERVAL, event,
};
use crate::network::namespace::PROXY;
use crate::plan::PublishedPort;

/// Connections at once, if there are enough descriptors.
const MAX_CONNECTIONS: usize = 10_000;

/// Descriptors for listeners, epoll, standard descriptors and files.
const RESERVED_DESCRIPTORS: usize = 64;

pub struct RelayListener {
    pub socket: OwnedFd,
    pub kind: ListenerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// Any destination.
    AnyHost,
    /// This port of the host.
    Local(u16),
    Published(PublishedPort),
    /// A client that the supervisor passes on.
    Proxy,
}

impl<'t> Relay<'t> {
    pub(super) fn accept(&mut self, index: usize) {
        for _ in 0..MAX_PER_TURN {
            if self.slots.len() - self.free.len() >= self.max_connections {
                return self.stop_accepting();
            }
            if self.decisions.is_behind() {
                return;
            }
            let listener = &self.listeners[index];
            match rustix::net::accept_with(
                &listener.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(client) => {
                    let kind = listener.kind;
                    self.begin_connection(client, kind);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.stop_accepting();
                }
                // The client closed it before accept.
                Err(_) => {}
            }
        }
    }

    /// Until a connection ends, new ones wait in the listeners' queues.
    fn stop_accepting(&mut self) {
        self.is_full = true;
        self.set_listener_events(EventFlags::empty());
        self.sweep_at.get_or_insert(self.now + SWEEP_INTERVAL);
        if !self.was_full {
            self.was_full = true;
            let reason = Some("too many connections are open: new ones wait until others end");
            self.decisions
                .report(&RelayDecision { reason, ..RelayDecision::denial(DecisionLayer::Connect) });
        }
    }

    pub(super) fn accept_again(&mut self) {
        if self.is_full && self.slots.len() - self.free.len() < self.max_connections {
            self.is_full = false;
            self.set_listener_events(EventFlags::IN);
        }
    }

    fn set_listener_events(&self, flags: EventFlags) {
        for (index, listener) in self.listeners.iter().enumerate() {
            let _ = epoll::modify(
                &self.epoll,
                &listener.socket,
                EventData::new_u64(event(LISTENER, 0, index)),
                flags,
            );
        }
    }

    /// Starts a connection of a program inside, or one to a published port.
    pub(super) fn begin_connection(&mut self, client: OwnedFd, kind: ListenerKind) {
        let dialled = rustix::net::getsockname(&client).and_then(SocketAddr::try_from);
        let Ok(dialled) = dialled else { return };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(PeerSlot { generation: 0, peer: None });
            self.slots.len() - 1
        });
        let generation = self.slots[index].generation;
        if kind == ListenerKind::AnyHost && dialled.port() == 53 {
            self.begin_dns_stream(client, generation, index);
        } else if kind == ListenerKind::Proxy
            || (kind == ListenerKind::AnyHost && dialled.ip() == PROXY.ip())
        {
            self.begin_proxy_greeting(client, generation, index);
        } else {
            self.begin_relaying(client, dialled, kind, generation, index);
        }
    }

    fn begin_dns_stream(&mut self, client: OwnedFd, generation: u16, index: usize) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let number = event(CLIENT, generation, index);
        if epoll::add(&self.epoll, &client, EventData::new_u64(number), flags).is_ok() {
            self.slots[index].peer =
                Some(Peer::DnsStream(Box::new(DnsStream::new(client, self.now))));
            self.sweep_at.get_or_insert(self.now + SWEEP_INTERVAL);
        } else {
            self.free_slot(index);
        }
    }
}

/// Raises the descriptor limit to its maximum. Each connection needs two descriptors.
pub fn connection_limit() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ =
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let actual = rustix::process::getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |max_connections| max_connections as usize);
    let others = RESERVED_DESCRIPTORS + 2 * MAX_PIPES + 2 * MAX_LOOKUPS;
    (actual.saturating_sub(others) / 2).clamp(1, MAX_CONNECTIONS)
}
