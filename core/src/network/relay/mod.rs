//! The relay: a process outside of the sandbox, between the command and the network. It accepts the
//! command's connections, answers DNS questions, decides, dials and copies bytes.
//!
//! One thread and one loop. Nothing waits for a single peer: every socket is non-blocking, and
//! every wait has a deadline. The sockets that it accepts from were created in the command's
//! network namespace. The sockets that it creates belong to the host's network.

mod accept_connections;
pub mod byte_pump;
mod connect_or_refuse;
pub mod connection;
mod decide_target;
pub mod decision_log;
pub mod dial_addresses;
mod dial_for_http_helper;
mod dialer;
pub mod dns_stub;
pub mod guarded_addresses;
pub mod host_resolver;
pub mod http_handover;
mod name_files;
mod pending_connections;
mod proxy;
pub mod refusal_response;
pub mod relay_messages;
pub mod sniffer;
pub mod socket_owner;
pub mod splice_pipes;
pub mod synthetic_addresses;

use std::collections::HashSet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use self::accept_connections::{ListenerKind, RelayListener, connection_limit};
use self::byte_pump::PumpTools;
use self::connection::{Connection, ConnectionSide, Direction, PendingReason, Turn};
use self::decision_log::{
    ConnectionResult, DecisionLog, RelayDecision, SupervisorMessage, Traffic,
};
use self::dial_for_http_helper::UpstreamDial;
use self::dns_stub::{DnsStream, DnsStub, StreamTurn};
use self::guarded_addresses::UpstreamGuards;
use self::host_resolver::{Addresses, HostResolver, NameSources};
use self::http_handover::Handover;
use self::pending_connections::RelayQuestions;
use self::refusal_response::{DENIED_STATUS, RefusalText};
use self::socket_owner::OwnerLookup;
use self::splice_pipes::Pipes;
use super::parse::http_request::MAX_HEAD_BYTES;
use super::rules::host_table::HostTable;
use super::supervisor::proxy_password::ProxyToken;
use super::supervisor::published_ports::CommandNetwork;
use crate::kernel::{stderr, sys};
use crate::plan::exit_codes::EXIT_REFUSED;
use crate::plan::host_name::HostName;
use crate::plan::{self, PublishedPort};

/// Pipes at once. A direction without a pipe copies.
const MAX_PIPES: usize = 128;

/// Connections of one listener, or questions of one socket, before others get their turn.
const MAX_PER_TURN: usize = 64;

/// Interval of the deadline check, while there are connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The sockets of the relay.
#[derive(Default)]
pub struct RelaySockets {
    /// Sockets for connections and DNS questions; empty without a network.
    pub dialled: Vec<OwnedFd>,
    pub names: Vec<OwnedFd>,
    /// Listeners for ports of the host's loopback.
    pub local: Vec<(u16, OwnedFd)>,
    /// A netlink socket to find socket owners ([`super::relay::socket_owner`]).
    pub diagnosis: Option<OwnedFd>,
    /// Listeners on the host for published ports.
    pub published: Vec<(PublishedPort, OwnedFd)>,
    pub command_network: Option<CommandNetwork>,
    /// The socket to the HTTP helper, if there are routes or inspected hosts.
    pub handover: Option<OwnedFd>,
}

/// Runs until the run ends: then the other end of the supervisor's socket is closed. Returns the
/// exit status.
pub fn run(
    plan: &plan::Network,
    sockets: RelaySockets,
    token: Option<ProxyToken>,
    decisions: OwnedFd,
) -> i32 {
    run_with(plan, sockets, token, decisions, NameSources::of_the_host())
}

pub fn run_with(
    plan: &plan::Network,
    sockets: RelaySockets,
    token: Option<ProxyToken>,
    decisions: OwnedFd,
    sources: NameSources,
) -> i32 {
    let table = match HostTable::compile(plan) {
        Ok(table) => table,
        Err(error) => {
            stderr::print_error(&error.to_string(), "correct [network] in the policy");
            return EXIT_REFUSED;
        }
    };
    let ended = Relay::new(&table, sockets, token, decisions, sources).and_then(Relay::serve);
    match ended {
        Ok(()) => 0,
        Err(errno) => {
            stderr::print_error(
                &format!("the relay failed: {errno}"),
                "the run continues without network",
            );
            EXIT_REFUSED
        }
    }
}

/// The kind of an event. The rest of its number says which socket.
const LISTENER: u64 = 0;
const DATAGRAMS: u64 = 1;
const LOOKUP: u64 = 2;
const SUPERVISOR: u64 = 3;
const CLIENT: u64 = 4;
const SERVER: u64 = 5;
const HANDOVER: u64 = 6;

fn event(kind: u64, generation: u16, index: usize) -> u64 {
    kind << 56 | u64::from(generation) << 32 | index as u64
}

/// A slot for a connection. The generation tells late events of an earlier connection apart.
struct PeerSlot<'t> {
    generation: u16,
    peer: Option<Peer<'t>>,
}

enum Peer<'t> {
    Relayed(Box<Connection<'t>>),
    DnsStream(Box<DnsStream>),
    /// A connection that is dialled for the HTTP helper.
    Upstream(Box<UpstreamDial>),
}

struct Relay<'t> {
    table: &'t HostTable,
    epoll: OwnedFd,
    listeners: Vec<RelayListener>,
    datagrams: Vec<OwnedFd>,
    command_network: Option<CommandNetwork>,
    decisions: DecisionLog,
    owners: OwnerLookup,
    questions: RelayQuestions,
    stub: DnsStub<'t>,
    resolver: HostResolver,
    /// Addresses of upstreams with endpoint rules.
    guards: UpstreamGuards<'t>,
    handover: Handover,
    /// Hosts that a person allowed and that are handed over: the HTTP helper may connect to them.
    allowed_by_person: HashSet<(HostName, u16)>,
    tools: PumpTools,
    slots: Vec<PeerSlot<'t>>,
    free: Vec<usize>,
    max_connections: usize,
    /// No connection is accepted until one ends.
    is_full: bool,
    was_full: bool,
    /// Connections that can continue at once.
    ready_again: Vec<u64>,
    sweep_at: Option<Instant>,
    loopback: Addresses,
    now: Instant,
}

impl<'t> Relay<'t> {
    fn new(
        table: &'t HostTable,
        sockets: RelaySockets,
        token: Option<ProxyToken>,
        decisions: OwnedFd,
        sources: NameSources,
    ) -> Result<Relay<'t>, Errno> {
        sys::ignore_broken_pipe_signal();
        let max_connections = connection_limit();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let dialled = sockets.dialled.into_iter().map(|socket| (ListenerKind::AnyHost, socket));
        let local =
            sockets.local.into_iter().map(|(port, socket)| (ListenerKind::Local(port), socket));
        let published = sockets
            .published
            .into_iter()
            .map(|(one, socket)| (ListenerKind::Published(one), socket));
        let listeners = dialled.chain(local).chain(published);
        let listeners: Vec<RelayListener> =
            listeners.map(|(kind, socket)| RelayListener { socket, kind }).collect();
        for (index, listener) in listeners.iter().enumerate() {
            rustix::io::ioctl_fionbio(&listener.socket, true)?;
            // Accepted sockets inherit these options.
            sockopt::set_tcp_nodelay(&listener.socket, true)?;
            sockopt::set_socket_keepalive(&listener.socket, true)?;
            epoll::add(
                &epoll,
                &listener.socket,
                EventData::new_u64(event(LISTENER, 0, index)),
                EventFlags::IN,
            )?;
        }
        let datagrams = sockets.names;
        for (index, socket) in datagrams.iter().enumerate() {
            epoll::add(
                &epoll,
                socket,
                EventData::new_u64(event(DATAGRAMS, 0, index)),
                EventFlags::IN,
            )?;
        }
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&epoll, &decisions, EventData::new_u64(event(SUPERVISOR, 0, 0)), flags)?;
        if let Some(line) = &sockets.handover {
            epoll::add(&epoll, line, EventData::new_u64(event(HANDOVER, 0, 0)), flags)?;
        }
        Ok(Relay {
            table,
            epoll,
            listeners,
            datagrams,
            command_network: sockets.command_network,
            decisions: DecisionLog::new(decisions),
            owners: OwnerLookup::new(sockets.diagnosis),
            questions: RelayQuestions::default(),
            stub: DnsStub::new(table),
            resolver: HostResolver::new(sources),
            guards: UpstreamGuards::new(table.guarded()),
            handover: Handover::new(sockets.handover),
            allowed_by_person: HashSet::new(),
            tools: PumpTools {
                scratch: vec![0; MAX_HEAD_BYTES + 1].into_boxed_slice(),
                pipes: Pipes::new(MAX_PIPES),
                token,
            },
            slots: Vec::new(),
            free: Vec::new(),
            max_connections,
            is_full: false,
            was_full: false,
            ready_again: Vec::new(),
            sweep_at: None,
            loopback: Rc::new([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
            now: Instant::now(),
        })
    }

    fn serve(mut self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(256);
        'run: loop {
            while self.decisions.is_behind() {
                self.decisions.wait()?;
                self.now = Instant::now();
                if !self.handle_event(event(SUPERVISOR, 0, 0), EventFlags::empty()) {
                    break 'run;
                }
            }
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            self.now = Instant::now();
            // Unfinished connections come after new events.
            let ready_again = std::mem::take(&mut self.ready_again);
            for Event { flags, data } in events.iter().copied() {
                if !self.handle_event(data.u64(), flags) {
                    break 'run;
                }
            }
            for number in ready_again {
                self.handle_peer_event(number, EventFlags::empty());
            }
            self.resolver.expire(
                self.now,
                &host_resolver::EventRegistration { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) },
            );
            self.resume_after_lookups();
            self.sweep();
            self.decisions.flush();
        }
        self.finish();
        Ok(())
    }

    /// Reports the connections that are open at the end of the run.
    fn finish(&mut self) {
        for index in 0..self.slots.len() {
            if let Some(Peer::Relayed(connection)) = self.slots[index].peer.take() {
                self.end(*connection, self.slots[index].generation, index);
            }
        }
        self.decisions.finish();
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.ready_again.is_empty() || self.resolver.has_finished() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let next = [self.sweep_at, self.resolver.deadline()].into_iter().flatten().min()?;
        let wait = next.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() })
    }

    /// Returns false if the run has ended.
    fn handle_event(&mut self, number: u64, flags: EventFlags) -> bool {
        let index = number as u32 as usize;
        match number >> 56 {
            LISTENER => self.accept(index),
            DATAGRAMS => self.answer_names(index),
            LOOKUP => {
                let registration = host_resolver::EventRegistration {
                    epoll: &self.epoll,
                    tag: event(LOOKUP, 0, 0),
                };
                self.resolver.ready(index as u32, self.now, &registration, &mut self.tools.scratch);
            }
            SUPERVISOR => {
                self.decisions.flush();
                loop {
                    match self.decisions.next_message() {
                        SupervisorMessage::Client(client)
                            if self.slots.len() - self.free.len() < self.max_connections =>
                        {
                            self.begin_connection(client, ListenerKind::Proxy);
                        }
                        SupervisorMessage::Client(_) => {}
                        SupervisorMessage::Reply(reply) => self.handle_reply(reply),
                        SupervisorMessage::Nothing => break,
                        SupervisorMessage::Over => return false,
                    }
                }
            }
            HANDOVER => self.handle_handover(),
            _ => self.handle_peer_event(number, flags),
        }
        true
    }

    fn answer_names(&mut self, index: usize) {
        use std::os::fd::AsFd as _;
        let socket = &self.datagrams[index];
        for _ in 0..MAX_PER_TURN {
            if self.decisions.is_behind() {
                return;
            }
            let Ok((length, sender)) =
                sys::receive_datagram(socket.as_fd(), &mut self.tools.scratch)
            else {
                break;
            };
            if let Some(answer) =
                self.stub.answer(&self.tools.scratch[..length], &mut self.decisions, self.now)
            {
                let _ = sys::answer_datagram(socket.as_fd(), &sender, &answer);
            }
        }
    }

    fn handle_peer_event(&mut self, number: u64, flags: EventFlags) {
        let (index, generation) = (number as u32 as usize, (number >> 32) as u16);
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.generation == generation)
        else {
            return;
        };
        match slot.peer.take() {
            None => {}
            Some(Peer::Relayed(mut connection)) => {
                connection.note_events(
                    if number >> 56 == CLIENT {
                        ConnectionSide::Client
                    } else {
                        ConnectionSide::Server
                    },
                    flags,
                );
                let turn = connection.turn(&mut self.tools, self.now);
                self.apply_turn(connection, turn, generation, index);
            }
            Some(Peer::Upstream(upstream)) => self.handle_upstream_event(upstream, flags, index),
            Some(Peer::DnsStream(mut stream)) => {
                stream.note_events(flags);
                match stream.turn(
                    &mut self.stub,
                    &mut self.decisions,
                    &mut self.tools.scratch,
                    self.now,
                ) {
                    StreamTurn::Over => return self.free_slot(index),
                    StreamTurn::Again => self.ready_again.push(event(CLIENT, generation, index)),
                    StreamTurn::Wait => {}
                }
                self.slots[index].peer = Some(Peer::DnsStream(stream));
            }
        }
    }

    /// Puts a connection back into its slot, or ends it.
    fn apply_turn(
        &mut self,
        mut connection: Box<Connection<'t>>,
        mut turn: Turn,
        generation: u16,
        index: usize,
    ) {
        loop {
            turn = match turn {
                Turn::Wait => break,
                Turn::Again => {
                    self.ready_again.push(event(CLIENT, generation, index));
                    break;
                }
                Turn::HandedOver(kind) => {
                    return self.hand_over_connection(*connection, kind, index);
                }
                Turn::Over => return self.end(*connection, generation, index),
                Turn::Decide => self.decide(&mut connection, generation, index),
                Turn::Unreachable(errno) => {
                    let number = event(SERVER, generation, index);
                    let dialled = connection.dial_next(&self.dialer(), self.now, number);
                    self.after_dial(&mut connection, dialled, errno)
                }
                Turn::ProxyRequested(request) => {
                    self.proxy_requested(&mut connection, request, generation, index)
                }
                Turn::ProxyRefused(response, reason) => {
                    self.proxy_refused(&mut connection, response, reason)
                }
                Turn::Denied(refusal) => {
                    let target = &connection.target;
                    let named = refusal.host.as_ref().map(|host| host as &dyn fmt::Display);
                    let host = named.or(target.name.as_ref().map(|name| name as _));
                    self.decisions.report(&RelayDecision {
                        host,
                        port: Some(target.port),
                        address: target.address,
                        reason: Some(&refusal.reason),
                        process: target.process.as_ref(),
                        ..RelayDecision::denial(refusal.layer)
                    });
                    let text =
                        RefusalText { rule: None, reason: &refusal.reason, status: DENIED_STATUS };
                    let answer = refusal_response::answer(host, target.port, &text);
                    connection.answer_refusal(&refusal, answer, &mut self.tools, self.now)
                }
            }
        }
        if connection.deadline.is_some() {
            self.sweep_at.get_or_insert(self.now + SWEEP_INTERVAL);
        }
        self.slots[index].peer = Some(Peer::Relayed(connection));
    }

    /// Reports the traffic of a connection. A denial was already reported.
    fn end(&mut self, connection: Connection<'t>, generation: u16, index: usize) {
        if let Some(PendingReason::AwaitingAnswer(question)) = connection.pending {
            self.abandon_question(question, event(CLIENT, generation, index));
        }
        let traffic = Traffic {
            sent: connection.sent(),
            received: connection.received(),
            ms: (self.now - connection.began).as_millis(),
        };
        let flowed = connection.may_have_reached_server();
        let target = connection.close(&mut self.tools);
        if flowed {
            let local = match target.direction {
                Direction::Outward => None,
                Direction::Local => Some(format!("local port {}", target.port)),
                Direction::Inward(host) => Some(format!("--publish {host}:{}", target.port)),
            };
            let rule = target.rule.as_ref().map(|rule| rule as &dyn fmt::Display);
            self.decisions.report(&RelayDecision {
                layer: target.direction.layer(),
                result: ConnectionResult::Allowed,
                process: target.process.as_ref(),
                answer: target.answer.as_ref(),
                host: target.name.as_ref().map(|name| name as _),
                port: Some(target.port),
                address: target.address,
                rule: local.as_ref().map(|local| local as &dyn fmt::Display).or(rule),
                reason: None,
                traffic: Some(traffic),
            });
        }
        if let Some(address) = target.synthetic {
            self.stub.synthetic.release(address);
        }
        self.free_slot(index);
    }

    fn free_slot(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.peer = None;
        self.free.push(index);
        self.accept_again();
    }

    /// Continues the connections whose lookups have finished.
    fn resume_after_lookups(&mut self) {
        let registration =
            host_resolver::EventRegistration { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
        for finished in self.resolver.finished(self.now, &registration) {
            self.guards.learn_lookup(&finished.name, &finished.found, self.now);
            for waiter in finished.waiters {
                let (index, generation) = (waiter as u32 as usize, (waiter >> 32) as u16);
                let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation);
                match slot.and_then(|slot| slot.peer.take()) {
                    // A connection that waits for several lookups can have continued already.
                    Some(Peer::Relayed(connection)) if !connection.is_waiting() => {
                        self.slots[index].peer = Some(Peer::Relayed(connection));
                    }
                    Some(Peer::Relayed(mut connection)) => {
                        let turn = match connection.take_addresses() {
                            Some(addresses) => {
                                self.dial(&mut connection, addresses, generation, index)
                            }
                            None => self.addresses_found(
                                &mut connection,
                                finished.found.clone(),
                                generation,
                                index,
                            ),
                        };
                        self.apply_turn(connection, turn, generation, index);
                    }
                    Some(Peer::Upstream(upstream)) => {
                        self.upstream_resolved(*upstream, finished.found.clone(), index)
                    }
                    Some(Peer::DnsStream(_)) | None => {}
                }
            }
        }
    }

    /// Ends connections that took too long.
    fn sweep(&mut self) {
        if self.sweep_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.sweep_at = None;
        let mut is_needed = false;
        for index in 0..self.slots.len() {
            let generation = self.slots[index].generation;
            let deadline = match &self.slots[index].peer {
                Some(Peer::Relayed(connection)) => connection.deadline,
                Some(Peer::DnsStream(stream)) => Some(stream.deadline),
                Some(Peer::Upstream(upstream)) => upstream.deadline,
                None => None,
            };
            let Some(deadline) = deadline else { continue };
            if deadline > self.now {
                is_needed = true;
                continue;
            }
            match self.slots[index].peer.take() {
                Some(Peer::Relayed(mut connection)) => {
                    let turn = connection.expire();
                    self.apply_turn(connection, turn, generation, index);
                }
                Some(Peer::DnsStream(_)) => self.free_slot(index),
                Some(Peer::Upstream(upstream)) => self.upstream_expired(upstream, index),
                None => {}
            }
        }
        // Other processes may have used the descriptors.
        self.accept_again();
        if is_needed {
            self.sweep_at.get_or_insert(self.now + SWEEP_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests;
