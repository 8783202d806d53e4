//! The addresses of one host, dialled one after the other until one answers.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::host_resolver::Addresses;
use crate::network::rules::address::{self, AddressKind};

/// For all addresses of a host together, and for one that is not the last.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const DIAL_NEXT_TIMEOUT: Duration = Duration::from_secs(3);

pub const WATCHED_EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

pub struct Dial {
    addresses: Addresses,
    next: usize,
    until: Instant,
    /// The last one that was dialled, whether it answered or not.
    pub tried: Option<IpAddr>,
}

pub enum DialStep {
    /// It is told when this socket can be written; it has until then.
    Started(OwnedFd, Instant),
    /// No address is left, none could be dialled, and this is why.
    Forbidden(IpAddr, &'static str),
    Unreachable,
}

impl Dial {
    pub fn new(addresses: Addresses, now: Instant) -> Dial {
        Dial { addresses, next: 0, until: now + DIAL_TIMEOUT, tried: None }
    }

    /// Starts to dial the next of the addresses that `may_dial` lets be dialled, from what `socket`
    /// makes.
    pub fn next(
        &mut self,
        port: u16,
        may_dial: impl Fn(IpAddr) -> Result<(), &'static str>,
        socket: impl Fn(IpAddr) -> Result<OwnedFd, Errno>,
        now: Instant,
        epoll: &OwnedFd,
        event: u64,
    ) -> DialStep {
        let mut forbidden = None;
        while let Some(address) = self.addresses.get(self.next).copied() {
            self.next += 1;
            if now >= self.until {
                break;
            }
            if let Err(reason) = may_dial(address) {
                forbidden = Some((address, reason));
                continue;
            }
            self.tried = Some(address);
            let connected = socket(address)
                .and_then(|socket| connect(socket, SocketAddr::new(address, port), epoll, event));
            if let Ok(socket) = connected {
                let is_last = self.next == self.addresses.len();
                return DialStep::Started(
                    socket,
                    if is_last { self.until } else { self.until.min(now + DIAL_NEXT_TIMEOUT) },
                );
            }
        }
        match forbidden {
            // One that may not be dialled is the reason only if no other could be.
            Some((address, reason)) if self.tried.is_none() => DialStep::Forbidden(address, reason),
            _ => DialStep::Unreachable,
        }
    }
}

pub fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Of the host's network.
pub fn host_socket(to: IpAddr) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family(to), SocketType::STREAM, flags, None)
}

fn connect(socket: OwnedFd, to: SocketAddr, epoll: &OwnedFd, event: u64) -> Result<OwnedFd, Errno> {
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno),
    }
    // Only now: a socket that was never connected counts as hung up.
    epoll::add(epoll, &socket, EventData::new_u64(event), WATCHED_EVENTS)?;
    Ok(socket)
}

/// Is this a public address of the host itself? What is not public is judged by what it is.
pub fn is_own(address: IpAddr) -> bool {
    address::kind(address) == AddressKind::Public && can_be_bound(address)
}

/// Does this address lead to the host itself, whatever its kind is? A server that listens on all
/// addresses is the same at each of them.
pub fn is_of_this_machine(address: IpAddr) -> bool {
    matches!(address::kind(address), AddressKind::Loopback | AddressKind::Unspecified)
        || can_be_bound(address)
}

/// Only the host's own addresses can be bound.
fn can_be_bound(address: IpAddr) -> bool {
    let socket =
        rustix::net::socket_with(family(address), SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    // If it can not be asked it counts as such: that is the answer that refuses.
    !socket.is_ok_and(|socket| {
        rustix::net::bind(&socket, &SocketAddr::new(address, 0)) == Err(Errno::ADDRNOTAVAIL)
    })
}
