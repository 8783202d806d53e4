//! The line between the relay and the Python half that speaks HTTP. One datagram a message, some
//! with a descriptor:
//!
//! ```text
//! relay ─▶ {"host":…,"kind":"route"|"inspect","port":…}, perhaps a NUL and what the client has said already; a connection
//!       ◀─ {"dial":HOST,"id":N,"port":…}
//! relay ─▶ {"address":…,"id":N}; a connection      or      {"denied":…,"id":N,"reason":…}
//! ```
//!
//! What does not fit into the socket waits here. Whoever talks nonsense is gone, and who is gone
//! gets nothing more.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use serde::Deserialize;

use crate::network::rules::http_hosts::{self, Kind};
use crate::plan::host_name::{Host, Name};
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, Invalid};

/// Of a message to us: a host and two numbers.
const LONGEST: usize = 1024;

/// So many connections wait for the Python half; those that come then are cut off.
const WAITING: usize = 4096;

/// Whom the Python half wants to call.
pub struct Wanted {
    pub id: u64,
    pub host: Host,
    pub port: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dial {
    dial: String,
    id: u64,
    port: u16,
}

pub struct Handover {
    /// None: nobody is there any more.
    line: Option<OwnedFd>,
    waiting: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
}

impl Handover {
    pub fn new(line: Option<OwnedFd>) -> Handover {
        Handover { line, waiting: VecDeque::new() }
    }

    /// Is somebody there who takes one more connection?
    pub fn takes(&self) -> bool {
        self.line.is_some() && self.waiting.len() < WAITING
    }

    /// `said`: what was read from the client already.
    pub fn give(&mut self, client: OwnedFd, kind: Kind, host: &Name, port: u16, said: &[u8]) {
        let mut message =
            format!("{{\"host\":\"{host}\",\"kind\":\"{}\",\"port\":{port}}}", kind.name())
                .into_bytes();
        if !said.is_empty() {
            message.push(0);
            message.extend_from_slice(said);
        }
        self.say(message, Some(client));
    }

    pub fn reached(&mut self, id: u64, server: OwnedFd, address: IpAddr) {
        self.say(format!("{{\"address\":\"{address}\",\"id\":{id}}}").into_bytes(), Some(server));
    }

    pub fn not_reached(&mut self, id: u64, reason: &str, denied: bool) {
        let mut message = format!("{{\"denied\":{denied},\"id\":{id},\"reason\":");
        writer::string(&mut message, reason.as_bytes(), Invalid::Text);
        message.push('}');
        self.say(message.into_bytes(), None);
    }

    /// Nobody is there: then nothing waits, and a connection is cut off.
    fn say(&mut self, message: Vec<u8>, descriptor: Option<OwnedFd>) {
        if self.line.is_none() {
            return;
        }
        self.waiting.push_back((message, descriptor));
        self.flush();
    }

    pub fn flush(&mut self) {
        while let (Some(line), Some((message, descriptor))) = (&self.line, self.waiting.front()) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let descriptors: Vec<BorrowedFd<'_>> = descriptor.iter().map(|fd| fd.as_fd()).collect();
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(line, &[IoSlice::new(message)], &mut control, flags) {
                Ok(_) => drop(self.waiting.pop_front()),
                Err(Errno::INTR) => {}
                // Too many of a user's descriptors on their way: the next turn finds some taken.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => return,
                Err(_) => return self.leave(),
            }
        }
    }

    /// What else it asks for; None: nothing now.
    pub fn asked(&mut self) -> Option<Wanted> {
        let mut message = [0; LONGEST];
        loop {
            let line = self.line.as_ref()?;
            match rustix::net::recv(line, &mut message[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC)
            {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Ok((_, length @ 1..=LONGEST)) => {
                    let asked = reader::from_slice::<Dial>(&message[..length]).ok();
                    let wanted = asked.and_then(|asked| {
                        let host = http_hosts::read(asked.dial.as_bytes())?;
                        (asked.port != 0).then_some(Wanted { id: asked.id, host, port: asked.port })
                    });
                    if wanted.is_none() {
                        self.leave();
                    }
                    return wanted;
                }
                Ok(_) | Err(_) => {
                    self.leave();
                    return None;
                }
            }
        }
    }

    /// Whoever waits is cut off.
    fn leave(&mut self) {
        self.line = None;
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
    fn heard(line: &OwnedFd) -> (Vec<u8>, bool) {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let length =
            rustix::net::recvmsg(line, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
                .unwrap()
                .bytes;
        let came =
            control.drain().any(|message| matches!(message, RecvAncillaryMessage::ScmRights(_)));
        (bytes[..length].to_vec(), came)
    }

    #[test]
    fn what_is_handed_over_and_answered_is_read_by_the_other_side() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut handover = Handover::new(Some(ours));
        let (client, server) = socket_pair::pair().unwrap();
        let name = Name::read(b"api.paddock.internal").unwrap();
        assert!(handover.takes());
        handover.give(client, Kind::Route, &name, 80, b"GET / ");
        let expected =
            b"{\"host\":\"api.paddock.internal\",\"kind\":\"route\",\"port\":80}\0GET / ";
        assert_eq!(heard(&theirs), (expected.to_vec(), true));
        assert!(handover.asked().is_none());

        let ask =
            |text: &str| rustix::net::send(&theirs, text.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        ask("{\"dial\":\"::1\",\"id\":7,\"port\":443}");
        let wanted = handover.asked().unwrap();
        assert_eq!((wanted.id, wanted.host.to_string(), wanted.port), (7, "::1".to_owned(), 443));
        handover.reached(7, server, "::1".parse().unwrap());
        assert_eq!(heard(&theirs), (b"{\"address\":\"::1\",\"id\":7}".to_vec(), true));
        handover.not_reached(8, "a \"rule\"", true);
        assert_eq!(
            heard(&theirs),
            (b"{\"denied\":true,\"id\":8,\"reason\":\"a \\\"rule\\\"\"}".to_vec(), false)
        );
    }

    #[test]
    fn who_talks_nonsense_or_is_gone_gets_nothing_more() {
        let nonsense = [
            "x",
            "{}",
            "{\"dial\":\"a.example\",\"id\":1,\"port\":0}",
            "{\"dial\":\"a b\",\"id\":1,\"port\":80}",
            "{\"dial\":\"a.example\",\"id\":1,\"port\":80,\"more\":1}",
        ];
        for text in
            nonsense.into_iter().map(str::to_owned).chain(["x".repeat(LONGEST + 1), String::new()])
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
            assert!(handover.asked().is_none(), "{text}");
            assert!(!handover.takes(), "{text}");
            drop(theirs);
        }
    }

    #[test]
    fn what_does_not_fit_waits_its_turn_and_the_rest_is_cut_off() {
        let (ours, theirs) = socket_pair::pair().unwrap();
        let mut handover = Handover::new(Some(ours));
        let name = Name::read(b"api.paddock.internal").unwrap();
        let mut given = 0_usize;
        // One descriptor for all: how many may be on their way is bounded.
        let (client, _) = socket_pair::pair().unwrap();
        while handover.waiting.len() < 16 {
            assert!(handover.takes());
            handover.give(client.try_clone().unwrap(), Kind::Route, &name, 80, &[b'x'; 2000]);
            given += 1;
        }
        let mut taken = 0;
        while taken < given {
            let (message, came) = heard(&theirs);
            assert!(came && message.ends_with(b"x"));
            taken += 1;
            handover.flush();
        }
        assert!(handover.waiting.is_empty());
    }
}
