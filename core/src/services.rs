//! Unix sockets of this machine that can be called, by the names they were given (sock_diag(7)). In the trees of profiles nobody looks for them,
//! which would cost every start; the kernel knows them all, and is asked once.
//!
//! A name that was not a whole path when the socket got it, or that was changed since, says nothing of where it lies.

use std::collections::{BTreeMap, BTreeSet};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::beneath;
use crate::cover::{Cover, CoverKind};
use crate::place::Identity;
use crate::text::{AbsPath, Text};

/// SOCK_DIAG_BY_FAMILY of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// struct nlmsghdr, and struct unix_diag_msg behind it.
const HEADER: usize = 16;
const MESSAGE: usize = HEADER + 16;
/// UDIAG_SHOW_NAME, UNIX_DIAG_NAME of linux/unix_diag.h.
const SHOW_NAME: u32 = 1;
const NAME: u16 = 0;
/// Of net/tcp_states.h: who listens, and who has no peer, as sockets for datagrams, which everybody can send to. Those are said to be connected
/// as soon as somebody else was once connected to them; so is each connection of one that listens, which has its name too.
const LISTEN: u32 = 1 << 10;
const CLOSE: u32 = 1 << 7;
const ESTABLISHED: u32 = 1 << 1;

/// Masks for those that lie where `shown` says.
pub fn covers(shown: impl Fn(&AbsPath) -> bool) -> Result<Vec<Cover>, Errno> {
    let mut found = Vec::new();
    let mut directories = BTreeMap::new();
    for name in names()? {
        // An abstract name begins with NUL.
        let Some(slash) = name.iter().rposition(|byte| *byte == b'/').filter(|_| name.starts_with(b"/")) else {
            continue;
        };
        let (above, own) = (&name[..slash.max(1)], &name[slash + 1..]);
        let above = directories.entry(above.to_vec()).or_insert_with(|| real(above));
        let Some(path) = above.as_ref().and_then(|above| below(above, own)).filter(&shown) else { continue };
        let Ok(stat) = rustix::fs::lstat(path.as_c_str()) else { continue };
        let is_new = found.iter().all(|cover: &Cover| cover.path != path);
        if is_new && FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            found.push(Cover { path, identity: Identity::from(&stat), directory: false, kind: CoverKind::Mask });
        }
    }
    Ok(found)
}

/// Where a directory really lies. One that we can not come to, the command can not either.
fn real(directory: &[u8]) -> Option<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let mut buffer = [0; 32];
    rustix::fs::readlink(beneath::link_to(&opened, &mut buffer), Vec::new()).ok().map(|path| path.into_bytes())
}

fn below(directory: &[u8], name: &[u8]) -> Option<AbsPath> {
    let directory = directory.strip_suffix(b"/").unwrap_or(directory);
    Text::from_bytes([directory, b"/", name].concat()).and_then(AbsPath::new).ok()
}

/// One that was removed may still have the name of the next.
fn names() -> Result<BTreeSet<Vec<u8>>, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::sendto(&socket, &request(), SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut names = BTreeSet::new();
    let mut answer = vec![0; 16 * 1024];
    loop {
        // Each part is there by the time that the one before it was taken.
        let (length, whole) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
        if whole > length {
            return Err(Errno::MSGSIZE);
        }
        if read(&answer[..length], &mut names)? {
            return Ok(names);
        }
    }
}

/// struct unix_diag_req, behind its header.
fn request() -> Vec<u8> {
    let mut bytes = vec![libc::AF_UNIX as u8, 0, 0, 0];
    for number in [LISTEN | CLOSE | ESTABLISHED, 0, SHOW_NAME, u32::MAX, u32::MAX] {
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
fn read(mut answer: &[u8], names: &mut BTreeSet<Vec<u8>>) -> Result<bool, Errno> {
    while let Some((length, kind)) = head(answer) {
        let (message, rest) = answer.split_at(length.max(HEADER).min(answer.len()));
        match i32::from(kind) {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let error =
                    message.get(HEADER..).and_then(<[u8]>::first_chunk).map_or(0, |error| i32::from_ne_bytes(*error));
                return Err(Errno::from_raw_os_error(error.wrapping_neg()));
            }
            _ if is_callable(message) => names.extend(name(message.get(MESSAGE..).unwrap_or_default())),
            _ => {}
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

/// Of the attributes of a socket.
fn name(mut attributes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let value = attributes.get(4..length)?;
        if kind == NAME {
            // With the NUL at the end of a path.
            return Some(value.strip_suffix(b"\0").unwrap_or(value).to_vec());
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::Scene;
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    fn found(directory: &std::path::Path) -> Vec<String> {
        let within = |path: &AbsPath| path.as_bytes().starts_with(directory.as_os_str().as_encoded_bytes());
        let mut found: Vec<_> = covers(within).unwrap().iter().map(|cover| cover.path.to_string()).collect();
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
    fn more_of_them_than_one_part_of_the_answer_holds_are_all_found() {
        let scene = Scene::new();
        let bind = |number: u32| UnixListener::bind(scene.path(number.to_string())).unwrap();
        let listeners: Vec<_> = (0..400).map(bind).collect();
        assert_eq!(found(&scene.0).len(), listeners.len());
    }

    #[test]
    fn what_is_no_answer_holds_no_name() {
        for noise in [&[][..], &[0; 3], &[0; 16], &[0xff; 200], &[16, 0, 0, 0, 20, 0, 0, 0]] {
            let mut names = BTreeSet::new();
            assert_eq!(read(noise, &mut names), Ok(false));
            assert!(names.is_empty());
        }
        let mut refused = 20_u32.to_ne_bytes().to_vec();
        refused.extend([libc::NLMSG_ERROR as u8, 0]);
        refused.extend([0; 10]);
        refused.extend((-libc::ENOENT).to_ne_bytes());
        assert_eq!(read(&refused, &mut BTreeSet::new()), Err(Errno::NOENT));
    }
}
