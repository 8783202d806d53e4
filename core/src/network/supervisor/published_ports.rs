//! Ports inside that are published on the host's loopback only. The relay connects clients to a
//! port of the command's loopback, with a socket that was created in the command's network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustix::process::WaitOptions;
use rustix::thread::LinkNameSpaceType;

use crate::kernel::errno_names::errno_text;
use crate::kernel::sys;
use crate::plan::PublishedPort;

const LISTEN_BACKLOG: i32 = 1024;

#[derive(Debug, thiserror::Error)]
#[error("cannot publish port {inside} of the sandbox on port {port} of this machine's loopback: {}", errno_text(*.errno))]
pub struct PublishError {
    port: u16,
    inside: u16,
    errno: Errno,
}

impl PublishError {
    pub fn hint(&self) -> &'static str {
        match self.errno {
            Errno::ADDRINUSE => {
                "another program uses this port: choose a free port with --publish FREE:INSIDE"
            }
            Errno::ACCESS => {
                "ports below 1024 need root: choose a higher port with --publish HIGHER:INSIDE"
            }
            _ => "choose a free port with --publish HOST:INSIDE",
        }
    }
}

/// Opens the listeners on the host. The run is refused if a port is taken on either address.
pub fn listen(published: &[PublishedPort]) -> Result<Vec<OwnedFd>, PublishError> {
    let mut listeners = Vec::with_capacity(2 * published.len());
    for PublishedPort { inside, host } in published.iter().copied() {
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            match listener(SocketAddr::new(address, host)) {
                Ok(listener) => listeners.push(listener),
                // This machine has no IPv6.
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if address.is_ipv6() => {}
                Err(errno) => return Err(PublishError { port: host, inside, errno }),
            }
        }
    }
    Ok(listeners)
}

fn listener(at: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // Ignores closing connections of an earlier run, but not another listener.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

/// The command's network namespace and its user namespace.
pub struct CommandNetwork {
    pub user: OwnedFd,
    pub network: OwnedFd,
}

impl CommandNetwork {
    /// Creates a socket in the command's network. A short-lived process that shares descriptors
    /// enters the namespace.
    pub fn socket(&self, family: AddressFamily) -> Result<OwnedFd, Errno> {
        let mut made = Err(Errno::CANCELED);
        let child = sys::spawn_into(libc::CLONE_FILES, || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            made = self
                .enter()
                .and_then(|()| rustix::net::socket_with(family, SocketType::STREAM, flags, None));
            0
        })?;
        rustix::process::waitpid(Some(child), WaitOptions::empty())?;
        made
    }

    /// Entering the network namespace is allowed after entering the user namespace that owns it.
    fn enter(&self) -> Result<(), Errno> {
        rustix::thread::move_into_link_name_space(
            self.user.as_fd(),
            Some(LinkNameSpaceType::User),
        )?;
        rustix::thread::move_into_link_name_space(
            self.network.as_fd(),
            Some(LinkNameSpaceType::Network),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_port_taken_on_either_address_is_refused() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(taken) = TcpListener::bind(address) else { continue };
            let host = taken.local_addr().unwrap().port();
            let refused = listen(&[PublishedPort { inside: 80, host }]).unwrap_err();
            assert_eq!(refused.errno, Errno::ADDRINUSE, "{refused}");
            assert!(
                refused.to_string().contains(&host.to_string()) && refused.hint().contains("free")
            );
        }
    }

    #[test]
    fn a_free_port_is_published_on_loopback_only() {
        // Below the ephemeral range, so no client uses them. Other programs may use some of them.
        let mut candidates = 20_000..20_100;
        let (host, listeners) = candidates
            .find_map(|host| Some((host, listen(&[PublishedPort { inside: 80, host }]).ok()?)))
            .unwrap();
        assert!(!listeners.is_empty());
        for listener in &listeners {
            let at = SocketAddr::try_from(rustix::net::getsockname(listener).unwrap()).unwrap();
            assert!(at.ip().is_loopback() && at.port() == host, "{at}");
        }
    }
}
