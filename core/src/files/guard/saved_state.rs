//! What a guard has to remember so that another process can do its last scan: see
//! `supervisor/finish_scans.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use rustix::event::Timespec;
use rustix::fs::inotify::{self, CreateFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::files::patterns::{Added, Names, NamesError, Rule};
use crate::files::quarantine::Quarantine;
use crate::files::scan::{Held, Survey, Through};
use crate::files::tree_roots::{Tree, TreeRoots};
use crate::files::walk::{WalkError, Walker};
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::writer::{self, NonUtf8};

use super::flagged_names::Flagged;
use super::guard_events::Noted;
use super::post::Post;
use super::watches::Nodes;
use super::{Guard, GuardError};

/// A guard as it was when the command started.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    since: (i64, i64),
    /// The trees that the command could write to, with the identity of each root.
    trees: Vec<(AbsPath, u64, u64)>,
    left_out: Vec<AbsPath>,
    /// What the first search added to the patterns of the plan.
    added: Vec<(Kind, Text, Text)>,
    /// Names that were locked or denied: the directory, the name there, and what had it.
    held: Vec<(u64, u64, Text, Numbers)>,
    bare: Vec<Numbers>,
    /// Directories that are git's by their parts.
    git: Vec<Text>,
    /// Symlinks in git directories: the directory, the name there, the link, and what it says.
    through: Vec<(u64, u64, Text, Numbers, Text)>,
    shut: Vec<Numbers>,
    masked: Vec<Numbers>,
}

/// An object: device, inode and birth, in seconds and nanoseconds.
type Numbers = (u64, u64, i64, u32);

/// A tree of a [`Memory`] that is not at its path now.
#[derive(Debug)]
pub struct Away {
    /// Among the trees of the memory.
    pub number: usize,
    pub path: AbsPath,
    /// Something else has the path.
    pub is_replaced: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Deny,
    Protect,
    Opened,
    Link,
    Flag,
}

impl Kind {
    fn name(rule: Rule) -> Option<&'static str> {
        match rule {
            Rule::Deny => Some("deny"),
            Rule::Protect => Some("protect"),
            Rule::Opened => Some("opened"),
            Rule::Link => Some("link"),
            Rule::Flag => Some("flag"),
            Rule::System => None,
        }
    }

    fn rule(self) -> Rule {
        match self {
            Kind::Deny => Rule::Deny,
            Kind::Protect => Rule::Protect,
            Kind::Opened => Rule::Opened,
            Kind::Link => Rule::Link,
            Kind::Flag => Rule::Flag,
        }
    }
}

impl Guard {
    /// Writes the guard's [`Memory`] as JSON. False: there is no tree that the command can write
    /// to, and nothing was written.
    pub fn write_memory(&self, out: &mut String) -> Result<bool, WalkError> {
        let trees = || self.ground.trees.iter().filter(|tree| tree.writable);
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
        // A tree that lies in another one is scanned by itself.
        left_out.retain(|path| !trees().any(|tree| tree.path == *path));
        writer::list(out, &left_out, |out, path| text(out, path.as_bytes()));
        out.push_str(",\"added\":");
        let added =
            self.names.added().iter().filter_map(|added| Some((Kind::name(added.rule)?, added)));
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
        writer::list(out, &self.post.held, |out, held| {
            out.push('[');
            named(out, held.parent, &held.name, &held.object);
            out.push(']');
        });
        out.push_str(",\"bare\":");
        writer::list(out, &self.post.bare, object);
        out.push_str(",\"through\":");
        writer::list(out, &self.post.through, |out, through| {
            out.push('[');
            named(out, through.dir, &through.name, &through.object);
            out.push(',');
            text(out, &through.said);
            out.push(']');
        });
        out.push_str(",\"git\":");
        writer::list(out, self.names.git.directories(), |out, path| text(out, path));
        out.push_str(",\"shut\":");
        writer::list(out, &self.post.shut, object);
        out.push_str(",\"masked\":");
        writer::list(out, &self.post.masked, object);
        out.push('}');
        Ok(true)
    }

    /// The guard of a run that is over, for its last scan. `names` are those of its plan. Of its
    /// trees those with the numbers in `wanted` are scanned. A tree that is not at its path now is
    /// left out and returned: it may be unmounted, or renamed.
    pub fn recall(
        mut names: Names,
        memory: &Memory,
        wanted: Option<&[usize]>,
        taken: AbsPath,
    ) -> Result<(Guard, Vec<Away>), GuardError> {
        let known = |error: NamesError| GuardError::Walk(error.into());
        for (kind, path, rest) in &memory.added {
            let added = Added {
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
        // After a reboot a file system may have another number. That of a tree's root tells which.
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
                    away.push(Away { number, path: path.clone(), is_replaced: now.is_some() });
                    continue;
                }
                _ => continue,
            };
            if !wanted {
                continue;
            }
            trees.push(Tree { path: path.clone(), writable: true, watched: true });
        }
        let identity = |device: u64, inode: u64| {
            Identity::from((devices.get(&device).copied().unwrap_or(device), inode))
        };
        let object = |(device, inode, seconds, nanoseconds): &Numbers| Object {
            identity: identity(*device, *inode),
            born: (*seconds, *nanoseconds),
        };
        let objects = |list: &[Numbers]| list.iter().map(object).collect();
        let survey = Survey {
            held: memory
                .held
                .iter()
                .map(|(device, inode, name, named)| Held {
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
                .map(|(device, inode, name, link, said)| Through {
                    dir: identity(*device, *inode),
                    name: name.as_bytes().into(),
                    object: object(link),
                    said: said.as_bytes().to_vec(),
                })
                .collect(),
            ..Survey::default()
        };
        let left_out = [&memory.left_out[..], std::slice::from_ref(&taken)].concat();
        let ground = TreeRoots::open(&trees, &left_out)?;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(GuardError::Init)?;
        let mut post =
            Post::new(Nodes::default(), Quarantine::new(taken), names.guards_git, survey);
        // Whatever happened, no event tells it.
        post.lost = true;
        let since = Timespec { tv_sec: memory.since.0, tv_nsec: memory.since.1 };
        let guard = Guard {
            inotify,
            names,
            ground,
            walker: Walker::default(),
            post,
            view: None,
            buffer: Vec::new(),
            noted: Noted::default(),
            near: Vec::new(),
            quiet: false,
            last_patrol: Instant::now(),
            since,
            flagged: Flagged::default(),
        };
        Ok((guard, away))
    }
}
