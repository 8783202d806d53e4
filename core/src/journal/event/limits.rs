//! A limit that was met.

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

/// What holds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    CgroupV2,
    CgroupV1,
    /// The kernel counts a user's tasks in every user namespace on its own.
    UserNamespace,
    /// Looks at the tree again and again, and ends it.
    Watchdog,
    /// Of each process by itself.
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

/// A limit that was met. Its text is for people: `memory_mb 512 exceeded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceededLimit {
    pub limit: Limit,
    pub value: u64,
    pub means: Means,
    /// The run was ended, or has to be. Otherwise the command saw an error and went on.
    pub ended: bool,
    /// Nobody can say any more whether it is kept (no descriptor or no memory left to look), which
    /// ends the run as well.
    pub unwatched: bool,
}

impl fmt::Display for ExceededLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.unwatched { "can no longer be watched" } else { "exceeded" };
        write!(f, "{} {} {what}", self.limit.name(), self.value)
    }
}
