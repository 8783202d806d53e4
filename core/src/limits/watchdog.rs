//! The watchdog: measures the process tree, reports an exceeded limit, and says when to measure
//! again. It kills nothing.
//!
//! The pause depends on how much can happen meanwhile: a process fills memory at the speed of RAM,
//! a fork bomb at the speed of fork. Far from every limit the watchdog checks twice a second, close
//! to one fifty times. Checking never takes more than a tenth of the time. A limit can be exceeded
//! between two checks; the tests measure by how much.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::process_usage::{ProcessTree, ProcessUsage, UsageFields};
use super::{ActiveLimit, Limits};
use crate::journal::event::limits::{ExceededLimit, Limit, Means};

const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// A second check before the run is ended: a vforked child counts with all memory of its parent for
/// a moment.
const RECHECK_PAUSE: Duration = Duration::from_millis(10);
/// Pause between reads of the kernel's out-of-memory counter.
const OOM_CHECK_PAUSE: Duration = Duration::from_millis(200);
/// Pause while CPU time comes from /proc. A process that ends unseen between two checks, and is
/// reaped by the kernel, takes its time along.
const MAX_LIVE_CPU_PAUSE: Duration = Duration::from_millis(250);
/// Pause while CPU time comes from a cgroup, which misses nothing.
const MAX_CGROUP_CPU_PAUSE: Duration = Duration::from_secs(1);
/// How long a measurement of shared pages stays valid, at least and at most. It is the only costly
/// one.
const SHARED_PAGES_TTL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// What two CPUs can fill. A faster growth that was measured counts instead.
const BYTES_PER_SECOND: u64 = 2 << 30;
const TASKS_PER_SECOND: u64 = 2_000;
/// The pause is at least this many times the duration of a check.
const PAUSE_COST_FACTOR: u32 = 10;
/// Failed checks in a row that are tolerated: about one second.
const MAX_FAILED_CHECKS: u32 = 50;
const MEBIBYTE: u64 = 1 << 20;

pub struct Watchdog<'a> {
    limits: &'a Limits,
    usage: ProcessUsage<'a>,
    wall: Option<(ActiveLimit, Option<Instant>)>,
    memory: Option<MemoryLimit>,
    /// Enforced by the kernel; the watchdog only notices it.
    memory_group: Option<ActiveLimit>,
    tasks: Option<TaskLimit>,
    cpu: Option<CpuLimit>,
    next: Option<Instant>,
    failed_checks: u32,
}

struct MemoryLimit {
    active: ActiveLimit,
    bytes: u64,
    last: Option<(Instant, u64)>,
    /// How many bytes are counted more than once, and until when that number is used. A written
    /// page stops being shared, so the number can only shrink.
    shared: u64,
    shared_valid_until: Option<Instant>,
    was_over: bool,
}

struct TaskLimit {
    active: ActiveLimit,
    most: u64,
}

struct CpuLimit {
    active: ActiveLimit,
    limit: Duration,
    processors: u32,
    last: Duration,
    /// CPU time of processes that the kernel reaped unseen.
    lost: Duration,
}

impl<'a> Watchdog<'a> {
    pub(crate) fn start(
        limits: &'a Limits,
        proc: BorrowedFd<'a>,
        tree: ProcessTree,
        volatile: &'a [OwnedFd],
    ) -> Result<Watchdog<'a>, Errno> {
        let now = Instant::now();
        let ours = u64::from(limits.full_tier && tree == ProcessTree::Namespace);
        let in_group =
            |active: &ActiveLimit| matches!(active.means, Means::CgroupV1 | Means::CgroupV2);
        let memory = limits.active_limit(Limit::Memory);
        let tasks = limits.active_limit(Limit::Processes).filter(|active| !in_group(active));
        let cpu = limits.active_limit(Limit::Cpu);
        let mut watch = Watchdog {
            limits,
            usage: ProcessUsage::new(proc, tree, volatile)?,
            // Suspended time does not count: the run could do nothing then. A deadline beyond the
            // range of the clock never comes.
            wall: limits
                .active_limit(Limit::Wall)
                .map(|active| (active, now.checked_add(Duration::from_secs(active.value)))),
            memory: memory.filter(|active| !in_group(active)).map(|active| MemoryLimit {
                active,
                bytes: active.value.saturating_mul(MEBIBYTE),
                last: None,
                shared: 0,
                shared_valid_until: None,
                was_over: false,
            }),
            memory_group: memory.filter(in_group),
            tasks: tasks
                .map(|active| TaskLimit { active, most: active.value.saturating_add(ours) }),
            cpu: cpu.map(|active| CpuLimit {
                active,
                limit: Duration::from_secs(active.value),
                processors: std::thread::available_parallelism()
                    .map_or(1, |count| count.get() as u32),
                last: Duration::ZERO,
                lost: Duration::ZERO,
            }),
            next: None,
            failed_checks: 0,
        };
        if watch.memory.is_some()
            || watch.memory_group.is_some()
            || watch.tasks.is_some()
            || watch.cpu.is_some()
        {
            watch.next = Some(now + MIN_PAUSE);
        }
        Ok(watch)
    }

    /// When to call `check` next. None: there is nothing to check.
    pub fn next_check(&self) -> Option<Instant> {
        let wall = self.wall.and_then(|(_, deadline)| deadline);
        [self.next, wall].into_iter().flatten().min()
    }

    /// Checks, if it is time to. A returned limit must end the run.
    pub fn check(&mut self) -> Option<ExceededLimit> {
        let now = Instant::now();
        if let Some((active, Some(deadline))) = self.wall
            && now >= deadline
        {
            return Some(active.into());
        }
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        let pause = match self.check_usage(now) {
            Ok(WatchResult::Exceeded(exceeded)) => return Some(exceeded),
            Ok(WatchResult::CheckAgainIn(pause)) => {
                self.failed_checks = 0;
                pause
            }
            Err(_) => {
                self.failed_checks += 1;
                if self.failed_checks >= MAX_FAILED_CHECKS {
                    return self.unwatched();
                }
                MIN_PAUSE
            }
        };
        let done = Instant::now();
        let cost = done.duration_since(now);
        self.next = Some(done + pause.max(cost.saturating_mul(PAUSE_COST_FACTOR).min(MAX_PAUSE)));
        None
    }

    /// Kills all processes of the tree that are found by cgroup or descent. The caller reaps them,
    /// and calls again until none is left. A namespace without a cgroup is ended by its init
    /// instead.
    pub fn kill(&mut self) {
        self.limits.groups().kill();
        let _ = self.usage.kill_descendants();
    }

    fn unwatched(&self) -> Option<ExceededLimit> {
        let memory = self.memory.as_ref().map(|memory| memory.active);
        let tasks = self.tasks.as_ref().map(|tasks| tasks.active);
        let active = memory.or(tasks).or(self.cpu.as_ref().map(|cpu| cpu.active))?;
        Some(ExceededLimit { unwatched: true, ..active.into() })
    }

    fn check_usage(&mut self, now: Instant) -> Result<WatchResult, Errno> {
        let mut pause = MAX_CGROUP_CPU_PAUSE;
        if let Some(active) = self.memory_group {
            if self.limits.groups().oom_kills() > 0 {
                return Ok(WatchResult::Exceeded(active.into()));
            }
            pause = pause.min(OOM_CHECK_PAUSE);
        }
        let clock = self.limits.groups().cpu_time();
        let columns = UsageFields {
            resident: self.memory.is_some(),
            stat: self.tasks.is_some() || (self.cpu.is_some() && clock.is_none()),
            enough_tasks: self
                .tasks
                .as_ref()
                .filter(|tasks| tasks.active.means == Means::Watchdog)
                .map(|tasks| tasks.most),
        };
        let count = if columns.resident || columns.stat {
            self.usage.count(columns)?
        } else {
            Default::default()
        };

        if let Some(tasks) = &self.tasks {
            match tasks.active.means {
                // The kernel refuses a fork without counting it. The watchdog only sees that all
                // tasks exist, except one that the creator of the namespace can use.
                Means::UserNamespace if count.tasks >= tasks.active.value => {
                    self.limits.was_full.set(true)
                }
                Means::Watchdog if count.tasks > tasks.most => {
                    return Ok(WatchResult::Exceeded(tasks.active.into()));
                }
                _ => {}
            }
            pause =
                pause.min(time_to_fill(tasks.most.saturating_sub(count.tasks), TASKS_PER_SECOND));
        }
        if let Some(cpu) = &mut self.cpu {
            let used = match clock {
                Some(used) => used,
                None => cpu.used(count.cpu_time, || Ok(self.usage.count(columns)?.cpu_time))?,
            };
            if used >= cpu.limit {
                return Ok(WatchResult::Exceeded(cpu.active.into()));
            }
            let longest = if clock.is_some() { MAX_CGROUP_CPU_PAUSE } else { MAX_LIVE_CPU_PAUSE };
            pause =
                pause.min(((cpu.limit - used) / cpu.processors.max(1)).clamp(MIN_PAUSE, longest));
        }
        if let Some(memory) = &mut self.memory {
            let used =
                memory.used(now, count.resident_bytes, || self.usage.proportional_bytes())?;
            if used > memory.bytes {
                if memory.was_over {
                    return Ok(WatchResult::Exceeded(memory.active.into()));
                }
                memory.was_over = true;
                return Ok(WatchResult::CheckAgainIn(RECHECK_PAUSE));
            }
            memory.was_over = false;
            pause = pause.min(memory.pause_after(now, used));
        }
        Ok(WatchResult::CheckAgainIn(pause))
    }
}

enum WatchResult {
    Exceeded(ExceededLimit),
    CheckAgainIn(Duration),
}

impl MemoryLimit {
    /// The memory of the tree, with every page counted once. `resident` counts shared pages several
    /// times, so it is an upper bound. Only if that bound exceeds the limit is the costly
    /// measurement made.
    fn used(
        &mut self,
        now: Instant,
        resident: u64,
        proportional: impl FnOnce() -> Result<u64, Errno>,
    ) -> Result<u64, Errno> {
        if resident <= self.bytes {
            self.shared_valid_until = None;
            return Ok(resident);
        }
        let guess = resident.saturating_sub(self.shared);
        if guess <= self.bytes && self.shared_valid_until.is_some_and(|until| now < until) {
            return Ok(guess);
        }
        let before = Instant::now();
        let used = proportional()?.min(resident);
        let cost = before.elapsed();
        self.shared = resident - used;
        self.shared_valid_until = Some(
            now + cost
                .saturating_mul(PAUSE_COST_FACTOR)
                .clamp(SHARED_PAGES_TTL.0, SHARED_PAGES_TTL.1),
        );
        Ok(used)
    }

    fn pause_after(&mut self, now: Instant, used: u64) -> Duration {
        let seen = self.last.map_or(0, |(then, before)| {
            let elapsed_ms = now.duration_since(then).as_millis().max(1) as u64;
            used.saturating_sub(before).saturating_mul(1000) / elapsed_ms
        });
        self.last = Some((now, used));
        time_to_fill(self.bytes - used, seen.saturating_mul(2).max(BYTES_PER_SECOND))
    }
}

impl CpuLimit {
    /// All CPU time, including the lost part. A child can be reaped between the reads of its parent
    /// and of itself, and is then missed once. So a decrease is measured again before it counts as
    /// lost.
    fn used(
        &mut self,
        counted: Duration,
        again: impl FnOnce() -> Result<Duration, Errno>,
    ) -> Result<Duration, Errno> {
        let mut counted = counted;
        if counted < self.last {
            counted = again()?;
        }
        self.lost += self.last.saturating_sub(counted);
        self.last = counted;
        Ok(counted + self.lost)
    }
}

fn time_to_fill(room: u64, per_second: u64) -> Duration {
    let millis = room.saturating_mul(1000) / per_second.max(1);
    Duration::from_millis(millis).clamp(MIN_PAUSE, MAX_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_depends_on_the_remaining_amount() {
        assert_eq!(time_to_fill(0, BYTES_PER_SECOND), MIN_PAUSE);
        assert_eq!(time_to_fill(512 << 20, BYTES_PER_SECOND), Duration::from_millis(250));
        assert_eq!(time_to_fill(u64::MAX, BYTES_PER_SECOND), MAX_PAUSE);
        assert_eq!(time_to_fill(1, 0), MAX_PAUSE);
    }

    fn memory() -> MemoryLimit {
        let active = ActiveLimit { limit: Limit::Memory, value: 4096, means: Means::Watchdog };
        MemoryLimit {
            active,
            bytes: 4096 << 20,
            last: None,
            shared: 0,
            shared_valid_until: None,
            was_over: false,
        }
    }

    #[test]
    fn fast_growth_shortens_the_pause() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut steady = memory();
        assert_eq!(steady.pause_after(start, 1 << 30), MAX_PAUSE);
        assert_eq!(steady.pause_after(after(500), 1 << 30), MAX_PAUSE);
        // 1 GiB in 100 ms: the remaining 2 GiB would be used in 200 ms.
        assert_eq!(steady.pause_after(after(600), 2 << 30), Duration::from_millis(100));
        // Shrinking memory does not shorten the pause.
        assert_eq!(steady.pause_after(after(700), 1 << 30), MAX_PAUSE);
    }

    #[test]
    fn shared_pages_are_measured_only_above_the_limit() {
        let now = Instant::now();
        let later = now + SHARED_PAGES_TTL.0;
        let not_measured = || Err(Errno::INVAL);
        let mut memory = memory();
        let gigabytes = |count: u64| count << 30;
        assert_eq!(memory.used(now, gigabytes(4), not_measured), Ok(gigabytes(4)));
        // Of 10 GiB, 8 were counted twice.
        assert_eq!(memory.used(now, gigabytes(10), || Ok(gigabytes(2))), Ok(gigabytes(2)));
        assert_eq!(memory.used(now, gigabytes(11), not_measured), Ok(gigabytes(3)));
        // An estimate beyond the limit is measured at once, and any estimate after a while.
        assert_eq!(memory.used(now, gigabytes(13), || Ok(gigabytes(5))), Ok(gigabytes(5)));
        assert_eq!(memory.used(now, gigabytes(12), not_measured), Ok(gigabytes(4)));
        assert_eq!(memory.used(later, gigabytes(12), || Ok(gigabytes(12))), Ok(gigabytes(12)));
    }

    #[test]
    fn lost_cpu_time_still_counts() {
        let active = ActiveLimit { limit: Limit::Cpu, value: 10, means: Means::Watchdog };
        let mut cpu = CpuLimit {
            active,
            limit: Duration::from_secs(10),
            processors: 2,
            last: Duration::ZERO,
            lost: Duration::ZERO,
        };
        let seconds = Duration::from_secs;
        let not_measured = || Err(Errno::INVAL);
        assert_eq!(cpu.used(seconds(3), not_measured), Ok(seconds(3)));
        // A child that was missed once is found by the second measurement.
        assert_eq!(cpu.used(seconds(1), || Ok(seconds(4))), Ok(seconds(4)));
        // A child that the kernel reaped unseen is not.
        assert_eq!(cpu.used(seconds(1), || Ok(seconds(1))), Ok(seconds(4)));
        assert_eq!(cpu.used(seconds(2), not_measured), Ok(seconds(5)));
    }
}
