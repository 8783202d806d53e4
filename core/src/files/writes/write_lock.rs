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
//! So such a name is made while no other run makes names.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::files::workspace::session_dir;
use crate::plan::wire::bytes::AbsPath;

pub struct WriteLock(OwnedFd);

/// The lock is held as long as this value lives.
pub struct HeldLock<'l>(&'l OwnedFd);

impl WriteLock {
    /// `sessions`: the directory of sessions. The lock is beside it, and the command can not open
    /// it.
    pub fn open(sessions: &AbsPath) -> Result<WriteLock, Errno> {
        let path = sessions.as_bytes();
        let state = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let lock = [state, b"/writes.lock"].concat();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(CWD, &lock[..], flags, Mode::RUSR | Mode::WUSR);
        let file = match open() {
            Err(Errno::NOENT) => session_dir::make_all(state).and_then(|()| open()),
            file => file,
        };
        file.map(WriteLock)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Waits until no other run holds the lock alone.
    pub fn hold_shared(&self) -> Result<HeldLock<'_>, Errno> {
        self.hold(FlockOperation::LockShared)
    }

    /// Waits until no other run holds the lock.
    pub fn hold_alone(&self) -> Result<HeldLock<'_>, Errno> {
        self.hold(FlockOperation::LockExclusive)
    }

    fn hold(&self, operation: FlockOperation) -> Result<HeldLock<'_>, Errno> {
        rustix::fs::flock(&self.0, operation)?;
        Ok(HeldLock(&self.0))
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}
