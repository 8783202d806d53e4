//! An arena allocator that rarely reuses memory.
//!
//! The core allocates some tens of kilobytes, starts one command and waits. Bookkeeping for freed
//! memory is not worth its cost: with the small allocator of a static C library, which asks the
//! kernel for pages again and again, it takes a fifth of a launch. Only the piece that was
//! allocated last is reused when it is freed or grown. What does not fit into the arena comes from
//! the system's allocator.
//!
//! The relay and its supervisor run for long, and free and allocate the same sizes again and again.
//! So freed pieces of the system's allocator are kept in lists by power of two, up to a bound.
//!
//! While the command runs, other programs need the freed memory. Each page counts its pieces, and
//! empty pages go back to the kernel (`release_free_pages`). That halves the memory of a waiting
//! supervisor.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ops::Range;

use super::ARENA;

/// Pages that are never touched cost no memory.
const ARENA_BYTES: usize = 512 * 1024;

/// The smallest page size; the kernel's page can be a multiple of it.
const MIN_PAGE_BYTES: usize = 4096;

/// Sizes of the pieces from the system's allocator: 32 bytes, and its doubles up to 32 KiB. Larger
/// pieces have their own size.
const MIN_PIECE_BYTES: usize = 32;
const SIZE_CLASSES: usize = 11;

/// Bytes of free pieces that are kept for each size.
const MAX_FREE_BYTES_PER_CLASS: usize = 64 * 1024;

/// Alignment of every piece of the system's allocator.
const PIECE_ALIGNMENT: usize = 16;

#[repr(C, align(4096))]
struct Buffer(UnsafeCell<[u8; ARENA_BYTES]>);

// SAFETY: as for the arena, which alone uses it.
unsafe impl Sync for Buffer {}

/// Kept apart from its state, which lies with other data that every start writes.
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; ARENA_BYTES]));

/// The only instance is `sys::ARENA`.
pub struct Arena {
    state: UnsafeCell<ArenaState>,
}

struct ArenaState {
    used: usize,
    /// Bytes from this offset on were never used: the kernel left them zero.
    fresh: usize,
    /// The number of pieces that lie in each page, at least in part.
    pieces: [u16; ARENA_BYTES / MIN_PAGE_BYTES],
    /// Free pieces of the system's allocator.
    free_list: [FreeList; SIZE_CLASSES],
}

/// Free pieces of one size. Each starts with a pointer to the next.
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

    /// A piece of the system's allocator, at least as large as requested.
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
        // SAFETY: `free_piece` put it there and wrote this pointer, and the piece was unused since.
        free_list.first = unsafe { piece.cast::<*mut u8>().read() };
        free_list.count -= 1;
        piece
    }

    /// # Safety
    /// The piece comes from `take_piece` with the same layout, or with one of the same
    /// [`size_class`]. The caller does not use it any more.
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
        // SAFETY: it has room for a pointer, is aligned for one, and is unused.
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

/// The size class of a piece from the system's allocator, and its layout. None: the piece has
/// exactly the requested size.
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

    /// The offset of a pointer in the buffer. None: it lies elsewhere.
    fn offset_of(&self, pointer: *mut u8) -> Option<usize> {
        let offset = (pointer as usize).wrapping_sub(self.start() as usize);
        (offset < ARENA_BYTES).then_some(offset)
    }

    /// Gives empty pages back to the kernel.
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

    /// Gives all pages back to the kernel.
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
    // Not inlined: copies at every call site would be a third of the program.
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
                    // SAFETY: the old piece was handed out with this layout, and it is not used any
                    // more.
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
