//! What sockets may be made, and what may be asked of them.
//!
//! In the landlock tier no namespace keeps a fenced network in: the supervisor connects every
//! socket (network/supervised_connect.rs), and what remains here is to leave no socket that reaches
//! somebody without connect(2), and no option that leads a connection astray.

use super::bpf::{Action, Look, Test};
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

/// Only unix sockets come in pairs. socketpair(2) makes both sockets before it finds that out: of
/// any other family it would load the module and run the code that socket(2) is kept from.
const UNIX_PAIRS: Look<'_> = Look::at(0, Test::Only { values: &[UNIX], errno: libc::EAFNOSUPPORT });

/// An end of a datagram pair (types 2 and 3 of socketpair(2)) can be turned to any socket file,
/// without socket(2). Stream and sequenced pairs (1 and 5) are connected for good.
const CONNECTED_PAIRS: Look<'_> = Look::at(1, Test::RefuseBits { bits: 0b10, errno: libc::EPERM });

/// Each datagram has an address of its own, which nobody could look at.
const CONNECTED_UNIX: Look<'_> =
    Look::at(1, Test::Only { values: CONNECTED, errno: libc::EPROTONOSUPPORT }).when(0, &[UNIX]);

/// No datagrams, and nothing raw. TCP alone: MPTCP, SCTP and their like have calls of their own to
/// reach somebody, and Landlock does not judge them. Who is told that there is no such protocol
/// takes TCP.
const STREAM_INTERNET: Look<'_> =
    Look::at(1, Test::Only { values: STREAMS, errno: libc::EACCES }).when(0, INTERNET);
const TCP_INTERNET: Look<'_> = Look::at(
    2,
    Test::Only { values: &[0, libc::IPPROTO_TCP as u32], errno: libc::EPROTONOSUPPORT },
)
.when(0, INTERNET);

/// What libc lists interfaces with. Other protocols lead to kernel code that few programs need
/// (netfilter, audit, generic families).
const ROUTE_NETLINK: Look<'_> =
    Look::at(2, Test::Only { values: &[libc::NETLINK_ROUTE as u32], errno: libc::EPROTONOSUPPORT })
        .when(0, &[NETLINK]);

/// TCP Fast Open connects by sending.
const FAST_OPEN: Test<'_> =
    Test::RefuseBits { bits: libc::MSG_FASTOPEN as u32, errno: libc::EOPNOTSUPP };
const SENDTO: &[Look<'_>] = &[Look::at(3, FAST_OPEN)]; // sendmmsg too
const SENDMSG: &[Look<'_>] = &[Look::at(2, FAST_OPEN)];

/// Options by which packets to one address go to another first (source routes), or by another
/// device; and Fast Open.
const STRAYING: &[Look<'_>] = &[
    Look::at(
        2,
        Test::Refuse { values: &[libc::TCP_FASTOPEN_CONNECT as u32], errno: libc::ENOPROTOOPT },
    )
    .when(1, &[libc::IPPROTO_TCP as u32]),
    Look::at(
        2,
        Test::Refuse {
            values: &[libc::IP_OPTIONS as u32, libc::IP_UNICAST_IF as u32],
            errno: libc::EPERM,
        },
    )
    .when(1, &[libc::IPPROTO_IP as u32]),
    Look::at(2, Test::Refuse { values: IPV6_STRAYING, errno: libc::EPERM })
        .when(1, &[libc::IPPROTO_IPV6 as u32]),
    Look::at(
        2,
        Test::Refuse {
            values: &[libc::SO_BINDTODEVICE as u32, libc::SO_BINDTOIFINDEX as u32],
            errno: libc::EPERM,
        },
    )
    .when(1, &[libc::SOL_SOCKET as u32]),
];
const IPV6_STRAYING: &[u32] = &[
    5,  // IPV6_2292RTHDR
    6,  // IPV6_2292PKTOPTIONS
    32, // IPV6_FLOWLABEL_MGR
    libc::IPV6_PKTINFO as u32,
    libc::IPV6_RTHDR as u32,
    libc::IPV6_UNICAST_IF as u32,
];

/// What the plan's socket families come to.
pub struct Sockets<'a> {
    any: bool,
    named: Vec<Look<'a>>,
    pairs: &'static [Look<'static>],
    fenced: bool,
}

impl<'a> Sockets<'a> {
    /// `all_netlink`: of every protocol, where a namespace keeps the network.
    pub fn of(families: &'a [u32], all_netlink: bool, reach: SocketAccess) -> Self {
        let mut named =
            vec![Look::at(0, Test::Only { values: families, errno: libc::EAFNOSUPPORT })];
        if reach.unix_by_path {
            named.push(CONNECTED_UNIX);
        }
        if reach.network.is_some() {
            named.extend([STREAM_INTERNET, TCP_INTERNET]);
        }
        if reach.network.is_some() || !all_netlink {
            named.push(ROUTE_NETLINK);
        }
        let unix = families.contains(&UNIX) && !reach.unix_by_path;
        Self {
            any: !families.is_empty(),
            named,
            pairs: if unix { &[UNIX_PAIRS] } else { &[UNIX_PAIRS, CONNECTED_PAIRS] },
            fenced: reach.network == Some(NetworkMode::Filtered),
        }
    }

    /// None: it has nothing to do with sockets.
    pub fn answer(&self, name: &str) -> Option<Action<'_>> {
        match name {
            "socket" if !self.any => Some(Action::Errno(libc::EAFNOSUPPORT)),
            "socket" => Some(Action::Arguments(&self.named)),
            "socketpair" => Some(Action::Arguments(self.pairs)),
            "sendto" | "sendmmsg" if self.fenced => Some(Action::Arguments(SENDTO)),
            "sendmsg" if self.fenced => Some(Action::Arguments(SENDMSG)),
            "setsockopt" if self.fenced => Some(Action::Arguments(STRAYING)),
            _ => None,
        }
    }
}
