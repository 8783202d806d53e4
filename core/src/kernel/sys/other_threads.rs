//! Threads and processes other than this one: identity, limits, memory, signals.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::Signal;

use super::{Result, check};

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

/// Does the thread or process of a pidfd still run?
pub fn is_alive(handle: BorrowedFd<'_>) -> bool {
    let mut ended = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut ended, Some(&none)) == Ok(0)
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
