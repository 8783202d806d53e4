//! Descriptor set-up for helper processes: close everything that is not passed on explicitly.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, FdFlags};

use super::sys;

/// Runs in the new process, before execve. `standard` becomes stdin, stdout and stderr.
pub fn keep_only(standard: &OwnedFd, kept: &[&OwnedFd]) -> Result<(), Errno> {
    rustix::stdio::dup2_stdin(standard)?;
    rustix::stdio::dup2_stdout(standard)?;
    rustix::stdio::dup2_stderr(standard)?;
    sys::close_on_exec_from(3)?;
    for fd in kept {
        rustix::io::fcntl_setfd(fd, FdFlags::empty())?;
    }
    sys::unblock_every_signal();
    Ok(())
}
