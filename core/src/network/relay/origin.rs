//! Where the relay's connections are dialled from, and what came of it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::connection::Direction;
use super::dial;
use super::guarded_addresses::UpstreamGuards;
use crate::network::rules::host_table::HostTable;
use crate::network::supervisor::published_ports::CommandNetwork;

pub enum DialResult {
    Started,
    /// No address is left, and the last word of the table was this.
    Forbidden(&'static str),
    Unreachable,
}

/// Where connections are dialled from.
pub struct Origin<'a> {
    pub table: &'a HostTable,
    pub guards: &'a UpstreamGuards<'a>,
    pub epoll: &'a OwnedFd,
    /// Where ports are published.
    pub command_network: Option<&'a CommandNetwork>,
}

impl Origin<'_> {
    /// What is published is inside; all else is of the host's network.
    pub fn socket(&self, direction: Direction, to: IpAddr) -> Result<OwnedFd, Errno> {
        match direction {
            Direction::Inward(_) => {
                self.command_network.ok_or(Errno::HOSTUNREACH)?.socket(dial::family(to))
            }
            Direction::Outward | Direction::Local => dial::host_socket(to),
        }
    }
}
