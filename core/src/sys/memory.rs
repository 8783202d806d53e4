//! What a plan asks of memory is to copy and compare some hundred short strings. The small C library does that byte by byte, or
//! with instructions that take long to get going: a tenth of a launch.
//!
//! No loop copies here: the compiler would see what it is and call memcpy for it.

use std::arch::asm;
use std::arch::x86_64::__m128i;
use std::ffi::{c_int, c_void};

/// Copies a piece at the beginning and one at the end, which between one and two lengths of a piece is everything. All is read before
/// any is written, so the two may overlap.
macro_rules! copy_ends {
    ($piece:ty, $to:expr, $from:expr, $length:expr) => {{
        let last = $length - size_of::<$piece>();
        let pieces = ($from.cast::<$piece>().read_unaligned(), $from.add(last).cast::<$piece>().read_unaligned());
        $to.cast::<$piece>().write_unaligned(pieces.0);
        $to.add(last).cast::<$piece>().write_unaligned(pieces.1);
    }};
}

/// # Safety
/// As in C: both hold `length` bytes and do not overlap.
// SAFETY: the one symbol with this name; the C library's own is not linked then.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void {
    let (target, source) = (to.cast::<u8>(), from.cast::<u8>());
    // SAFETY: every piece lies within `length` bytes of both.
    unsafe {
        match length {
            0 => {}
            1 => target.write(source.read()),
            2..=3 => copy_ends!(u16, target, source, length),
            4..=7 => copy_ends!(u32, target, source, length),
            8..=15 => copy_ends!(u64, target, source, length),
            16..=31 => copy_ends!(__m128i, target, source, length),
            32..=64 => copy_ends!([__m128i; 2], target, source, length),
            65..=128 => copy_ends!([__m128i; 4], target, source, length),
            _ => asm!(
                "rep movsb",
                inout("rcx") length => _, inout("rdi") target => _, inout("rsi") source => _,
                options(nostack, preserves_flags)
            ),
        }
    }
    to
}

/// # Safety
/// As in C: both hold `length` bytes.
// SAFETY: see memcpy.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut c_void, from: *const c_void, length: usize) -> *mut c_void {
    // Forward is right as well where the target begins before the source.
    if length <= 128 || (to as usize).wrapping_sub(from as usize) >= length {
        // SAFETY: the caller's contract, and see `copy_ends`.
        return unsafe { memcpy(to, from, length) };
    }
    // SAFETY: from the last byte to the first; the direction is set back as everybody expects it.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") length => _,
            inout("rdi") to.cast::<u8>().add(length - 1) => _,
            inout("rsi") from.cast::<u8>().add(length - 1) => _,
            options(nostack)
        );
    }
    to
}

/// # Safety
/// As in C: both hold `length` bytes.
// SAFETY: see memcpy.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const c_void, other: *const c_void, length: usize) -> c_int {
    let (one, other) = (one.cast::<u8>(), other.cast::<u8>());
    let mut at = 0;
    // SAFETY: `at` plus what is read is at most `length`.
    unsafe {
        while at + 8 <= length {
            let words = (one.add(at).cast::<u64>().read_unaligned(), other.add(at).cast::<u64>().read_unaligned());
            if words.0 != words.1 {
                return if words.0.swap_bytes() < words.1.swap_bytes() { -1 } else { 1 };
            }
            at += 8;
        }
        while at < length {
            let bytes = (one.add(at).read(), other.add(at).read());
            if bytes.0 != bytes.1 {
                return c_int::from(bytes.0) - c_int::from(bytes.1);
            }
            at += 1;
        }
    }
    0
}

/// # Safety
/// As in C: both hold `length` bytes.
// SAFETY: see memcpy.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const c_void, other: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's contract is handed on.
    unsafe { memcmp(one, other, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_and_compared_is_all_of_it_and_no_more() {
        let source: Vec<u8> = (0..300_usize).map(|at| (at * 7 + 1) as u8).collect();
        for length in 0..200 {
            for start in [0, 1, 5, 64] {
                let mut target = vec![0xEE; 300];
                // SAFETY: both hold start + length bytes.
                unsafe { memcpy(target[start..].as_mut_ptr().cast(), source[start..].as_ptr().cast(), length) };
                assert!(target[start..start + length].iter().eq(&source[start..start + length]), "{start} {length}");
                assert!(target[..start].iter().chain(&target[start + length..]).all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn overlapping_places_are_moved_as_if_through_a_third() {
        for length in 0..150 {
            for (from, to) in [(10, 10), (10, 11), (11, 10), (10, 40), (40, 10), (10, 200), (200, 10)] {
                let mut bytes: Vec<u8> = (0..400_usize).map(|at| (at * 3) as u8).collect();
                let before = bytes.clone();
                let start = bytes.as_mut_ptr();
                // SAFETY: both lie within the 400 bytes.
                unsafe { memmove(start.add(to).cast(), start.add(from).cast(), length) };
                let moved =
                    |at: usize| if (to..to + length).contains(&at) { before[at - to + from] } else { before[at] };
                assert!((0..400).all(|at| bytes[at] == moved(at)), "{from} {to} {length}");
            }
        }
    }

    #[test]
    fn order_is_that_of_the_first_byte_that_differs() {
        for length in 0..40 {
            let one = vec![0x80; length];
            let compare = |other: &[u8]| {
                // SAFETY: both hold `length` bytes.
                unsafe { memcmp(one.as_ptr().cast(), other.as_ptr().cast(), length) }.signum()
            };
            assert_eq!(compare(&one), 0);
            for at in 0..length {
                let mut other = one.clone();
                other[at] = 0x01;
                other[at + 1..].fill(0xFF);
                assert_eq!(compare(&other), 1, "{length} {at}");
                other[at] = 0xFF;
                other[at + 1..].fill(0x01);
                assert_eq!(compare(&other), -1, "{length} {at}");
            }
        }
    }
}
