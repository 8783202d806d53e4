//! What an exec did, looked at before the new program runs its first instruction: its memory is its
//! own now, and it is stopped.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::expected_exec::Expected;
use super::interpreter_chain::{Entry, Link};
use super::loader;
use crate::journal::event::exec;
use crate::kernel::calling_process::{Caller, Standing};
use crate::kernel::process_memory::{Memory, PAGE};
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::LONGEST_PATH;
use crate::kernel::sys::trace::{self, Point};

const AT_NULL: u64 = 0;
const AT_EXECFN: u64 = 31;
/// By a descriptor, a path is told with the number of that.
const DESCRIPTOR: usize = 64;

/// None: everything is as it was judged. Else what differs. `own`: its directory in /proc. Where it
/// stands is seen here, if it did not matter.
pub fn difference(
    expected: &mut Expected,
    pid: u32,
    own: Option<&OwnedFd>,
    memory: &mut Memory,
    deadline: Instant,
) -> Option<&'static str> {
    let compared =
        own.ok_or(Difference::Unseen).and_then(|own| compare(expected, pid, own, memory, deadline));
    match compared {
        Ok(()) => None,
        Err(Difference::In(what)) => Some(what),
        Err(Difference::Unseen) => Some("a file that cannot be examined"),
    }
}

enum Difference {
    In(&'static str),
    Unseen,
}

impl From<Errno> for Difference {
    fn from(_: Errno) -> Difference {
        Difference::Unseen
    }
}

fn compare(
    expected: &mut Expected,
    pid: u32,
    own: &OwnedFd,
    memory: &mut Memory,
    deadline: Instant,
) -> Result<(), Difference> {
    let behind =
        |link| rustix::fs::statat(own, link, AtFlags::empty()).map(|stat| Identity::from(&stat));
    let Some((exe, scripts)) = expected.chain.split_last() else { return Err(Difference::Unseen) };
    if behind(c"exe")? != exe.identity {
        return Err(Difference::In("the program"));
    }
    memory.turn_to(pid);
    let Point { instruction, stack } = trace::point_of(pid)?;
    // The texts lie above the addresses, most of them in the next page.
    memory.look_at_both(stack, stack.saturating_add(PAGE));
    compare_stack(expected, stack, memory)?;
    // Not by AT_BASE: that is 0 without a loader, and also with one that has an address of its own.
    let first = match &expected.entry {
        Entry::Settled => None,
        Entry::Program => Some(exe),
        Entry::Loader(loader) => Some(&**loader),
    };
    if let Some(first) = first
        && !loader::is_of(own, instruction, first.content()?)?
    {
        return Err(Difference::In("the loader"));
    }
    // Its other threads could move it until now, and are dead.
    match &expected.standing {
        Some(standing) if standing.place != behind(c"cwd").ok() => {
            return Err(Difference::In("the working directory"));
        }
        Some(_) => {}
        None => expected.standing = Some(Standing::by_name(own)),
    }
    // A program that runs can not be written: what is in it now is in it to the end.
    let has_changed = |(index, digest): &(usize, [u8; 32])| {
        expected.chain[*index].digest(Some(deadline)).as_ref() != Ok(digest)
    };
    if expected.digests.iter().any(has_changed) {
        return Err(Difference::In("the content"));
    }
    if scripts.is_empty() {
        return Ok(());
    }
    let caller = Caller::of(pid)?;
    let is_same = |script: &Link| {
        let opened = caller.open(libc::AT_FDCWD, &script.named, OFlags::PATH | OFlags::CLOEXEC);
        opened
            .and_then(rustix::fs::fstat)
            .is_ok_and(|stat| Identity::from(&stat) == script.identity)
    };
    if scripts.iter().all(is_same) { Ok(()) } else { Err(Difference::In("the script")) }
}

/// What the kernel put on the stack of the new program: how many arguments, where they are, the
/// environment, and facts by key.
fn compare_stack(expected: &Expected, stack: u64, memory: &mut Memory) -> Result<(), Difference> {
    let wanted = exec::words(expected.final_argv());
    let at = |index: u64| {
        index.checked_mul(8).and_then(|offset| stack.checked_add(offset)).ok_or(Errno::FAULT)
    };
    if memory.word(stack)? != wanted.len() as u64 {
        return Err(Difference::In("the arguments"));
    }
    // All addresses first: what they point to lies elsewhere.
    let arguments = memory.words(at(1)?, wanted.len())?;
    if arguments.len() != wanted.len() {
        return Err(Difference::In("the arguments"));
    }
    let mut next = 2 + wanted.len() as u64;
    while memory.word(at(next)?)? != 0 {
        next += 1;
    }
    let named = loop {
        let (key, value) = (memory.word(at(next + 1)?)?, memory.word(at(next + 2)?)?);
        match key {
            AT_NULL => return Err(Difference::Unseen),
            AT_EXECFN => break value,
            _ => next += 2,
        }
    };
    let mut text = Vec::with_capacity(256);
    for (address, wanted) in arguments.into_iter().zip(wanted) {
        text.clear();
        match memory.string(address, wanted.len() + 1, Errno::TOOBIG, &mut text) {
            Ok(()) if text == wanted => {}
            Ok(()) | Err(Errno::TOOBIG) => return Err(Difference::In("the arguments")),
            Err(errno) => return Err(errno.into()),
        }
    }
    text.clear();
    memory.string(named, LONGEST_PATH + DESCRIPTOR, Errno::TOOBIG, &mut text)?;
    if text == expected.named { Ok(()) } else { Err(Difference::In("the path")) }
}
