//! Dials the addresses of one host, one after the other, until one answers.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::host_resolver::Addresses;
use crate::network::rules::address::{self, AddressKind};

/// The time for all addresses of a host, and for one that is not the last.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
const DIAL_NEXT_TIMEOUT: Duration = Duration::from_secs(3);

pub const WATCHED_EVENTS: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

pub struct Dial {
    addresses: Addresses,
    next: usize,
    until: Instant,
    /// The last dialled address, whether it answered or not.
    pub tried: Option<IpAddr>,
}

pub enum DialStep {
    /// The socket becomes writable when connected. The deadline is the second value.
    Started(OwnedFd, Instant),
    /// No address is left. None was dialled, for this reason.
    Forbidden(IpAddr, &'static str),
    Unreachable,
}

impl Dial {
    pub fn new(addresses: Addresses, now: Instant) -> Dial {
        Dial { addresses, next: 0, until: now + DIAL_TIMEOUT, tried: None }
    }

    /// Dials the next address that `may_dial` allows, with a socket from `socket`.
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
            // A forbidden address is the reason only if no other was dialled.
            Some((address, reason)) if self.tried.is_none() => DialStep::Forbidden(address, reason),
            _ => DialStep::Unreachable,
        }
    }
}

pub fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A socket in the host's network.
pub fn host_socket(to: IpAddr) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family(to), SocketType::STREAM, flags, None)
}

fn connect(socket: OwnedFd, to: SocketAddr, epoll: &OwnedFd, event: u64) -> Result<OwnedFd, Errno> {
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno),
    }
    // Registered only now: epoll reports an unconnected socket as hung up.
    epoll::add(epoll, &socket, EventData::new_u64(event), WATCHED_EVENTS)?;
    Ok(socket)
}

/// True for a public address of this host. Other addresses are judged by their kind.
pub fn is_own(address: IpAddr) -> bool {
    address::kind(address) == AddressKind::Public && can_be_bound(address)
}

/// True if the address leads to this host, of any kind. A server on all addresses is the same at
/// each of them.
pub fn is_of_this_machine(address: IpAddr) -> bool {
    matches!(address::kind(address), AddressKind::Loopback | AddressKind::Unspecified)
        || can_be_bound(address)
}

/// Only addresses of this host can be bound.
fn can_be_bound(address: IpAddr) -> bool {
    let socket =
        rustix::net::socket_with(family(address), SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    // An error counts as an own address, which denies.
    !socket.is_ok_and(|socket| {
        rustix::net::bind(&socket, &SocketAddr::new(address, 0)) == Err(Errno::ADDRNOTAVAIL)
    })
}
