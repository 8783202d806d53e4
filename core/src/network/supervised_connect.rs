//! Sockets that the supervisor connects for the command, where no namespace keeps them in (landlock
//! tier).
//!
//! connect(2), and with a fenced network bind(2) and listen(2), wait for us. The address is copied
//! once and judged as the copy has it; what is then carried out is a call of our own, with that
//! copy, on a duplicate of the caller's socket (pidfd_getfd(2)). Whatever other threads do to
//! memory or descriptors meanwhile, nothing else is reached: no call goes on by itself.
//!
//! A connection that is not made at once is parked: nothing here waits for a peer.

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
use crate::kernel::seccomp_notify::{CallAnswer, InterceptedCall, NotifyListener};
use crate::kernel::{open_beneath, sys};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{self, Plan, SocketAccess, SocketFamily, Tier};

/// struct sockaddr_storage: the longest that the kernel takes.
const MAX_ADDRESS_BYTES: usize = 128;
/// A connection on this machine is made in a fraction of it.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(10);
/// As many may wait; each holds a descriptor.
const MAX_PENDING_CONNECTS: usize = 256;
/// What people are told of, before somebody asks for it.
const MAX_REFUSED_REPORTS: usize = 64;

pub struct SupervisedConnect {
    /// None: it is not fenced.
    network: Option<AllowedTargets>,
    /// Socket files that may be connected to. As long as they are held open, nothing else gets
    /// their numbers.
    sockets: Vec<(Identity, OwnedFd)>,
    pending: Vec<PendingConnect>,
    /// Readable when something parked has come to its end.
    ready: OwnedFd,
    refused: Vec<NetworkDecision>,
    proxy_clients: Vec<SocketAddr>,
}

struct AllowedTargets {
    /// Where the proxy takes connections.
    proxy: Option<SocketAddr>,
    local_ports: Vec<u16>,
}

/// A socket file that a grant names, where it really lies.
pub type GrantedSocket = (AbsPath, Identity);

struct PendingConnect {
    call: InterceptedCall,
    socket: OwnedFd,
    /// As long as its owner wants to wait (SO_SNDTIMEO).
    until: Option<Instant>,
}

/// The calls that have to wait; none, if a namespace sees to it, or if no socket is made that could
/// reach somebody.
pub fn calls(access: SocketAccess) -> &'static [&'static str] {
    match access {
        SocketAccess { network: Some(plan::NetworkMode::Filtered), .. } => {
            &["bind", "connect", "listen"]
        }
        SocketAccess { unix_by_path: true, .. } => &["connect"],
        _ => &[],
    }
}

/// What the filter and we have to hold; nothing in the full tier.
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

/// Can a descriptor of another process be had at all? A container's filter may refuse it.
pub fn check() -> Result<(), Errno> {
    let (one, _other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    sys::duplicate_descriptor(
        rustix::process::getpid().as_raw_nonzero().get() as u32,
        one.as_raw_fd(),
    )
    .map(drop)
}

/// What an address of the internet families says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetAddress {
    Unspecified,
    Socket(SocketAddr),
}

impl SupervisedConnect {
    /// `proxy`: where the proxy takes connections.
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
            Err(errno) => listener.answer(&call, CallAnswer::Fail(errno)),
        }
    }

    /// Ok(None): it is parked.
    fn connect(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> Result<Option<CallAnswer>, Errno> {
        let (socket, address) = (socket_of(listener, call)?, address_of(call)?);
        let family = sockopt::socket_domain(&socket)?;
        let connected = match (family, &self.network) {
            (AddressFamily::UNIX, _) => self.connect_unix(&socket, call, &address)?,
            (AddressFamily::INET | AddressFamily::INET6, Some(allowed_targets)) => {
                let target_address = target_address(&address)?;
                if let TargetAddress::Socket(target) = target_address
                    && !allowed_targets.reaches(target, sockopt::socket_type(&socket)?)
                {
                    self.refuse(target);
                    return Err(Errno::ACCESS);
                }
                let to_proxy = matches!(target_address, TargetAddress::Socket(target) if allowed_targets.is_proxy(target));
                let connected = sys::connect_within(socket.as_fd(), &address, CONNECT_TIMEOUT);
                if to_proxy
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
            Ok(()) => Ok(Some(CallAnswer::Value(0))),
            Err(Errno::INPROGRESS | Errno::INTR) if family != AddressFamily::UNIX => {
                self.wait_for_connection(call, socket)
            }
            // Nobody takes from its queue.
            Err(Errno::INTR) => Err(Errno::AGAIN),
            Err(errno) => Err(errno),
        }
    }

    /// To the file that the caller's path leads to: what comes to have that name afterwards is not
    /// connected to.
    fn connect_unix(
        &self,
        socket: &OwnedFd,
        call: &InterceptedCall,
        address: &[u8],
    ) -> Result<Result<(), Errno>, Errno> {
        let path =
            address.strip_prefix(&(libc::AF_UNIX as u16).to_ne_bytes()).ok_or(Errno::INVAL)?;
        let path = Some(path).filter(|path| path.first().is_some_and(|byte| *byte != 0));
        // An abstract name, or none: those of its own making have no path, and of others none is
        // granted.
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
    ) -> Result<Option<CallAnswer>, Errno> {
        // Its owner looks after it himself.
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

    /// Only on this machine: what others could reach is no way in for them, and no way out either.
    fn bind(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> Result<Option<CallAnswer>, Errno> {
        let (socket, address) = (socket_of(listener, call)?, address_of(call)?);
        let is_own = match sockopt::socket_domain(&socket)? {
            AddressFamily::INET | AddressFamily::INET6 => {
                matches!(target_address(&address)?, TargetAddress::Socket(own) if own.ip().is_loopback())
            }
            AddressFamily::NETLINK => true,
            // A socket file is made by its maker alone, with his rights; and nobody inside could
            // connect to it.
            _ => false,
        };
        if !is_own {
            return Err(Errno::ACCESS);
        }
        sys::bind_to(socket.as_fd(), &address).map(|()| Some(CallAnswer::Value(0)))
    }

    /// Who was not bound to this machine would get a port that everybody reaches.
    fn listen(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> Result<Option<CallAnswer>, Errno> {
        let socket = socket_of(listener, call)?;
        if matches!(sockopt::socket_domain(&socket)?, AddressFamily::INET | AddressFamily::INET6) {
            let own =
                rustix::net::getsockname(&socket).and_then(SocketAddr::try_from).map(unmapped)?;
            if !own.ip().is_loopback() || own.port() == 0 {
                return Err(Errno::ACCESS);
            }
        }
        rustix::net::listen(&socket, call.arguments[1] as i32).map(|()| Some(CallAnswer::Value(0)))
    }

    fn refuse(&mut self, target: SocketAddr) {
        if self.refused.len() < MAX_REFUSED_REPORTS {
            self.refused.push(NetworkDecision::unproxied(target));
        }
    }

    /// What was refused since the last time.
    pub fn refused(&mut self) -> Vec<NetworkDecision> {
        std::mem::take(&mut self.refused)
    }

    /// Who was connected to the proxy since the last time, by the address it calls from.
    pub fn proxy_clients(&mut self) -> Vec<SocketAddr> {
        std::mem::take(&mut self.proxy_clients)
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.ready.as_fd())
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.pending.iter().filter_map(|pending| pending.until).min()
    }

    /// Answers those that have come to their end.
    pub fn turn(&mut self, listener: &NotifyListener) {
        if self.pending.is_empty() {
            return;
        }
        let mut events = Vec::with_capacity(MAX_PENDING_CONNECTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Which of them it is does not matter: each is asked.
        let _ = epoll::wait(&self.ready, rustix::buffer::spare_capacity(&mut events), Some(&now));
        let ready = &self.ready;
        self.pending.retain(|pending| {
            let ended = pending
                .end()
                .or_else(|| (!listener.still_waits(&pending.call)).then_some(CallAnswer::Continue));
            let Some(answer) = ended else {
                let flags = EventFlags::OUT | EventFlags::ONESHOT;
                let _ = epoll::modify(ready, &pending.socket, EventData::new_u64(0), flags);
                return true;
            };
            // The duplicate is not the last descriptor of its socket, so it does not leave by being
            // closed.
            let _ = epoll::delete(ready, &pending.socket);
            if answer != CallAnswer::Continue {
                listener.answer(&pending.call, answer);
            }
            false
        });
    }
}

impl PendingConnect {
    fn end(&self) -> Option<CallAnswer> {
        let mut waiting = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::OUT)];
        let polled = rustix::event::poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        if matches!(polled, Ok(1..)) {
            return Some(match sockopt::socket_error(&self.socket) {
                Ok(Ok(())) => CallAnswer::Value(0),
                Ok(Err(errno)) | Err(errno) => CallAnswer::Fail(errno),
            });
        }
        self.until
            .is_some_and(|until| until <= Instant::now())
            .then_some(CallAnswer::Fail(Errno::INPROGRESS))
    }
}

impl AllowedTargets {
    fn reaches(&self, target: SocketAddr, kind: SocketType) -> bool {
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

/// A duplicate of the socket that a call is about.
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

/// By the lengths that the kernel asks for.
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
    fn only_the_proxy_and_listed_ports_of_this_machine_are_reached() {
        let proxy = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 4000);
        let allowed_targets = AllowedTargets { proxy: Some(proxy), local_ports: vec![5432] };
        let reaches = |address: &[u8]| match target_address(address) {
            Ok(TargetAddress::Socket(target)) => {
                allowed_targets.reaches(target, SocketType::STREAM)
            }
            other => panic!("{other:?}"),
        };
        let mapped = |ip: Ipv4Addr| v6(ip.to_ipv6_mapped(), 5432);
        for address in [
            v4([127, 0, 0, 1], 4000),
            v4([127, 0, 0, 1], 5432),
            v6(Ipv6Addr::LOCALHOST, 5432),
            mapped(Ipv4Addr::LOCALHOST),
        ] {
            assert!(reaches(&address), "{address:?}");
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
            assert!(!reaches(&address), "{address:?}");
        }
        assert!(!allowed_targets.reaches(proxy, SocketType::DGRAM));
    }

    #[test]
    fn an_address_that_the_kernel_would_not_take_is_none() {
        assert_eq!(target_address(&[]), Err(Errno::INVAL));
        assert_eq!(target_address(&[libc::AF_INET as u8]), Err(Errno::INVAL));
        assert_eq!(target_address(&v4([127, 0, 0, 1], 1)[..15]), Err(Errno::INVAL));
        assert_eq!(target_address(&v6(Ipv6Addr::LOCALHOST, 1)[..23]), Err(Errno::INVAL));
        assert_eq!(target_address(&[0, 0]), Ok(TargetAddress::Unspecified));
        assert_eq!(target_address(&[libc::AF_UNIX as u8, 0, b'/']), Err(Errno::AFNOSUPPORT));
    }
}
