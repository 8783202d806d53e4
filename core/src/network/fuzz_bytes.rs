//! Random test bytes, the same in every run.

pub struct FuzzBytes(u64);

impl FuzzBytes {
    pub fn new(seed: u64) -> FuzzBytes {
        FuzzBytes(seed)
    }

    /// Knuth's MMIX generator; its upper bits.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }

    pub fn bytes(&mut self, max_bytes: usize) -> Vec<u8> {
        (0..self.below(max_bytes)).map(|_| self.below(256) as u8).collect()
    }

    /// The message with some bytes changed, removed, added or repeated.
    pub fn mutated(&mut self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(message.len());
            let byte = if self.below(2) == 0 {
                self.below(256) as u8
            } else {
                b"\0\x01\xc0\x0c\r\n: \xff\x3f"[self.below(10)]
            };
            match self.below(5) {
                0 => message.truncate(at),
                1 => message.insert(at, byte),
                2 if at < message.len() => drop(message.remove(at)),
                3 => message.extend_from_within(at..),
                _ if at < message.len() => message[at] = byte,
                _ => {}
            }
        }
        message
    }
}
