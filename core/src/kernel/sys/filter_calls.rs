//! Filters of system calls, and the calls that a filter hands over.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use super::{Result, check};

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

/// Whether the kernel knows a SECCOMP_RET_* action.
pub fn seccomp_knows(action: u32) -> bool {
    // SAFETY: reads one u32 that lives on this stack.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, ptr::from_ref(&action))
    })
    .is_ok()
}
