//! The proxy listener of the landlock tier, on the host's loopback, where every local user can
//! connect. It serves only the command. The supervisor makes the command's connections itself
//! (network/supervised_connect.rs), so it knows their source addresses, accepts them here, and
//! hands them to the relay. Other connections are closed.
//!
//! The port stays open until the run ends, even without a relay: no other program can take it and
//! pose as the proxy.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
};
use rustix::net::{SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt};

/// Connections that can wait for the supervisor.
const LISTEN_BACKLOG: i32 = 4096;
/// Connections that are accepted before other tasks get their turn.
const MAX_ACCEPTS_PER_TURN: usize = 64;
/// The longest message without a client.
const MAX_MESSAGE_BYTES: usize = 4096;
/// The text of a message with a client; it is not read.
const CLIENT_MESSAGE: &[u8] = b"client";

pub struct LoopbackProxy {
    listener: OwnedFd,
    address: SocketAddr,
    /// Source addresses of the command's connections that have not arrived yet.
    expected: BTreeSet<SocketAddr>,
    /// A client that the relay could not take yet. Further clients wait in the kernel.
    waiting: Option<OwnedFd>,
}

impl LoopbackProxy {
    pub fn open() -> Result<LoopbackProxy, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // Accepted sockets inherit these options.
        sockopt::set_tcp_nodelay(&listener, true)?;
        sockopt::set_socket_keepalive(&listener, true)?;
        rustix::net::bind(&listener, &SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
        rustix::net::listen(&listener, LISTEN_BACKLOG)?;
        let address = rustix::net::getsockname(&listener).and_then(SocketAddr::try_from)?;
        Ok(LoopbackProxy { listener, address, expected: BTreeSet::new(), waiting: None })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Adds source addresses of the command's connections.
    pub fn expect(&mut self, callers: Vec<SocketAddr>) {
        self.expected.extend(callers);
    }

    /// True while a client waits for the relay.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Accepts waiting clients and hands them over one by one. Err: the relay takes none now.
    pub fn hand_over(&mut self, mut take: impl FnMut(OwnedFd) -> Result<(), OwnedFd>) {
        for _ in 0..MAX_ACCEPTS_PER_TURN {
            let Some(client) = self.waiting.take().or_else(|| self.next()) else { return };
            if let Err(client) = take(client) {
                self.waiting = Some(client);
                return;
            }
        }
    }

    fn next(&mut self) -> Option<OwnedFd> {
        loop {
            match rustix::net::acceptfrom_with(
                &self.listener,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            ) {
                Ok((client, Some(caller))) => match SocketAddr::try_from(caller) {
                    Ok(caller) if self.expected.remove(&caller) => return Some(client),
                    // Not a connection of the command.
                    _ => {}
                },
                Ok((_, None)) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return None,
            }
        }
    }
}

/// Sends a client to the relay. A client that does not fit now is returned.
pub fn send(socket: BorrowedFd<'_>, client: OwnedFd) -> Result<(), OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [client.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent =
        rustix::net::sendmsg(socket, &[std::io::IoSlice::new(CLIENT_MESSAGE)], &mut control, flags);
    match sent {
        Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => {
            Err(client)
        }
        // On another error the relay is gone, and the client is closed.
        _ => Ok(()),
    }
}

pub enum Received {
    Client(OwnedFd),
    /// A message without a client.
    Message(Vec<u8>),
    Nothing,
    /// The run has ended.
    End,
}

/// Runs in the relay: reads a message of the supervisor.
pub fn receive(socket: BorrowedFd<'_>) -> Received {
    let mut message = [0; MAX_MESSAGE_BYTES];
    loop {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let length = match rustix::net::recvmsg(
            socket,
            &mut [std::io::IoSliceMut::new(&mut message)],
            &mut control,
            flags,
        ) {
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(Errno::INTR) => continue,
            Err(_) => return Received::End,
            Ok(message) if message.bytes == 0 => return Received::End,
            Ok(message) => message.bytes,
        };
        let client = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        return match client {
            Some(client) => Received::Client(client),
            None => Received::Message(message[..length].to_vec()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::socket_pair;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    #[test]
    fn only_expected_clients_are_accepted() {
        let mut proxy = LoopbackProxy::open().unwrap();
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut known = TcpStream::connect(proxy.address()).unwrap();
        let mut stranger = TcpStream::connect(proxy.address()).unwrap();
        proxy.expect(vec![known.local_addr().unwrap()]);
        let mut accepted = 0;
        proxy.hand_over(|client| {
            accepted += 1;
            send(ours.as_fd(), client)
        });
        assert_eq!((accepted, stranger.read(&mut [0; 1]).unwrap_or(0)), (1, 0));
        let Received::Client(client) = receive(theirs.as_fd()) else { panic!("nobody came") };
        known.write_all(b"hello").unwrap();
        rustix::io::ioctl_fionbio(&client, false).unwrap();
        let mut word = [0; 5];
        assert_eq!(rustix::io::read(&client, &mut word).unwrap(), 5);
        assert!(matches!(receive(theirs.as_fd()), Received::Nothing));
        // A source address is valid for one connection only.
        assert!(proxy.expected.is_empty());
        drop(ours);
        assert!(matches!(receive(theirs.as_fd()), Received::End));
    }

    #[test]
    fn a_client_that_the_relay_can_not_take_waits() {
        let mut proxy = LoopbackProxy::open().unwrap();
        let clients = [
            TcpStream::connect(proxy.address()).unwrap(),
            TcpStream::connect(proxy.address()).unwrap(),
        ];
        proxy.expect(clients.iter().map(|client| client.local_addr().unwrap()).collect());
        proxy.hand_over(Err);
        assert!(proxy.is_waiting());
        let mut accepted = 0;
        proxy.hand_over(|_| {
            accepted += 1;
            Ok(())
        });
        assert_eq!((accepted, proxy.is_waiting()), (2, false));
    }
}
