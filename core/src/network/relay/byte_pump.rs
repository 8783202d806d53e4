//! One direction of a connection: copies bytes from one socket to the other, as fast as the slower
//! one takes them. Large amounts that need no check go through a pipe (splice). The rest is copied,
//! and no byte passes before it is judged.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::SpliceFlags;

use super::sniffer::{SniffResult, SniffedDenial, Sniffer};
use super::splice_pipes::{Pipe, Pipes};
use crate::network::supervisor::proxy_password::ProxyToken;

/// After a read of this size the next bytes go through a pipe. For less, copying is cheaper than
/// moving pages.
const MIN_SPLICE_BYTES: usize = 32 << 10;

/// A pipe that moves less is not worth its cost.
const MIN_PIPE_BYTES: usize = 4 << 10;

/// The most that one splice moves: more than any pipe holds.
const MAX_SPLICE_BYTES: u64 = 1 << 20;

/// Moves of one direction before other connections get their turn.
const MAX_MOVES_PER_TURN: usize = 8;

/// All bytes may pass.
const UNLIMITED: u64 = u64::MAX;

/// A socket, and its last known state from epoll.
pub struct PumpSocket {
    pub socket: OwnedFd,
    pub readable: bool,
    pub writable: bool,
    /// The end of the stream or an error follows the readable bytes: a short read is not the last.
    pub hung_up: bool,
}

impl PumpSocket {
    pub fn new(socket: OwnedFd) -> PumpSocket {
        PumpSocket { socket, readable: false, writable: false, hung_up: false }
    }

    pub fn note_events(&mut self, flags: EventFlags) {
        let over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        self.hung_up |= over || flags.contains(EventFlags::RDHUP);
        self.readable |= self.hung_up || flags.contains(EventFlags::IN);
        self.writable |= over || flags.contains(EventFlags::OUT);
    }

    /// The peer sees a reset instead of an end.
    pub fn reset_when_closed(&self) {
        let _ =
            rustix::net::sockopt::set_socket_linger(&self.socket, Some(std::time::Duration::ZERO));
    }
}

/// Buffers that all connections share.
pub struct PumpTools {
    /// As long as the longest judged head.
    pub scratch: Box<[u8]>,
    pub pipes: Pipes,
    /// The password of the proxy. None: there is no proxy.
    pub token: Option<ProxyToken>,
}

pub enum PumpError {
    /// The source is broken.
    Read,
    /// The destination is broken.
    Write,
    Denied(SniffedDenial),
}

pub struct ByteFlow {
    /// Bytes that were read and not passed on yet.
    unsent: Vec<u8>,
    pipe: Option<Pipe>,
    /// This many bytes may pass; later ones must be judged.
    allowed_bytes: u64,
    pub total: u64,
    bulk: bool,
    /// The source has ended.
    ended: bool,
    /// The end was passed to the destination, unless `leaves_open`.
    shut: bool,
    pub leaves_open: bool,
}

impl ByteFlow {
    pub fn unchecked() -> ByteFlow {
        ByteFlow {
            unsent: Vec::new(),
            pipe: None,
            allowed_bytes: UNLIMITED,
            total: 0,
            bulk: false,
            ended: false,
            shut: false,
            leaves_open: false,
        }
    }

    pub fn checked() -> ByteFlow {
        ByteFlow { allowed_bytes: 0, ..ByteFlow::unchecked() }
    }

    /// Starts with bytes that were already read.
    pub fn with_unsent(self, unsent: Vec<u8>) -> ByteFlow {
        ByteFlow { unsent, ..self }
    }

    /// The bytes that were read and not passed on.
    pub fn into_unsent(self) -> Vec<u8> {
        self.unsent
    }

    /// True if the available bytes can not be judged yet.
    pub fn has_undecided_bytes(&self) -> bool {
        !self.unsent.is_empty() && self.allowed_bytes == 0
    }

    /// Moves bytes without blocking. True: there may be more.
    pub fn pump(
        &mut self,
        from: &mut PumpSocket,
        to: &mut PumpSocket,
        mut sniffer: Option<&mut Sniffer>,
        tools: &mut PumpTools,
    ) -> Result<bool, PumpError> {
        for _ in 0..MAX_MOVES_PER_TURN {
            if !self.deliver(to, sniffer.as_deref_mut(), tools)? {
                return Ok(false);
            }
            if self.ended {
                // The bytes can still be judged.
                if sniffer.as_deref().is_some_and(Sniffer::awaits_answer) {
                    return Ok(false);
                }
                if let Some(sniffer) = sniffer
                    && !self.shut
                    && sniffer.judge_end(&self.unsent).map_err(PumpError::Denied)?
                    && !self.unsent.is_empty()
                {
                    self.allowed_bytes = UNLIMITED;
                    if !self.deliver(to, None, tools)? {
                        return Ok(false);
                    }
                }
                // Undecided bytes at the end are dropped: no server reads them as a request.
                self.unsent = Vec::new();
                if !self.shut {
                    self.shut = true;
                    if !self.leaves_open {
                        let _ = rustix::net::shutdown(&to.socket, Shutdown::Write);
                    }
                }
                return Ok(false);
            }
            if !from.readable {
                return Ok(false);
            }
            if !self.fill_pipe(from, tools)? {
                self.read(from, to, sniffer.as_deref_mut(), tools)?;
            }
        }
        Ok(true)
    }

    /// Passes on the bytes that are here. False: the destination takes no more now.
    fn deliver(
        &mut self,
        to: &mut PumpSocket,
        sniffer: Option<&mut Sniffer>,
        tools: &mut PumpTools,
    ) -> Result<bool, PumpError> {
        if let Some(mut pipe) = self.pipe.take() {
            while pipe.bytes > 0 && to.writable {
                match rustix::pipe::splice(
                    &pipe.out,
                    None,
                    &to.socket,
                    None,
                    pipe.bytes,
                    SpliceFlags::NONBLOCK,
                ) {
                    Ok(moved) => {
                        pipe.bytes -= moved;
                        self.total += moved as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => to.writable = false,
                    Err(_) => {
                        tools.pipes.put_back(pipe);
                        return Err(PumpError::Write);
                    }
                }
            }
            if pipe.bytes > 0 {
                self.pipe = Some(pipe);
                return Ok(false);
            }
            tools.pipes.put_back(pipe);
        }
        if !self.unsent.is_empty() {
            let mut unsent = std::mem::take(&mut self.unsent);
            let passed = self.pass(&unsent, to, sniffer)?;
            if passed < unsent.len() {
                unsent.drain(..passed);
                self.unsent = unsent;
                return Ok(self.allowed_bytes == 0);
            }
        }
        Ok(true)
    }

    /// Reads into a pipe if that is worth it. False: read by copying.
    fn fill_pipe(
        &mut self,
        from: &mut PumpSocket,
        tools: &mut PumpTools,
    ) -> Result<bool, PumpError> {
        if !self.bulk || !self.unsent.is_empty() || self.allowed_bytes < MIN_SPLICE_BYTES as u64 {
            return Ok(false);
        }
        let Some(mut pipe) = tools.pipes.take() else { return Ok(false) };
        let length = self.allowed_bytes.min(MAX_SPLICE_BYTES) as usize;
        match rustix::pipe::splice(
            &from.socket,
            None,
            &pipe.into,
            None,
            length,
            SpliceFlags::NONBLOCK,
        ) {
            Ok(0) => self.ended = true,
            Ok(length) => {
                pipe.bytes = length;
                self.use_allowance(length);
                self.bulk = length > MIN_PIPE_BYTES;
                self.pipe = Some(pipe);
                return Ok(true);
            }
            Err(Errno::INTR) => {}
            // The pipe is empty, so the socket has nothing to read.
            Err(Errno::AGAIN) => from.readable = false,
            Err(_) => {
                tools.pipes.put_back(pipe);
                return Err(PumpError::Read);
            }
        }
        tools.pipes.put_back(pipe);
        Ok(true)
    }

    fn read(
        &mut self,
        from: &mut PumpSocket,
        to: &mut PumpSocket,
        sniffer: Option<&mut Sniffer>,
        tools: &mut PumpTools,
    ) -> Result<(), PumpError> {
        let room = tools.scratch.len().saturating_sub(self.unsent.len());
        if room == 0 {
            return Err(PumpError::Denied(SniffedDenial::too_long()));
        }
        let length =
            match rustix::net::recv(&from.socket, &mut tools.scratch[..room], RecvFlags::empty()) {
                Ok((0, _)) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok((length, _)) => length,
                Err(Errno::INTR) => return Ok(()),
                Err(Errno::AGAIN) => {
                    from.readable = false;
                    return Ok(());
                }
                Err(_) => return Err(PumpError::Read),
            };
        from.readable = length == room || from.hung_up;
        self.bulk = length >= MIN_SPLICE_BYTES;
        let bytes = &tools.scratch[..length];
        if self.unsent.is_empty() {
            let passed = self.pass(bytes, to, sniffer)?;
            self.unsent = bytes[passed..].to_vec();
        } else {
            self.unsent.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Judges the bytes and sends the allowed ones. Returns the number of sent bytes.
    fn pass(
        &mut self,
        bytes: &[u8],
        to: &mut PumpSocket,
        sniffer: Option<&mut Sniffer>,
    ) -> Result<usize, PumpError> {
        if let Some(sniffer) = sniffer {
            while self.allowed_bytes < bytes.len() as u64 {
                match sniffer.judge(&bytes[self.allowed_bytes as usize..]) {
                    Ok(SniffResult::Pass(more)) => {
                        self.allowed_bytes = self.allowed_bytes.saturating_add(more)
                    }
                    Ok(SniffResult::More) => break,
                    Ok(SniffResult::End) => {
                        self.ended = true;
                        break;
                    }
                    // Earlier bytes are sent first; then it is judged again.
                    Err(_) if self.allowed_bytes > 0 => break,
                    Err(denial) => return Err(PumpError::Denied(denial)),
                }
            }
        }
        let allowed = self.allowed_bytes.min(bytes.len() as u64) as usize;
        let mut sent = 0;
        while sent < allowed && to.writable {
            match rustix::net::send(&to.socket, &bytes[sent..allowed], SendFlags::NOSIGNAL) {
                Ok(length) => sent += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => to.writable = false,
                Err(_) => return Err(PumpError::Write),
            }
        }
        self.use_allowance(sent);
        self.total += sent as u64;
        Ok(sent)
    }

    fn use_allowance(&mut self, length: usize) {
        if self.allowed_bytes != UNLIMITED {
            self.allowed_bytes -= length as u64;
        }
    }

    /// True if all bytes and the end were passed on.
    pub fn is_done(&self) -> bool {
        self.ended && self.shut
    }

    /// Stops this direction.
    pub fn stop(&mut self, tools: &mut PumpTools) {
        self.unsent = Vec::new();
        if let Some(pipe) = self.pipe.take() {
            tools.pipes.put_back(pipe);
        }
        (self.ended, self.shut) = (true, true);
    }
}
