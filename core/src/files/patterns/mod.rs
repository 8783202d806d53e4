//! Names by pattern: which names stay closed, which are read-only wherever they can be written, and
//! what that rests on.
//!
//! Patterns are matched on the way down: a directory has a state, and one look at an entry's name
//! gives what the entry is and the state of what lies below it. A plan has hundreds of patterns and
//! a tree has thousands of names, nearly all of which are in none of them; those are done with
//! after one look into a table of words. Patterns that begin alike share their beginning
//! (`files/patterns/prefix_tree.rs`): hundreds of them stand at a handful of places.

pub mod case_fold;
mod glob;
mod interned_names;
mod pattern;
mod prefix_tree;
mod state;
#[cfg(test)]
mod tests;

use super::git;
use crate::plan::Protected;
use crate::plan::wire::bytes::Text;

pub use glob::Globs;
use interned_names::{STAR, WordId, Words};
pub use pattern::PatternError;
use pattern::{Part, Root};
pub use prefix_tree::StemId;
use prefix_tree::{ANYWHERE, Kinds, SLASH, Stems};
pub use state::StateId;
use state::{State, States};

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
    /// The work itself, and yet executed outside later: to be told of when it was changed.
    Flag,
    /// The system's own: patterns that begin with `**` are not looked for below it.
    System,
}

/// A path that was added to the patterns of a plan, and a pattern below it, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    pub rule: Rule,
    pub path: Box<[u8]>,
    pub rest: Box<[u8]>,
}

/// A system's trees hold hundreds of thousands of names, none of them a user's, and can not be
/// written.
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
    stems: Stems,
    /// Patterns were added that no state knows of.
    grown: bool,
    /// What was added to the patterns of the plan.
    added: Vec<Added>,
    states: States,
    /// Directories of installed packages: nothing is flagged below them.
    pub packages: Vec<Text>,
    /// Whether anything inside a git directory is protected, and with it the way there.
    pub guards_git: bool,
    /// Git directories of other names than `.git`.
    pub git: git::Known,
    /// Used by each look, and kept for their memory.
    found: Vec<WordId>,
    parts: Vec<Part>,
    ahead: State,
    new_loops: Vec<StemId>,
}

/// What one name turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The patterns that match, each the one that rests on the fewest names.
    pub deny: Option<StemId>,
    pub protect: Option<StemId>,
    pub link: Option<StemId>,
    pub opened: bool,
    pub flagged: bool,
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
    #[error("the plan has too many name patterns: {0}")]
    TooMany(usize),
}

impl NamesError {
    pub fn hint(&self) -> &'static str {
        match self {
            NamesError::Pattern(_) => {
                "another version of paddock compiled the plan; compile it again"
            }
            NamesError::TooMany(_) => "deny whole directories instead of single names",
        }
    }
}

/// Does a path lie in one of the system's own trees?
pub fn is_system(path: &[u8]) -> bool {
    SYSTEM.iter().any(|tree| matches!(path.strip_prefix(tree.as_bytes()), Some([] | [b'/', ..])))
}

/// Numbers of words are short.
const MAX_STEMS: usize = 60_000;

impl Names {
    pub fn new(
        deny: &[Text],
        protect: &[Protected],
        opened: &[Text],
        flagged: &[Text],
    ) -> Result<Names, NamesError> {
        let mut names = Names {
            words: Words::new(),
            stems: Stems::new(),
            grown: false,
            added: Vec::new(),
            states: States::default(),
            packages: Vec::new(),
            guards_git: false,
            git: git::Known::default(),
            found: Vec::new(),
            parts: Vec::new(),
            ahead: State::default(),
            new_loops: Vec::new(),
        };
        for (rule, patterns) in [(Rule::Deny, deny), (Rule::Opened, opened), (Rule::Flag, flagged)]
        {
            for text in patterns {
                names.parts.clear();
                if let Some(root) = pattern::parse(text, &mut names.words, &mut names.parts)? {
                    names.put(rule, root);
                }
            }
        }
        for group in protect {
            names.put_group(Rule::Protect, group)?;
        }
        for path in SYSTEM {
            names.parts.clear();
            pattern::literal(path.as_bytes(), &mut names.words, &mut names.parts);
            names.put(Rule::System, Root::Slash);
        }
        names.settle()?;
        Ok(names)
    }

    /// Names that are denied, from [`Names::settle`] on.
    pub fn deny(&mut self, group: &Protected) -> Result<(), NamesError> {
        self.put_group(Rule::Deny, group)
    }

    /// Every beginning and every name is read once, however many patterns they make together.
    fn put_group(&mut self, rule: Rule, group: &Protected) -> Result<(), NamesError> {
        let mut stems = Vec::with_capacity(group.below.len() + group.but.len());
        for (rule, beginnings) in [(rule, &group.below), (Rule::Opened, &group.but)] {
            for text in beginnings {
                self.parts.clear();
                if let Some(root) =
                    pattern::parse_beginning(text, &mut self.words, &mut self.parts)?
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

    /// Is there nothing to look for?
    pub fn is_empty(&self) -> bool {
        self.stems.hold_nothing_but(Rule::System)
    }

    /// One more path to look for, from [`Names::settle`] on.
    pub fn add_path(&mut self, rule: Rule, path: &[u8]) {
        self.parts.clear();
        pattern::literal(path, &mut self.words, &mut self.parts);
        if self.put(rule, Root::Slash) {
            self.added.push(Added { rule, path: path.into(), rest: Box::default() });
        }
    }

    /// What was added so far. With the patterns of the plan it makes the same names again.
    pub fn added(&self) -> &[Added] {
        &self.added
    }

    /// Adds what other names had added. From [`Names::settle`] on.
    pub fn add(&mut self, added: &Added) -> Result<(), NamesError> {
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

    /// A literal path, and a pattern below it.
    fn add_pattern(&mut self, rule: Rule, path: &[u8], rest: Vec<Part>) {
        self.parts.clear();
        pattern::literal(path, &mut self.words, &mut self.parts);
        self.parts.extend(&rest);
        if self.put(rule, Root::Slash) {
            let spelled: Vec<&[u8]> = rest.iter().map(|part| self.words.spell(*part)).collect();
            self.added.push(Added { rule, path: path.into(), rest: spelled.join(&b'/').into() });
        }
    }

    /// One more pattern below a path; an empty one is the path itself. From [`Names::settle`] on.
    pub fn add_below(&mut self, rule: Rule, path: &[u8], rest: &Text) -> Result<(), NamesError> {
        if rest.as_bytes().is_empty() {
            self.add_path(rule, path);
            return Ok(());
        }
        let mut parts = Vec::new();
        pattern::parse_name(rest, &mut self.words, &mut parts)?;
        self.add_pattern(rule, path, parts);
        Ok(())
    }

    /// What patterns expect below an entry, which is a symlink, they expect below `path` as well:
    /// it leads there. From [`Names::settle`] on. Patterns that do not name the link are not
    /// concerned.
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

    /// A directory is one of git's by its parts: what is protected in one is protected there, from
    /// [`Names::settle`] on.
    pub fn add_git_directory(&mut self, path: &[u8]) -> Result<(), NamesError> {
        if !self.git.add(path) || self.git.is_covered(path) {
            return Ok(());
        }
        for name in git::protected() {
            self.add_below(Rule::Protect, path, &name)?;
        }
        // Links in it count from now on, also those that a first walk came by.
        self.grown = true;
        Ok(())
    }

    /// True: it is new.
    fn put(&mut self, rule: Rule, root: Root) -> bool {
        let end = self.stems.grow(start_of(root), &self.parts);
        self.mark(rule, end)
    }

    fn mark(&mut self, rule: Rule, end: StemId) -> bool {
        let new = self.stems.mark(end, rule);
        if new {
            self.grown = true;
            self.guards_git |=
                rule == Rule::Protect && self.stems.goes_through(end, self.words.git);
        }
        new
    }

    /// Takes in what was added; false if all of it was known. Every state given out before is void.
    pub fn settle(&mut self) -> Result<bool, NamesError> {
        self.check_number()?;
        let grown = std::mem::take(&mut self.grown);
        if grown {
            self.states.clear();
        }
        Ok(grown)
    }

    fn check_number(&self) -> Result<(), NamesError> {
        match self.stems.len() {
            MAX_STEMS.. => Err(NamesError::TooMany(self.stems.len())),
            _ => Ok(()),
        }
    }

    /// Where a walk begins. `own`: the tree was asked for by name, so it is searched although it
    /// may lie in one of the system's.
    pub fn start(&mut self, path: &[u8], own: bool) -> Start {
        let mut hits = Hits::default();
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
        Start { look, denied }
    }

    /// Is a path denied, or something above it?
    pub fn denies(&mut self, path: &[u8]) -> bool {
        self.start(path, true).denied
    }

    /// Would a walk of the tree at `root` find the path below it protected? Names that differ in
    /// case are others.
    pub fn protects(&mut self, root: &[u8], below: &[u8]) -> bool {
        let mut look = self.start(root, true).look;
        let mut protected = look.protect.is_some() && !look.opened;
        for name in pattern::components(below) {
            look = self.look(look.next, name, false);
            protected = (protected || look.protect.is_some()) && !look.opened;
        }
        protected
    }

    /// Could a walk of the tree at `root` find the path below it denied, or something above it? On
    /// some file systems names that differ in case are one.
    pub fn may_deny(&mut self, root: &[u8], below: &[u8]) -> bool {
        let Start { mut look, mut denied } = self.start(root, true);
        for name in pattern::components(below) {
            look = self.look(look.next, name, true);
            denied |= look.deny.is_some();
        }
        denied
    }

    /// The names that are denied in a directory, whether they are there or not. Those with a
    /// wildcard are not among them.
    pub fn denied_in(&mut self, dir: &[u8]) -> Vec<Vec<u8>> {
        let start = self.start(dir, true);
        let (state, loops) = self.states.get(start.look.next);
        let here = |above| {
            loops.active.binary_search(&above).is_ok() || state.steps.binary_search(&above).is_ok()
        };
        let last = self.stems.last_names(Rule::Deny).filter(|(above, _)| here(*above));
        last.filter_map(|(_, word)| self.words.literal_text(word)).map(<[u8]>::to_vec).collect()
    }

    /// Looks at one entry of a directory. `folding`: the directory takes names that differ only in
    /// case for one.
    pub fn look(&mut self, state: StateId, name: &[u8], folding: bool) -> Look {
        self.look_at(state, name, folding, false)
    }

    fn look_at(&mut self, id: StateId, name: &[u8], folding: bool, own: bool) -> Look {
        self.words.matching(name, folding, &mut self.found);
        let (state, loops) = self.states.get(id);
        let mut hits = Hits::default();
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

    /// The state made of what was gathered.
    fn intern(&mut self) -> StateId {
        self.states.state(&mut self.ahead, &self.stems)
    }

    /// Was the state given out after patterns were added last?
    pub fn is_current(&self, state: StateId) -> bool {
        self.states.is_current(state)
    }

    /// Is it the name of a git directory, or of the file that leads to one?
    pub fn is_git(&self, name: &[u8], folding: bool) -> bool {
        git::is_git_name(name, folding)
    }

    /// Does a directory lie in one of installed packages?
    pub fn is_shipped(&self, path: &[u8]) -> bool {
        path.split(|byte| *byte == b'/')
            .any(|name| self.packages.iter().any(|package| package.as_bytes() == name))
    }

    /// Could anything match below a directory in this state?
    pub fn expects(&self, state: StateId) -> bool {
        let (state, loops) = self.states.get(state);
        loops.floating || !loops.active.is_empty() || !state.steps.is_empty()
    }

    /// Could anything that is denied lie below a directory in this state?
    pub fn expects_denied(&self, state: StateId) -> bool {
        let denied = |stem: &StemId| {
            self.stems.kinds(*stem).contain(Rule::Deny)
                || self.stems.ahead(*stem).contain(Rule::Deny)
        };
        self.states.get(state).1.active.iter().any(denied) || self.leads_to_denied(state)
    }

    /// Does a pattern that denies go on with a name right in a directory of this state? Not one
    /// that is looked for at every depth.
    pub fn leads_to_denied(&self, state: StateId) -> bool {
        self.states
            .get(state)
            .0
            .steps
            .iter()
            .any(|stem| self.stems.ahead(*stem).contain(Rule::Deny))
    }

    /// Which names above a match must keep theirs, or it would not match any more: their depths,
    /// counted from the root.
    pub fn rests_on(&mut self, end: StemId, path: &[u8], folding: bool) -> Vec<usize> {
        let parts = self.stems.parts(end);
        let mut depths =
            pattern::rests_on(&parts, &mut self.words, path, folding).unwrap_or_default();
        // The match itself is covered.
        let own = pattern::components(path).count().saturating_sub(1);
        depths.retain(|depth| *depth < own);
        depths
    }
}

fn start_of(root: Root) -> StemId {
    match root {
        Root::Slash => SLASH,
        Root::Anywhere => ANYWHERE,
    }
}

#[derive(Default)]
struct Hits {
    deny: Option<(StemId, u16)>,
    protect: Option<(StemId, u16)>,
    link: Option<(StemId, u16)>,
    opened: bool,
    flagged: bool,
    system: bool,
    ways: Kinds,
    opened_below: bool,
}

impl Hits {
    /// Patterns have come to a stem, by a name.
    fn reach(
        &mut self,
        stems: &Stems,
        stem: StemId,
        steps: &mut Vec<StemId>,
        loops: &mut Vec<StemId>,
    ) {
        self.accept(stems, stem);
        let ahead = stems.ahead(stem);
        if !ahead.is_empty() {
            steps.push(stem);
            self.opened_below |= ahead.contain(Rule::Opened);
            self.ways.join(ahead);
        }
        if let Some(any_depth) = stems.any_depth(stem) {
            loops.push(any_depth);
            self.accept(stems, any_depth);
            self.ways.join(stems.ahead(any_depth));
        }
    }

    fn accept(&mut self, stems: &Stems, stem: StemId) {
        let kinds = stems.kinds(stem);
        if kinds.is_empty() {
            return;
        }
        let weight = stems.weight(stem);
        let least = |best: &mut Option<(StemId, u16)>| {
            if best.is_none_or(|(_, other)| weight < other) {
                *best = Some((stem, weight));
            }
        };
        if kinds.contain(Rule::Deny) {
            least(&mut self.deny);
        }
        if kinds.contain(Rule::Protect) {
            least(&mut self.protect);
        }
        if kinds.contain(Rule::Link) {
            least(&mut self.link);
        }
        self.opened |= kinds.contain(Rule::Opened);
        self.flagged |= kinds.contain(Rule::Flag);
        self.system |= kinds.contain(Rule::System);
    }

    fn into_look(self, next: StateId) -> Look {
        Look {
            deny: self.deny.map(|(stem, _)| stem),
            protect: self.protect.map(|(stem, _)| stem),
            link: self.link.map(|(stem, _)| stem),
            opened: self.opened,
            flagged: self.flagged,
            way_to_denied: self.ways.contain(Rule::Deny),
            way_to_protected: self.ways.contain(Rule::Protect),
            opened_below: self.opened_below,
            next,
        }
    }
}
