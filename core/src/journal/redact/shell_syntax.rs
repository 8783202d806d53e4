//! The places in a text where the syntax of a shell stands. Redaction never removes them.
//!
//! The text is read once from left to right, by its quotes. Substitutions, here-documents,
//! arithmetic and patterns end that: from there on quotes count for nothing, and every byte that
//! could be syntax counts as syntax.

use std::ops::Range;

use super::Reading;

pub struct ShellSyntax {
    positions: Vec<usize>,
}

impl ShellSyntax {
    pub fn of(text: &[u8], reading: Reading) -> ShellSyntax {
        let mut syntax = ShellSyntax { positions: Vec::new() };
        let ambiguous_from = match reading {
            Reading::Text => text.len(),
            Reading::Command => syntax.add_quoted_part(text),
            Reading::Part => 0,
        };
        syntax.add_unquoted(text, ambiguous_from..text.len());
        syntax
    }

    /// The first syntax byte in the range, or the end of the range.
    pub fn first(&self, range: Range<usize>) -> usize {
        let next = self.positions.partition_point(|at| *at < range.start);
        self.positions.get(next).map_or(range.end, |at| range.end.min(*at))
    }

    fn add_unquoted(&mut self, text: &[u8], range: Range<usize>) {
        self.positions.extend(range.filter(|at| is_syntax(&text[*at..])));
    }

    /// Returns the position where quoting becomes ambiguous.
    fn add_quoted_part(&mut self, text: &[u8]) -> usize {
        let mut at = 0;
        while let Some(byte) = text.get(at) {
            let rest = &text[at..];
            let begins = at == 0 || b" \t\n;&|<>()".contains(&text[at - 1]);
            match byte {
                b'\\' => {
                    if rest.starts_with(b"\\\n") {
                        self.positions.push(at + 1);
                    }
                    at += 2;
                }
                b'\'' | b'"' => match quote_end(text, at + 1, *byte) {
                    Ok(end) => at = end,
                    Err(ambiguous_from) => return ambiguous_from,
                },
                b'$' if rest.starts_with(b"$'") => match quote_end(text, at + 2, b'$') {
                    Ok(end) => at = end,
                    Err(ambiguous_from) => return ambiguous_from,
                },
                b'#' if begins => {
                    let line = rest
                        .iter()
                        .position(|byte| *byte == b'\n')
                        .map_or(text.len(), |length| at + length);
                    self.add_unquoted(text, at..line);
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
                    self.positions.extend(at..at + 3);
                    at += 3;
                }
                b'<' if rest.starts_with(b"<<") => return at,
                _ => {
                    if is_syntax(rest) {
                        self.positions.push(at);
                    }
                    at += 1;
                }
            }
        }
        text.len()
    }
}

/// Ok: the position after the closing quote. Err: the position where quoting becomes ambiguous. An
/// unclosed quote is ambiguous from the end of the text on: no shell runs it.
fn quote_end(text: &[u8], from: usize, quote: u8) -> Result<usize, usize> {
    let mut at = from;
    while let Some(byte) = text.get(at) {
        match (quote, byte) {
            (b'\'' | b'$', b'\'') | (b'"', b'"') => return Ok(at + 1),
            // Shells read a backslash in $'…' differently.
            (b'$', b'\\') | (b'"', b'`') => return Err(at),
            (b'"', b'\\') => at += 2,
            (b'"', b'$') if matches!(text.get(at + 1), Some(b'(' | b'{')) => return Err(at),
            _ => at += 1,
        }
    }
    Err(text.len())
}

fn is_syntax(rest: &[u8]) -> bool {
    match rest {
        [b' ' | b'\t'..=b'\r' | b';' | b'&' | b'|' | b'<' | b'>' | b'(' | b')' | b'`', ..] => true,
        [b'$', following, ..] => matches!(following, b'(' | b'{'),
        _ => false,
    }
}
