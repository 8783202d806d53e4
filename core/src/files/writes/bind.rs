//! bind(2): the address of a unix socket can be the name of a new file.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use super::call::PathArgument;
use super::resolve::{Caller, Place, is_proc, split};
use super::{Done, Failure, Writer, place};
use crate::kernel::sys;

impl Writer {
    pub(super) fn bind(
        &mut self,
        caller: Caller,
        socket: i32,
        address: &[u8],
        still_waits: impl Fn() -> Result<(), Errno>,
    ) -> Result<Done, Failure> {
        let socket = sys::duplicate_descriptor(caller.thread, socket)?;
        let family = sockopt::socket_domain(&socket)?;
        if let Some(path) = path_in(family, address) {
            let at = PathArgument { dir: libc::AT_FDCWD, path: path.to_vec() };
            let place = place(caller.parent(&at)?)?;
            if is_proc(place.dir.as_fd())? {
                // Nothing can be made there.
                let name = place.c_name()?;
                rustix::fs::statat(&place.dir, &*name, AtFlags::SYMLINK_NOFOLLOW)?;
                return Err(Errno::ADDRINUSE.into());
            }
            let working = caller.descriptor(libc::AT_FDCWD)?;
            still_waits()?;
            self.check(&place, FileType::Socket)?;
            self.set_umask(caller)?;
            let bound = self.in_layer(|| bind_in(&working, &place, &socket, path, address));
            rustix::process::chdir(c"/")?;
            bound?;
            return Ok(Done::Nothing);
        }
        still_waits()?;
        self.in_layer(|| sys::bind_to(socket.as_fd(), address))?;
        Ok(Done::Nothing)
    }
}

type DeviceAndInode = (u64, u64);

fn identity(dir: &OwnedFd) -> Result<DeviceAndInode, Errno> {
    rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino))
}

/// Does this process find the directory of the last name where the caller does?
fn leads_to(path: &[u8], expected: DeviceAndInode) -> bool {
    let Ok((above, ..)) = split(path) else { return false };
    let above = if above.is_empty() { b"." } else { above };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(rustix::fs::CWD, above, flags, Mode::empty(), resolve);
    found.and_then(|dir| identity(&dir)).is_ok_and(|identity| identity == expected)
}

/// The socket keeps the text of its address, so the address stays as it is. No process inside can
/// change a name meanwhile: all such calls wait for this process, and other runs wait for the lock.
/// But descriptors change, so behind a link of /proc only the last name is used.
fn bind_in(
    working: &OwnedFd,
    place: &Place,
    socket: &OwnedFd,
    path: &[u8],
    address: &[u8],
) -> Result<(), Errno> {
    rustix::process::fchdir(working)?;
    if leads_to(path, identity(&place.dir)?) {
        return sys::bind_to(socket.as_fd(), address);
    }
    rustix::process::fchdir(&place.dir)?;
    let family = (libc::AF_UNIX as u16).to_ne_bytes();
    sys::bind_to(socket.as_fd(), &[&family[..], place.c_name()?.to_bytes_with_nul()].concat())
}

/// The path in the address of a unix socket. None: another family, no name, or an abstract name.
fn path_in(family: AddressFamily, address: &[u8]) -> Option<&[u8]> {
    let path = address.strip_prefix(&(libc::AF_UNIX as u16).to_ne_bytes())?;
    let path = path.split(|byte| *byte == 0).next().filter(|path| !path.is_empty())?;
    // The kernel refuses a longer address before it looks at the path.
    let is_valid = address.len() <= size_of::<libc::sockaddr_un>();
    (family == AddressFamily::UNIX && is_valid).then_some(path)
}
