//! The command's network, in the full tier.
//!
//! ```text
//!  inside: a network namespace with nothing but lo     │  outside: the host's network
//!                                                      │
//!  CMD ─ connect(any address, any port) ─► lo ─ tproxy ─► listener ══╗
//!      └ DNS (any server, udp 53)       ─► lo ──────────► socket  ═══╬═► relay: rules, dialling
//!      └ 127.0.0.1, ::1                 ─► own servers, local ports ═╝     │ decisions
//!                                                      │              supervisor ─► journal
//! ```
//!
//! A socket belongs to the namespace it was created in. Init creates the sockets ([`namespace`])
//! and passes them to the supervisor. The supervisor keeps them until the first connection, and
//! then starts the relay ([`supervisor::relay_process`]), a separate process ([`run_relay`]). The
//! relay reads untrusted bytes, and has only these sockets, the plan and a socket to the
//! supervisor.
//!
//! The steps of the relay:
//!
//! ```text
//!  inside                      │ outside: the relay
//!                              │
//!  DNS question ──── udp 53 ───┼─▶ name ─▶ table ── denied ─▶ NXDOMAIN, no name server is asked
//!          ◀── 198.18.0.7 ─────┼── synthetic address ◀── allowed ┘
//!  connects to 198.18.0.7:443 ─┼─▶ synthetic address ─▶ table ── denied ─▶ reset, or a 403
//!                              │     └ allowed ─▶ resolve the name ─▶ table: address? ─▶ dial
//!  first bytes ────────────────┼─▶ hello, request: do they name the same host? ─▶ copy bytes
//! ```

mod error;
#[cfg(test)]
mod fuzz_bytes;
pub mod namespace;
pub mod parse;
pub mod relay;
pub mod rules;
pub mod supervised_connect;
pub mod supervisor;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::AccessFs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Resource, Rlimit};

pub use self::error::NetworkError;
use self::relay::RelaySockets;
use self::supervisor::proxy_password::ProxyToken;
pub use self::supervisor::published_ports::{CommandNetwork, PublishError};
use crate::kernel::sys;
use crate::plan::rights::{self, Rights};
use crate::plan::{Network, NetworkMode, Plan, Tier};

/// Files that the host resolves names with.
const RESOLVER_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// The descriptors of a relay.
pub struct RelayArguments {
    /// The command's network, if ports are published.
    pub command_network: Option<CommandNetwork>,
    /// The socket to the HTTP helper.
    pub handover: Option<OwnedFd>,
    pub sockets: Vec<OwnedFd>,
}

/// The verb `relay`. Its sockets are those of [`namespace::enter`], then those of published ports.
pub fn run_relay(
    plan: &Plan,
    socket: OwnedFd,
    arguments: RelayArguments,
) -> Result<i32, NetworkError> {
    let RelayArguments { command_network, handover, sockets: fds } = arguments;
    let Some(network) = &plan.network else {
        return Err(NetworkError::Usage("the plan has no network"));
    };
    let filtered = network.mode == NetworkMode::Filtered;
    let token = if filtered {
        Some(ProxyToken::receive(&socket).map_err(NetworkError::Relay)?)
    } else {
        None
    };
    // In the landlock tier the supervisor passes clients one by one.
    let made_in_namespace = filtered && plan.tier == Tier::Full;
    let mut sockets = sort_sockets(fds, network, made_in_namespace).map_err(NetworkError::Relay)?;
    if made_in_namespace && (sockets.dialled.is_empty() || sockets.names.is_empty()) {
        return Err(NetworkError::Usage("sockets are missing"));
    }
    confine().map_err(NetworkError::Relay)?;
    sockets.command_network = command_network;
    sockets.handover = handover;
    Ok(relay::run(network, sockets, token, socket))
}

/// Sorts the sockets by type and address. The last one that was created inside is the netlink
/// socket.
fn sort_sockets(
    fds: Vec<OwnedFd>,
    network: &Network,
    made_in_namespace: bool,
) -> Result<RelaySockets, Errno> {
    let mut sockets = RelaySockets::default();
    let mut in_namespace = made_in_namespace;
    for fd in fds {
        if sockopt::socket_domain(&fd)? == AddressFamily::NETLINK {
            sockets.diagnosis = Some(fd);
            in_namespace = false;
            continue;
        }
        let port = SocketAddr::try_from(rustix::net::getsockname(&fd)?)?.port();
        match sockopt::socket_type(&fd)? {
            _ if !in_namespace => {
                let shown = network.published.iter().find(|one| one.host == port);
                sockets.published.push((*shown.ok_or(Errno::PROTO)?, fd));
            }
            SocketType::DGRAM => sockets.names.push(fd),
            _ if network.local_ports.contains(&port) => sockets.local.push((port, fd)),
            _ => sockets.dialled.push(fd),
        }
    }
    Ok(sockets)
}

/// Confines the relay. An attacker in the relay has the host's network, but no file except those
/// for name resolution.
fn confine() -> Result<(), Errno> {
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    rustix::thread::set_no_new_privs(true)?;
    let abi = match sys::landlock_abi() {
        Ok(abi) => abi,
        // Then the command has no Landlock either, and the start reported that.
        Err(Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let (handled, scoped) = rights::supported_by(abi);
    let ruleset = sys::landlock_create_ruleset(handled.bits(), 0, scoped.bits())?;
    for path in readable_dirs() {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::ACCESS | Errno::NOTDIR) => continue,
            Err(errno) => return Err(errno),
        };
        let reading: Rights = AccessFs::ReadFile | AccessFs::ReadDir;
        let reading = if path.is_dir() { reading } else { rights::for_file(reading) };
        sys::landlock_add_rule(ruleset.as_fd(), reading.bits(), opened.as_fd())?;
    }
    sys::landlock_restrict_self(ruleset.as_fd())
}

/// Whole directories: such a file is replaced when the host's network changes, and a rule applies
/// to the old inode.
fn readable_dirs() -> Vec<PathBuf> {
    let mut dirs = vec![PathBuf::from("/etc")];
    for path in RESOLVER_FILES {
        let Ok(real) = std::fs::canonicalize(path) else { continue };
        match real.parent() {
            Some(parent) if parent != Path::new("/") => dirs.push(parent.to_owned()),
            _ => dirs.push(real),
        }
    }
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::WaitOptions;

    #[test]
    fn the_relay_reads_only_resolver_files() {
        if sys::landlock_abi().is_err() {
            return;
        }
        let opens = |path: &str, flags: OFlags| {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).is_ok()
        };
        let others = [
            ("/proc/self/status", OFlags::RDONLY),
            ("/usr", OFlags::RDONLY),
            ("/dev/null", OFlags::WRONLY),
        ];
        assert!(others.iter().all(|(path, flags)| opens(path, *flags)));
        let child = sys::fork(|| {
            let kept = confine().is_ok() && opens("/etc/passwd", OFlags::RDONLY);
            i32::from(!kept || others.iter().any(|(path, flags)| opens(path, *flags)))
        });
        let (_, status) =
            rustix::process::waitpid(Some(child.unwrap()), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.exit_status(), Some(0));
    }
}
