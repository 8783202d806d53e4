//! netlink(7): several requests in one datagram. The kernel acknowledges each of them.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

/// nlmsghdr: length, type, flags, sequence, port.
const HEADER_BYTES: usize = 16;
const NLA_F_NESTED: u16 = 1 << 15;

#[derive(Default)]
pub struct NetlinkRequests {
    bytes: Vec<u8>,
    /// Offset of the request that was begun last.
    last: usize,
    sequence: u32,
    acknowledged: u32,
}

/// The request that failed, counted from 0, and its errno. None: the kernel sent no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetlinkError {
    pub request: Option<u32>,
    pub errno: Errno,
}

impl NetlinkRequests {
    /// Begins a request. `fixed` is the struct that a request of this kind starts with. The kernel
    /// does not answer a request without NLM_F_ACK.
    pub fn add(&mut self, kind: u16, flags: i32, fixed: &[u8]) {
        self.last = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.sequence += 1;
        self.acknowledged += u32::from(flags & libc::NLM_F_ACK != 0);
        self.put(fixed);
    }

    /// Adds an attribute to the request that was begun last.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.put(value);
    }

    /// Adds an attribute that contains other attributes.
    pub fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut NetlinkRequests)) {
        let start = self.bytes.len();
        self.attribute(kind | NLA_F_NESTED, &[]);
        inner(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Appends bytes, padded to a multiple of four.
    fn put(&mut self, value: &[u8]) {
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let length = (self.bytes.len() - self.last) as u32;
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Sends the requests and reads the answers. `protocol`: None is NETLINK_ROUTE, which is number
    /// 0. The kernel answers before sendto returns.
    pub fn send(self, protocol: Option<Protocol>) -> Result<(), NetlinkError> {
        let failed = |errno| NetlinkError { request: None, errno };
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
        let socket = socket.map_err(failed)?;
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&socket, &self.bytes, SendFlags::empty(), &kernel).map_err(failed)?;
        let mut answer = [0_u8; 4096];
        for _ in 0..self.acknowledged {
            let received = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT);
            let (_, length) = received.map_err(|_| failed(Errno::PROTO))?;
            check_reply(&answer[..length.min(answer.len())])?;
        }
        Ok(())
    }
}

/// NLMSG_ERROR with 0 is an acknowledgement. After the error code the kernel repeats the header of
/// the request.
fn check_reply(answer: &[u8]) -> Result<(), NetlinkError> {
    let number = |at: usize| {
        answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
    };
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let request = number(HEADER_BYTES + 4 + 8);
    match (kind.map(i32::from), number(HEADER_BYTES)) {
        (Some(libc::NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(libc::NLMSG_ERROR), Some(error)) => Err(NetlinkError {
            request,
            errno: Errno::from_raw_os_error((error as i32).wrapping_neg()),
        }),
        _ => Err(NetlinkError { request: None, errno: Errno::PROTO }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: i32, error: i32, request: u32) -> Vec<u8> {
        let mut bytes = vec![0; 36];
        bytes[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
        bytes[16..20].copy_from_slice(&error.to_ne_bytes());
        bytes[28..32].copy_from_slice(&request.to_ne_bytes());
        bytes
    }

    #[test]
    fn only_an_acknowledgement_is_a_success() {
        let failed = |request, errno| Err(NetlinkError { request, errno });
        assert_eq!(check_reply(&answer(libc::NLMSG_ERROR, 0, 0)), Ok(()));
        assert_eq!(
            check_reply(&answer(libc::NLMSG_ERROR, -libc::EPERM, 3)),
            failed(Some(3), Errno::PERM)
        );
        assert_eq!(check_reply(&answer(libc::NLMSG_DONE, 0, 0)), failed(None, Errno::PROTO));
        assert_eq!(check_reply(&[]), failed(None, Errno::PROTO));
    }

    #[test]
    fn lengths_include_attributes_and_padding() {
        let mut requests = NetlinkRequests::default();
        requests.add(7, libc::NLM_F_ACK, &[1]);
        requests.attribute(2, b"abc");
        requests.nested(3, |inner| inner.attribute(4, &[5]));
        requests.add(8, 0, &[]);
        let number = |at: usize| u16::from_ne_bytes(requests.bytes[at..at + 2].try_into().unwrap());
        // The header, one byte in four, seven in eight, and four more around eight.
        assert_eq!((number(0), number(4)), (16 + 4 + 8 + 12, 7));
        assert_eq!((number(20), number(22)), (7, 2));
        assert_eq!((number(28), number(30), number(32), number(34)), (12, 3 | NLA_F_NESTED, 5, 4));
        assert_eq!((number(40), number(44), requests.acknowledged), (16, 8, 1));
    }

    #[test]
    fn the_kernel_says_which_request_it_refuses() {
        // RTM_GETLINK for index 0, twice. It needs no privilege.
        let mut requests = NetlinkRequests::default();
        for _ in 0..2 {
            requests.add(libc::RTM_GETLINK, libc::NLM_F_ACK, &[0; 16]);
        }
        let failed = requests.send(None).unwrap_err();
        assert_eq!(failed, NetlinkError { request: Some(0), errno: Errno::INVAL });
    }
}
