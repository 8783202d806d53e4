//! The loopback device of a new network namespace, which is down until somebody brings it up.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// It is the first device of every network namespace.
const LOOPBACK: i32 = 1;

/// rtnetlink(7): RTM_NEWLINK for one device, with one flag to change.
pub fn bring_up() -> Result<(), Errno> {
    // No protocol: NETLINK_ROUTE is number 0.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request(), SendFlags::empty(), &kernel)?;
    let mut answer = [0_u8; 1024];
    let (_, length) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    verdict(&answer[..length.min(answer.len())])
}

fn request() -> [u8; 32] {
    let mut message = [0; 32];
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let up = libc::IFF_UP as u32;
    // nlmsghdr: length, type, flags, sequence, port
    message[0..4].copy_from_slice(&32_u32.to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_NEWLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    // ifinfomsg: family, -, type, index, flags, change
    message[20..24].copy_from_slice(&LOOPBACK.to_ne_bytes());
    message[24..28].copy_from_slice(&up.to_ne_bytes());
    message[28..32].copy_from_slice(&up.to_ne_bytes());
    message
}

/// NLMSG_ERROR with 0 is the acknowledgement.
fn verdict(answer: &[u8]) -> Result<(), Errno> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind.map(i32::from), error) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(error)) => Err(Errno::from_raw_os_error(-error)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: i32, error: i32) -> Vec<u8> {
        let mut bytes = vec![0; 36];
        bytes[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
        bytes[16..20].copy_from_slice(&error.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_an_acknowledgement_is_a_success() {
        assert_eq!(verdict(&answer(libc::NLMSG_ERROR, 0)), Ok(()));
        assert_eq!(verdict(&answer(libc::NLMSG_ERROR, -libc::EPERM)), Err(Errno::PERM));
        assert_eq!(verdict(&answer(libc::NLMSG_DONE, 0)), Err(Errno::PROTO));
        assert_eq!(verdict(&[]), Err(Errno::PROTO));
    }
}
