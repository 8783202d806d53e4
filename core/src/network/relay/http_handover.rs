//! The socket between the relay and the HTTP helper. One datagram per message, some with a
//! descriptor:
//!
//! ```text
//! relay ─▶ {"host":…,"kind":"route"|"inspect","port":…}; a connection
//!          (perhaps followed by a NUL and the bytes that the client has sent)
//!       ◀─ {"dial":HOST,"id":N,"port":…}
//! relay ─▶ {"address":…,"id":N}; a connection      or      {"denied":…,"id":N,"reason":…}
//! ```
//!
//! Messages that do not fit into the socket wait here. An invalid message closes the socket, and
//! then the helper gets nothing more.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Deserialize;

use crate::network::rules::http_hosts::{self, HandoverKind};
use crate::plan::host_name::{Host, HostName};
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};

/// The longest message to the relay: a host and two numbers.
const MAX_MESSAGE_BYTES: usize = 1024;

/// Connections that wait for the HTTP helper. Further ones are closed.
const MAX_WAITING: usize = 4096;

/// A connection that the HTTP helper requests.
pub struct DialRequest {
    pub id: u64,
    pub host: Host,
    pub port: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DialMessage {
    dial: String,
    id: u64,
    port: u16,
}

pub struct Handover {
    /// None: the HTTP helper is gone.
    socket: Option<OwnedFd>,
    waiting: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Handover {
    pub fn new(socket: Option<OwnedFd>) -> Handover {
        Handover { socket, waiting: VecDeque::new() }
    }

    /// True if the HTTP helper can take one more connection.
    pub fn can_take(&self) -> bool {
        self.socket.is_some() && self.waiting.len() < MAX_WAITING
    }

    /// `unsent`: bytes that were already read from the client.
    pub fn hand_over(
        &mut self,
        client: OwnedFd,
        kind: HandoverKind,
        host: &HostName,
        port: u16,
        unsent: &[u8],
    ) {
        let mut message =
            format!("{{\"host\":\"{host}\",\"kind\":\"{}\",\"port\":{port}}}", kind.name())
                .into_bytes();
        if !unsent.is_empty() {
            message.push(0);
            message.extend_from_slice(unsent);
        }
        self.send(message, Some(client));
    }

    pub fn reached(&mut self, id: u64, server: OwnedFd, address: IpAddr) {
        self.send(format!("{{\"address\":\"{address}\",\"id\":{id}}}").into_bytes(), Some(server));
    }

    pub fn not_reached(&mut self, id: u64, reason: &str, denied: bool) {
        let mut message = format!("{{\"denied\":{denied},\"id\":{id},\"reason\":");
        writer::string(&mut message, reason.as_bytes(), NonUtf8::Text);
        message.push('}');
        self.send(message.into_bytes(), None);
    }

    /// Without a helper the message is dropped and its connection closed.
    fn send(&mut self, message: Vec<u8>, descriptor: Option<OwnedFd>) {
        if self.socket.is_none() {
            return;
        }
        self.waiting.push_back((message, descriptor));
        self.flush();
    }

    pub fn flush(&mut self) {
        while let (Some(socket), Some((message, descriptor))) = (&self.socket, self.waiting.front())
        {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors: Vec<BorrowedFd<'_>> = descriptor.iter().map(|fd| fd.as_fd()).collect();
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut control, flags) {
                Ok(_) => drop(self.waiting.pop_front()),
                Err(Errno::INTR) => {}
                // Too many descriptors are in flight: the next turn tries again.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => return,
                Err(_) => return self.close(),
            }
        }
    }

    /// The next requested connection. None: there is none now.
    pub fn next_dial(&mut self) -> Option<DialRequest> {
        let mut message = [0; MAX_MESSAGE_BYTES];
        loop {
            let socket = self.socket.as_ref()?;
            match rustix::net::recv(
                socket,
                &mut message[..],
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Ok((_, length @ 1..=MAX_MESSAGE_BYTES)) => {
                    let dial = reader::from_slice::<DialMessage>(&message[..length]).ok();
                    let request = dial.and_then(|dial| {
                        let host = http_hosts::read_host(dial.dial.as_bytes())?;
                        (dial.port != 0).then_some(DialRequest {
                            id: dial.id,
                            host,
                            port: dial.port,
                        })
                    });
                    if request.is_none() {
                        self.close();
                    }
                    return request;
                }
                Ok(_) | Err(_) => {
                    self.close();
                    return None;
                }
            }
        }
    }

    /// Closes the waiting connections.
    fn close(&mut self) {
        self.socket = None;
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::socket_pair;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage};
    use std::io::IoSliceMut;

    /// A message, and whether a descriptor came with it.
    fn received(socket: &OwnedFd) -> (Vec<u8>, bool) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let length =
            rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
                .unwrap()
                .bytes;
        let came =
            control.drain().any(|message| matches!(message, RecvAncillaryMessage::ScmRights(_)));
        (bytes[..length].to_vec(), came)
    }

    #[test]
    fn handover_messages_have_their_documented_form() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut handover = Handover::new(Some(ours));
        let (client, server) = socket_pair::pair().unwrap();
        let name = HostName::read(b"api.paddock.internal").unwrap();
        assert!(handover.can_take());
        handover.hand_over(client, HandoverKind::Route, &name, 80, b"GET / ");
        let expected =
            b"{\"host\":\"api.paddock.internal\",\"kind\":\"route\",\"port\":80}\0GET / ";
        assert_eq!(received(&theirs), (expected.to_vec(), true));
        assert!(handover.next_dial().is_none());

        let ask =
            |text: &str| rustix::net::send(&theirs, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        ask("{\"dial\":\"::1\",\"id\":7,\"port\":443}");
        let request = handover.next_dial().unwrap();
        assert_eq!(
            (request.id, request.host.to_string(), request.port),
            (7, "::1".to_owned(), 443)
        );
        handover.reached(7, server, "::1".parse().unwrap());
        assert_eq!(received(&theirs), (b"{\"address\":\"::1\",\"id\":7}".to_vec(), true));
        handover.not_reached(8, "a \"rule\"", true);
        assert_eq!(
            received(&theirs),
            (b"{\"denied\":true,\"id\":8,\"reason\":\"a \\\"rule\\\"\"}".to_vec(), false)
        );
    }

    #[test]
    fn an_invalid_message_closes_the_handover() {
        let nonsense = [
            "x",
            "{}",
            "{\"dial\":\"a.example\",\"id\":1,\"port\":0}",
            "{\"dial\":\"a b\",\"id\":1,\"port\":80}",
            "{\"dial\":\"a.example\",\"id\":1,\"port\":80,\"more\":1}",
        ];
        for text in nonsense
            .into_iter()
            .map(str::to_owned)
            .chain(["x".repeat(MAX_MESSAGE_BYTES + 1), String::new()])
        {
            let (ours, theirs) = socket_pair::pair().unwrap();
            let mut handover = Handover::new(Some(ours));
            let theirs = if text.is_empty() {
                drop(theirs);
                None
            } else {
                rustix::net::send(&theirs, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
                Some(theirs)
            };
            assert!(handover.next_dial().is_none(), "{text}");
            assert!(!handover.can_take(), "{text}");
            drop(theirs);
        }
    }

    #[test]
    fn handovers_that_do_not_fit_wait() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut handover = Handover::new(Some(ours));
        let name = HostName::read(b"api.paddock.internal").unwrap();
        let mut handed_over = 0_usize;
        // One descriptor for all: the number in flight is bounded.
        let (client, _) = socket_pair::pair().unwrap();
        while handover.waiting.len() < 16 {
            assert!(handover.can_take());
            handover.hand_over(
                client.try_clone().unwrap(),
                HandoverKind::Route,
                &name,
                80,
                &[b'x'; 2000],
            );
            handed_over += 1;
        }
        let mut count = 0;
        while count < handed_over {
            let (message, came) = received(&theirs);
            assert!(came && message.ends_with(b"x"));
            count += 1;
            handover.flush();
        }
        assert!(handover.waiting.is_empty());
    }
}
