//! `record`: writes events of the Python side to the journal, through the one writer. Tool calls
//! run in Python and do not pass through the sandbox.
//!
//! One socket, one datagram for each message. Each message is answered when its event is in the
//! journal, or with an error. The sender does nothing before that answer. A message that can not be
//! parsed ends this process, and with it the calls that need the journal.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::error::Refusal;
use crate::journal::Journal;
use crate::journal::event::Event;
use crate::journal::event::tool::ToolRecord;
use crate::kernel::random_name::random_name;
use crate::plan::Plan;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::sandbox::landlock;

const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Serves until the parent closes the socket.
pub fn serve(plan: &Plan, uid: u32, socket: &OwnedFd) -> Result<i32, Refusal> {
    landlock::check_journal_path(plan)?;
    let requested = plan.journal.as_ref().ok_or(Refusal::Usage("the plan has no journal"))?;
    let session = random_name().map_err(Refusal::Random)?;
    let journal = Journal::open(requested, uid, session.clone())?;
    let mut buffer = vec![0; MAX_MESSAGE_BYTES + 1];
    if !send(socket, &format!("{{\"session\":\"{session}\"}}")) {
        return Ok(0);
    }
    loop {
        let length = match rustix::net::recv(socket, &mut buffer, RecvFlags::TRUNC) {
            Err(Errno::INTR) => continue,
            Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(0),
            Ok((_, length)) if length <= MAX_MESSAGE_BYTES => length,
            Ok(_) | Err(_) => return Err(Refusal::Usage("a message for the journal is too long")),
        };
        let record = ToolRecord::read(&buffer[..length])
            .ok_or(Refusal::Usage("a message for the journal is invalid"))?;
        let mut answer = String::from("{\"error\":");
        match journal.append(&Event::Record(&record)) {
            Ok(()) => answer.push_str("null"),
            Err(error) => {
                writer::string(&mut answer, error.to_string().as_bytes(), NonUtf8::Surrogate)
            }
        }
        answer.push('}');
        if !send(socket, &answer) {
            return Ok(0);
        }
    }
}

/// False: the other end is closed.
fn send(socket: &OwnedFd, message: &str) -> bool {
    loop {
        match rustix::net::send(socket, message.as_bytes(), SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.is_ok(),
        }
    }
}
