//! The process outside that stands between the run and the network. It takes what programs inside
//! dial, answers their questions for names, decides, dials and passes bytes on.
//!
//! One thread, one loop, nothing that waits for one peer: every socket is non-blocking and every
//! wait has its end. The sockets it accepts from were made inside and keep belonging there; those
//! it makes itself are of the host's network.

pub mod byte_pump;
mod connect_upstream;
pub mod connection;
mod decide;
pub mod decision_log;
pub mod dial;
mod dial_for_http;
pub mod dns_stub;
pub mod guarded_addresses;
pub mod host_resolver;
pub mod http_handover;
mod origin;
mod pending;
mod proxy;
pub mod refusal_response;
pub mod relay_messages;
pub mod sniffer;
pub mod socket_owner;
pub mod splice_pipes;
pub mod synthetic_addresses;

use std::collections::HashSet;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};
use rustix::process::{Resource, Rlimit};

use self::byte_pump::Tools;
use self::connection::{Connection, Direction, Doubt, Side, Turn};
use self::decision_log::{ConnectionResult, Decision, DecisionLog, Heard, Layer, Traffic};
use self::dial_for_http::Upstream;
use self::dns_stub::{Next, Stream, Stub};
use self::guarded_addresses::Guards;
use self::host_resolver::{Addresses, Resolver, Sources};
use self::http_handover::Handover;
use self::pending::Questions;
use self::refusal_response::{DENIED, RefusalText};
use self::socket_owner::Owners;
use self::splice_pipes::Pipes;
use super::namespace::PROXY;
use super::parse::http_request::HEAD_LIMIT;
use super::rules::host_table::Table;
use super::supervisor::proxy_password::Token;
use super::supervisor::published_ports::Within;
use crate::kernel::{stderr, sys};
use crate::plan::exit_codes::EXIT_REFUSED;
use crate::plan::host_name::Name;
use crate::plan::{self, Published};

/// So many at once, if there are descriptors for them.
const CONNECTIONS: usize = 10_000;

/// So many pipes at once; who gets none copies.
const PIPES: usize = 128;

/// Listeners, epoll, standard descriptors, a file that is read.
const OTHER_DESCRIPTORS: usize = 64;

/// So many connections are taken from one listener, and so many questions from one socket, before
/// others get their turn.
const IN_A_ROW: usize = 64;

/// How often deadlines of connections are looked at while there are any.
const SWEEP: Duration = Duration::from_secs(1);

/// What was made inside.
#[derive(Default)]
pub struct Sockets {
    /// Where connections arrive, and questions for names; none where nothing is reached.
    pub dialled: Vec<OwnedFd>,
    pub names: Vec<OwnedFd>,
    /// Listeners at ports of the host's loopback.
    pub local: Vec<(u16, OwnedFd)>,
    /// To ask for sockets with ([`super::relay::socket_owner`]).
    pub diagnosis: Option<OwnedFd>,
    /// And the other way round: the host's own, for ports inside.
    pub published: Vec<(Published, OwnedFd)>,
    pub within: Option<Within>,
    /// The line to the Python half, where something is to be read as HTTP.
    pub handover: Option<OwnedFd>,
}

/// Until the run ends, which is when the other end of `told` is closed. What is returned is the
/// exit status.
pub fn run(plan: &plan::Network, sockets: Sockets, token: Option<Token>, told: OwnedFd) -> i32 {
    run_with(plan, sockets, token, told, Sources::of_the_host())
}

pub fn run_with(
    plan: &plan::Network,
    sockets: Sockets,
    token: Option<Token>,
    told: OwnedFd,
    sources: Sources,
) -> i32 {
    let table = match Table::compile(plan) {
        Ok(table) => table,
        Err(error) => {
            stderr::complain(&error.to_string(), "correct [network] in the policy");
            return EXIT_REFUSED;
        }
    };
    let ended = Relay::new(&table, sockets, token, told, sources).and_then(Relay::serve);
    match ended {
        Ok(()) => 0,
        Err(errno) => {
            stderr::complain(
                &format!("the relay failed: {errno}"),
                "the run continues without network",
            );
            EXIT_REFUSED
        }
    }
}

/// What an event is about; the rest of its number says which one.
const LISTENER: u64 = 0;
const DATAGRAMS: u64 = 1;
const LOOKUP: u64 = 2;
const TOLD: u64 = 3;
const CLIENT: u64 = 4;
const SERVER: u64 = 5;
const HANDOVER: u64 = 6;

fn event(kind: u64, generation: u16, index: usize) -> u64 {
    kind << 56 | u64::from(generation) << 32 | index as u64
}

struct Listener {
    socket: OwnedFd,
    entrance: Entrance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entrance {
    /// For whatever was dialled.
    Dialled,
    /// For this port of the host.
    Local(u16),
    Published(Published),
    /// A client that the supervisor hands over.
    Proxy,
}

/// A place for a connection. Events for one that was there before are not for this one.
struct Slot<'t> {
    generation: u16,
    peer: Option<Peer<'t>>,
}

enum Peer<'t> {
    Relayed(Box<Connection<'t>>),
    Asking(Box<Stream>),
    /// Dialled for the Python half.
    Upstream(Box<Upstream>),
}

struct Relay<'t> {
    table: &'t Table,
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    datagrams: Vec<OwnedFd>,
    within: Option<Within>,
    told: DecisionLog,
    owners: Owners,
    questions: Questions,
    stub: Stub<'t>,
    resolver: Resolver,
    /// The addresses of upstreams with endpoint rules.
    guards: Guards<'t>,
    handover: Handover,
    /// What a person was asked about and allowed, of what is handed over: it may be called from
    /// there, too.
    agreed: HashSet<(Name, u16)>,
    tools: Tools,
    slots: Vec<Slot<'t>>,
    free: Vec<usize>,
    most: usize,
    /// Nothing is accepted until something ends.
    is_full: bool,
    was_full: bool,
    /// Connections that could go on at once.
    again: Vec<u64>,
    sweep_at: Option<Instant>,
    loopback: Addresses,
    now: Instant,
}

impl<'t> Relay<'t> {
    fn new(
        table: &'t Table,
        sockets: Sockets,
        token: Option<Token>,
        told: OwnedFd,
        sources: Sources,
    ) -> Result<Relay<'t>, Errno> {
        sys::ignore_broken_pipe_signal();
        let most = most_connections();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let dialled = sockets.dialled.into_iter().map(|socket| (Entrance::Dialled, socket));
        let local = sockets.local.into_iter().map(|(port, socket)| (Entrance::Local(port), socket));
        let published =
            sockets.published.into_iter().map(|(one, socket)| (Entrance::Published(one), socket));
        let listeners = dialled.chain(local).chain(published);
        let listeners: Vec<Listener> =
            listeners.map(|(entrance, socket)| Listener { socket, entrance }).collect();
        for (index, listener) in listeners.iter().enumerate() {
            rustix::io::ioctl_fionbio(&listener.socket, true)?;
            // What is accepted inherits these.
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
        epoll::add(&epoll, &told, EventData::new_u64(event(TOLD, 0, 0)), flags)?;
        if let Some(line) = &sockets.handover {
            epoll::add(&epoll, line, EventData::new_u64(event(HANDOVER, 0, 0)), flags)?;
        }
        Ok(Relay {
            table,
            epoll,
            listeners,
            datagrams,
            within: sockets.within,
            told: DecisionLog::new(told),
            owners: Owners::new(sockets.diagnosis),
            questions: Questions::default(),
            stub: Stub::new(table),
            resolver: Resolver::new(sources),
            guards: Guards::new(table.guarded()),
            handover: Handover::new(sockets.handover),
            agreed: HashSet::new(),
            tools: Tools {
                scratch: vec![0; HEAD_LIMIT + 1].into_boxed_slice(),
                pipes: Pipes::new(PIPES),
                token,
            },
            slots: Vec::new(),
            free: Vec::new(),
            most,
            is_full: false,
            was_full: false,
            again: Vec::new(),
            sweep_at: None,
            loopback: Rc::new([Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]),
            now: Instant::now(),
        })
    }

    fn serve(mut self) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(256);
        'run: loop {
            while self.told.is_behind() {
                self.told.wait()?;
                self.now = Instant::now();
                if !self.happened(event(TOLD, 0, 0), EventFlags::empty()) {
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
            // Those that were not finished come after those that now begin.
            let again = std::mem::take(&mut self.again);
            for Event { flags, data } in events.iter().copied() {
                if !self.happened(data.u64(), flags) {
                    break 'run;
                }
            }
            for number in again {
                self.peer_happened(number, EventFlags::empty());
            }
            self.resolver.expire(
                self.now,
                &host_resolver::Loop { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) },
            );
            self.hand_out_names();
            self.sweep();
            self.told.flush();
        }
        self.take_leave();
        Ok(())
    }

    /// The run has ended, and connections of it had not.
    fn take_leave(&mut self) {
        for index in 0..self.slots.len() {
            if let Some(Peer::Relayed(connection)) = self.slots[index].peer.take() {
                self.end(*connection, self.slots[index].generation, index);
            }
        }
        self.told.finish();
    }

    fn timeout(&self) -> Option<Timespec> {
        if !self.again.is_empty() || self.resolver.has_finished() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let next = [self.sweep_at, self.resolver.deadline()].into_iter().flatten().min()?;
        let wait = next.saturating_duration_since(Instant::now());
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() })
    }

    /// False: the run is over.
    fn happened(&mut self, number: u64, flags: EventFlags) -> bool {
        let index = number as u32 as usize;
        match number >> 56 {
            LISTENER => self.accept(index),
            DATAGRAMS => self.answer(index),
            LOOKUP => {
                let loop_ = host_resolver::Loop { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
                self.resolver.ready(index as u32, self.now, &loop_, &mut self.tools.scratch);
            }
            TOLD => {
                self.told.flush();
                loop {
                    match self.told.hear() {
                        Heard::Client(client) if self.slots.len() - self.free.len() < self.most => {
                            self.begin(client, Entrance::Proxy);
                        }
                        Heard::Client(_) => {}
                        Heard::Reply(reply) => self.replied(reply),
                        Heard::Nothing => break,
                        Heard::Over => return false,
                    }
                }
            }
            HANDOVER => self.handover_happened(),
            _ => self.peer_happened(number, flags),
        }
        true
    }

    fn answer(&mut self, index: usize) {
        use std::os::fd::AsFd as _;
        let socket = &self.datagrams[index];
        for _ in 0..IN_A_ROW {
            if self.told.is_behind() {
                return;
            }
            let Ok((length, sender)) =
                sys::receive_datagram(socket.as_fd(), &mut self.tools.scratch)
            else {
                break;
            };
            if let Some(answer) =
                self.stub.answer(&self.tools.scratch[..length], &mut self.told, self.now)
            {
                let _ = sys::answer_datagram(socket.as_fd(), &sender, &answer);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        for _ in 0..IN_A_ROW {
            if self.slots.len() - self.free.len() >= self.most {
                return self.stop_accepting();
            }
            if self.told.is_behind() {
                return;
            }
            let listener = &self.listeners[index];
            match rustix::net::accept_with(
                &listener.socket,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok(client) => {
                    let entrance = listener.entrance;
                    self.begin(client, entrance);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return self.stop_accepting();
                }
                // One that went away before it was taken.
                Err(_) => {}
            }
        }
    }

    /// Until a connection ends, those that come wait in the listeners' queues.
    fn stop_accepting(&mut self) {
        self.is_full = true;
        self.listen_for(EventFlags::empty());
        self.sweep_at.get_or_insert(self.now + SWEEP);
        if !self.was_full {
            self.was_full = true;
            let reason = Some("too many connections are open: new ones wait until others end");
            self.told.say(&Decision { reason, ..Decision::about_nobody(Layer::Connect) });
        }
    }

    fn accept_again(&mut self) {
        if self.is_full && self.slots.len() - self.free.len() < self.most {
            self.is_full = false;
            self.listen_for(EventFlags::IN);
        }
    }

    fn listen_for(&self, flags: EventFlags) {
        for (index, listener) in self.listeners.iter().enumerate() {
            let _ = epoll::modify(
                &self.epoll,
                &listener.socket,
                EventData::new_u64(event(LISTENER, 0, index)),
                flags,
            );
        }
    }

    /// A program inside has connected, or one outside to a port that is published.
    fn begin(&mut self, client: OwnedFd, entrance: Entrance) {
        let dialled = rustix::net::getsockname(&client).and_then(SocketAddr::try_from);
        let Ok(dialled) = dialled else { return };
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, peer: None });
            self.slots.len() - 1
        });
        let generation = self.slots[index].generation;
        if entrance == Entrance::Dialled && dialled.port() == 53 {
            self.begin_asking(client, generation, index);
        } else if entrance == Entrance::Proxy
            || (entrance == Entrance::Dialled && dialled.ip() == PROXY.ip())
        {
            self.begin_greeting(client, generation, index);
        } else {
            self.begin_relaying(client, dialled, entrance, generation, index);
        }
    }

    fn begin_asking(&mut self, client: OwnedFd, generation: u16, index: usize) {
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let number = event(CLIENT, generation, index);
        if epoll::add(&self.epoll, &client, EventData::new_u64(number), flags).is_ok() {
            self.slots[index].peer = Some(Peer::Asking(Box::new(Stream::new(client, self.now))));
            self.sweep_at.get_or_insert(self.now + SWEEP);
        } else {
            self.vacate(index);
        }
    }

    fn peer_happened(&mut self, number: u64, flags: EventFlags) {
        let (index, generation) = (number as u32 as usize, (number >> 32) as u16);
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.generation == generation)
        else {
            return;
        };
        match slot.peer.take() {
            None => {}
            Some(Peer::Relayed(mut connection)) => {
                connection
                    .note(if number >> 56 == CLIENT { Side::Client } else { Side::Server }, flags);
                let turn = connection.turn(&mut self.tools, self.now);
                self.settle(connection, turn, generation, index);
            }
            Some(Peer::Upstream(upstream)) => self.upstream_happened(upstream, flags, index),
            Some(Peer::Asking(mut stream)) => {
                stream.note(flags);
                match stream.turn(&mut self.stub, &mut self.told, &mut self.tools.scratch, self.now)
                {
                    Next::Over => return self.vacate(index),
                    Next::Again => self.again.push(event(CLIENT, generation, index)),
                    Next::Wait => {}
                }
                self.slots[index].peer = Some(Peer::Asking(stream));
            }
        }
    }

    /// Puts a connection back where it was, or ends it.
    fn settle(
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
                    self.again.push(event(CLIENT, generation, index));
                    break;
                }
                Turn::HandedOver(kind) => return self.part(*connection, kind, index),
                Turn::Over => return self.end(*connection, generation, index),
                Turn::Decide => self.decide(&mut connection, generation, index),
                Turn::Unreachable(errno) => {
                    let number = event(SERVER, generation, index);
                    let dialled = connection.dial_next(&self.origin(), self.now, number);
                    self.dialled(&mut connection, dialled, errno)
                }
                Turn::Asked(asked) => self.asked(&mut connection, asked, generation, index),
                Turn::Misled(words, reason) => self.misled(&mut connection, words, reason),
                Turn::Refused(refusal) => {
                    let subject = &connection.subject;
                    let named = refusal.host.as_ref().map(|host| host as &dyn fmt::Display);
                    let host = named.or(subject.name.as_ref().map(|name| name as _));
                    self.told.say(&Decision {
                        host,
                        port: Some(subject.port),
                        address: subject.address,
                        reason: Some(&refusal.reason),
                        process: subject.process.as_ref(),
                        ..Decision::about_nobody(refusal.layer)
                    });
                    let verdict =
                        RefusalText { rule: None, reason: &refusal.reason, status: DENIED };
                    let answer = refusal_response::answer(host, subject.port, &verdict);
                    connection.answer_refusal(&refusal, answer, &mut self.tools, self.now)
                }
            }
        }
        if connection.deadline.is_some() {
            self.sweep_at.get_or_insert(self.now + SWEEP);
        }
        self.slots[index].peer = Some(Peer::Relayed(connection));
    }

    /// What flowed is told; what was refused has been.
    fn end(&mut self, connection: Connection<'t>, generation: u16, index: usize) {
        if let Some(Doubt::Asked(question)) = connection.doubt {
            self.give_up(question, event(CLIENT, generation, index));
        }
        let traffic = Traffic {
            sent: connection.sent(),
            received: connection.received(),
            ms: (self.now - connection.began).as_millis(),
        };
        let flowed = connection.has_flowed();
        let subject = connection.close(&mut self.tools);
        if flowed {
            let local = match subject.way {
                Direction::Outward => None,
                Direction::Local => Some(format!("local port {}", subject.port)),
                Direction::Inward(host) => Some(format!("--publish {host}:{}", subject.port)),
            };
            let rule = subject.rule.as_ref().map(|rule| rule as &dyn fmt::Display);
            self.told.say(&Decision {
                layer: subject.way.layer(),
                outcome: ConnectionResult::Allowed,
                process: subject.process.as_ref(),
                asked: subject.asked.as_ref(),
                host: subject.name.as_ref().map(|name| name as _),
                port: Some(subject.port),
                address: subject.address,
                rule: local.as_ref().map(|local| local as &dyn fmt::Display).or(rule),
                reason: None,
                traffic: Some(traffic),
            });
        }
        if let Some(address) = subject.synthetic {
            self.stub.synthetic.release(address);
        }
        self.vacate(index);
    }

    fn vacate(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.peer = None;
        self.free.push(index);
        self.accept_again();
    }

    /// Connections whose names were looked up go on.
    fn hand_out_names(&mut self) {
        let loop_ = host_resolver::Loop { epoll: &self.epoll, tag: event(LOOKUP, 0, 0) };
        for finished in self.resolver.finished(self.now, &loop_) {
            self.guards.heard(&finished.name, &finished.found, self.now);
            for waiter in finished.waiters {
                let (index, generation) = (waiter as u32 as usize, (waiter >> 32) as u16);
                let slot = self.slots.get_mut(index).filter(|slot| slot.generation == generation);
                match slot.and_then(|slot| slot.peer.take()) {
                    // One that waits for several lookups may be told after it went on.
                    Some(Peer::Relayed(connection)) if !connection.is_waiting() => {
                        self.slots[index].peer = Some(Peer::Relayed(connection));
                    }
                    Some(Peer::Relayed(mut connection)) => {
                        let turn = match connection.take_found() {
                            Some(addresses) => {
                                self.dial(&mut connection, addresses, generation, index)
                            }
                            None => self.found(
                                &mut connection,
                                finished.found.clone(),
                                generation,
                                index,
                            ),
                        };
                        self.settle(connection, turn, generation, index);
                    }
                    Some(Peer::Upstream(upstream)) => {
                        self.upstream_told(*upstream, finished.found.clone(), index)
                    }
                    Some(Peer::Asking(_)) | None => {}
                }
            }
        }
    }

    /// Ends what took too long.
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
                Some(Peer::Asking(stream)) => Some(stream.deadline),
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
                    self.settle(connection, turn, generation, index);
                }
                Some(Peer::Asking(_)) => self.vacate(index),
                Some(Peer::Upstream(upstream)) => self.upstream_expired(upstream, index),
                None => {}
            }
        }
        // Descriptors may have been somebody else's.
        self.accept_again();
        if is_needed {
            self.sweep_at.get_or_insert(self.now + SWEEP);
        }
    }
}

/// Raises the limit of descriptors as far as it goes. Each connection needs two.
fn most_connections() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ =
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let actual = rustix::process::getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |most| most as usize);
    let others = OTHER_DESCRIPTORS + 2 * PIPES + 2 * host_resolver::AT_ONCE;
    (actual.saturating_sub(others) / 2).clamp(1, CONNECTIONS)
}

#[cfg(test)]
mod tests;
