//! One pattern: what src/paddock/policy/glob.py reads, over bytes.
//!
//! `*` stands for any text inside one name, `**` alone between slashes for any number of whole names, also none. Nothing else is
//! special. schema/examples/globs.json is the table that the tests of both languages read.

use crate::text::Text;

use super::fold::fold;

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
}

/// Where a pattern starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    Slash,
    /// The private temporary directory, which has no name outside.
    Temp,
    /// `**/name`.
    Anywhere,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    AnyDepth,
    Name(Word),
}

/// A name with or without `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    text: Box<[u8]>,
    folded: Box<[u8]>,
    pub wild: bool,
}

impl Word {
    fn new(text: &[u8], wild: bool) -> Word {
        let mut folded = Vec::new();
        fold(text, &mut folded);
        Word { text: text.into(), folded: folded.into(), wild }
    }

    /// A name as it is, with `*` for an ordinary letter.
    pub fn literal(name: &[u8]) -> Word {
        Word::new(name, false)
    }

    pub fn text(&self, folding: bool) -> &[u8] {
        if folding { &self.folded } else { &self.text }
    }

    /// With `folding`, the name has to be folded.
    pub fn matches(&self, name: &[u8], folding: bool) -> bool {
        let text = self.text(folding);
        if self.wild { component_matches(text, name) } else { text == name }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub root: Root,
    pub parts: Vec<Part>,
}

const TEMP: &[u8] = b"<tmp>";

impl Pattern {
    pub fn parse(text: &Text) -> Result<Pattern, PatternError> {
        let (root, rest) = split_root(text.as_bytes());
        let mut parts = Vec::new();
        for part in rest.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err(PatternError::Up(text.clone())),
                b"**" if parts.last() == Some(&Part::AnyDepth) => {}
                b"**" => parts.push(Part::AnyDepth),
                _ if part.windows(2).any(|pair| pair == b"**") => {
                    return Err(PatternError::AnyDepthInside(text.clone()));
                }
                _ => parts.push(Part::Name(Word::new(part, part.contains(&b'*')))),
            }
        }
        if text.as_bytes().is_empty() {
            return Err(PatternError::Empty);
        }
        if root == Root::Anywhere && (parts.first() != Some(&Part::AnyDepth) || parts.len() < 2) {
            return Err(PatternError::NotAbsolute(text.clone()));
        }
        Ok(Pattern { root, parts })
    }

    /// One path and, below it, `rest`.
    pub fn at(path: &[u8], rest: &[Part]) -> Pattern {
        let names = components(path).map(|name| Part::Name(Word::literal(name)));
        Pattern { root: Root::Slash, parts: names.chain(rest.iter().cloned()).collect() }
    }

    /// Which names of a path the match rests on, counted from the root: those that stand for a part of the pattern and not for
    /// a `**`. If one of them is renamed, the pattern does not match any more. Empty when the path does not match at all.
    pub fn rests_on(&self, path: &[u8], folding: bool) -> Vec<usize> {
        let mut scratch = Vec::new();
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in components(path) {
            if folding {
                fold(name, &mut scratch);
                names.push(scratch.clone());
            } else {
                names.push(name.to_vec());
            }
        }
        let (rows, width) = (self.parts.len() + 1, names.len() + 1);
        // reached[part * width + name]: the parts before `part` can stand for the names before `name`.
        let mut reached = vec![false; rows * width];
        reached[0] = true;
        for (index, part) in self.parts.iter().enumerate() {
            for at in 0..width {
                let here = reached[index * width + at];
                reached[(index + 1) * width + at] |= match part {
                    Part::AnyDepth => here || (at > 0 && reached[(index + 1) * width + at - 1]),
                    Part::Name(word) => {
                        at > 0 && reached[index * width + at - 1] && word.matches(&names[at - 1], folding)
                    }
                };
            }
        }
        let (mut part, mut at) = (self.parts.len(), names.len());
        let mut rests = Vec::new();
        if !reached[part * width + at] {
            return rests;
        }
        while part > 0 {
            match &self.parts[part - 1] {
                Part::AnyDepth if reached[(part - 1) * width + at] => part -= 1,
                Part::AnyDepth => at -= 1,
                Part::Name(_) => {
                    (part, at) = (part - 1, at - 1);
                    rests.push(at);
                }
            }
        }
        rests.reverse();
        rests
    }
}

fn split_root(text: &[u8]) -> (Root, &[u8]) {
    match text {
        [b'/', rest @ ..] => (Root::Slash, rest),
        _ => match text.strip_prefix(TEMP) {
            Some(rest @ ([] | [b'/', ..])) => (Root::Temp, rest),
            _ => (Root::Anywhere, text),
        },
    }
}

pub fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// `*` against one name. Only the last `*` is ever taken back, which keeps it quadratic at worst.
fn component_matches(pattern: &[u8], name: &[u8]) -> bool {
    // Most patterns and names part at the first or last letter.
    if let (Some(first), Some(last)) = (pattern.first(), pattern.last())
        && ((*first != b'*' && name.first() != Some(first)) || (*last != b'*' && name.last() != Some(last)))
    {
        return false;
    }
    let (mut at, mut in_name, mut resume) = (0, 0, 0);
    let mut star = None;
    while in_name < name.len() {
        if pattern.get(at) == Some(&b'*') {
            (star, resume) = (Some(at), in_name);
            at += 1;
        } else if pattern.get(at) == Some(&name[in_name]) {
            at += 1;
            in_name += 1;
        } else if let Some(star) = star {
            resume += 1;
            (at, in_name) = (star + 1, resume);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}
