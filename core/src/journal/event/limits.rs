//! A limit that was exceeded.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Processes,
    Cpu,
    OpenFiles,
    FileSize,
    Wall,
}

impl Limit {
    /// As the policy calls it.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory_mb",
            Limit::Processes => "processes",
            Limit::Cpu => "cpu_s",
            Limit::OpenFiles => "open_files",
            Limit::FileSize => "file_size_mb",
            Limit::Wall => "wall_s",
        }
    }
}

/// The mechanism that enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    CgroupV2,
    CgroupV1,
    /// The kernel counts a user's tasks separately in every user namespace.
    UserNamespace,
    /// Checks the process tree repeatedly, and ends it.
    Watchdog,
    /// Applies to each process separately.
    Rlimit,
}

impl Means {
    pub fn name(self) -> &'static str {
        match self {
            Means::CgroupV2 => "cgroup v2",
            Means::CgroupV1 => "cgroup v1",
            Means::UserNamespace => "user namespace",
            Means::Watchdog => "watchdog",
            Means::Rlimit => "rlimit",
        }
    }
}

/// An exceeded limit. Its text is for messages: `memory_mb 512 exceeded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    pub limit: Limit,
    pub value: u64,
    pub means: Means,
    /// True: the run was ended, or must be. False: the command got an error and continued.
    pub ended: bool,
    /// True: the limit can not be checked any more (no descriptor or no memory left), which ends
    /// the run as well.
    pub unwatched: bool,
}

impl fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.unwatched { "can no longer be watched" } else { "exceeded" };
        write!(f, "{} {} {what}", self.limit.name(), self.value)
    }
}
