//! Patterns that are matched one by one against whole paths, as rules do. No tree is walked.

use super::interned_names::InternedNames;
use super::pattern::{self, PatternPart};
use super::{MAX_PREFIXES, NamePatternsError};
use crate::plan::wire::bytes::Text;

#[derive(Debug)]
pub struct Globs {
    words: InternedNames,
    /// None: the pattern is about the private temporary directory, whose path is not known here.
    list: Vec<Option<Box<[PatternPart]>>>,
    parts: usize,
}

impl Globs {
    pub fn new() -> Globs {
        Globs { words: InternedNames::new(), list: Vec::new(), parts: 0 }
    }

    /// Returns the number of the pattern.
    pub fn add(&mut self, pattern: &Text) -> Result<usize, NamePatternsError> {
        if self.parts + pattern.as_bytes().len() > MAX_PREFIXES {
            return Err(NamePatternsError::TooMany(self.list.len()));
        }
        let mut parts = Vec::new();
        let root = pattern::parse(pattern, &mut self.words, &mut parts)?;
        self.parts += parts.len();
        self.list.push(root.map(|_| parts.into_boxed_slice()));
        Ok(self.list.len() - 1)
    }

    /// Only absolute paths match.
    pub fn matches(&self, pattern: usize, path: &[u8]) -> bool {
        let parts = self.list[pattern].as_deref();
        parts.is_some_and(|parts| {
            path.starts_with(b"/") && pattern::matches(parts, &self.words, path)
        })
    }
}
