//! One direction of a connection: bytes from one socket to the other, as fast as the slower of them
//! takes them. What is not to be seen goes through a pipe when there is much of it; the rest is
//! copied, and nothing goes on before it was judged.

use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use rustix::pipe::SpliceFlags;

use super::sniffer::{Refusal, Seen, Sniffer};
use super::splice_pipes::{Pipe, Pipes};
use crate::network::supervisor::proxy_password::Token;

/// What a read that brought so much asks for next goes through a pipe: below that, copying is
/// cheaper than moving pages.
const BULK: usize = 32 << 10;

/// A pipe that brings no more than this is no longer worth it.
const TRICKLE: usize = 4 << 10;

/// The most that one splice asks for: more than any pipe holds.
const SPLICED: u64 = 1 << 20;

/// So often a direction moves bytes before the other connections get their turn.
const TURNS: usize = 8;

/// A direction in which everything may go on.
const ALL: u64 = u64::MAX;

/// A socket, and what epoll said of it since it last said no itself.
pub struct End {
    pub socket: OwnedFd,
    pub readable: bool,
    pub writable: bool,
    /// The end of the stream or an error stands behind what can be read: a short read is not the
    /// last.
    pub hung_up: bool,
}

impl End {
    pub fn new(socket: OwnedFd) -> End {
        End { socket, readable: false, writable: false, hung_up: false }
    }

    pub fn note(&mut self, flags: EventFlags) {
        let over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        self.hung_up |= over || flags.contains(EventFlags::RDHUP);
        self.readable |= self.hung_up || flags.contains(EventFlags::IN);
        self.writable |= over || flags.contains(EventFlags::OUT);
    }

    /// The other side sees a reset, not an end.
    pub fn reset_when_closed(&self) {
        let _ =
            rustix::net::sockopt::set_socket_linger(&self.socket, Some(std::time::Duration::ZERO));
    }
}

/// What all connections share.
pub struct Tools {
    /// As long as the longest head that is judged.
    pub scratch: Box<[u8]>,
    pub pipes: Pipes,
    /// Of the proxy; None: there is none.
    pub token: Option<Token>,
}

pub enum Stop {
    /// The source is broken.
    Read,
    /// The destination is broken.
    Write,
    Refused(Refusal),
}

pub struct Flow {
    /// Read and not yet passed on.
    held: Vec<u8>,
    pipe: Option<Pipe>,
    /// So many bytes from here may go on; those after them have to be judged.
    free: u64,
    pub total: u64,
    bulk: bool,
    /// The source has said all.
    ended: bool,
    /// And the destination was told so, unless something else is to be said to it or it is closed
    /// at once.
    shut: bool,
    pub leaves_open: bool,
}

impl Flow {
    pub fn unseen() -> Flow {
        Flow {
            held: Vec::new(),
            pipe: None,
            free: ALL,
            total: 0,
            bulk: false,
            ended: false,
            shut: false,
            leaves_open: false,
        }
    }

    pub fn judged() -> Flow {
        Flow { free: 0, ..Flow::unseen() }
    }

    /// With bytes that were read already.
    pub fn holding(self, held: Vec<u8>) -> Flow {
        Flow { held, ..self }
    }

    /// What was read and not passed on.
    pub fn into_held(self) -> Vec<u8> {
        self.held
    }

    /// Bytes are here that can not be judged before others come.
    pub fn is_undecided(&self) -> bool {
        !self.held.is_empty() && self.free == 0
    }

    /// Moves what can be moved now. True: there may be more.
    pub fn pump(
        &mut self,
        from: &mut End,
        to: &mut End,
        mut sight: Option<&mut Sniffer>,
        tools: &mut Tools,
    ) -> Result<bool, Stop> {
        for _ in 0..TURNS {
            if !self.deliver(to, sight.as_deref_mut(), tools)? {
                return Ok(false);
            }
            if self.ended {
                // It may yet be judged.
                if sight.as_deref().is_some_and(Sniffer::awaits_answer) {
                    return Ok(false);
                }
                if let Some(sight) = sight
                    && !self.shut
                    && sight.judge_end(&self.held).map_err(Stop::Refused)?
                    && !self.held.is_empty()
                {
                    self.free = ALL;
                    if !self.deliver(to, None, tools)? {
                        return Ok(false);
                    }
                }
                // What can not be judged any more is no request to anybody.
                self.held = Vec::new();
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
                self.read(from, to, sight.as_deref_mut(), tools)?;
            }
        }
        Ok(true)
    }

    /// Passes on what is here already. False: the destination takes no more now.
    fn deliver(
        &mut self,
        to: &mut End,
        sight: Option<&mut Sniffer>,
        tools: &mut Tools,
    ) -> Result<bool, Stop> {
        if let Some(mut pipe) = self.pipe.take() {
            while pipe.held > 0 && to.writable {
                match rustix::pipe::splice(
                    &pipe.out,
                    None,
                    &to.socket,
                    None,
                    pipe.held,
                    SpliceFlags::NONBLOCK,
                ) {
                    Ok(moved) => {
                        pipe.held -= moved;
                        self.total += moved as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => to.writable = false,
                    Err(_) => {
                        tools.pipes.give_back(pipe);
                        return Err(Stop::Write);
                    }
                }
            }
            if pipe.held > 0 {
                self.pipe = Some(pipe);
                return Ok(false);
            }
            tools.pipes.give_back(pipe);
        }
        if !self.held.is_empty() {
            let mut held = std::mem::take(&mut self.held);
            let passed = self.pass(&held, to, sight)?;
            if passed < held.len() {
                held.drain(..passed);
                self.held = held;
                return Ok(self.free == 0);
            }
        }
        Ok(true)
    }

    /// Reads into a pipe, if that is worth it. False: read in the other way.
    fn fill_pipe(&mut self, from: &mut End, tools: &mut Tools) -> Result<bool, Stop> {
        if !self.bulk || !self.held.is_empty() || self.free < BULK as u64 {
            return Ok(false);
        }
        let Some(mut pipe) = tools.pipes.take() else { return Ok(false) };
        let length = self.free.min(SPLICED) as usize;
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
                pipe.held = length;
                self.spend(length);
                self.bulk = length > TRICKLE;
                self.pipe = Some(pipe);
                return Ok(true);
            }
            Err(Errno::INTR) => {}
            // The pipe is empty: it is the socket that has nothing.
            Err(Errno::AGAIN) => from.readable = false,
            Err(_) => {
                tools.pipes.give_back(pipe);
                return Err(Stop::Read);
            }
        }
        tools.pipes.give_back(pipe);
        Ok(true)
    }

    fn read(
        &mut self,
        from: &mut End,
        to: &mut End,
        sight: Option<&mut Sniffer>,
        tools: &mut Tools,
    ) -> Result<(), Stop> {
        let room = tools.scratch.len().saturating_sub(self.held.len());
        if room == 0 {
            return Err(Stop::Refused(Refusal::too_long()));
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
                Err(_) => return Err(Stop::Read),
            };
        from.readable = length == room || from.hung_up;
        self.bulk = length >= BULK;
        let bytes = &tools.scratch[..length];
        if self.held.is_empty() {
            let passed = self.pass(bytes, to, sight)?;
            self.held = bytes[passed..].to_vec();
        } else {
            self.held.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Judges bytes as far as they can be, and sends those that may go on. Says how many were sent.
    fn pass(
        &mut self,
        bytes: &[u8],
        to: &mut End,
        sight: Option<&mut Sniffer>,
    ) -> Result<usize, Stop> {
        if let Some(sight) = sight {
            while self.free < bytes.len() as u64 {
                match sight.judge(&bytes[self.free as usize..]) {
                    Ok(Seen::Pass(more)) => self.free = self.free.saturating_add(more),
                    Ok(Seen::More) => break,
                    Ok(Seen::End) => {
                        self.ended = true;
                        break;
                    }
                    // What came before it goes on first; then it is judged again.
                    Err(_) if self.free > 0 => break,
                    Err(refusal) => return Err(Stop::Refused(refusal)),
                }
            }
        }
        let may = self.free.min(bytes.len() as u64) as usize;
        let mut sent = 0;
        while sent < may && to.writable {
            match rustix::net::send(&to.socket, &bytes[sent..may], SendFlags::NOSIGNAL) {
                Ok(length) => sent += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => to.writable = false,
                Err(_) => return Err(Stop::Write),
            }
        }
        self.spend(sent);
        self.total += sent as u64;
        Ok(sent)
    }

    fn spend(&mut self, length: usize) {
        if self.free != ALL {
            self.free -= length as u64;
        }
    }

    /// All that came was passed on.
    pub fn is_done(&self) -> bool {
        self.ended && self.shut
    }

    /// Nothing more is passed on.
    pub fn stop(&mut self, tools: &mut Tools) {
        self.held = Vec::new();
        if let Some(pipe) = self.pipe.take() {
            tools.pipes.give_back(pipe);
        }
        (self.ended, self.shut) = (true, true);
    }
}
