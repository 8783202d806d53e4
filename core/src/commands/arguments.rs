//! The command line of `paddock-core`.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::SocketType;

use super::error::Refusal;
use super::try_file_access::Operation;
use crate::kernel::{proc_text, sys};
use crate::network::{CommandNetwork, RelayArguments};
use crate::plan::PlanError;

/// The command line; arguments are taken from its front.
pub struct Arguments(std::iter::Peekable<std::vec::IntoIter<CString>>);

impl Arguments {
    /// `words` does not include the name of the program.
    pub fn new(words: Vec<CString>) -> Arguments {
        Arguments(words.into_iter().peekable())
    }

    pub fn next(&mut self) -> Option<Vec<u8>> {
        self.0.next().map(CString::into_bytes)
    }

    pub fn flag(&mut self, name: &[u8]) -> bool {
        self.0.next_if(|word| word.as_bytes() == name).is_some()
    }

    pub fn plan_fd(&mut self) -> Result<OwnedFd, Refusal> {
        if !self.flag(b"--plan-fd") {
            return Err(Refusal::Usage("--plan-fd N is missing"));
        }
        let number = self.number().ok_or(Refusal::Usage("--plan-fd takes a number"))?;
        sys::inherited_descriptor(number).ok_or(PlanError::NotOpen(number).into())
    }

    /// The socket of the approver, or of the session owner.
    pub fn socket(&mut self, name: &[u8]) -> Result<Option<OwnedFd>, Refusal> {
        if !self.flag(name) {
            return Ok(None);
        }
        let socket = self.number().and_then(sys::inherited_descriptor);
        let whole = |socket: &OwnedFd| {
            rustix::net::sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
        };
        let usage = "--companion and --holder take a SOCK_SEQPACKET socket";
        socket.filter(whole).map(Some).ok_or(Refusal::Usage(usage))
    }

    /// The grace period of the exec server, in seconds.
    pub fn grace(&mut self) -> Result<Option<Duration>, Refusal> {
        if !self.flag(b"--grace") {
            return Ok(None);
        }
        let seconds = self.next().and_then(|digits| proc_text::number(&digits));
        seconds
            .map(|seconds| Some(Duration::from_secs(seconds)))
            .ok_or(Refusal::Usage("--grace takes seconds"))
    }

    /// For the relay: the socket for its decisions, and the descriptors that it serves.
    pub fn sockets(mut self) -> Result<(OwnedFd, RelayArguments), Refusal> {
        let line = self.line()?;
        let mut command_network = None;
        if self.flag(b"--within") {
            let mut space = || self.number().and_then(sys::inherited_descriptor);
            let (Some(user), Some(network)) = (space(), space()) else {
                return Err(Refusal::Usage("--within takes two namespaces"));
            };
            command_network = Some(CommandNetwork { user, network });
        }
        let mut handover = None;
        if self.flag(b"--handover") {
            let socket = self.number().and_then(sys::inherited_descriptor);
            handover = Some(socket.ok_or(Refusal::Usage("--handover takes a socket"))?);
        }
        if !self.flag(b"--sockets") {
            return Err(Refusal::Usage("--sockets is missing"));
        }
        let mut sockets = Vec::new();
        while self.0.peek().is_some() {
            let socket = self.number().and_then(sys::inherited_descriptor);
            sockets.push(socket.ok_or(Refusal::Usage("--sockets takes sockets"))?);
        }
        Ok((line, RelayArguments { command_network, handover, sockets }))
    }

    pub fn line(&mut self) -> Result<OwnedFd, Refusal> {
        let line = if self.flag(b"--line") {
            self.number().and_then(sys::inherited_descriptor)
        } else {
            None
        };
        line.ok_or(Refusal::Usage("--line takes a socket"))
    }

    fn number(&mut self) -> Option<i32> {
        self.next().and_then(|word| String::from_utf8(word).ok())?.parse().ok()
    }

    pub fn operation(&mut self) -> Result<Operation, Refusal> {
        if !self.flag(b"--op") {
            return Err(Refusal::Usage("--op read|write|exec is missing"));
        }
        let operation = self.next().and_then(|word| Operation::named(&word));
        operation.ok_or(Refusal::Usage("--op takes read, write or exec"))
    }

    pub fn path(&mut self) -> Result<CString, Refusal> {
        self.0.next().ok_or(Refusal::Usage("a path is missing"))
    }

    pub fn command(self) -> Result<Vec<CString>, Refusal> {
        let mut words = self.0;
        if words.next_if(|word| word.as_bytes() == b"--").is_none() {
            return Err(Refusal::Usage("-- and COMMAND are missing"));
        }
        let argv: Vec<CString> = words.collect();
        if argv.is_empty() { Err(Refusal::Usage("no command was given")) } else { Ok(argv) }
    }

    pub fn end(mut self) -> Result<(), Refusal> {
        match self.0.next() {
            None => Ok(()),
            Some(_) => Err(Refusal::Usage("too many arguments")),
        }
    }
}
