//! Measures a process tree from /proc: which processes belong to it, and what they use together.
//! This runs as long as the command, so nothing here allocates. Paths and texts are on the stack,
//! and the list of processes has its capacity from the start.
//!
//! The tree runs while it is measured. A process that starts or ends meanwhile can be missed once;
//! the next measurement sees it.

use std::ffi::CStr;
use std::fmt::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal};

use crate::kernel::proc_text::{self, CpuStat, NumberList};

/// Which processes belong to the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessTree {
    /// Every process that this /proc shows: it belongs to the command's own pid namespace.
    Namespace,
    /// Every descendant of a process that adopts orphans, without that process.
    DescendantsOf(Pid),
}

/// What to measure. Each field costs one file per process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageFields {
    pub resident: bool,
    /// Tasks and CPU time.
    pub stat: bool,
    /// Stop counting above this number of tasks: a fork bomb grows faster than it is counted.
    pub enough_tasks: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageCount {
    /// Threads of all processes together.
    pub tasks: u64,
    /// Memory in RAM, including files in in-memory file systems. Shared pages count once for each
    /// process.
    pub resident_bytes: u64,
    /// CPU time of running processes and of reaped ones. If a process ignores SIGCHLD, the kernel
    /// reaps its children and their time is lost.
    pub cpu_time: Duration,
}

pub struct ProcessUsage<'p> {
    proc: BorrowedFd<'p>,
    tree: ProcessTree,
    /// In-memory file systems that only the tree uses.
    volatile: &'p [OwnedFd],
    /// Found processes; the visited ones come first.
    found: Vec<i32>,
    /// Processes that are excluded together with their descendants.
    excluded: Vec<i32>,
    page_bytes: u64,
    ticks_per_second: u64,
    /// Ticks of children that the adopting process had reaped before the command.
    earlier_ticks: u64,
}

/// More processes are not followed. Every limit on their number is far below.
const MAX_PROCESSES: usize = 16 * 1024;
const MAX_STOP_ROUNDS: usize = 64;
const ZERO_LIMIT: Rlimit = Rlimit { current: Some(0), maximum: Some(0) };
/// Enough for `NUMBER/task/NUMBER/children`.
const MAX_PROC_PATH_BYTES: usize = 64;
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl<'p> ProcessUsage<'p> {
    pub fn new(
        proc: BorrowedFd<'p>,
        tree: ProcessTree,
        volatile: &'p [OwnedFd],
    ) -> Result<ProcessUsage<'p>, Errno> {
        let mut usage = ProcessUsage {
            proc,
            tree,
            volatile,
            found: Vec::new(),
            excluded: Vec::new(),
            page_bytes: rustix::param::page_size() as u64,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            earlier_ticks: 0,
        };
        if let ProcessTree::DescendantsOf(root) = tree {
            usage.found.reserve_exact(MAX_PROCESSES);
            let root = root.as_raw_nonzero().get();
            // Checks CONFIG_PROC_CHILDREN once. Later, a missing file means that a process has
            // ended.
            open(proc, ProcPath::new(format_args!("{root}/task/{root}/children")).as_c_str()?)?;
            usage.earlier_ticks = stat(proc, root)?.map_or(0, |stat| stat.reaped_ticks);
        }
        Ok(usage)
    }

    pub fn exclude(&mut self, processes: impl Iterator<Item = Pid>) {
        self.excluded.clear();
        self.excluded.extend(processes.map(|pid| pid.as_raw_nonzero().get()));
    }

    pub fn count(&mut self, columns: UsageFields) -> Result<UsageCount, Errno> {
        let files = if columns.resident { self.file_bytes()? } else { 0 };
        let mut count = UsageCount { resident_bytes: files, ..UsageCount::default() };
        let mut ticks: u64 = 0;
        let page_bytes = self.page_bytes;
        self.each(|proc, pid| {
            if columns.resident {
                let (_, pages) = resident(proc, pid)?;
                count.resident_bytes =
                    count.resident_bytes.saturating_add(pages.saturating_mul(page_bytes));
            }
            if columns.stat
                && let Some(stat) = stat(proc, pid)?
            {
                count.tasks = count.tasks.saturating_add(stat.threads.max(1));
                ticks = ticks.saturating_add(stat.own_ticks).saturating_add(stat.reaped_ticks);
            }
            Ok(match columns.enough_tasks {
                Some(enough) if count.tasks > enough => VisitResult::Stop,
                _ => VisitResult::Continue,
            })
        })?;
        if let ProcessTree::DescendantsOf(root) = self.tree
            && columns.stat
            && let Some(stat) = stat(self.proc, root.as_raw_nonzero().get())?
        {
            ticks = ticks.saturating_add(stat.reaped_ticks.saturating_sub(self.earlier_ticks));
        }
        count.cpu_time = Duration::from_millis(ticks.saturating_mul(1000) / self.ticks_per_second);
        Ok(count)
    }

    /// Memory in which a page that N processes share counts as 1/N for each, including swap. The
    /// kernel walks every page for this: some milliseconds for a gigabyte. A mapped file of an
    /// in-memory file system also counts in that file system, and the shared pages do not say which
    /// they are. So the larger of the two counts.
    pub fn proportional_bytes(&mut self) -> Result<u64, Errno> {
        let page_bytes = self.page_bytes;
        let mut own: u64 = 0;
        let mut shared: u64 = 0;
        self.each(|proc, pid| {
            let (thread_with_memory, pages) = resident(proc, pid)?;
            if pages > 0 {
                // A process that hides its memory map counts with all its resident memory.
                let all = ProportionalMemory { all: pages.saturating_mul(page_bytes), shared: 0 };
                let bytes = proportional(proc, thread_with_memory)?.unwrap_or(all);
                own = own.saturating_add(bytes.all.saturating_sub(bytes.shared));
                shared = shared.saturating_add(bytes.shared);
            }
            Ok(VisitResult::Continue)
        })?;
        Ok(own.saturating_add(shared.max(self.file_bytes()?)))
    }

    /// Bytes in the in-memory file systems, open or not.
    fn file_bytes(&self) -> Result<u64, Errno> {
        self.volatile.iter().try_fold(0, |sum: u64, fs| {
            let facts = rustix::fs::fstatfs(fs)?;
            let blocks = facts.f_blocks.saturating_sub(facts.f_bfree);
            Ok(sum.saturating_add(blocks.saturating_mul(facts.f_bsize as u64)))
        })
    }

    /// Counts the descendants and sends them a signal.
    pub fn signal_descendants(&mut self, signal: Option<Signal>) -> Result<usize, Errno> {
        let mut found = 0;
        self.each(|_, pid| {
            found += 1;
            if let (Some(pid), Some(signal)) = (Pid::from_raw(pid), signal) {
                let _ = rustix::process::kill_process(pid, signal);
            }
            Ok(VisitResult::Continue)
        })?;
        Ok(found)
    }

    /// Kills all current descendants and returns their number. The caller reaps them, and calls
    /// again until none is left. Does nothing in a pid namespace, whose pids are different: it ends
    /// with its first process.
    ///
    /// Killing one process after another loses against a fork bomb: each death makes room for a new
    /// process. So all processes first lose the right to fork and are stopped, in rounds, until no
    /// new ones appear. Both are cheap and inherited.
    pub fn kill_descendants(&mut self) -> Result<usize, Errno> {
        if self.tree == ProcessTree::Namespace {
            return Ok(0);
        }
        let mut before = 0;
        for _ in 0..MAX_STOP_ROUNDS {
            let mut found = 0;
            self.each(|_, pid| {
                if let Some(pid) = Pid::from_raw(pid) {
                    found += 1;
                    // RLIMIT_NPROC does not stop root; the signal must do.
                    let _ = rustix::process::prlimit(Some(pid), Resource::Nproc, ZERO_LIMIT);
                    let _ = rustix::process::kill_process(pid, Signal::STOP);
                }
                Ok(VisitResult::Continue)
            })?;
            if found == before {
                break;
            }
            before = found;
        }
        self.signal_descendants(Some(Signal::KILL))
    }

    fn each(
        &mut self,
        mut visit: impl FnMut(BorrowedFd<'p>, i32) -> Result<VisitResult, Errno>,
    ) -> Result<(), Errno> {
        let proc = self.proc;
        match self.tree {
            ProcessTree::Namespace => numbered_entries(proc, c".", |pid| visit(proc, pid)),
            ProcessTree::DescendantsOf(root) => {
                self.found.clear();
                children(proc, root.as_raw_nonzero().get(), &mut self.found)?;
                let own = rustix::process::getpid().as_raw_nonzero().get();
                let mut next = 0;
                while let Some(pid) = self.found.get(next).copied() {
                    next += 1;
                    // Skip this process, which can be a child of the root.
                    if pid == own || self.excluded.contains(&pid) {
                        continue;
                    }
                    if visit(proc, pid)? == VisitResult::Stop {
                        break;
                    }
                    children(proc, pid, &mut self.found)?;
                }
                Ok(())
            }
        }
    }
}

/// What a visitor returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitResult {
    Continue,
    Stop,
}

/// The children of every thread of a process, up to the capacity of the list.
fn children(proc: BorrowedFd<'_>, pid: i32, found: &mut Vec<i32>) -> Result<(), Errno> {
    let task = ProcPath::new(format_args!("{pid}/task"));
    match rustix::fs::statat(proc, task.as_c_str()?, AtFlags::empty()) {
        Ok(stat) if has_one_thread(&stat) => children_of_thread(proc, pid, pid, found),
        Ok(_) => numbered_entries(proc, task.as_c_str()?, |thread| {
            children_of_thread(proc, pid, thread, found).map(|()| VisitResult::Continue)
        }),
        Err(error) => ignore_gone(error),
    }
}

fn children_of_thread(
    proc: BorrowedFd<'_>,
    pid: i32,
    thread: i32,
    found: &mut Vec<i32>,
) -> Result<(), Errno> {
    let path = ProcPath::new(format_args!("{pid}/task/{thread}/children"));
    let file = match open(proc, path.as_c_str()?) {
        Ok(file) => file,
        Err(error) => return ignore_gone(error),
    };
    let mut add = |child| {
        if found.len() < found.capacity() {
            found.push(child);
        }
    };
    let mut list = NumberList::default();
    let mut buffer = [0; 1024];
    loop {
        match rustix::io::read(&file, &mut buffer) {
            Ok(0) => break,
            Ok(count) => list.take(&buffer[..count], &mut add),
            Err(error) => return ignore_gone(error),
        }
    }
    list.end(add);
    Ok(())
}

/// The directory `task` has a link for each thread, besides `.` and `..`.
fn has_one_thread(task: &rustix::fs::Stat) -> bool {
    task.st_nlink <= 3
}

/// Resident pages, and the thread id under which they are found. If the first thread has ended, the
/// process itself shows no memory, and another thread does.
fn resident(proc: BorrowedFd<'_>, pid: i32) -> Result<(i32, u64), Errno> {
    let pages = pages_of(proc, pid)?;
    if pages > 0 {
        return Ok((pid, pages));
    }
    let task = ProcPath::new(format_args!("{pid}/task"));
    match rustix::fs::statat(proc, task.as_c_str()?, AtFlags::empty()) {
        Ok(stat) if has_one_thread(&stat) => return Ok((pid, 0)),
        Ok(_) => {}
        Err(error) => return ignore_gone(error).map(|()| (pid, 0)),
    }
    let mut thread_with_memory = (pid, 0);
    numbered_entries(proc, task.as_c_str()?, |thread| {
        // /proc does not list threads, but opens them by id.
        thread_with_memory = (thread, pages_of(proc, thread)?);
        Ok(if thread_with_memory.1 == 0 { VisitResult::Continue } else { VisitResult::Stop })
    })?;
    Ok(thread_with_memory)
}

fn pages_of(proc: BorrowedFd<'_>, pid: i32) -> Result<u64, Errno> {
    let mut buffer = [0; 128];
    let text = read(proc, ProcPath::new(format_args!("{pid}/statm")), &mut buffer)?;
    Ok(text.and_then(proc_text::resident_pages).unwrap_or(0))
}

fn stat(proc: BorrowedFd<'_>, pid: i32) -> Result<Option<CpuStat>, Errno> {
    let mut buffer = [0; 1024];
    Ok(read(proc, ProcPath::new(format_args!("{pid}/stat")), &mut buffer)?.and_then(CpuStat::parse))
}

struct ProportionalMemory {
    all: u64,
    /// The part of it that is shared memory and files in memory.
    shared: u64,
}

fn proportional(proc: BorrowedFd<'_>, pid: i32) -> Result<Option<ProportionalMemory>, Errno> {
    let mut buffer = [0; 2048];
    let Some(text) = read(proc, ProcPath::new(format_args!("{pid}/smaps_rollup")), &mut buffer)?
    else {
        return Ok(None);
    };
    let kilobytes = |key| proc_text::value_of(text, key);
    let Some(resident) = kilobytes(b"Pss:") else { return Ok(None) };
    let bytes = |kilobytes: u64| kilobytes.saturating_mul(1024);
    let all = bytes(resident + kilobytes(b"SwapPss:").unwrap_or(0));
    Ok(Some(ProportionalMemory { all, shared: bytes(kilobytes(b"Pss_Shmem:").unwrap_or(0)) }))
}

/// Calls `visit` for every entry whose name is a number.
fn numbered_entries(
    proc: BorrowedFd<'_>,
    path: &CStr,
    mut visit: impl FnMut(i32) -> Result<VisitResult, Errno>,
) -> Result<(), Errno> {
    let listed = match rustix::fs::openat(proc, path, DIR_FLAGS, Mode::empty()) {
        Ok(listed) => listed,
        Err(error) => return ignore_gone(error),
    };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&listed, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return ignore_gone(error),
        };
        let number = proc_text::number(entry.file_name().to_bytes())
            .and_then(|number| i32::try_from(number).ok());
        if let Some(number) = number
            && visit(number)? == VisitResult::Stop
        {
            break;
        }
    }
    Ok(())
}

fn open(proc: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// None: the process has ended or hides the file.
fn read<'b>(
    proc: BorrowedFd<'_>,
    path: ProcPath,
    buffer: &'b mut [u8],
) -> Result<Option<&'b [u8]>, Errno> {
    let file = match open(proc, path.as_c_str()?) {
        Ok(file) => file,
        Err(error) => return ignore_gone(error).map(|()| None),
    };
    match rustix::io::read(file.as_fd(), &mut *buffer) {
        Ok(count) => Ok(Some(&buffer[..count])),
        Err(error) => ignore_gone(error).map(|()| None),
    }
}

/// A process can end at any time. Any other error (no descriptor, no memory) hides the tree, and is
/// returned.
fn ignore_gone(error: Errno) -> Result<(), Errno> {
    match error {
        Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM => Ok(()),
        error => Err(error),
    }
}

/// A path below /proc, on the stack.
struct ProcPath {
    bytes: [u8; MAX_PROC_PATH_BYTES],
    length: usize,
}

impl ProcPath {
    fn new(text: fmt::Arguments<'_>) -> ProcPath {
        let mut path = ProcPath { bytes: [0; MAX_PROC_PATH_BYTES], length: 0 };
        if path.write_fmt(text).is_err() {
            path.length = 0;
        }
        path
    }

    fn as_c_str(&self) -> Result<&CStr, Errno> {
        if self.length == 0 {
            return Err(Errno::NAMETOOLONG);
        }
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)
    }
}

impl fmt::Write for ProcPath {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // The last byte stays 0 (NUL).
        if end >= MAX_PROC_PATH_BYTES {
            return Err(fmt::Error);
        }
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Command, Stdio};

    fn proc() -> OwnedFd {
        rustix::fs::open(c"/proc", DIR_FLAGS, Mode::empty()).unwrap()
    }

    /// Prints a line when its processes run; ends when its stdin is closed.
    struct Script(Child);

    impl Script {
        fn start(program: &str, script: &str) -> Script {
            let mut command = Command::new(program);
            let mut child = command
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "ready\n");
            Script(child)
        }

        fn tree(&self) -> ProcessTree {
            ProcessTree::DescendantsOf(Pid::from_raw(self.0.id() as i32).unwrap())
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            let _ = self.0.wait();
        }
    }

    const ALL: UsageFields = UsageFields { resident: true, stat: true, enough_tasks: None };

    #[test]
    fn descendants_are_counted_at_any_depth_and_the_root_is_not() {
        let script = Script::start(
            "sh",
            "exec 3<&0; sh -c 'cat <&3 & wait' >/dev/null & cat <&3 >/dev/null & echo ready; exec \
             >/dev/null; wait",
        );
        let proc = proc();
        let mut usage = ProcessUsage::new(proc.as_fd(), script.tree(), &[]).unwrap();
        // The innermost shell may not have started yet.
        let count = (0..1000).map(|_| usage.count(ALL).unwrap()).find(|count| count.tasks == 3);
        let count = count.expect("three processes below the shell");
        assert!(count.resident_bytes > 100_000, "{count:?}");
        let proportional = usage.proportional_bytes().unwrap();
        assert!(
            proportional > 10_000 && proportional < count.resident_bytes,
            "{proportional} {count:?}"
        );
    }

    #[test]
    fn excluded_processes_and_their_descendants_are_not_counted() {
        let script = Script::start(
            "sh",
            "exec 3<&0; sh -c 'cat <&3 & echo ready; wait' & cat <&3 >/dev/null & exec >/dev/null; \
             wait",
        );
        let proc = proc();
        let mut usage = ProcessUsage::new(proc.as_fd(), script.tree(), &[]).unwrap();
        assert!(
            (0..1000).any(|_| usage.signal_descendants(None).unwrap() == 3),
            "two below, and one below them"
        );
        let mut children = Vec::with_capacity(8);
        super::children(usage.proc, script.0.id() as i32, &mut children).unwrap();
        for (excluded, left) in [(&children[..1], 1), (&children[1..], 2), (&children[..], 0)] {
            usage.exclude(excluded.iter().copied().filter_map(Pid::from_raw));
            assert_eq!(usage.signal_descendants(None).unwrap(), left);
        }
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_still_has_its_memory() {
        let script = Script::start(
            "python3",
            "import ctypes, os, sys, threading\n\
             if os.fork() == 0:\n\
             \x20   block = b'x' * (64 << 20)\n\
             \x20   def stay():\n\
             \x20       stat = f'/proc/{os.getpid()}/stat'\n\
             \x20       while open(stat).read().rsplit(')')[1].split()[0] != 'Z': pass\n\
             \x20       os.write(1, b'ready\\n'); os.close(1)\n\
             \x20       os.read(0, 1); os._exit(0)\n\
             \x20   threading.Thread(target=stay).start()\n\
             \x20   ctypes.CDLL(None).pthread_exit(None)\n\
             os.close(1); os.wait()",
        );
        let proc = proc();
        let mut usage = ProcessUsage::new(proc.as_fd(), script.tree(), &[]).unwrap();
        let count = usage.count(ALL).unwrap();
        assert!(count.resident_bytes > 64 << 20, "{count:?}");
        assert!(usage.proportional_bytes().unwrap() > 64 << 20);
    }

    #[test]
    fn a_namespace_tree_is_all_of_proc() {
        let proc = proc();
        let mut usage = ProcessUsage::new(proc.as_fd(), ProcessTree::Namespace, &[]).unwrap();
        assert!(usage.count(ALL).unwrap().tasks >= 2);
    }

    #[test]
    fn a_proc_path_that_is_too_long_is_an_error() {
        assert_eq!(ProcPath::new(format_args!("{}/stat", 1)).as_c_str(), Ok(c"1/stat"));
        assert!(
            ProcPath::new(format_args!("{}", "x".repeat(MAX_PROC_PATH_BYTES))).as_c_str().is_err()
        );
        assert!(
            ProcPath::new(format_args!("{}", "x".repeat(MAX_PROC_PATH_BYTES - 1)))
                .as_c_str()
                .is_ok()
        );
    }
}
