//! Thread ids in another pid namespace, which lies below the one of this process.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;

use super::calling_process::proc_path;
use super::proc_text;
use super::sys;

/// A thread has one id in each namespace.
pub struct PidNamespace {
    namespace: OwnedFd,
    /// The first process there, by its id here.
    init: u32,
}

impl PidNamespace {
    pub fn new(namespace: OwnedFd, init: u32) -> PidNamespace {
        PidNamespace { namespace, init }
    }

    /// The id here of a thread there. None: the thread has ended.
    pub fn thread_here(&self, there: u32) -> Option<u32> {
        match sys::thread_from_namespace(self.namespace.as_fd(), there) {
            Ok(here) => Some(here),
            Err(Errno::SRCH) => None,
            // The kernel is older than Linux 6.11.
            Err(_) => search(self.init, there),
        }
    }

    /// The id there of a thread here. None: the thread has ended.
    pub fn thread_there(&self, here: u32) -> Option<u32> {
        last_id(here)
    }
}

/// The id of a thread in the innermost namespace that it is in.
fn last_id(here: u32) -> Option<u32> {
    let status = std::fs::read(proc_path(here, "status")).ok()?;
    let mut lines = status.split(|byte| *byte == b'\n');
    let ids = lines.find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let last = proc_text::words(ids).last()?;
    proc_text::number(last).and_then(|id| u32::try_from(id).ok())
}

/// Looks at every thread of a process, and of every process below it.
fn search(process: u32, there: u32) -> Option<u32> {
    let mut waiting = vec![process];
    while let Some(process) = waiting.pop() {
        // It has ended since its parent was read.
        let Ok(threads) = std::fs::read_dir(proc_path(process, "task")) else { continue };
        for thread in threads.flatten() {
            let Some(thread) = thread.file_name().to_str().and_then(|name| name.parse().ok())
            else {
                continue;
            };
            if last_id(thread) == Some(there) {
                return Some(thread);
            }
            let children = proc_path(process, &format!("task/{thread}/children"));
            let children = std::fs::read_to_string(children).unwrap_or_default();
            waiting
                .extend(children.split_ascii_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn a_thread_has_the_same_id_here_in_its_own_namespace() {
        let own = std::process::id();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let namespace = rustix::fs::open(c"/proc/self/ns/pid", flags, Mode::empty()).unwrap();
        let namespace = PidNamespace::new(namespace, own);
        assert_eq!(namespace.thread_here(own), Some(own));
        assert_eq!(namespace.thread_here(u32::MAX >> 1), None);
        assert_eq!(namespace.thread_there(own), last_id(own));
    }

    #[test]
    fn the_search_finds_threads_and_children() {
        let (own, thread) = (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get());
        let there = |here: u32| last_id(here).unwrap();
        assert_eq!(search(own, there(thread as u32)), Some(thread as u32));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(search(own, there(child.id())), Some(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(search(own, u32::MAX >> 1), None);
    }
}
