//! Opens one path inside the sandbox for the session owner.
//!
//! File tools work on the host. Only the sandbox knows which names its masks and locks close at
//! this moment. So the session owner asks here for the object that a path leads to, and compares it
//! with its own. The descriptor is the answer: the owner trusts the kernel, not this process. One
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
    let path = request.path.as_c_str().into_owned();
    let below = path.as_bytes().strip_prefix(b"/").ok_or(Errno::INVAL)?;
    let root =
        rustix::fs::open(c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // A fifo without a writer does not block, and no terminal becomes the controlling one.
    let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    open_beneath::open(root, below, if request.read { read } else { OFlags::PATH })
}
