//! Opens one path inside the sandbox for the session owner.
//!
//! Only the sandbox knows which names its masks and locks close at this moment, and what a
//! copy-on-write workspace contains. So file tools read the descriptor that is opened here. One
//! message: `{"opened":true}` with the descriptor, or `{"errno":N,"failed":"open"}`.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::command_reaper::{self, ALL_ENDED};
use crate::kernel::open_beneath;
use crate::plan::wire::bytes::Text;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenRequest {
    /// Absolute, without a symlink, `.` or `..`.
    path: Text,
    /// True: open it for reading. False: only look it up.
    read: bool,
}

/// The exit status says that no process is left: an opener starts none.
pub fn answer(request: Option<OpenRequest>, socket: &OwnedFd) -> i32 {
    match request.ok_or(Errno::INVAL).and_then(|request| open(&request)) {
        Ok(found) => command_reaper::send(socket, "{\"opened\":true}", Some(found.as_fd())),
        Err(errno) => drop(command_reaper::refuse(socket, "open", errno)),
    }
    ALL_ENDED
}

fn open(request: &OpenRequest) -> Result<OwnedFd, Errno> {
    // A fifo without a writer does not block, and no terminal becomes the controlling one.
    let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_path(request.path.as_bytes(), if request.read { read } else { OFlags::PATH })
}

/// Opens an absolute path, and follows no symlink.
pub(super) fn open_path(path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let below = path.strip_prefix(b"/").ok_or(Errno::INVAL)?;
    let root =
        rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    open_beneath::open(root, below, flags)
}
