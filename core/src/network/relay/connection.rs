//! One connection from inside, from start to end:
//!
//! ```text
//! greeting ─▶ waiting ─▶ dialling ─▶ flowing ─▶ over
//!     │          └───────────┴─▶ refusing ─▶ leaving ─▶ over
//!     └──────────────────────────── flowing ─┘
//! ```
//!
//! A greeting is sent to the proxy; a direct connection has none.
//!
//! The program inside is connected to the relay before any decision. A denial is a reset, or an
//! HTTP response to an HTTP client.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use super::byte_pump::{ByteFlow, PumpError, PumpSocket, PumpTools};
use super::decision_log::{self, DecisionLayer};
use super::dial_addresses::{Dial, DialStep, WATCHED_EVENTS, is_own};
use super::dialer::{DialResult, Dialer};
use super::host_resolver::Addresses;
use super::relay_messages::SocketProcess;
use super::sniffer::{SniffedDenial, Sniffer};
use crate::network::parse::http_request::{self, FirstBytes};
use crate::network::parse::http_response_head;
use crate::network::parse::proxy_request::{
    GreetingStep, ProxyGreeting, ProxyProtocol, ProxyRequest,
};
use crate::network::rules::host_table::MatchedRule;
use crate::network::rules::http_hosts::HandoverKind;
use crate::plan::host_name::{Host, HostName};

/// Time to complete the first request head, the ClientHello or the proxy greeting.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for a refused client to start a request. Other clients get a reset then.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for a server to finish earlier responses after a denial, and for a client to read the
/// denial.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The target of a connection.
pub struct ConnectionTarget<'t> {
    pub name: Option<HostName>,
    /// The synthetic address that the program dialled.
    pub synthetic: Option<IpAddr>,
    pub port: u16,
    /// The address that was dialled or requested.
    pub address: Option<IpAddr>,
    pub rule: Option<MatchedRule<'t>>,
    pub direction: Direction,
    /// The owning process, if known.
    pub process: Option<SocketProcess>,
    /// The person's answer, if one was asked.
    pub answer: Option<decision_log::PersonAnswer>,
}

impl ConnectionTarget<'_> {
    /// A target of which nothing is known yet.
    pub fn unknown() -> ConnectionTarget<'static> {
        ConnectionTarget {
            name: None,
            synthetic: None,
            port: 0,
            address: None,
            rule: None,
            direction: Direction::Outward,
            process: None,
            answer: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Outward,
    /// To a local port of the host.
    Local,
    /// From this port of the host to one inside.
    Inward(u16),
}

impl Direction {
    pub fn layer(self) -> DecisionLayer {
        match self {
            Direction::Outward | Direction::Local => DecisionLayer::Connect,
            Direction::Inward(_) => DecisionLayer::Publish,
        }
    }
}

/// What a connection that is not simply allowed waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// It is denied for this reason as soon as its owner is known.
    Denied(&'static str),
    /// The question is asked as soon as its owner is known.
    NotAsked,
    /// It waits for the answer to this question.
    AwaitingAnswer(u64),
}

enum ConnectionState {
    /// Bytes that were read and not parsed yet.
    ProxyGreeting(ProxyGreeting, Vec<u8>),
    /// Waits for an owner, an answer or a lookup.
    Waiting,
    Dialling(Dial),
    Flowing,
    /// The response to an HTTP client.
    Refusing(Vec<u8>),
    /// The response was sent; the client has time to read it.
    Leaving,
}

/// The next step of a connection.
pub enum Turn {
    Wait,
    /// It can continue at once, but others come first.
    Again,
    Over,
    /// The dialled address does not answer: call `dial_next`.
    Unreachable(Errno),
    /// Report the denial, then call `answer_refusal`.
    Denied(SniffedDenial),
    /// Check what it waits for: [`PendingReason`].
    Decide,
    /// The client sent a proxy request: call `proxy_requested`.
    ProxyRequested(ProxyRequest),
    /// The HTTP helper takes it: call `hand_over_connection`.
    HandedOver(HandoverKind),
    /// The greeting is refused: report the reason if there is one, then call `refuse_greeting`.
    ProxyRefused(Vec<u8>, Option<&'static str>),
}

pub struct Connection<'t> {
    pub target: ConnectionTarget<'t>,
    pub began: Instant,
    /// The connection expires at this time.
    pub deadline: Option<Instant>,
    client: PumpSocket,
    server: Option<PumpSocket>,
    up: ByteFlow,
    down: ByteFlow,
    sniffer: Option<Sniffer>,
    state: ConnectionState,
    /// The protocol of the proxy greeting.
    protocol: Option<ProxyProtocol>,
    /// Sent to the client after the last bytes of the server.
    final_response: Option<Vec<u8>>,
    was_refused: bool,
    /// Set if it is not simply allowed.
    pub pending: Option<PendingReason>,
    /// Addresses to dial once the guarded addresses are known.
    addresses: Option<Addresses>,
}

/// The socket of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSide {
    Client,
    Server,
}

impl<'t> Connection<'t> {
    pub fn new(
        client: OwnedFd,
        target: ConnectionTarget<'t>,
        now: Instant,
        epoll: &OwnedFd,
        event: u64,
    ) -> Result<Connection<'t>, Errno> {
        epoll::add(epoll, &client, EventData::new_u64(event), WATCHED_EVENTS)?;
        // A name is compared with the first bytes. An address has nothing to compare.
        let sniffer = target.name.clone().map(|name| Sniffer::for_name(name, target.port));
        let up = if sniffer.is_some() { ByteFlow::checked() } else { ByteFlow::unchecked() };
        Ok(Connection {
            target,
            began: now,
            deadline: None,
            client: PumpSocket::new(client),
            server: None,
            up,
            down: ByteFlow::unchecked(),
            sniffer,
            state: ConnectionState::Waiting,
            protocol: None,
            final_response: None,
            was_refused: false,
            pending: None,
            addresses: None,
        })
    }

    /// The client's address and the address that it dialled.
    pub fn socket_addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        let client = rustix::net::getpeername(&self.client.socket).ok()??;
        let dialled = rustix::net::getsockname(&self.client.socket).ok()?;
        Some((SocketAddr::try_from(client).ok()?, SocketAddr::try_from(dialled).ok()?))
    }

    /// The client has closed its sending side, or is gone.
    pub fn client_closed(&self) -> bool {
        self.client.hung_up
    }

    /// A new connection to the proxy.
    pub fn greeting(
        client: OwnedFd,
        now: Instant,
        epoll: &OwnedFd,
        event: u64,
    ) -> Result<Connection<'t>, Errno> {
        let mut connection =
            Connection::new(client, ConnectionTarget::unknown(), now, epoll, event)?;
        connection.state = ConnectionState::ProxyGreeting(ProxyGreeting::default(), Vec::new());
        connection.deadline = Some(now + HEAD_TIMEOUT);
        Ok(connection)
    }

    fn read_greeting(&mut self, tools: &mut PumpTools) -> Turn {
        let ConnectionState::ProxyGreeting(greeting, unparsed) = &mut self.state else {
            return Turn::Wait;
        };
        let Some(token) = &tools.token else { return self.reset() };
        loop {
            match greeting.next(unparsed, token) {
                GreetingStep::More => {}
                GreetingStep::Reply(consumed, response) => {
                    unparsed.drain(..consumed);
                    if rustix::net::send(&self.client.socket, response, SendFlags::NOSIGNAL)
                        != Ok(response.len())
                    {
                        return self.reset();
                    }
                    continue;
                }
                GreetingStep::Request(request) => return Turn::ProxyRequested(request),
                GreetingStep::Refused(response, reason) => {
                    return Turn::ProxyRefused(response, reason);
                }
            }
            if !self.client.readable {
                return Turn::Wait;
            }
            let room = tools.scratch.len().saturating_sub(unparsed.len());
            match rustix::net::recv(
                &self.client.socket,
                &mut tools.scratch[..room],
                RecvFlags::empty(),
            ) {
                Ok((0, _)) => return Turn::Over,
                Ok((length, _)) => unparsed.extend_from_slice(&tools.scratch[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.client.readable = false,
                Err(_) => return Turn::Over,
            }
        }
    }

    /// Takes the target of a proxy request. From here on it is like a direct connection to that
    /// target.
    pub fn accept_proxy_request(&mut self, target: ConnectionTarget<'t>, request: ProxyRequest) {
        let ProxyRequest { host, protocol, consumed, head, .. } = request;
        let ConnectionState::ProxyGreeting(_, unparsed) =
            std::mem::replace(&mut self.state, ConnectionState::Waiting)
        else {
            return;
        };
        self.sniffer = match protocol {
            ProxyProtocol::Request => Some(Sniffer::for_request(
                target.name.clone().map_or(host, Host::Name),
                target.port,
            )),
            ProxyProtocol::Connect | ProxyProtocol::Socks => {
                target.name.clone().map(|name| Sniffer::for_name(name, target.port))
            }
        };
        let flow = if self.sniffer.is_some() { ByteFlow::checked() } else { ByteFlow::unchecked() };
        self.up =
            flow.with_unsent([&head[..], unparsed.get(consumed..).unwrap_or_default()].concat());
        self.protocol = Some(protocol);
        self.target = target;
        self.deadline = None;
    }

    /// The final response to a refused greeting.
    pub fn refuse_greeting(
        &mut self,
        response: Vec<u8>,
        tools: &mut PumpTools,
        now: Instant,
    ) -> Turn {
        self.final_response = Some(response);
        self.send_final_response(tools, now)
    }

    pub fn protocol(&self) -> Option<ProxyProtocol> {
        self.protocol
    }

    /// Confirms the connection to a proxy client. False: the client does not take the reply.
    fn confirm_to_client(&self) -> bool {
        let Some(reply) = self.protocol.map(ProxyProtocol::success_reply) else {
            return true;
        };
        rustix::net::send(&self.client.socket, &reply, SendFlags::NOSIGNAL) == Ok(reply.len())
    }

    /// Prepares the connection for the HTTP helper.
    pub fn hand_over(&mut self, kind: HandoverKind) -> Turn {
        if self.confirm_to_client() { Turn::HandedOver(kind) } else { self.reset() }
    }

    /// The client's socket, the bytes that were read from it, and the target.
    pub fn hand_over_client(self, epoll: &OwnedFd) -> (OwnedFd, Vec<u8>, ConnectionTarget<'t>) {
        // Later events belong to the new owner.
        let _ = epoll::delete(epoll, &self.client.socket);
        (self.client.socket, self.up.into_unsent(), self.target)
    }

    /// Was a server reached, or may it have been? A server that is still being dialled when the
    /// client leaves may have noticed that.
    pub fn may_have_reached_server(&self) -> bool {
        let is_outside =
            matches!(self.state, ConnectionState::Flowing | ConnectionState::Dialling(_))
                && !self.was_refused;
        self.up.total + self.down.total > 0 || is_outside
    }

    pub fn sent(&self) -> u64 {
        self.up.total
    }

    pub fn received(&self) -> u64 {
        self.down.total
    }

    /// True while it waits.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, ConnectionState::Waiting)
    }

    /// Stores addresses that `take_addresses` returns later.
    pub fn store_addresses(&mut self, addresses: Addresses) {
        self.addresses = Some(addresses);
    }

    pub fn take_addresses(&mut self) -> Option<Addresses> {
        self.addresses.take()
    }

    /// Dials the first of these addresses that may be dialled.
    pub fn dial(
        &mut self,
        addresses: Addresses,
        from: &Dialer<'_>,
        now: Instant,
        event: u64,
    ) -> DialResult {
        self.state = ConnectionState::Dialling(Dial::new(addresses, now));
        self.dial_next(from, now, event)
    }

    pub fn dial_next(&mut self, from: &Dialer<'_>, now: Instant, event: u64) -> DialResult {
        let ConnectionState::Dialling(dial) = &mut self.state else { return DialResult::Started };
        self.server = None;
        self.deadline = None;
        // An address or a local port was already judged.
        let (named, port, direction) =
            (self.target.name.is_some(), self.target.port, self.target.direction);
        let may_dial = |address| {
            if !matches!(direction, Direction::Inward(_)) {
                from.guards.judge(address, port, named)?;
            }
            if named { from.table.may_dial(address, port, is_own(address)) } else { Ok(()) }
        };
        let next =
            dial.next(port, may_dial, |to| from.socket(direction, to), now, from.epoll, event);
        self.target.address = dial.tried.or(self.target.address);
        match next {
            DialStep::Started(socket, deadline) => {
                self.server = Some(PumpSocket::new(socket));
                self.deadline = Some(deadline);
                DialResult::Started
            }
            DialStep::Forbidden(address, reason) => {
                self.target.address = Some(address);
                DialResult::Forbidden(reason)
            }
            DialStep::Unreachable => DialResult::Unreachable,
        }
    }

    pub fn note_events(&mut self, side: ConnectionSide, flags: EventFlags) {
        match side {
            ConnectionSide::Client => self.client.note_events(flags),
            ConnectionSide::Server => {
                if let Some(server) = &mut self.server {
                    server.note_events(flags);
                }
            }
        }
    }

    /// Makes progress without blocking.
    pub fn turn(&mut self, tools: &mut PumpTools, now: Instant) -> Turn {
        match &mut self.state {
            ConnectionState::ProxyGreeting(..) => self.read_greeting(tools),
            ConnectionState::Waiting => self.wait_for_server(),
            ConnectionState::Dialling(_) => {
                let Some(server) = &mut self.server else { return Turn::Wait };
                if !server.writable {
                    return self.wait_for_server();
                }
                // A writable socket without hang-up or error is connected.
                let connected =
                    if server.hung_up { sockopt::socket_error(&server.socket) } else { Ok(Ok(())) };
                match connected {
                    Ok(Ok(())) => {
                        let _ = sockopt::set_tcp_nodelay(&server.socket, true);
                        let _ = sockopt::set_socket_keepalive(&server.socket, true);
                        self.deadline = None;
                        self.state = ConnectionState::Flowing;
                        if self.confirm_to_client() { self.pump(tools, now) } else { self.reset() }
                    }
                    Ok(Err(errno)) | Err(errno) => Turn::Unreachable(errno),
                }
            }
            ConnectionState::Flowing => self.pump(tools, now),
            ConnectionState::Refusing(_) => self.answer_first_bytes(tools, now),
            ConnectionState::Leaving => self.drain_client(tools),
        }
    }

    /// A reset client needs no server. A client that only closed its sending side does.
    fn wait_for_server(&mut self) -> Turn {
        if self.client.hung_up && sockopt::socket_error(&self.client.socket) != Ok(Ok(())) {
            return Turn::Over;
        }
        let awaits_answer = matches!(self.pending, Some(PendingReason::AwaitingAnswer(_)));
        if self.client.hung_up && awaits_answer { Turn::Decide } else { Turn::Wait }
    }

    fn pump(&mut self, tools: &mut PumpTools, now: Instant) -> Turn {
        let Some(server) = &mut self.server else { return self.send_final_response(tools, now) };
        let is_answered = match &mut self.sniffer {
            Some(sniffer) if sniffer.awaits_answer() => {
                check_upgrade_answer(sniffer, server, self.down.total, tools)
            }
            _ => true,
        };
        // When both directions have ended, closing the sockets says the same.
        self.down.leaves_open |= self.up.is_done();
        let pumped = if is_answered {
            self.down.pump(server, &mut self.client, None, tools)
        } else {
            Ok(false)
        };
        let down = match pumped {
            Ok(again) => again,
            // One side is gone.
            Err(_) => return self.reset(),
        };
        self.up.leaves_open |= self.down.is_done();
        let up = match self.up.pump(&mut self.client, server, self.sniffer.as_mut(), tools) {
            Ok(again) => again,
            Err(PumpError::Read) => return self.reset(),
            // Bytes that the server sent before it closed are still delivered; then its error
            // shows.
            Err(PumpError::Write) => {
                self.up.stop(tools);
                server.hung_up = true;
                server.readable = true;
                true
            }
            Err(PumpError::Denied(denial)) => return Turn::Denied(denial),
        };
        if self.down.is_done() && self.final_response.is_some() {
            return self.send_final_response(tools, now);
        }
        if self.up.is_done() && self.down.is_done() {
            return Turn::Over;
        }
        if self.final_response.is_none() {
            // A client that has sent a request and waits within the next one is only idle.
            let is_begun = self.up.has_undecided_bytes() && self.up.total == 0;
            self.deadline =
                if is_begun { self.deadline.or(Some(now + HEAD_TIMEOUT)) } else { None };
        }
        if up || down { Turn::Again } else { Turn::Wait }
    }

    /// Resets both sides.
    fn reset(&mut self) -> Turn {
        self.client.reset_when_closed();
        if let Some(server) = &self.server {
            server.reset_when_closed();
        }
        Turn::Over
    }

    /// Refuses the connection before it has a server, with `answer` for HTTP and proxy clients.
    pub fn refuse(&mut self, answer: Vec<u8>, tools: &mut PumpTools, now: Instant) -> Turn {
        self.was_refused = true;
        self.server = None;
        if self.protocol.is_some() {
            self.final_response = Some(answer);
            return self.send_final_response(tools, now);
        }
        if let Direction::Inward(_) = self.target.direction {
            return self.reset();
        }
        self.deadline = Some(now + REFUSAL_TIMEOUT);
        self.state = ConnectionState::Refusing(answer);
        self.answer_first_bytes(tools, now)
    }

    fn answer_first_bytes(&mut self, tools: &mut PumpTools, now: Instant) -> Turn {
        if !self.client.readable {
            return Turn::Wait;
        }
        self.client.readable = false;
        match rustix::net::recv(&self.client.socket, &mut tools.scratch[..], RecvFlags::PEEK) {
            Ok((length, _)) if length > 0 => {
                match http_request::classify_first_bytes(&tools.scratch[..length]) {
                    FirstBytes::Request => {
                        if let ConnectionState::Refusing(answer) = &mut self.state {
                            self.final_response = Some(std::mem::take(answer));
                        }
                        self.send_final_response(tools, now)
                    }
                    FirstBytes::More if !self.client.hung_up => Turn::Wait,
                    FirstBytes::More | FirstBytes::Other | FirstBytes::Unended => self.reset(),
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => Turn::Wait,
            Ok(_) | Err(_) => self.reset(),
        }
    }

    /// Refuses a request on an allowed connection. Responses to earlier requests come first.
    pub fn answer_refusal(
        &mut self,
        denial: &SniffedDenial,
        answer: Vec<u8>,
        tools: &mut PumpTools,
        now: Instant,
    ) -> Turn {
        self.was_refused = true;
        if !denial.is_http {
            return self.reset();
        }
        self.up.stop(tools);
        self.down.leaves_open = true;
        self.final_response = Some(answer);
        self.deadline = Some(now + CLOSE_TIMEOUT);
        match &self.server {
            Some(server) if self.up.total > 0 => {
                let _ = rustix::net::shutdown(&server.socket, Shutdown::Write);
                Turn::Again
            }
            _ => self.send_final_response(tools, now),
        }
    }

    fn send_final_response(&mut self, tools: &mut PumpTools, now: Instant) -> Turn {
        self.up.stop(tools);
        self.down.stop(tools);
        self.server = None;
        // A few hundred bytes: a client that does not take them gets a reset.
        let response = self.final_response.take().unwrap_or_default();
        if rustix::net::send(&self.client.socket, &response, SendFlags::NOSIGNAL)
            != Ok(response.len())
        {
            return self.reset();
        }
        let _ = rustix::net::shutdown(&self.client.socket, Shutdown::Write);
        self.deadline = Some(now + CLOSE_TIMEOUT);
        self.state = ConnectionState::Leaving;
        self.client.readable = true;
        self.drain_client(tools)
    }

    /// Reads until the client closes: closing a socket with unread bytes would send a reset and
    /// could lose the response.
    fn drain_client(&mut self, tools: &mut PumpTools) -> Turn {
        while self.client.readable {
            match rustix::net::recv(&self.client.socket, &mut tools.scratch[..], RecvFlags::empty())
            {
                Ok((0, _)) => return Turn::Over,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.client.readable = false,
                Err(_) => return Turn::Over,
            }
        }
        Turn::Wait
    }

    /// The deadline has passed.
    pub fn expire(&mut self) -> Turn {
        self.deadline = None;
        match self.state {
            ConnectionState::Waiting => Turn::Decide,
            ConnectionState::Dialling(_) => Turn::Unreachable(Errno::TIMEDOUT),
            ConnectionState::ProxyGreeting(..)
            | ConnectionState::Flowing
            | ConnectionState::Refusing(_)
            | ConnectionState::Leaving => self.reset(),
        }
    }

    /// Releases its pipes.
    pub fn close(mut self, tools: &mut PumpTools) -> ConnectionTarget<'t> {
        self.up.stop(tools);
        self.down.stop(tools);
        self.target
    }
}

/// Checks whether the server switches protocols. Its bytes stay unread until then. False: more
/// bytes are needed.
fn check_upgrade_answer(
    sniffer: &mut Sniffer,
    server: &mut PumpSocket,
    received: u64,
    tools: &mut PumpTools,
) -> bool {
    // Bytes that a server sent before the request are no answer.
    let agreed = if received > 0 { Some(false) } else { peek_upgrade_answer(server, tools) };
    if let Some(agreed) = agreed {
        sniffer.answered(agreed);
    }
    agreed.is_some()
}

fn peek_upgrade_answer(server: &mut PumpSocket, tools: &mut PumpTools) -> Option<bool> {
    while server.readable {
        match rustix::net::recv(&server.socket, &mut tools.scratch[..], RecvFlags::PEEK) {
            Ok((length, _)) => {
                let is_all = server.hung_up || length == 0 || length == tools.scratch.len();
                let agreed = http_response_head::switches_protocol(&tools.scratch[..length])
                    .or(is_all.then_some(false));
                server.readable = agreed.is_some();
                return agreed;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => server.readable = false,
            Err(_) => return Some(false),
        }
    }
    None
}
