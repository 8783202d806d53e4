//! The approvals server of this user (`paddock approvals serve`): an approver that already runs and
//! answers questions of many runs.
//!
//! Its socket lies beside the journal, in a directory that no command can read. In the landlock
//! tier a command that may create unix sockets could still connect to it by name. So a client must
//! know the key beside the socket.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

const MAX_KEY_BYTES: usize = 128;

/// A socket to the server, and the first message to send. Err: there is no server.
pub fn connect() -> Result<(OwnedFd, Vec<u8>), Errno> {
    let uid = rustix::process::getuid();
    let dir = PathBuf::from(format!("/var/tmp/paddock-audit-{}/approvals", uid.as_raw()));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(dir.join("socket"))?)?;
    // Another user may have created the socket first.
    if sockopt::socket_peercred(&socket)?.uid != uid {
        return Err(Errno::PERM);
    }
    let file = rustix::fs::open(
        dir.join("key"),
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut key = [0; MAX_KEY_BYTES];
    let length = rustix::io::read(&file, &mut key)?;
    let key = &key[..length];
    if key.is_empty() || !key.iter().all(u8::is_ascii_hexdigit) {
        return Err(Errno::INVAL);
    }
    Ok((socket, [b"{\"key\":\"", key, b"\"}"].concat()))
}
