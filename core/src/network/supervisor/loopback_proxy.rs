//! Where no namespace keeps the network in, the proxy takes connections on the host's loopback,
//! which everybody on the machine can call. It serves nobody but the command: the supervisor makes
//! the command's connections itself (network/supervised_connect.rs), so it knows where each of them
//! comes from, takes it here, and hands it to the relay. Whoever else calls is hung up on.
//!
//! The port stays ours until the run ends, whatever becomes of the relay: nobody else can stand
//! there and be taken for the proxy.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
};
use rustix::net::{SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt};

/// As many connections may wait for us to come round.
const LISTEN_BACKLOG: i32 = 4096;
/// So many are taken before others get their turn.
const MAX_ACCEPTS_PER_TURN: usize = 64;
/// Of a message without a client.
const MAX_MESSAGE_BYTES: usize = 4096;
/// What comes along with a client; nobody reads it.
const CLIENT_MESSAGE: &[u8] = b"client";

pub struct LoopbackProxy {
    listener: OwnedFd,
    address: SocketAddr,
    /// Where connections of the command come from that have not arrived yet.
    expected: BTreeSet<SocketAddr>,
    /// One that the relay could not take yet. Those behind it wait in the kernel.
    waiting: Option<OwnedFd>,
}

impl LoopbackProxy {
    pub fn open() -> Result<LoopbackProxy, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // What is accepted inherits these.
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

    /// Connections that the command has been given, by where they come from.
    pub fn expect(&mut self, callers: Vec<SocketAddr>) {
        self.expected.extend(callers);
    }

    /// Has the relay to come round before anything else is taken?
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Takes those that wait, and hands them over one by one; Err: the relay takes none now.
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
                    // A stranger.
                    _ => {}
                },
                Ok((_, None)) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return None,
            }
        }
    }
}

/// To the relay, by its line. What it can not take now comes back.
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
        // Or it is gone, and the client with it.
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

/// In the relay: what the supervisor says.
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
    fn only_who_is_expected_comes_in() {
        let mut proxy = LoopbackProxy::open().unwrap();
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut known = TcpStream::connect(proxy.address()).unwrap();
        let mut stranger = TcpStream::connect(proxy.address()).unwrap();
        proxy.expect(vec![known.local_addr().unwrap()]);
        let mut taken = 0;
        proxy.hand_over(|client| {
            taken += 1;
            send(ours.as_fd(), client)
        });
        assert_eq!((taken, stranger.read(&mut [0; 1]).unwrap_or(0)), (1, 0));
        let Received::Client(client) = receive(theirs.as_fd()) else { panic!("nobody came") };
        known.write_all(b"hello").unwrap();
        rustix::io::ioctl_fionbio(&client, false).unwrap();
        let mut word = [0; 5];
        assert_eq!(rustix::io::read(&client, &mut word).unwrap(), 5);
        assert!(matches!(receive(theirs.as_fd()), Received::Nothing));
        // Who has come from there once is no longer known.
        assert!(proxy.expected.is_empty());
        drop(ours);
        assert!(matches!(receive(theirs.as_fd()), Received::End));
    }

    #[test]
    fn what_the_relay_can_not_take_is_kept_for_later() {
        let mut proxy = LoopbackProxy::open().unwrap();
        let clients = [
            TcpStream::connect(proxy.address()).unwrap(),
            TcpStream::connect(proxy.address()).unwrap(),
        ];
        proxy.expect(clients.iter().map(|client| client.local_addr().unwrap()).collect());
        proxy.hand_over(Err);
        assert!(proxy.is_waiting());
        let mut taken = 0;
        proxy.hand_over(|_| {
            taken += 1;
            Ok(())
        });
        assert_eq!((taken, proxy.is_waiting()), (2, false));
    }
}
