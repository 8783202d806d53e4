//! The saved state of a guard, with which another process can do its last scan: see
//! `supervisor/finish_earlier_scans.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::fs::inotify::{self, CreateFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::files::patterns::{AddedPattern, NamePatterns, NamePatternsError, NameRule};
use crate::files::quarantine::Quarantine;
use crate::files::scan::{GitLink, HeldName, ScanResult};
use crate::files::tree_roots::{GrantedTree, TreeRoots};
use crate::files::walk::{WalkError, Walker};
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::writer::{self, NonUtf8};

use super::flagged_names::FlaggedNames;
use super::guard_events::PendingEvents;
use super::guard_state::GuardState;
use super::watches::Watches;
use super::{Guard, GuardError};

/// The state of a guard when the command started.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    since: (i64, i64),
    /// The trees that the command could write to, with the identity of each root.
    trees: Vec<(AbsPath, u64, u64)>,
    left_out: Vec<AbsPath>,
    /// Patterns that the first scan added to those of the plan.
    added: Vec<(SavedRule, Text, Text)>,
    /// Names that were locked or denied: the directory, the name in it, and its object.
    held: Vec<(u64, u64, Text, ObjectNumbers)>,
    bare: Vec<ObjectNumbers>,
    /// Directories that are git's by their parts.
    git: Vec<Text>,
    /// Symlinks in git directories: the directory, the name in it, the link, and its target.
    through: Vec<(u64, u64, Text, ObjectNumbers, Text)>,
    shut: Vec<ObjectNumbers>,
    masked: Vec<ObjectNumbers>,
}

/// An object: device, inode and birth time, in seconds and nanoseconds.
type ObjectNumbers = (u64, u64, i64, u32);

/// A tree of a [`SavedState`] that is not at its path now.
#[derive(Debug)]
pub struct MissingTree {
    /// The index of the tree in the saved state.
    pub number: usize,
    pub path: AbsPath,
    /// Another object has the path.
    pub is_replaced: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SavedRule {
    Deny,
    Protect,
    Opened,
    Link,
    Flag,
}

impl SavedRule {
    fn name(rule: NameRule) -> Option<&'static str> {
        match rule {
            NameRule::Deny => Some("deny"),
            NameRule::Protect => Some("protect"),
            NameRule::Opened => Some("opened"),
            NameRule::Link => Some("link"),
            NameRule::Flag => Some("flag"),
            NameRule::System => None,
        }
    }

    fn rule(self) -> NameRule {
        match self {
            SavedRule::Deny => NameRule::Deny,
            SavedRule::Protect => NameRule::Protect,
            SavedRule::Opened => NameRule::Opened,
            SavedRule::Link => NameRule::Link,
            SavedRule::Flag => NameRule::Flag,
        }
    }
}

impl Guard {
    /// Writes the guard's [`SavedState`] as JSON. False: there is no tree that the command can
    /// write to, and nothing was written.
    pub fn write_saved_state(&self, out: &mut String) -> Result<bool, WalkError> {
        let trees = || self.roots.trees.iter().filter(|tree| tree.writable);
        if trees().next().is_none() {
            return Ok(false);
        }
        let text = |out: &mut String, bytes: &[u8]| writer::string(out, bytes, NonUtf8::Surrogate);
        let numbers = |out: &mut String, identity: Identity| {
            let _ = write!(out, "{},{}", identity.device(), identity.inode());
        };
        let _ =
            write!(out, "{{\"since\":[{},{}],\"trees\":", self.since.tv_sec, self.since.tv_nsec);
        writer::list(out, trees(), |out, tree| {
            out.push('[');
            text(out, tree.path.as_bytes());
            out.push(',');
            numbers(out, Identity::from(tree.stat()));
            out.push(']');
        });
        out.push_str(",\"left_out\":");
        let left_out = trees().flat_map(|tree| tree.left_out().map(|path| tree.absolute(path)));
        let mut left_out: Vec<AbsPath> = left_out.collect::<Result<_, _>>()?;
        // A tree inside another one is scanned by itself.
        left_out.retain(|path| !trees().any(|tree| tree.path == *path));
        writer::list(out, &left_out, |out, path| text(out, path.as_bytes()));
        out.push_str(",\"added\":");
        let added = self
            .names
            .added()
            .iter()
            .filter_map(|added| Some((SavedRule::name(added.rule)?, added)));
        writer::list(out, added, |out, (kind, added)| {
            let _ = write!(out, "[\"{kind}\",");
            text(out, &added.path);
            out.push(',');
            text(out, &added.rest);
            out.push(']');
        });
        let object = |out: &mut String, object: &Object| {
            out.push('[');
            numbers(out, object.identity);
            let _ = write!(out, ",{},{}]", object.born.0, object.born.1);
        };
        let named = |out: &mut String, dir: Identity, name: &[u8], named: &Object| {
            numbers(out, dir);
            out.push(',');
            text(out, name);
            out.push(',');
            object(out, named);
        };
        out.push_str(",\"held\":");
        writer::list(out, &self.state.held, |out, held| {
            out.push('[');
            named(out, held.parent, &held.name, &held.object);
            out.push(']');
        });
        out.push_str(",\"bare\":");
        writer::list(out, &self.state.bare, object);
        out.push_str(",\"through\":");
        writer::list(out, &self.state.through, |out, through| {
            out.push('[');
            named(out, through.dir, &through.name, &through.object);
            out.push(',');
            text(out, &through.target);
            out.push(']');
        });
        out.push_str(",\"git\":");
        writer::list(out, self.names.git.directories(), |out, path| text(out, path));
        out.push_str(",\"shut\":");
        writer::list(out, &self.state.shut, object);
        out.push_str(",\"masked\":");
        writer::list(out, &self.state.masked, object);
        out.push('}');
        Ok(true)
    }

    /// The guard of an ended run, for its last scan. `names` are the patterns of its plan. Only the
    /// trees with the numbers in `wanted` are scanned. A tree that is not at its path is left out
    /// and returned: it may be unmounted, or renamed.
    pub fn restore(
        mut names: NamePatterns,
        memory: &SavedState,
        wanted: Option<&[usize]>,
        quarantine_path: AbsPath,
    ) -> Result<(Guard, Vec<MissingTree>), GuardError> {
        let known = |error: NamePatternsError| GuardError::Walk(error.into());
        for (kind, path, rest) in &memory.added {
            let added = AddedPattern {
                rule: kind.rule(),
                path: path.as_bytes().into(),
                rest: rest.as_bytes().into(),
            };
            names.add(&added).map_err(known)?;
        }
        for path in &memory.git {
            names.git.add(path.as_bytes());
        }
        names.settle().map_err(known)?;
        let mut trees = Vec::with_capacity(memory.trees.len());
        // After a reboot a file system may have another device number. The root of a tree tells it.
        let mut devices = BTreeMap::new();
        let mut away = Vec::new();
        for (number, (path, device, inode)) in memory.trees.iter().enumerate() {
            let wanted = wanted.is_none_or(|wanted| wanted.contains(&number));
            let now = match rustix::fs::lstat(path.as_c_str()) {
                Ok(stat) => Some(Identity::from(&stat)),
                Err(Errno::NOENT | Errno::NOTDIR) => None,
                Err(_) if !wanted => None,
                Err(source) => return Err(WalkError::Root { path: path.clone(), source }.into()),
            };
            match now {
                Some(now) if now.inode() == *inode => devices.insert(*device, now.device()),
                _ if wanted => {
                    away.push(MissingTree {
                        number,
                        path: path.clone(),
                        is_replaced: now.is_some(),
                    });
                    continue;
                }
                _ => continue,
            };
            if !wanted {
                continue;
            }
            trees.push(GrantedTree { path: path.clone(), writable: true, watched: true });
        }
        let identity = |device: u64, inode: u64| {
            Identity::from((devices.get(&device).copied().unwrap_or(device), inode))
        };
        let object = |(device, inode, seconds, nanoseconds): &ObjectNumbers| Object {
            identity: identity(*device, *inode),
            born: (*seconds, *nanoseconds),
        };
        let objects = |list: &[ObjectNumbers]| list.iter().map(object).collect();
        let found = ScanResult {
            held: memory
                .held
                .iter()
                .map(|(device, inode, name, named)| HeldName {
                    parent: identity(*device, *inode),
                    name: name.as_bytes().into(),
                    object: object(named),
                })
                .collect(),
            bare: objects(&memory.bare),
            shut: objects(&memory.shut),
            masked: objects(&memory.masked),
            through: memory
                .through
                .iter()
                .map(|(device, inode, name, link, target)| GitLink {
                    dir: identity(*device, *inode),
                    name: name.as_bytes().into(),
                    object: object(link),
                    target: target.as_bytes().to_vec(),
                })
                .collect(),
            ..ScanResult::default()
        };
        let left_out = [&memory.left_out[..], std::slice::from_ref(&quarantine_path)].concat();
        let roots = TreeRoots::open(&trees, &left_out)?;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(GuardError::Init)?;
        let since = Timespec { tv_sec: memory.since.0, tv_nsec: memory.since.1 };
        let mut state = GuardState::new(
            Watches::default(),
            Quarantine::new(quarantine_path),
            names.guards_git,
            found,
            since,
        );
        // No event tells what has happened since.
        state.lost = true;
        let guard = Guard {
            inotify,
            names,
            roots,
            walker: Walker::default(),
            state,
            view: None,
            buffer: Vec::new(),
            pending: PendingEvents::default(),
            open_dirs: Vec::new(),
            quiet: false,
            last_patrol: Instant::now(),
            since,
            flagged: FlaggedNames::default(),
        };
        Ok((guard, away))
    }
}
