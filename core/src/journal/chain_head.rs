//! `head`: the end of the chain, and lost events that the journal does not mention yet.
//!
//! The first line is `seq hash file size`. Then, each after a NUL, which no file name contains,
//! follows `session count reason` for sessions that could not write. The file has a disk block as
//! soon as there are events: on a full disk it can still be written when the journal can not.

use std::ffi::CString;
use std::io::Write as _;

pub const MAX_HEAD_BYTES: usize = 2048;
pub const FIRST_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[derive(Debug, PartialEq, Eq)]
pub struct JournalHead {
    pub seq: u64,
    pub hash: String,
    pub file: CString,
    pub size: u64,
    pub losses: Vec<Loss>,
}

/// Events of a session that could not be written, and the reason for the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub session: String,
    pub count: u64,
    pub reason: String,
}

impl JournalHead {
    pub fn first(file: &CString) -> JournalHead {
        JournalHead {
            seq: 0,
            hash: FIRST_HASH.to_owned(),
            file: file.clone(),
            size: 0,
            losses: Vec::new(),
        }
    }

    pub fn add(&mut self, loss: &Loss) {
        match self.losses.iter_mut().find(|known| known.session == loss.session) {
            Some(known) => known.count += loss.count,
            None => self.losses.push(loss.clone()),
        }
    }

    pub fn parse(stored: &[u8]) -> Option<JournalHead> {
        let mut parts = stored.split(|byte| *byte == 0);
        let line = parts.next()?.strip_suffix(b"\n")?;
        // A fixed file name may contain spaces. It is the text between the hash and the size.
        let mut front = line.splitn(3, |byte| *byte == b' ');
        let (seq, hash, rest) = (front.next()?, front.next()?, front.next()?);
        let split = rest.iter().rposition(|byte| *byte == b' ')?;
        let hash = std::str::from_utf8(hash).ok()?;
        let file = &rest[..split];
        let plain = !file.is_empty() && !file.contains(&b'/') && file != b"." && file != b"..";
        (plain
            && hash.len() == FIRST_HASH.len()
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .then_some(())?;
        Some(JournalHead {
            seq: number(seq)?,
            hash: hash.to_owned(),
            file: CString::new(file).ok()?,
            size: number(&rest[split + 1..])?,
            losses: parts
                .filter(|part| !part.is_empty())
                .map(Loss::parse)
                .collect::<Option<_>>()?,
        })
    }

    pub fn text(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.hash.len() + self.file.as_bytes().len() + 44);
        let _ = write!(text, "{} {} ", self.seq, self.hash);
        text.extend_from_slice(self.file.as_bytes());
        let _ = writeln!(text, " {}", self.size);
        for Loss { session, count, reason } in &self.losses {
            let _ = writeln!(text, "\0{session} {count} {reason}");
        }
        text
    }
}

impl Loss {
    fn parse(part: &[u8]) -> Option<Loss> {
        let mut parts = std::str::from_utf8(part).ok()?.strip_suffix('\n')?.splitn(3, ' ');
        let (session, count, reason) = (parts.next()?, parts.next()?, parts.next()?);
        session.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(())?;
        Some(Loss {
            session: session.to_owned(),
            count: number(count.as_bytes())?,
            reason: reason.to_owned(),
        })
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
