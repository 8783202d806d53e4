//! Leases and locks on open files.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::{Result, check};

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
