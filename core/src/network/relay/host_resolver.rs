//! Resolves names on the host: /etc/hosts, then the name servers of /etc/resolv.conf. Only allowed
//! names come here.
//!
//! Each question has its own socket, connected to one server. Its port and id are random, and the
//! kernel drops packets from other senders. Nothing here waits: the relay's loop reports ready
//! sockets and deadlines.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::name_files::{NameServers, WatchedFile, read_hosts};
use crate::network::parse::dns_message::{self, DnsReply, RecordKind, ReplyError};
use crate::plan::host_name::HostName;

/// Lookups at once, with two sockets each. Others wait for their turn.
pub const MAX_LOOKUPS: usize = 128;

/// Names in the cache.
const MAX_CACHED_NAMES: usize = 4096;

/// An upper bound of the TTL: hosts move.
const MAX_TTL: Duration = Duration::from_secs(300);

/// After the first answer, the other family gets only this time. Some servers never answer for
/// IPv6.
const SECOND_FAMILY_TIMEOUT: Duration = Duration::from_millis(300);

/// The addresses of one name, in dialling order: IPv4 first, because many hosts have a broken IPv6.
pub type Addresses = Rc<[IpAddr]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupFailure {
    Unknown,
    Empty,
    Silent,
}

impl LookupFailure {
    pub fn reason(self) -> &'static str {
        match self {
            LookupFailure::Unknown => "the name does not exist",
            LookupFailure::Empty => "the name has no address",
            LookupFailure::Silent => "no name server answered",
        }
    }
}

/// Where names are looked up.
pub struct NameSources {
    pub hosts: PathBuf,
    pub servers: PathBuf,
    /// The port of the name servers.
    pub port: u16,
}

impl NameSources {
    pub fn of_the_host() -> NameSources {
        NameSources { hosts: "/etc/hosts".into(), servers: "/etc/resolv.conf".into(), port: 53 }
    }
}

/// A finished lookup, and who waits for it.
pub struct FinishedLookup {
    pub name: HostName,
    pub waiters: Vec<u64>,
    pub found: Result<Addresses, LookupFailure>,
}

pub struct HostResolver {
    hosts: WatchedFile<HashMap<HostName, Vec<IpAddr>>>,
    servers: WatchedFile<NameServers>,
    port: u16,
    cache: HashMap<HostName, (Addresses, Instant)>,
    running: Vec<Option<Lookup>>,
    waiting: VecDeque<(HostName, u64)>,
    finished: Vec<FinishedLookup>,
}

struct Lookup {
    name: HostName,
    waiters: Vec<u64>,
    questions: [ServerQuestion; 2],
}

struct ServerQuestion {
    kind: RecordKind,
    id: u16,
    /// How many attempts failed.
    tries: usize,
    deadline: Instant,
    /// True: no other server is asked after this one.
    last: bool,
    link: QuestionSocket,
    answer: Option<Result<DnsReply, LookupFailure>>,
}

enum QuestionSocket {
    None,
    Datagrams(OwnedFd),
    /// The bytes so far. The question was sent if `sent` is true.
    Stream {
        socket: OwnedFd,
        sent: bool,
        received: Vec<u8>,
    },
}

/// The lookup and the question of an event number.
pub fn question_of(number: u32) -> (usize, usize) {
    (number as usize / 2, number as usize % 2)
}

impl HostResolver {
    pub fn new(sources: NameSources) -> HostResolver {
        HostResolver {
            hosts: WatchedFile::new(sources.hosts, read_hosts),
            servers: WatchedFile::new(sources.servers, NameServers::read),
            port: sources.port,
            cache: HashMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            finished: Vec::new(),
        }
    }

    /// None: `waiter` gets an event later.
    pub fn look_up(
        &mut self,
        name: &HostName,
        waiter: u64,
        now: Instant,
        registration: &EventRegistration<'_>,
    ) -> Option<Result<Addresses, LookupFailure>> {
        if let Some(addresses) = self.hosts.current(now).get(name) {
            return Some(Ok(in_order(addresses)));
        }
        if let Some((addresses, until)) = self.cache.get(name)
            && *until > now
        {
            return Some(Ok(Rc::clone(addresses)));
        }
        self.start(name.clone(), waiter, now, registration);
        None
    }

    fn start(
        &mut self,
        name: HostName,
        waiter: u64,
        now: Instant,
        registration: &EventRegistration<'_>,
    ) {
        if let Some(lookup) = self.running.iter_mut().flatten().find(|lookup| lookup.name == name) {
            return lookup.waiters.push(waiter);
        }
        let free = self.running.iter().position(Option::is_none);
        let index = match free {
            Some(index) => index,
            None if self.running.len() < MAX_LOOKUPS => {
                self.running.push(None);
                self.running.len() - 1
            }
            None => return self.waiting.push_back((name, waiter)),
        };
        let question = |kind| ServerQuestion {
            kind,
            id: 0,
            tries: 0,
            deadline: now,
            last: false,
            link: QuestionSocket::None,
            answer: None,
        };
        let mut lookup = Lookup {
            name,
            waiters: vec![waiter],
            questions: [question(RecordKind::A), question(RecordKind::Aaaa)],
        };
        let servers = self.servers.current(now);
        for (which, question) in lookup.questions.iter_mut().enumerate() {
            question.ask(&lookup.name, servers, self.port, now, &registration.at(index, which));
        }
        self.running[index] = Some(lookup);
        self.finish_if_answered(index, now);
    }

    /// Handles an event on the socket of a question.
    pub fn ready(
        &mut self,
        number: u32,
        now: Instant,
        registration: &EventRegistration<'_>,
        scratch: &mut [u8],
    ) {
        let (index, which) = question_of(number);
        if let Some(Some(lookup)) = self.running.get_mut(index) {
            let servers = &self.servers.value;
            lookup.questions[which].receive(
                &lookup.name,
                servers,
                self.port,
                now,
                &registration.at(index, which),
                scratch,
            );
            self.finish_if_answered(index, now);
        }
    }

    /// Gives up on servers that took too long.
    pub fn expire(&mut self, now: Instant, registration: &EventRegistration<'_>) {
        for index in 0..self.running.len() {
            let Some(lookup) = &mut self.running[index] else { continue };
            let mut changed = false;
            for (which, question) in lookup.questions.iter_mut().enumerate() {
                if question.answer.is_none() && question.deadline <= now {
                    question.ask_next(
                        &lookup.name,
                        &self.servers.value,
                        self.port,
                        now,
                        &registration.at(index, which),
                    );
                    changed = true;
                }
            }
            if changed {
                self.finish_if_answered(index, now);
            }
        }
    }

    pub fn deadline(&self) -> Option<Instant> {
        let questions = self.running.iter().flatten().flat_map(|lookup| &lookup.questions);
        questions
            .filter(|question| question.answer.is_none())
            .map(|question| question.deadline)
            .min()
    }

    /// The lookups that ended since the last call. Waiting lookups start.
    pub fn finished(
        &mut self,
        now: Instant,
        registration: &EventRegistration<'_>,
    ) -> Vec<FinishedLookup> {
        let finished = std::mem::take(&mut self.finished);
        for _ in 0..finished.len() {
            let Some((name, waiter)) = self.waiting.pop_front() else { break };
            if let Some(found) = self.look_up(&name, waiter, now, registration) {
                self.finished.push(FinishedLookup { name, waiters: vec![waiter], found });
            }
        }
        finished
    }

    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Ends a lookup if both questions are answered.
    fn finish_if_answered(&mut self, index: usize, now: Instant) {
        let Some(Some(lookup)) = self.running.get_mut(index) else { return };
        let known = |question: &ServerQuestion| {
            matches!(&question.answer,
        Some(Ok(reply)) if !reply.addresses.is_empty())
        };
        if lookup.questions.iter().any(known) {
            for question in &mut lookup.questions {
                question.deadline = question.deadline.min(now + SECOND_FAMILY_TIMEOUT);
                question.last = true;
            }
        }
        if lookup.questions.iter().any(|question| question.answer.is_none()) {
            return;
        }
        let Some(lookup) = self.running[index].take() else { return };
        let (mut addresses, mut ttl, mut failure) = (Vec::new(), MAX_TTL, LookupFailure::Empty);
        for answer in lookup.questions.into_iter().filter_map(|question| question.answer) {
            match answer {
                Ok(reply) if reply.addresses.is_empty() => {}
                Ok(reply) => {
                    ttl = ttl.min(Duration::from_secs(reply.ttl_s.into()));
                    addresses.extend(reply.addresses);
                }
                // A missing name is missing for both families. A silent server may have known more.
                Err(failed) => {
                    failure = if failure == LookupFailure::Silent { failure } else { failed }
                }
            }
        }
        let found = if addresses.is_empty() { Err(failure) } else { Ok(in_order(&addresses)) };
        if let Ok(addresses) = &found
            && !ttl.is_zero()
        {
            if self.cache.len() >= MAX_CACHED_NAMES {
                self.cache.retain(|_, (_, until)| *until > now);
            }
            if self.cache.len() >= MAX_CACHED_NAMES {
                self.cache.clear();
            }
            self.cache.insert(lookup.name.clone(), (Rc::clone(addresses), now + ttl));
        }
        self.finished.push(FinishedLookup { name: lookup.name, waiters: lookup.waiters, found });
    }
}

fn in_order(addresses: &[IpAddr]) -> Addresses {
    let of = |v4: bool| addresses.iter().filter(move |address| address.is_ipv4() == v4).copied();
    of(true).chain(of(false)).collect()
}

/// Registers sockets in epoll with a tag for their events.
pub struct EventRegistration<'a> {
    pub epoll: &'a OwnedFd,
    pub tag: u64,
}

impl EventRegistration<'_> {
    fn at(&self, index: usize, which: usize) -> EventRegistration<'_> {
        EventRegistration { epoll: self.epoll, tag: self.tag | (index * 2 + which) as u64 }
    }

    fn add(&self, socket: &OwnedFd) -> Result<(), Errno> {
        epoll::add(
            self.epoll,
            socket,
            EventData::new_u64(self.tag),
            EventFlags::IN | EventFlags::OUT | EventFlags::ET,
        )
    }
}

impl ServerQuestion {
    /// Asks the next server; if that fails, the one after it.
    fn ask(
        &mut self,
        name: &HostName,
        servers: &NameServers,
        port: u16,
        now: Instant,
        registration: &EventRegistration<'_>,
    ) {
        while self.tries < servers.tries() {
            let server = servers.at(self.tries, port);
            let sent = self.ask_by_datagram(name, server, registration);
            if let Ok(socket) = sent {
                self.link = QuestionSocket::Datagrams(socket);
                self.deadline = now + servers.timeout;
                return;
            }
            self.tries += 1;
        }
        self.link = QuestionSocket::None;
        self.answer = Some(Err(LookupFailure::Silent));
    }

    fn ask_next(
        &mut self,
        name: &HostName,
        servers: &NameServers,
        port: u16,
        now: Instant,
        registration: &EventRegistration<'_>,
    ) {
        self.tries = if self.last { usize::MAX } else { self.tries + 1 };
        self.ask(name, servers, port, now, registration);
    }

    fn ask_by_datagram(
        &mut self,
        name: &HostName,
        server: SocketAddr,
        registration: &EventRegistration<'_>,
    ) -> Result<OwnedFd, Errno> {
        let mut id = [0; 2];
        rustix::rand::getrandom(&mut id[..], rustix::rand::GetRandomFlags::empty())?;
        self.id = u16::from_ne_bytes(id);
        let socket = open(server, SocketType::DGRAM)?;
        rustix::net::connect(&socket, &server)?;
        rustix::net::send(
            &socket,
            &dns_message::question(self.id, name, self.kind),
            SendFlags::NOSIGNAL,
        )?;
        registration.add(&socket)?;
        Ok(socket)
    }

    fn receive(
        &mut self,
        name: &HostName,
        servers: &NameServers,
        port: u16,
        now: Instant,
        registration: &EventRegistration<'_>,
        scratch: &mut [u8],
    ) {
        let received = match &mut self.link {
            QuestionSocket::None => return,
            QuestionSocket::Datagrams(socket) => receive_datagram(socket, scratch, |message| {
                DnsReply::read(message, name, self.kind, self.id)
            }),
            QuestionSocket::Stream { socket, sent, received } => {
                if !*sent {
                    let question = dns_message::question(self.id, name, self.kind);
                    let length = (question.len() as u16).to_be_bytes();
                    match rustix::net::send(
                        &*socket,
                        &[&length[..], &question].concat(),
                        SendFlags::NOSIGNAL,
                    ) {
                        Ok(_) => *sent = true,
                        Err(Errno::AGAIN | Errno::NOTCONN) => return,
                        Err(_) => return self.ask_next(name, servers, port, now, registration),
                    }
                }
                receive_stream(socket, received, scratch, |message| {
                    DnsReply::read(message, name, self.kind, self.id)
                })
            }
        };
        match received {
            None => {}
            Some(Ok(reply)) => self.answer = Some(Ok(reply)),
            Some(Err(ReplyError::NoName)) => self.answer = Some(Err(LookupFailure::Unknown)),
            Some(Err(ReplyError::Truncated))
                if matches!(self.link, QuestionSocket::Datagrams(_)) =>
            {
                let stream = servers.at(self.tries, port);
                let stream =
                    open(stream, SocketType::STREAM).and_then(|socket| match rustix::net::connect(
                        &socket, &stream,
                    ) {
                        Ok(()) | Err(Errno::INPROGRESS) => {
                            registration.add(&socket).map(|()| socket)
                        }
                        Err(errno) => Err(errno),
                    });
                match stream {
                    Ok(socket) => {
                        self.link =
                            QuestionSocket::Stream { socket, sent: false, received: Vec::new() }
                    }
                    Err(_) => self.ask_next(name, servers, port, now, registration),
                }
            }
            Some(Err(_)) => self.ask_next(name, servers, port, now, registration),
        }
        if self.answer.is_some() {
            self.link = QuestionSocket::None;
        }
    }
}

fn open(server: SocketAddr, kind: SocketType) -> Result<OwnedFd, Errno> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// None: the reply has not arrived.
fn receive_datagram(
    socket: &OwnedFd,
    scratch: &mut [u8],
    read: impl Fn(&[u8]) -> Result<DnsReply, ReplyError>,
) -> Option<Result<DnsReply, ReplyError>> {
    loop {
        match rustix::net::recv(socket, &mut *scratch, RecvFlags::empty()) {
            Ok((length, _)) => match read(&scratch[..length]) {
                Err(ReplyError::Other) => {}
                received => return Some(received),
            },
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            // No server listens there.
            Err(_) => return Some(Err(ReplyError::Failed)),
        }
    }
}

fn receive_stream(
    socket: &OwnedFd,
    received: &mut Vec<u8>,
    scratch: &mut [u8],
    read: impl Fn(&[u8]) -> Result<DnsReply, ReplyError>,
) -> Option<Result<DnsReply, ReplyError>> {
    loop {
        if let Some((length, message)) = received.split_first_chunk::<2>()
            && let Some(message) = message.get(..u16::from_be_bytes(*length).into())
        {
            // The stream carries one reply only.
            return Some(read(message));
        }
        match rustix::net::recv(socket, &mut *scratch, RecvFlags::empty()) {
            Ok((0, _)) => return Some(Err(ReplyError::Failed)),
            Ok((length, _)) => received.extend_from_slice(&scratch[..length]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            Err(_) => return Some(Err(ReplyError::Failed)),
        }
    }
}
