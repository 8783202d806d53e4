//! Whoever made a call that waits for our answer, as /proc has it: its root and the directories that relative paths begin in.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::notify::Call;

const FOLLOWED: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const PATH_DIR: OFlags = FOLLOWED.union(OFlags::DIRECTORY);

pub struct Caller {
    proc: OwnedFd,
    root: OwnedFd,
}

impl Caller {
    pub fn find(call: &Call) -> Result<Caller, Errno> {
        Caller::of(call.thread)
    }

    pub fn of(thread: u32) -> Result<Caller, Errno> {
        let proc = open_process(thread)?;
        let root = rustix::fs::openat(&proc, c"root", PATH_DIR, Mode::empty())?;
        Ok(Caller { proc, root })
    }

    /// Its directory in /proc.
    pub fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// A path without the last links being followed, if `flags` say so; absolute, or below a descriptor of the caller's.
    pub fn open(&self, dir: i32, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if path.starts_with(b"/") {
            return open_in(&self.root, path, flags, ResolveFlags::IN_ROOT);
        }
        let mut whole = self.start(dir)?;
        whole.push(b'/');
        whole.extend_from_slice(path);
        open_in(&self.root, &whole, flags, ResolveFlags::IN_ROOT)
    }

    /// The path of the directory that relative ones begin in: `..` may lead out of it, and a link to the root. It has one only if it
    /// can be reached by it.
    pub fn start(&self, dir: i32) -> Result<Vec<u8>, Errno> {
        let start = open_start(&self.proc, dir)?;
        let mut buffer = [0; 32];
        let path = rustix::fs::readlink(crate::beneath::link_to(&start, &mut buffer), Vec::new())?;
        let same = open_in(&self.root, path.as_bytes(), PATH_DIR, ResolveFlags::NO_SYMLINKS)?;
        let identity = |fd: &OwnedFd| {
            let found = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::MNT_ID);
            found.map(|found| (found.stx_mnt_id, found.stx_ino))
        };
        if identity(&start)? == identity(&same)? { Ok(path.into_bytes()) } else { Err(Errno::STALE) }
    }
}

pub fn open_process(thread: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("/proc/{thread}"), PATH_DIR, Mode::empty())
}

/// Where a relative path begins.
pub fn open_start(proc: &OwnedFd, dir: i32) -> Result<OwnedFd, Errno> {
    let name = if dir == libc::AT_FDCWD { "cwd".to_owned() } else { format!("fd/{dir}") };
    rustix::fs::openat(proc, name, PATH_DIR, Mode::empty())
}

/// No way leads through a descriptor (/proc/self/fd) or another root: what is found there has no path.
pub fn open_in(root: &OwnedFd, path: &[u8], flags: OFlags, scope: ResolveFlags) -> Result<OwnedFd, Errno> {
    let scope = if scope.contains(ResolveFlags::BENEATH) { scope } else { scope | ResolveFlags::IN_ROOT };
    rustix::fs::openat2(root, path, flags, Mode::empty(), scope | ResolveFlags::NO_MAGICLINKS)
}

pub fn mount_of(dir: &OwnedFd, name: &CStr) -> Result<u64, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(dir, name, flags, StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 { Err(Errno::NOSYS) } else { Ok(found.stx_mnt_id) }
}
