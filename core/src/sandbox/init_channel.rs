//! Messages between init and the supervisor: one datagram each, some with descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use rustix::process::WaitStatus;

use crate::files::cover::{Cover, CoverKind};
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::{AbsPath, Text};

/// Longer texts are cut. This is enough for a path and its error.
const MAX_MESSAGE_BYTES: usize = 6 * 1024;
/// At most so many descriptors come with a message.
pub const MAX_MESSAGE_FDS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitMessage {
    /// Nothing was started, with the reason.
    Refused {
        error: String,
        hint: String,
    },
    /// The sandbox was complete, but the command was not executed: an errno.
    NotExecuted(i32),
    /// From the supervisor: init may begin. From init: the command runs.
    Started,
    /// The command is about to be executed. The descriptor is the listener of its calls.
    Listening,
    /// Sockets of the command's network, for the relay. There are as many of these messages as
    /// needed.
    Network,
    /// The root of a copy as the command sees it, and its layer of whiteouts.
    Copied,
    /// From the supervisor: a part of the locations of grants
    /// ([`crate::sandbox::landlock::grant_location`]).
    GrantLocations(Vec<u8>),
    /// From the supervisor: names that a copy hides, relative to it, with a NUL between two.
    Hide(Vec<u8>),
    /// From the supervisor: a part of the result of its scan
    /// ([`crate::files::writes::ScannedNames`]).
    ScannedNames(Vec<u8>),
    /// From the supervisor: a name that has to be covered before the command starts.
    Cover(Cover),
    /// From the supervisor: the last list is complete.
    All,
    /// From init: an object to cover has moved. The supervisor searches and sends again.
    Moved,
    /// The command was stopped by a signal.
    Stopped(i32),
    Exited(i32),
    Killed(i32),
}

impl InitMessage {
    /// The message for a status of the command. None: the status is no news.
    pub fn of_status(status: WaitStatus) -> Option<InitMessage> {
        match (status.exit_status(), status.terminating_signal(), status.stopping_signal()) {
            (Some(code), _, _) => Some(InitMessage::Exited(code)),
            (None, Some(signal), _) => Some(InitMessage::Killed(signal)),
            (None, None, Some(signal)) => Some(InitMessage::Stopped(signal)),
            _ => None,
        }
    }

    /// In as few messages as possible.
    pub fn hiding(names: impl Iterator<Item = Vec<u8>>) -> Vec<InitMessage> {
        let mut messages: Vec<Vec<u8>> = Vec::new();
        for name in names {
            match messages.last_mut() {
                Some(message) if message.len() + 1 + name.len() < MAX_MESSAGE_BYTES => {
                    message.push(0);
                    message.extend(name);
                }
                _ => messages.push(name),
            }
        }
        messages.into_iter().map(InitMessage::Hide).collect()
    }

    /// As few words as it takes.
    pub fn grant_locations(bytes: &[u8]) -> impl Iterator<Item = InitMessage> {
        bytes.chunks(MAX_MESSAGE_BYTES - 1).map(|part| InitMessage::GrantLocations(part.to_vec()))
    }

    pub fn scanned_names(text: &str) -> impl Iterator<Item = InitMessage> {
        let parts = text.as_bytes().chunks(MAX_MESSAGE_BYTES - 1);
        parts.map(|part| InitMessage::ScannedNames(part.to_vec()))
    }

    fn bytes(&self) -> Vec<u8> {
        let number = |tag: u8, number: i32| [&[tag][..], &number.to_le_bytes()].concat();
        match self {
            InitMessage::Refused { error, hint } => {
                let cut = |text: &str| {
                    text.as_bytes()[..text.len().min(MAX_MESSAGE_BYTES / 2 - 8)].to_vec()
                };
                [b"R".to_vec(), cut(error), vec![0], cut(hint)].concat()
            }
            InitMessage::NotExecuted(errno) => number(b'N', *errno),
            InitMessage::Started => number(b'S', 0),
            InitMessage::Listening => number(b'L', 0),
            InitMessage::Network => number(b'W', 0),
            InitMessage::Copied => number(b'O', 0),
            InitMessage::Cover(Cover { path, identity, directory, kind }) => {
                let kind = match kind {
                    CoverKind::Mask => b'M',
                    CoverKind::ForeignSocket => b'S',
                    CoverKind::Lock => b'L',
                    CoverKind::Pin => b'P',
                };
                let (device, inode) =
                    (identity.device.to_le_bytes(), identity.inode().to_le_bytes());
                [&[b'C', kind, u8::from(*directory)], &device[..], &inode, path.as_bytes()].concat()
            }
            InitMessage::GrantLocations(part) => [b"P", &part[..]].concat(),
            InitMessage::Hide(names) => [b"H", &names[..]].concat(),
            InitMessage::ScannedNames(part) => [b"D", &part[..]].concat(),
            InitMessage::All => number(b'A', 0),
            InitMessage::Moved => number(b'M', 0),
            InitMessage::Stopped(signal) => number(b'T', *signal),
            InitMessage::Exited(code) => number(b'E', *code),
            InitMessage::Killed(signal) => number(b'K', *signal),
        }
    }

    fn parse(bytes: &[u8]) -> Option<InitMessage> {
        let (tag, rest) = bytes.split_first()?;
        if *tag == b'R' {
            let mut texts = rest
                .splitn(2, |byte| *byte == 0)
                .map(|text| String::from_utf8_lossy(text).into_owned());
            return Some(InitMessage::Refused { error: texts.next()?, hint: texts.next()? });
        }
        if *tag == b'P' {
            return Some(InitMessage::GrantLocations(rest.to_vec()));
        }
        if *tag == b'H' {
            return Some(InitMessage::Hide(rest.to_vec()));
        }
        if *tag == b'D' {
            return Some(InitMessage::ScannedNames(rest.to_vec()));
        }
        if *tag == b'C' {
            return parse_cover(rest).map(InitMessage::Cover);
        }
        let number = i32::from_le_bytes(rest.try_into().ok()?);
        Some(match tag {
            b'N' => InitMessage::NotExecuted(number),
            b'S' => InitMessage::Started,
            b'L' => InitMessage::Listening,
            b'W' => InitMessage::Network,
            b'O' => InitMessage::Copied,
            b'A' => InitMessage::All,
            b'M' => InitMessage::Moved,
            b'T' => InitMessage::Stopped(number),
            b'E' => InitMessage::Exited(number),
            b'K' => InitMessage::Killed(number),
            _ => return None,
        })
    }
}

fn parse_cover(bytes: &[u8]) -> Option<Cover> {
    let ([kind, directory], rest) = bytes.split_first_chunk()?;
    let (device, rest) = rest.split_first_chunk()?;
    let (inode, path) = rest.split_first_chunk()?;
    let kind = match kind {
        b'M' => CoverKind::Mask,
        b'S' => CoverKind::ForeignSocket,
        b'L' => CoverKind::Lock,
        b'P' => CoverKind::Pin,
        _ => return None,
    };
    let path = Text::from_bytes(path.to_vec()).and_then(AbsPath::new).ok()?;
    let identity = Identity::from((u64::from_le_bytes(*device), u64::from_le_bytes(*inode)));
    Some(Cover { path, identity, directory: *directory != 0, kind })
}

/// Closes descriptors without waiting for the teardown. They are sent into a socket that only holds
/// itself, and the kernel's garbage collector of such sockets waits. If that fails, this process
/// waits.
pub fn abandon(descriptors: Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok((in_flight, other)) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
    else {
        return;
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let going: Vec<BorrowedFd<'_>> =
        descriptors.iter().chain([&in_flight]).map(OwnedFd::as_fd).collect();
    if control.push(SendAncillaryMessage::ScmRights(&going)) {
        let _ =
            rustix::net::sendmsg(&other, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL);
    }
    drop(descriptors);
    drop(in_flight);
    drop(other); // this one's end starts the collector
}

pub fn send(
    channel: impl AsFd,
    message: &InitMessage,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let bytes = message.bytes();
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Errno::NAMETOOLONG); // no call takes a path of this length either
    }
    rustix::net::sendmsg(channel, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
        .map(drop)
}

/// None: init has ended. Errno::AGAIN: no message waits (only without `wait`).
pub fn receive(
    channel: impl AsFd,
    wait: bool,
) -> Result<Option<(InitMessage, Vec<OwnedFd>)>, Errno> {
    let mut bytes = [0; MAX_MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags =
        RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let received = loop {
        match rustix::net::recvmsg(
            &channel,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            flags,
        ) {
            // The other side ended before it read everything. The kernel reports that once, then
            // delivers its own messages.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    InitMessage::parse(&bytes[..received.bytes])
        .map(|message| Some((message, descriptors)))
        .ok_or(Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cover(kind: CoverKind, directory: bool) -> Cover {
        let path = AbsPath::new(Text::from_bytes(b"/w/\xff x/.env".to_vec()).unwrap()).unwrap();
        Cover { path, identity: Identity::from((u64::MAX, 1 << 40)), directory, kind }
    }

    #[test]
    fn hidden_names_share_messages_up_to_the_limit() {
        let (ours, theirs) = crate::kernel::socket_pair::pair().unwrap();
        let names: Vec<Vec<u8>> =
            (0..2000).map(|number| format!("dir-{number}/.env").into_bytes()).collect();
        let messages = InitMessage::hiding(names.iter().cloned());
        assert!((2..10).contains(&messages.len()), "{}", messages.len());
        let mut received = Vec::new();
        for message in &messages {
            send(&theirs, message, &[]).unwrap();
            let Some((InitMessage::Hide(some), _)) = receive(&ours, true).unwrap() else {
                panic!("another word")
            };
            received.extend(some.split(|byte| *byte == 0).map(<[u8]>::to_vec));
        }
        assert_eq!(received, names);
        assert!(InitMessage::hiding(std::iter::empty()).is_empty());
    }

    #[test]
    fn grant_locations_are_split_at_the_message_limit() {
        let (ours, theirs) = crate::kernel::socket_pair::pair().unwrap();
        let bytes: Vec<u8> = (0..3 * MAX_MESSAGE_BYTES).map(|number| number as u8).collect();
        let mut received = Vec::new();
        for message in InitMessage::grant_locations(&bytes) {
            send(&theirs, &message, &[]).unwrap();
            let Some((InitMessage::GrantLocations(part), _)) = receive(&ours, true).unwrap() else {
                panic!("another word")
            };
            received.extend(part);
        }
        assert_eq!(received, bytes);
        assert_eq!(InitMessage::grant_locations(&[]).count(), 0);
    }

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (ours, theirs) = crate::kernel::socket_pair::pair().unwrap();
        let messages = [
            InitMessage::Refused { error: "cannot open /x".to_owned(), hint: "look".to_owned() },
            InitMessage::NotExecuted(13),
            InitMessage::Started,
            InitMessage::Listening,
            InitMessage::Network,
            InitMessage::Hide(b".env\0a/\xff/id_rsa".to_vec()),
            InitMessage::Cover(cover(CoverKind::Mask, false)),
            InitMessage::Cover(cover(CoverKind::Lock, true)),
            InitMessage::Cover(cover(CoverKind::Pin, true)),
            InitMessage::GrantLocations(b"\x00\xff/usr".to_vec()),
            InitMessage::ScannedNames(b"{}".to_vec()),
            InitMessage::All,
            InitMessage::Moved,
            InitMessage::Stopped(19),
            InitMessage::Exited(7),
            InitMessage::Killed(9),
        ];
        for message in &messages {
            send(&theirs, message, &[]).unwrap();
            assert_eq!(receive(&ours, true).unwrap().unwrap().0, *message);
        }
        let path = AbsPath::new(
            Text::from_bytes([b'/'].into_iter().chain([b'x'; MAX_MESSAGE_BYTES]).collect())
                .unwrap(),
        )
        .unwrap();
        let long = InitMessage::Cover(Cover { path, ..cover(CoverKind::Mask, false) });
        assert_eq!(send(&theirs, &long, &[]), Err(Errno::NAMETOOLONG));
        assert_eq!(receive(&ours, false).unwrap_err(), Errno::AGAIN);
        send(&theirs, &InitMessage::Started, &[ours.as_fd(), theirs.as_fd()]).unwrap();
        assert_eq!(receive(&ours, true).unwrap().unwrap().1.len(), 2);
        drop(theirs);
        assert!(receive(&ours, true).unwrap().is_none());
    }
}
