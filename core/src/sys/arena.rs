//! Memory that is given out and not used again.
//!
//! The core allocates some tens of kilobytes, starts one command and waits; what it would free on the way is not worth the
//! bookkeeping, and with the small allocator of a static C library, which asks the kernel for pages again and again, that
//! bookkeeping is a fifth of a launch. What is freed or grown last is reused; what does not fit goes to the system's allocator.
//!
//! While the command runs, what was freed is wanted by others: each page knows how many pieces lie in it, and those without any go
//! back to the kernel (`give_back`). That is half of what a waiting supervisor would keep.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ops::Range;

/// Pages of it that are never touched cost nothing.
const SIZE: usize = 512 * 1024;

/// The smallest page there is; the kernel's may be several of these.
const PAGE: usize = 4096;

#[repr(C, align(4096))]
struct Buffer(UnsafeCell<[u8; SIZE]>);

// SAFETY: as for the arena, which alone knows it.
unsafe impl Sync for Buffer {}

/// Apart from the account of it, which lies with what else is written at every start.
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; SIZE]));

/// There is one.
pub struct Arena {
    state: UnsafeCell<State>,
}

struct State {
    used: usize,
    /// From here on nothing was ever used: it is as the kernel gave it, zero.
    fresh: usize,
    /// How many pieces lie in each page, or in a part of it.
    pieces: [u16; SIZE / PAGE],
}

impl State {
    fn pages(piece: Range<usize>) -> Range<usize> {
        piece.start / PAGE..piece.end.div_ceil(PAGE)
    }

    fn enter(&mut self, piece: Range<usize>) {
        for pieces in &mut self.pieces[State::pages(piece)] {
            *pieces += 1;
        }
    }

    fn leave(&mut self, piece: Range<usize>) {
        for pieces in &mut self.pieces[State::pages(piece)] {
            *pieces -= 1;
        }
    }
}

// SAFETY: the program has one thread. A process that shares its memory (`sys::spawn_sharing_memory`) runs only while that
// thread sleeps.
unsafe impl Sync for Arena {}

impl Arena {
    pub const fn new() -> Arena {
        let state = State { used: 0, fresh: 0, pieces: [0; SIZE / PAGE] };
        Arena { state: UnsafeCell::new(state) }
    }

    fn start(&self) -> *mut u8 {
        BUFFER.0.get().cast()
    }

    /// Where in the buffer a pointer lies, if it does.
    fn offset_of(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.start() as usize);
        (offset < SIZE).then_some(offset)
    }

    /// Lets the kernel have the pages that nothing lies in.
    pub fn give_back(&self) {
        // SAFETY: single-threaded, see Sync above.
        let State { pieces, .. } = unsafe { &*self.state.get() };
        let page = rustix::param::page_size();
        let first = (self.start() as usize).next_multiple_of(page) - self.start() as usize;
        let is_free = |at: usize| pieces[at / PAGE..(at + page) / PAGE].iter().all(|pieces| *pieces == 0);
        let mut at = first;
        while at + page <= SIZE {
            let start = at;
            while at + page <= SIZE && is_free(at) {
                at += page;
            }
            if at > start {
                // SAFETY: whole pages inside the buffer in which no piece lies; read again, they hold zeros.
                unsafe { libc::madvise(self.start().add(start).cast(), at - start, libc::MADV_DONTNEED) };
            }
            at += page;
        }
    }

    /// Lets the kernel have everything.
    ///
    /// # Safety
    /// Nothing that was allocated before may be used afterwards.
    pub unsafe fn forget(&self) {
        // SAFETY: single-threaded, see Sync above.
        let state = unsafe { &mut *self.state.get() };
        *state = State { used: 0, fresh: SIZE, pieces: [0; SIZE / PAGE] };
        self.give_back();
    }
}

// SAFETY: every piece handed out lies inside the buffer (or is the system's), is aligned as asked, and overlaps no other piece:
// `used` only grows over fresh bytes and only shrinks to the start of the piece that was handed out last.
unsafe impl GlobalAlloc for Arena {
    // Not one copy for each that asks: that would be a third of the program.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: single-threaded, see Sync above.
        let state = unsafe { &mut *self.state.get() };
        let start = state.used.next_multiple_of(layout.align());
        match start.checked_add(layout.size()) {
            Some(end) if end <= SIZE && layout.align() <= PAGE => {
                state.used = end;
                state.fresh = state.fresh.max(end);
                state.enter(start..end);
                // SAFETY: start is below SIZE or, for a size of 0, at most SIZE.
                unsafe { self.start().add(start) }
            }
            // SAFETY: the caller's contract is handed on.
            _ => unsafe { System.alloc(layout) },
        }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: single-threaded, see Sync above.
        let fresh = unsafe { (*self.state.get()).fresh };
        // SAFETY: the caller's contract is handed on.
        let piece = unsafe { self.alloc(layout) };
        if !piece.is_null() && self.offset_of(piece).is_none_or(|offset| offset < fresh) {
            // SAFETY: the piece has so many bytes.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    #[inline(never)]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        match self.offset_of(pointer) {
            Some(offset) => {
                // SAFETY: single-threaded, see Sync above.
                let state = unsafe { &mut *self.state.get() };
                state.leave(offset..offset + layout.size());
                if offset + layout.size() == state.used {
                    state.used = offset;
                }
            }
            // SAFETY: what is not in the buffer came from the system.
            None => unsafe { System.dealloc(pointer, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: single-threaded, see Sync above.
        let state = unsafe { &mut *self.state.get() };
        match self.offset_of(pointer) {
            Some(offset) if offset + layout.size() == state.used && offset + new_size <= SIZE => {
                state.leave(offset..offset + layout.size());
                state.used = offset + new_size;
                state.fresh = state.fresh.max(state.used);
                state.enter(offset..state.used);
                pointer
            }
            Some(_) => {
                // SAFETY: align is valid since the old layout was, and new_size is not 0 by the caller's contract.
                let new = unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
                if !new.is_null() {
                    // SAFETY: both pieces are at least this long and do not overlap.
                    unsafe { pointer.copy_to_nonoverlapping(new, layout.size().min(new_size)) };
                    // SAFETY: as the old piece was handed out, and nobody knows it any more.
                    unsafe { self.dealloc(pointer, layout) };
                }
                new
            }
            // SAFETY: what is not in the buffer came from the system.
            None => unsafe { System.realloc(pointer, layout, new_size) },
        }
    }
}
