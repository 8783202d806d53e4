//! What the Python half has dialled for it: there is one place that decides who is called, resolves
//! and dials, and this is it.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::dial::{self, Dial, Next, is_own};
use super::host_resolver::{self, Addresses, Failure};
use super::http_handover::Wanted;
use super::{LOOKUP, Peer, Relay, SERVER, SWEEP, Slot, event};
use crate::plan::host_name::{Host, Name};

/// One that is being looked up or dialled.
pub struct Upstream {
    wanted: Wanted,
    dialled: Option<(Dial, OwnedFd)>,
    /// To be dialled, when the addresses of guarded upstreams are known.
    found: Option<Addresses>,
    pub deadline: Option<Instant>,
}

impl<'t> Relay<'t> {
    /// The Python half has something to say, takes something again, or is gone.
    pub(super) fn handover_happened(&mut self) {
        self.handover.flush();
        while let Some(wanted) = self.handover.asked() {
            let agreed = |name: &Name| self.agreed.contains(&(name.clone(), wanted.port));
            if let Err(reason) = self.table.judge_upstream(&wanted.host, wanted.port, agreed) {
                self.handover.not_reached(wanted.id, reason, true);
                continue;
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot { generation: 0, peer: None });
                self.slots.len() - 1
            });
            let number = event(SERVER, self.slots[index].generation, index);
            let found = match &wanted.host {
                Host::Address(address) => Some(Ok(Rc::from([*address]))),
                Host::Name(name) => {
                    let loop_ =
                        host_resolver::Loop { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
                    self.resolver.look_up(name, number, self.now, &loop_)
                }
            };
            let upstream = Upstream { wanted, dialled: None, found: None, deadline: None };
            match found {
                Some(found) => self.upstream_found(upstream, found, index),
                None => self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream))),
            }
        }
    }

    /// A lookup has ended for which it waits, or waited.
    pub(super) fn upstream_told(
        &mut self,
        mut upstream: Upstream,
        found: Result<Addresses, Failure>,
        index: usize,
    ) {
        if upstream.dialled.is_some() {
            self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream)));
            return;
        }
        let found = upstream.found.take().map_or(found, Ok);
        self.upstream_found(upstream, found, index);
    }

    fn may_compare(&mut self, wanted: &Wanted, index: usize) -> bool {
        let number = event(SERVER, self.slots[index].generation, index);
        self.table.is_upstream(&wanted.host, wanted.port) || self.knows_guards(wanted.port, number)
    }

    pub(super) fn upstream_found(
        &mut self,
        upstream: Upstream,
        found: Result<Addresses, Failure>,
        index: usize,
    ) {
        if let Host::Name(name) = &upstream.wanted.host {
            self.guards.heard(name, &found, self.now);
        }
        match found {
            // What no route leads to is a host that is inspected: it may not be another name of a
            // route's upstream.
            Ok(addresses) if !self.may_compare(&upstream.wanted, index) => {
                let upstream = Upstream { found: Some(addresses), ..upstream };
                self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream)));
            }
            Ok(addresses) => {
                let dial = Dial::new(addresses, self.now);
                self.dial_upstream(upstream.wanted, dial, Errno::HOSTUNREACH, index);
            }
            Err(failure) => self.upstream_failed(&upstream.wanted, failure.reason(), false, index),
        }
    }

    fn dial_upstream(&mut self, wanted: Wanted, mut dial: Dial, errno: Errno, index: usize) {
        let (host, port) = (&wanted.host, wanted.port);
        let number = event(SERVER, self.slots[index].generation, index);
        let is_upstream = self.table.is_upstream(host, port);
        let may = |address| {
            if !is_upstream {
                self.guards.judge(address, port, true)?;
            }
            self.table.may_dial_upstream(host, address, port, is_own(address))
        };
        match dial.next(port, may, dial::host_socket, self.now, &self.epoll, number) {
            Next::Started(socket, deadline) => {
                let upstream = Upstream {
                    wanted,
                    dialled: Some((dial, socket)),
                    found: None,
                    deadline: Some(deadline),
                };
                self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream)));
                self.sweep_at.get_or_insert(self.now + SWEEP);
            }
            Next::Forbidden(address, reason) => {
                self.upstream_failed(&wanted, &format!("{address}: {reason}"), true, index);
            }
            Next::Unreachable => {
                let reason = format!("cannot connect: {errno}");
                self.upstream_failed(&wanted, &reason, false, index);
            }
        }
    }

    fn upstream_failed(&mut self, wanted: &Wanted, reason: &str, denied: bool, index: usize) {
        self.handover.not_reached(wanted.id, reason, denied);
        self.vacate(index);
    }

    pub(super) fn upstream_happened(
        &mut self,
        mut upstream: Box<Upstream>,
        flags: EventFlags,
        index: usize,
    ) {
        let Some((dial, socket)) = upstream.dialled.take() else {
            self.slots[index].peer = Some(Peer::Upstream(upstream));
            return;
        };
        if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            upstream.dialled = Some((dial, socket));
            self.slots[index].peer = Some(Peer::Upstream(upstream));
            return;
        }
        match (sockopt::socket_error(&socket), dial.tried) {
            (Ok(Ok(())), Some(address)) => {
                let _ = sockopt::set_tcp_nodelay(&socket, true);
                let _ = sockopt::set_socket_keepalive(&socket, true);
                // Its events are for whoever gets it.
                let _ = epoll::delete(&self.epoll, &socket);
                self.handover.reached(upstream.wanted.id, socket, address);
                self.vacate(index);
            }
            (Ok(Err(errno)) | Err(errno), _) => {
                self.dial_upstream(upstream.wanted, dial, errno, index)
            }
            (Ok(Ok(())), None) => {
                self.upstream_failed(&upstream.wanted, "cannot connect", false, index)
            }
        }
    }

    /// The address that was dialled does not answer.
    pub(super) fn upstream_expired(&mut self, mut upstream: Box<Upstream>, index: usize) {
        match upstream.dialled.take() {
            Some((dial, _)) => self.dial_upstream(upstream.wanted, dial, Errno::TIMEDOUT, index),
            None => self.slots[index].peer = Some(Peer::Upstream(upstream)),
        }
    }
}
