//! Names by pattern: which names stay closed, which are read-only wherever they can be written, and what that rests on.
//!
//! Patterns are matched on the way down: a directory has a state, and one look at an entry's name gives what the entry is and the
//! state of what lies below it. A plan has hundreds of patterns and a tree has thousands of names, nearly all of which are in none
//! of them; those are done with after one look into a table of words.

mod fold;
mod glob;
mod pattern;
mod state;
#[cfg(test)]
mod tests;
mod words;

use std::ops::Range;

use crate::text::Text;

pub use glob::Globs;
pub use pattern::PatternError;
use pattern::{Part, Root};
pub use state::StateId;
use state::{Active, State, States};
use words::{STAR, WordId, Words};

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
const SYSTEM: [&str; 17] = [
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
    "/run",
];

/// Everything a plan says about names.
#[derive(Debug)]
pub struct Names {
    words: Words,
    /// The parts of all patterns, one pattern after the other.
    parts: Vec<Part>,
    rules: Vec<Pattern>,
    /// Not taken in yet.
    added: Vec<Pattern>,
    states: States,
    /// Whether anything inside a git directory is protected, and with it the way there.
    pub guards_git: bool,
    /// Used by each look, and kept for their memory.
    found: Vec<WordId>,
    ahead: State,
    new_loops: Vec<Active>,
}

#[derive(Clone, Debug)]
struct Pattern {
    rule: Rule,
    root: Root,
    parts: Range<usize>,
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

/// Numbers of rules and words are short.
const MAX_RULES: usize = 8192;
const MAX_PARTS: usize = 60_000;

impl Names {
    pub fn new(deny: &[Text], protect: &[Text], opened: &[Text]) -> Result<Names, NamesError> {
        let mut names = Names {
            words: Words::new(),
            parts: Vec::new(),
            rules: Vec::with_capacity(deny.len() + protect.len() + opened.len() + SYSTEM.len()),
            added: Vec::new(),
            states: States::default(),
            guards_git: false,
            found: Vec::new(),
            ahead: State { loops: 0, steps: Vec::new() },
            new_loops: Vec::new(),
        };
        for (rule, patterns) in [(Rule::Deny, deny), (Rule::Protect, protect), (Rule::Opened, opened)] {
            for text in patterns {
                let start = names.parts.len();
                let root = pattern::parse(text, &mut names.words, &mut names.parts)?;
                names.rules.push(Pattern { rule, root, parts: start..names.parts.len() });
                names.check_number()?;
            }
        }
        for path in SYSTEM {
            let start = names.parts.len();
            pattern::literal(path.as_bytes(), &mut names.words, &mut names.parts);
            names.rules.push(Pattern { rule: Rule::System, root: Root::Slash, parts: start..names.parts.len() });
        }
        names.prepare();
        Ok(names)
    }

    /// Is there nothing to look for?
    pub fn is_empty(&self) -> bool {
        self.rules.iter().all(|pattern| pattern.rule == Rule::System)
    }

    /// One more path to look for, from [`Names::settle`] on.
    pub fn add_path(&mut self, rule: Rule, path: &[u8]) {
        self.add(rule, path, 0..0);
    }

    /// What patterns expect below an entry, which is a symlink, they expect below `path` as well: it leads there. From
    /// [`Names::settle`] on. Patterns that do not name the link are not concerned.
    pub fn add_alias(&mut self, dir: StateId, entry: StateId, path: &[u8]) {
        let known = &self.states.get(dir).1.active;
        let (state, loops) = self.states.get(entry);
        let new = loops.active.iter().filter(|active| known.binary_search(active).is_err()).chain(&state.steps);
        for Active { rule, at } in new.copied().collect::<Vec<_>>() {
            let Pattern { rule, parts, .. } = &self.rules[usize::from(rule)];
            if matches!(rule, Rule::Deny | Rule::Protect) {
                self.add(*rule, path, parts.start + usize::from(at)..parts.end);
            }
        }
    }

    fn add(&mut self, rule: Rule, path: &[u8], rest: Range<usize>) {
        let start = self.parts.len();
        pattern::literal(path, &mut self.words, &mut self.parts);
        self.parts.extend_from_within(rest);
        self.added.push(Pattern { rule, root: Root::Slash, parts: start..self.parts.len() });
    }

    /// Takes in what was added; false if all of it was known. Every state given out before is void.
    pub fn settle(&mut self) -> Result<bool, NamesError> {
        let before = self.rules.len();
        for new in std::mem::take(&mut self.added) {
            let same = |known: &Pattern| {
                known.rule == new.rule
                    && known.root == new.root
                    && self.parts[known.parts.clone()] == self.parts[new.parts.clone()]
            };
            if !self.rules.iter().any(same) {
                self.rules.push(new);
            }
            self.check_number()?;
        }
        let changed = self.rules.len() > before;
        if changed {
            self.prepare();
        }
        Ok(changed)
    }

    fn check_number(&self) -> Result<(), NamesError> {
        match self.rules.len() > MAX_RULES || self.parts.len() > MAX_PARTS {
            true => Err(NamesError::TooMany(self.rules.len())),
            false => Ok(()),
        }
    }

    fn prepare(&mut self) {
        self.states.clear();
        let git = Part::Name(self.words.intern(b".git", false));
        let about_git =
            |pattern: &Pattern| pattern.rule == Rule::Protect && self.parts[pattern.parts.clone()].contains(&git);
        self.guards_git = self.rules.iter().any(about_git);
    }

    /// Where a walk begins. `own`: the tree was asked for by name, so it is searched although it may lie in one of the system's.
    pub fn start(&mut self, path: &[u8], own: bool) -> Start {
        let mut hits = Hits::default();
        self.ahead.steps.clear();
        self.new_loops.clear();
        for (index, pattern) in self.rules.iter().enumerate().filter(|(_, pattern)| pattern.root != Root::Temp) {
            let parts = &self.parts[pattern.parts.clone()];
            let first = Active { rule: index as u16, at: 0 };
            hits.advance(pattern.rule, parts, first, &mut self.ahead.steps, &mut self.new_loops);
        }
        let loops = std::mem::take(&mut self.new_loops);
        self.ahead.loops = self.states.loops(true, loops, |active| word_at(&self.rules, &self.parts, active));
        let mut look = hits.into_look(self.intern());
        let mut denied = look.deny.is_some();
        for name in pattern::components(path) {
            look = self.look_at(look.next, name, false, own);
            denied |= look.deny.is_some();
        }
        Start { look, denied }
    }

    /// Looks at one entry of a directory. `folding`: the directory takes names that differ only in case for one.
    pub fn look(&mut self, state: StateId, name: &[u8], folding: bool) -> Look {
        self.look_at(state, name, folding, false)
    }

    fn look_at(&mut self, id: StateId, name: &[u8], folding: bool, own: bool) -> Look {
        self.words.matching(name, folding, &mut self.found);
        let (state, loops) = self.states.get(id);
        let mut hits = Hits::default();
        for rule in &loops.ending {
            let pattern = &self.rules[usize::from(*rule)];
            hits.accept(pattern.rule, *rule, &self.parts[pattern.parts.clone()]);
        }
        if self.found.is_empty() && !self.states.is_starred(id) {
            if state.steps.is_empty() {
                return hits.into_look(id);
            }
            self.ahead.loops = state.loops;
            self.ahead.steps.clear();
            return hits.into_look(self.intern());
        }
        self.found.push(STAR);
        self.ahead.loops = state.loops;
        self.ahead.steps.clear();
        self.new_loops.clear();
        for word in &self.found {
            let here = |step: &&Active| word_at(&self.rules, &self.parts, **step) == Some(*word);
            for met in loops.after(*word).chain(state.steps.iter().filter(here).copied()) {
                let pattern = &self.rules[usize::from(met.rule)];
                let next = Active { at: met.at + 1, ..met };
                let parts = &self.parts[pattern.parts.clone()];
                hits.advance(pattern.rule, parts, next, &mut self.ahead.steps, &mut self.new_loops);
            }
        }
        self.new_loops.retain(|active| loops.active.binary_search(active).is_err());
        let leaves_floating = hits.system && !own && loops.floating;
        if leaves_floating || !self.new_loops.is_empty() {
            let mut all = [&loops.active[..], &self.new_loops].concat();
            let floats = |active: &Active| self.rules[usize::from(active.rule)].root == Root::Anywhere;
            let floating = loops.floating && !leaves_floating;
            if leaves_floating {
                all.retain(|active| !floats(active));
                self.ahead.steps.retain(|active| !floats(active));
            }
            self.ahead.loops = self.states.loops(floating, all, |active| word_at(&self.rules, &self.parts, active));
        }
        hits.into_look(self.intern())
    }

    /// The state made of what was gathered.
    fn intern(&mut self) -> StateId {
        self.states.state(&mut self.ahead, |active| word_at(&self.rules, &self.parts, active))
    }

    /// Was the state given out after patterns were added last?
    pub fn is_current(&self, state: StateId) -> bool {
        self.states.is_current(state)
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
        let (state, loops) = self.states.get(state);
        loops.floating || !loops.active.is_empty() || !state.steps.is_empty()
    }

    /// Which names above a match must keep theirs, or it would not match any more: their depths, counted from the root.
    pub fn rests_on(&mut self, rule: u16, path: &[u8], folding: bool) -> Vec<usize> {
        let parts = &self.parts[self.rules[usize::from(rule)].parts.clone()];
        let mut depths = pattern::rests_on(parts, &mut self.words, path, folding).unwrap_or_default();
        // The match itself is covered.
        let own = pattern::components(path).count().saturating_sub(1);
        depths.retain(|depth| *depth < own);
        depths
    }
}

/// The word that a pattern expects at a place; None at its end and at a `**`.
fn word_at(rules: &[Pattern], parts: &[Part], active: Active) -> Option<WordId> {
    match parts[rules[usize::from(active.rule)].parts.clone()].get(usize::from(active.at)) {
        Some(Part::Name(word)) => Some(*word),
        Some(Part::AnyDepth) | None => None,
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
    fn advance(&mut self, kind: Rule, parts: &[Part], next: Active, steps: &mut Vec<Active>, loops: &mut Vec<Active>) {
        let left = match &parts[usize::from(next.at)..] {
            [Part::AnyDepth, rest @ ..] => {
                loops.push(next);
                rest
            }
            left => {
                if !left.is_empty() {
                    steps.push(next);
                }
                self.opened_below |= kind == Rule::Opened && !left.is_empty();
                left
            }
        };
        match (kind, left) {
            (_, []) => self.accept(kind, next.rule, parts),
            (Rule::Deny, _) => self.way_to_denied = true,
            (Rule::Protect, _) => self.way_to_protected = true,
            (Rule::Link | Rule::Opened | Rule::System, _) => {}
        }
    }

    fn accept(&mut self, kind: Rule, rule: u16, parts: &[Part]) {
        let weight = parts.iter().rev().take_while(|part| **part != Part::AnyDepth).count();
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
