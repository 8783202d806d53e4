//! Runs in init: creates the command's network. In its network namespace every address is local,
//! and every connection arrives at one listener; the relay accepts it (see [`super`]). There is no
//! way out: the only device is loopback, and every route ends there.
//!
//! Without a listener, connections are refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode as Permissions, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};

use crate::kernel::netlink::{NetlinkError, NetlinkRequests};
use crate::kernel::sys;
use crate::plan::{Network, NetworkMode};

/// Loopback is the first device of every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Source addresses of the command's connections. Without them the kernel would use the destination
/// as the source.
const OWN_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 255, 255, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x5a, 0, 0, 0, 0, 0, 1)),
];

/// Where connections arrive. Programs inside can not bind ports below 1024.
const LISTENER_ADDRESSES: [SocketAddr; 2] =
    [PROXY, SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 1)];

/// A client that connects to the listener itself uses the proxy (network/parse/proxy_request.rs).
/// No server inside can use this port.
pub const PROXY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 255, 255, 254)), 1);

/// DNS questions to any server arrive here.
const DNS_ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 53),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 53),
];

/// Connections that can wait until the relay starts or accepts.
const LISTEN_BACKLOG: i32 = 4096;

#[derive(Debug, thiserror::Error)]
#[error("cannot create the network of the command: {what}: {}", crate::kernel::errno_names::errno_text(*.errno))]
pub struct NamespaceError {
    what: &'static str,
    pub errno: Errno,
}

const NO_NAMESPACE: &str = "cannot create a network namespace";
const NO_SOCKETS: &str = "cannot create its sockets";
const NO_RULES: &str = "cannot redirect connections (nf_tables, tproxy)";

impl NamespaceError {
    pub fn hint(&self) -> &'static str {
        match self.what {
            NO_NAMESPACE => {
                "type `sysctl user.max_net_namespaces` to see the limit; the filter of a container \
                    may deny them"
            }
            NO_RULES => {
                "the kernel needs nf_tables and nft_tproxy: type `modprobe nft_tproxy` as root to \
                    load them, or run with --block-net"
            }
            _ => "type `paddock doctor` to test every mechanism on this machine",
        }
    }
}

type Result<T> = std::result::Result<T, NamespaceError>;

fn failed_step(what: &'static str) -> impl FnOnce(Errno) -> NamespaceError {
    move |errno| NamespaceError { what, errno }
}

/// Moves this process into the network of a plan. Returns the sockets for the relay, which
/// identifies each of them ([`super::sort_sockets`]). If ports are published, the last descriptor
/// is the network namespace.
pub fn enter(network: &Network) -> Result<Vec<OwnedFd>> {
    // Not together with the other namespaces: that would delay the supervisor.
    sys::numeric_syscall(libc::SYS_unshare, [libc::CLONE_NEWNET as u64, 0, 0, 0])
        .map_err(failed_step(NO_NAMESPACE))?;
    let mut sockets_for_relay = match network.mode {
        NetworkMode::None => bring_loopback_up().map(|()| Vec::new()),
        NetworkMode::Filtered => {
            let families = if has_ipv6()? { 2 } else { 1 };
            route_everything_to_loopback(families)?;
            redirect_connections(families)?;
            sockets(&network.local_ports, families)
        }
    }?;
    if !network.published.is_empty() {
        let own = rustix::fs::open(
            c"/proc/self/ns/net",
            OFlags::RDONLY | OFlags::CLOEXEC,
            Permissions::empty(),
        );
        sockets_for_relay.push(own.map_err(failed_step("cannot open it"))?);
    }
    Ok(sockets_for_relay)
}

/// Without IPv6 in the kernel nothing inside can use it, and nothing must be redirected.
fn has_ipv6() -> Result<bool> {
    match rustix::net::socket_with(
        AddressFamily::INET6,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    ) {
        Ok(_) => Ok(true),
        Err(Errno::AFNOSUPPORT) => Ok(false),
        Err(errno) => Err(failed_step(NO_SOCKETS)(errno)),
    }
}

/// Loopback is down in a new namespace.
pub fn bring_loopback_up() -> Result<()> {
    let mut requests = NetlinkRequests::default();
    add_loopback(&mut requests);
    requests.send(None).map_err(|failed| failed_step(ROUTE_STEPS[0])(failed.errno))
}

/// In the order of the requests in `route_everything_to_loopback`.
const ROUTE_STEPS: [&str; 5] = [
    "cannot bring up the loopback device",
    "cannot set an IPv4 address",
    "cannot set an IPv4 route",
    "cannot set an IPv6 address",
    "cannot set an IPv6 route",
];

/// rtnetlink(7). ip link set lo up; ip address add OWN dev lo; ip route add local default dev lo
/// src OWN.
fn route_everything_to_loopback(families: usize) -> Result<()> {
    let mut requests = NetlinkRequests::default();
    add_loopback(&mut requests);
    for own in OWN_ADDRESSES.into_iter().take(families) {
        let (family, own) = match own {
            IpAddr::V4(own) => (libc::AF_INET as u8, own.octets().to_vec()),
            IpAddr::V6(own) => (libc::AF_INET6 as u8, own.octets().to_vec()),
        };
        let whole = (own.len() * 8) as u8;
        // ifaddrmsg: family, prefix, flags, scope, index
        let address =
            [&[family, whole, libc::IFA_F_NODAD as u8, 0][..], &LOOPBACK_INDEX.to_ne_bytes()]
                .concat();
        requests.add(libc::RTM_NEWADDR, CREATE_FLAGS, &address);
        requests.attribute(libc::IFA_LOCAL, &own);
        requests.attribute(libc::IFA_ADDRESS, &own);
        // rtmsg: family, prefixes of destination and source, service, table, by whom, scope, kind,
        // flags
        let scope = if family == libc::AF_INET as u8 {
            libc::RT_SCOPE_HOST
        } else {
            libc::RT_SCOPE_UNIVERSE
        };
        let local = [libc::RT_TABLE_LOCAL, libc::RTPROT_BOOT, scope, libc::RTN_LOCAL];
        let route = [&[family, 0, 0, 0][..], &local, &[0; 4]].concat();
        requests.add(libc::RTM_NEWROUTE, CREATE_FLAGS, &route);
        requests.attribute(libc::RTA_OIF, &LOOPBACK_INDEX.to_ne_bytes());
        requests.attribute(libc::RTA_PREFSRC, &own);
    }
    let what = |request: Option<u32>| {
        ROUTE_STEPS.get(request.unwrap_or(0) as usize).copied().unwrap_or(ROUTE_STEPS[0])
    };
    requests
        .send(None)
        .map_err(|NetlinkError { request, errno }| NamespaceError { what: what(request), errno })
}

fn add_loopback(requests: &mut NetlinkRequests) {
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    // ifinfomsg: family and kind, index, flags, which of them change
    let device = [&[0; 4][..], &LOOPBACK_INDEX.to_ne_bytes(), &up, &up].concat();
    requests.add(libc::RTM_NEWLINK, libc::NLM_F_ACK, &device);
}

const CREATE_FLAGS: i32 = libc::NLM_F_ACK | libc::NLM_F_CREATE;

/// Constants of linux/netfilter/nf_tables.h; no crate has them.
mod nfta {
    pub const TABLE_NAME: u16 = 1;
    pub const CHAIN_TABLE: u16 = 1;
    pub const CHAIN_NAME: u16 = 3;
    pub const CHAIN_HOOK: u16 = 4;
    pub const CHAIN_POLICY: u16 = 5;
    pub const CHAIN_TYPE: u16 = 7;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const RULE_TABLE: u16 = 1;
    pub const RULE_CHAIN: u16 = 2;
    pub const RULE_EXPRESSIONS: u16 = 4;
    pub const ELEMENT: u16 = 1;
    pub const EXPRESSION_NAME: u16 = 1;
    pub const EXPRESSION_DATA: u16 = 2;
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const META_REGISTER: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const COMPARE_REGISTER: u16 = 1;
    pub const COMPARE_HOW: u16 = 2;
    pub const COMPARE_WITH: u16 = 3;
    pub const BITWISE_FROM: u16 = 1;
    pub const BITWISE_TO: u16 = 2;
    pub const BITWISE_LENGTH: u16 = 3;
    pub const BITWISE_MASK: u16 = 4;
    pub const BITWISE_XOR: u16 = 5;
    pub const PAYLOAD_REGISTER: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LENGTH: u16 = 4;
    pub const IMMEDIATE_REGISTER: u16 = 1;
    pub const IMMEDIATE_VALUE: u16 = 2;
    pub const TPROXY_FAMILY: u16 = 1;
    pub const TPROXY_ADDRESS: u16 = 2;
    pub const TPROXY_PORT: u16 = 3;
}

/// Redirects every connection to the listeners, except those to loopback. Only the first packet is
/// redirected: later packets find its socket without the rules. Matching the socket here would cost
/// each packet more than the rest of its path.
///
/// ```text
/// table inet paddock {
///   chain turn {
///     type filter hook prerouting priority mangle; policy accept;
///     meta l4proto tcp tcp flags & (syn | ack) != syn accept
///     meta l4proto tcp meta nfproto ipv4 ip  daddr != 127.0.0.0/8 tproxy ip  to 127.255.255.254:1
///     meta l4proto tcp meta nfproto ipv6 ip6 daddr != ::1         tproxy ip6 to [::1]:1
///   }
/// }
/// ```
fn redirect_connections(families: usize) -> Result<()> {
    let mut rules = NftBatch(NetlinkRequests::default());
    rules.begin(libc::NFNL_MSG_BATCH_BEGIN, 0, libc::AF_UNSPEC, libc::NFNL_SUBSYS_NFTABLES as u16);
    rules.add(libc::NFT_MSG_NEWTABLE, libc::NLM_F_CREATE);
    rules.text(nfta::TABLE_NAME, "paddock");
    rules.add(libc::NFT_MSG_NEWCHAIN, libc::NLM_F_CREATE);
    rules.text(nfta::CHAIN_TABLE, "paddock");
    rules.text(nfta::CHAIN_NAME, "turn");
    rules.text(nfta::CHAIN_TYPE, "filter");
    rules.number(nfta::CHAIN_POLICY, libc::NF_ACCEPT);
    rules.nested(nfta::CHAIN_HOOK, |hook| {
        hook.number(nfta::HOOK_NUMBER, libc::NF_INET_PRE_ROUTING);
        hook.number(nfta::HOOK_PRIORITY, libc::NF_IP_PRI_MANGLE);
    });
    rules.accept_established();
    // The address of the destination is at byte 16 of an IPv4 header, and at byte 24 of an IPv6
    // one.
    rules.redirect(libc::NFPROTO_IPV4, 16, &[127], LISTENER_ADDRESSES[0]);
    if families > 1 {
        rules.redirect(
            libc::NFPROTO_IPV6,
            24,
            &Ipv6Addr::LOCALHOST.octets(),
            LISTENER_ADDRESSES[1],
        );
    }
    rules.begin(libc::NFNL_MSG_BATCH_END, 0, libc::AF_UNSPEC, libc::NFNL_SUBSYS_NFTABLES as u16);
    rules.0.send(Some(netlink::NETFILTER)).map_err(|failed| failed_step(NO_RULES)(failed.errno))
}

/// A batch for nf_tables. The kernel applies all of it or nothing. Numbers are in network byte
/// order.
struct NftBatch(NetlinkRequests);

impl NftBatch {
    fn begin(&mut self, kind: i32, flags: i32, family: i32, resource: u16) {
        // nfgenmsg: family, version, resource
        let [high, low] = resource.to_be_bytes();
        self.0.add(kind as u16, flags, &[family as u8, 0, high, low]);
    }

    fn add(&mut self, kind: i32, flags: i32) {
        self.begin(
            libc::NFNL_SUBSYS_NFTABLES << 8 | kind,
            flags | libc::NLM_F_ACK,
            libc::NFPROTO_INET,
            0,
        );
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.0.attribute(kind, &[text.as_bytes(), b"\0"].concat());
    }

    fn number(&mut self, kind: u16, number: i32) {
        self.0.attribute(kind, &number.to_be_bytes());
    }

    fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut NftBatch)) {
        self.0.nested(kind, |requests| {
            let mut rules = NftBatch(std::mem::take(requests));
            inner(&mut rules);
            *requests = rules.0;
        });
    }

    fn expression(&mut self, name: &str, data: impl FnOnce(&mut NftBatch)) {
        self.nested(nfta::ELEMENT, |element| {
            element.text(nfta::EXPRESSION_NAME, name);
            element.nested(nfta::EXPRESSION_DATA, data);
        });
    }

    fn value(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |inner| inner.0.attribute(nfta::VALUE, value));
    }

    fn compare(&mut self, how: i32, with: &[u8]) {
        self.expression("cmp", |data| {
            data.number(nfta::COMPARE_REGISTER, libc::NFT_REG_1);
            data.number(nfta::COMPARE_HOW, how);
            data.value(nfta::COMPARE_WITH, with);
        });
    }

    fn meta(&mut self, key: i32, value: i32) {
        self.expression("meta", |data| {
            data.number(nfta::META_KEY, key);
            data.number(nfta::META_REGISTER, libc::NFT_REG_1);
        });
        self.compare(libc::NFT_CMP_EQ, &[value as u8]);
    }

    fn immediate(&mut self, register: i32, value: &[u8]) {
        self.expression("immediate", |data| {
            data.number(nfta::IMMEDIATE_REGISTER, register);
            data.value(nfta::IMMEDIATE_VALUE, value);
        });
    }

    fn payload(&mut self, header: i32, offset: i32, length: usize) {
        self.expression("payload", |data| {
            data.number(nfta::PAYLOAD_REGISTER, libc::NFT_REG_1);
            data.number(nfta::PAYLOAD_BASE, header);
            data.number(nfta::PAYLOAD_OFFSET, offset);
            data.number(nfta::PAYLOAD_LENGTH, length as i32);
        });
    }

    /// The first rule of the table above: accept packets that start no connection.
    fn accept_established(&mut self) {
        // In byte 13 of a TCP header (RFC 9293, 3.1).
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        self.rule(|rule| {
            rule.meta(libc::NFT_META_L4PROTO, libc::IPPROTO_TCP);
            rule.payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1);
            rule.expression("bitwise", |data| {
                data.number(nfta::BITWISE_FROM, libc::NFT_REG_1);
                data.number(nfta::BITWISE_TO, libc::NFT_REG_1);
                data.number(nfta::BITWISE_LENGTH, 1);
                data.value(nfta::BITWISE_MASK, &[SYN | ACK]);
                data.value(nfta::BITWISE_XOR, &[0]);
            });
            rule.compare(libc::NFT_CMP_NEQ, &[SYN]);
            rule.expression("immediate", |data| {
                data.number(nfta::IMMEDIATE_REGISTER, libc::NFT_REG_VERDICT);
                data.nested(nfta::IMMEDIATE_VALUE, |value| {
                    value.nested(nfta::VERDICT, |verdict| {
                        verdict.number(nfta::VERDICT_CODE, libc::NF_ACCEPT)
                    });
                });
            });
        });
    }

    fn rule(&mut self, expressions: impl FnOnce(&mut NftBatch)) {
        const NLM_F_APPEND: i32 = 0x800;
        self.add(libc::NFT_MSG_NEWRULE, libc::NLM_F_CREATE | NLM_F_APPEND);
        self.text(nfta::RULE_TABLE, "paddock");
        self.text(nfta::RULE_CHAIN, "turn");
        self.nested(nfta::RULE_EXPRESSIONS, expressions);
    }

    /// One of the other rules. A destination address that starts with `loopback` is not redirected.
    fn redirect(&mut self, family: i32, offset: i32, loopback: &[u8], to: SocketAddr) {
        self.rule(|rule| {
            rule.meta(libc::NFT_META_L4PROTO, libc::IPPROTO_TCP);
            rule.meta(libc::NFT_META_NFPROTO, family);
            rule.payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset, loopback.len());
            rule.compare(libc::NFT_CMP_NEQ, loopback);
            match to.ip() {
                IpAddr::V4(address) => rule.immediate(libc::NFT_REG_1, &address.octets()),
                IpAddr::V6(address) => rule.immediate(libc::NFT_REG_1, &address.octets()),
            }
            rule.immediate(libc::NFT_REG_2, &to.port().to_be_bytes());
            rule.expression("tproxy", |data| {
                data.number(nfta::TPROXY_FAMILY, family);
                data.number(nfta::TPROXY_ADDRESS, libc::NFT_REG_1);
                data.number(nfta::TPROXY_PORT, libc::NFT_REG_2);
            });
        });
    }
}

fn sockets(local_ports: &[u16], families: usize) -> Result<Vec<OwnedFd>> {
    let mut sockets = Vec::with_capacity(7 + 2 * local_ports.len());
    let made = |at, kind, is_transparent| {
        socket(at, kind, is_transparent).map_err(failed_step(NO_SOCKETS))
    };
    for at in LISTENER_ADDRESSES.into_iter().take(families) {
        sockets.push(made(at, SocketType::STREAM, true)?);
    }
    for at in DNS_ADDRESSES.into_iter().take(families) {
        sockets.push(made(at, SocketType::DGRAM, true)?);
        // Connections to loopback are not redirected, and a DNS server can be configured there. So
        // it needs its own listener, unless the plan uses the host's server.
        if !local_ports.contains(&at.port()) {
            sockets.push(made(at, SocketType::STREAM, false)?);
        }
    }
    for port in local_ports {
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
            .into_iter()
            .take(families)
        {
            let local = socket(SocketAddr::new(address, *port), SocketType::STREAM, false);
            sockets.push(local.map_err(failed_step("cannot listen on the local ports"))?);
        }
    }
    // For finding the owner of a connection. It also marks the end of these sockets
    // ([`super::sort_sockets`]).
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let diagnosis = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(netlink::SOCK_DIAG),
    );
    sockets.push(diagnosis.map_err(failed_step(NO_SOCKETS))?);
    Ok(sockets)
}

/// `is_transparent`: accepts traffic for other addresses, and answers from these addresses.
fn socket(
    at: SocketAddr,
    kind: SocketType,
    is_transparent: bool,
) -> std::result::Result<OwnedFd, Errno> {
    let (family, level, transparent, packet_info) = match at {
        SocketAddr::V4(_) => {
            (AddressFamily::INET, libc::SOL_IP, libc::IP_TRANSPARENT, libc::IP_PKTINFO)
        }
        SocketAddr::V6(_) => {
            (AddressFamily::INET6, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, libc::IPV6_RECVPKTINFO)
        }
    };
    let socket =
        rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    if at.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if is_transparent {
        sys::turn_socket_option_on(&socket, level, transparent)?;
    }
    if kind == SocketType::DGRAM {
        sys::turn_socket_option_on(&socket, level, packet_info)?;
    }
    rustix::net::bind(&socket, &at)?;
    if kind == SocketType::STREAM {
        rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    }
    Ok(socket)
}
