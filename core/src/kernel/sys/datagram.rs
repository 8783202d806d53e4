//! Datagrams that are answered from the address they were sent to (IP_PKTINFO, IPV6_RECVPKTINFO).

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::{Result, check};

/// The sender of a datagram, and the address it was sent to.
pub struct DatagramSender {
    from: libc::sockaddr_storage,
    from_length: libc::socklen_t,
    to: Option<LocalAddress>,
}

#[derive(Clone, Copy)]
enum LocalAddress {
    V4(libc::in_pktinfo),
    V6(libc::in6_pktinfo),
}

/// Aligned for a cmsghdr, with room for the larger of the two structs.
type ControlBuffer = [u64; 8];

/// A datagram that is longer than the buffer is truncated.
pub fn receive_datagram(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, DatagramSender)> {
    let mut control: ControlBuffer = [0; 8];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: both structs are plain numbers and pointers, for which zero is a value.
    let (mut from, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init()) };
    message.msg_name = ptr::from_mut(&mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<ControlBuffer>() as _;
    // SAFETY: all that the message points to lives on this stack, with the lengths it names.
    let length =
        check(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) }
            as libc::c_long)?;
    // SAFETY: the kernel filled the control buffer up to msg_controllen; the macros stay within it,
    // and each kind of header that is looked at is followed by the struct that belongs to it.
    let to = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        match header.as_ref().map(|header| (header.cmsg_level, header.cmsg_type)) {
            Some((libc::IPPROTO_IP, libc::IP_PKTINFO)) => {
                let mut info = libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().read_unaligned();
                // As ip(7) requires: the answer gets this local address, and the routes choose the
                // interface.
                info.ipi_spec_dst = info.ipi_addr;
                info.ipi_ifindex = 0;
                Some(LocalAddress::V4(info))
            }
            Some((libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)) => Some(LocalAddress::V6(
                libc::CMSG_DATA(header).cast::<libc::in6_pktinfo>().read_unaligned(),
            )),
            _ => None,
        }
    };
    Ok((length as usize, DatagramSender { from, from_length: message.msg_namelen, to }))
}

/// An answer that can not be sent now is lost, like any datagram.
pub fn answer_datagram(
    socket: BorrowedFd<'_>,
    sender: &DatagramSender,
    answer: &[u8],
) -> Result<()> {
    let mut control: ControlBuffer = [0; 8];
    let mut part =
        libc::iovec { iov_base: answer.as_ptr().cast_mut().cast(), iov_len: answer.len() };
    // SAFETY: plain numbers and pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = ptr::from_ref(&sender.from).cast_mut().cast();
    message.msg_namelen = sender.from_length;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    // SAFETY: the control buffer has room for a header and either struct; the message lives until
    // the call returns, which only reads what it points to.
    unsafe {
        if let Some(to) = sender.to {
            let (level, kind, size) = match to {
                LocalAddress::V4(_) => {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>())
                }
                LocalAddress::V6(_) => {
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, size_of::<libc::in6_pktinfo>())
                }
            };
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = libc::CMSG_LEN(size as u32) as _;
            match to {
                LocalAddress::V4(info) => {
                    libc::CMSG_DATA(header).cast::<libc::in_pktinfo>().write_unaligned(info)
                }
                LocalAddress::V6(info) => {
                    libc::CMSG_DATA(header).cast::<libc::in6_pktinfo>().write_unaligned(info)
                }
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        check(libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) as libc::c_long)
            .map(drop)
    }
}
