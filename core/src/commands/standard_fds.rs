//! The standard descriptors of this process, which the command gets.

use std::os::fd::{BorrowedFd, IntoRawFd as _};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::error::Refusal;
use crate::plan::{Plan, Tier};

/// Opens /dev/null for a missing standard descriptor: otherwise the next opened file would get its
/// number. A directory is refused: openat(2) relative to it needs no path from the root, and
/// Landlock judges only later opens.
pub fn check_descriptors() -> Result<(), Refusal> {
    for (fd, name) in descriptors() {
        match rustix::fs::fstat(fd) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(Refusal::DirectoryOnStandard(name));
            }
            Ok(_) => {}
            // This is the lowest free number: all below are open.
            Err(_) => {
                let null = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty());
                let _stays_open =
                    null.map_err(|errno| Refusal::NoStandard(name, errno))?.into_raw_fd();
            }
        }
    }
    Ok(())
}

/// Refuses sockets that lead out of the sandbox: one of a network that the plan closes, or a unix
/// socket that can be connected again. Connected pairs are as harmless as pipes, and many parents
/// use them.
pub fn check_sockets(plan: &Plan) -> Result<(), Refusal> {
    let keeps_unix_in = plan.tier == Tier::Full || plan.seccomp.is_some();
    for (fd, name) in descriptors() {
        let Ok(family) = sockopt::socket_domain(fd) else { continue };
        let connected =
            matches!(sockopt::socket_type(fd), Ok(SocketType::STREAM | SocketType::SEQPACKET))
                && rustix::net::getpeername(fd).is_ok();
        let turns = match family {
            AddressFamily::UNIX => keeps_unix_in && !connected,
            _ => plan.network.is_some(),
        };
        if turns {
            return Err(Refusal::SocketOnStandard(name));
        }
    }
    Ok(())
}

fn descriptors() -> [(BorrowedFd<'static>, &'static str); 3] {
    [
        (rustix::stdio::stdin(), "stdin"),
        (rustix::stdio::stdout(), "stdout"),
        (rustix::stdio::stderr(), "stderr"),
    ]
}
