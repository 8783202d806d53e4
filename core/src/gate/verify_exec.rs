//! Compares an exec with what was judged, before the new program runs its first instruction. The
//! process has its own memory by now, and is stopped.

use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;

use super::expected_exec::ExpectedExec;
use super::interpreter_chain::{ChainFile, EntryPoint, FileState};
use super::loader;
use crate::journal::event::exec;
use crate::kernel::calling_process::{CallingProcess, WorkingDirectory};
use crate::kernel::process_memory::{PAGE_BYTES, ProcessMemory};
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::MAX_PATH_BYTES;
use crate::kernel::sys::trace::{self, Registers};

const AT_NULL: u64 = 0;
const AT_EXECFN: u64 = 31;
/// A path through a descriptor contains its number.
const MAX_FD_PATH_BYTES: usize = 64;

/// None: everything is as it was judged. Else the difference. `own`: its directory in /proc. Reads
/// the working directory too, if no rule depended on it.
pub fn difference(
    expected: &mut ExpectedExec,
    pid: u32,
    own: Option<&OwnedFd>,
    memory: &mut ProcessMemory,
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
    expected: &mut ExpectedExec,
    pid: u32,
    own: &OwnedFd,
    memory: &mut ProcessMemory,
    deadline: Instant,
) -> Result<(), Difference> {
    let found = |link| rustix::fs::statat(own, link, AtFlags::empty());
    let behind = |link| found(link).map(|stat| Identity::from(&stat));
    let Some((exe, scripts)) = expected.chain.split_last() else { return Err(Difference::Unseen) };
    let running = found(c"exe")?;
    if Identity::from(&running) != exe.identity {
        return Err(Difference::In("the program"));
    }
    // A file with the size of a denied program was hashed, and is hashed again below.
    if FileState::from(&running).size() != exe.state.size() {
        return Err(Difference::In("the content"));
    }
    memory.turn_to(pid);
    let Registers { instruction, stack } = trace::registers_of(pid)?;
    // The strings are above the addresses, most of them in the next page.
    memory.prefetch_pages(stack, stack.saturating_add(PAGE_BYTES));
    compare_stack(expected, stack, memory)?;
    // Not by AT_BASE: it is 0 without a loader, and also with a loader that has a fixed address.
    let first = match &expected.entry {
        EntryPoint::Settled => None,
        EntryPoint::Program => Some(exe),
        EntryPoint::Loader(loader) => Some(&**loader),
    };
    if let Some(first) = first
        && !loader::is_of(own, instruction, first.content()?)?
    {
        return Err(Difference::In("the loader"));
    }
    // Its other threads could change the directory until now. They have ended.
    match &expected.standing {
        Some(standing) if standing.identity != behind(c"cwd").ok() => {
            return Err(Difference::In("the working directory"));
        }
        Some(_) => {}
        None => expected.standing = Some(WorkingDirectory::path_only(own)),
    }
    // A running program can not be written, so its content stays the same.
    let has_changed = |(index, digest): &(usize, [u8; 32])| {
        expected.chain[*index].digest(Some(deadline)).as_ref() != Ok(digest)
    };
    if expected.digests.iter().any(has_changed) {
        return Err(Difference::In("the content"));
    }
    if scripts.is_empty() {
        return Ok(());
    }
    let caller = CallingProcess::of(pid)?;
    let is_same = |script: &ChainFile| {
        let opened = caller.open(libc::AT_FDCWD, &script.named, OFlags::PATH | OFlags::CLOEXEC);
        opened
            .and_then(rustix::fs::fstat)
            .is_ok_and(|stat| Identity::from(&stat) == script.identity)
    };
    if scripts.iter().all(is_same) { Ok(()) } else { Err(Difference::In("the script")) }
}

/// The stack of the new program: the number of arguments, their addresses, the environment, and the
/// auxiliary vector.
fn compare_stack(
    expected: &ExpectedExec,
    stack: u64,
    memory: &mut ProcessMemory,
) -> Result<(), Difference> {
    let wanted = exec::nul_separated(expected.final_argv());
    let at = |index: u64| {
        index.checked_mul(8).and_then(|offset| stack.checked_add(offset)).ok_or(Errno::FAULT)
    };
    if memory.word(stack)? != wanted.len() as u64 {
        return Err(Difference::In("the arguments"));
    }
    // All addresses first: the strings are elsewhere.
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
    memory.string(named, MAX_PATH_BYTES + MAX_FD_PATH_BYTES, Errno::TOOBIG, &mut text)?;
    if text == expected.named { Ok(()) } else { Err(Difference::In("the path")) }
}
