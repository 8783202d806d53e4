//! The exec server. It runs inside the sandbox, as its command, and starts commands for the program
//! at the other end of its stdin. So one sandbox serves a session: its commands share /tmp,
//! loopback and processes, as those of one terminal do. Each command costs two forks.
//!
//! The exec server has no more rights than the commands that it starts, and no safety rests on it.
//! The supervisor outside answers the execs of all commands. When the exec server ends, all of them
//! end.

mod command_reaper;
mod opener;
mod writer;

use std::collections::HashSet;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{DumpableBehavior, Pid, Signal, WaitOptions};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::Refusal;
use crate::kernel::sys;
use crate::limits::process_usage::{ProcessTree, ProcessUsage};
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;

/// The first byte of a message: start a command, or open or write a file for the session owner.
const START: u8 = b's';
const OPEN: u8 = b'o';
const WRITE: u8 = b'w';

/// A command to start. The request is in a memfd, because arguments may be megabytes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchRequest {
    argv: Vec<Text>,
    /// `NAME=VALUE` entries, which replace the exec server's own entries of these names.
    environment: Vec<Text>,
    /// None: the working directory of the exec server.
    cwd: Option<Text>,
    /// A new terminal of so many rows and columns.
    terminal: Option<(u16, u16)>,
}

/// The request, the socket of the reaper and, without a terminal, stdin, stdout and stderr. For a
/// write: the request, the socket, the new content and the old content.
const MAX_REQUEST_FDS: usize = 5;
const MAX_REQUEST_BYTES: u64 = 64 << 20;
/// The interval between two checks for orphans.
const ORPHAN_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Serves until the other end of stdin is closed. `grace`: without a sandbox only the exec server
/// ends remaining processes, and they get this time to end by themselves. A client of a container
/// engine has a container to remove.
pub fn run(grace: Option<Duration>) -> Result<i32, Refusal> {
    // No process inside can reach other sockets through this process.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(Refusal::Attend)?;
    // The exec server adopts and ends processes that outlive their reaper.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(Refusal::Attend)?;
    sys::block_signals();
    let children = sys::child_signal_descriptor().map_err(Refusal::Attend)?;
    let mut reapers = HashSet::new();
    let mut orphaned: Option<Instant> = None;
    let mut is_over = false;
    loop {
        let mut ready =
            [PollFd::new(&children, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        if !is_over {
            ready[1] = PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN);
        }
        match rustix::event::poll(&mut ready, orphaned.is_some().then_some(&ORPHAN_CHECK_INTERVAL))
        {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Refusal::Attend(errno)),
        }
        let (ended, requested) =
            (!ready[0].revents().is_empty(), !is_over && !ready[1].revents().is_empty());
        if ended {
            sys::discard_child_signals();
            if reap(&mut reapers) {
                orphaned = orphaned.or_else(|| Some(Instant::now()));
            }
        }
        if let Some(since) = orphaned {
            let is_time = since.elapsed() >= grace.unwrap_or_default();
            if !end_orphans(&reapers, is_time).map_err(Refusal::Attend)? {
                orphaned = None;
            }
        }
        if requested && !serve(&mut reapers)? {
            if grace.is_none() {
                return Ok(0);
            }
            // The reapers see the closed socket too, and end.
            is_over = true;
        }
        if is_over && reapers.is_empty() && orphaned.is_none() {
            return Ok(0);
        }
    }
}

/// Reaps ended children. True: a reaper ended before its command.
fn reap(reapers: &mut HashSet<Pid>) -> bool {
    let mut has_orphans = false;
    while let Ok(Some((pid, status))) =
        rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
    {
        if status.stopping_signal().is_none() {
            has_orphans |=
                reapers.remove(&pid) && status.exit_status() != Some(command_reaper::ALL_ENDED);
        } else if reapers.contains(&pid) {
            // Only a command stops its reaper.
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }
    has_orphans
}

/// Ends orphans. They are children of their reaper as long as it lives. So a child of this process
/// that is no reaper has outlived its reaper: it killed the reaper, or the session owner has closed
/// the socket. False: there are none.
fn end_orphans(reapers: &HashSet<Pid>, is_time: bool) -> Result<bool, Errno> {
    let proc = rustix::fs::open(
        c"/proc",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut census = ProcessUsage::new(
        proc.as_fd(),
        ProcessTree::DescendantsOf(rustix::process::getpid()),
        &[],
    )?;
    census.exclude(reapers.iter().copied());
    let found =
        if is_time { census.kill_descendants()? } else { census.signal_descendants(None)? };
    Ok(found > 0)
}

/// Serves one request. False: no other will come.
fn serve(reapers: &mut HashSet<Pid>) -> Result<bool, Refusal> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_REQUEST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 1];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let stdin = rustix::stdio::stdin();
    let received =
        match rustix::net::recvmsg(stdin, &mut [IoSliceMut::new(&mut word)], &mut control, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(true),
            Err(Errno::CONNRESET) => return Ok(false),
            received => received.map_err(Refusal::Attend)?,
        };
    if received.bytes == 0 {
        return Ok(false);
    }
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut descriptors = descriptors.flatten();
    let (Some(request), Some(socket)) = (descriptors.next(), descriptors.next()) else {
        return Err(Refusal::Usage("a request must be a file and a socket"));
    };
    let more: Vec<OwnedFd> = descriptors.collect();
    // The child reads the request and handles every further error, because all other requests wait
    // for this process.
    let reaper = sys::fork(|| match word[0] {
        START => match read(&request).filter(|request: &LaunchRequest| !request.argv.is_empty()) {
            Some(request) => command_reaper::run(&request, more, &socket),
            None => command_reaper::refuse(&socket, "request", Errno::INVAL),
        },
        OPEN => opener::answer(read(&request), &socket),
        WRITE => writer::answer(read(&request), &more, &socket),
        _ => command_reaper::refuse(&socket, "request", Errno::INVAL),
    });
    match reaper {
        Ok(reaper) => drop(reapers.insert(reaper)),
        Err(errno) => drop(command_reaper::refuse(&socket, "fork", errno)),
    }
    Ok(true)
}

fn read<T: DeserializeOwned>(file: &OwnedFd) -> Option<T> {
    let length = rustix::fs::fstat(file).ok()?.st_size as u64;
    let mut text = vec![0; usize::try_from(length).ok().filter(|_| length <= MAX_REQUEST_BYTES)?];
    let mut filled = 0;
    while filled < text.len() {
        match rustix::io::pread(file.as_fd(), &mut text[filled..], filled as u64) {
            Ok(0) => return None,
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    reader::from_slice(&text).ok()
}
