//! The attendant: a program of ours that runs behind the fence, as its command, and starts others
//! for whoever holds the other end of its stdin. So one sandbox serves a session: its commands
//! share /tmp, loopback and processes, as those of one terminal do, and each of them costs two
//! forks.
//!
//! It has no more rights than what it starts, and is not believed in anything that matters to the
//! fence: the supervisor outside answers for the execs of all of them, and its end is the end of
//! them all.

mod command_reaper;
mod opener;

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
use crate::limits::process_usage::{ProcessUsage, Tree};
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;

/// The first byte of a message: start a command, or open a file for the session's owner.
const START: u8 = b's';
const OPEN: u8 = b'o';

/// What is to be started. It lies in a file in memory: arguments may be megabytes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    argv: Vec<Text>,
    /// As `NAME=VALUE`, in place of what the attendant has of these names itself.
    environment: Vec<Text>,
    /// None: where the attendant stands.
    cwd: Option<Text>,
    /// A terminal of its own, of so many rows and columns.
    terminal: Option<(u16, u16)>,
}

/// The request, the line to its warden, and without a terminal stdin, stdout and stderr.
const DESCRIPTORS: usize = 5;
/// Of a request.
const LONGEST: u64 = 64 << 20;
/// So soon those are looked for again who come back to us.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Until the other end of stdin is closed. `grace`: behind no fence nobody but us ends what is
/// left, and it gets so much time to end by itself: a client of an engine has a container to
/// remove.
pub fn attend(grace: Option<Duration>) -> Result<i32, Refusal> {
    // Nobody inside gets at the lines of others through us.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(Refusal::Attend)?;
    // Whatever outlives its warden is ours to end.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(Refusal::Attend)?;
    sys::hold_signals();
    let children = sys::child_descriptor().map_err(Refusal::Attend)?;
    let mut wardens = HashSet::new();
    let mut orphaned: Option<Instant> = None;
    let mut is_over = false;
    loop {
        let mut ready =
            [PollFd::new(&children, PollFlags::IN), PollFd::new(&children, PollFlags::IN)];
        if !is_over {
            ready[1] = PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN);
        }
        match rustix::event::poll(&mut ready, orphaned.is_some().then_some(&AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Refusal::Attend(errno)),
        }
        let (ended, asked) =
            (!ready[0].revents().is_empty(), !is_over && !ready[1].revents().is_empty());
        if ended {
            sys::children_heard();
            if bury(&mut wardens) {
                orphaned = orphaned.or_else(|| Some(Instant::now()));
            }
        }
        if let Some(since) = orphaned {
            let is_time = since.elapsed() >= grace.unwrap_or_default();
            if !end_orphans(&wardens, is_time).map_err(Refusal::Attend)? {
                orphaned = None;
            }
        }
        if asked && !serve(&mut wardens)? {
            if grace.is_none() {
                return Ok(0);
            }
            // The wardens hear of it too, and go.
            is_over = true;
        }
        if is_over && wardens.is_empty() && orphaned.is_none() {
            return Ok(0);
        }
    }
}

/// Whoever has ended. True: a warden went before those it looked after.
fn bury(wardens: &mut HashSet<Pid>) -> bool {
    let mut has_orphans = false;
    while let Ok(Some((pid, status))) =
        rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
    {
        if status.stopping_signal().is_none() {
            has_orphans |=
                wardens.remove(&pid) && status.exit_status() != Some(command_reaper::ALL_GONE);
        } else if wardens.contains(&pid) {
            // Nobody but a command stops its warden.
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
    }
    has_orphans
}

/// Orphans are a warden's children as long as it lives. So whoever is ours and no warden has
/// outlived his: by killing it, or because nobody wants to know of him any more. False: there are
/// none.
fn end_orphans(wardens: &HashSet<Pid>, is_time: bool) -> Result<bool, Errno> {
    let proc = rustix::fs::open(
        c"/proc",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut census =
        ProcessUsage::new(proc.as_fd(), Tree::DescendantsOf(rustix::process::getpid()), &[])?;
    census.spare(wardens.iter().copied());
    let found =
        if is_time { census.kill_descendants()? } else { census.signal_descendants(None)? };
    Ok(found > 0)
}

/// One request. False: there will be no other.
fn serve(wardens: &mut HashSet<Pid>) -> Result<bool, Refusal> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
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
    let given = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let mut given = given.flatten();
    let (Some(request), Some(line)) = (given.next(), given.next()) else {
        return Err(Refusal::Usage("a request must be a file and a socket"));
    };
    let standard: Vec<OwnedFd> = given.collect();
    // Reading what may be long, and whatever goes wrong from here on, is not for the one that all
    // others wait for.
    let warden = sys::fork(|| match word[0] {
        START => match read(&request).filter(|request: &Request| !request.argv.is_empty()) {
            Some(request) => command_reaper::look_after(&request, standard, &line),
            None => command_reaper::refuse(&line, "request", Errno::INVAL),
        },
        OPEN => opener::answer(read(&request), &line),
        _ => command_reaper::refuse(&line, "request", Errno::INVAL),
    });
    match warden {
        Ok(warden) => drop(wardens.insert(warden)),
        Err(errno) => drop(command_reaper::refuse(&line, "fork", errno)),
    }
    Ok(true)
}

fn read<T: DeserializeOwned>(file: &OwnedFd) -> Option<T> {
    let length = rustix::fs::fstat(file).ok()?.st_size as u64;
    let mut text = vec![0; usize::try_from(length).ok().filter(|_| length <= LONGEST)?];
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
