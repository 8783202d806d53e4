//! One connection from inside, from its first moment to its last:
//!
//! ```text
//! greeting ─▶ waiting ─▶ dialling ─▶ flowing ─▶ over
//!     │          └───────────┴─▶ refusing ─▶ leaving ─▶ over
//!     └──────────────────────────── flowing ─┘
//! ```
//!
//! A greeting is what is said to the proxy; who dialled the host itself says nothing before.
//!
//! The program inside has been connected to us since before anything was decided; a refusal is a
//! reset, or an answer of HTTP to whoever speaks it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};

use super::byte_pump::{End, Flow, Stop, Tools};
use super::decision_log::{self, Layer};
use super::dial::{Dial, Next, WATCHED, is_own};
use super::host_resolver::Addresses;
use super::origin::{Dialled, Origin};
use super::relay_messages::Process;
use super::sniffer::{Refusal, Sniffer};
use crate::network::parse::http_request::{self, First};
use crate::network::parse::http_response_head;
use crate::network::parse::proxy_request::{Form, Greeting, ProxyRequest, Step};
use crate::network::rules::host_table::Rule;
use crate::network::rules::http_hosts::Kind as Handed;
use crate::plan::host_name::{Host, Name};

/// To finish the first head of a request, or a ClientHello, that was begun, and to tell the proxy
/// what is wanted.
const HEAD: Duration = Duration::from_secs(30);

/// To begin a request that is refused: others get their reset then.
const REFUSED: Duration = Duration::from_secs(1);

/// For a server to finish its answers to the requests before one that was refused, and for a client
/// to read that it was.
const LEAVE: Duration = Duration::from_secs(5);

/// What a connection is for.
pub struct Subject<'t> {
    pub name: Option<Name>,
    /// What the program dialled, if that keeps a name.
    pub synthetic: Option<IpAddr>,
    pub port: u16,
    /// What was dialled for it, or was asked for.
    pub address: Option<IpAddr>,
    pub rule: Option<Rule<'t>>,
    pub way: Direction,
    /// Whose it is, as far as that was found out.
    pub process: Option<Process>,
    /// Somebody was asked about it.
    pub asked: Option<decision_log::PersonAnswer>,
}

impl Subject<'_> {
    /// Of which nothing is known yet.
    pub fn unknown() -> Subject<'static> {
        Subject {
            name: None,
            synthetic: None,
            port: 0,
            address: None,
            rule: None,
            way: Direction::Outward,
            process: None,
            asked: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Outward,
    /// To a port of the host that the plan names.
    Local,
    /// From this port of the host to one inside.
    Inward(u16),
}

impl Direction {
    pub fn layer(self) -> Layer {
        match self {
            Direction::Outward | Direction::Local => Layer::Connect,
            Direction::Inward(_) => Layer::Publish,
        }
    }
}

/// What a connection waits for that is not simply allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// To be refused for this reason, when it is known whose it is.
    Refused(&'static str),
    /// To be asked about, when it is known whose it is.
    Unasked,
    /// The answer to this question.
    Asked(u64),
}

enum State {
    /// What was read, and not understood yet.
    Greeting(Greeting, Vec<u8>),
    /// For somebody's word, or for the addresses of its name.
    Waiting,
    Dialling(Dial),
    Flowing,
    /// What a client of HTTP is answered.
    Refusing(Vec<u8>),
    /// It has been said; the client has a moment to read it.
    Leaving,
}

/// What becomes of a connection.
pub enum Turn {
    Wait,
    /// It could go on at once, but others come first.
    Again,
    Over,
    /// The address that was dialled does not answer: `dial_next`.
    Unreachable(Errno),
    /// To be told; then `answer_refusal`.
    Refused(Refusal),
    /// What it waits for has to be looked at: [`Doubt`].
    Decide,
    /// The proxy is asked for something: `go_on`.
    Asked(ProxyRequest),
    /// Somebody else goes on with it: `part`.
    HandedOver(Handed),
    /// It is not: to be told if there is a reason, then `dismiss`.
    Misled(Vec<u8>, Option<&'static str>),
}

pub struct Connection<'t> {
    pub subject: Subject<'t>,
    pub began: Instant,
    /// Something has to happen until then.
    pub deadline: Option<Instant>,
    client: End,
    server: Option<End>,
    up: Flow,
    down: Flow,
    sight: Option<Sniffer>,
    state: State,
    /// Of what was said to the proxy.
    form: Option<Form>,
    /// Said to the client when the server has said all.
    last_words: Option<Vec<u8>>,
    was_refused: bool,
    /// It was not simply allowed.
    pub doubt: Option<Doubt>,
    /// To be dialled, when the addresses of guarded upstreams are known.
    found: Option<Addresses>,
}

/// Which of the two sockets an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl<'t> Connection<'t> {
    pub fn new(
        client: OwnedFd,
        subject: Subject<'t>,
        now: Instant,
        epoll: &OwnedFd,
        event: u64,
    ) -> Result<Connection<'t>, Errno> {
        epoll::add(epoll, &client, EventData::new_u64(event), WATCHED)?;
        // A name is compared with what the first bytes say; an address says nothing to compare.
        let sight = subject.name.clone().map(|name| Sniffer::of(name, subject.port));
        let up = if sight.is_some() { Flow::judged() } else { Flow::unseen() };
        Ok(Connection {
            subject,
            began: now,
            deadline: None,
            client: End::new(client),
            server: None,
            up,
            down: Flow::unseen(),
            sight,
            state: State::Waiting,
            form: None,
            last_words: None,
            was_refused: false,
            doubt: None,
            found: None,
        })
    }

    /// The other end of its client's socket, and what that is connected to.
    pub fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let client = rustix::net::getpeername(&self.client.socket).ok()??;
        let dialled = rustix::net::getsockname(&self.client.socket).ok()?;
        Some((SocketAddr::try_from(client).ok()?, SocketAddr::try_from(dialled).ok()?))
    }

    /// Its client has said all, or is gone.
    pub fn has_heard_all(&self) -> bool {
        self.client.hung_up
    }

    /// To the proxy itself.
    pub fn greeting(
        client: OwnedFd,
        now: Instant,
        epoll: &OwnedFd,
        event: u64,
    ) -> Result<Connection<'t>, Errno> {
        let mut connection = Connection::new(client, Subject::unknown(), now, epoll, event)?;
        connection.state = State::Greeting(Greeting::default(), Vec::new());
        connection.deadline = Some(now + HEAD);
        Ok(connection)
    }

    fn greet(&mut self, tools: &mut Tools) -> Turn {
        let State::Greeting(greeting, held) = &mut self.state else { return Turn::Wait };
        let Some(token) = &tools.token else { return self.break_off() };
        loop {
            match greeting.next(held, token) {
                Step::More => {}
                Step::Say(taken, words) => {
                    held.drain(..taken);
                    if rustix::net::send(&self.client.socket, words, SendFlags::NOSIGNAL)
                        != Ok(words.len())
                    {
                        return self.break_off();
                    }
                    continue;
                }
                Step::Asked(asked) => return Turn::Asked(asked),
                Step::Refused(words, reason) => return Turn::Misled(words, reason),
            }
            if !self.client.readable {
                return Turn::Wait;
            }
            let room = tools.scratch.len().saturating_sub(held.len());
            match rustix::net::recv(
                &self.client.socket,
                &mut tools.scratch[..room],
                RecvFlags::empty(),
            ) {
                Ok((0, _)) => return Turn::Over,
                Ok((length, _)) => held.extend_from_slice(&tools.scratch[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.client.readable = false,
                Err(_) => return Turn::Over,
            }
        }
    }

    /// It is known what the proxy is asked for. From here on it is as if that had been dialled.
    pub fn go_on(&mut self, subject: Subject<'t>, asked: ProxyRequest) {
        let ProxyRequest { host, form, taken, head, .. } = asked;
        let State::Greeting(_, held) = std::mem::replace(&mut self.state, State::Waiting) else {
            return;
        };
        self.sight = match form {
            Form::Request => Some(Sniffer::of_a_request(
                subject.name.clone().map_or(host, Host::Name),
                subject.port,
            )),
            Form::Connect | Form::Socks => {
                subject.name.clone().map(|name| Sniffer::of(name, subject.port))
            }
        };
        let flow = if self.sight.is_some() { Flow::judged() } else { Flow::unseen() };
        self.up = flow.holding([&head[..], held.get(taken..).unwrap_or_default()].concat());
        self.form = Some(form);
        self.subject = subject;
        self.deadline = None;
    }

    /// The last words to a client that asked the proxy for nothing.
    pub fn dismiss(&mut self, words: Vec<u8>, tools: &mut Tools, now: Instant) -> Turn {
        self.last_words = Some(words);
        self.say_last_words(tools, now)
    }

    pub fn form(&self) -> Option<Form> {
        self.form
    }

    /// A client of the proxy is told that it has what it wanted. False: it does not even take that.
    fn welcome(&self) -> bool {
        let Some(welcome) = self.form.map(Form::welcome) else { return true };
        rustix::net::send(&self.client.socket, &welcome, SendFlags::NOSIGNAL) == Ok(welcome.len())
    }

    /// Whoever speaks HTTP for its host is to have it.
    pub fn hand_over(&mut self, kind: Handed) -> Turn {
        if self.welcome() { Turn::HandedOver(kind) } else { self.break_off() }
    }

    /// Its client, and what was read of it and is to be said to its server.
    pub fn part(self, epoll: &OwnedFd) -> (OwnedFd, Vec<u8>, Subject<'t>) {
        // Its events are for whoever gets it.
        let _ = epoll::delete(epoll, &self.client.socket);
        (self.client.socket, self.up.into_held(), self.subject)
    }

    /// Was there a server at the other end?
    /// Somebody was called. Who is still being dialled when its client leaves may have heard of it.
    pub fn has_flowed(&self) -> bool {
        let is_outside =
            matches!(self.state, State::Flowing | State::Dialling(_)) && !self.was_refused;
        self.up.total + self.down.total > 0 || is_outside
    }

    pub fn sent(&self) -> u64 {
        self.up.total
    }

    pub fn received(&self) -> u64 {
        self.down.total
    }

    /// It waits for a lookup.
    pub fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// These are to be dialled later: `take_found`.
    pub fn keep_found(&mut self, addresses: Addresses) {
        self.found = Some(addresses);
    }

    pub fn take_found(&mut self) -> Option<Addresses> {
        self.found.take()
    }

    /// Starts to dial the first of these addresses that may be dialled.
    pub fn dial(
        &mut self,
        addresses: Addresses,
        from: &Origin<'_>,
        now: Instant,
        event: u64,
    ) -> Dialled {
        self.state = State::Dialling(Dial::new(addresses, now));
        self.dial_next(from, now, event)
    }

    pub fn dial_next(&mut self, from: &Origin<'_>, now: Instant, event: u64) -> Dialled {
        let State::Dialling(dial) = &mut self.state else { return Dialled::Started };
        self.server = None;
        self.deadline = None;
        // Whoever dialled an address, or a local port, was judged by that already.
        let (named, port, way) = (self.subject.name.is_some(), self.subject.port, self.subject.way);
        let may = |address| {
            if !matches!(way, Direction::Inward(_)) {
                from.guards.judge(address, port, named)?;
            }
            if named { from.table.may_dial(address, port, is_own(address)) } else { Ok(()) }
        };
        let next = dial.next(port, may, |to| from.socket(way, to), now, from.epoll, event);
        self.subject.address = dial.tried.or(self.subject.address);
        match next {
            Next::Started(socket, deadline) => {
                self.server = Some(End::new(socket));
                self.deadline = Some(deadline);
                Dialled::Started
            }
            Next::Forbidden(address, reason) => {
                self.subject.address = Some(address);
                Dialled::Forbidden(reason)
            }
            Next::Unreachable => Dialled::Unreachable,
        }
    }

    pub fn note(&mut self, side: Side, flags: EventFlags) {
        match side {
            Side::Client => self.client.note(flags),
            Side::Server => {
                if let Some(server) = &mut self.server {
                    server.note(flags);
                }
            }
        }
    }

    /// Does what can be done now.
    pub fn turn(&mut self, tools: &mut Tools, now: Instant) -> Turn {
        match &mut self.state {
            State::Greeting(..) => self.greet(tools),
            State::Waiting => self.wait_for_server(),
            State::Dialling(_) => {
                let Some(server) = &mut self.server else { return Turn::Wait };
                if !server.writable {
                    return self.wait_for_server();
                }
                // What can be written and was neither closed nor broken since is connected.
                let connected =
                    if server.hung_up { sockopt::socket_error(&server.socket) } else { Ok(Ok(())) };
                match connected {
                    Ok(Ok(())) => {
                        let _ = sockopt::set_tcp_nodelay(&server.socket, true);
                        let _ = sockopt::set_socket_keepalive(&server.socket, true);
                        self.deadline = None;
                        self.state = State::Flowing;
                        if self.welcome() { self.flow(tools, now) } else { self.break_off() }
                    }
                    Ok(Err(errno)) | Err(errno) => Turn::Unreachable(errno),
                }
            }
            State::Flowing => self.flow(tools, now),
            State::Refusing(_) => self.answer_first_bytes(tools, now),
            State::Leaving => self.leave(tools),
        }
    }

    /// A client that broke off needs no server. One that only said all it has to say does.
    fn wait_for_server(&mut self) -> Turn {
        if self.client.hung_up && sockopt::socket_error(&self.client.socket) != Ok(Ok(())) {
            return Turn::Over;
        }
        let is_asked = matches!(self.doubt, Some(Doubt::Asked(_)));
        if self.client.hung_up && is_asked { Turn::Decide } else { Turn::Wait }
    }

    fn flow(&mut self, tools: &mut Tools, now: Instant) -> Turn {
        let Some(server) = &mut self.server else { return self.say_last_words(tools, now) };
        let is_answered = match &mut self.sight {
            Some(sight) if sight.awaits_answer() => {
                hear_answer(sight, server, self.down.total, tools)
            }
            _ => true,
        };
        // When both directions have ended the sockets are closed, and that says the same.
        self.down.leaves_open |= self.up.is_done();
        let pumped = if is_answered {
            self.down.pump(server, &mut self.client, None, tools)
        } else {
            Ok(false)
        };
        let down = match pumped {
            Ok(again) => again,
            // Nobody is there to read what else comes, or there is nobody from whom it could come.
            Err(_) => return self.break_off(),
        };
        self.up.leaves_open |= self.down.is_done();
        let up = match self.up.pump(&mut self.client, server, self.sight.as_mut(), tools) {
            Ok(again) => again,
            Err(Stop::Read) => return self.break_off(),
            // What it said before it went away is still delivered; then its error shows.
            Err(Stop::Write) => {
                self.up.stop(tools);
                server.hung_up = true;
                server.readable = true;
                true
            }
            Err(Stop::Refused(refusal)) => return Turn::Refused(refusal),
        };
        if self.down.is_done() && self.last_words.is_some() {
            return self.say_last_words(tools, now);
        }
        if self.up.is_done() && self.down.is_done() {
            return Turn::Over;
        }
        if self.last_words.is_none() {
            // Whoever has said something already, and waits for the answer inside of what is next,
            // is idle and no more.
            let is_begun = self.up.is_undecided() && self.up.total == 0;
            self.deadline = if is_begun { self.deadline.or(Some(now + HEAD)) } else { None };
        }
        if up || down { Turn::Again } else { Turn::Wait }
    }

    /// The client sees a reset, and so does the server.
    fn break_off(&mut self) -> Turn {
        self.client.reset_when_closed();
        if let Some(server) = &self.server {
            server.reset_when_closed();
        }
        Turn::Over
    }

    /// Refused before anything was dialled, or because nothing could be: with `answer` for whoever
    /// speaks HTTP, or asked the proxy.
    pub fn refuse(&mut self, answer: Vec<u8>, tools: &mut Tools, now: Instant) -> Turn {
        self.was_refused = true;
        self.server = None;
        if self.form.is_some() {
            self.last_words = Some(answer);
            return self.say_last_words(tools, now);
        }
        if let Direction::Inward(_) = self.subject.way {
            return self.break_off();
        }
        self.deadline = Some(now + REFUSED);
        self.state = State::Refusing(answer);
        self.answer_first_bytes(tools, now)
    }

    fn answer_first_bytes(&mut self, tools: &mut Tools, now: Instant) -> Turn {
        if !self.client.readable {
            return Turn::Wait;
        }
        self.client.readable = false;
        match rustix::net::recv(&self.client.socket, &mut tools.scratch[..], RecvFlags::PEEK) {
            Ok((length, _)) if length > 0 => match http_request::first(&tools.scratch[..length]) {
                First::Request => {
                    if let State::Refusing(answer) = &mut self.state {
                        self.last_words = Some(std::mem::take(answer));
                    }
                    self.say_last_words(tools, now)
                }
                First::More if !self.client.hung_up => Turn::Wait,
                First::More | First::Other | First::Unended => self.break_off(),
            },
            Err(Errno::AGAIN | Errno::INTR) => Turn::Wait,
            Ok(_) | Err(_) => self.break_off(),
        }
    }

    /// What was refused is a request on a connection that was allowed. The answers to those before
    /// it come first.
    pub fn answer_refusal(
        &mut self,
        refusal: &Refusal,
        answer: Vec<u8>,
        tools: &mut Tools,
        now: Instant,
    ) -> Turn {
        self.was_refused = true;
        if !refusal.is_http {
            return self.break_off();
        }
        self.up.stop(tools);
        self.down.leaves_open = true;
        self.last_words = Some(answer);
        self.deadline = Some(now + LEAVE);
        match &self.server {
            Some(server) if self.up.total > 0 => {
                let _ = rustix::net::shutdown(&server.socket, Shutdown::Write);
                Turn::Again
            }
            _ => self.say_last_words(tools, now),
        }
    }

    fn say_last_words(&mut self, tools: &mut Tools, now: Instant) -> Turn {
        self.up.stop(tools);
        self.down.stop(tools);
        self.server = None;
        // A few hundred bytes: a client that does not even take those has no use for them.
        let words = self.last_words.take().unwrap_or_default();
        if rustix::net::send(&self.client.socket, &words, SendFlags::NOSIGNAL) != Ok(words.len()) {
            return self.break_off();
        }
        let _ = rustix::net::shutdown(&self.client.socket, Shutdown::Write);
        self.deadline = Some(now + LEAVE);
        self.state = State::Leaving;
        self.client.readable = true;
        self.leave(tools)
    }

    /// Closing a socket with bytes that nobody read would be a reset, and the answer might be lost
    /// with it.
    fn leave(&mut self, tools: &mut Tools) -> Turn {
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
            State::Waiting => Turn::Decide,
            State::Dialling(_) => Turn::Unreachable(Errno::TIMEDOUT),
            State::Greeting(..) | State::Flowing | State::Refusing(_) | State::Leaving => {
                self.break_off()
            }
        }
    }

    /// Its pipes are for others.
    pub fn close(mut self, tools: &mut Tools) -> Subject<'t> {
        self.up.stop(tools);
        self.down.stop(tools);
        self.subject
    }
}

/// Does the server agree to another protocol? It stays unread until that can be said. False: more
/// of it has to come.
fn hear_answer(sight: &mut Sniffer, server: &mut End, received: u64, tools: &mut Tools) -> bool {
    // What a server says before it was asked is no answer.
    let agreed = if received > 0 { Some(false) } else { peek_answer(server, tools) };
    if let Some(agreed) = agreed {
        sight.answered(agreed);
    }
    agreed.is_some()
}

fn peek_answer(server: &mut End, tools: &mut Tools) -> Option<bool> {
    while server.readable {
        match rustix::net::recv(&server.socket, &mut tools.scratch[..], RecvFlags::PEEK) {
            Ok((length, _)) => {
                let is_all = server.hung_up || length == 0 || length == tools.scratch.len();
                let agreed = http_response_head::switches(&tools.scratch[..length])
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
