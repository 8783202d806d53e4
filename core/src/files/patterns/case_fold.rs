//! Names as a case-insensitive directory compares them.
//!
//! The file systems differ in detail (vfat has its own table, ext4 and f2fs fold all of Unicode and
//! skip invisible characters). Folding a little more than one of them does matches a name too many,
//! never one too few. Composed and decomposed letters (é) are not unified: patterns with such
//! letters are exact about them. Not tested on HFS+.

/// Writes the folded name to `out`. Bytes that are no UTF-8 stay as they are.
pub fn fold(name: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if name.is_ascii() {
        out.extend(name.iter().map(u8::to_ascii_lowercase));
        return;
    }
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            fold_letter(letter, out);
        }
        out.extend_from_slice(chunk.invalid());
    }
}

fn fold_letter(letter: char, out: &mut Vec<u8>) {
    if is_ignorable(letter) {
        return;
    }
    // CaseFolding.txt, status F and C, where it differs from "lower case".
    let folded: &str = match letter {
        'ß' | 'ẞ' => "ss",
        'ſ' => "s",
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' | 'ﬆ' => "st",
        _ => "",
    };
    if !folded.is_empty() {
        out.extend_from_slice(folded.as_bytes());
        return;
    }
    let mut bytes = [0; 4];
    for lower in letter.to_lowercase() {
        out.extend_from_slice(lower.encode_utf8(&mut bytes).as_bytes());
    }
}

/// Default_Ignorable_Code_Point: to the kernel's utf8 tables `.g\u{200c}it` is `.git`.
fn is_ignorable(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(name: &[u8]) -> Vec<u8> {
        let mut out = vec![b'x'];
        fold(name, &mut out);
        out
    }

    #[test]
    fn every_spelling_of_a_folded_name_matches() {
        for name in [".GIT", ".Git", ".g\u{200c}it", "\u{feff}.git"] {
            assert_eq!(folded(name.as_bytes()), b".git", "{name}");
        }
        assert_eq!(folded(".v\u{17f}code".as_bytes()), b".vscode");
        assert_eq!(folded("\u{212a}ey".as_bytes()), b"key");
        assert_eq!(folded("te\u{fb06}".as_bytes()), b"test");
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        assert_eq!(folded(b"A\xffB\xc3"), b"a\xffb\xc3");
    }
}
