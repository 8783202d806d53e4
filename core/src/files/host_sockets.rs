//! Unix sockets of this machine that can be called, by the names they were given (sock_diag(7)). In
//! the trees of profiles nobody looks for them, which would cost every start; the kernel knows them
//! all, and is asked once.
//!
//! Which of them were made in a network, it tells by their files.
//!
//! A name that was not a whole path when the socket got it, or that was changed since, says nothing
//! of where it lies.

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
const BY_FAMILY: u16 = 20;
/// Of the kernel's own numbers of devices (MKDEV).
const MINOR_BITS: u32 = 20;
/// struct nlmsghdr, and struct unix_diag_msg behind it.
const HEADER: usize = 16;
const MESSAGE: usize = HEADER + 16;
/// Where the number of a socket is.
const SOCKET: usize = HEADER + 4;
/// UDIAG_SHOW_NAME and UDIAG_SHOW_VFS, UNIX_DIAG_NAME and UNIX_DIAG_VFS of linux/unix_diag.h.
const SHOW_NAME: u32 = 1;
const SHOW_FILE: u32 = 2;
const NAME: u16 = 0;
const FILE: u16 = 1;
/// Of net/tcp_states.h: who listens, and who has no peer, as sockets for datagrams, which everybody
/// can send to. Those are said to be connected as soon as somebody else was once connected to them;
/// so is each connection of one that listens, which has its name too.
const LISTEN: u32 = 1 << 10;
const CLOSE: u32 = 1 << 7;
const ESTABLISHED: u32 = 1 << 1;

/// Masks for those that lie where `shown` says.
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
            // A file system that does not answer matters only where the command sees it.
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

/// Where a directory really lies. None: it is not there, or can not be come to.
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

/// Errors of a path that leads nowhere. Where a directory on the way can not be searched, it does
/// so for the command too, and one whose rights the command could change is closed as a whole.
fn is_unreachable(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS)
}

fn below(directory: &[u8], name: &[u8]) -> Option<AbsPath> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    Text::from_bytes([directory, b"/", name].concat()).and_then(AbsPath::new).ok()
}

/// One that was removed may still have the name of the next.
fn names() -> Result<BTreeSet<Vec<u8>>, Errno> {
    let mut names = BTreeSet::new();
    let mut note = |message: &[u8]| {
        if is_callable(message) {
            names.extend(
                attribute(message, NAME)
                    .map(|name| name.strip_suffix(b"\0").unwrap_or(name).to_vec()),
            );
        }
    };
    dump(LISTEN | CLOSE | ESTABLISHED, SHOW_NAME, &mut note)?;
    Ok(names)
}

/// The file of a socket, as the kernel tells it (struct unix_diag_vfs): the first half of its
/// number, and its file system's device, which need not be the one that stat(2) tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketFile {
    inode: u32,
    device: u32,
}

impl SocketFile {
    /// None: where it lies is not told.
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

/// Those of all sockets of the network that we are in, each with the socket's own number.
pub fn bound() -> Result<Vec<(SocketFile, u32)>, Errno> {
    let mut files = Vec::new();
    let mut note = |message: &[u8]| {
        let numbers = |bytes: &[u8]| Some((number(bytes)?, number(bytes.get(4..)?)?));
        let file = attribute(message, FILE).and_then(numbers);
        let socket = message.get(SOCKET..).and_then(number);
        files.extend(
            file.zip(socket)
                .map(|((inode, device), socket)| (SocketFile { inode, device }, socket)),
        );
    };
    dump(u32::MAX, SHOW_FILE, &mut note)?;
    Ok(files)
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Can nobody be called there? Whoever can does not notice: a socket for datagrams that is
/// connected sends nothing, and one of another kind is refused by its kind. Whom we may not call
/// yet, may be opened to us next.
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

/// Tells each socket in one of the states, with what is shown of it.
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
        // Each part is there by the time that the one before it was taken.
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

/// struct unix_diag_req, behind its header.
fn request(states: u32, show: u32) -> Vec<u8> {
    let mut bytes = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for number in [states, 0, show, u32::MAX, u32::MAX] {
        bytes.extend(number.to_ne_bytes());
    }
    let mut message = ((HEADER + bytes.len()) as u32).to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(bytes);
    message
}

/// True: it was the last part.
fn read(mut answer: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<bool, Errno> {
    while let Some((length, kind)) = head(answer) {
        let (message, rest) = answer.split_at(length.max(HEADER).min(answer.len()));
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error = message
                    .get(HEADER..)
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
    matches!(message.get(HEADER..), Some([_, kind, state, ..]) if i32::from(*kind) == libc::SOCK_DGRAM || 1_u32.checked_shl((*state).into()) != Some(ESTABLISHED))
}

/// struct nlmsghdr: length and type.
fn head(message: &[u8]) -> Option<(usize, u16)> {
    let length = u32::from_ne_bytes(*message.first_chunk()?);
    let kind = u16::from_ne_bytes(*message.get(4..)?.first_chunk()?);
    Some((length as usize, kind))
}

/// One attribute of a socket.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut attributes = message.get(MESSAGE..)?;
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
    use crate::files::test_tree::Scene;
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
    fn who_can_be_called_is_found_where_it_really_lies() {
        let scene = Scene::new();
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
    fn whether_somebody_is_there_is_told_without_his_noticing() {
        let scene = Scene::new();
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
    fn a_socket_is_known_by_its_file_whatever_its_name() {
        let scene = Scene::new();
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
    fn more_of_them_than_one_part_of_the_answer_holds_are_all_found() {
        let scene = Scene::new();
        let bind = |number: u32| UnixListener::bind(scene.path(number.to_string())).unwrap();
        let listeners: Vec<_> = (0..400).map(bind).collect();
        assert_eq!(found(&scene.0).len(), listeners.len());
    }

    #[test]
    fn what_is_no_answer_holds_no_name() {
        for noise in [&[][..], &[0; 3], &[0; 16], &[0xff; 200], &[16, 0, 0, 0, 20, 0, 0, 0]] {
            let mut attributes = Vec::new();
            let outcome = read(noise, &mut |message| {
                attributes.extend(attribute(message, NAME).map(<[u8]>::to_vec))
            });
            assert_eq!((outcome, attributes), (Ok(false), Vec::new()));
        }
        let mut refused = 20_u32.to_ne_bytes().to_vec();
        refused.extend([libc::NLMSG_ERROR as u8, 0]);
        refused.extend([0; 10]);
        refused.extend((-libc::ENOENT).to_ne_bytes());
        assert_eq!(read(&refused, &mut |_| ()), Err(Errno::NOENT));
    }
}
