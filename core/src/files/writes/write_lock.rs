//! One lock for all runs of a user.
//!
//! Init judges a name by the path of an open directory, and then makes the name in that directory.
//! Within a run no process can move the directory between these steps, because init does one call
//! at a time. Another run has another init. So a rename waits until no other run is between them.
//!
//! Only bind(2) takes a path that init has walked before. So it waits too, and no other run changes
//! a symlink on the way until it is done.
//!
//! A directory becomes a repository by several names, which two runs could make at the same time.
//! So such a name is made while no other run makes names. A run does not move a directory that
//! another run works in.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::run_roots::RunRoots;
use crate::files::workspace::session_dir;
use crate::plan::wire::bytes::AbsPath;

pub struct WriteLock {
    file: OwnedFd,
    roots: RunRoots,
}

/// The lock is held as long as this value lives.
pub struct HeldLock<'l>(&'l OwnedFd);

impl WriteLock {
    /// `sessions`: the directory of sessions. The lock is beside it, and the command can not open
    /// it. `trees`: the paths that this run may write. From now on no other run moves them.
    pub fn open(sessions: &AbsPath, trees: &[Vec<u8>]) -> Result<WriteLock, Errno> {
        let path = sessions.as_bytes();
        let state = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |name: &[u8]| {
            rustix::fs::openat(CWD, [state, name].concat(), flags, Mode::RUSR | Mode::WUSR)
        };
        let file = match open(b"/writes.lock") {
            Err(Errno::NOENT) => session_dir::make_all(state).and_then(|()| open(b"/writes.lock")),
            file => file,
        }?;
        let held = hold(&file, FlockOperation::LockExclusive)?;
        let roots = RunRoots::register(open(b"/runs")?, trees)?;
        drop(held);
        Ok(WriteLock { file, roots })
    }

    /// The descriptors that the lock needs.
    pub fn descriptors(&self) -> [&OwnedFd; 2] {
        [&self.file, self.roots.fd()]
    }

    /// The trees that other runs may write.
    pub fn trees_of_others(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.roots.of_others()
    }

    /// Waits until no other run holds the lock alone.
    pub fn hold_shared(&self) -> Result<HeldLock<'_>, Errno> {
        hold(&self.file, FlockOperation::LockShared)
    }

    /// Waits until no other run holds the lock.
    pub fn hold_alone(&self) -> Result<HeldLock<'_>, Errno> {
        hold(&self.file, FlockOperation::LockExclusive)
    }
}

fn hold(file: &OwnedFd, operation: FlockOperation) -> Result<HeldLock<'_>, Errno> {
    rustix::fs::flock(file, operation)?;
    Ok(HeldLock(file))
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}
