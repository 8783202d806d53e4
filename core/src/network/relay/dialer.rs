//! The network that a connection is dialled from, and the result of dialling.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::connection::Direction;
use super::dial_addresses;
use super::guarded_addresses::UpstreamGuards;
use crate::network::rules::host_table::HostTable;
use crate::network::supervisor::published_ports::CommandNetwork;

pub enum DialResult {
    Started,
    /// No address is left; this is the last reason of the host table.
    Forbidden(&'static str),
    Unreachable,
}

/// What dialling needs.
pub struct Dialer<'a> {
    pub table: &'a HostTable,
    pub guards: &'a UpstreamGuards<'a>,
    pub epoll: &'a OwnedFd,
    /// The command's network, for published ports.
    pub command_network: Option<&'a CommandNetwork>,
}

impl Dialer<'_> {
    /// A published port is dialled in the command's network, everything else in the host's.
    pub fn socket(&self, direction: Direction, to: IpAddr) -> Result<OwnedFd, Errno> {
        match direction {
            Direction::Inward(_) => {
                self.command_network.ok_or(Errno::HOSTUNREACH)?.socket(dial_addresses::family(to))
            }
            Direction::Outward | Direction::Local => dial_addresses::host_socket(to),
        }
    }
}
