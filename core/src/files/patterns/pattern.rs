//! One pattern, over bytes. `src/paddock/policy/glob.py` reads the same.
//!
//! `*` matches any text inside one name. `**` alone between slashes matches any number of whole
//! names, also none. Nothing else is special. The tests of both languages read the table
//! schema/examples/globs.json.

use crate::plan::wire::bytes::{self, Text};
use crate::plan::wire::find_byte;

use super::interned_names::{InternedNames, NameId};

#[derive(Debug, thiserror::Error)]
pub enum PatternError {
    #[error("the pattern is empty")]
    Empty,
    #[error("\"..\" is not allowed in a pattern: {0}")]
    Up(Text),
    #[error("\"**\" must stand alone between slashes: {0}")]
    AnyDepthInside(Text),
    #[error("not an absolute pattern: {0}")]
    NotAbsolute(Text),
    #[error("a name in the pattern is longer than a file name can be")]
    TooLong,
}

/// Where a pattern starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternRoot {
    Slash,
    /// `**/name`.
    Anywhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternPart {
    AnyDepth,
    Name(NameId),
}

const TEMP_PREFIX: &[u8] = b"<tmp>";

/// Adds the parts of a pattern to `parts`, which is empty. None: it is about the private temporary
/// directory, which has no name outside.
pub fn parse(
    text: &Text,
    words: &mut InternedNames,
    parts: &mut Vec<PatternPart>,
) -> Result<Option<PatternRoot>, PatternError> {
    let root = parse_beginning(text, words, parts)?;
    if root == Some(PatternRoot::Anywhere) && parts.len() < 2 {
        return Err(PatternError::NotAbsolute(text.clone()));
    }
    Ok(root)
}

/// The same for a beginning that others continue: `**` alone is allowed.
pub fn parse_beginning(
    text: &Text,
    words: &mut InternedNames,
    parts: &mut Vec<PatternPart>,
) -> Result<Option<PatternRoot>, PatternError> {
    if text.as_bytes().is_empty() {
        return Err(PatternError::Empty);
    }
    let (root, rest) = split_root(text.as_bytes());
    parse_parts(text, rest, words, parts)?;
    if root == Some(PatternRoot::Anywhere) && parts.first() != Some(&PatternPart::AnyDepth) {
        return Err(PatternError::NotAbsolute(text.clone()));
    }
    Ok(root)
}

/// The same for a continuation, which has no beginning of its own.
pub fn parse_name(
    text: &Text,
    words: &mut InternedNames,
    parts: &mut Vec<PatternPart>,
) -> Result<(), PatternError> {
    parse_parts(text, text.as_bytes(), words, parts)?;
    if parts.is_empty() { Err(PatternError::Empty) } else { Ok(()) }
}

fn parse_parts(
    text: &Text,
    rest: &[u8],
    words: &mut InternedNames,
    parts: &mut Vec<PatternPart>,
) -> Result<(), PatternError> {
    let mut rest = Some(rest);
    while let Some(names) = rest {
        let (part, others, wild) = match find_byte::position(names, *b"/*") {
            Some(at) if names[at] == b'/' => (&names[..at], Some(&names[at + 1..]), false),
            Some(_) => {
                let (part, others) = bytes::split(names, b'/');
                (part, others, true)
            }
            None => (names, None, false),
        };
        rest = others;
        match part {
            b"" | b"." => {}
            b".." => return Err(PatternError::Up(text.clone())),
            b"**" if parts.last() == Some(&PatternPart::AnyDepth) => {}
            b"**" => parts.push(PatternPart::AnyDepth),
            _ if part.len() > usize::from(u16::MAX) => return Err(PatternError::TooLong),
            _ if wild && part.windows(2).any(|pair| pair == b"**") => {
                return Err(PatternError::AnyDepthInside(text.clone()));
            }
            _ => parts.push(PatternPart::Name(words.intern(part, wild))),
        }
    }
    Ok(())
}

/// Adds the components of one path, in which a `*` is a plain letter.
pub fn literal(path: &[u8], words: &mut InternedNames, parts: &mut Vec<PatternPart>) {
    let mut rest = Some(path);
    while let Some(names) = rest {
        let (name, others) = bytes::split(names, b'/');
        rest = others;
        if !matches!(name, b"" | b".") {
            parts.push(PatternPart::Name(words.intern(name, false)));
        }
    }
}

fn split_root(text: &[u8]) -> (Option<PatternRoot>, &[u8]) {
    match text {
        [b'/', rest @ ..] => (Some(PatternRoot::Slash), rest),
        _ => match text.strip_prefix(TEMP_PREFIX) {
            Some(rest @ ([] | [b'/', ..])) => (None, rest),
            _ => (Some(PatternRoot::Anywhere), text),
        },
    }
}

pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// The components of a path that a match depends on, counted from the root: those that match a part
/// of the pattern and not a `**`. If one of them is renamed, the pattern does not match any more.
/// None: the path does not match.
pub fn rests_on(
    parts: &[PatternPart],
    words: &mut InternedNames,
    path: &[u8],
    folding: bool,
) -> Option<Vec<usize>> {
    let names: Vec<&[u8]> = components(path).collect();
    let width = names.len() + 1;
    let reached = reach(parts, &names, |word, name| words.is(word, name, folding));
    let (mut part, mut at) = (parts.len(), names.len());
    if !reached[part * width + at] {
        return None;
    }
    let mut rests = Vec::new();
    while part > 0 {
        match parts[part - 1] {
            PatternPart::AnyDepth if reached[(part - 1) * width + at] => part -= 1,
            PatternPart::AnyDepth => at -= 1,
            PatternPart::Name(_) => {
                (part, at) = (part - 1, at - 1);
                rests.push(at);
            }
        }
    }
    rests.reverse();
    Some(rests)
}

/// Does the pattern match the whole path? Case-sensitive.
pub fn matches(parts: &[PatternPart], words: &InternedNames, path: &[u8]) -> bool {
    let names: Vec<&[u8]> = components(path).collect();
    reach(parts, &names, |word, name| words.reads(word, name)).last() == Some(&true)
}

/// `[part * width + name]`, with a width of one more than the number of names: the parts before
/// `part` can match the names before `name`.
fn reach(
    parts: &[PatternPart],
    names: &[&[u8]],
    mut is: impl FnMut(NameId, &[u8]) -> bool,
) -> Vec<bool> {
    let width = names.len() + 1;
    let mut reached = vec![false; (parts.len() + 1) * width];
    reached[0] = true;
    for (index, part) in parts.iter().enumerate() {
        for at in 0..width {
            reached[(index + 1) * width + at] = match part {
                PatternPart::AnyDepth => {
                    reached[index * width + at] || (at > 0 && reached[(index + 1) * width + at - 1])
                }
                PatternPart::Name(word) => {
                    at > 0 && reached[index * width + at - 1] && is(*word, names[at - 1])
                }
            };
        }
    }
    reached
}
