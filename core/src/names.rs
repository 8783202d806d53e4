//! Names by pattern: which names stay closed, which are read-only wherever they can be written, and what that rests on.
//!
//! Patterns are matched on the way down: a directory has a [`State`], and one look at an entry's name gives what the entry is and
//! the state of what lies below it. States are few and kept once. Nearly every name means nothing, and is done with after one
//! look into a table of the names that begin a pattern.

mod fold;
mod pattern;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::text::Text;

pub use pattern::PatternError;
use pattern::{Part, Pattern, Root, Word};

/// What a pattern is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Nobody may open it.
    Deny,
    /// Nobody may write it.
    Protect,
    /// Taken out of what is protected.
    Opened,
    /// A symlink that leads to something protected or denied: it stays as it is.
    Link,
    /// The system's own: patterns that begin with `**` are not looked for below it.
    System,
}

/// A system's trees hold hundreds of thousands of names, none of them a user's, and can not be written.
const SYSTEM: [&str; 16] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/proc",
    "/sys",
    "/dev",
    "/var/lib",
    "/var/cache",
    "/nix",
    "/gnu",
    "/snap",
];
const RUNTIME: &str = "/run";

/// Everything a plan says about names.
#[derive(Debug)]
pub struct Names {
    rules: Vec<(Rule, Pattern)>,
    added: Vec<(Rule, Pattern)>,
    exact: Index,
    folded: Index,
    states: Vec<State>,
    known: HashMap<State, StateId>,
    epoch: u32,
    /// Whether anything inside a git directory is protected, and with it the way there.
    pub guards_git: bool,
    /// What one look gathers; kept for its memory.
    ahead: State,
    scratch: Vec<u8>,
}

/// A state, good until patterns are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    index: u32,
    epoch: u32,
}

/// How far patterns have come at a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    active: Vec<Active>,
    /// Are patterns that begin with `**` looked for here?
    floating: bool,
}

/// The part of a pattern that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Active {
    rule: u16,
    at: u16,
}

/// What one name turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The rules that match, each with the pattern that rests on the fewest names.
    pub deny: Option<u16>,
    pub protect: Option<u16>,
    pub link: Option<u16>,
    pub opened: bool,
    /// The name is a part of a pattern that goes on below it.
    pub way_to_denied: bool,
    pub way_to_protected: bool,
    /// An exception names something right below.
    pub opened_below: bool,
    /// For what lies below, if it is a directory.
    pub next: StateId,
}

impl Look {
    /// No rule is about this name.
    pub fn is_nothing(&self) -> bool {
        let Look { deny, protect, link, way_to_denied, way_to_protected, .. } = self;
        deny.is_none() && protect.is_none() && link.is_none() && !way_to_denied && !way_to_protected
    }
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub look: Look,
    /// The place, or one above it, is denied.
    pub denied: bool,
}

/// The names that begin a floating pattern.
#[derive(Debug, Default)]
struct Index {
    /// Open addressing; 0 is free, n stands for groups[n - 1].
    table: Vec<u16>,
    groups: Vec<(Box<[u8]>, Vec<u16>)>,
    wild: Vec<u16>,
}

#[derive(Debug, thiserror::Error)]
pub enum NamesError {
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error("there are more patterns of names than this program takes: {0}")]
    TooMany(usize),
}

impl NamesError {
    pub fn hint(&self) -> &'static str {
        match self {
            NamesError::Pattern(_) => "the plan was not compiled by this version of paddock; compile it again",
            NamesError::TooMany(_) => "deny whole directories instead of single names",
        }
    }
}

const MAX_RULES: usize = 4096;

impl Names {
    pub fn new(deny: &[Text], protect: &[Text], opened: &[Text]) -> Result<Names, NamesError> {
        let given = [(Rule::Deny, deny), (Rule::Protect, protect), (Rule::Opened, opened)];
        let mut rules = Vec::new();
        for (rule, patterns) in given {
            for text in patterns {
                rules.push((rule, Pattern::parse(text)?));
            }
        }
        for path in SYSTEM.iter().chain([&RUNTIME]) {
            rules.push((Rule::System, Pattern::at(path.as_bytes(), &[])));
        }
        let mut names = Names {
            rules,
            added: Vec::new(),
            exact: Index::default(),
            folded: Index::default(),
            states: Vec::new(),
            known: HashMap::new(),
            epoch: 0,
            guards_git: false,
            ahead: State { active: Vec::new(), floating: true },
            scratch: Vec::new(),
        };
        names.prepare()?;
        Ok(names)
    }

    /// Is there anything to look for?
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(|(rule, _)| *rule == Rule::System)
    }

    /// One more path to look for, from [`Names::settle`] on.
    pub fn add_path(&mut self, rule: Rule, path: &[u8]) {
        self.added.push((rule, Pattern::at(path, &[])));
    }

    /// What patterns expect below a directory, they expect below `path` as well: a symlink leads there. From
    /// [`Names::settle`] on.
    pub fn add_alias(&mut self, state: StateId, path: &[u8]) {
        for Active { rule, at } in &self.states[state.index as usize].active {
            let (rule, pattern) = &self.rules[usize::from(*rule)];
            if matches!(rule, Rule::Deny | Rule::Protect) {
                self.added.push((*rule, Pattern::at(path, &pattern.parts[usize::from(*at)..])));
            }
        }
    }

    /// Takes in what was added; false if all of it was known. Every state given out before is void.
    pub fn settle(&mut self) -> Result<bool, NamesError> {
        let before = self.rules.len();
        for rule in std::mem::take(&mut self.added) {
            if !self.rules.contains(&rule) {
                self.rules.push(rule);
            }
        }
        let changed = self.rules.len() > before;
        if changed {
            self.prepare()?;
        }
        Ok(changed)
    }

    fn prepare(&mut self) -> Result<(), NamesError> {
        if self.rules.len() > MAX_RULES {
            return Err(NamesError::TooMany(self.rules.len()));
        }
        self.exact = Index::new(&self.rules, false);
        self.folded = Index::new(&self.rules, true);
        self.states.clear();
        self.known.clear();
        self.epoch += 1;
        let git = Part::Name(Word::literal(b".git"));
        self.guards_git =
            self.rules.iter().any(|(rule, pattern)| *rule == Rule::Protect && pattern.parts.contains(&git));
        Ok(())
    }

    /// Where a walk begins: at a path, or at a directory above one. `own`: the tree was asked for by name, so it is searched
    /// although it may lie in one of the system's.
    pub fn start(&mut self, path: &[u8], own: bool) -> Start {
        self.ahead.active.clear();
        let mut hits = Hits::default();
        for (index, (rule, pattern)) in self.rules.iter().enumerate() {
            if pattern.root == Root::Slash {
                hits.advance(&mut self.ahead.active, *rule, pattern, Active { rule: index as u16, at: 0 });
            }
        }
        let mut look = hits.into_look(self.intern(true));
        let mut denied = look.deny.is_some();
        for name in pattern::components(path) {
            look = self.look_at(look.next, name, false, own);
            denied |= look.deny.is_some();
        }
        Start { look, denied }
    }

    /// Looks at one entry of a directory. `folding`: the directory takes names that differ only in case for one.
    pub fn look(&mut self, state: StateId, name: &[u8], folding: bool) -> Look {
        if !folding {
            return self.look_at(state, name, false, false);
        }
        let mut folded = std::mem::take(&mut self.scratch);
        fold::fold(name, &mut folded);
        let look = self.look_at(state, &folded, true, false);
        self.scratch = folded;
        look
    }

    fn look_at(&mut self, state: StateId, name: &[u8], folding: bool, own: bool) -> Look {
        let here = &self.states[state.index as usize];
        let index = if folding { &self.folded } else { &self.exact };
        let ahead = &mut self.ahead.active;
        let mut hits = Hits::default();
        let mut moved = false;
        ahead.clear();
        if here.floating {
            let mut begin = |rule: u16| {
                let (kind, pattern) = &self.rules[usize::from(rule)];
                moved = true;
                hits.advance(ahead, *kind, pattern, Active { rule, at: 2 });
            };
            index.named(name).iter().copied().for_each(&mut begin);
            for rule in &index.wild {
                if let Part::Name(word) = &self.rules[usize::from(*rule)].1.parts[1]
                    && word.matches(name, folding)
                {
                    begin(*rule);
                }
            }
        }
        for active in &here.active {
            let (kind, pattern) = &self.rules[usize::from(active.rule)];
            let next = Active { rule: active.rule, at: active.at + 1 };
            match &pattern.parts[usize::from(active.at)] {
                // It may go on, and so may what comes after it.
                Part::AnyDepth => {
                    ahead.push(*active);
                    match usize::from(next.at) == pattern.parts.len() {
                        true => hits.accept(*kind, next.rule, pattern),
                        false => ahead.push(next),
                    }
                }
                Part::Name(word) if word.matches(name, folding) => {
                    moved = true;
                    hits.advance(ahead, *kind, pattern, next);
                }
                Part::Name(_) => {}
            }
        }
        if !moved && *ahead == here.active {
            return hits.into_look(state);
        }
        let floating = here.floating && (own || !hits.system);
        hits.into_look(self.intern(floating))
    }

    /// The state made of what was gathered.
    fn intern(&mut self, floating: bool) -> StateId {
        let ahead = &mut self.ahead;
        ahead.floating = floating;
        ahead.active.retain(|active| floating || self.rules[usize::from(active.rule)].1.root != Root::Anywhere);
        ahead.active.sort_unstable();
        ahead.active.dedup();
        if let Some(id) = self.known.get(ahead) {
            return *id;
        }
        let id = StateId { index: self.states.len() as u32, epoch: self.epoch };
        self.states.push(ahead.clone());
        self.known.insert(ahead.clone(), id);
        id
    }

    /// Was the state given out after patterns were added last?
    pub fn is_current(&self, state: StateId) -> bool {
        state.epoch == self.epoch
    }

    /// Is it the name of a git directory, or of the file that leads to one?
    pub fn is_git(&self, name: &[u8], folding: bool) -> bool {
        if !folding {
            return name == b".git";
        }
        let mut folded = Vec::new();
        fold::fold(name, &mut folded);
        folded == b".git"
    }

    /// Could anything match below a directory in this state?
    pub fn expects(&self, state: StateId) -> bool {
        let state = &self.states[state.index as usize];
        (state.floating && (!self.exact.groups.is_empty() || !self.exact.wild.is_empty())) || !state.active.is_empty()
    }

    /// How many names above a match must keep theirs, or it would not match any more: their depths, counted from the root.
    pub fn rests_on(&self, rule: u16, path: &[u8], folding: bool) -> Vec<usize> {
        let mut depths = self.rules[usize::from(rule)].1.rests_on(path, folding);
        // The match itself is covered.
        let own = pattern::components(path).count().saturating_sub(1);
        depths.retain(|depth| *depth < own);
        depths
    }
}

#[derive(Default)]
struct Hits {
    deny: Option<(u16, usize)>,
    protect: Option<(u16, usize)>,
    link: Option<(u16, usize)>,
    opened: bool,
    system: bool,
    way_to_denied: bool,
    way_to_protected: bool,
    opened_below: bool,
}

impl Hits {
    /// A pattern has come to `next`, by a name.
    fn advance(&mut self, ahead: &mut Vec<Active>, kind: Rule, pattern: &Pattern, next: Active) {
        let left = &pattern.parts[usize::from(next.at)..];
        let left = match left {
            [Part::AnyDepth, rest @ ..] => {
                ahead.push(next);
                if !rest.is_empty() {
                    ahead.push(Active { at: next.at + 1, ..next });
                }
                rest
            }
            _ => {
                if !left.is_empty() {
                    ahead.push(next);
                }
                self.opened_below |= kind == Rule::Opened && !left.is_empty();
                left
            }
        };
        match (kind, left) {
            (_, []) => self.accept(kind, next.rule, pattern),
            (Rule::Deny, _) => self.way_to_denied = true,
            (Rule::Protect, _) => self.way_to_protected = true,
            (Rule::Link | Rule::Opened | Rule::System, _) => {}
        }
    }

    fn accept(&mut self, kind: Rule, rule: u16, pattern: &Pattern) {
        let weight = pattern.parts.iter().rev().take_while(|part| **part != Part::AnyDepth).count();
        let least = |best: &mut Option<(u16, usize)>| {
            if best.is_none_or(|(_, other)| weight < other) {
                *best = Some((rule, weight));
            }
        };
        match kind {
            Rule::Deny => least(&mut self.deny),
            Rule::Protect => least(&mut self.protect),
            Rule::Link => least(&mut self.link),
            Rule::Opened => self.opened = true,
            Rule::System => self.system = true,
        }
    }

    fn into_look(self, next: StateId) -> Look {
        Look {
            deny: self.deny.map(|(rule, _)| rule),
            protect: self.protect.map(|(rule, _)| rule),
            link: self.link.map(|(rule, _)| rule),
            opened: self.opened,
            way_to_denied: self.way_to_denied,
            way_to_protected: self.way_to_protected,
            opened_below: self.opened_below,
            next,
        }
    }
}

impl Index {
    fn new(rules: &[(Rule, Pattern)], folding: bool) -> Index {
        let mut index = Index::default();
        let mut literals: Vec<(&[u8], u16)> = Vec::new();
        for (number, (_, pattern)) in rules.iter().enumerate() {
            if pattern.root != Root::Anywhere {
                continue;
            }
            match &pattern.parts[1] {
                Part::Name(word) if !word.wild => literals.push((word.text(folding), number as u16)),
                _ => index.wild.push(number as u16),
            }
        }
        literals.sort_unstable();
        for (name, number) in literals {
            match index.groups.last_mut() {
                Some((last, numbers)) if **last == *name => numbers.push(number),
                _ => index.groups.push((name.into(), vec![number])),
            }
        }
        index.table = vec![0; (index.groups.len() * 4).next_power_of_two()];
        let mask = index.table.len() - 1;
        for (number, (name, _)) in index.groups.iter().enumerate() {
            let mut slot = hash(name) & mask;
            while index.table[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            index.table[slot] = number as u16 + 1;
        }
        index
    }

    /// The floating patterns that begin with just this name.
    fn named(&self, name: &[u8]) -> &[u16] {
        let mask = self.table.len() - 1;
        let mut slot = hash(name) & mask;
        loop {
            match self.table[slot] {
                0 => return &[],
                number => {
                    let (known, rules) = &self.groups[usize::from(number) - 1];
                    if **known == *name {
                        return rules;
                    }
                }
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// FNV-1a. Who makes names collide here makes his own lookups slow, by as many comparisons as there are patterns.
fn hash(name: &[u8]) -> usize {
    let mut value: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name {
        value = (value ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (value ^ (value >> 29)) as usize
}
