//! Which sockets may be made, and which options they may get.
//!
//! In the landlock tier no namespace holds a filtered network. The supervisor connects every socket
//! (`network/supervised_connect.rs`). So this filter must leave no socket that reaches a host
//! without connect(2), and no option that redirects a connection.

use super::bpf::{ArgumentRule, CallAnswer, ValueTest};
use crate::plan::{NetworkMode, SocketAccess};

const UNIX: u32 = libc::AF_UNIX as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
pub const INTERNET: &[u32] = &[libc::AF_INET as u32, libc::AF_INET6 as u32];

const STREAM: u32 = libc::SOCK_STREAM as u32;
const SEQPACKET: u32 = libc::SOCK_SEQPACKET as u32;
const NONBLOCK: u32 = libc::SOCK_NONBLOCK as u32;
const CLOEXEC: u32 = libc::SOCK_CLOEXEC as u32;

/// A type of socket with the flags that socket(2) takes with it.
const fn flagged(kind: u32) -> [u32; 4] {
    [kind, kind | NONBLOCK, kind | CLOEXEC, kind | NONBLOCK | CLOEXEC]
}

const STREAMS: &[u32] = &flagged(STREAM);
const CONNECTED: &[u32] = &{
    let ([a, b, c, d], [e, f, g, h]) = (flagged(STREAM), flagged(SEQPACKET));
    [a, b, c, d, e, f, g, h]
};

/// Only unix sockets come in pairs. socketpair(2) makes both sockets before it notices that: for
/// any other family it would load the module and run the code that socket(2) must not reach.
const UNIX_PAIRS: ArgumentRule<'_> =
    ArgumentRule::at(0, ValueTest::Only { values: &[UNIX], errno: libc::EAFNOSUPPORT });

/// An end of a datagram pair (types 2 and 3 of socketpair(2)) can be connected to any socket file,
/// without socket(2). Stream and sequenced pairs (1 and 5) stay connected.
const CONNECTED_PAIRS: ArgumentRule<'_> =
    ArgumentRule::at(1, ValueTest::RefuseBits { bits: 0b10, errno: libc::EPERM });

/// Each datagram has an address of its own, which the supervisor can not check.
const CONNECTED_UNIX: ArgumentRule<'_> =
    ArgumentRule::at(1, ValueTest::Only { values: CONNECTED, errno: libc::EPROTONOSUPPORT })
        .when(0, &[UNIX]);

/// No datagrams, and nothing raw. Only TCP: MPTCP, SCTP and others have their own calls to reach a
/// host, and Landlock does not judge them. Programs that get this errno fall back to TCP.
const STREAM_INTERNET: ArgumentRule<'_> =
    ArgumentRule::at(1, ValueTest::Only { values: STREAMS, errno: libc::EACCES }).when(0, INTERNET);
const TCP_INTERNET: ArgumentRule<'_> = ArgumentRule::at(
    2,
    ValueTest::Only { values: &[0, libc::IPPROTO_TCP as u32], errno: libc::EPROTONOSUPPORT },
)
.when(0, INTERNET);

/// libc lists interfaces with this protocol. Other protocols lead to kernel code that few programs
/// need (netfilter, audit, generic families).
const ROUTE_NETLINK: ArgumentRule<'_> = ArgumentRule::at(
    2,
    ValueTest::Only { values: &[libc::NETLINK_ROUTE as u32], errno: libc::EPROTONOSUPPORT },
)
.when(0, &[NETLINK]);

/// TCP Fast Open connects by sending.
const FAST_OPEN: ValueTest<'_> =
    ValueTest::RefuseBits { bits: libc::MSG_FASTOPEN as u32, errno: libc::EOPNOTSUPP };
const SENDTO: &[ArgumentRule<'_>] = &[ArgumentRule::at(3, FAST_OPEN)]; // sendmmsg too
const SENDMSG: &[ArgumentRule<'_>] = &[ArgumentRule::at(2, FAST_OPEN)];

/// Options that send packets through another address first (source routes) or another device, and
/// Fast Open.
const REDIRECTING_OPTIONS: &[ArgumentRule<'_>] = &[
    ArgumentRule::at(
        2,
        ValueTest::Refuse {
            values: &[libc::TCP_FASTOPEN_CONNECT as u32],
            errno: libc::ENOPROTOOPT,
        },
    )
    .when(1, &[libc::IPPROTO_TCP as u32]),
    ArgumentRule::at(
        2,
        ValueTest::Refuse {
            values: &[libc::IP_OPTIONS as u32, libc::IP_UNICAST_IF as u32],
            errno: libc::EPERM,
        },
    )
    .when(1, &[libc::IPPROTO_IP as u32]),
    ArgumentRule::at(2, ValueTest::Refuse { values: IPV6_REDIRECTING_OPTIONS, errno: libc::EPERM })
        .when(1, &[libc::IPPROTO_IPV6 as u32]),
    ArgumentRule::at(
        2,
        ValueTest::Refuse {
            values: &[libc::SO_BINDTODEVICE as u32, libc::SO_BINDTOIFINDEX as u32],
            errno: libc::EPERM,
        },
    )
    .when(1, &[libc::SOL_SOCKET as u32]),
];
const IPV6_REDIRECTING_OPTIONS: &[u32] = &[
    5,  // IPV6_2292RTHDR
    6,  // IPV6_2292PKTOPTIONS
    32, // IPV6_FLOWLABEL_MGR
    libc::IPV6_PKTINFO as u32,
    libc::IPV6_RTHDR as u32,
    libc::IPV6_UNICAST_IF as u32,
];

/// The rules that follow from the plan's socket families.
pub struct SocketRules<'a> {
    any: bool,
    named: Vec<ArgumentRule<'a>>,
    pairs: &'static [ArgumentRule<'static>],
    filtered: bool,
}

impl<'a> SocketRules<'a> {
    /// `all_netlink`: allow every protocol, because a namespace holds the network.
    pub fn of(families: &'a [u32], all_netlink: bool, socket_access: SocketAccess) -> Self {
        let mut named = vec![ArgumentRule::at(
            0,
            ValueTest::Only { values: families, errno: libc::EAFNOSUPPORT },
        )];
        if socket_access.unix_by_path {
            named.push(CONNECTED_UNIX);
        }
        if socket_access.network.is_some() {
            named.extend([STREAM_INTERNET, TCP_INTERNET]);
        }
        if socket_access.network.is_some() || !all_netlink {
            named.push(ROUTE_NETLINK);
        }
        let unix = families.contains(&UNIX) && !socket_access.unix_by_path;
        Self {
            any: !families.is_empty(),
            named,
            pairs: if unix { &[UNIX_PAIRS] } else { &[UNIX_PAIRS, CONNECTED_PAIRS] },
            filtered: socket_access.network == Some(NetworkMode::Filtered),
        }
    }

    /// None: the call is not about sockets.
    pub fn answer(&self, name: &str) -> Option<CallAnswer<'_>> {
        match name {
            "socket" if !self.any => Some(CallAnswer::Errno(libc::EAFNOSUPPORT)),
            "socket" => Some(CallAnswer::Arguments(&self.named)),
            "socketpair" => Some(CallAnswer::Arguments(self.pairs)),
            "sendto" | "sendmmsg" if self.filtered => Some(CallAnswer::Arguments(SENDTO)),
            "sendmsg" if self.filtered => Some(CallAnswer::Arguments(SENDMSG)),
            "setsockopt" if self.filtered => Some(CallAnswer::Arguments(REDIRECTING_OPTIONS)),
            _ => None,
        }
    }
}
