//! All unsafe code of the core is in this folder. Each function wraps one kernel interface that has
//! no safe wrapper, and is safe to call. The rest of the program denies `unsafe`.
//!
//! The program has one thread from start to end. The safety comments rely on that.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::AtomicI64;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

#[cfg(not(test))]
mod allocator;
mod connect;
mod datagram;
mod mapped_page;
mod signals;
pub mod trace;

#[cfg(not(test))]
pub use allocator::Allocator;
pub use connect::*;
pub use datagram::*;
pub use mapped_page::MappedPage;
pub use signals::*;

#[cfg(not(test))]
static ARENA: allocator::Arena = allocator::Arena::new();

type Result<T> = std::result::Result<T, Errno>;

fn last_errno() -> Errno {
    // SAFETY: __errno_location returns this thread's errno, valid for the thread's life.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

fn check(result: libc::c_long) -> Result<libc::c_long> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

/// Gives unused memory back to the kernel: freed memory, the part of the stack below this call, and
/// pages that can be read again from their file.
#[inline(never)]
pub fn release_memory() {
    #[cfg(not(test))]
    ARENA.release_free_pages();
    release_mapped_plan();
    release_stack();
}

/// The mapping that [`map_sealed`] returned.
static MAPPED_PLAN: OnceLock<&'static [u8]> = OnceLock::new();

fn release_mapped_plan() {
    if let Some(mapped) = MAPPED_PLAN.get() {
        // SAFETY: the mapped file can not change, so a later read finds the same bytes.
        unsafe {
            libc::madvise(mapped.as_ptr().cast_mut().cast(), mapped.len(), libc::MADV_DONTNEED)
        };
    }
}

/// Gives back all memory, runs `rest` with its two arguments, and ends the process with its return
/// value.
pub fn release_memory_and_run(rest: fn(Pid, OwnedFd) -> i32, pid: Pid, descriptor: OwnedFd) -> ! {
    // SAFETY: only a plain function and two numbers are used from here on, and this call never
    // returns.
    #[cfg(not(test))]
    unsafe {
        ARENA.release_all();
    }
    release_mapped_plan();
    release_stack();
    let status = rest(pid, descriptor);
    // SAFETY: ends this process; see `fork`.
    unsafe { libc::_exit(status) }
}

/// Gives back the unused part of the stack. No call of the core needs more than `MAX_STACK_BYTES`.
#[inline(never)]
fn release_stack() {
    const MAX_STACK_BYTES: usize = 256 * 1024;
    let page = rustix::param::page_size();
    let mark = 0_u8;
    // One page below this frame stays: the C library's own call has its frame there.
    let end = (ptr::from_ref(&mark) as usize & !(page - 1)) - page;
    // SAFETY: the stack grows down, so no live value lies below this frame. A part of the range
    // that was never stack is not mapped: the program is static, and its other mappings are far
    // away.
    unsafe {
        libc::madvise((end - MAX_STACK_BYTES) as *mut c_void, MAX_STACK_BYTES, libc::MADV_DONTNEED)
    };
}

/// Takes ownership of a descriptor whose number came on the command line.
pub fn inherited_descriptor(number: i32) -> Option<OwnedFd> {
    // SAFETY: F_GETFD reads a flag and fails with EBADF for a number that is not open.
    if number <= 2 || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: the number is open and above 2, and nothing else in this program owns it: it is taken
    // once, at start.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// The content of a sealed file that can neither change nor shrink, mapped as long as the process
/// lives.
pub fn map_sealed(file: BorrowedFd<'_>, length: usize) -> Result<&'static [u8]> {
    let needed = SealFlags::WRITE | SealFlags::SHRINK;
    if !rustix::fs::fcntl_get_seals(file)?.contains(needed)
        || rustix::fs::fstat(file)?.st_size < length as i64
    {
        return Err(Errno::PERM);
    }
    if length == 0 {
        return Ok(&[]);
    }
    // SAFETY: a new mapping, at a place that the kernel chooses.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return Err(last_errno());
    }
    // SAFETY: the mapping has this many bytes, it is never unmapped, and the seals keep its
    // content.
    let mapped = unsafe { std::slice::from_raw_parts(start.cast(), length) };
    let _ = MAPPED_PLAN.set(mapped);
    Ok(mapped)
}

/// The environment of this process, including malformed entries.
pub fn inherited_environment() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    let mut entries = Vec::new();
    // SAFETY: environ is a NULL-terminated array of NUL-terminated strings, and nothing in this
    // program changes it.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            entries.push(CStr::from_ptr(*entry).to_owned());
            entry = entry.add(1);
        }
    }
    entries
}

/// Strings in the form that execve(2) takes.
pub struct ExecStrings {
    strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

impl ExecStrings {
    pub fn new(strings: Vec<CString>) -> ExecStrings {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        ExecStrings { strings, pointers }
    }

    pub fn strings(&self) -> &[CString] {
        &self.strings
    }
}

/// Returns only when it failed.
pub fn execve(path: &CStr, argv: &ExecStrings, environment: &ExecStrings) -> Errno {
    // SAFETY: both arrays are NULL-terminated and point into strings that live as long as the
    // arrays.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), environment.pointers.as_ptr()) };
    last_errno()
}

/// Checks whether the file could be executed (AT_EXECVE_CHECK, Linux 6.14).
pub fn execve_check(path: &CStr) -> Result<()> {
    const AT_EXECVE_CHECK: c_int = 0x10000;
    let argv = [path.as_ptr(), ptr::null()];
    let environment: [*const c_char; 1] = [ptr::null()];
    // SAFETY: NULL-terminated arrays of live strings; with this flag the call never replaces the
    // process.
    check(unsafe {
        libc::syscall(
            libc::SYS_execveat,
            libc::AT_FDCWD,
            path.as_ptr(),
            argv.as_ptr(),
            environment.as_ptr(),
            AT_EXECVE_CHECK,
        )
    })
    .map(drop)
}

/// A number in memory that a forked child and its parent share. It starts at 0.
pub fn shared_number() -> Result<&'static AtomicI64> {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, zeroed and aligned by the kernel, that is never unmapped.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), size_of::<AtomicI64>(), access, kind, -1, 0);
        if page == libc::MAP_FAILED { Err(last_errno()) } else { Ok(&*page.cast::<AtomicI64>()) }
    }
}

/// Runs `child` as a new process that shares this memory. This process sleeps until the child
/// executes a program or ends (vfork with its own stack). What the child stores is visible when
/// this returns.
pub fn spawn_sharing_memory<F: FnMut() -> i32>(child: F) -> Result<Pid> {
    spawn_into(0, child)
}

/// Like `spawn_sharing_memory`, with more flags of clone(2): new namespaces (CLONE_NEW*), or shared
/// descriptors (CLONE_FILES).
pub fn spawn_into<F: FnMut() -> i32>(flags: c_int, mut child: F) -> Result<Pid> {
    const STACK_BYTES: usize = 64 * 1024;

    extern "C" fn enter<F: FnMut() -> i32>(closure: *mut c_void) -> c_int {
        // SAFETY: `closure` is the F below. Its owner is suspended until this process is gone, so
        // nothing else uses it.
        let status = unsafe { (*closure.cast::<F>())() };
        // SAFETY: _exit ends this process (exit_group) without running the handlers of the memory's
        // owner.
        unsafe { libc::_exit(status) }
    }

    // On the heap: an array on the own stack would touch every page of it.
    let mut stack = Box::<[u128]>::new_uninit_slice(STACK_BYTES / size_of::<u128>());
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | flags;
    // SAFETY: the stack grows down from its end and outlives the child, because CLONE_VFORK
    // suspends the only thread that could free it; for the same reason child and parent never touch
    // memory at the same time.
    let pid = unsafe {
        let top = stack.as_mut_ptr_range().end;
        libc::clone(enter::<F>, top.cast(), flags, ptr::from_mut(&mut child).cast())
    };
    check(pid.into())?;
    Pid::from_raw(pid).ok_or(Errno::CHILD)
}

/// Resources that the reaped children and their reaped children used.
pub struct ChildUsage {
    pub cpu_us: i64,
    /// Of the largest child.
    pub max_rss_kib: i64,
}

pub fn child_usage() -> ChildUsage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: filled by the call, and zeroes are a valid one too.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let us = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
    ChildUsage { cpu_us: us(usage.ru_utime) + us(usage.ru_stime), max_rss_kib: usage.ru_maxrss }
}

/// An ordinary fork. The child ends with the return value of the closure.
pub fn fork(child: impl FnOnce() -> i32) -> Result<Pid> {
    // SAFETY: this process has one thread, so no lock of the copy belongs to a missing thread.
    match unsafe { libc::fork() } {
        0 => {
            let status = child();
            // SAFETY: _exit ends the copy without running the original's exit handlers.
            unsafe { libc::_exit(status) }
        }
        pid => {
            check(pid.into())?;
            Pid::from_raw(pid).ok_or(Errno::CHILD)
        }
    }
}

/// A fork whose child is in new namespaces of the kinds in `flags` (CLONE_NEW*). The child ends
/// with the return value of the closure. With CLONE_VFORK this process sleeps until the child
/// executes a program or ends.
pub fn fork_into(flags: c_int, child: impl FnOnce() -> i32) -> Result<Pid> {
    let flags = (flags | libc::SIGCHLD) as libc::c_long;
    // SAFETY: without CLONE_VM and with no stack of its own the child is a copy, as with fork; this
    // process has one thread, so no lock of the copy belongs to a missing thread.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        0 => {
            let status = child();
            // SAFETY: _exit ends the copy without running the original's exit handlers.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::from_raw(check(pid)? as i32).ok_or(Errno::CHILD),
    }
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// A detached copy of the mounts at and below an open file or directory, with attributes
/// (MOUNT_ATTR_*) and private propagation, in one call (Linux 6.15).
pub fn open_tree_attr(at: BorrowedFd<'_>, set: u64) -> Result<OwnedFd> {
    const SYS_OPEN_TREE_ATTR: libc::c_long = 467;
    let wanted =
        MountAttributes { set, clear: 0, propagation: libc::MS_PRIVATE, user_namespace: 0 };
    let flags = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | (libc::AT_EMPTY_PATH | libc::AT_RECURSIVE) as libc::c_uint;
    // SAFETY: the struct has the layout of mount_attr, its size is passed, and the kernel copies it
    // before it returns.
    let fd = check(unsafe {
        libc::syscall(
            SYS_OPEN_TREE_ATTR,
            at.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(&wanted),
            size_of::<MountAttributes>(),
        )
    })?;
    // SAFETY: the kernel just made this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sets and clears attributes (MOUNT_ATTR_*) on a mount, or on it and all mounts below. Makes its
/// propagation private.
pub fn mount_setattr(mount: BorrowedFd<'_>, recursive: bool, set: u64, clear: u64) -> Result<()> {
    let wanted = MountAttributes { set, clear, propagation: libc::MS_PRIVATE, user_namespace: 0 };
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the struct has the layout of mount_attr, its size is passed, and the kernel copies it
    // before it returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            ptr::from_ref(&wanted),
            size_of::<MountAttributes>(),
        )
    })
    .map(drop)
}

/// Marks every descriptor from `first` up close-on-exec.
pub fn close_on_exec_from(first: u32) -> Result<()> {
    close_on_exec_but(first, &[])
}

/// Like `close_on_exec_from`, except for the descriptors in `kept`. They are in ascending order,
/// and none is below `first`.
pub fn close_on_exec_but(first: u32, kept: &[u32]) -> Result<()> {
    let ends = kept.iter().map(|number| number.wrapping_sub(1)).chain([u32::MAX]);
    let starts = [first].into_iter().chain(kept.iter().map(|number| number.saturating_add(1)));
    for (start, end) in starts.zip(ends).filter(|(start, end)| start <= end) {
        // SAFETY: CLOSE_RANGE_CLOEXEC closes nothing now; it only sets a flag on descriptors.
        check(unsafe {
            libc::syscall(libc::SYS_close_range, start, end, libc::CLOSE_RANGE_CLOEXEC)
        })?;
    }
    Ok(())
}

/// Closes every descriptor above 2 except this one.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) {
    let mut numbers: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers.into_iter().chain([u32::MAX]).filter(|number| *number >= 3) {
        let last = if number == u32::MAX { number } else { number - 1 };
        // SAFETY: the calling process uses only `kept` from here on, and the owners of the other
        // descriptors in this copy of the memory are never dropped.
        unsafe {
            if first <= last {
                libc::syscall(libc::SYS_close_range, first, last, 0);
            }
        }
        first = number.saturating_add(1);
    }
}

/// Turns on a socket option that is one int (such as IP_TRANSPARENT).
pub fn turn_socket_option_on(socket: &OwnedFd, level: c_int, option: c_int) -> Result<()> {
    let on: c_int = 1;
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one int that lives on this stack, and its length is passed.
    check(
        unsafe {
            libc::setsockopt(socket.as_raw_fd(), level, option, ptr::from_ref(&on).cast(), length)
        }
        .into(),
    )
    .map(drop)
}

/// The Landlock ABI of the running kernel.
pub fn landlock_abi() -> Result<i32> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let none: *const c_void = ptr::null();
    // SAFETY: with the version flag, attributes must be NULL and of size 0; nothing is created.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, LANDLOCK_CREATE_RULESET_VERSION)
    })
    .map(|abi| abi as i32)
}

/// Creates a ruleset that handles these rights on files and ports, and these scopes.
pub fn landlock_create_ruleset(files: u64, network: u64, scoped: u64) -> Result<OwnedFd> {
    #[repr(C)]
    struct RulesetAttributes {
        files: u64,
        network: u64,
        scoped: u64,
    }
    let attributes = RulesetAttributes { files, network, scoped };
    // SAFETY: the struct has the layout of landlock_ruleset_attr, its size is passed, and the
    // kernel copies it before it returns. A kernel that knows fewer fields requires the rest to be
    // zero.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::from_ref(&attributes),
            size_of::<RulesetAttributes>(),
            0,
        )
    })?;
    // SAFETY: the kernel just made this descriptor, marked close-on-exec, and no other value owns
    // it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Adds a rule for everything at and below an open file or directory.
pub fn landlock_add_rule(
    ruleset: BorrowedFd<'_>,
    rights: u64,
    parent: BorrowedFd<'_>,
) -> Result<()> {
    const LANDLOCK_RULE_PATH_BENEATH: c_int = 1;
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: i32,
    }
    let rule = PathBeneath { allowed_access: rights, parent_fd: parent.as_raw_fd() };
    // SAFETY: the struct has the layout of landlock_path_beneath_attr, and the kernel copies it
    // before it returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            LANDLOCK_RULE_PATH_BENEATH,
            ptr::from_ref(&rule),
            0,
        )
    })
    .map(drop)
}

/// Restricts the calling process by a ruleset, permanently.
pub fn landlock_restrict_self(ruleset: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: takes a descriptor and flags only; the kernel checks both.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })
        .map(drop)
}

/// `struct sock_filter` of linux/filter.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

#[repr(C)]
struct FilterProgram {
    length: libc::c_ushort,
    instructions: *const Instruction,
}

fn set_filter(instructions: &[Instruction], flags: libc::c_ulong) -> Result<libc::c_long> {
    let length = libc::c_ushort::try_from(instructions.len()).map_err(|_| Errno::INVAL)?;
    let program = FilterProgram { length, instructions: instructions.as_ptr() };
    // SAFETY: Instruction and FilterProgram have the layout of sock_filter and sock_fprog, and the
    // kernel copies both before it returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            ptr::from_ref(&program),
        )
    })
}

/// Installs a filter on the calling process, permanently.
pub fn seccomp_install(instructions: &[Instruction]) -> Result<()> {
    set_filter(instructions, 0).map(drop)
}

/// Installs a filter and returns its notification descriptor, marked close-on-exec. Since Linux
/// 5.19 a received call waits for its answer even if signals arrive. Before, the call restarts
/// after each signal.
pub fn seccomp_listener(instructions: &[Instruction]) -> Result<OwnedFd> {
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    let fd = match set_filter(instructions, listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
    {
        Err(Errno::INVAL) => set_filter(instructions, listener)?,
        fd => fd?,
    };
    // SAFETY: the kernel just made this descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `struct seccomp_notif` of linux/seccomp.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Notification {
    pub id: u64,
    pub thread: u32,
    pub flags: u32,
    pub number: i32,
    pub arch: u32,
    pub instruction: u64,
    pub arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Response {
    pub id: u64,
    pub value: i64,
    /// Negative, or 0.
    pub error: i32,
    pub flags: u32,
}

const NOTIF_RECV: u32 = 0xC050_2100; // _IOWR('!', 0, struct seccomp_notif)
const NOTIF_SEND: u32 = 0xC018_2101; // _IOWR('!', 1, struct seccomp_notif_resp)
const NOTIF_ID_VALID: u32 = 0x4008_2102; // _IOW('!', 2, __u64)

/// Waits for a call that a filter sends to its listener.
pub fn notification(listener: BorrowedFd<'_>) -> Result<Notification> {
    let mut notification = Notification::default();
    // SAFETY: the struct has the layout and the size that the number of the ioctl names, and is
    // zeroed as the kernel asks.
    check(
        unsafe {
            libc::ioctl(listener.as_raw_fd(), NOTIF_RECV as _, ptr::from_mut(&mut notification))
        }
        .into(),
    )?;
    Ok(notification)
}

pub fn notification_is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads one u64 that lives on this stack.
    unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_ID_VALID as _, ptr::from_ref(&id)) == 0 }
}

pub fn respond(listener: BorrowedFd<'_>, mut response: Response) -> Result<()> {
    // SAFETY: the struct has the layout and the size that the number of the ioctl names, and lives
    // on this stack.
    check(
        unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND as _, ptr::from_mut(&mut response)) }
            .into(),
    )
    .map(drop)
}

const NOTIF_SET_FLAGS: u32 = 0x4008_2104; // _IOW('!', 4, __u64)

/// A caller and its listener never run at the same time. The kernel may keep them on one processor
/// (Linux 6.6). An older kernel does not know the flag.
pub fn wake_listener_in_turn(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1; // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
    // SAFETY: takes numbers.
    let _ = unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SET_FLAGS as _, SYNC_WAKE_UP) };
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddedDescriptor {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

const NOTIF_ADDFD: u32 = 0x4018_2103; // _IOW('!', 3, struct seccomp_notif_addfd)

/// Gives the caller a copy of a descriptor, and returns the number that it has there.
pub fn add_descriptor(
    listener: BorrowedFd<'_>,
    id: u64,
    descriptor: BorrowedFd<'_>,
    close_on_exec: bool,
) -> Result<i64> {
    let number_flags = if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
    let source = descriptor.as_raw_fd() as u32;
    let added = AddedDescriptor { id, flags: 0, source, number: 0, number_flags };
    // SAFETY: the struct has the layout and the size that the number of the ioctl names, and lives
    // on this stack.
    check(
        unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_ADDFD as _, ptr::from_ref(&added)) }
            .into(),
    )
}

/// The part of `struct pidfd_info` (linux/pidfd.h) that its first version has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessInfo {
    pub mask: u64,
    pub cgroup: u64,
    pub pid: u32,
    pub tgid: u32,
    pub ppid: u32,
    pub ruid: u32,
    pub rgid: u32,
    pub euid: u32,
    rest: [u32; 6],
}

/// What the kernel knows about a thread (Linux 6.13).
pub fn process_info(thread: u32) -> Result<ProcessInfo> {
    const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
    const PIDFD_GET_INFO: u32 = 0xC040_FF0B; // _IOWR(0xFF, 11, struct pidfd_info), 64 bytes
    const WANTED_FIELDS: u64 = 0b11; // numbers, user
    // SAFETY: takes numbers, makes a new descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD) })? as i32;
    // SAFETY: the kernel just made this descriptor, and no other value owns it.
    let handle = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = ProcessInfo { mask: WANTED_FIELDS, ..ProcessInfo::default() };
    // SAFETY: the struct has the size that the number of the ioctl names; the kernel writes no
    // more.
    check(
        unsafe { libc::ioctl(handle.as_raw_fd(), PIDFD_GET_INFO as _, ptr::from_mut(&mut info)) }
            .into(),
    )?;
    if info.mask & WANTED_FIELDS == WANTED_FIELDS { Ok(info) } else { Err(Errno::NOSYS) }
}

/// A pidfd of a thread. Before Linux 6.9 there is one of its process only.
pub fn thread_handle(thread: u32) -> Result<OwnedFd> {
    const PIDFD_THREAD: u32 = libc::O_EXCL as u32;
    // SAFETY: takes numbers, makes a new descriptor.
    let open = |flags: u32| check(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) });
    let fd = match open(PIDFD_THREAD) {
        Err(Errno::INVAL) => open(0)?,
        fd => fd?,
    };
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The id here of a thread with the id `there` in another pid namespace (Linux 6.11).
pub fn thread_from_namespace(namespace: BorrowedFd<'_>, there: u32) -> Result<u32> {
    const NS_GET_PID_FROM_PIDNS: u32 = 0x8004_B706; // _IOR(0xb7, 6, int)
    // SAFETY: takes numbers.
    let here = check(
        unsafe {
            libc::ioctl(
                namespace.as_raw_fd(),
                NS_GET_PID_FROM_PIDNS as _,
                libc::c_ulong::from(there),
            )
        }
        .into(),
    )?;
    u32::try_from(here).map_err(|_| Errno::SRCH)
}

/// Takes a lease on a file that only this process has open, for writing. Another open waits until
/// this process releases the lease, and sends it SIGIO. False: the kernel refuses it.
pub fn take_lease(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) == 0 }
}

/// Releases a lease. The end of its descriptor does so too.
pub fn release_lease(file: BorrowedFd<'_>) {
    // SAFETY: takes numbers.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Locks one byte of a file until the last copy of this descriptor is closed. False: another open
/// file has locked it.
pub fn lock_byte(file: BorrowedFd<'_>, at: u64) -> Result<bool> {
    let lock = lock_of_byte(at);
    // SAFETY: the kernel only reads the struct.
    let locked = check(unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, ptr::from_ref(&lock)).into()
    });
    match locked {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Has another open file locked this byte?
pub fn is_byte_locked(file: BorrowedFd<'_>, at: u64) -> Result<bool> {
    let mut lock = lock_of_byte(at);
    // SAFETY: the kernel reads and writes the struct, which outlives the call.
    check(unsafe {
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, ptr::from_mut(&mut lock)).into()
    })?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn lock_of_byte(at: u64) -> libc::flock {
    // SAFETY: a struct of numbers, for which zero is valid. The kernel wants a zero process id.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = at as _;
    lock.l_len = 1;
    lock
}

/// Does the thread or process of a pidfd still run?
pub fn is_alive(handle: BorrowedFd<'_>) -> bool {
    let mut ended = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut ended, Some(&none)) == Ok(0)
}

/// `struct open_how` in its first version.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct OpenHow {
    pub flags: u64,
    pub mode: u64,
    pub resolve: u64,
}

pub const OPEN_HOW_BYTES: usize = size_of::<OpenHow>();

/// openat2(2) with any values.
pub fn open_how(dir: i32, path: &CStr, how: OpenHow) -> Result<OwnedFd> {
    // SAFETY: the path ends in a zero byte, and the struct has the size that the call is told.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), ptr::from_ref(&how), OPEN_HOW_BYTES)
    })?;
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The soft limit of another process.
pub fn resource_limit(thread: u32, resource: i32) -> Result<u64> {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let none: *const libc::rlimit64 = ptr::null();
    // SAFETY: the kernel writes one struct, which lives on this stack.
    check(unsafe {
        libc::syscall(libc::SYS_prlimit64, thread, resource, none, ptr::from_mut(&mut limit))
    })?;
    Ok(limit.rlim_cur)
}

/// The user and the group of this thread for files, and nothing else.
pub fn set_file_user(user: u32, group: u32) -> Result<()> {
    // These calls return the old number, whether they succeed or not. The largest number changes
    // nothing.
    // SAFETY: takes numbers.
    let changed = unsafe {
        libc::syscall(libc::SYS_setfsgid, group);
        libc::syscall(libc::SYS_setfsuid, user);
        (libc::syscall(libc::SYS_setfsuid, u32::MAX), libc::syscall(libc::SYS_setfsgid, u32::MAX))
    };
    match changed == (user.into(), group.into()) {
        true => Ok(()),
        false => Err(Errno::PERM),
    }
}

/// Sends a signal to one thread of a process.
pub fn signal_thread(process: u32, thread: u32, signal: Signal) -> Result<()> {
    // SAFETY: takes numbers.
    check(unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal.as_raw()) }).map(drop)
}

/// True if this is the id of a process and not of one of its further threads.
pub fn is_process(thread: u32) -> bool {
    // SAFETY: takes numbers; signal 0 sends nothing.
    check(unsafe { libc::syscall(libc::SYS_tgkill, thread, thread, 0) }).is_ok()
}

/// Copies ranges of another process's memory, each by its address, one after the other. Returns the
/// number of bytes read, which can be less than the buffers hold.
pub fn read_memory<const N: usize>(thread: u32, pieces: [(u64, &mut [u8]); N]) -> Result<usize> {
    let theirs = pieces.each_ref().map(|(address, buffer)| libc::iovec {
        iov_base: *address as usize as *mut c_void,
        iov_len: buffer.len(),
    });
    let ours = pieces.map(|(_, buffer)| libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    });
    // SAFETY: the kernel writes at most the length of each buffer, and the buffers outlive the
    // call. The other addresses are only resolved in the other process.
    let read = unsafe {
        libc::process_vm_readv(
            thread as i32,
            ours.as_ptr(),
            N as libc::c_ulong,
            theirs.as_ptr(),
            N as libc::c_ulong,
            0,
        )
    };
    check(read as libc::c_long).map(|read| read as usize)
}

/// Whether the kernel knows a SECCOMP_RET_* action.
pub fn seccomp_knows(action: u32) -> bool {
    // SAFETY: reads one u32 that lives on this stack.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, ptr::from_ref(&action))
    })
    .is_ok()
}

/// Any system call with plain numbers as arguments, to test how a filter treats it.
pub fn numeric_syscall<const N: usize>(number: i64, arguments: [u64; N]) -> Result<i64> {
    let [a, b, c, d, e] = std::array::from_fn(|index| arguments.get(index).copied().unwrap_or(0));
    // SAFETY: callers pass only numbers that the named system call does not use as an address of
    // memory that this program owns.
    check(unsafe { libc::syscall(number, a, b, c, d, e) })
}

/// getpid through the 32-bit system call gate, as an i386 program calls it.
#[cfg(target_arch = "x86_64")]
pub fn i386_getpid() -> i32 {
    let mut result: i64 = 20; // __NR_getpid of i386
    // SAFETY: the gate keeps every register but rax (r8–r11 are lost on some kernels), and getpid
    // touches no memory.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") result,
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _
        );
    }
    result as i32
}
