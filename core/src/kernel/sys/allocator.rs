//! Memory that is given out and not used again.
//!
//! The core allocates some tens of kilobytes, starts one command and waits; what it would free on
//! the way is not worth the bookkeeping, and with the small allocator of a static C library, which
//! asks the kernel for pages again and again, that bookkeeping is a fifth of a launch. What is
//! freed or grown last is reused; what does not fit comes from the system's allocator.
//!
//! Those who go on for long, the relay and its supervisor, free and want the same sizes over and
//! over. So what came from the system and is freed is kept for whoever wants as much next, by
//! powers of two and up to a bound.
//!
//! While the command runs, what was freed is wanted by others: each page knows how many pieces lie
//! in it, and those without any go back to the kernel (`give_back`). That is half of what a waiting
//! supervisor would keep.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ops::Range;

use super::ARENA;

/// Pages of it that are never touched cost nothing.
const SIZE: usize = 512 * 1024;

/// The smallest page there is; the kernel's may be several of these.
const PAGE: usize = 4096;

/// The sizes in which the system is asked for memory, if not for more: 32 bytes, and its doubles up
/// to 32 KiB.
const SMALLEST: usize = 32;
const SIZES: usize = 11;

/// What is kept of each of them, in bytes.
const KEPT: usize = 64 * 1024;

/// Aligned as every piece of the system's is.
const ALIGNED: usize = 16;

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
    /// Of the system's pieces, those that nobody has now.
    kept: [Kept; SIZES],
}

/// Pieces of one size. Each begins with where the next is.
#[derive(Clone, Copy)]
struct Kept {
    first: *mut u8,
    count: usize,
}

impl State {
    const fn new(fresh: usize) -> State {
        let none = Kept { first: std::ptr::null_mut(), count: 0 };
        State { used: 0, fresh, pieces: [0; SIZE / PAGE], kept: [none; SIZES] }
    }

    /// A piece of the system's, at least as large as asked for.
    ///
    /// # Safety
    /// As for `GlobalAlloc::alloc`.
    unsafe fn take(&mut self, layout: Layout) -> *mut u8 {
        let Some((index, rounded)) = size_of(layout) else {
            // SAFETY: the caller's contract is handed on.
            return unsafe { System.alloc(layout) };
        };
        let kept = &mut self.kept[index];
        let piece = kept.first;
        if piece.is_null() {
            // SAFETY: the size is not zero.
            return unsafe { System.alloc(rounded) };
        }
        // SAFETY: it was put there by `keep`, which wrote this, and nobody had it since.
        kept.first = unsafe { piece.cast::<*mut u8>().read() };
        kept.count -= 1;
        piece
    }

    /// # Safety
    /// The piece is one of `take` for the same layout, or for one of the same size as [`size_of`]
    /// has it, and nobody uses it any more.
    unsafe fn keep(&mut self, piece: *mut u8, layout: Layout) {
        let Some((index, rounded)) = size_of(layout) else {
            // SAFETY: the system was asked for it with this layout.
            return unsafe { System.dealloc(piece, layout) };
        };
        let kept = &mut self.kept[index];
        if (kept.count + 1) * rounded.size() > KEPT {
            // SAFETY: the system was asked for it with this layout.
            return unsafe { System.dealloc(piece, rounded) };
        }
        // SAFETY: it has room for a pointer, is aligned for one, and is nobody's.
        unsafe { piece.cast::<*mut u8>().write(kept.first) };
        *kept = Kept { first: piece, count: kept.count + 1 };
    }

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

/// Which of the sizes a piece of the system's has, and its layout. None: that of what is asked for.
fn size_of(layout: Layout) -> Option<(usize, Layout)> {
    let size = layout.size().max(SMALLEST).checked_next_power_of_two()?;
    let index = (size / SMALLEST).trailing_zeros() as usize;
    if index >= SIZES || layout.align() > ALIGNED {
        return None;
    }
    Some((index, Layout::from_size_align(size, ALIGNED).ok()?))
}

// SAFETY: the program has one thread. A process that shares its memory
// (`sys::spawn_sharing_memory`) runs only while that thread sleeps.
unsafe impl Sync for Arena {}

impl Arena {
    pub const fn new() -> Arena {
        Arena { state: UnsafeCell::new(State::new(0)) }
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
        let is_free =
            |at: usize| pieces[at / PAGE..(at + page) / PAGE].iter().all(|pieces| *pieces == 0);
        let mut at = first;
        while at + page <= SIZE {
            let start = at;
            while at + page <= SIZE && is_free(at) {
                at += page;
            }
            if at > start {
                // SAFETY: whole pages inside the buffer in which no piece lies; read again, they
                // hold zeros.
                unsafe {
                    libc::madvise(self.start().add(start).cast(), at - start, libc::MADV_DONTNEED)
                };
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
        *state = State::new(SIZE);
        self.give_back();
    }
}

// SAFETY: every piece handed out lies inside the buffer (or is the system's), is aligned as asked,
// and overlaps no other piece: `used` only grows over fresh bytes and only shrinks to the start of
// the piece that was handed out last.
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
            _ => unsafe { state.take(layout) },
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
        // SAFETY: single-threaded, see Sync above.
        let state = unsafe { &mut *self.state.get() };
        match self.offset_of(pointer) {
            Some(offset) => {
                state.leave(offset..offset + layout.size());
                if offset + layout.size() == state.used {
                    state.used = offset;
                }
            }
            // SAFETY: what is not in the buffer is one of the system's.
            None => unsafe { state.keep(pointer, layout) },
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: single-threaded, see Sync above.
        let state = unsafe { &mut *self.state.get() };
        // SAFETY: align is valid since the old layout was, and new_size is not 0 by the caller's
        // contract.
        let wanted = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match self.offset_of(pointer) {
            Some(offset) if offset + layout.size() == state.used && offset + new_size <= SIZE => {
                state.leave(offset..offset + layout.size());
                state.used = offset + new_size;
                state.fresh = state.fresh.max(state.used);
                state.enter(offset..state.used);
                pointer
            }
            None if size_of(layout) == size_of(wanted) => match size_of(layout) {
                Some(_) => pointer,
                // SAFETY: the system was asked for it with this layout.
                None => unsafe { System.realloc(pointer, layout, new_size) },
            },
            _ => {
                // SAFETY: the caller's contract is handed on.
                let new = unsafe { self.alloc(wanted) };
                if !new.is_null() {
                    // SAFETY: both pieces are at least this long and do not overlap.
                    unsafe { pointer.copy_to_nonoverlapping(new, layout.size().min(new_size)) };
                    // SAFETY: as the old piece was handed out, and nobody knows it any more.
                    unsafe { self.dealloc(pointer, layout) };
                }
                new
            }
        }
    }
}

/// The global allocator of a program that takes the arena for all its memory.
pub struct Allocator;

// SAFETY: the arena keeps the contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        unsafe { ARENA.alloc(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { ARENA.dealloc(piece, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { ARENA.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { ARENA.realloc(piece, layout, size) }
    }
}
