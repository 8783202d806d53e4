//! The places in a text where the syntax of a shell stands. Redaction never removes them.
//!
//! The text is read once from left to right, by its quotes. Substitutions, here-documents,
//! arithmetic and patterns end that: from there on quotes count for nothing, and every byte that
//! could be syntax counts as syntax.

use std::ops::Range;

use super::Reading;

pub struct Syntax {
    found: Vec<usize>,
}

impl Syntax {
    pub fn of(text: &[u8], reading: Reading) -> Syntax {
        let mut syntax = Syntax { found: Vec::new() };
        let doubt = match reading {
            Reading::Text => text.len(),
            Reading::Command => syntax.plain(text),
            Reading::Part => 0,
        };
        syntax.loose(text, doubt..text.len());
        syntax
    }

    /// The first byte of syntax in there, or the end.
    pub fn first(&self, range: Range<usize>) -> usize {
        let next = self.found.partition_point(|at| *at < range.start);
        self.found.get(next).map_or(range.end, |at| range.end.min(*at))
    }

    fn loose(&mut self, text: &[u8], range: Range<usize>) {
        self.found.extend(range.filter(|at| is_loose(&text[*at..])));
    }

    /// → where doubt begins.
    fn plain(&mut self, text: &[u8]) -> usize {
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            let rest = &text[at..];
            let begins = at == 0 || b" \t\n;&|<>()".contains(&text[at - 1]);
            match byte {
                b'\\' => {
                    if rest.starts_with(b"\\\n") {
                        self.found.push(at + 1);
                    }
                    at += 2;
                }
                b'\'' | b'"' => match closed(text, at + 1, *byte) {
                    Ok(end) => at = end,
                    Err(doubt) => return doubt,
                },
                b'$' if rest.starts_with(b"$'") => match closed(text, at + 2, b'$') {
                    Ok(end) => at = end,
                    Err(doubt) => return doubt,
                },
                b'#' if begins => {
                    let line = rest
                        .iter()
                        .position(|byte| *byte == b'\n')
                        .map_or(text.len(), |length| at + length);
                    self.loose(text, at..line);
                    at = line;
                }
                b'$' if rest.starts_with(b"$(") || rest.starts_with(b"${") => return at,
                b'[' if begins && rest.starts_with(b"[[") => return at,
                b'$' if rest.starts_with(b"$$") => at += 2,
                b'`' => return at,
                b'(' if rest.starts_with(b"((") || (at > 0 && b"?*+@!".contains(&text[at - 1])) => {
                    return at;
                }
                b'<' if rest.starts_with(b"<<<") => {
                    self.found.extend(at..at + 3);
                    at += 3;
                }
                b'<' if rest.starts_with(b"<<") => return at,
                _ => {
                    if is_loose(rest) {
                        self.found.push(at);
                    }
                    at += 1;
                }
            }
        }
        text.len()
    }
}

/// Behind what is quoted; or where doubt begins, and that is the end if it is never closed: no
/// shell runs it.
fn closed(text: &[u8], from: usize, quote: u8) -> Result<usize, usize> {
    let mut at = from;
    while let Some(byte) = text.get(at) {
        match (quote, byte) {
            (b'\'' | b'$', b'\'') | (b'"', b'"') => return Ok(at + 1),
            // in $'…' not all shells take a backslash for the same
            (b'$', b'\\') | (b'"', b'`') => return Err(at),
            (b'"', b'\\') => at += 2,
            (b'"', b'$') if matches!(text.get(at + 1), Some(b'(' | b'{')) => return Err(at),
            _ => at += 1,
        }
    }
    Err(text.len())
}

fn is_loose(rest: &[u8]) -> bool {
    match rest {
        [b' ' | b'\t'..=b'\r' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' | b'`', ..] => true,
        [b'$', following, ..] => matches!(following, b'(' | b'{'),
        _ => false,
    }
}
