//! Finds the inode of the socket at the other end of a connection, which is inside. sock_diag(7)
//! finds it by the two addresses.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags};

/// SOCK_DIAG_BY_FAMILY of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// struct nlmsghdr.
const HEADER_BYTES: usize = 16;
/// Offset of the inode in struct inet_diag_msg.
const INODE_OFFSET: usize = HEADER_BYTES + 68;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOwner {
    /// The inode of the socket.
    Socket(u32),
    /// No process has the socket any more.
    Nobody,
    Unknown,
}

/// A netlink socket of the command's network.
pub struct OwnerLookup(Option<OwnedFd>);

impl OwnerLookup {
    pub fn new(socket: Option<OwnedFd>) -> OwnerLookup {
        OwnerLookup(socket)
    }

    /// `client`: the end inside; `server`: the address it is connected to.
    pub fn of(&self, client: SocketAddr, server: SocketAddr) -> SocketOwner {
        self.ask(client, server).unwrap_or(SocketOwner::Unknown)
    }

    fn ask(&self, client: SocketAddr, server: SocketAddr) -> Option<SocketOwner> {
        let socket = self.0.as_ref()?;
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(socket, &request(client, server), SendFlags::DONTWAIT, &kernel).ok()?;
        // The kernel answers before sendto returns.
        let mut answer = [0; 1024];
        let (length, _) = rustix::net::recv(socket, &mut answer[..], RecvFlags::DONTWAIT).ok()?;
        read(&answer[..length])
    }
}

/// struct inet_diag_req_v2, after its header.
fn request(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let family = if client.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
    bytes.extend(u32::MAX.to_ne_bytes()); // in every state
    bytes.extend(client.port().to_be_bytes());
    bytes.extend(server.port().to_be_bytes());
    for end in [client, server] {
        let mut address = match end.ip() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        address.resize(16, 0);
        bytes.extend(address);
    }
    bytes.extend([0; 4]); // on any device
    bytes.extend([0xff; 8]); // whatever its cookie is
    let mut message = ((HEADER_BYTES + bytes.len()) as u32).to_ne_bytes().to_vec();
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(bytes);
    message
}

fn read(answer: &[u8]) -> Option<SocketOwner> {
    let number = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind == SOCK_DIAG_BY_FAMILY {
        return number(INODE_OFFSET).map(|inode| {
            if inode == 0 { SocketOwner::Nobody } else { SocketOwner::Socket(inode) }
        });
    }
    // ENOENT means either that there is no socket or that the kernel lacks tcp_diag.
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt as _;

    fn owners() -> OwnerLookup {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::SOCK_DIAG);
        OwnerLookup::new(
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)
                .ok(),
        )
    }

    #[test]
    fn a_socket_inode_is_found_by_its_addresses() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let ends = (server.peer_addr().unwrap(), server.local_addr().unwrap());
            let number = std::fs::metadata(format!(
                "/proc/self/fd/{}",
                std::os::fd::AsRawFd::as_raw_fd(&client)
            ))
            .unwrap()
            .ino();
            let owners = owners();
            assert_eq!(owners.of(ends.0, ends.1), SocketOwner::Socket(number as u32));
            // A client that closed only its sending side still exists.
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(owners.of(ends.0, ends.1), SocketOwner::Socket(number as u32));
            drop(client);
            assert_eq!(owners.of(ends.0, ends.1), SocketOwner::Nobody);
            assert_eq!(OwnerLookup::new(None).of(ends.0, ends.1), SocketOwner::Unknown);
        }
    }

    #[test]
    fn an_invalid_netlink_answer_is_ignored() {
        for noise in [&[][..], &[0; 16], &[0xff; 200]] {
            assert_eq!(read(noise), None);
        }
    }
}
