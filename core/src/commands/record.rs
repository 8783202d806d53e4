//! `record`: what the Python half has to journal, written by the one writer. Tool calls are its
//! own; they never meet the fence.
//!
//! One socket, one datagram a message. Each is answered when it is in the journal, or with what is
//! wrong: whoever asked does nothing before that. A message that is not understood ends it, and
//! with it the calls that would have to be journaled.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::error::Refusal;
use crate::journal::Journal;
use crate::journal::event::Event;
use crate::journal::event::tool::Record;
use crate::kernel::random::random_name;
use crate::plan::Plan;
use crate::plan::wire::writer::{self, Invalid};
use crate::sandbox::landlock;

/// Of a message.
const LONGEST: usize = 64 * 1024;
/// Until whoever started us closes the line.
pub fn attend(plan: &Plan, uid: u32, line: &OwnedFd) -> Result<i32, Refusal> {
    landlock::check_journal_way(plan)?;
    let requested = plan.journal.as_ref().ok_or(Refusal::Usage("the plan has no journal"))?;
    let session = random_name().map_err(Refusal::Random)?;
    let journal = Journal::open(requested, uid, session.clone())?;
    let mut buffer = vec![0; LONGEST + 1];
    if !say(line, &format!("{{\"session\":\"{session}\"}}")) {
        return Ok(0);
    }
    loop {
        let length = match rustix::net::recv(line, &mut buffer, RecvFlags::TRUNC) {
            Err(Errno::INTR) => continue,
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(0),
            Ok((_, length)) if length <= LONGEST => length,
            Ok(_) | Err(_) => return Err(Refusal::Usage("a message for the journal is too long")),
        };
        let record = Record::read(&buffer[..length])
            .ok_or(Refusal::Usage("a message for the journal is invalid"))?;
        let mut answer = String::from("{\"error\":");
        match journal.append(&Event::Record(&record)) {
            Ok(()) => answer.push_str("null"),
            Err(error) => {
                writer::string(&mut answer, error.to_string().as_bytes(), Invalid::Surrogate)
            }
        }
        answer.push('}');
        if !say(line, &answer) {
            return Ok(0);
        }
    }
}

/// False: nobody listens any more.
fn say(line: &OwnedFd, message: &str) -> bool {
    loop {
        match rustix::net::send(line, message.as_bytes(), SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.is_ok(),
        }
    }
}
