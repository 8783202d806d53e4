//! Name patterns: which names are denied, which are read-only in writable trees, and which
//! directories a match depends on.
//!
//! Patterns are matched on the way down. A directory has a state, and one lookup of an entry's name
//! gives its match and the state below it. A plan has hundreds of patterns and a tree has thousands
//! of names. Nearly all names are in no pattern, and take one lookup in a table of components.
//! Patterns share common beginnings (`files/patterns/prefix_tree.rs`), so hundreds of them are at a
//! handful of prefixes.

mod added_names;
pub mod case_fold;
mod glob;
mod interned_names;
mod match_state;
mod pattern;
mod prefix_tree;
#[cfg(test)]
mod tests;

use super::git;
use crate::plan::wire::bytes::Text;
use crate::plan::{FilesPlan, ProtectedNames};

pub use added_names::AddedNames;
pub use glob::Globs;
use interned_names::{InternedNames, NameId, STAR};
pub use match_state::StateId;
use match_state::{PatternState, PatternStates};
pub use pattern::PatternError;
use pattern::{PatternPart, PatternRoot};
pub use prefix_tree::PrefixId;
use prefix_tree::{ANYWHERE, PrefixTree, RuleSet, SLASH};

/// What a pattern does with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// No process may open it.
    Deny,
    /// No process may write it.
    Protect,
    /// An exception from protected names.
    Opened,
    /// A symlink that leads to a protected or denied path: it stays as it is.
    Link,
    /// May be written, but is executed outside later: a change is reported.
    Flag,
    /// A tree of the system: patterns that begin with `**` do not apply below it.
    System,
}

/// A path that was added to the patterns of a plan, and a pattern below it, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedPattern {
    pub rule: NameRule,
    pub path: Box<[u8]>,
    pub rest: Box<[u8]>,
}

/// The trees of the system have hundreds of thousands of names, none of them a user's, and can not
/// be written.
const SYSTEM_TREES: [&str; 17] = [
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

/// All name patterns of a plan.
#[derive(Debug)]
pub struct NamePatterns {
    words: InternedNames,
    stems: PrefixTree,
    /// Patterns were added since the states were built.
    grown: bool,
    /// The patterns that were added to those of the plan.
    added: Vec<AddedPattern>,
    states: PatternStates,
    /// Directories of installed packages: nothing is flagged below them.
    pub packages: Vec<Text>,
    /// Is anything inside a git directory protected?
    pub guards_git: bool,
    /// Git directories of other names than `.git`.
    pub git: git::KnownGitDirs,
    /// Scratch memory of each lookup.
    found: Vec<NameId>,
    parts: Vec<PatternPart>,
    ahead: PatternState,
    new_loops: Vec<PrefixId>,
}

/// The match of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameMatch {
    /// The patterns that match, each the one that depends on the fewest names.
    pub deny: Option<PrefixId>,
    pub protect: Option<PrefixId>,
    pub link: Option<PrefixId>,
    pub opened: bool,
    pub flagged: bool,
    /// A pattern goes on below this name.
    pub way_to_denied: bool,
    pub way_to_protected: bool,
    /// An exception matches something directly below.
    pub opened_below: bool,
    /// The state below, if it is a directory.
    pub next: StateId,
}

impl NameMatch {
    /// Does no rule apply to this name?
    pub fn is_nothing(&self) -> bool {
        let NameMatch { deny, protect, link, way_to_denied, way_to_protected, .. } = self;
        deny.is_none() && protect.is_none() && link.is_none() && !way_to_denied && !way_to_protected
    }
}

/// The start of a walk.
#[derive(Clone, Copy, Debug)]
pub struct WalkStart {
    pub look: NameMatch,
    /// The path, or one above it, is denied.
    pub denied: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum NamePatternsError {
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error("the plan has too many name patterns: {0}")]
    TooMany(usize),
}

impl NamePatternsError {
    pub fn hint(&self) -> &'static str {
        match self {
            NamePatternsError::Pattern(_) => {
                "another version of paddock compiled the plan; compile it again"
            }
            NamePatternsError::TooMany(_) => "deny whole directories instead of single names",
        }
    }
}

/// Does a path lie in one of the system's own trees?
pub fn is_system(path: &[u8]) -> bool {
    SYSTEM_TREES
        .iter()
        .any(|tree| matches!(path.strip_prefix(tree.as_bytes()), Some([] | [b'/', ..])))
}

/// Component numbers have 16 bits.
const MAX_PREFIXES: usize = 60_000;

impl NamePatterns {
    /// The patterns of a plan, with these protected and flagged names. `searched`: denied names that
    /// cannot lie in these trees are left out.
    pub fn of_plan(
        requested: &FilesPlan,
        protect: &[ProtectedNames],
        flagged: &[Text],
        searched: Option<&[Vec<u8>]>,
    ) -> Result<NamePatterns, NamePatternsError> {
        let mut names = NamePatterns::new(&requested.deny, protect, &requested.opened, flagged)?;
        names.packages.clone_from(&requested.packages);
        for group in &requested.deny_names {
            names.deny(group, searched)?;
        }
        Ok(names)
    }

    pub fn new(
        deny: &[Text],
        protect: &[ProtectedNames],
        opened: &[Text],
        flagged: &[Text],
    ) -> Result<NamePatterns, NamePatternsError> {
        let mut names = NamePatterns {
            words: InternedNames::new(),
            stems: PrefixTree::new(),
            grown: false,
            added: Vec::new(),
            states: PatternStates::default(),
            packages: Vec::new(),
            guards_git: false,
            git: git::KnownGitDirs::default(),
            found: Vec::new(),
            parts: Vec::new(),
            ahead: PatternState::default(),
            new_loops: Vec::new(),
        };
        for (rule, patterns) in
            [(NameRule::Deny, deny), (NameRule::Opened, opened), (NameRule::Flag, flagged)]
        {
            for text in patterns {
                names.parts.clear();
                if let Some(root) = pattern::parse(text, &mut names.words, &mut names.parts)? {
                    names.put(rule, root);
                }
            }
        }
        for group in protect {
            names.put_group(NameRule::Protect, group, None)?;
        }
        for path in SYSTEM_TREES {
            names.parts.clear();
            pattern::literal(path.as_bytes(), &mut names.words, &mut names.parts);
            names.put(NameRule::System, PatternRoot::Slash);
        }
        names.settle()?;
        Ok(names)
    }

    /// Adds denied names, if they can lie in one of the trees that are `searched`. A plan denies
    /// the same names below dozens of directories, and most of these do not exist. Takes effect
    /// with [`NamePatterns::settle`].
    pub fn deny(
        &mut self,
        group: &ProtectedNames,
        searched: Option<&[Vec<u8>]>,
    ) -> Result<(), NamePatternsError> {
        self.put_group(NameRule::Deny, group, searched)
    }

    /// Each beginning and each name is parsed once, however many patterns they form.
    fn put_group(
        &mut self,
        rule: NameRule,
        group: &ProtectedNames,
        searched: Option<&[Vec<u8>]>,
    ) -> Result<(), NamePatternsError> {
        let mut stems = Vec::with_capacity(group.below.len() + group.but.len());
        for (rule, beginnings) in [(rule, &group.below), (NameRule::Opened, &group.but)] {
            for text in beginnings {
                self.parts.clear();
                let root = pattern::parse_beginning(text, &mut self.words, &mut self.parts)?;
                let may_match = |tree: &Vec<u8>| self.may_match_in(tree);
                if let Some(root) = root
                    && searched.is_none_or(|trees| trees.iter().any(may_match))
                {
                    stems.push((rule, self.stems.grow(start_of(root), &self.parts)));
                }
            }
        }
        for text in &group.names {
            self.parts.clear();
            pattern::parse_name(text, &mut self.words, &mut self.parts)?;
            for (rule, stem) in &stems {
                let end = self.stems.grow(*stem, &self.parts);
                self.mark(*rule, end);
            }
            self.check_number()?;
        }
        Ok(())
    }

    /// Can a pattern that begins with `self.parts` match in a tree?
    fn may_match_in(&self, tree: &[u8]) -> bool {
        for (part, name) in self.parts.iter().zip(pattern::components(tree)) {
            match part {
                PatternPart::AnyDepth => return true,
                PatternPart::Name(word) if self.words.reads(*word, name) => {}
                PatternPart::Name(_) => return false,
            }
        }
        true
    }

    /// Are there no patterns?
    pub fn is_empty(&self) -> bool {
        self.stems.hold_nothing_but(NameRule::System)
    }

    /// Adds a path. Takes effect with [`NamePatterns::settle`].
    pub fn add_path(&mut self, rule: NameRule, path: &[u8]) {
        self.parts.clear();
        pattern::literal(path, &mut self.words, &mut self.parts);
        if self.put(rule, PatternRoot::Slash) {
            self.added.push(AddedPattern { rule, path: path.into(), rest: Box::default() });
        }
    }

    /// The patterns that were added so far. With those of the plan they give the same patterns
    /// again.
    pub fn added(&self) -> &[AddedPattern] {
        &self.added
    }

    /// Adds a pattern that another instance had added. Takes effect with [`NamePatterns::settle`].
    pub fn add(&mut self, added: &AddedPattern) -> Result<(), NamePatternsError> {
        if added.rest.is_empty() {
            self.add_path(added.rule, &added.path);
            return Ok(());
        }
        let mut rest = Vec::new();
        let text = Text::from_bytes(added.rest.to_vec()).map_err(|_| PatternError::Empty)?;
        pattern::parse_name(&text, &mut self.words, &mut rest)?;
        self.add_pattern(added.rule, &added.path, rest);
        Ok(())
    }

    /// Adds a literal path with a pattern below it.
    fn add_pattern(&mut self, rule: NameRule, path: &[u8], rest: Vec<PatternPart>) {
        self.parts.clear();
        pattern::literal(path, &mut self.words, &mut self.parts);
        self.parts.extend(&rest);
        if self.put(rule, PatternRoot::Slash) {
            let spelled: Vec<&[u8]> = rest.iter().map(|part| self.words.spell(*part)).collect();
            self.added.push(AddedPattern {
                rule,
                path: path.into(),
                rest: spelled.join(&b'/').into(),
            });
        }
    }

    /// Adds a pattern below a path; an empty one is the path itself. Takes effect with
    /// [`NamePatterns::settle`].
    pub fn add_below(
        &mut self,
        rule: NameRule,
        path: &[u8],
        rest: &Text,
    ) -> Result<(), NamePatternsError> {
        if rest.as_bytes().is_empty() {
            self.add_path(rule, path);
            return Ok(());
        }
        let mut parts = Vec::new();
        pattern::parse_name(rest, &mut self.words, &mut parts)?;
        self.add_pattern(rule, path, parts);
        Ok(())
    }

    /// Patterns below an entry, which is a symlink, also apply below `path`, its target. Takes
    /// effect with [`NamePatterns::settle`]. Patterns that do not name the link are not affected.
    pub fn add_alias(&mut self, dir: StateId, entry: StateId, path: &[u8]) {
        let known = &self.states.get(dir).1.active;
        let (state, loops) = self.states.get(entry);
        let new = loops
            .active
            .iter()
            .filter(|active| known.binary_search(active).is_err())
            .chain(&state.steps);
        let mut rests = Vec::new();
        for stem in new {
            self.stems.rests(*stem, &mut rests);
        }
        for (rule, rest) in rests {
            self.add_pattern(rule, path, rest);
        }
    }

    /// Adds a directory that is git's by its parts: the protected parts of a git directory are
    /// protected there. Takes effect with [`NamePatterns::settle`].
    pub fn add_git_directory(&mut self, path: &[u8]) -> Result<(), NamePatternsError> {
        if !self.git.add(path) || self.git.is_covered(path) {
            return Ok(());
        }
        for name in git::protected() {
            self.add_below(NameRule::Protect, path, &name)?;
        }
        // Links in it count from now on, also those that a first walk has passed.
        self.grown = true;
        Ok(())
    }

    /// True: it is new.
    fn put(&mut self, rule: NameRule, root: PatternRoot) -> bool {
        let end = self.stems.grow(start_of(root), &self.parts);
        self.mark(rule, end)
    }

    fn mark(&mut self, rule: NameRule, end: PrefixId) -> bool {
        let new = self.stems.mark(end, rule);
        if new {
            self.grown = true;
            self.guards_git |=
                rule == NameRule::Protect && self.stems.goes_through(end, self.words.git);
        }
        new
    }

    /// Applies the added patterns. False: all of them were known. Every earlier state is invalid
    /// afterwards.
    pub fn settle(&mut self) -> Result<bool, NamePatternsError> {
        self.check_number()?;
        let grown = std::mem::take(&mut self.grown);
        if grown {
            self.states.clear();
        }
        Ok(grown)
    }

    fn check_number(&self) -> Result<(), NamePatternsError> {
        match self.stems.len() {
            MAX_PREFIXES.. => Err(NamePatternsError::TooMany(self.stems.len())),
            _ => Ok(()),
        }
    }

    /// The start of a walk. `own`: the tree was requested by name, so it is searched although it
    /// may be in a system tree.
    pub fn start(&mut self, path: &[u8], own: bool) -> WalkStart {
        let mut hits = PatternHits::default();
        self.ahead.steps.clear();
        self.new_loops.clear();
        for root in [SLASH, ANYWHERE] {
            hits.reach(&self.stems, root, &mut self.ahead.steps, &mut self.new_loops);
        }
        let loops = std::mem::take(&mut self.new_loops);
        self.ahead.loops = self.states.loops(true, loops, &self.stems);
        let mut look = hits.into_look(self.intern());
        let mut denied = look.deny.is_some();
        for name in pattern::components(path) {
            look = self.look_at(look.next, name, false, own);
            denied |= look.deny.is_some();
        }
        WalkStart { look, denied }
    }

    /// Is a path denied, or one above it?
    pub fn denies(&mut self, path: &[u8]) -> bool {
        self.start(path, true).denied
    }

    /// The names that are denied in a directory, whether they exist or not, without those with a
    /// wildcard.
    pub fn denied_in(&mut self, dir: &[u8]) -> Vec<Vec<u8>> {
        let start = self.start(dir, true);
        let (state, loops) = self.states.get(start.look.next);
        let here = |above| {
            loops.active.binary_search(&above).is_ok() || state.steps.binary_search(&above).is_ok()
        };
        let last = self.stems.last_names(NameRule::Deny).filter(|(above, _)| here(*above));
        last.filter_map(|(_, word)| self.words.literal_text(word)).map(<[u8]>::to_vec).collect()
    }

    /// Matches one entry of a directory. `folding`: the directory ignores case.
    pub fn look(&mut self, state: StateId, name: &[u8], folding: bool) -> NameMatch {
        self.look_at(state, name, folding, false)
    }

    fn look_at(&mut self, id: StateId, name: &[u8], folding: bool, own: bool) -> NameMatch {
        self.words.matching(name, folding, &mut self.found);
        let (state, loops) = self.states.get(id);
        let mut hits = PatternHits::default();
        for stem in &loops.ending {
            hits.accept(&self.stems, *stem);
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
            for stem in loops.active.iter().chain(&state.steps) {
                if let Some(next) = self.stems.after(*stem, *word) {
                    hits.reach(&self.stems, next, &mut self.ahead.steps, &mut self.new_loops);
                }
            }
        }
        self.new_loops.retain(|active| loops.active.binary_search(active).is_err());
        let leaves_floating = hits.system && !own && loops.floating;
        if leaves_floating || !self.new_loops.is_empty() {
            let mut all = [&loops.active[..], &self.new_loops].concat();
            let floating = loops.floating && !leaves_floating;
            if leaves_floating {
                all.retain(|stem| !self.stems.floats(*stem));
                self.ahead.steps.retain(|stem| !self.stems.floats(*stem));
            }
            self.ahead.loops = self.states.loops(floating, all, &self.stems);
        }
        hits.into_look(self.intern())
    }

    /// The state of the collected prefixes.
    fn intern(&mut self) -> StateId {
        self.states.state(&mut self.ahead, &self.stems)
    }

    /// Is the state newer than the last added pattern?
    pub fn is_current(&self, state: StateId) -> bool {
        self.states.is_current(state)
    }

    /// Is it the name of a git directory, or of the file that leads to one?
    pub fn is_git(&self, name: &[u8], folding: bool) -> bool {
        git::is_git_name(name, folding)
    }

    /// Is a directory inside one of installed packages?
    pub fn is_shipped(&self, path: &[u8]) -> bool {
        path.split(|byte| *byte == b'/')
            .any(|name| self.packages.iter().any(|package| package.as_bytes() == name))
    }

    /// Could a pattern match below a directory in this state?
    pub fn expects(&self, state: StateId) -> bool {
        let (state, loops) = self.states.get(state);
        loops.floating || !loops.active.is_empty() || !state.steps.is_empty()
    }

    /// Could a deny match below a directory in this state?
    pub fn expects_denied(&self, state: StateId) -> bool {
        let denied = |stem: &PrefixId| {
            self.stems.kinds(*stem).contain(NameRule::Deny)
                || self.stems.ahead(*stem).contain(NameRule::Deny)
        };
        self.states.get(state).1.active.iter().any(denied) || self.leads_to_denied(state)
    }

    /// Does a deny continue with a name directly in a directory of this state? Patterns that apply
    /// at every depth do not count.
    pub fn leads_to_denied(&self, state: StateId) -> bool {
        self.states
            .get(state)
            .0
            .steps
            .iter()
            .any(|stem| self.stems.ahead(*stem).contain(NameRule::Deny))
    }

    /// The names above a match that must not be renamed, or it would not match any more: their
    /// depths, counted from the root.
    pub fn rests_on(&mut self, end: PrefixId, path: &[u8], folding: bool) -> Vec<usize> {
        let parts = self.stems.parts(end);
        let mut depths =
            pattern::rests_on(&parts, &mut self.words, path, folding).unwrap_or_default();
        // The match itself is covered.
        let own = pattern::components(path).count().saturating_sub(1);
        depths.retain(|depth| *depth < own);
        depths
    }
}

fn start_of(root: PatternRoot) -> PrefixId {
    match root {
        PatternRoot::Slash => SLASH,
        PatternRoot::Anywhere => ANYWHERE,
    }
}

#[derive(Default)]
struct PatternHits {
    deny: Option<(PrefixId, u16)>,
    protect: Option<(PrefixId, u16)>,
    link: Option<(PrefixId, u16)>,
    opened: bool,
    flagged: bool,
    system: bool,
    ways: RuleSet,
    opened_below: bool,
}

impl PatternHits {
    /// Adds a prefix that patterns have reached by a name.
    fn reach(
        &mut self,
        stems: &PrefixTree,
        stem: PrefixId,
        steps: &mut Vec<PrefixId>,
        loops: &mut Vec<PrefixId>,
    ) {
        self.accept(stems, stem);
        let ahead = stems.ahead(stem);
        if !ahead.is_empty() {
            steps.push(stem);
            self.opened_below |= ahead.contain(NameRule::Opened);
            self.ways.join(ahead);
        }
        if let Some(any_depth) = stems.any_depth(stem) {
            loops.push(any_depth);
            self.accept(stems, any_depth);
            self.ways.join(stems.ahead(any_depth));
        }
    }

    fn accept(&mut self, stems: &PrefixTree, stem: PrefixId) {
        let kinds = stems.kinds(stem);
        if kinds.is_empty() {
            return;
        }
        let weight = stems.weight(stem);
        let least = |best: &mut Option<(PrefixId, u16)>| {
            if best.is_none_or(|(_, other)| weight < other) {
                *best = Some((stem, weight));
            }
        };
        if kinds.contain(NameRule::Deny) {
            least(&mut self.deny);
        }
        if kinds.contain(NameRule::Protect) {
            least(&mut self.protect);
        }
        if kinds.contain(NameRule::Link) {
            least(&mut self.link);
        }
        self.opened |= kinds.contain(NameRule::Opened);
        self.flagged |= kinds.contain(NameRule::Flag);
        self.system |= kinds.contain(NameRule::System);
    }

    fn into_look(self, next: StateId) -> NameMatch {
        NameMatch {
            deny: self.deny.map(|(stem, _)| stem),
            protect: self.protect.map(|(stem, _)| stem),
            link: self.link.map(|(stem, _)| stem),
            opened: self.opened,
            flagged: self.flagged,
            way_to_denied: self.ways.contain(NameRule::Deny),
            way_to_protected: self.ways.contain(NameRule::Protect),
            opened_below: self.opened_below,
            next,
        }
    }
}
