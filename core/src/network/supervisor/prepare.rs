//! What the supervisor has of a network before anything runs: what the proxy asks for, the host's
//! ports that are published, and what speaks HTTP.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::Pid;

use super::host_questions::Asker;
use super::http_helper::{Http, HttpError};
use super::loopback_proxy::Door;
use super::proxy_password::Token;
use super::published_ports::{self, Within};
use super::relay_process::RelayProcess;
use super::socket_processes::Callers;
use crate::network::{NetworkError, namespace};
use crate::plan::{Mode, Network, Tier};

#[derive(Default)]
pub struct Outside {
    /// None: there is no proxy.
    token: Option<Token>,
    listeners: Vec<OwnedFd>,
    /// Where the command calls the proxy, if no namespace keeps it in.
    door: Option<Door>,
    http: Option<Http>,
}

impl Outside {
    /// `http`: what was started already, because it takes longest.
    pub fn prepare(
        network: Option<&Network>,
        tier: Tier,
        http: Option<Http>,
    ) -> Result<Outside, NetworkError> {
        let Some(network) = network else { return Ok(Outside::default()) };
        let filtered = network.mode == Mode::Filtered;
        let token = if filtered { Some(Token::new().map_err(NetworkError::Random)?) } else { None };
        let pinned = filtered && tier == Tier::Landlock;
        let door = if pinned { Some(Door::open().map_err(NetworkError::Door)?) } else { None };
        Ok(Outside { token, listeners: published_ports::listen(&network.published)?, door, http })
    }

    /// Waits until everybody is ready. Returns the certificates that programs inside are to trust,
    /// if they are to trust more than others.
    pub fn ready(&self) -> Result<Option<OwnedFd>, HttpError> {
        self.http.as_ref().map_or(Ok(None), Http::ready)
    }

    pub fn door(&self) -> Option<SocketAddr> {
        self.door.as_ref().map(Door::address)
    }

    /// Where programs find the proxy, and what it asks for.
    pub fn proxy(&self) -> Option<(SocketAddr, &Token)> {
        self.token.as_ref().map(|token| (self.door().unwrap_or(namespace::PROXY), token))
    }

    /// Of a command that no namespace keeps in.
    pub fn outlet_at_door(
        self,
        plan: &OwnedFd,
        top: Pid,
        asker: Asker,
    ) -> Result<Option<RelayProcess<'_>>, Errno> {
        let Some(door) = self.door else { return Ok(None) };
        RelayProcess::at_door(door, self.token, plan, Callers::of(top), asker).map(Some)
    }

    /// `sockets` are those of [`crate::network::namespace::enter`]; `user` is the namespace that
    /// its network belongs to.
    pub fn outlet<'a>(
        self,
        mut sockets: Vec<OwnedFd>,
        user: &OwnedFd,
        plan: &'a OwnedFd,
        init: Pid,
        asker: Asker,
    ) -> Result<Option<RelayProcess<'a>>, Errno> {
        if sockets.is_empty() {
            return Ok(None);
        }
        let mut within = None;
        if !self.listeners.is_empty() {
            let network = sockets.pop().ok_or(Errno::PROTO)?;
            within = Some(Within { user: rustix::io::fcntl_dupfd_cloexec(user, 3)?, network });
            sockets.extend(self.listeners);
        }
        RelayProcess::new(sockets, within, self.token, plan, Callers::of(init), asker, self.http)
            .map(Some)
    }
}
