//! A busy-wait for an event that is about to arrive. To be woken on a sleeping processor takes
//! longer than all the work that follows.
//!
//! It is used only while a processor is idle. A busy process makes the scheduler move others to
//! processors that are in use, which costs them more than it saves here.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::kernel::proc_text;

/// Somewhat longer than the kernel takes from a permitted exec to its end.
const SPIN_TIMEOUT: Duration = Duration::from_micros(200);
/// After so many waits the load is read again, if a processor was idle and if none was.
const WAITS_PER_IDLE_CHECK: u32 = 16;
const WAITS_PER_BUSY_CHECK: u32 = 4;

#[derive(Default)]
pub struct SpinWait {
    machine: Option<Machine>,
    has_idle_cpu: bool,
    /// Waits until the load is read again.
    waits_until_check: u32,
}

impl SpinWait {
    /// False: no event came in time.
    pub fn wait(&mut self, mut came: impl FnMut() -> Result<bool, Errno>) -> Result<bool, Errno> {
        if self.waits_until_check == 0 {
            self.has_idle_cpu = self.machine.get_or_insert_with(Machine::find).has_idle_cpu();
            self.waits_until_check =
                if self.has_idle_cpu { WAITS_PER_IDLE_CHECK } else { WAITS_PER_BUSY_CHECK };
        }
        self.waits_until_check -= 1;
        if !self.has_idle_cpu {
            return Ok(false);
        }
        let end = Instant::now() + SPIN_TIMEOUT;
        while !came()? {
            if Instant::now() >= end {
                self.waits_until_check = 0;
                return Ok(false);
            }
            // The awaited process may be queued on this processor.
            rustix::thread::sched_yield();
        }
        Ok(true)
    }
}

struct Machine {
    /// None: the load is not known, and no processor counts as idle.
    loadavg: Option<OwnedFd>,
    processors: u64,
}

impl Machine {
    fn find() -> Machine {
        Machine {
            loadavg: rustix::fs::open(
                c"/proc/loadavg",
                OFlags::RDONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .ok(),
            processors: rustix::thread::sched_getaffinity(None)
                .map_or(0, |set| u64::from(set.count())),
        }
    }

    /// Is there a processor for every process that runs now, this one included?
    fn has_idle_cpu(&self) -> bool {
        let mut buffer = [0; 64];
        let read =
            self.loadavg.as_ref().and_then(|file| rustix::io::pread(file, &mut buffer, 0).ok());
        let tasks = read.and_then(|length| proc_text::tasks(&buffer[..length]));
        tasks.is_some_and(|(running, _)| running <= self.processors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: u64 = u64::MAX;

    fn spin_wait(processors: u64) -> SpinWait {
        SpinWait { machine: Some(Machine { processors, ..Machine::find() }), ..SpinWait::default() }
    }

    #[test]
    fn without_a_known_load_no_cpu_is_idle() {
        assert!(Machine { processors: ROOM, ..Machine::find() }.has_idle_cpu());
        assert!(!Machine { processors: ROOM, loadavg: None }.has_idle_cpu());
    }

    #[test]
    fn the_wait_ends_with_its_event() {
        // On a busy machine another process may have the processor for longer than the wait lasts.
        let ends_at_the_third = || {
            let mut checks = 0;
            let result = spin_wait(ROOM).wait(|| {
                checks += 1;
                Ok(checks == 3)
            });
            result == Ok(true) && checks == 3
        };
        assert!((0..1000).any(|_| ends_at_the_third()));
        assert_eq!(spin_wait(ROOM).wait(|| Err(Errno::BADF)), Err(Errno::BADF));
    }

    #[test]
    fn the_wait_ends_at_its_timeout() {
        let mut spin_wait = spin_wait(ROOM);
        assert_eq!(spin_wait.wait(|| Ok(false)), Ok(false));
        assert_eq!(spin_wait.waits_until_check, 0, "in vain: the next one looks again");
    }

    #[test]
    fn there_is_no_wait_while_a_process_waits_for_a_cpu() {
        assert_eq!(spin_wait(0).wait(|| unreachable!("the condition is not checked")), Ok(false));
    }
}
