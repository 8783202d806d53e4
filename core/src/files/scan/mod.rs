//! The scan at the start of a run: the existing names, and their covers.
//!
//! A denied name is masked, a protected one is locked, and the directories that its pattern depends
//! on are pinned. The target of a symlink at such a name, or in a locked directory, counts as if
//! the pattern named it, if it is inside the trees. So does every link on the way. A file with
//! several hard links is covered under each name.

#[cfg(test)]
mod tests;
mod unreadable_dirs;

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use super::cover::{Cover, CoverKind};
use super::git::{self, Role, TrustedPaths, UnreadableGitFile};
use super::patterns::{NameMatch, NamePatterns, NamePatternsError, NameRule, PrefixId, StateId};
use super::symlink;
use super::tree_roots::{OpenTree, TreeRoots};
use super::walk::{self, Below, Dir, Entry, GitParts, NameDecision, Visitor, WalkError, Walker};
use super::writes::FoundObjects;
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::{AbsPath, Text};
use unreadable_dirs::ReopenedDirs;

/// The target of a link may contain another link.
const MAX_ROUNDS: usize = 16;

/// The result of a scan.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// A directory comes before its entries.
    pub covers: Vec<Cover>,
    /// The locked names.
    pub held: Vec<HeldName>,
    /// Directories that can not be listed.
    pub shut: Vec<Object>,
    /// Symlinks in git directories, with their targets.
    pub links_in_git: Vec<(AbsPath, Vec<u8>)>,
    /// Denied and protected files that have other names too.
    pub linked: Vec<Identity>,
    /// The targets of flagged symlinks.
    pub flagged_targets: Vec<Vec<u8>>,
}

impl ScanResult {
    /// What the judge of writes needs besides patterns.
    pub fn take_found_objects(&mut self) -> FoundObjects {
        let pins = self.covers.iter().filter(|cover| cover.kind == CoverKind::Pin);
        let pinned = pins.map(|cover| cover.path.as_bytes().to_vec()).collect();
        let linked = std::mem::take(&mut self.linked);
        FoundObjects::new(pinned, linked, std::mem::take(&mut self.flagged_targets))
    }
}

/// A name that was locked at the start: the directory, and the name in it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldName {
    pub parent: Identity,
    pub name: Box<[u8]>,
}

impl HeldName {
    fn new(dir: &Dir<'_>, name: &CStr) -> HeldName {
        HeldName { parent: dir.identity, name: name.to_bytes().into() }
    }
}

/// Called for every directory before it is listed.
pub type Enter<'a, E> = dyn FnMut(&NamePatterns, &Dir<'_>) -> Result<u32, E> + 'a;

/// Scans all trees. Patterns that follow from symlinks and git configurations are added to `names`.
/// `closed` are files with several hard links that other means hold under one known name.
pub fn scan_trees<E: From<WalkError>>(
    names: &mut NamePatterns,
    roots: &TreeRoots,
    walker: &mut Walker,
    closed: &[Identity],
    enter: &mut Enter<'_, E>,
) -> Result<ScanResult, E> {
    let mut reopened = ReopenedDirs::default();
    let mut scanner;
    let mut rounds = 0;
    let is_seen = |path: &[u8]| {
        let path = Text::from_bytes(path.to_vec()).ok().and_then(|path| AbsPath::new(path).ok());
        path.is_some_and(|path| roots.tree_of(&path).is_some())
    };
    if names.guards_git {
        for tree in roots.trees.iter().filter(|tree| tree.writable) {
            for path in git::directories_above(&tree.path).map_err(WalkError::from)? {
                names.add_git_directory(&path).map_err(WalkError::from)?;
            }
            names.git.outer.extend(git::above_tree(tree.path.as_bytes(), &is_seen));
        }
        names.settle().map_err(WalkError::from)?;
    }
    loop {
        scanner = Scanner::new(names.guards_git, &mut *enter, &mut reopened);
        for index in 0..roots.trees.len() {
            walker.tree(names, roots, index, &mut scanner)?;
        }
        for link in &scanner.links {
            link.extend(names, roots)?;
        }
        for path in &scanner.git {
            names.add_git_directory(path).map_err(WalkError::from)?;
        }
        for path in &scanner.trusted.paths {
            names.add_path(NameRule::Protect, path);
        }
        if !names.settle().map_err(WalkError::from)? {
            break;
        }
        rounds += 1;
        if rounds == MAX_ROUNDS {
            let last = scanner
                .links
                .last()
                .map_or_else(|| roots.trees[0].path.clone(), |link| link.path.clone());
            return Err(WalkError::Links { path: last }.into());
        }
    }
    let Scanner { mut found, pins, mut linked, trusted, git_files, .. } = scanner;
    for path in &trusted.named {
        if !names.git.add_named_path(path) {
            return Err(WalkError::from(NamePatternsError::TooMany(trusted.named.len())).into());
        }
    }
    for top in &git_files {
        names.git.outer.extend(git::of_git_file(top, &is_seen));
    }
    for base in trusted.bases {
        found.covers.extend(pins_to(roots, base)?);
    }
    linked.extend(
        closed.iter().map(|identity| MultiLinkFile { identity: *identity, kind: CoverKind::Mask }),
    );
    found.linked = linked.iter().map(|file| file.identity).collect();
    if !linked.is_empty() {
        let mut others = OtherNames::<E>::new(&linked, &reopened);
        for index in 0..roots.trees.len() {
            walker.tree(names, roots, index, &mut others)?;
        }
        let OtherNames { covers, locked, .. } = others;
        found.covers.extend(covers);
        found.held.extend(locked);
    }
    for (index, path) in pins {
        found.covers.extend(pin(&roots.trees[index], &path)?);
    }
    if !reopened.is_empty() {
        found.covers.retain(|cover| !reopened.covers(cover.path.as_bytes()));
        let (covers, shut) = reopened
            .restore()
            .map_err(|(cover, source)| WalkError::List { path: cover.path, source })?;
        found.covers.extend(covers);
        found.shut = shut;
    }
    found
        .covers
        .sort_by(|one, other| one.path.cmp(&other.path).then(weight(one).cmp(&weight(other))));
    found.covers.dedup_by(|later, kept| later.path == kept.path);
    Ok(found)
}

/// A mask replaces every other cover, a lock replaces a pin.
fn weight(cover: &Cover) -> u8 {
    match cover.kind {
        CoverKind::Mask => 0,
        CoverKind::ForeignSocket => 1,
        CoverKind::Lock => 2,
        CoverKind::Pin => 3,
    }
}

/// A pin for a directory that a match depends on.
pub fn pin(tree: &OpenTree, path: &[u8]) -> Result<Option<Cover>, WalkError> {
    let stat = match tree.open(path, OFlags::PATH).and_then(rustix::fs::fstat) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => stat,
        // It is gone, and the match with it.
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(WalkError::Moved { path: walk::shown(tree, path) });
        }
        Err(source) => return Err(WalkError::Look { path: walk::shown(tree, path), source }),
    };
    cover(tree.absolute(path)?, &stat, CoverKind::Pin).map(Some)
}

/// Pins for the directories from the root of a tree to one that must not move.
fn pins_to(roots: &TreeRoots, path: Vec<u8>) -> Result<Vec<Cover>, WalkError> {
    let path = AbsPath::new(Text::from_bytes(path)?)?;
    let Some((tree, below)) = roots.place_of(&path).filter(|(tree, _)| tree.writable) else {
        return Ok(Vec::new());
    };
    let ends = below
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| at)
        .chain([below.len()]);
    let mut covers = Vec::new();
    for end in ends.filter(|end| *end > 0) {
        match pin(tree, &below[..end]) {
            // It belongs to another user: the command does not get there either. A directory that
            // its owner has shut is closed as a whole.
            Err(WalkError::Look { source: Errno::ACCESS, .. }) => break,
            pinned => covers.extend(pinned?),
        }
    }
    Ok(covers)
}

pub fn cover(path: AbsPath, stat: &Stat, kind: CoverKind) -> Result<Cover, WalkError> {
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    Ok(Cover { path, identity: Identity::from(stat), directory, kind })
}

/// The directories below the root of its tree that a match depends on, relative to the tree.
pub fn pins(
    names: &mut NamePatterns,
    tree: &OpenTree,
    path: &[u8],
    rule: PrefixId,
    folding: bool,
) -> Result<Vec<Vec<u8>>, WalkError> {
    let depth = tree.depth();
    let rests = names.rests_on(rule, tree.absolute(path)?.as_bytes(), folding);
    let prefix = |end: usize| {
        path.split(|byte| *byte == b'/').take(end + 1 - depth).collect::<Vec<_>>().join(&b'/')
    };
    Ok(rests.into_iter().filter(|end| *end >= depth).map(prefix).collect())
}

/// A symlink at a name with a decision.
struct LinkFound {
    path: AbsPath,
    decision: NameDecision,
    dir: StateId,
    next: StateId,
}

impl LinkFound {
    /// Adds its target to the patterns, and every link on the way like the first.
    fn extend(&self, names: &mut NamePatterns, roots: &TreeRoots) -> Result<(), WalkError> {
        let Some(followed) = symlink::leads_to(&self.path)? else { return Ok(()) };
        let writable = |path: &AbsPath| roots.tree_of(path).is_some_and(|tree| tree.writable);
        for link in followed.links.iter().filter(|link| writable(link)) {
            names.add_path(NameRule::Link, link.as_bytes());
        }
        let Some(tree) = roots.tree_of(&followed.end) else { return Ok(()) };
        // A link to a directory above itself would lock everything there.
        let is_above = self.path.is_within(&followed.end);
        match self.decision {
            NameDecision::Deny(_) => names.add_path(NameRule::Deny, followed.end.as_bytes()),
            NameDecision::Protect(_) if tree.writable => {
                names.add_path(NameRule::Protect, followed.end.as_bytes())
            }
            NameDecision::Through if tree.writable && !is_above => {
                names.add_path(NameRule::Protect, followed.end.as_bytes())
            }
            NameDecision::OnPath => names.add_alias(self.dir, self.next, followed.end.as_bytes()),
            NameDecision::Protect(_)
            | NameDecision::Through
            | NameDecision::Link(_)
            | NameDecision::Socket
            | NameDecision::Free => {}
        }
        Ok(())
    }
}

/// A file with several hard links.
struct MultiLinkFile {
    identity: Identity,
    kind: CoverKind,
}

struct Scanner<'e, 'f, E> {
    guards_git: bool,
    enter: &'e mut Enter<'f, E>,
    reopened: &'e mut ReopenedDirs,
    found: ScanResult,
    pins: BTreeSet<(usize, Vec<u8>)>,
    links: Vec<LinkFound>,
    linked: Vec<MultiLinkFile>,
    /// The paths that git configurations make git trust.
    trusted: TrustedPaths,
    /// Directories that are git's by their parts.
    git: Vec<Vec<u8>>,
    /// Directories with a `.git` file.
    git_files: Vec<Vec<u8>>,
    /// Bytes of the paths that were found.
    stored_path_bytes: usize,
}

impl<'e, 'f, E: From<WalkError>> Scanner<'e, 'f, E> {
    fn new(
        guards_git: bool,
        enter: &'e mut Enter<'f, E>,
        reopened: &'e mut ReopenedDirs,
    ) -> Scanner<'e, 'f, E> {
        let (pins, links, linked) = (BTreeSet::new(), Vec::new(), Vec::new());
        let (trusted, git, git_files) = (TrustedPaths::default(), Vec::new(), Vec::new());
        Scanner {
            guards_git,
            enter,
            reopened,
            found: ScanResult::default(),
            pins,
            links,
            linked,
            trusted,
            git,
            git_files,
            stored_path_bytes: 0,
        }
    }

    fn note_names(&mut self, stat: &Stat, kind: CoverKind) {
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1 {
            self.linked.push(MultiLinkFile { identity: Identity::from(stat), kind });
        }
    }

    fn pin(&mut self, tree: usize, path: Vec<u8>) -> Result<(), WalkError> {
        if !self.pins.contains(&(tree, path.clone())) {
            walk::count_stored_path(&mut self.stored_path_bytes, &path)?;
            self.pins.insert((tree, path));
        }
        Ok(())
    }

    fn put(
        &mut self,
        dir: &Dir<'_>,
        name: &CStr,
        stat: &Stat,
        kind: CoverKind,
    ) -> Result<(), WalkError> {
        let path = dir.absolute(name.to_bytes())?;
        walk::count_stored_path(&mut self.stored_path_bytes, path.as_bytes())?;
        self.found.covers.push(cover(path, stat, kind)?);
        if dir.tree.writable && kind == CoverKind::Lock {
            self.found.held.push(HeldName::new(dir, name));
        }
        Ok(())
    }
}

impl<E: From<WalkError>> Visitor for Scanner<'_, '_, E> {
    type Error = E;

    fn enter(&mut self, names: &NamePatterns, dir: &Dir<'_>) -> Result<Option<u32>, E> {
        // No process gets in there during the run, so it needs no watch.
        if !self.reopened.is_empty()
            && self.reopened.covers(dir.tree.absolute(dir.path)?.as_bytes())
        {
            return Ok(Some(dir.node));
        }
        (self.enter)(names, dir).map(Some)
    }

    fn root(
        &mut self,
        tree: &OpenTree,
        decision: NameDecision,
        look: NameMatch,
    ) -> Result<Option<Below>, E> {
        let (kind, below) = match decision {
            NameDecision::Deny(_) => (CoverKind::Mask, Below::Masked),
            // It can not be moved: it is a mount point.
            NameDecision::Protect(_) if look.opened_below && tree.is_dir() => {
                return Ok(Some(Below::Carved));
            }
            _ => (CoverKind::Lock, Below::Locked),
        };
        self.found.covers.push(cover(tree.path.clone(), tree.stat(), kind)?);
        self.note_names(tree.stat(), kind);
        Ok(Some(below))
    }

    fn found(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, E> {
        let name = entry.name.to_bytes();
        // It is gone again. If it comes back, there is an event.
        let Some(stat) = self.stat(dir, entry.name)? else { return Ok(None) };
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let path = dir.join(name)?;
        if let NameDecision::Deny(Some(rule))
        | NameDecision::Protect(Some(rule))
        | NameDecision::Link(Some(rule)) = entry.decision
            && dir.tree.writable
        {
            let below = pins(names, dir.tree, &path, rule, dir.folding)?;
            for path in below {
                self.pin(dir.tree_index, path)?;
            }
        }
        if file_type == FileType::Symlink
            && !matches!(entry.decision, NameDecision::Socket | NameDecision::Link(_))
        {
            let (path, state, next) = (dir.absolute(name)?, dir.state, entry.look.next);
            let link = |decision| LinkFound { path: path.clone(), decision, dir: state, next };
            if entry.decision != NameDecision::Through {
                self.links.push(link(entry.decision));
            }
            if dir.tree.writable && dir.below == Below::Locked {
                self.links.push(link(NameDecision::Through));
            }
            if dir.is_in_git(names) {
                match rustix::fs::readlinkat(dir.fd, entry.name, Vec::new()) {
                    Ok(target) => {
                        self.found.links_in_git.push((dir.absolute(name)?, target.into_bytes()));
                    }
                    Err(Errno::NOENT | Errno::INVAL) => {} // it is another link now, or no link
                    Err(source) => return Err(dir.unseen(name, source).into()),
                }
            }
        }
        match entry.decision {
            NameDecision::Deny(_) => {
                self.put(dir, entry.name, &stat, CoverKind::Mask)?;
                self.note_names(&stat, CoverKind::Mask);
                Ok(Some(Below::Masked))
            }
            // It contains an exception: its entries are locked one by one.
            NameDecision::Protect(_)
                if entry.look.opened_below && file_type == FileType::Directory =>
            {
                self.pin(dir.tree_index, path)?;
                Ok(Some(Below::Carved))
            }
            NameDecision::Protect(_) => {
                self.put(dir, entry.name, &stat, CoverKind::Lock)?;
                self.note_names(&stat, CoverKind::Lock);
                let whole = [&git::whole_path(dir)[..], b"/", name].concat();
                let role = names.git.role(&whole).filter(|_| dir.tree.writable);
                if role == Some(Role::GitFile) {
                    walk::count_stored_path(&mut self.stored_path_bytes, &whole)?;
                    self.git_files.push(git::whole_path(dir));
                }
                let trusted = match role {
                    Some(Role::Config) => git::trusted_paths_of_config(dir, entry.name),
                    Some(Role::GitFile) => match git::trusted_paths_of_git_file(dir, entry.name) {
                        // Git does not trust a file that it can not read. In the trees the file is
                        // checked by itself.
                        Err(UnreadableGitFile { source: Errno::ACCESS, .. }) => {
                            Ok(TrustedPaths::default())
                        }
                        trusted => trusted,
                    },
                    _ => Ok(TrustedPaths::default()),
                };
                self.trusted.extend(trusted.map_err(WalkError::from)?);
                Ok(Some(Below::Locked))
            }
            NameDecision::Link(_) => {
                self.put(dir, entry.name, &stat, CoverKind::Lock)?;
                Ok(None)
            }
            NameDecision::OnPath if dir.tree.writable && dir.below != Below::Locked => {
                self.put(dir, entry.name, &stat, CoverKind::Lock)?;
                Ok(None)
            }
            NameDecision::Socket => {
                self.put(dir, entry.name, &stat, CoverKind::Mask)?;
                Ok(None)
            }
            NameDecision::OnPath | NameDecision::Through | NameDecision::Free => Ok(None),
        }
    }

    fn stat(&mut self, dir: &Dir<'_>, name: &CStr) -> Result<Option<Stat>, E> {
        let mut stat = dir.stat(name);
        // The right to search the directory was removed since it was opened.
        if let Err(Errno::ACCESS) = stat {
            let object = rustix::io::fcntl_dupfd_cloexec(dir.fd, 0)
                .map_err(|source| dir.unseen(name.to_bytes(), source))?;
            if !self.shut(dir.tree, dir.path, &object)? {
                return Ok(None);
            }
            stat = dir.stat(name);
        }
        match stat {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(source) => Err(dir.unseen(name.to_bytes(), source).into()),
        }
    }

    fn wants_files(&self, below: Below) -> bool {
        matches!(below, Below::Locked | Below::Masked)
    }

    fn file(&mut self, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<(), E> {
        let kind = if dir.below == Below::Masked { CoverKind::Mask } else { CoverKind::Lock };
        if let Some(stat) = self.stat(dir, entry.name)? {
            self.note_names(&stat, kind);
        }
        Ok(())
    }

    /// A change of the target of a flagged symlink is reported.
    fn flagged_link(&mut self, dir: &Dir<'_>, name: &CStr) -> Result<(), E> {
        let followed = symlink::leads_to(&dir.absolute(name.to_bytes())?)?;
        let Some(followed) = followed else { return Ok(()) };
        walk::count_stored_path(&mut self.stored_path_bytes, followed.end.as_bytes())?;
        self.found.flagged_targets.push(followed.end.as_bytes().to_vec());
        Ok(())
    }

    /// A bare repository of the start is the user's: it stays, and the files that git executes in
    /// it are locked.
    fn leave(&mut self, names: &mut NamePatterns, dir: &Dir<'_>, parts: GitParts) -> Result<(), E> {
        let counts = self.guards_git && dir.tree.writable && dir.below == Below::Plain;
        if !counts || !parts.make_a_repository() || git::is_git_name(dir.own_name(), dir.folding) {
            return Ok(());
        }
        let path = git::whole_path(dir);
        // Patterns match its path, so no directory above may be renamed either. Those of a `.git`
        // match its name.
        let ends = dir.path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        for end in ends
            .filter(|_| !names.git.is_covered(&path))
            .chain([dir.path.len()])
            .filter(|end| *end > 0)
        {
            self.pin(dir.tree_index, dir.path[..end].to_vec())?;
        }
        self.git.push(path);
        for name in [c"config", c"config.worktree"] {
            self.trusted.extend(git::trusted_paths_of_config(dir, name).map_err(WalkError::from)?);
        }
        Ok(())
    }

    /// A directory that can not be listed or searched is closed as a whole. A command that knows
    /// names in it, or restores its own rights, would open names that no pattern was matched
    /// against. The targets of its links still count.
    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd) -> Result<bool, E> {
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let stat = rustix::fs::fstat(object).map_err(failed)?;
        if self.reopened.is_known(Identity::from(&stat)) {
            return Ok(false);
        }
        let mask = cover(tree.absolute(path)?, &stat, CoverKind::Mask)?;
        Ok(self.reopened.open(tree, object, &stat, mask).map_err(failed)?)
    }
}

/// The second walk, if it is needed: other names of the same files.
struct OtherNames<'s, E> {
    /// Directories that the first walk has closed as a whole.
    reopened: &'s ReopenedDirs,
    linked: Vec<(u64, Identity, CoverKind)>,
    covers: Vec<Cover>,
    locked: Vec<HeldName>,
    error: PhantomData<E>,
}

impl<'s, E: From<WalkError>> OtherNames<'s, E> {
    fn new(linked: &[MultiLinkFile], reopened: &'s ReopenedDirs) -> OtherNames<'s, E> {
        // If a file is denied under one name and protected under another, the deny comes first.
        let key = |linked: &MultiLinkFile| (linked.identity.inode(), linked.identity, linked.kind);
        let mut linked: Vec<_> = linked.iter().map(key).collect();
        linked.sort_by_key(|(inode, identity, kind)| (*inode, *identity, *kind != CoverKind::Mask));
        linked.dedup_by_key(|(_, identity, _)| *identity);
        OtherNames { reopened, linked, covers: Vec::new(), locked: Vec::new(), error: PhantomData }
    }
}

impl<E: From<WalkError>> Visitor for OtherNames<'_, E> {
    type Error = E;

    fn enter(&mut self, _names: &NamePatterns, _dir: &Dir<'_>) -> Result<Option<u32>, E> {
        Ok(Some(0))
    }

    fn root(
        &mut self,
        _tree: &OpenTree,
        decision: NameDecision,
        look: NameMatch,
    ) -> Result<Option<Below>, E> {
        let below = if look.opened_below { Below::Carved } else { Below::Locked };
        Ok((!matches!(decision, NameDecision::Deny(_))).then_some(below))
    }

    fn found(
        &mut self,
        _names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, E> {
        match entry.decision {
            NameDecision::Protect(_) if entry.file_type == FileType::Directory => {
                Ok(Some(if entry.look.opened_below { Below::Carved } else { Below::Locked }))
            }
            NameDecision::Protect(_) => {
                self.file(dir, entry)?;
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn wants_files(&self, _below: Below) -> bool {
        true
    }

    fn file(&mut self, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<(), E> {
        if dir.numbers_agree
            && self.linked.binary_search_by_key(&entry.inode, |(inode, ..)| *inode).is_err()
        {
            return Ok(());
        }
        let Some(stat) = self.stat(dir, entry.name)? else { return Ok(()) };
        let identity = Identity::from(&stat);
        let Some((_, _, kind)) = self.linked.iter().find(|(_, other, _)| *other == identity) else {
            return Ok(());
        };
        // A tree that is locked as a whole or read-only needs no further lock.
        let locked_already =
            dir.below == Below::Locked || matches!(entry.decision, NameDecision::Protect(_));
        if *kind == CoverKind::Lock && (locked_already || !dir.tree.writable) {
            return Ok(());
        }
        let name = entry.name.to_bytes();
        self.covers.push(cover(dir.absolute(name)?, &stat, *kind)?);
        if *kind == CoverKind::Lock {
            self.locked.push(HeldName::new(dir, entry.name));
        }
        Ok(())
    }

    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd) -> Result<bool, E> {
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let stat = rustix::fs::fstat(object).map_err(failed)?;
        if self.reopened.is_known(Identity::from(&stat)) {
            Ok(false)
        } else {
            Err(failed(Errno::ACCESS).into())
        }
    }
}
