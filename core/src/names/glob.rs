//! Patterns that are asked one by one about whole paths, as rules do; no tree is walked.

use std::ops::Range;

use super::pattern::{self, Part, Root};
use super::words::Words;
use super::{MAX_PARTS, NamesError};
use crate::text::Text;

#[derive(Debug)]
pub struct Globs {
    words: Words,
    parts: Vec<Part>,
    list: Vec<(Root, Range<usize>)>,
}

impl Globs {
    pub fn new() -> Globs {
        Globs { words: Words::new(), parts: Vec::new(), list: Vec::new() }
    }

    /// The number by which the pattern is asked.
    pub fn add(&mut self, pattern: &Text) -> Result<usize, NamesError> {
        let start = self.parts.len();
        if start + pattern.as_bytes().len() > MAX_PARTS {
            return Err(NamesError::TooMany(self.list.len()));
        }
        let root = pattern::parse(pattern, &mut self.words, &mut self.parts)?;
        self.list.push((root, start..self.parts.len()));
        Ok(self.list.len() - 1)
    }

    /// Only absolute paths match: what lies in a private temporary directory has no name here.
    pub fn matches(&self, pattern: usize, path: &[u8]) -> bool {
        let (root, parts) = &self.list[pattern];
        *root != Root::Temp && path.starts_with(b"/") && pattern::matches(&self.parts[parts.clone()], &self.words, path)
    }
}
