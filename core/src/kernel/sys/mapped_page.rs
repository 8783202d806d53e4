//! A page of a file in memory, which is only asked where it lies.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use super::{Result, last_errno};

/// A page of a file, for as long as this lives. Only where it lies can be asked: whoever cuts the
/// file would make reading it a fault.
pub struct MappedPage(*mut c_void);

impl MappedPage {
    pub fn of(file: BorrowedFd<'_>) -> Result<MappedPage> {
        let length = rustix::param::page_size();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED { Err(last_errno()) } else { Ok(MappedPage(start)) }
    }

    pub fn address(&self) -> u64 {
        self.0 as u64
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping of that length, and nobody else knows of it.
        unsafe { libc::munmap(self.0, rustix::param::page_size()) };
    }
}
