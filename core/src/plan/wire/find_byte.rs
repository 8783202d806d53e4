//! Finds bytes, eight at a time. Strings in a plan are short, and search code for long strings has
//! a high start-up cost.

/// The first position of any of the bytes.
pub fn position<const N: usize>(text: &[u8], bytes: [u8; N]) -> Option<usize> {
    const LOWEST: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGHEST: u64 = u64::from_le_bytes([0x80; 8]);
    let patterns = bytes.map(|byte| u64::from(byte) * LOWEST);
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest byte that becomes zero keeps its highest bit. Higher bytes can keep theirs
        // too, which does not matter.
        let zeros =
            patterns.map(|pattern| (word ^ pattern).wrapping_sub(LOWEST) & !(word ^ pattern));
        let found = zeros.iter().fold(0, |all, zeros| all | zeros) & HIGHEST;
        if found != 0 {
            return Some(index * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    Some(text.len() - rest.len() + rest.iter().position(|byte| bytes.contains(byte))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_is_found_at_every_position() {
        for length in 0..20 {
            assert_eq!(position(&vec![b'/' ^ 1; length], [b'/']), None);
            for at in 0..length {
                let mut text = vec![b'/' + 0x80; length];
                text[at] = b'/';
                assert_eq!(position(&text, [b'/']), Some(at), "{length} {at}");
            }
        }
    }

    #[test]
    fn the_first_of_two_bytes_is_found_at_every_position() {
        for length in 0..40 {
            assert_eq!(position(&vec![b'x'; length], *b"\"\\"), None);
            for at in 0..length {
                // Fillers that a wrong search could mistake for the byte: neighbours of it, and
                // bytes beyond ASCII.
                for filler in [b'x', b'"' + 1, b'\\' ^ 1, 0xA2, 0, 0xFF] {
                    let mut text = vec![filler; length];
                    text[at] = b'\\';
                    assert_eq!(position(&text, *b"\"\\"), Some(at), "{filler} {length} {at}");
                    text[length - 1] = b'"';
                    assert_eq!(
                        position(&text, *b"\"\\"),
                        Some(at.min(length - 1)),
                        "{filler} {length} {at}"
                    );
                }
            }
        }
    }
}
