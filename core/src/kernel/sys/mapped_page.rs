//! A mapped page of a file. Only its address is used.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr;

use super::{Result, last_errno};

/// One page of a file, mapped as long as this value lives. Its bytes can not be read: if another
/// process truncates the file, reading would be a fault.
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
        // SAFETY: this value owns the mapping of that length.
        unsafe { libc::munmap(self.0, rustix::param::page_size()) };
    }
}
