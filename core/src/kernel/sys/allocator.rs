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
//! in it, and those without any go back to the kernel (`release_free_pages`). That is half of what a waiting
//! supervisor would keep.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ops::Range;

use super::ARENA;

/// Pages of it that are never touched cost nothing.
const ARENA_BYTES: usize = 512 * 1024;

/// The smallest page there is; the kernel's may be several of these.
const MIN_PAGE_BYTES: usize = 4096;

/// The sizes in which the system is asked for memory, if not for more: 32 bytes, and its doubles up
/// to 32 KiB.
const MIN_PIECE_BYTES: usize = 32;
const SIZE_CLASSES: usize = 11;

/// What is kept of each of them, in bytes.
const MAX_FREE_BYTES_PER_CLASS: usize = 64 * 1024;

/// Aligned as every piece of the system's is.
const PIECE_ALIGNMENT: usize = 16;

#[repr(C, align(4096))]
struct Buffer(UnsafeCell<[u8; ARENA_BYTES]>);

// SAFETY: as for the arena, which alone knows it.
unsafe impl Sync for Buffer {}

/// Apart from the account of it, which lies with what else is written at every start.
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; ARENA_BYTES]));

/// There is one.
pub struct Arena {
    state: UnsafeCell<ArenaState>,
}

struct ArenaState {
    used: usize,
    /// From here on nothing was ever used: it is as the kernel gave it, zero.
    fresh: usize,
    /// How many pieces lie in each page, or in a part of it.
    pieces: [u16; ARENA_BYTES / MIN_PAGE_BYTES],
    /// Of the system's pieces, those that nobody has now.
    free_list: [FreeList; SIZE_CLASSES],
}

/// Pieces of one size. Each begins with where the next is.
#[derive(Clone, Copy)]
struct FreeList {
    first: *mut u8,
    count: usize,
}

impl ArenaState {
    const fn new(fresh: usize) -> ArenaState {
        let none = FreeList { first: std::ptr::null_mut(), count: 0 };
        ArenaState {
            used: 0,
            fresh,
            pieces: [0; ARENA_BYTES / MIN_PAGE_BYTES],
            free_list: [none; SIZE_CLASSES],
        }
    }

    /// A piece of the system's, at least as large as asked for.
    ///
    /// # Safety
    /// As for `GlobalAlloc::alloc`.
    unsafe fn take_piece(&mut self, layout: Layout) -> *mut u8 {
        let Some((index, rounded)) = size_class(layout) else {
            // SAFETY: the caller's contract is handed on.
            return unsafe { System.alloc(layout) };
        };
        let free_list = &mut self.free_list[index];
        let piece = free_list.first;
        if piece.is_null() {
            // SAFETY: the size is not zero.
            return unsafe { System.alloc(rounded) };
        }
        // SAFETY: it was put there by `free_piece`, which wrote this, and nobody had it since.
        free_list.first = unsafe { piece.cast::<*mut u8>().read() };
        free_list.count -= 1;
        piece
    }

    /// # Safety
    /// The piece is one of `take_piece` for the same layout, or for one of the same size as [`size_class`]
    /// has it, and nobody uses it any more.
    unsafe fn free_piece(&mut self, piece: *mut u8, layout: Layout) {
        let Some((index, rounded)) = size_class(layout) else {
            // SAFETY: the system was asked for it with this layout.
            return unsafe { System.dealloc(piece, layout) };
        };
        let free_list = &mut self.free_list[index];
        if (free_list.count + 1) * rounded.size() > MAX_FREE_BYTES_PER_CLASS {
            // SAFETY: the system was asked for it with this layout.
            return unsafe { System.dealloc(piece, rounded) };
        }
        // SAFETY: it has room for a pointer, is aligned for one, and is nobody's.
        unsafe { piece.cast::<*mut u8>().write(free_list.first) };
        *free_list = FreeList { first: piece, count: free_list.count + 1 };
    }

    fn pages(piece: Range<usize>) -> Range<usize> {
        piece.start / MIN_PAGE_BYTES..piece.end.div_ceil(MIN_PAGE_BYTES)
    }

    fn count_piece(&mut self, piece: Range<usize>) {
        for pieces in &mut self.pieces[ArenaState::pages(piece)] {
            *pieces += 1;
        }
    }

    fn uncount_piece(&mut self, piece: Range<usize>) {
        for pieces in &mut self.pieces[ArenaState::pages(piece)] {
            *pieces -= 1;
        }
    }
}

/// Which of the sizes a piece of the system's has, and its layout. None: that of what is asked for.
fn size_class(layout: Layout) -> Option<(usize, Layout)> {
    let size = layout.size().max(MIN_PIECE_BYTES).checked_next_power_of_two()?;
    let index = (size / MIN_PIECE_BYTES).trailing_zeros() as usize;
    if index >= SIZE_CLASSES || layout.align() > PIECE_ALIGNMENT {
        return None;
    }
    Some((index, Layout::from_size_align(size, PIECE_ALIGNMENT).ok()?))
}

// SAFETY: the program has one thread. A process that shares its memory
// (`sys::spawn_sharing_memory`) runs only while that thread sleeps.
unsafe impl Sync for Arena {}

impl Arena {
    pub const fn new() -> Arena {
        Arena { state: UnsafeCell::new(ArenaState::new(0)) }
    }

    fn start(&self) -> *mut u8 {
        BUFFER.0.get().cast()
    }

    /// Where in the buffer a pointer lies, if it does.
    fn offset_of(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.start() as usize);
        (offset < ARENA_BYTES).then_some(offset)
    }

    /// Lets the kernel have the pages that nothing lies in.
    pub fn release_free_pages(&self) {
        // SAFETY: single-threaded, see Sync above.
        let ArenaState { pieces, .. } = unsafe { &*self.state.get() };
        let page = rustix::param::page_size();
        let first = (self.start() as usize).next_multiple_of(page) - self.start() as usize;
        let is_free = |at: usize| {
            pieces[at / MIN_PAGE_BYTES..(at + page) / MIN_PAGE_BYTES]
                .iter()
                .all(|pieces| *pieces == 0)
        };
        let mut at = first;
        while at + page <= ARENA_BYTES {
            let start = at;
            while at + page <= ARENA_BYTES && is_free(at) {
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
    pub unsafe fn release_all(&self) {
        // SAFETY: single-threaded, see Sync above.
        let state = unsafe { &mut *self.state.get() };
        *state = ArenaState::new(ARENA_BYTES);
        self.release_free_pages();
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
            Some(end) if end <= ARENA_BYTES && layout.align() <= MIN_PAGE_BYTES => {
                state.used = end;
                state.fresh = state.fresh.max(end);
                state.count_piece(start..end);
                // SAFETY: start is below SIZE or, for a size of 0, at most SIZE.
                unsafe { self.start().add(start) }
            }
            // SAFETY: the caller's contract is handed on.
            _ => unsafe { state.take_piece(layout) },
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
                state.uncount_piece(offset..offset + layout.size());
                if offset + layout.size() == state.used {
                    state.used = offset;
                }
            }
            // SAFETY: what is not in the buffer is one of the system's.
            None => unsafe { state.free_piece(pointer, layout) },
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
            Some(offset)
                if offset + layout.size() == state.used && offset + new_size <= ARENA_BYTES =>
            {
                state.uncount_piece(offset..offset + layout.size());
                state.used = offset + new_size;
                state.fresh = state.fresh.max(state.used);
                state.count_piece(offset..state.used);
                pointer
            }
            None if size_class(layout) == size_class(wanted) => match size_class(layout) {
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
