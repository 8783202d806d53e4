//! Where processes run: two that are to work at the same time need two processors.

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Has a new process start on another processor than ours. In a virtual machine it is often left to
/// wait until ours is free, beside one that is idle: a processor that sleeps there looks like one
/// that the host has lent to somebody else.
///
/// Then it may run wherever it might before. Who can not be sent starts as he would have; an error
/// is about the way back.
pub fn start_on_other_cpu(child: Pid) -> Result<(), Errno> {
    let Ok(ours) = sched_getaffinity(None) else { return Ok(()) };
    let mut others = ours;
    others.unset(sched_getcpu());
    if others.count() == 0 || sched_setaffinity(Some(child), &others).is_err() {
        return Ok(());
    }
    // On every processor, also one that is added later; unless somebody said where we are to run.
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

    /// Where a child of ours may run, having been sent aside; and where we may.
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
    fn who_was_sent_may_run_where_we_may() {
        let (ours, theirs) = sent();
        assert_eq!(ours, theirs);
        // Bound to all but one; and, where there are two, to one. It is the thread of this test
        // alone.
        let mut fewer = ours;
        fewer.unset((0..CpuSet::MAX_CPU).find(|processor| ours.is_set(*processor)).unwrap());
        if fewer.count() > 0 {
            sched_setaffinity(None, &fewer).unwrap();
            assert_eq!(sent(), (fewer, fewer));
            sched_setaffinity(None, &ours).unwrap();
        }
    }
}
