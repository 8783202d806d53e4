//! The umask of a caller. New files depend on it.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;

use super::resolve::{Caller, status_field};
use crate::kernel::calling_process::proc_path;
use crate::kernel::sys;

/// The umasks of the threads that made files. /proc shows them, and takes long.
#[derive(Default)]
pub struct Umasks {
    known: Vec<KnownUmask>,
    /// Threads whose umask(2) may still run. It changes the umask of other threads too, so nothing
    /// is kept before the next call of each of them.
    changing: Vec<(u32, OwnedFd)>,
    /// Too many threads changed it at once: from now on each umask is read.
    keeps_none: bool,
}

struct KnownUmask {
    thread: u32,
    /// A pidfd: the number of an ended thread can be given to another one.
    handle: OwnedFd,
    umask: u32,
}

const MAX_KNOWN_UMASKS: usize = 64;
const MAX_CHANGING: usize = 64;

impl Umasks {
    /// A thread makes a call, so an umask(2) of it has ended.
    pub fn see(&mut self, thread: u32) {
        if !self.changing.is_empty() {
            self.known.clear();
            self.changing
                .retain(|(other, handle)| *other != thread && sys::is_alive(handle.as_fd()));
        }
    }

    pub fn of(&mut self, caller: Caller) -> Result<u32, Errno> {
        let known = self.known.iter().position(|known| known.thread == caller.thread);
        if let Some(at) = known {
            if sys::is_alive(self.known[at].handle.as_fd()) {
                return Ok(self.known[at].umask);
            }
            self.known.swap_remove(at);
        }
        // The handle comes first: if the thread ends meanwhile, the umask is another's and the
        // handle says so.
        let handle = sys::thread_handle(caller.thread)?;
        let status = std::fs::read(proc_path(caller.thread, "status")).map_err(|_| Errno::SRCH)?;
        let umask = status_field(&status, b"Umask:", 8).ok_or(Errno::SRCH)? as u32;
        if self.known.len() == MAX_KNOWN_UMASKS {
            self.known.swap_remove(0);
        }
        if self.changing.is_empty() && !self.keeps_none {
            self.known.push(KnownUmask { thread: caller.thread, handle, umask });
        }
        Ok(umask)
    }

    /// A thread is about to change its umask, and perhaps that of others.
    pub fn change(&mut self, thread: u32) -> Result<(), Errno> {
        self.known.clear();
        self.changing.retain(|(_, handle)| sys::is_alive(handle.as_fd()));
        match self.changing.len() < MAX_CHANGING {
            true => self.changing.push((thread, sys::thread_handle(thread)?)),
            false => self.keeps_none = true,
        }
        Ok(())
    }
}
