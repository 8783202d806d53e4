//! What an exec did, looked at before the new program runs its first instruction: its memory is its own now, and it is stopped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::expect::{Expected, Link};
use crate::caller::Caller;
use crate::memory::Memory;
use crate::notify::LONGEST_PATH;
use crate::place::Identity;

const AT_EXECFN: u64 = 31;

/// None: everything is as it was judged. Else what differs.
pub fn difference(expected: &Expected, pid: u32) -> Option<&'static str> {
    match compare(expected, pid) {
        Ok(None) => None,
        Ok(Some(what)) => Some(what),
        Err(_) => Some("what can not be looked at"),
    }
}

fn compare(expected: &Expected, pid: u32) -> Result<Option<&'static str>, Errno> {
    let caller = Caller::of(pid)?;
    let Some((exe, scripts)) = expected.chain.split_last() else { return Ok(Some("nothing was judged")) };
    let running = rustix::fs::statat(caller.proc(), c"exe", AtFlags::empty())?;
    if Identity::from(&running) != exe.identity {
        return Ok(Some("the program"));
    }
    if !holds(open(caller.proc(), "cmdline")?, expected.final_argv())? {
        return Ok(Some("the arguments"));
    }
    let mut named = Vec::new();
    let address = auxiliary(open(caller.proc(), "auxv")?, AT_EXECFN)?;
    // By a descriptor it is a little longer than a path may be.
    Memory::of(pid).string(address, LONGEST_PATH + 64, Errno::NAMETOOLONG, &mut named)?;
    if named != expected.named {
        return Ok(Some("the path"));
    }
    let is_same = |script: &Link| {
        let opened = caller.open(libc::AT_FDCWD, &script.named, OFlags::PATH | OFlags::CLOEXEC);
        opened.and_then(rustix::fs::fstat).is_ok_and(|stat| Identity::from(&stat) == script.identity)
    };
    Ok((!scripts.iter().all(is_same)).then_some("the script"))
}

fn open(proc: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(proc, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Exactly these bytes, and no more.
fn holds(file: impl AsFd, wanted: &[u8]) -> Result<bool, Errno> {
    let mut rest = wanted;
    let mut buffer = [0; 8192];
    loop {
        match rustix::io::read(&file, &mut buffer[..])? {
            0 => return Ok(rest.is_empty()),
            count => match rest.strip_prefix(&buffer[..count]) {
                Some(left) => rest = left,
                None => return Ok(false),
            },
        }
    }
}

fn auxiliary(file: impl AsFd, wanted: u64) -> Result<u64, Errno> {
    let mut buffer = [0; 2048];
    let length = rustix::io::read(&file, &mut buffer[..])?;
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
    let mut entries = buffer[..length].chunks_exact(16).map(|entry| (number(&entry[..8]), number(&entry[8..])));
    entries.find(|(key, _)| *key == wanted).map(|(_, value)| value).ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;

    #[test]
    fn bytes_are_compared_to_their_end() {
        let file = || {
            let fd = rustix::fs::memfd_create(c"bytes", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::io::write(&fd, b"a\0b\0").unwrap();
            rustix::fs::seek(&fd, rustix::fs::SeekFrom::Start(0)).unwrap();
            fd
        };
        assert!(holds(file(), b"a\0b\0").unwrap());
        for wrong in [&b"a\0b\0c\0"[..], b"a\0", b"", b"a\0c\0"] {
            assert!(!holds(file(), wrong).unwrap(), "{wrong:?}");
        }
    }

    #[test]
    fn the_path_that_a_program_was_told_is_found() {
        let mut child = std::process::Command::new("/bin/../bin/sleep").arg0("x").arg("5").spawn().unwrap();
        let caller = Caller::of(child.id()).unwrap();
        let address = auxiliary(open(caller.proc(), "auxv").unwrap(), AT_EXECFN).unwrap();
        let mut named = Vec::new();
        Memory::of(child.id()).string(address, 4096, Errno::TOOBIG, &mut named).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(named, b"/bin/../bin/sleep");
    }
}
