//! Reads the memory of another process. That process can change its memory at any time. The
//! supervisor may act on the bytes that it read. It must not assume that the memory still has them.

use rustix::io::Errno;

use super::sys;

/// Bytes of one read. A larger read is slower, because the kernel first loads every page in the
/// range.
const WINDOW_BYTES: usize = 4096;
pub const PAGE_BYTES: u64 = WINDOW_BYTES as u64;

/// Caches two pages: argument strings lie side by side, and the list of their addresses lies
/// elsewhere.
pub struct ProcessMemory {
    thread: u32,
    windows: [Window; 2],
    /// Index of the page that was read last.
    newest: usize,
}

#[derive(Default)]
struct Window {
    /// One page, allocated on first use. Only the first `length` bytes are valid.
    bytes: Vec<u8>,
    length: usize,
    start: u64,
}

impl Window {
    /// Prepares this window for the page that contains `address`.
    fn turn_to(&mut self, address: u64) -> (u64, &mut [u8]) {
        (self.start, self.length) = (address - address % PAGE_BYTES, 0);
        self.bytes.resize(WINDOW_BYTES, 0);
        (self.start, &mut self.bytes)
    }

    fn bytes_at(&self, address: u64) -> Option<&[u8]> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        self.bytes[..self.length].get(offset..).filter(|rest| !rest.is_empty())
    }
}

impl ProcessMemory {
    pub fn of(thread: u32) -> ProcessMemory {
        ProcessMemory { thread, windows: Default::default(), newest: 0 }
    }

    /// Reuses the buffers for the memory of another thread, or for a new read.
    pub fn turn_to(&mut self, thread: u32) {
        self.thread = thread;
        self.windows.iter_mut().for_each(|window| window.length = 0);
    }

    /// Reads the pages of two addresses in one call, before they are needed. A missing page causes
    /// an error only when it is used.
    pub fn prefetch_pages(&mut self, one: u64, other: u64) {
        if one / PAGE_BYTES == other / PAGE_BYTES {
            return;
        }
        let [first, second] = &mut self.windows;
        let read =
            sys::read_memory(self.thread, [first.turn_to(one), second.turn_to(other)]).unwrap_or(0);
        first.length = read.min(WINDOW_BYTES);
        second.length = read - first.length;
    }

    /// The bytes from an address to the end of its page. The next page is not read: it may not
    /// exist.
    fn rest(&mut self, address: u64) -> Result<&[u8], Errno> {
        let known = self.windows.iter().position(|window| window.bytes_at(address).is_some());
        let index = match known {
            Some(index) => index,
            None => {
                self.newest = 1 - self.newest;
                let window = &mut self.windows[self.newest];
                window.length = sys::read_memory(self.thread, [window.turn_to(address)])?;
                self.newest
            }
        };
        self.windows[index].bytes_at(address).ok_or(Errno::FAULT)
    }

    /// Appends a string without its NUL. `max_bytes` includes the NUL; a longer string gives the
    /// error `too_long`.
    pub fn string(
        &mut self,
        address: u64,
        max_bytes: usize,
        too_long: Errno,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let start = out.len();
        let mut at = address;
        loop {
            let rest = self.rest(at)?;
            let end = rest.iter().position(|byte| *byte == 0);
            let piece = &rest[..end.unwrap_or(rest.len())];
            if out.len() - start + piece.len() >= max_bytes {
                return Err(too_long);
            }
            out.extend_from_slice(piece);
            if end.is_some() {
                return Ok(());
            }
            at = at.checked_add(piece.len() as u64).ok_or(Errno::FAULT)?;
        }
    }

    /// Reads numbers until the first 0, which is not included.
    pub fn words(&mut self, address: u64, max_words: usize) -> Result<Vec<u64>, Errno> {
        let mut words = Vec::new();
        let mut at = address;
        loop {
            match self.word(at)? {
                0 => return Ok(words),
                _ if words.len() == max_words => return Err(Errno::TOOBIG),
                word => words.push(word),
            }
            at = at.checked_add(8).ok_or(Errno::FAULT)?;
        }
    }

    /// Reads so many bytes.
    pub fn bytes(&mut self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let at = address.checked_add(bytes.len() as u64).ok_or(Errno::FAULT)?;
            let rest = self.rest(at)?;
            let count = rest.len().min(length - bytes.len());
            bytes.extend_from_slice(&rest[..count]);
        }
        Ok(bytes)
    }

    pub fn word(&mut self, address: u64) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = self.rest(address.checked_add(filled as u64).ok_or(Errno::FAULT)?)?;
            let count = rest.len().min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&rest[..count]);
            filled += count;
        }
        Ok(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than one window.
    const LONG_BYTES: usize = 3 * WINDOW_BYTES + 5;

    fn own() -> ProcessMemory {
        ProcessMemory::of(rustix::process::getpid().as_raw_nonzero().get() as u32)
    }

    #[test]
    fn strings_end_at_their_nul_and_not_at_a_page() {
        let mut long = vec![b'x'; LONG_BYTES];
        long.push(0);
        let mut out = b"before ".to_vec();
        own().string(long.as_ptr() as u64 + 1, 1 << 20, Errno::TOOBIG, &mut out).unwrap();
        assert_eq!(out, [&b"before "[..], &long[1..LONG_BYTES]].concat());
        let mut memory = own();
        assert_eq!(
            memory.string(long.as_ptr() as u64, LONG_BYTES, Errno::TOOBIG, &mut out),
            Err(Errno::TOOBIG)
        );
        out.clear();
        assert_eq!(
            memory.string(long.as_ptr() as u64, LONG_BYTES + 1, Errno::TOOBIG, &mut out),
            Ok(())
        );
    }

    #[test]
    fn two_pages_are_prefetched_and_a_missing_page_is_read_later() {
        let text = [vec![b'x'; LONG_BYTES], vec![0]].concat();
        let (first, last) = (text.as_ptr() as u64, text.as_ptr() as u64 + LONG_BYTES as u64 - 3);
        for (one, other) in [
            (first, last),
            (last, first),
            (first, 8),
            (8, first),
            (first, first),
            (first, u64::MAX),
        ] {
            let mut memory = own();
            memory.prefetch_pages(one, other);
            let mut out = Vec::new();
            assert_eq!(memory.string(last, 4, Errno::TOOBIG, &mut out), Ok(()));
            assert_eq!(memory.string(first, LONG_BYTES + 1, Errno::TOOBIG, &mut out), Ok(()));
            assert_eq!(out, vec![b'x'; 3 + LONG_BYTES], "{one:x} {other:x}");
            assert_eq!(memory.word(8), Err(Errno::FAULT));
        }
        // After the switch, no page of the first process is used.
        let mut memory = own();
        memory.prefetch_pages(first, last);
        memory.turn_to(u32::MAX >> 1);
        assert_eq!(memory.word(first), Err(Errno::SRCH));
    }

    #[test]
    fn an_unmapped_address_is_a_fault() {
        let mut out = Vec::new();
        for address in [0, 8, u64::MAX, u64::MAX - 4095, 1 << 47] {
            assert_eq!(
                own().string(address, 4096, Errno::TOOBIG, &mut out),
                Err(Errno::FAULT),
                "{address:x}"
            );
            assert_eq!(own().words(address, 4), Err(Errno::FAULT), "{address:x}");
        }
    }

    #[test]
    fn words_end_at_the_first_null() {
        let words = [7_u64, 8, 9, 0, 10];
        assert_eq!(own().words(words.as_ptr() as u64, 3).unwrap(), [7, 8, 9]);
        assert_eq!(own().words(words.as_ptr() as u64, 2), Err(Errno::TOOBIG));
        // An unaligned word that spans two windows.
        let mut memory = own();
        let mut bytes = vec![0_u8; LONG_BYTES];
        let border = 2 * WINDOW_BYTES - bytes.as_ptr() as usize % PAGE_BYTES as usize;
        bytes[border - 3..border + 5].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert!(memory.words(bytes.as_ptr() as u64, 1).unwrap().is_empty());
        assert_eq!(
            memory.words(bytes.as_ptr() as u64 + border as u64 - 3, 1).unwrap(),
            [0x0102_0304_0506_0708]
        );
    }
}
