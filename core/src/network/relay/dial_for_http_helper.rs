//! Dials for the HTTP helper. Only the relay decides about hosts, resolves and dials.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::dial_addresses::{self, Dial, DialStep, is_own};
use super::host_resolver::{self, Addresses, LookupFailure};
use super::http_handover::DialRequest;
use super::{LOOKUP, Peer, PeerSlot, Relay, SERVER, SWEEP_INTERVAL, event};
use crate::plan::host_name::{Host, HostName};

/// A connection that is being resolved or dialled.
pub struct UpstreamDial {
    request: DialRequest,
    dialled: Option<(Dial, OwnedFd)>,
    /// Addresses to dial once the guarded addresses are known.
    found: Option<Addresses>,
    pub deadline: Option<Instant>,
}

impl<'t> Relay<'t> {
    /// The HTTP helper sent a message, can take one again, or is gone.
    pub(super) fn handle_handover(&mut self) {
        self.handover.flush();
        while let Some(request) = self.handover.next_dial() {
            let allowed_by_person =
                |name: &HostName| self.allowed_by_person.contains(&(name.clone(), request.port));
            if let Err(reason) =
                self.table.judge_upstream(&request.host, request.port, allowed_by_person)
            {
                self.handover.not_reached(request.id, reason, true);
                continue;
            }
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(PeerSlot { generation: 0, peer: None });
                self.slots.len() - 1
            });
            let number = event(SERVER, self.slots[index].generation, index);
            let found = match &request.host {
                Host::Address(address) => Some(Ok(Rc::from([*address]))),
                Host::Name(name) => {
                    let registration = host_resolver::EventRegistration {
                        epoll: &self.epoll,
                        tag: event(LOOKUP, 0, 0),
                    };
                    self.resolver.look_up(name, number, self.now, &registration)
                }
            };
            let upstream = UpstreamDial { request, dialled: None, found: None, deadline: None };
            match found {
                Some(found) => self.upstream_found(upstream, found, index),
                None => self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream))),
            }
        }
    }

    /// A lookup has ended for which it waits, or waited.
    pub(super) fn upstream_resolved(
        &mut self,
        mut upstream: UpstreamDial,
        found: Result<Addresses, LookupFailure>,
        index: usize,
    ) {
        if upstream.dialled.is_some() {
            self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream)));
            return;
        }
        let found = upstream.found.take().map_or(found, Ok);
        self.upstream_found(upstream, found, index);
    }

    fn can_compare_guards(&mut self, request: &DialRequest, index: usize) -> bool {
        let number = event(SERVER, self.slots[index].generation, index);
        self.table.is_upstream(&request.host, request.port)
            || self.guards_are_known(request.port, number)
    }

    pub(super) fn upstream_found(
        &mut self,
        upstream: UpstreamDial,
        found: Result<Addresses, LookupFailure>,
        index: usize,
    ) {
        if let Host::Name(name) = &upstream.request.host {
            self.guards.learn_lookup(name, &found, self.now);
        }
        match found {
            // A host without a route is an inspected host. It must not be another name of a route's
            // upstream.
            Ok(addresses) if !self.can_compare_guards(&upstream.request, index) => {
                let upstream = UpstreamDial { found: Some(addresses), ..upstream };
                self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream)));
            }
            Ok(addresses) => {
                let dial = Dial::new(addresses, self.now);
                self.dial_upstream(upstream.request, dial, Errno::HOSTUNREACH, index);
            }
            Err(failure) => self.upstream_failed(&upstream.request, failure.reason(), false, index),
        }
    }

    fn dial_upstream(&mut self, request: DialRequest, mut dial: Dial, errno: Errno, index: usize) {
        let (host, port) = (&request.host, request.port);
        let number = event(SERVER, self.slots[index].generation, index);
        let is_upstream = self.table.is_upstream(host, port);
        let may_dial = |address| {
            if !is_upstream {
                self.guards.judge(address, port, true)?;
            }
            self.table.may_dial_upstream(host, address, port, is_own(address))
        };
        match dial.next(port, may_dial, dial_addresses::host_socket, self.now, &self.epoll, number)
        {
            DialStep::Started(socket, deadline) => {
                let upstream = UpstreamDial {
                    request,
                    dialled: Some((dial, socket)),
                    found: None,
                    deadline: Some(deadline),
                };
                self.slots[index].peer = Some(Peer::Upstream(Box::new(upstream)));
                self.sweep_at.get_or_insert(self.now + SWEEP_INTERVAL);
            }
            DialStep::Forbidden(address, reason) => {
                self.upstream_failed(&request, &format!("{address}: {reason}"), true, index);
            }
            DialStep::Unreachable => {
                let reason = format!("cannot connect: {errno}");
                self.upstream_failed(&request, &reason, false, index);
            }
        }
    }

    fn upstream_failed(&mut self, request: &DialRequest, reason: &str, denied: bool, index: usize) {
        self.handover.not_reached(request.id, reason, denied);
        self.free_slot(index);
    }

    pub(super) fn handle_upstream_event(
        &mut self,
        mut upstream: Box<UpstreamDial>,
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
                // Later events belong to the new owner.
                let _ = epoll::delete(&self.epoll, &socket);
                self.handover.reached(upstream.request.id, socket, address);
                self.free_slot(index);
            }
            (Ok(Err(errno)) | Err(errno), _) => {
                self.dial_upstream(upstream.request, dial, errno, index)
            }
            (Ok(Ok(())), None) => {
                self.upstream_failed(&upstream.request, "cannot connect", false, index)
            }
        }
    }

    /// The dialled address does not answer.
    pub(super) fn upstream_expired(&mut self, mut upstream: Box<UpstreamDial>, index: usize) {
        match upstream.dialled.take() {
            Some((dial, _)) => self.dial_upstream(upstream.request, dial, Errno::TIMEDOUT, index),
            None => self.slots[index].peer = Some(Peer::Upstream(upstream)),
        }
    }
}
