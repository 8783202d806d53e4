//! Where the relay's connections are dialled from, and what came of it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::connection::Direction;
use super::dial;
use super::guarded_addresses::Guards;
use crate::network::rules::host_table::Table;
use crate::network::supervisor::published_ports::Within;

pub enum Dialled {
    Started,
    /// No address is left, and the last word of the table was this.
    Forbidden(&'static str),
    Unreachable,
}

/// Where connections are dialled from.
pub struct Origin<'a> {
    pub table: &'a Table,
    pub guards: &'a Guards<'a>,
    pub epoll: &'a OwnedFd,
    /// Where ports are published.
    pub within: Option<&'a Within>,
}

impl Origin<'_> {
    /// What is published is inside; all else is of the host's network.
    pub fn socket(&self, way: Direction, to: IpAddr) -> Result<OwnedFd, Errno> {
        match way {
            Direction::Inward(_) => self.within.ok_or(Errno::HOSTUNREACH)?.socket(dial::family(to)),
            Direction::Outward | Direction::Local => dial::host_socket(to),
        }
    }
}
