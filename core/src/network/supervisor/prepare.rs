//! The network of a run before the command starts: the proxy password, the published ports and the
//! HTTP helper.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::Pid;

use super::host_questions::HostQuestions;
use super::http_helper::{HttpHelper, HttpHelperError};
use super::loopback_proxy::LoopbackProxy;
use super::proxy_password::ProxyToken;
use super::published_ports::{self, CommandNetwork};
use super::relay_process::RelayProcess;
use super::socket_processes::SocketProcesses;
use crate::network::{NetworkError, namespace};
use crate::plan::{Network, NetworkMode, Tier};

#[derive(Default)]
pub struct NetworkSetup {
    /// None: there is no proxy.
    token: Option<ProxyToken>,
    listeners: Vec<OwnedFd>,
    /// The proxy listener, if no namespace confines the command.
    loopback_proxy: Option<LoopbackProxy>,
    http: Option<HttpHelper>,
}

impl NetworkSetup {
    /// `http`: started earlier, because it takes longest.
    pub fn prepare(
        network: Option<&Network>,
        tier: Tier,
        http: Option<HttpHelper>,
    ) -> Result<NetworkSetup, NetworkError> {
        let Some(network) = network else { return Ok(NetworkSetup::default()) };
        let filtered = network.mode == NetworkMode::Filtered;
        let token =
            if filtered { Some(ProxyToken::new().map_err(NetworkError::Random)?) } else { None };
        let unconfined = filtered && tier == Tier::Landlock;
        let loopback_proxy = if unconfined {
            Some(LoopbackProxy::open().map_err(NetworkError::LoopbackProxy)?)
        } else {
            None
        };
        Ok(NetworkSetup {
            token,
            listeners: published_ports::listen(&network.published)?,
            loopback_proxy,
            http,
        })
    }

    /// Waits until the HTTP helper is ready. Returns the certificates that programs inside should
    /// trust, if any.
    pub fn ready(&self) -> Result<Option<OwnedFd>, HttpHelperError> {
        self.http.as_ref().map_or(Ok(None), HttpHelper::ready)
    }

    pub fn loopback_proxy_address(&self) -> Option<SocketAddr> {
        self.loopback_proxy.as_ref().map(LoopbackProxy::address)
    }

    /// The address and the password of the proxy.
    pub fn proxy(&self) -> Option<(SocketAddr, &ProxyToken)> {
        self.token
            .as_ref()
            .map(|token| (self.loopback_proxy_address().unwrap_or(namespace::PROXY), token))
    }

    /// The relay of a command without a network namespace.
    pub fn relay_at_loopback_proxy(
        self,
        plan: &OwnedFd,
        command: Pid,
        questions: HostQuestions,
    ) -> Result<Option<RelayProcess<'_>>, Errno> {
        let Some(loopback_proxy) = self.loopback_proxy else { return Ok(None) };
        RelayProcess::at_loopback_proxy(
            loopback_proxy,
            self.token,
            plan,
            SocketProcesses::of(command),
            questions,
        )
        .map(Some)
    }

    /// `sockets` come from [`crate::network::namespace::enter`]. `user` is the user namespace that
    /// owns the network namespace.
    pub fn relay_in_namespace<'a>(
        self,
        mut sockets: Vec<OwnedFd>,
        user: &OwnedFd,
        plan: &'a OwnedFd,
        init: Pid,
        questions: HostQuestions,
    ) -> Result<Option<RelayProcess<'a>>, Errno> {
        if sockets.is_empty() {
            return Ok(None);
        }
        let mut command_network = None;
        if !self.listeners.is_empty() {
            let network = sockets.pop().ok_or(Errno::PROTO)?;
            command_network =
                Some(CommandNetwork { user: rustix::io::fcntl_dupfd_cloexec(user, 3)?, network });
            sockets.extend(self.listeners);
        }
        RelayProcess::new(
            sockets,
            command_network,
            self.token,
            plan,
            SocketProcesses::of(init),
            questions,
            self.http,
        )
        .map(Some)
    }
}
