//! A list of arguments as one text, for regular expressions.
//!
//! Blanks join the arguments. Inside an argument a blank is `\x20`, a backslash `\\`, a control
//! character `\xNN` (`\t`, `\n` and `\r` by their letters). So every blank is between two
//! arguments, and no argument can look like two.

use std::fmt::Write as _;

pub fn joined<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut text = Vec::with_capacity(64);
    for (index, argument) in arguments.into_iter().enumerate() {
        if index > 0 {
            text.push(b' ');
        }
        argument.iter().for_each(|byte| push(&mut text, *byte));
    }
    text
}

fn push(text: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'\\' => text.extend(br"\\"),
        b'\t' => text.extend(br"\t"),
        b'\n' => text.extend(br"\n"),
        b'\r' => text.extend(br"\r"),
        0..=b' ' | 0x7f => {
            text.extend([
                b'\\',
                b'x',
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]);
        }
        _ => text.push(byte),
    }
}

/// The expression that matches these arguments and no others. It is ASCII for any arguments.
pub fn exactly<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut expression = String::from("^");
    for byte in joined(arguments) {
        match byte {
            b'\\' | b'.' | b'+' | b'*' | b'?' | b'(' | b')' | b'|' | b'[' | b']' | b'{' | b'}'
            | b'^' | b'$' => {
                expression.extend(['\\', char::from(byte)]);
            }
            b' '..=b'~' => expression.push(char::from(byte)),
            _ => {
                let _ = write!(expression, "\\x{byte:02x}");
            }
        }
    }
    expression.push('$');
    expression
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_always_stands_between_two_arguments() {
        for (arguments, expected) in [
            (vec![&b"git"[..], b"log"], &b"git log"[..]),
            (vec![b"git", b"status x"], br"git status\x20x"),
            (vec![b"a", b"", b"b"], b"a  b"),
            (vec![br"a\x20b"], br"a\\x20b"),
            (vec![b"\t\n\r\x01\x7f\x1b"], br"\t\n\r\x01\x7f\x1b"),
            (vec![b"'\"$`"], b"'\"$`"),
            (vec![b"\xff\xc3\xa9"], b"\xff\xc3\xa9"),
            (vec![], b""),
        ] {
            assert_eq!(joined(arguments.iter().copied()), expected);
        }
    }

    #[test]
    fn an_exact_expression_matches_nothing_else() {
        let every: Vec<u8> = (1..=255).collect();
        for arguments in [
            vec![&b"git"[..], b"push", b"--force", b"origin"],
            vec![b"sh", b"-c", b"a.b+c*d?(e)|[f]{g}^h$ i\\j#k&l~m"],
            vec![b"x", &every],
            vec![b""],
            vec![],
        ] {
            let text = joined(arguments.iter().copied());
            let expression = exactly(arguments.iter().copied());
            let compiled = crate::gate::rules::regex(expression.as_bytes()).unwrap();
            assert!(expression.is_ascii() && compiled.is_match(&text), "{expression}");
            for at in 0..=text.len() {
                let mut other = text.clone();
                other.insert(at, b'x');
                assert!(!compiled.is_match(&other), "{expression}");
                if at < text.len() {
                    other = text.clone();
                    other[at] ^= 1;
                    assert!(!compiled.is_match(&other), "{expression}");
                    other = text.clone();
                    other.remove(at);
                    assert!(!compiled.is_match(&other), "{expression}");
                }
            }
        }
    }

    /// All lists of up to three arguments of up to two bytes out of the ones that matter.
    #[test]
    fn different_lists_have_different_texts() {
        let letters = b"a \\\nx2";
        let mut words: Vec<Vec<u8>> = vec![vec![]];
        words.extend(letters.iter().map(|one| vec![*one]));
        words.extend(letters.iter().flat_map(|one| letters.iter().map(|two| vec![*one, *two])));
        let mut texts = std::collections::HashSet::new();
        for one in &words {
            assert!(texts.insert(joined([one.as_slice()])));
            for two in &words {
                assert!(texts.insert(joined([one.as_slice(), two])));
                for three in &words {
                    assert!(texts.insert(joined([one.as_slice(), two, three])));
                }
            }
        }
    }
}
