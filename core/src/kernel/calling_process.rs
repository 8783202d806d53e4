//! The process whose intercepted system call waits for an answer: its root directory and the
//! directories that its relative paths start in, read from /proc.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::open_beneath;
use super::resolved_path::Identity;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const PATH_DIR: OFlags = PATH_ONLY.union(OFlags::DIRECTORY);

pub struct CallingProcess {
    thread: u32,
    root: Rc<OwnedFd>,
}

/// The working directory of a process. The path is empty if the directory has none any more. The
/// identity is None if /proc does not show the directory.
#[derive(Debug)]
pub struct WorkingDirectory {
    pub path: Vec<u8>,
    pub identity: Option<Identity>,
}

impl CallingProcess {
    /// The thread id can be reused. The caller must check afterwards that the call still waits.
    pub fn of(thread: u32) -> Result<CallingProcess, Errno> {
        let root = rustix::fs::open(proc_path(thread, "root"), PATH_DIR, Mode::empty())?;
        Ok(CallingProcess { thread, root: Rc::new(root) })
    }

    /// A process whose root directory is already open.
    pub fn with_root(thread: u32, root: &Rc<OwnedFd>) -> CallingProcess {
        CallingProcess { thread, root: Rc::clone(root) }
    }

    pub fn root(&self) -> &Rc<OwnedFd> {
        &self.root
    }

    /// Opens a file below `/proc/THREAD`.
    pub fn open_proc_file(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::open(proc_path(self.thread, name), flags, Mode::empty())
    }

    /// Opens a path: an absolute one, or one below a descriptor of the process. `flags` say whether
    /// a symlink at the end is followed.
    pub fn open(&self, dir: i32, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if path.starts_with(b"/") {
            return open_in_root(&self.root, path, flags, ResolveFlags::IN_ROOT);
        }
        let mut whole = self.start_path(dir)?;
        whole.push(b'/');
        whole.extend_from_slice(path);
        open_in_root(&self.root, &whole, flags, ResolveFlags::IN_ROOT)
    }

    /// The path of the directory that relative paths start in. A `..` can lead out of that
    /// directory, and a link can lead to the root, so the whole path is needed. Fails with ESTALE
    /// if the path does not lead to the directory.
    pub fn start_path(&self, dir: i32) -> Result<Vec<u8>, Errno> {
        let start = open_start(self.thread, dir)?;
        let mut buffer = [0; 32];
        let path =
            rustix::fs::readlink(open_beneath::proc_fd_path(&start, &mut buffer), Vec::new())?;
        let same = open_in_root(&self.root, path.as_bytes(), PATH_DIR, ResolveFlags::NO_SYMLINKS)?;
        let identity = |fd: &OwnedFd| {
            let found = rustix::fs::statx(
                fd,
                c"",
                AtFlags::EMPTY_PATH,
                StatxFlags::INO | StatxFlags::MNT_ID,
            );
            found.map(|found| (found.stx_mnt_id, found.stx_ino))
        };
        if identity(&start)? == identity(&same)? {
            Ok(path.into_bytes())
        } else {
            Err(Errno::STALE)
        }
    }
}

/// Opens `/proc/PID`. The descriptor keeps referring to this process after its pid is reused.
pub fn proc_directory(pid: u32) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("/proc/{pid}"), PATH_DIR, Mode::empty())
}

impl WorkingDirectory {
    /// Path and identity come from the same open directory.
    pub fn of(thread: u32) -> WorkingDirectory {
        let Ok(dir) = open_start(thread, libc::AT_FDCWD) else {
            return WorkingDirectory { path: Vec::new(), identity: None };
        };
        let identity = rustix::fs::fstat(&dir).ok().map(|stat| Identity::from(&stat));
        let mut buffer = [0; 32];
        let path =
            link_path(rustix::fs::CWD, open_beneath::proc_fd_path(&dir, &mut buffer), || identity);
        WorkingDirectory { path, identity }
    }

    /// The path only, for messages. `own` is the `/proc/PID` directory of the process.
    pub fn path_only(own: &OwnedFd) -> WorkingDirectory {
        let identity = || {
            rustix::fs::statat(own, c"cwd", AtFlags::empty()).ok().map(|stat| Identity::from(&stat))
        };
        WorkingDirectory { path: link_path(own, c"cwd", identity), identity: None }
    }
}

/// The target of a link in /proc; empty for a deleted directory. The name of an existing directory
/// can also end in ` (deleted)`, so the identity decides.
fn link_path(dir: impl AsFd, link: &CStr, identity: impl FnOnce() -> Option<Identity>) -> Vec<u8> {
    let path = rustix::fs::readlinkat(dir, link, Vec::with_capacity(256))
        .map_or(Vec::new(), |path| path.into_bytes());
    let is_there = || {
        let found = rustix::fs::stat(path.as_slice()).ok().map(|stat| Identity::from(&stat));
        found.is_some() && found == identity()
    };
    if path.ends_with(b" (deleted)") && !is_there() { Vec::new() } else { path }
}

/// Opens the directory that a relative path starts in.
pub fn open_start(thread: u32, dir: i32) -> Result<OwnedFd, Errno> {
    let path = if dir == libc::AT_FDCWD {
        proc_path(thread, "cwd")
    } else {
        proc_path(thread, &format!("fd/{dir}"))
    };
    rustix::fs::open(path, PATH_DIR, Mode::empty())
}

pub fn proc_path(thread: u32, name: &str) -> String {
    format!("/proc/{thread}/{name}")
}

/// Opens a path below `root`. Magic links (/proc/self/fd) are not followed: a file found through
/// one has no path.
pub fn open_in_root(
    root: &OwnedFd,
    path: &[u8],
    flags: OFlags,
    scope: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let scope =
        if scope.contains(ResolveFlags::BENEATH) { scope } else { scope | ResolveFlags::IN_ROOT };
    // The kernel gives EAGAIN for a path with `..` while any process renames or mounts something
    // (openat2(2)).
    for _ in 0..open_beneath::MAX_RETRIES {
        match rustix::fs::openat2(
            root,
            path,
            flags,
            Mode::empty(),
            scope | ResolveFlags::NO_MAGICLINKS,
        ) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

pub fn mount_of(dir: impl AsFd, name: &CStr) -> Result<u64, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    let found = rustix::fs::statx(dir, name, flags, StatxFlags::MNT_ID)?;
    if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        Err(Errno::NOSYS)
    } else {
        Ok(found.stx_mnt_id)
    }
}
