//! Memory that is given out and not taken back.
//!
//! The core allocates some tens of kilobytes, starts one command and waits; what it would free on the way is not worth the
//! bookkeeping, and with the small allocator of a static C library, which asks the kernel for pages again and again, that
//! bookkeeping is a fifth of a launch. What is freed or grown last is reused; what does not fit goes to the system's allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;

/// Pages of it that are never touched cost nothing.
const SIZE: usize = 512 * 1024;

/// Of 16 bytes each, which is the alignment that everything here gets.
type Buffer = [u128; SIZE / 16];

pub struct Arena {
    buffer: UnsafeCell<Buffer>,
    used: UnsafeCell<usize>,
}

// SAFETY: the program has one thread. A process that shares its memory (`sys::spawn_sharing_memory`) runs only while that
// thread sleeps.
unsafe impl Sync for Arena {}

impl Arena {
    pub const fn new() -> Arena {
        Arena { buffer: UnsafeCell::new([0; SIZE / 16]), used: UnsafeCell::new(0) }
    }

    fn start(&self) -> *mut u8 {
        self.buffer.get().cast()
    }

    /// Where in the buffer a pointer lies, if it does.
    fn offset_of(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.start() as usize);
        (offset < SIZE).then_some(offset)
    }
}

// SAFETY: every piece handed out lies inside the buffer (or is the system's), is aligned as asked, and overlaps no other piece:
// `used` only grows over fresh bytes and only shrinks to the start of the piece that was handed out last.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: single-threaded, see Sync above.
        let used = unsafe { &mut *self.used.get() };
        let start = used.next_multiple_of(layout.align());
        match start.checked_add(layout.size()) {
            Some(end) if end <= SIZE && layout.align() <= align_of::<u128>() => {
                *used = end;
                // SAFETY: start is below SIZE or, for a size of 0, at most SIZE.
                unsafe { self.start().add(start) }
            }
            // SAFETY: the caller's contract is handed on.
            _ => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.offset_of(pointer) {
            Some(offset) => {
                // SAFETY: single-threaded, see Sync above.
                let used = unsafe { &mut *self.used.get() };
                if offset + layout.size() == *used {
                    *used = offset;
                }
            }
            // SAFETY: what is not in the buffer came from the system.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: single-threaded, see Sync above.
        let used = unsafe { &mut *self.used.get() };
        match self.offset_of(pointer) {
            Some(offset) if offset + layout.size() == *used && offset + new_size <= SIZE => {
                *used = offset + new_size;
                pointer
            }
            Some(_) => {
                // SAFETY: align is valid since the old layout was, and new_size is not 0 by the caller's contract.
                let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
                if !new.is_null() {
                    // SAFETY: both pieces are at least this long and do not overlap.
                    unsafe { pointer.copy_to_nonoverlapping(new, layout.size().min(new_size)) };
                }
                new
            }
            // SAFETY: what is not in the buffer came from the system.
            None => unsafe { System.realloc(pointer, layout, new_size) },
        }
    }
}
