//! Waiting awake, for an instant: where the next event is as good as there, being woken on a
//! processor that sleeps takes longer than all that is done then.
//!
//! Only while there is a processor for everybody who wants one. Who stays awake looks busy, and the
//! others would be put where somebody else is; what it saved us would cost them more.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::kernel::proc_text;

/// Somewhat longer than the kernel takes from a permitted exec to its end.
const LENGTH: Duration = Duration::from_micros(200);
/// For how many vigils a look at who wants a processor is believed, where there was room and where
/// there was none.
const ROOM_BELIEVED: u32 = 16;
const CROWD_BELIEVED: u32 = 4;

#[derive(Default)]
pub struct Vigil {
    machine: Option<Machine>,
    has_room: bool,
    /// So many times no look is needed.
    believed: u32,
}

impl Vigil {
    /// False: nothing came, and it is time to sleep.
    pub fn keep(&mut self, mut came: impl FnMut() -> Result<bool, Errno>) -> Result<bool, Errno> {
        if self.believed == 0 {
            self.has_room = self.machine.get_or_insert_with(Machine::find).has_room();
            self.believed = if self.has_room { ROOM_BELIEVED } else { CROWD_BELIEVED };
        }
        self.believed -= 1;
        if !self.has_room {
            return Ok(false);
        }
        let end = Instant::now() + LENGTH;
        while !came()? {
            if Instant::now() >= end {
                self.believed = 0;
                return Ok(false);
            }
            // He may have been put behind us.
            rustix::thread::sched_yield();
        }
        Ok(true)
    }
}

struct Machine {
    /// None: nobody can say, and there is never room.
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

    /// For all who run now, us among them.
    fn has_room(&self) -> bool {
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

    fn vigil(processors: u64) -> Vigil {
        Vigil { machine: Some(Machine { processors, ..Machine::find() }), ..Vigil::default() }
    }

    #[test]
    fn nobody_has_room_who_can_not_ask() {
        assert!(Machine { processors: ROOM, ..Machine::find() }.has_room());
        assert!(!Machine { processors: ROOM, loadavg: None }.has_room());
    }

    #[test]
    fn it_ends_with_what_it_waits_for() {
        // On a busy machine another process may have the processor for longer than the wait lasts.
        let ends_at_the_third = || {
            let mut asked = 0;
            let kept = vigil(ROOM).keep(|| {
                asked += 1;
                Ok(asked == 3)
            });
            kept == Ok(true) && asked == 3
        };
        assert!((0..1000).any(|_| ends_at_the_third()));
        assert_eq!(vigil(ROOM).keep(|| Err(Errno::BADF)), Err(Errno::BADF));
    }

    #[test]
    fn it_ends_when_nothing_comes() {
        let mut vigil = vigil(ROOM);
        assert_eq!(vigil.keep(|| Ok(false)), Ok(false));
        assert_eq!(vigil.believed, 0, "in vain: the next one looks again");
    }

    #[test]
    fn none_is_kept_where_somebody_waits_for_a_processor() {
        assert_eq!(vigil(0).keep(|| unreachable!("nobody is asked")), Ok(false));
    }
}
