//! Where the relay's connections are dialled from, and what came of it.

use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::connection::Way;
use super::dial;
use super::guards::Guards;
use super::published::Within;
use super::table::Table;

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
    pub fn socket(&self, way: Way, to: IpAddr) -> Result<OwnedFd, Errno> {
        match way {
            Way::Inward(_) => self.within.ok_or(Errno::HOSTUNREACH)?.socket(dial::family(to)),
            Way::Outward | Way::Local => dial::host_socket(to),
        }
    }
}
