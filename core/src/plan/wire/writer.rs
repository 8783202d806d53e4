//! Writes JSON in plain ASCII: a value stays on one line, and no terminal control character is
//! written.

use std::fmt::Write as _;

/// How a byte that is not UTF-8 is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NonUtf8 {
    /// The four characters `\xNN`, for people.
    Text,
    /// A lone surrogate in Python's `surrogateescape` form, for programs that need the bytes back.
    Surrogate,
}

/// Length of the mark that replaces the cut part: `…+N more`, escaped.
const MAX_MARK_CHARS: usize = 34;

/// Appends `bytes` as a JSON string.
pub fn string(out: &mut String, bytes: &[u8], invalid: NonUtf8) {
    string_within(out, bytes, invalid, usize::MAX);
}

/// Appends `bytes` as a JSON string of at most `max_chars` characters between its quotes. The mark
/// counts the bytes that do not fit.
pub fn string_within(out: &mut String, bytes: &[u8], invalid: NonUtf8, max_chars: usize) {
    out.push('"');
    // Most strings need no escape.
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if bytes.len() <= max_chars
        && bytes.iter().all(is_plain)
        && let Ok(plain) = std::str::from_utf8(bytes)
    {
        out.push_str(plain);
        out.push('"');
        return;
    }
    let start = out.len();
    let cut_at = max_chars.saturating_sub(MAX_MARK_CHARS);
    // The last position at which the mark still fits.
    let (mut fits, mut consumed) = (start, 0);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            escape(out, character);
            if out.len() - start > max_chars {
                return cut(out, fits, bytes.len() - consumed);
            }
            if out.len() - start <= cut_at {
                fits = out.len();
                consumed += character.len_utf8();
            }
        }
        for byte in chunk.invalid() {
            let _ = match invalid {
                NonUtf8::Text => write!(out, "\\\\x{byte:02x}"),
                NonUtf8::Surrogate => write!(out, "\\udc{byte:02x}"),
            };
            if out.len() - start > max_chars {
                return cut(out, fits, bytes.len() - consumed);
            }
            if out.len() - start <= cut_at {
                fits = out.len();
                consumed += 1;
            }
        }
    }
    out.push('"');
}

fn cut(out: &mut String, fits: usize, missing: usize) {
    out.truncate(fits);
    let _ = write!(out, "\\u2026+{missing} more\"");
}

fn escape(out: &mut String, character: char) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        ' '..='~' => out.push(character),
        _ => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

/// Appends a list of strings.
pub fn strings<'a>(out: &mut String, items: impl IntoIterator<Item = &'a [u8]>, invalid: NonUtf8) {
    list(out, items, |out, item| string(out, item, invalid));
}

pub fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut write_item: impl FnMut(&mut String, T),
) {
    out.push('[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_item(out, item);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], max_chars: usize) -> String {
        let mut out = String::new();
        string_within(&mut out, bytes, NonUtf8::Text, max_chars);
        out
    }

    #[test]
    fn everything_but_printable_ascii_is_escaped() {
        assert_eq!(text(b"a\"\\\n\x1b\x7f", 99), r#""a\"\\\n\u001b\u007f""#);
        assert_eq!(text("é😀".as_bytes(), 99), r#""\u00e9\ud83d\ude00""#);
        assert_eq!(text(b"a\xffb\xe2\x80", 99), r#""a\\xffb\\xe2\\x80""#);
        let mut out = String::new();
        string(&mut out, b"\xff\xe2", NonUtf8::Surrogate);
        assert_eq!(out, r#""\udcff\udce2""#);
    }

    #[test]
    fn a_long_string_is_cut_and_the_rest_is_counted() {
        assert_eq!(text(&[b'a'; 50], 50), format!("\"{}\"", "a".repeat(50)));
        let cut = text(&[b'a'; 51], 50);
        assert_eq!(cut, format!("\"{}\\u2026+35 more\"", "a".repeat(16)));
        assert!(cut.len() <= 52);
    }

    #[test]
    fn no_escape_is_cut_in_half() {
        for max_chars in 0..120 {
            let cut = text("\u{1}é😀\n".repeat(30).as_bytes(), max_chars.max(MAX_MARK_CHARS));
            let back: String = serde_json::from_str(&cut).unwrap();
            assert!(cut.is_ascii() && back.contains("more"), "{cut}");
        }
    }
}
