//! The components of patterns, each stored once. Nearly every name of the file system is in none of
//! them.

use super::case_fold::fold;
use super::pattern::PatternPart;

/// The number of a component.
pub type NameId = u16;

/// The component `*`, which matches every name.
pub const STAR: NameId = 0;

#[derive(Debug)]
struct InternedName {
    start: u32,
    length: u16,
    wild: bool,
}

#[derive(Debug)]
pub struct InternedNames {
    bytes: Vec<u8>,
    list: Vec<InternedName>,
    /// By hash, with open addressing. 0 is free, n stands for component n - 1.
    table: Vec<u16>,
    /// The component `.git`.
    pub git: NameId,
    /// Wildcard components by their last letter, or their first, or neither: one letter excludes
    /// most names.
    by_last: Vec<(u8, NameId)>,
    by_first: Vec<(u8, NameId)>,
    others: Vec<NameId>,
    /// Literal components, folded, by hash. Made at the first case-insensitive directory.
    folded: Option<Vec<(u64, NameId)>>,
    scratch: Vec<u8>,
}

impl InternedNames {
    pub fn new() -> InternedNames {
        let mut words = InternedNames {
            bytes: Vec::with_capacity(8192),
            list: Vec::with_capacity(1024),
            table: vec![0; 2048],
            git: STAR,
            by_last: Vec::new(),
            by_first: Vec::new(),
            others: Vec::new(),
            folded: None,
            scratch: Vec::new(),
        };
        if let Err(slot) = words.find(b"*", true) {
            words.table[slot] = words.push(b"*", true) + 1;
        }
        words.git = words.intern(b".git", false);
        words
    }

    fn text(&self, word: NameId) -> &[u8] {
        let InternedName { start, length, .. } = self.list[usize::from(word)];
        &self.bytes[start as usize..start as usize + usize::from(length)]
    }

    /// The text of a part of a pattern.
    pub fn spell(&self, part: PatternPart) -> &[u8] {
        match part {
            PatternPart::AnyDepth => b"**",
            PatternPart::Name(word) => self.text(word),
        }
    }

    /// None: it has a wildcard.
    pub fn literal_text(&self, word: NameId) -> Option<&[u8]> {
        (!self.list[usize::from(word)].wild).then(|| self.text(word))
    }

    /// The number of a component. Without `wild` a `*` is a plain letter.
    pub fn intern(&mut self, text: &[u8], wild: bool) -> NameId {
        let slot = match self.find(text, wild) {
            Ok(known) => return known,
            Err(slot) => slot,
        };
        let word = self.push(text, wild);
        self.folded = None;
        match (wild, text) {
            (false, _) => {}
            (true, [.., last]) if *last != b'*' => insert(&mut self.by_last, *last, word),
            (true, [first, ..]) if *first != b'*' => insert(&mut self.by_first, *first, word),
            (true, _) => self.others.push(word),
        }
        self.table[slot] = word + 1;
        if self.list.len() * 2 > self.table.len() {
            self.lengthen_table();
        }
        word
    }

    fn push(&mut self, text: &[u8], wild: bool) -> NameId {
        self.list.push(InternedName {
            start: self.bytes.len() as u32,
            length: text.len() as u16,
            wild,
        });
        self.bytes.extend_from_slice(text);
        (self.list.len() - 1) as NameId
    }

    fn lengthen_table(&mut self) {
        self.table = vec![0; self.table.len() * 2];
        for word in 0..self.list.len() as NameId {
            if let Err(slot) = self.find(self.text(word), self.list[usize::from(word)].wild) {
                self.table[slot] = word + 1;
            }
        }
    }

    /// The component, or its free slot in the table.
    fn find(&self, text: &[u8], wild: bool) -> Result<NameId, usize> {
        let mask = self.table.len() - 1;
        let mut slot = hash(text) as usize & mask;
        while let Some(word) = self.table[slot].checked_sub(1) {
            if self.list[usize::from(word)].wild == wild && self.text(word) == text {
                return Ok(word);
            }
            slot = (slot + 1) & mask;
        }
        Err(slot)
    }

    fn literal(&self, name: &[u8]) -> Option<NameId> {
        self.find(name, false).ok()
    }

    /// The components that match a name, all but [`STAR`]. `folding`: ignore case.
    pub fn matching(&mut self, name: &[u8], folding: bool, found: &mut Vec<NameId>) {
        found.clear();
        if folding {
            return self.matching_folded(name, found);
        }
        found.extend(self.literal(name));
        let (Some(first), Some(last)) = (name.first(), name.last()) else { return };
        let wild = starting(&self.by_last, *last)
            .chain(starting(&self.by_first, *first))
            .chain(self.others.iter().copied());
        found.extend(wild.filter(|word| component_matches(self.text(*word), name)));
    }

    fn matching_folded(&mut self, name: &[u8], found: &mut Vec<NameId>) {
        let mut own = std::mem::take(&mut self.scratch);
        if self.folded.is_none() {
            let mut literals = Vec::with_capacity(self.list.len());
            for word in
                (1..self.list.len() as NameId).filter(|word| !self.list[usize::from(*word)].wild)
            {
                fold(self.text(word), &mut own);
                literals.push((hash(&own), word));
            }
            literals.sort_unstable();
            self.folded = Some(literals);
        }
        let mut text = Vec::new();
        fold(name, &mut text);
        let wanted = hash(&text);
        let literals = self.folded.as_deref().unwrap_or_default();
        let same_hash = literals[literals.partition_point(|(hash, _)| *hash < wanted)..].iter();
        for (_, word) in same_hash.take_while(|(hash, _)| *hash == wanted) {
            fold(self.text(*word), &mut own);
            if own == text {
                found.push(*word);
            }
        }
        let wild =
            self.by_last.iter().chain(&self.by_first).map(|(_, word)| word).chain(&self.others);
        for word in wild {
            fold(self.text(*word), &mut own);
            if component_matches(&own, &text) {
                found.push(*word);
            }
        }
        self.scratch = own;
    }

    /// Does the component match the name, case-sensitively?
    pub fn reads(&self, word: NameId, name: &[u8]) -> bool {
        match self.list[usize::from(word)].wild {
            true => component_matches(self.text(word), name),
            false => self.text(word) == name,
        }
    }

    /// Does the component match the name?
    pub fn is(&mut self, word: NameId, name: &[u8], folding: bool) -> bool {
        let mut found = Vec::new();
        self.matching(name, folding, &mut found);
        word == STAR || found.contains(&word)
    }
}

fn insert(list: &mut Vec<(u8, NameId)>, letter: u8, word: NameId) {
    let at = list.partition_point(|(other, _)| *other <= letter);
    list.insert(at, (letter, word));
}

fn starting(list: &[(u8, NameId)], letter: u8) -> impl Iterator<Item = NameId> {
    let first = list.partition_point(|(other, _)| *other < letter);
    list[first..].iter().take_while(move |(other, _)| *other == letter).map(|(_, word)| *word)
}

/// Eight letters at a time, each with a multiplication that spreads it. A command that makes names
/// collide slows only its own lookups, by at most one comparison for each component.
fn hash(name: &[u8]) -> u64 {
    let (words, rest) = name.as_chunks::<8>();
    let mix = |value: u64, letters: u64| {
        let mixed = (value ^ letters).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    };
    let value =
        words.iter().fold(name.len() as u64, |value, word| mix(value, u64::from_le_bytes(*word)));
    // The last letters together with earlier ones, instead of one by one.
    let last = match (name.last_chunk(), rest.first_chunk(), rest.last_chunk()) {
        (Some(last), ..) => u64::from_le_bytes(*last),
        (None, Some(first), Some(last)) => {
            u64::from(u32::from_le_bytes(*first)) << 32 | u64::from(u32::from_le_bytes(*last))
        }
        _ => rest.iter().fold(0, |letters, letter| letters << 8 | u64::from(*letter)),
    };
    mix(value, last)
}

/// Matches `*` against one name. Only the last `*` is retried, so it is quadratic at worst.
fn component_matches(pattern: &[u8], name: &[u8]) -> bool {
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
