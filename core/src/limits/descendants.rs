//! Ends every process that this one started or adopted.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use super::process_usage::{ProcessTree, ProcessUsage};
use crate::kernel::{ancestry, sys};

/// Descendants get this long to die of SIGKILL; only one stuck inside the kernel takes longer.
const REAP_TIMEOUT: Duration = Duration::from_secs(30);
pub const REAP_PAUSE: Duration = Duration::from_millis(20);

/// Kills and reaps all descendants until there is no child left.
pub fn end_descendants() {
    let deadline = Instant::now() + REAP_TIMEOUT;
    let proc = rustix::fs::open(
        c"/proc",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let own = ProcessTree::DescendantsOf(rustix::process::getpid());
    let mut usage =
        proc.as_ref().ok().and_then(|proc| ProcessUsage::new(proc.as_fd(), own, &[]).ok());
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Ok(None) => {}
            Err(_) => return, // ECHILD
        }
        // The whole tree is stopped before it is killed. Otherwise processes that fork faster than
        // the scan would survive.
        let ended = usage.as_mut().map_or(Err(Errno::NOSYS), ProcessUsage::kill_descendants);
        if ended.is_err() {
            // The children of killed processes become children of this process, and are killed in
            // the next round.
            for child in children() {
                let _ = rustix::process::kill_process(child, Signal::KILL);
            }
        }
        if Instant::now() >= deadline {
            return;
        }
        sys::next_signal(Some(REAP_PAUSE));
    }
}

/// The children of this process, found by the parent of every process.
fn children() -> Vec<Pid> {
    let own = rustix::process::getpid();
    let numbered = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    numbered
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| ancestry::parent_of(*pid) == Some(own.as_raw_nonzero().get()))
        .filter_map(Pid::from_raw)
        .collect()
}
