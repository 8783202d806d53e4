//! Control groups of one session: created where this user may create them, limited, and removed at
//! the end.
//!
//! Nothing here needs privileges, and nothing is inferred from versions or owners. A limit is
//! active if the kernel accepted it and reads back the written value. For the rest, the caller
//! chooses weaker mechanisms. The user owns the files of a group, so the command must not be able
//! to write below the mount points of the cgroup trees. Plans keep them unwritable, and a run whose
//! plan does not is refused.

mod location;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::kernel::proc_text::{self, NumberList};
pub use location::Version;
use location::{CgroupLevel, CgroupLocation, Controller, Controllers};

/// linux/magic.h.
const CGROUP_SUPER_MAGIC: u64 = 0x0027_E0EB;
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;

const GROUP_PREFIX: &[u8] = b"paddock-";
const FILE_FLAGS: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Another session can remove a new group as a forgotten one, before it is locked.
const MAX_MAKE_ATTEMPTS: usize = 3;
/// The last process of a group may not have left the kernel yet.
const MAX_REMOVE_ATTEMPTS: usize = 40;
const REMOVE_PAUSE: Duration = Duration::from_millis(5);
const MAX_KILL_ROUNDS: usize = 64;

/// The limits that the groups should enforce.
#[derive(Clone, Copy, Debug, Default)]
pub struct WantedGroups {
    pub memory_bytes: Option<u64>,
    pub tasks: Option<u64>,
    pub cpu_time: bool,
}

/// The groups of a session. Dropping this removes them.
pub struct Cgroups {
    groups: Vec<Cgroup>,
    /// The mount points of all cgroup trees.
    mount_points: Vec<Vec<u8>>,
    memory: Option<usize>,
    tasks: Option<usize>,
    cpu_time: Option<usize>,
}

struct Cgroup {
    version: Version,
    parent: OwnedFd,
    name: CString,
    /// Its lock tells other sessions that this group is in use.
    dir: OwnedFd,
    procs: OwnedFd,
}

impl Cgroups {
    /// Creates groups for as many of the wanted limits as this user can get.
    pub fn make(session: &str, wanted: &WantedGroups) -> Cgroups {
        let mut made = Cgroups::none();
        let texts = (std::fs::read("/proc/self/cgroup"), std::fs::read("/proc/self/mountinfo"));
        let (Ok(membership), Ok(mounts), Ok(name)) =
            (texts.0, texts.1, CString::new(format!("paddock-{session}")))
        else {
            return made;
        };
        if let Some(location) = CgroupLocation::in_v2(&membership, &mounts) {
            made.make_v2(&location, &name, wanted);
        }
        let mut locations = Vec::with_capacity(Controller::ALL.len());
        for controller in Controller::ALL {
            if !made.lacks(controller, wanted) {
                continue;
            }
            let Some(location) = CgroupLocation::in_v1(controller, &membership, &mounts) else {
                continue;
            };
            // Several controllers can share one tree.
            let index = match locations.iter().find(|(known, _)| *known == location) {
                Some((_, index)) => *index,
                None => {
                    let Some(group) = make_v1(&location, &name) else { continue };
                    made.groups.push(group);
                    locations.push((location, made.groups.len() - 1));
                    made.groups.len() - 1
                }
            };
            made.limit_v1(index, controller, wanted);
        }
        if !made.groups.is_empty() {
            made.mount_points = location::mount_points(&mounts).collect();
        }
        made
    }

    pub fn none() -> Cgroups {
        Cgroups {
            groups: Vec::new(),
            mount_points: Vec::new(),
            memory: None,
            tasks: None,
            cpu_time: None,
        }
    }

    /// Empty if there is no group.
    pub fn mount_points(&self) -> &[Vec<u8>] {
        &self.mount_points
    }

    pub fn memory(&self) -> Option<Version> {
        self.version(self.memory)
    }

    pub fn tasks(&self) -> Option<Version> {
        self.version(self.tasks)
    }

    /// The version of the group that measures CPU time.
    pub fn clock(&self) -> Option<Version> {
        self.version(self.cpu_time)
    }

    fn version(&self, index: Option<usize>) -> Option<Version> {
        Some(self.groups.get(index?)?.version)
    }

    fn lacks(&self, controller: Controller, wanted: &WantedGroups) -> bool {
        match controller {
            Controller::Memory => wanted.memory_bytes.is_some() && self.memory.is_none(),
            Controller::Pids => wanted.tasks.is_some() && self.tasks.is_none(),
            Controller::CpuTime => wanted.cpu_time && self.cpu_time.is_none(),
        }
    }

    /// Moves a process with all its threads into every group. `pid` is its id, or `0` for the
    /// caller.
    pub fn admit(&self, pid: &[u8]) -> Result<(), Errno> {
        self.groups.iter().try_for_each(|group| rustix::io::write(&group.procs, pid).map(drop))
    }

    /// The number of processes that were killed because the group was full.
    pub fn oom_kills(&self) -> u64 {
        let Some(group) = self.memory.and_then(|index| self.groups.get(index)) else { return 0 };
        let file = match group.version {
            Version::V1 => c"memory.oom_control",
            Version::V2 => c"memory.events",
        };
        group.value(file, b"oom_kill").unwrap_or(0)
    }

    /// The number of forks that failed because the group was full.
    pub fn refused_forks(&self) -> u64 {
        let group = self.tasks.and_then(|index| self.groups.get(index));
        group.and_then(|group| group.value(c"pids.events", b"max")).unwrap_or(0)
    }

    /// CPU time of all processes of the group, including ended ones.
    pub fn cpu_time(&self) -> Option<Duration> {
        let group = self.groups.get(self.cpu_time?)?;
        match group.version {
            Version::V1 => group.number(c"cpuacct.usage").map(Duration::from_nanos),
            Version::V2 => group.value(c"cpu.stat", b"usage_usec").map(Duration::from_micros),
        }
    }

    /// Kills all processes in the groups, faster than they can fork.
    pub fn kill(&self) {
        for group in &self.groups {
            // Linux 5.14. One write kills all, and no fork escapes.
            if group.version == Version::V2
                && write(group.dir.as_fd(), c"cgroup.kill", b"1").is_ok()
            {
                return;
            }
        }
        if let Some(group) = self.tasks.and_then(|index| self.groups.get(index)) {
            // From here on every fork in the group fails.
            let _ = write(group.dir.as_fd(), c"pids.max", b"0");
        }
        if let Some(group) = self.groups.first() {
            (0..MAX_KILL_ROUNDS).find(|_| !group.kill_listed());
        }
    }

    fn make_v2(&mut self, location: &CgroupLocation, name: &CStr, wanted: &WantedGroups) {
        let controllers =
            Controllers { memory: wanted.memory_bytes.is_some(), pids: wanted.tasks.is_some() };
        let mut opened = Vec::with_capacity(location.names.len() + 1);
        for up in 0..=location.names.len() {
            let Some(dir) = location.path(up).and_then(|path| open(&path, Version::V2)) else {
                break;
            };
            let level = read_level(dir.as_fd());
            opened.push((dir, level));
            if !level.delegated {
                break;
            }
        }
        let levels: Vec<CgroupLevel> = opened.iter().map(|(_, level)| *level).collect();
        let mut attempts = Vec::with_capacity(2 * levels.len());
        if controllers.count() > 0 {
            attempts.extend(
                location::candidates(&levels, controllers).into_iter().map(|up| (up, controllers)),
            );
        }
        if wanted.cpu_time {
            // CPU time is measured in every group, even without a controller.
            let none = Controllers::default();
            attempts.extend(location::candidates(&levels, none).into_iter().map(|up| (up, none)));
        }
        for (up, needed) in attempts {
            let Some((parent, level)) = opened.get(up) else { continue };
            enable(parent.as_fd(), needed.missing_in(level.gives));
            let gives = Controllers::parse(&contents(parent.as_fd(), c"cgroup.subtree_control"));
            if needed.missing_in(gives) == needed && needed.count() > 0 {
                continue;
            }
            let Some(group) =
                parent.try_clone().ok().and_then(|parent| Cgroup::make(parent, name, Version::V2))
            else {
                continue;
            };
            // A service manager limits the tasks of every group. Beside the own group that limit
            // would not apply, so it is copied.
            let inherited = opened
                .iter()
                .take(up)
                .filter_map(|(dir, _)| number_in(dir.as_fd(), c"pids.max"))
                .min();
            let tasks = [wanted.tasks, inherited].into_iter().flatten().min();
            let index = self.groups.len();
            self.cpu_time = wanted.cpu_time.then_some(index);
            if gives.memory && wanted.memory_bytes.is_some_and(|bytes| group.limit_memory_v2(bytes))
            {
                self.memory = Some(index);
            }
            if gives.pids
                && tasks.is_some_and(|tasks| group.limit(c"pids.max", tasks))
                && wanted.tasks.is_some()
            {
                self.tasks = Some(index);
            }
            self.groups.push(group);
            return;
        }
    }

    fn limit_v1(&mut self, index: usize, controller: Controller, wanted: &WantedGroups) {
        let Some(group) = self.groups.get(index) else { return };
        match controller {
            Controller::Memory => {
                if wanted.memory_bytes.is_some_and(|bytes| group.limit_memory_v1(bytes)) {
                    self.memory = Some(index);
                }
            }
            Controller::Pids => {
                if wanted.tasks.is_some_and(|tasks| group.limit(c"pids.max", tasks)) {
                    self.tasks = Some(index);
                }
            }
            Controller::CpuTime => self.cpu_time = Some(index),
        }
    }
}

/// In a version 1 tree groups can be created below any group. Only the own group is tried.
fn make_v1(location: &CgroupLocation, name: &CStr) -> Option<Cgroup> {
    Cgroup::make(open(&location.path(0)?, Version::V1)?, name, Version::V1)
}

impl Cgroup {
    fn make(parent: OwnedFd, name: &CStr, version: Version) -> Option<Cgroup> {
        sweep(parent.as_fd());
        for _ in 0..MAX_MAKE_ATTEMPTS {
            rustix::fs::mkdirat(&parent, name, Mode::RWXU).ok()?;
            let opened =
                rustix::fs::openat(&parent, name, DIR_FLAGS, Mode::empty()).and_then(|dir| {
                    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
                    let procs = rustix::fs::openat(
                        &dir,
                        c"cgroup.procs",
                        FILE_FLAGS | OFlags::WRONLY,
                        Mode::empty(),
                    )?;
                    Ok((dir, procs))
                });
            match opened {
                Ok((dir, procs)) => {
                    return Some(Cgroup { version, parent, name: name.to_owned(), dir, procs });
                }
                Err(_) => {
                    let _ = rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
                }
            }
        }
        None
    }

    fn limit_memory_v1(&self, bytes: u64) -> bool {
        // An inherited 1 would make a full group hang instead of ending a process.
        let _ = write(self.dir.as_fd(), c"memory.oom_control", b"0");
        if !self.limit(c"memory.limit_in_bytes", bytes) {
            return false;
        }
        // Limits memory and swap together, if the kernel counts swap.
        let swap =
            write(self.dir.as_fd(), c"memory.memsw.limit_in_bytes", bytes.to_string().as_bytes());
        matches!(swap, Ok(()) | Err(Errno::NOENT | Errno::OPNOTSUPP))
    }

    fn limit_memory_v2(&self, bytes: u64) -> bool {
        // Kill the whole group at once: a tree that lost a process is useless, and the run ends
        // anyway. Linux 4.19; before, the watchdog ends the rest.
        let _ = write(self.dir.as_fd(), c"memory.oom.group", b"1");
        let swap = write(self.dir.as_fd(), c"memory.swap.max", b"0");
        matches!(swap, Ok(()) | Err(Errno::NOENT)) && self.limit(c"memory.max", bytes)
    }

    /// Writes a limit and checks what is read back: the kernel rounds bytes to whole pages.
    fn limit(&self, file: &CStr, value: u64) -> bool {
        write(self.dir.as_fd(), file, value.to_string().as_bytes()).is_ok()
            && self.number(file).is_some_and(|actual| actual <= value)
    }

    fn number(&self, file: &CStr) -> Option<u64> {
        number_in(self.dir.as_fd(), file)
    }

    fn value(&self, file: &CStr, key: &[u8]) -> Option<u64> {
        let mut buffer = [0; 2048];
        proc_text::value_of(read(self.dir.as_fd(), file, &mut buffer).ok()?, key)
    }

    /// Kills the listed processes. Returns true if there were any.
    fn kill_listed(&self) -> bool {
        let flags = FILE_FLAGS | OFlags::RDONLY;
        let Ok(file) = rustix::fs::openat(&self.dir, c"cgroup.procs", flags, Mode::empty()) else {
            return false;
        };
        let mut found = false;
        let mut kill = |number| {
            if let Some(pid) = Pid::from_raw(number) {
                found = true;
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        };
        let mut list = NumberList::default();
        let mut buffer = [0; 2048];
        while let Ok(count @ 1..) = rustix::io::read(&file, &mut buffer) {
            list.take(&buffer[..count], &mut kill);
        }
        list.end(&mut kill);
        found
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..MAX_REMOVE_ATTEMPTS {
            match rustix::fs::unlinkat(&self.parent, self.name.as_c_str(), AtFlags::REMOVEDIR) {
                Err(Errno::BUSY) => std::thread::sleep(REMOVE_PAUSE),
                // On another error the next session removes it.
                Ok(()) | Err(_) => return,
            }
        }
    }
}

/// Opens the directory of a group, if it is one.
fn open(path: &CStr, version: Version) -> Option<OwnedFd> {
    let dir = rustix::fs::open(path, DIR_FLAGS, Mode::empty()).ok()?;
    let kind = rustix::fs::fstatfs(&dir).ok()?.f_type as u64;
    let expected = match version {
        Version::V1 => CGROUP_SUPER_MAGIC,
        Version::V2 => CGROUP2_SUPER_MAGIC,
    };
    (kind == expected).then_some(dir)
}

fn read_level(dir: BorrowedFd<'_>) -> CgroupLevel {
    let may =
        |name: &CStr, access| rustix::fs::accessat(dir, name, access, AtFlags::EACCESS).is_ok();
    let limits = [c"memory.max", c"memory.high", c"memory.swap.max", c"cpu.max"];
    CgroupLevel {
        delegated: may(c".", Access::WRITE_OK | Access::EXEC_OK)
            && may(c"cgroup.procs", Access::WRITE_OK),
        offers: Controllers::parse(&contents(dir, c"cgroup.controllers")),
        gives: Controllers::parse(&contents(dir, c"cgroup.subtree_control")),
        // `max`, or `max PERIOD` in cpu.max, is no limit.
        limited: limits.iter().any(|file| {
            let text = contents(dir, file);
            !text.is_empty() && !text.starts_with(b"max")
        }),
    }
}

/// Asks a level to give controllers to the groups below it. The request can fail, so the caller
/// reads the result. The controllers stay enabled: another session may use them.
fn enable(dir: BorrowedFd<'_>, missing: Controllers) {
    for (controller, word) in [(missing.memory, &b"+memory"[..]), (missing.pids, b"+pids")] {
        if controller {
            let _ = write(dir, c"cgroup.subtree_control", word);
        }
    }
}

/// Removes the groups of killed sessions: empty and unlocked.
fn sweep(parent: BorrowedFd<'_>) {
    let Ok(listed) = rustix::fs::openat(parent, c".", DIR_FLAGS, Mode::empty()) else { return };
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(GROUP_PREFIX) {
            continue;
        }
        let Ok(dir) = rustix::fs::openat(parent, name, DIR_FLAGS, Mode::empty()) else { continue };
        if rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        }
    }
}

fn write(dir: BorrowedFd<'_>, file: &CStr, text: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::openat(dir, file, FILE_FLAGS | OFlags::WRONLY, Mode::empty())?;
    rustix::io::write(&file, text).map(drop)
}

fn read<'b>(dir: BorrowedFd<'_>, file: &CStr, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let file = rustix::fs::openat(dir, file, FILE_FLAGS | OFlags::RDONLY, Mode::empty())?;
    let count = rustix::io::read(&file, &mut *buffer)?;
    Ok(&buffer[..count])
}

fn number_in(dir: BorrowedFd<'_>, file: &CStr) -> Option<u64> {
    let mut buffer = [0; 64];
    proc_text::number(read(dir, file, &mut buffer).ok()?.trim_ascii())
}

/// The text of a short file; empty if it can not be read. Used only before the start.
fn contents(dir: BorrowedFd<'_>, file: &CStr) -> Vec<u8> {
    let mut buffer = [0; 1024];
    read(dir, file, &mut buffer).map(<[u8]>::to_vec).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Plain files in place of the kernel's.
    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, files: &[(&str, &str)]) -> Fake {
            let path =
                std::env::temp_dir().join(format!("paddock-cgroup-{}-{name}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            for (file, text) in files {
                std::fs::write(path.join(file), text).unwrap();
            }
            Fake(path)
        }

        fn dir(&self) -> OwnedFd {
            rustix::fs::open(&self.0, DIR_FLAGS, Mode::empty()).unwrap()
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_level_reports_controllers_and_limits() {
        let offers = ("cgroup.controllers", "cpuset cpu io memory pids\n");
        let gives = ("cgroup.subtree_control", "pids\n");
        let open = Fake::new(
            "open",
            &[
                offers,
                gives,
                ("cgroup.procs", ""),
                ("cpu.max", "max 100000\n"),
                ("memory.max", "max\n"),
            ],
        );
        let level = read_level(open.dir().as_fd());
        assert!(level.delegated && !level.limited);
        assert_eq!(level.offers, Controllers { memory: true, pids: true });
        assert_eq!(level.gives, Controllers { memory: false, pids: true });

        let limited = Fake::new("limited", &[("cgroup.procs", ""), ("cpu.max", "20000 100000\n")]);
        assert!(read_level(limited.dir().as_fd()).limited);
        let foreign = Fake::new("foreign", &[offers, gives]);
        assert!(!read_level(foreign.dir().as_fd()).delegated);
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_not_taken_for_one() {
        let fake = Fake::new("kind", &[("cgroup.procs", "")]);
        let path = CString::new(fake.0.to_str().unwrap()).unwrap();
        assert!(open(&path, Version::V1).is_none() && open(&path, Version::V2).is_none());
    }

    #[test]
    fn sweeping_removes_unused_groups() {
        let fake = Fake::new("sweep", &[]);
        for name in ["paddock-used", "paddock-forgotten", "paddock-full/below", "other"] {
            std::fs::create_dir_all(fake.0.join(name)).unwrap();
        }
        let used = rustix::fs::open(fake.0.join("paddock-used"), DIR_FLAGS, Mode::empty()).unwrap();
        rustix::fs::flock(&used, FlockOperation::NonBlockingLockExclusive).unwrap();
        sweep(fake.dir().as_fd());
        let mut left: Vec<_> =
            std::fs::read_dir(&fake.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["other", "paddock-full", "paddock-used"]);
    }
}
