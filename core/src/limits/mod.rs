//! Limits for the whole process tree: chooses the strongest mechanism of this machine for each
//! requested limit.
//!
//! | limit | means, strongest first | beside it, per process |
//! |---|---|---|
//! | `memory_mb` | cgroup v2, cgroup v1, watchdog | RLIMIT_DATA, if there is no cgroup |
//! | `processes` (threads count) | cgroup v2, cgroup v1, RLIMIT_NPROC of the own user namespace, watchdog | pid_max of the own pid namespace |
//! | `cpu_s` | watchdog by the clock of a cgroup, watchdog by /proc | RLIMIT_CPU |
//! | `wall_s` | watchdog | |
//! | `open_files` | RLIMIT_NOFILE of each process | |
//! | `file_size_mb` | RLIMIT_FSIZE | |
//!
//! The watchdog sees mapped memory, and in the full tier the private /tmp and /dev/shm. Without a
//! cgroup it does not see other memory that no process maps (a memfd that is only written, data in
//! sockets). For that case the kernel ends this tree first when the machine runs out of memory.
//!
//! Exceeding memory, CPU time or wall time ends the run. A full process table, a full descriptor
//! table and a full file are errors that the command sees. RLIMIT_AS is never used: Node and Go
//! reserve far more address space than they use.

use std::cell::Cell;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource};

use self::cgroup::{Cgroups, Version, WantedGroups};
use self::process_usage::ProcessTree;
use self::watchdog::Watchdog;
use crate::journal::event::limits::{ExceededLimit, Limit, Means};
use crate::kernel::proc_text;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, RequestedLimits};

impl From<Version> for Means {
    fn from(version: Version) -> Means {
        match version {
            Version::V1 => Means::CgroupV1,
            Version::V2 => Means::CgroupV2,
        }
    }
}

/// An active limit. Its text is for messages: `memory_mb 512: cgroup v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveLimit {
    pub limit: Limit,
    pub value: u64,
    pub means: Means,
}

impl fmt::Display for ActiveLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.limit.name(), self.value, self.means.name())
    }
}

impl From<ActiveLimit> for ExceededLimit {
    fn from(ActiveLimit { limit, value, means }: ActiveLimit) -> ExceededLimit {
        ExceededLimit { limit, value, means, ended: true, unwatched: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    #[error("with a limit of 0 {} no command can run", .0.name())]
    Zero(Limit),
    #[error("a limit of {1} {name} is too large", name = .0.name())]
    TooLarge(Limit, u64),
    #[error(
        "the command could lift its own limits: {0} is a cgroup tree, and is granted for writing"
    )]
    Liftable(AbsPath),
    #[error("cannot move the command into its cgroup: {0}")]
    Admit(#[source] Errno),
    #[error("cannot make the command the first choice of the out-of-memory killer: {0}")]
    OomScore(#[source] Errno),
    #[error("the kernel does not list the children of a process, which limits need: {0}")]
    Watch(#[source] Errno),
}

impl LimitsError {
    pub fn errno(&self) -> Errno {
        match self {
            LimitsError::Admit(errno)
            | LimitsError::OomScore(errno)
            | LimitsError::Watch(errno) => *errno,
            LimitsError::Zero(_) | LimitsError::TooLarge(..) | LimitsError::Liftable(_) => {
                Errno::INVAL
            }
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            LimitsError::Zero(_) | LimitsError::TooLarge(..) => {
                "give the limit a useful value, or remove it"
            }
            LimitsError::Liftable(_) => {
                "start the run again; if the tree was mounted while paddock started, the next \
                    start works"
            }
            LimitsError::Admit(_) => {
                "another program changed the cgroup: start the run again, or remove the limits"
            }
            LimitsError::OomScore(_) => "mount /proc",
            LimitsError::Watch(_) => {
                "these limits need a kernel with CONFIG_PROC_CHILDREN, user namespaces or a \
                    delegated cgroup"
            }
        }
    }
}

const MEBIBYTE: u64 = 1 << 20;
/// Init counts as a task of the namespace, but not as one of the command.
const INIT_TASKS: u64 = 1;
/// After pids wrap around, the kernel gives no pid below this to a new process (RESERVED_PIDS).
const RESERVED_PIDS: u64 = 300;
/// The highest pid_max that the kernel accepts (PID_MAX_LIMIT).
const MAX_PID_MAX: u64 = 4 << 20;
/// Margin for other processes of the user, where the kernel counts the tasks of all sessions
/// together.
const NPROC_MARGIN: u64 = 1024;
/// Between an ordinary process (0) and the first choice of the kernel (1000).
const OOM_SCORE_ADJ: &[u8] = b"500";

/// The limits of one run, and the cgroups made for them. Dropping this removes the cgroups.
pub struct Limits {
    active: Vec<ActiveLimit>,
    rlimits: Vec<(Resource, u64)>,
    pid_max: Option<u32>,
    groups: Cgroups,
    pub(crate) full_tier: bool,
    /// The watchdog has seen that `processes` tasks exist.
    pub(crate) was_full: Cell<bool>,
}

impl Limits {
    /// Chooses the mechanisms and creates the cgroups. `full_tier`: the command runs in its own
    /// user and pid namespaces.
    pub fn prepare(
        requested: &RequestedLimits,
        full_tier: bool,
        session: &str,
    ) -> Result<Limits, LimitsError> {
        requested.check()?;
        let bytes = |limit, megabytes: Option<u64>| match megabytes {
            Some(megabytes) => {
                let bytes =
                    megabytes.checked_mul(MEBIBYTE).filter(|bytes| i64::try_from(*bytes).is_ok());
                bytes.map(Some).ok_or(LimitsError::TooLarge(limit, megabytes))
            }
            None => Ok(None),
        };
        let memory_bytes = bytes(Limit::Memory, requested.memory_mb)?;
        let file_bytes = bytes(Limit::FileSize, requested.file_size_mb)?;
        let ours = if full_tier { INIT_TASKS } else { 0 };
        let tasks = requested.processes.map(|processes| processes.saturating_add(ours));

        let wanted = WantedGroups { memory_bytes, tasks, cpu_time: requested.cpu_s.is_some() };
        let groups = if memory_bytes.is_some() || tasks.is_some() || wanted.cpu_time {
            Cgroups::make(session, &wanted)
        } else {
            Cgroups::none()
        };
        let chosen =
            ChosenMeans::new(requested, full_tier, rustix::process::getuid().is_root(), &groups);
        let mut rlimits = chosen.rlimits(requested, memory_bytes, file_bytes, tasks);
        if chosen.processes == Some(Means::Watchdog)
            && let Some(processes) = requested.processes
        {
            rlimits.push((
                Resource::Nproc,
                tasks_on_this_machine().saturating_add(processes).saturating_add(NPROC_MARGIN),
            ));
        }
        let pid_max = requested.processes.filter(|_| full_tier).and_then(pid_max_for);
        Ok(Limits {
            active: chosen.active(requested),
            rlimits,
            pid_max,
            groups,
            full_tier,
            was_full: Cell::new(false),
        })
    }

    /// The user owns the files of a cgroup. A plan keeps every cgroup tree unwritable, but can be
    /// older than the mount of one.
    pub fn check_unwritable(&self, files: &plan::FilesPlan) -> Result<(), LimitsError> {
        for point in self.groups.mount_points() {
            let Ok(tree) = Text::from_bytes(point.clone()).and_then(AbsPath::new) else { continue };
            let exposes = |grant: &plan::Grant| {
                grant.writes() && (tree.is_within(&grant.path) || grant.path.is_within(&tree))
            };
            if files.grants.iter().any(exposes)
                && !files.unwritable.iter().any(|kept| tree.is_within(kept))
            {
                return Err(LimitsError::Liftable(tree));
            }
        }
        Ok(())
    }

    /// The active limits and their mechanisms.
    pub fn active(&self) -> &[ActiveLimit] {
        &self.active
    }

    pub(crate) fn active_limit(&self, limit: Limit) -> Option<ActiveLimit> {
        self.active.iter().copied().find(|active| active.limit == limit)
    }

    /// True if a supervisor must stay while the command runs.
    pub fn need_supervisor(&self) -> bool {
        [Limit::Memory, Limit::Processes, Limit::Cpu, Limit::Wall]
            .iter()
            .any(|limit| self.active_limit(*limit).is_some())
    }

    /// The rlimits of each process, soft and hard.
    pub fn rlimits(&self) -> &[(Resource, u64)] {
        &self.rlimits
    }

    /// pid_max of the command's pid namespace (Linux 6.14). Before, the file can not be written,
    /// and only RLIMIT_NPROC applies.
    pub fn pid_max(&self) -> Option<u32> {
        self.pid_max
    }

    pub(crate) fn groups(&self) -> &Cgroups {
        &self.groups
    }

    /// Applies the limits that rlimits do not carry, to a process that has not started anything
    /// yet. `pid` is its id in this process's /proc. Makes system calls only.
    pub fn admit(&self, pid: Pid) -> Result<(), LimitsError> {
        let mut digits = [0; 12];
        let start = decimal(pid.as_raw_nonzero().get().unsigned_abs(), &mut digits);
        let mut path = [0; 40];
        let parts: [&[u8]; 3] = [b"/proc/", &digits[start..], b"/oom_score_adj\0"];
        let mut length = 0;
        for part in parts {
            path[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        self.admit_as(&digits[start..], &path[..length])
    }

    /// Like `admit`, for the calling process, while /proc is still mounted.
    pub fn admit_self(&self) -> Result<(), LimitsError> {
        self.admit_as(b"0", b"/proc/self/oom_score_adj\0")
    }

    /// Like `admit_self`, if the parent has called [`Limits::offer_to_oom_killer`].
    pub fn join_groups(&self) -> Result<(), LimitsError> {
        self.groups.admit(b"0").map_err(LimitsError::Admit)
    }

    /// If the machine runs out of memory anyway, the kernel ends the caller and its later children
    /// first. For a process that can not write to /proc afterwards.
    pub fn offer_to_oom_killer(&self) -> Result<(), LimitsError> {
        self.raise_oom_score(b"/proc/self/oom_score_adj\0")
    }

    fn admit_as(&self, pid: &[u8], oom_score_adj: &[u8]) -> Result<(), LimitsError> {
        self.groups.admit(pid).map_err(LimitsError::Admit)?;
        self.raise_oom_score(oom_score_adj)
    }

    fn raise_oom_score(&self, oom_score_adj: &[u8]) -> Result<(), LimitsError> {
        if self.active_limit(Limit::Memory).is_some() {
            // If the machine runs out of memory anyway, the kernel ends this tree first.
            let path = std::ffi::CStr::from_bytes_with_nul(oom_score_adj).unwrap_or(c"");
            let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            file.and_then(|file| rustix::io::write(&file, OOM_SCORE_ADJ))
                .map_err(LimitsError::OomScore)?;
        }
        Ok(())
    }

    /// Starts the watchdog. `proc` is a /proc that shows the tree. `volatile` are in-memory file
    /// systems that only the tree uses.
    pub fn watch<'a>(
        &'a self,
        proc: BorrowedFd<'a>,
        tree: ProcessTree,
        volatile: &'a [OwnedFd],
    ) -> Result<Watchdog<'a>, LimitsError> {
        Watchdog::start(self, proc, tree, volatile).map_err(LimitsError::Watch)
    }

    /// The limit whose signal ended a process of the tree.
    pub fn behind_signal(&self, signal: i32) -> Option<ExceededLimit> {
        let limit = match signal {
            libc::SIGXFSZ => Limit::FileSize,
            libc::SIGXCPU => Limit::Cpu,
            _ => return None,
        };
        self.active_limit(limit).map(ExceededLimit::from)
    }

    /// All exceeded limits, for the journal. `ended_by` is the result of the watchdog. Removes the
    /// cgroups: the tree has ended.
    pub fn finish(self, ended_by: Option<ExceededLimit>) -> Vec<ExceededLimit> {
        let mut met = Vec::with_capacity(2);
        met.extend(ended_by);
        let mut also = |limit, ended| {
            if let Some(active) = self.active_limit(limit)
                && !met.iter().any(|exceeded| exceeded.limit == limit)
            {
                met.push(ExceededLimit { ended, ..active.into() });
            }
        };
        if self.groups.oom_kills() > 0 {
            also(Limit::Memory, true);
        }
        if self.groups.refused_forks() > 0 || self.was_full.get() {
            also(Limit::Processes, false);
        }
        met
    }
}

/// The mechanism for each limit that has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChosenMeans {
    memory: Option<Means>,
    processes: Option<Means>,
    cpu: Option<Means>,
}

impl ChosenMeans {
    fn new(
        requested: &RequestedLimits,
        full_tier: bool,
        root: bool,
        groups: &Cgroups,
    ) -> ChosenMeans {
        let memory = groups.memory().map_or(Means::Watchdog, Means::from);
        let processes = match groups.tasks() {
            Some(version) => version.into(),
            // RLIMIT_NPROC does not apply to root (fork(2)).
            None if full_tier && !root => Means::UserNamespace,
            None => Means::Watchdog,
        };
        let cpu = groups.clock().map_or(Means::Watchdog, Means::from);
        ChosenMeans {
            memory: requested.memory_mb.map(|_| memory),
            processes: requested.processes.map(|_| processes),
            cpu: requested.cpu_s.map(|_| cpu),
        }
    }

    fn active(&self, requested: &RequestedLimits) -> Vec<ActiveLimit> {
        let all = [
            (Limit::Memory, requested.memory_mb, self.memory),
            (Limit::Processes, requested.processes, self.processes),
            (Limit::Cpu, requested.cpu_s, self.cpu),
            (Limit::OpenFiles, requested.open_files, Some(Means::Rlimit)),
            (Limit::FileSize, requested.file_size_mb, Some(Means::Rlimit)),
            (Limit::Wall, requested.wall_s, Some(Means::Watchdog)),
        ];
        all.into_iter()
            .filter_map(|(limit, value, means)| {
                Some(ActiveLimit { limit, value: value?, means: means? })
            })
            .collect()
    }

    fn rlimits(
        &self,
        requested: &RequestedLimits,
        memory_bytes: Option<u64>,
        file_bytes: Option<u64>,
        tasks: Option<u64>,
    ) -> Vec<(Resource, u64)> {
        let all = [
            // Bounds a single process between two checks of the watchdog. RLIMIT_DATA counts
            // requested memory, used or not.
            (Resource::Data, memory_bytes.filter(|_| self.memory == Some(Means::Watchdog))),
            (Resource::Nproc, tasks.filter(|_| self.processes == Some(Means::UserNamespace))),
            // One second more than the tree: the watchdog, which knows the limit, must come first.
            (Resource::Cpu, requested.cpu_s.map(|seconds| seconds.saturating_add(1))),
            (Resource::Nofile, requested.open_files),
            (Resource::Fsize, file_bytes),
        ];
        all.into_iter().filter_map(|(resource, value)| Some((resource, value?))).collect()
    }
}

impl RequestedLimits {
    fn check(&self) -> Result<(), LimitsError> {
        let all = [
            (Limit::Memory, self.memory_mb),
            (Limit::Processes, self.processes),
            (Limit::Cpu, self.cpu_s),
            (Limit::OpenFiles, self.open_files),
            (Limit::FileSize, self.file_size_mb),
            (Limit::Wall, self.wall_s),
        ];
        match all.into_iter().find(|(_, value)| *value == Some(0)) {
            Some((limit, _)) => Err(LimitsError::Zero(limit)),
            None => Ok(()),
        }
    }
}

/// High enough for `processes` pids after the low pids were used up.
fn pid_max_for(processes: u64) -> Option<u32> {
    let wanted = processes.checked_add(RESERVED_PIDS + INIT_TASKS + 1)?;
    u32::try_from(wanted).ok().filter(|wanted| u64::from(*wanted) < MAX_PID_MAX)
}

/// The kernel does not report the tasks of one user. The tasks of all users together are an upper
/// bound.
fn tasks_on_this_machine() -> u64 {
    let text = std::fs::read("/proc/loadavg").unwrap_or_default();
    // Unknown: use a number that does not limit anything.
    proc_text::tasks(&text).map_or(MAX_PID_MAX, |(_, all)| all)
}

/// Writes the digits at the end of the buffer and returns their start.
fn decimal(mut number: u32, buffer: &mut [u8; 12]) -> usize {
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return start;
        }
    }
}

pub mod cgroup;
pub mod descendants;
pub mod process_usage;
#[cfg(test)]
mod resource_hogs;
#[cfg(test)]
mod tests;
pub mod watchdog;
