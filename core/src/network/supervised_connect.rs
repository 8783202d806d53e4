//! Sockets that the supervisor connects for the command, where no namespace confines them (landlock
//! tier).
//!
//! connect(2), and with a restricted network bind(2) and listen(2), are intercepted. The supervisor
//! copies the address once and judges the copy. Then it makes the call itself, with that copy, on a
//! duplicate of the caller's socket (pidfd_getfd(2)). Other threads can change memory and
//! descriptors meanwhile, but nothing else is reached: no intercepted call continues on its own.
//!
//! A connection that does not complete at once becomes pending: nothing here waits for a peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::journal::event::network::NetworkDecision;
use crate::kernel::calling_process::CallingProcess;
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyAnswer, NotifyListener};
use crate::kernel::{open_beneath, sys};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{self, Plan, SocketAccess, SocketFamily, Tier};

/// The size of struct sockaddr_storage, the longest address that the kernel takes.
const MAX_ADDRESS_BYTES: usize = 128;
/// A connection on this machine takes a fraction of this.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(10);
/// Pending connections; each uses a descriptor.
const MAX_PENDING_CONNECTS: usize = 256;
/// Refused connections that are stored until the next report.
const MAX_REFUSED_REPORTS: usize = 64;

pub struct SupervisedConnect {
    /// None: the network is not restricted.
    network: Option<AllowedTargets>,
    /// Socket files that may be connected to. An open descriptor keeps their inode numbers from
    /// being reused.
    sockets: Vec<(Identity, OwnedFd)>,
    pending: Vec<PendingConnect>,
    /// Readable when a pending connection has completed or failed.
    ready: OwnedFd,
    refused: Vec<NetworkDecision>,
    proxy_clients: Vec<SocketAddr>,
}

struct AllowedTargets {
    /// The address of the proxy.
    proxy: Option<SocketAddr>,
    local_ports: Vec<u16>,
}

/// A socket file that a grant names, by its resolved path.
pub type GrantedSocket = (AbsPath, Identity);

struct PendingConnect {
    call: InterceptedCall,
    socket: OwnedFd,
    /// The timeout of the command's socket (SO_SNDTIMEO).
    until: Option<Instant>,
}

/// The calls to intercept. None if a namespace confines the sockets, or if no socket can reach
/// another host.
pub fn calls(access: SocketAccess) -> &'static [&'static str] {
    match access {
        SocketAccess { network: Some(plan::NetworkMode::Filtered), .. } => {
            &["bind", "connect", "listen"]
        }
        SocketAccess { unix_by_path: true, .. } => &["connect"],
        _ => &[],
    }
}

/// What the seccomp filter and the supervisor must enforce; nothing in the full tier.
pub fn socket_access(plan: &Plan, sockets: &[GrantedSocket]) -> SocketAccess {
    let opened =
        plan.seccomp.as_ref().is_some_and(|seccomp| seccomp.sockets.contains(&SocketFamily::Unix));
    match plan.tier {
        Tier::Full => SocketAccess::default(),
        Tier::Landlock => SocketAccess {
            network: plan.network.as_ref().map(|network| network.mode),
            unix_by_path: !sockets.is_empty() && !opened && plan.seccomp.is_some(),
        },
    }
}

/// Checks that pidfd_getfd works. A container's seccomp filter can refuse it.
pub fn check() -> Result<(), Errno> {
    let (one, _other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    sys::duplicate_descriptor(
        rustix::process::getpid().as_raw_nonzero().get() as u32,
        one.as_raw_fd(),
    )
    .map(drop)
}

/// The target of an internet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetAddress {
    Unspecified,
    Socket(SocketAddr),
}

impl SupervisedConnect {
    /// `proxy`: the address of the proxy.
    pub fn new(
        plan: &Plan,
        sockets: &[GrantedSocket],
        proxy: Option<SocketAddr>,
    ) -> Result<Option<SupervisedConnect>, Errno> {
        let access = socket_access(plan, sockets);
        if calls(access).is_empty() {
            return Ok(None);
        }
        let granted = sockets.iter().filter(|_| access.unix_by_path);
        let sockets =
            granted.map(|(path, identity)| Ok((*identity, open_socket_file(path, *identity)?)));
        let sockets = sockets.collect::<Result<_, Errno>>()?;
        let network = plan
            .network
            .as_ref()
            .map(|network| AllowedTargets { proxy, local_ports: network.local_ports.clone() });
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        let (pending, refused, proxy_clients) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Some(SupervisedConnect { network, sockets, pending, ready, refused, proxy_clients }))
    }

    pub fn handles(call: &InterceptedCall) -> bool {
        matches!(i64::from(call.number), libc::SYS_connect | libc::SYS_bind | libc::SYS_listen)
    }

    pub fn take(&mut self, listener: &NotifyListener, call: InterceptedCall) {
        let answer = match i64::from(call.number) {
            libc::SYS_connect => self.connect(listener, &call),
            libc::SYS_bind => self.bind(listener, &call),
            _ => self.listen(listener, &call),
        };
        match answer {
            Ok(Some(answer)) => listener.answer(&call, answer),
            Ok(None) => {}
            Err(errno) => listener.answer(&call, NotifyAnswer::Fail(errno)),
        }
    }

    /// Ok(None): the connection is pending.
    fn connect(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> Result<Option<NotifyAnswer>, Errno> {
        let (socket, address) = (socket_of(listener, call)?, address_of(call)?);
        let family = sockopt::socket_domain(&socket)?;
        let connected = match (family, &self.network) {
            (AddressFamily::UNIX, _) => self.connect_unix(&socket, call, &address)?,
            (AddressFamily::INET | AddressFamily::INET6, Some(allowed_targets)) => {
                let target_address = target_address(&address)?;
                if let TargetAddress::Socket(target) = target_address
                    && !allowed_targets.allows(target, sockopt::socket_type(&socket)?)
                {
                    self.refused.push(NetworkDecision::unproxied(target));
                    return Err(Errno::ACCESS);
                }
                let to_proxy = matches!(target_address,
                TargetAddress::Socket(target) if allowed_targets.is_proxy(target));
                let connected = sys::connect_within(socket.as_fd(), &address, CONNECT_TIMEOUT);
                // After an error the source address belongs to another connection or to none, and
                // a program outside could use it.
                if to_proxy
                    && matches!(connected, Ok(()) | Err(Errno::INPROGRESS | Errno::INTR))
                    && let Ok(own) =
                        rustix::net::getsockname(&socket).and_then(SocketAddr::try_from)
                {
                    self.proxy_clients.push(unmapped(own));
                }
                connected
            }
            (AddressFamily::NETLINK, _) | (_, None) => {
                sys::connect_within(socket.as_fd(), &address, CONNECT_TIMEOUT)
            }
            _ => return Err(Errno::AFNOSUPPORT),
        };
        match connected {
            Ok(()) => Ok(Some(NotifyAnswer::Value(0))),
            Err(Errno::INPROGRESS | Errno::INTR) if family != AddressFamily::UNIX => {
                self.wait_for_connection(call, socket)
            }
            // The server's queue is full.
            Err(Errno::INTR) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }

    /// Connects to the file that the caller's path leads to now. A file that gets this name later
    /// is not connected to.
    fn connect_unix(
        &self,
        socket: &OwnedFd,
        call: &InterceptedCall,
        address: &[u8],
    ) -> Result<Result<(), Errno>, Errno> {
        let path =
            address.strip_prefix(&(libc::AF_UNIX as u16).to_ne_bytes()).ok_or(Errno::INVAL)?;
        let path = Some(path).filter(|path| path.first().is_some_and(|byte| *byte != 0));
        // An abstract name, or no name. Only socket files can be granted.
        let path = path.ok_or(Errno::CONNREFUSED)?;
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        let file = CallingProcess::of(call.thread)?.open(
            libc::AT_FDCWD,
            path,
            OFlags::PATH | OFlags::CLOEXEC,
        )?;
        let found = Identity::from(&rustix::fs::fstat(&file)?);
        let granted = self.sockets.iter().find(|(identity, _)| *identity == found);
        let (_, file) = granted.ok_or(Errno::ACCESS)?;
        let mut buffer = [0; 32];
        let link = open_beneath::proc_fd_path(file, &mut buffer);
        let mut target = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        target.extend_from_slice(link.to_bytes_with_nul());
        Ok(sys::connect_within(socket.as_fd(), &target, CONNECT_TIMEOUT))
    }

    fn wait_for_connection(
        &mut self,
        call: &InterceptedCall,
        socket: OwnedFd,
    ) -> Result<Option<NotifyAnswer>, Errno> {
        // The owner of a non-blocking socket polls it.
        if rustix::fs::fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK) {
            return Err(Errno::INPROGRESS);
        }
        if self.pending.len() == MAX_PENDING_CONNECTS {
            return Err(Errno::AGAIN);
        }
        let timeout = sockopt::socket_timeout(&socket, sockopt::Timeout::Send)?;
        let flags = EventFlags::OUT | EventFlags::ONESHOT;
        epoll::add(&self.ready, &socket, EventData::new_u64(0), flags)?;
        self.pending.push(PendingConnect {
            call: *call,
            socket,
            until: timeout.map(|timeout| Instant::now() + timeout),
        });
        Ok(None)
    }

    /// Only loopback addresses: a socket that other machines reach would be a way in or out.
    fn bind(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> Result<Option<NotifyAnswer>, Errno> {
        let (socket, address) = (socket_of(listener, call)?, address_of(call)?);
        let is_own = match sockopt::socket_domain(&socket)? {
            AddressFamily::INET | AddressFamily::INET6 => {
                matches!(target_address(&address)?,
                TargetAddress::Socket(own) if own.ip().is_loopback())
            }
            AddressFamily::NETLINK => true,
            // Refused: only the command itself could create a socket file with its own rights, and
            // no program inside could connect to it.
            _ => false,
        };
        if !is_own {
            return Err(Errno::ACCESS);
        }
        sys::bind_to(socket.as_fd(), &address).map(|()| Some(NotifyAnswer::Value(0)))
    }

    /// An unbound socket would get a port on all addresses.
    fn listen(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> Result<Option<NotifyAnswer>, Errno> {
        let socket = socket_of(listener, call)?;
        if matches!(sockopt::socket_domain(&socket)?, AddressFamily::INET | AddressFamily::INET6) {
            let own =
                rustix::net::getsockname(&socket).and_then(SocketAddr::try_from).map(unmapped)?;
            if !own.ip().is_loopback() || own.port() == 0 {
                return Err(Errno::ACCESS);
            }
        }
        rustix::net::listen(&socket, call.arguments[1] as i32)
            .map(|()| Some(NotifyAnswer::Value(0)))
    }

    /// True until the refused connections are taken: each of them is in the journal, so no further
    /// call is answered.
    pub fn is_full(&self) -> bool {
        self.refused.len() >= MAX_REFUSED_REPORTS
    }

    /// The refused connections since the last call.
    pub fn refused(&mut self) -> Vec<NetworkDecision> {
        std::mem::take(&mut self.refused)
    }

    /// The source addresses of connections to the proxy since the last call.
    pub fn proxy_clients(&mut self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.proxy_clients)
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.ready.as_fd())
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.pending.iter().filter_map(|pending| pending.until).min()
    }

    /// Answers the connections that completed, failed or timed out.
    pub fn turn(&mut self, listener: &NotifyListener) {
        if self.pending.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(MAX_PENDING_CONNECTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // The events are ignored: each pending connection is checked.
        let _ = epoll::wait(&self.ready, rustix::buffer::spare_capacity(&mut events), Some(&now));
        let ready = &self.ready;
        self.pending.retain(|pending| {
            let ended = pending.end().or_else(|| {
                (!listener.still_waits(&pending.call)).then_some(NotifyAnswer::Continue)
            });
            let Some(answer) = ended else {
                let flags = EventFlags::OUT | EventFlags::ONESHOT;
                let _ = epoll::modify(ready, &pending.socket, EventData::new_u64(0), flags);
                return true;
            };
            // The duplicate is not the last descriptor of its socket, so closing it does not remove
            // it from epoll.
            let _ = epoll::delete(ready, &pending.socket);
            if answer != NotifyAnswer::Continue {
                listener.answer(&pending.call, answer);
            }
            false
        });
    }
}

impl PendingConnect {
    fn end(&self) -> Option<NotifyAnswer> {
        let mut waiting = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::OUT)];
        let polled = rustix::event::poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if matches!(polled, Ok(1..)) {
            return Some(match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => NotifyAnswer::Value(0),
                Ok(Err(errno)) | Err(errno) => NotifyAnswer::Fail(errno),
            });
        }
        self.until
            .is_some_and(|until| until <= Instant::now())
            .then_some(NotifyAnswer::Fail(Errno::INPROGRESS))
    }
}

impl AllowedTargets {
    fn allows(&self, target: SocketAddr, kind: SocketType) -> bool {
        let is_host = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
            .contains(&target.ip());
        let is_local = is_host && self.local_ports.contains(&target.port());
        kind == SocketType::STREAM && (is_local || self.is_proxy(target))
    }

    fn is_proxy(&self, target: SocketAddr) -> bool {
        self.proxy == Some(target)
    }
}

fn open_socket_file(path: &AbsPath, identity: Identity) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_c_str(), flags, Mode::empty())?;
    if Identity::from(&rustix::fs::fstat(&file)?) == identity {
        Ok(file)
    } else {
        Err(Errno::STALE)
    }
}

/// A duplicate of the socket of an intercepted call.
fn socket_of(listener: &NotifyListener, call: &InterceptedCall) -> Result<OwnedFd, Errno> {
    let socket = sys::duplicate_descriptor(call.thread, call.arguments[0] as i32)?;
    if listener.still_waits(call) { Ok(socket) } else { Err(Errno::SRCH) }
}

fn address_of(call: &InterceptedCall) -> Result<Vec<u8>, Errno> {
    let length = call.arguments[2] as u32 as usize;
    if length > MAX_ADDRESS_BYTES {
        return Err(Errno::INVAL);
    }
    let mut address = vec![0; length];
    match sys::read_memory(call.thread, [(call.arguments[1], &mut address[..])])? {
        read if read == length => Ok(address),
        _ => Err(Errno::FAULT),
    }
}

/// Parses an address with the minimum lengths that the kernel requires.
fn target_address(address: &[u8]) -> Result<TargetAddress, Errno> {
    let family = address
        .first_chunk()
        .map(|family| i32::from(u16::from_ne_bytes(*family)))
        .ok_or(Errno::INVAL)?;
    let port = || {
        address.get(2..4).and_then(|port| port.first_chunk()).map(|port| u16::from_be_bytes(*port))
    };
    let ip: Option<IpAddr> = match family {
        libc::AF_UNSPEC => return Ok(TargetAddress::Unspecified),
        libc::AF_INET if address.len() >= 16 => {
            address[4..].first_chunk::<4>().map(|ip| (*ip).into())
        }
        libc::AF_INET6 if address.len() >= 24 => {
            address[8..].first_chunk::<16>().map(|ip| (*ip).into())
        }
        libc::AF_INET | libc::AF_INET6 => return Err(Errno::INVAL),
        _ => return Err(Errno::AFNOSUPPORT),
    };
    let (ip, port) = ip.zip(port()).ok_or(Errno::INVAL)?;
    Ok(TargetAddress::Socket(unmapped(SocketAddr::new(ip, port))))
}

/// ::ffff:127.0.0.1 is 127.0.0.1.
fn unmapped(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(ip: [u8; 4], port: u16) -> Vec<u8> {
        let family = (libc::AF_INET as u16).to_ne_bytes();
        [&family[..], &port.to_be_bytes(), &ip, &[0; 8]].concat()
    }

    fn v6(ip: Ipv6Addr, port: u16) -> Vec<u8> {
        let family = (libc::AF_INET6 as u16).to_ne_bytes();
        [&family[..], &port.to_be_bytes(), &[0; 4], &ip.octets(), &[0; 4]].concat()
    }

    #[test]
    fn only_the_proxy_and_local_ports_are_reached() {
        let proxy = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 4000);
        let allowed_targets = AllowedTargets { proxy: Some(proxy), local_ports: vec![5432] };
        let allows = |address: &[u8]| match target_address(address) {
            Ok(TargetAddress::Socket(target)) => allowed_targets.allows(target, SocketType::STREAM),
            other => panic!("{other:?}"),
        };
        let mapped = |ip: Ipv4Addr| v6(ip.to_ipv6_mapped(), 5432);
        for address in [
            v4([127, 0, 0, 1], 4000),
            v4([127, 0, 0, 1], 5432),
            v6(Ipv6Addr::LOCALHOST, 5432),
            mapped(Ipv4Addr::LOCALHOST),
        ] {
            assert!(allows(&address), "{address:?}");
        }
        for address in [
            v4([127, 0, 0, 2], 5432),
            v4([127, 0, 0, 1], 5433),
            v4([0, 0, 0, 0], 5432),
            v4([192, 0, 2, 1], 4000),
            v6(Ipv6Addr::UNSPECIFIED, 5432),
            v6(Ipv6Addr::LOCALHOST, 4000),
            mapped(Ipv4Addr::new(192, 0, 2, 1)),
        ] {
            assert!(!allows(&address), "{address:?}");
        }
        assert!(!allowed_targets.allows(proxy, SocketType::DGRAM));
    }

    #[test]
    fn an_invalid_socket_address_is_refused() {
        assert_eq!(target_address(&[]), Err(Errno::INVAL));
        assert_eq!(target_address(&[libc::AF_INET as u8]), Err(Errno::INVAL));
        assert_eq!(target_address(&v4([127, 0, 0, 1], 1)[..15]), Err(Errno::INVAL));
        assert_eq!(target_address(&v6(Ipv6Addr::LOCALHOST, 1)[..23]), Err(Errno::INVAL));
        assert_eq!(target_address(&[0, 0]), Ok(TargetAddress::Unspecified));
        assert_eq!(target_address(&[libc::AF_UNIX as u8, 0, b'/']), Err(Errno::AFNOSUPPORT));
    }
}
