//! All patterns as one tree. A node is a prefix that patterns have in common.

use super::NameRule;
use super::interned_names::{NameId, STAR};
use super::pattern::PatternPart;

/// A node of the tree. If a pattern ends there, also that pattern.
pub type PrefixId = u32;

/// The roots of patterns that begin with `/`, and of those without a beginning.
pub const SLASH: PrefixId = 0;
pub const ANYWHERE: PrefixId = 1;

const NONE: PrefixId = 0;

/// A set of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleSet(u8);

impl RuleSet {
    pub fn contain(self, rule: NameRule) -> bool {
        self.0 & (1 << rule as u8) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn join(&mut self, other: RuleSet) {
        self.0 |= other.0;
    }

    fn of(rule: NameRule) -> RuleSet {
        RuleSet(1 << rule as u8)
    }
}

#[derive(Debug)]
struct PrefixNode {
    /// The part that it adds to its parent.
    part: PatternPart,
    above: PrefixId,
    /// The `**` directly below it.
    any_depth: PrefixId,
    /// The rules of patterns that end here, and of those that continue with a name.
    kinds: RuleSet,
    ahead: RuleSet,
    /// The number of names since the last `**`.
    weight: u16,
    floats: bool,
    /// A `*` is directly below it.
    starred: bool,
}

#[derive(Debug)]
pub struct PrefixTree {
    list: Vec<PrefixNode>,
    /// Nodes that end with a name, by parent and name, with open addressing. [`NONE`] is free.
    table: Vec<PrefixId>,
    all: RuleSet,
}

impl PrefixTree {
    pub fn new() -> PrefixTree {
        let root = |floats| PrefixNode {
            part: PatternPart::AnyDepth,
            above: NONE,
            any_depth: NONE,
            kinds: RuleSet::default(),
            ahead: RuleSet::default(),
            weight: 0,
            floats,
            starred: false,
        };
        let mut list = Vec::with_capacity(2048);
        list.extend([root(false), root(true)]);
        PrefixTree { list, table: vec![NONE; 4096], all: RuleSet::default() }
    }

    fn get(&self, stem: PrefixId) -> &PrefixNode {
        &self.list[stem as usize]
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The node that adds these parts, which is made if it is missing.
    pub fn grow(&mut self, from: PrefixId, parts: &[PatternPart]) -> PrefixId {
        parts.iter().fold(from, |stem, part| match *part {
            PatternPart::AnyDepth => self.grow_any_depth(stem),
            PatternPart::Name(word) => self.grow_name(stem, word),
        })
    }

    fn grow_any_depth(&mut self, above: PrefixId) -> PrefixId {
        let PrefixNode { part, any_depth, .. } = *self.get(above);
        if above > ANYWHERE && part == PatternPart::AnyDepth {
            return above; // `**` after `**` is one `**`
        }
        if any_depth != NONE {
            return any_depth;
        }
        let new = self.push(above, PatternPart::AnyDepth, 0);
        self.list[above as usize].any_depth = new;
        new
    }

    fn grow_name(&mut self, above: PrefixId, word: NameId) -> PrefixId {
        let slot = match self.find(above, word) {
            Ok(known) => return known,
            Err(slot) => slot,
        };
        self.list[above as usize].starred |= word == STAR;
        let new = self.push(above, PatternPart::Name(word), self.get(above).weight + 1);
        self.table[slot] = new;
        if self.list.len() * 2 > self.table.len() {
            self.lengthen_table();
        }
        new
    }

    fn push(&mut self, above: PrefixId, part: PatternPart, weight: u16) -> PrefixId {
        let floats = self.get(above).floats;
        let (kinds, ahead) = (RuleSet::default(), RuleSet::default());
        self.list.push(PrefixNode {
            part,
            above,
            any_depth: NONE,
            kinds,
            ahead,
            weight,
            floats,
            starred: false,
        });
        (self.list.len() - 1) as PrefixId
    }

    fn lengthen_table(&mut self) {
        self.table = vec![NONE; self.table.len() * 2];
        for stem in ANYWHERE + 1..self.list.len() as PrefixId {
            if let PrefixNode { part: PatternPart::Name(word), above, .. } = *self.get(stem)
                && let Err(slot) = self.find(above, word)
            {
                self.table[slot] = stem;
            }
        }
    }

    /// The node, or its free slot in the table.
    fn find(&self, above: PrefixId, word: NameId) -> Result<PrefixId, usize> {
        let mask = self.table.len() - 1;
        let key = u64::from(above) << 16 | u64::from(word);
        let mut slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        loop {
            match self.table[slot] {
                NONE => return Err(slot),
                stem if self.get(stem).above == above
                    && self.get(stem).part == PatternPart::Name(word) =>
                {
                    return Ok(stem);
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// Marks the end of a pattern. False: it was known.
    pub fn mark(&mut self, end: PrefixId, rule: NameRule) -> bool {
        if self.get(end).kinds.contain(rule) {
            return false;
        }
        let kind = RuleSet::of(rule);
        self.list[end as usize].kinds.join(kind);
        self.all.join(kind);
        let mut stem = end;
        while stem > ANYWHERE {
            let PrefixNode { part, above, .. } = *self.get(stem);
            if matches!(part, PatternPart::Name(_)) {
                if self.get(above).ahead.contain(rule) {
                    break; // and so are all nodes above it
                }
                self.list[above as usize].ahead.join(kind);
            }
            stem = above;
        }
        true
    }

    pub fn hold_nothing_but(&self, rule: NameRule) -> bool {
        self.all == RuleSet::of(rule)
    }

    /// The node after a node, by the name with this number.
    pub fn after(&self, stem: PrefixId, word: NameId) -> Option<PrefixId> {
        self.find(stem, word).ok()
    }

    pub fn any_depth(&self, stem: PrefixId) -> Option<PrefixId> {
        Some(self.get(stem).any_depth).filter(|below| *below != NONE)
    }

    pub fn kinds(&self, stem: PrefixId) -> RuleSet {
        self.get(stem).kinds
    }

    /// The rules of patterns that continue with a name.
    pub fn ahead(&self, stem: PrefixId) -> RuleSet {
        self.get(stem).ahead
    }

    /// The number of names that a match depends on, besides those before the last `**`.
    pub fn weight(&self, stem: PrefixId) -> u16 {
        self.get(stem).weight
    }

    /// Does every name continue from here?
    pub fn is_starred(&self, stem: PrefixId) -> bool {
        self.get(stem).starred
    }

    pub fn floats(&self, stem: PrefixId) -> bool {
        self.get(stem).floats
    }

    fn upwards(&self, stem: PrefixId) -> impl Iterator<Item = PrefixId> {
        let above = |stem: &PrefixId| Some(self.get(*stem).above).filter(|above| *above > ANYWHERE);
        std::iter::successors(Some(stem).filter(|stem| *stem > ANYWHERE), above)
    }

    pub fn goes_through(&self, stem: PrefixId, word: NameId) -> bool {
        self.upwards(stem).any(|stem| self.get(stem).part == PatternPart::Name(word))
    }

    /// From the beginning of the pattern.
    pub fn parts(&self, end: PrefixId) -> Vec<PatternPart> {
        let mut parts: Vec<PatternPart> =
            self.upwards(end).map(|stem| self.get(stem).part).collect();
        parts.reverse();
        parts
    }

    /// The names that patterns end with, and the nodes before them. `NAME/**` is everything in
    /// NAME.
    pub fn last_names(&self, rule: NameRule) -> impl Iterator<Item = (PrefixId, NameId)> {
        self.list.iter().filter(move |stem| stem.kinds.contain(rule)).filter_map(|stem| match stem
            .part
        {
            PatternPart::Name(word) => Some((stem.above, word)),
            PatternPart::AnyDepth => match *self.get(stem.above) {
                PrefixNode { part: PatternPart::Name(word), above, .. } => Some((above, word)),
                _ => None,
            },
        })
    }

    /// The remaining parts of denied and protected patterns at a node. A `**` at its end is
    /// included.
    pub fn rests(&self, from: PrefixId, rests: &mut Vec<(NameRule, Vec<PatternPart>)>) {
        let own = usize::from(self.get(from).part == PatternPart::AnyDepth && from > ANYWHERE);
        for end in ANYWHERE + 1..self.list.len() as PrefixId {
            let Some(length) = self.upwards(end).position(|stem| stem == from) else { continue };
            for rule in [NameRule::Deny, NameRule::Protect] {
                if self.kinds(end).contain(rule) && length + own > 0 {
                    let mut rest: Vec<PatternPart> = self
                        .upwards(end)
                        .take(length + own)
                        .map(|stem| self.get(stem).part)
                        .collect();
                    rest.reverse();
                    rests.push((rule, rest));
                }
            }
        }
    }
}
