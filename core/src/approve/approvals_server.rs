//! The approvals server of this person (`paddock approvals serve`): a companion that is there
//! already, and is asked by many runs.
//!
//! Its socket lies with the journal, the one place that no command can read. A command that may
//! make unix sockets could still connect to it by its name, in the landlock tier; so who asks there
//! has to know the key that lies beside it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

const MAX_KEY_BYTES: usize = 128;

/// The line to it, and the first message there. Err: there is none.
pub fn connect() -> Result<(OwnedFd, Vec<u8>), Errno> {
    let uid = rustix::process::getuid();
    let dir = PathBuf::from(format!("/var/tmp/paddock-audit-{}/approvals", uid.as_raw()));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(dir.join("socket"))?)?;
    // Somebody else may have been there first.
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
