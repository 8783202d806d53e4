//! CPU affinity: two processes that work at the same time need two processors.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Starts a new process on another processor than this one. In a virtual machine it often waits
/// until this processor is free, although another is idle: an idle processor looks like one that
/// the host has lent to another guest.
///
/// Afterwards the process may run wherever it could before. A process that can not be moved starts
/// as usual. An error is about restoring its affinity.
pub fn start_on_other_cpu(child: Pid) -> Result<(), Errno> {
    let Ok(ours) = sched_getaffinity(None) else { return Ok(()) };
    let mut others = ours;
    others.unset(sched_getcpu());
    if others.count() == 0 || sched_setaffinity(Some(child), &others).is_err() {
        return Ok(());
    }
    // Every processor, also one that is added later, unless an affinity was set for this process.
    let mut every = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|processor| every.set(processor));
    sched_setaffinity(Some(child), &every)?;
    if sched_getaffinity(Some(child))? == ours {
        Ok(())
    } else {
        sched_setaffinity(Some(child), &ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::sys;

    /// The processors of a child after the call, and those of this process.
    fn sent() -> (CpuSet, CpuSet) {
        let ours = sched_getaffinity(None).unwrap();
        let child = sys::fork(|| {
            std::thread::sleep(std::time::Duration::from_secs(60));
            0
        })
        .unwrap();
        start_on_other_cpu(child).unwrap();
        let theirs = sched_getaffinity(Some(child)).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
        (ours, theirs)
    }

    #[test]
    fn a_moved_child_keeps_the_affinity_of_its_parent() {
        let (ours, theirs) = sent();
        assert_eq!(ours, theirs);
        // First all processors but one; then one, if there are two. It affects only the thread of
        // this test.
        let mut fewer = ours;
        fewer.unset((0..CpuSet::MAX_CPU).find(|processor| ours.is_set(*processor)).unwrap());
        if fewer.count() > 0 {
            sched_setaffinity(None, &fewer).unwrap();
            assert_eq!(sent(), (fewer, fewer));
            sched_setaffinity(None, &ours).unwrap();
        }
    }
}
