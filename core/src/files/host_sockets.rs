//! Unix sockets of this machine that accept connections, by their bound names (sock_diag(7)). A
//! search of the trees would cost every start; one query to the kernel finds them all.
//!
//! The kernel also tells the file of each socket. By that the guard finds the sockets of a network
//! namespace.
//!
//! A name that was not an absolute path at bind(2), or was renamed since, does not tell where the
//! socket is.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::cover::{Cover, CoverKind};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::{AbsPath, Text};

/// SOCK_DIAG_BY_FAMILY of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bits of the minor number in the kernel's own device numbers (MKDEV).
const MINOR_BITS: u32 = 20;
/// struct nlmsghdr, and struct unix_diag_msg behind it.
const NLMSGHDR_BYTES: usize = 16;
const UNIX_DIAG_MSG_END: usize = NLMSGHDR_BYTES + 16;
/// The offset of a socket's inode number.
const SOCKET_INODE_OFFSET: usize = NLMSGHDR_BYTES + 4;
/// UDIAG_SHOW_NAME and UDIAG_SHOW_VFS, UNIX_DIAG_NAME and UNIX_DIAG_VFS of linux/unix_diag.h.
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_VFS: u32 = 2;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_VFS: u16 = 1;
/// States of net/tcp_states.h: listening sockets, and sockets without a peer, such as datagram
/// sockets, to which every process can send. A datagram socket counts as connected once another one
/// was connected to it. Each connection of a listening socket counts as connected too, and has its
/// name.
const STATE_LISTEN: u32 = 1 << 10;
const STATE_CLOSE: u32 = 1 << 7;
const STATE_ESTABLISHED: u32 = 1 << 1;

/// Masks for the sockets whose path is `shown`.
pub fn covers(shown: impl Fn(&AbsPath) -> bool) -> Result<Vec<Cover>, Errno> {
    let mut found = Vec::new();
    let mut directories = BTreeMap::new();
    for name in names()? {
        // An abstract name begins with NUL.
        let Some(slash) =
            name.iter().rposition(|byte| *byte == b'/').filter(|_| name.starts_with(b"/"))
        else {
            continue;
        };
        let (above, own) = (&name[..slash.max(1)], &name[slash + 1..]);
        let real = directories.entry(above.to_vec()).or_insert_with(|| real(above));
        let real = match real {
            Ok(real) => real.as_deref(),
            // An error of a file system matters only where the command sees it.
            Err(error) if below(above, own).is_some_and(|path| shown(&path)) => return Err(*error),
            Err(_) => None,
        };
        let Some(path) = real.and_then(|real| below(real, own)).filter(&shown) else { continue };
        let stat = match rustix::fs::lstat(path.as_c_str()) {
            Ok(stat) => stat,
            Err(error) if is_unreachable(error) => continue,
            Err(error) => return Err(error),
        };
        let is_new = found.iter().all(|cover: &Cover| cover.path != path);
        if is_new && FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            found.push(Cover {
                path,
                identity: Identity::from(&stat),
                directory: false,
                kind: CoverKind::Mask,
            });
        }
    }
    Ok(found)
}

/// The resolved path of a directory. None: it does not exist, or can not be reached.
fn real(directory: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(error) if is_unreachable(error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut buffer = [0; 32];
    rustix::fs::readlink(open_beneath::proc_fd_path(&opened, &mut buffer), Vec::new())
        .map(|path| Some(path.into_bytes()))
}

/// Errors of a path that leads nowhere. A directory that can not be searched is closed for the
/// command too, and one whose rights the command could change is closed as a whole.
fn is_unreachable(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
}

fn below(directory: &[u8], name: &[u8]) -> Option<AbsPath> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    Text::from_bytes([directory, b"/", name].concat()).and_then(AbsPath::new).ok()
}

/// A removed socket may still have the name of the next one.
fn names() -> Result<BTreeSet<Vec<u8>>, Errno> {
    let mut names = BTreeSet::new();
    let mut note = |message: &[u8]| {
        if is_callable(message) {
            names.extend(
                attribute(message, UNIX_DIAG_NAME)
                    .map(|name| name.strip_suffix(b"\0").unwrap_or(name).to_vec()),
            );
        }
    };
    dump(STATE_LISTEN | STATE_CLOSE | STATE_ESTABLISHED, UDIAG_SHOW_NAME, &mut note)?;
    Ok(names)
}

/// The file of a socket (struct unix_diag_vfs): the lower half of its inode number, and the device
/// of its file system, which may differ from stat(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketFile {
    inode: u32,
    device: u32,
}

impl SocketFile {
    /// None: its location is not known.
    pub fn of(file: BorrowedFd<'_>, mounts: &[u8]) -> Option<SocketFile> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).ok()?;
        let mount = found.stx_mnt_id.to_string();
        let mut lines =
            mounts.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
        let device = lines
            .find_map(|mut words| (words.next()? == mount.as_bytes()).then(|| words.nth(1))?)?;
        let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        Some(SocketFile { inode: found.stx_ino as u32, device: major << MINOR_BITS | minor })
    }
}

/// /proc/self/mountinfo.
pub fn mounts() -> Result<Vec<u8>, Errno> {
    std::fs::read("/proc/self/mountinfo")
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The files of all sockets of the current network namespace, each with the socket's own inode
/// number.
pub fn bound() -> Result<Vec<(SocketFile, u32)>, Errno> {
    let mut files = Vec::new();
    let mut note = |message: &[u8]| {
        let numbers = |bytes: &[u8]| Some((number(bytes)?, number(bytes.get(4..)?)?));
        let file = attribute(message, UNIX_DIAG_VFS).and_then(numbers);
        let socket = message.get(SOCKET_INODE_OFFSET..).and_then(number);
        files.extend(
            file.zip(socket)
                .map(|((inode, device), socket)| (SocketFile { inode, device }, socket)),
        );
    };
    dump(u32::MAX, UDIAG_SHOW_VFS, &mut note)?;
    Ok(files)
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Does no process answer there? A listening process does not notice: connecting a datagram socket
/// sends nothing, and a socket of another type gets a type error. Missing permission counts as an
/// answer, because it may be given later.
pub fn is_silent(file: BorrowedFd<'_>) -> bool {
    let mut buffer = [0; 32];
    let called =
        SocketAddrUnix::new(open_beneath::proc_fd_path(file, &mut buffer)).and_then(|address| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            rustix::net::connect(&socket, &address)
        });
    called == Err(Errno::CONNREFUSED)
}

/// Calls `each` for each socket in one of the states.
fn dump(states: u32, show: u32, each: &mut dyn FnMut(&[u8])) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        Some(netlink::SOCK_DIAG),
    )?;
    rustix::net::sendto(
        &socket,
        &request(states, show),
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    let mut answer = vec![0; 16 * 1024];
    loop {
        // Each part is ready when the one before was read.
        let (length, whole) =
            rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
        if whole > length {
            return Err(Errno::MSGSIZE);
        }
        if read(&answer[..length], each)? {
            return Ok(());
        }
    }
}

/// struct unix_diag_req, after its header.
fn request(states: u32, show: u32) -> Vec<u8> {
    let mut bytes = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for number in [states, 0, show, u32::MAX, u32::MAX] {
        bytes.extend(number.to_ne_bytes());
    }
    let mut message = ((NLMSGHDR_BYTES + bytes.len()) as u32).to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(bytes);
    message
}

/// True: this was the last part.
fn read(mut answer: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<bool, Errno> {
    while let Some((length, kind)) = head(answer) {
        let (message, rest) = answer.split_at(length.max(NLMSGHDR_BYTES).min(answer.len()));
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error = message
                    .get(NLMSGHDR_BYTES..)
                    .and_then(<[u8]>::first_chunk)
                    .map_or(0, |error| i32::from_ne_bytes(*error));
                return Err(Errno::from_raw_os_error(error.wrapping_neg()));
            }
            _ => each(message),
        }
        answer = rest.get(length.next_multiple_of(4) - length..).unwrap_or_default();
    }
    Ok(false)
}

/// struct unix_diag_msg: family, type, state.
fn is_callable(message: &[u8]) -> bool {
    let Some([_, kind, state, ..]) = message.get(NLMSGHDR_BYTES..) else { return false };
    i32::from(*kind) == libc::SOCK_DGRAM
        || 1_u32.checked_shl((*state).into()) != Some(STATE_ESTABLISHED)
}

/// struct nlmsghdr: length and type.
fn head(message: &[u8]) -> Option<(usize, u16)> {
    let length = u32::from_ne_bytes(*message.first_chunk()?);
    let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
    Some((length as usize, kind))
}

/// One attribute of a socket.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut attributes = message.get(UNIX_DIAG_MSG_END..)?;
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind == wanted {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::test_tree::TestTree;
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    fn found(directory: &std::path::Path) -> Vec<String> {
        let within =
            |path: &AbsPath| path.as_bytes().starts_with(directory.as_os_str().as_encoded_bytes());
        let mut found: Vec<_> =
            covers(within).unwrap().iter().map(|cover| cover.path.to_string()).collect();
        found.sort();
        found
    }

    #[test]
    fn listening_sockets_are_found_at_their_resolved_path() {
        let scene = TestTree::new();
        let real = scene.dir("real");
        scene.link("link", &real);
        let listener = UnixListener::bind(scene.path("link/stream")).unwrap();
        let _datagram = UnixDatagram::bind(real.join("line\nbreak")).unwrap();
        UnixDatagram::unbound().unwrap().connect(real.join("line\nbreak")).unwrap();
        let _peer = UnixStream::connect(real.join("stream")).unwrap();
        std::fs::remove_file(real.join("stream")).unwrap();
        let again = UnixListener::bind(scene.path("link/stream")).unwrap();
        let _gone = UnixListener::bind(real.join("gone")).unwrap();
        std::fs::remove_file(real.join("gone")).unwrap();
        std::fs::write(real.join("gone"), b"").unwrap();
        let path = |name: &str| real.join(name).display().to_string();
        assert_eq!(found(&real), [path("line\nbreak"), path("stream")]);
        let accepted = listener.accept().unwrap();
        drop((listener, again));
        assert_eq!(found(&real), [path("line\nbreak")]);
        drop(accepted);
    }

    #[test]
    fn a_listener_does_not_notice_the_check() {
        let scene = TestTree::new();
        let silent = |name: &str| {
            let file =
                rustix::fs::open(scene.path(name), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                    .unwrap();
            is_silent(file.as_fd())
        };
        let stream = UnixListener::bind(scene.path("stream")).unwrap();
        stream.set_nonblocking(true).unwrap();
        let datagram = UnixDatagram::bind(scene.path("datagram")).unwrap();
        datagram.set_nonblocking(true).unwrap();
        assert!(!silent("stream") && !silent("datagram"));
        assert_eq!(stream.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(datagram.recv(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop((stream, datagram));
        assert!(silent("stream") && silent("datagram"));
    }

    #[test]
    fn a_socket_is_known_by_its_file() {
        let scene = TestTree::new();
        let listener = UnixListener::bind(scene.path("first")).unwrap();
        std::fs::rename(scene.path("first"), scene.path("second")).unwrap();
        let file =
            rustix::fs::open(scene.path("second"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .unwrap();
        let known = SocketFile::of(file.as_fd(), &mounts().unwrap()).unwrap();
        let own = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd()))
            .unwrap()
            .ino() as u32;
        assert!(bound().unwrap().contains(&(known, own)));
        drop(listener);
        assert!(bound().unwrap().iter().all(|(other, _)| *other != known));
    }

    #[test]
    fn an_answer_in_several_parts_is_read_completely() {
        let scene = TestTree::new();
        let bind = |number: u32| UnixListener::bind(scene.path(number.to_string())).unwrap();
        let listeners: Vec<_> = (0..400).map(bind).collect();
        assert_eq!(found(&scene.0).len(), listeners.len());
    }

    #[test]
    fn an_invalid_answer_has_no_name() {
        for noise in [&[][..], &[0; 3], &[0; 16], &[0xff; 200], &[16, 0, 0, 0, 20, 0, 0, 0]] {
            let mut attributes = Vec::new();
            let result = read(noise, &mut |message| {
                attributes.extend(attribute(message, UNIX_DIAG_NAME).map(<[u8]>::to_vec))
            });
            assert_eq!((result, attributes), (Ok(false), Vec::new()));
        }
        let mut refused = 20_u32.to_ne_bytes().to_vec();
        refused.extend([libc::NLMSG_ERROR as u8, 0]);
        refused.extend([0; 10]);
        refused.extend((-libc::ENOENT).to_ne_bytes());
        assert_eq!(read(&refused, &mut |_| ()), Err(Errno::NOENT));
    }
}
