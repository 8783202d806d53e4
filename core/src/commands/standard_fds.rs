//! The standard descriptors that this process was started with, which the command gets.

use std::os::fd::{BorrowedFd, IntoRawFd as _};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::error::Refusal;
use crate::plan::{Plan, Tier};

/// Whoever starts us without a standard descriptor gets /dev/null there: otherwise the next file
/// opened would be it. A directory is refused: openat(2) relative to one needs no path from the
/// root, and Landlock judges only what is opened later.
pub fn check_descriptors() -> Result<(), Refusal> {
    for (fd, name) in descriptors() {
        match rustix::fs::fstat(fd) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(Refusal::DirectoryOnStandard(name));
            }
            Ok(_) => {}
            // The lowest free number is this one: those below are open.
            Err(_) => {
                let null = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty());
                let _stays_open =
                    null.map_err(|errno| Refusal::NoStandard(name, errno))?.into_raw_fd();
            }
        }
    }
    Ok(())
}

/// A socket that was made outside leads where it was made, and can be turned to somebody else: one
/// of a network that the command is to be kept from, or a unix socket that is not connected for
/// good. Pairs of connected ones, as many a parent has them, are pipes.
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
