//! What init tells the supervisor: one datagram each, the first with descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};

/// Longer texts are cut: a path and what is wrong with it.
const LONGEST: usize = 6 * 1024;
/// At most so many descriptors come with [`Word::Started`].
const DESCRIPTORS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Nothing was started, and why.
    Refused {
        error: String,
        hint: String,
    },
    /// The fence stood, but the command was not executed: an errno.
    NotExecuted(i32),
    /// The command runs.
    Started,
    /// The command was stopped by a signal.
    Stopped(i32),
    Exited(i32),
    Killed(i32),
}

impl Word {
    fn bytes(&self) -> Vec<u8> {
        let number = |tag: u8, number: i32| [&[tag][..], &number.to_le_bytes()].concat();
        match self {
            Word::Refused { error, hint } => {
                let cut = |text: &str| text.as_bytes()[..text.len().min(LONGEST / 2 - 8)].to_vec();
                [b"R".to_vec(), cut(error), vec![0], cut(hint)].concat()
            }
            Word::NotExecuted(errno) => number(b'N', *errno),
            Word::Started => number(b'S', 0),
            Word::Stopped(signal) => number(b'T', *signal),
            Word::Exited(code) => number(b'E', *code),
            Word::Killed(signal) => number(b'K', *signal),
        }
    }

    fn parse(bytes: &[u8]) -> Option<Word> {
        let (tag, rest) = bytes.split_first()?;
        if *tag == b'R' {
            let mut texts = rest.splitn(2, |byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
            return Some(Word::Refused { error: texts.next()?, hint: texts.next()? });
        }
        let number = i32::from_le_bytes(rest.try_into().ok()?);
        Some(match tag {
            b'N' => Word::NotExecuted(number),
            b'S' => Word::Started,
            b'T' => Word::Stopped(number),
            b'E' => Word::Exited(number),
            b'K' => Word::Killed(number),
            _ => return None,
        })
    }
}

/// (the supervisor's end, init's end)
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

pub fn send(channel: impl AsFd, word: &Word, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(channel, &[IoSlice::new(&word.bytes())], &mut control, SendFlags::NOSIGNAL).map(drop)
}

/// None: init is gone. Errno::AGAIN: it has nothing to say (only without `wait`).
pub fn receive(channel: impl AsFd, wait: bool) -> Result<Option<(Word, Vec<OwnedFd>)>, Errno> {
    let mut bytes = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
    let received = loop {
        match rustix::net::recvmsg(&channel, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
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
    Word::parse(&bytes[..received.bytes]).map(|word| Some((word, descriptors))).ok_or(Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_arrives_as_it_was_said() {
        let (ours, theirs) = pair().unwrap();
        let words = [
            Word::Refused { error: "can not open /x".to_owned(), hint: "look".to_owned() },
            Word::NotExecuted(13),
            Word::Started,
            Word::Stopped(19),
            Word::Exited(7),
            Word::Killed(9),
        ];
        for word in &words {
            send(&theirs, word, &[]).unwrap();
            assert_eq!(receive(&ours, true).unwrap().unwrap().0, *word);
        }
        assert_eq!(receive(&ours, false).unwrap_err(), Errno::AGAIN);
        send(&theirs, &Word::Started, &[ours.as_fd(), theirs.as_fd()]).unwrap();
        assert_eq!(receive(&ours, true).unwrap().unwrap().1.len(), 2);
        drop(theirs);
        assert!(receive(&ours, true).unwrap().is_none());
    }
}
