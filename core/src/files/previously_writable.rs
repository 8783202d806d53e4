//! Previously writable paths: what the plan makes writable, what earlier runs could write, and the
//! private temporary directories of other runs, alive or killed. A command may have put a link
//! there.
//!
//! A path counts by its name, and by inode and birth time: a directory that its owner has renamed is
//! still one that a command wrote. A name does not count if another directory has it now.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::kernel::resolved_path::{self, FollowedLink, Identity};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, Grant, Plan, PreviouslyWritable, Tier};

/// One of the paths can not be resolved, so its links are not known.
#[derive(Debug)]
pub struct UnknownTree {
    pub path: AbsPath,
    pub source: Errno,
}

pub struct WritableHistory<'p> {
    plan: &'p Plan,
    requested: &'p plan::FilesPlan,
    /// Looked up at the first link outside of the root directory: most runs have none.
    trees: OnceCell<WritableTrees>,
}

impl<'p> WritableHistory<'p> {
    pub fn of(plan: &'p Plan, requested: &'p plan::FilesPlan) -> WritableHistory<'p> {
        WritableHistory { plan, requested, trees: OnceCell::new() }
    }

    /// The directory of the first link that a command could have made.
    pub fn planted<'l>(
        &self,
        links: impl IntoIterator<Item = &'l FollowedLink>,
    ) -> Result<Option<AbsPath>, UnknownTree> {
        for link in links {
            let unknown = |source| UnknownTree { path: self.plan.cwd.clone(), source };
            let dir = link
                .at
                .parent()
                .ok_or(Errno::INVAL)
                .and_then(|dir| absolute(dir.to_owned()))
                .map_err(unknown)?;
            // No command can write the root directory, which has the links of a merged /usr.
            if dir.as_bytes() != b"/" && self.trees()?.hold(&dir, link) {
                return Ok(Some(dir));
            }
        }
        Ok(None)
    }

    /// Is the path recorded as writable for later runs?
    pub fn is_recorded(&self, real: &AbsPath, identity: Identity) -> bool {
        let path = Path::new(OsStr::from_bytes(real.as_bytes()));
        self.requested.previously_writable.iter().any(|tree| {
            RecordedDir::of(tree).is_some_and(|dir| dir.is(path, identity))
                || (real.is_within(&tree.path) && !is_replaced(tree))
        })
    }

    fn trees(&self) -> Result<&WritableTrees, UnknownTree> {
        match self.trees.get() {
            Some(trees) => Ok(trees),
            None => {
                let trees = WritableTrees::of(self.plan, self.requested)?;
                Ok(self.trees.get_or_init(|| trees))
            }
        }
    }
}

/// Does another file have the name of this tree now? In doubt it does not.
pub fn is_replaced(tree: &PreviouslyWritable) -> bool {
    let path = Path::new(OsStr::from_bytes(tree.path.as_bytes()));
    let (Some(dir), Ok((found, Some(born_ns)))) =
        (RecordedDir::of(tree), resolved_path::birth(path))
    else {
        return false;
    };
    dir.born_ns.is_some_and(|known| (known, dir.identity.inode()) != (born_ns, found.inode()))
}

/// A directory as an earlier run recorded it. The file system gives an inode number again, but not
/// with the same birth time.
struct RecordedDir {
    identity: Identity,
    born_ns: Option<i64>,
}

impl RecordedDir {
    fn of(tree: &PreviouslyWritable) -> Option<RecordedDir> {
        let identity = Identity::from(tree.identity?);
        Some(RecordedDir { identity, born_ns: tree.born_ns })
    }

    /// The number of a device changes at a reboot, so it counts only without a birth time.
    fn is(&self, path: &Path, identity: Identity) -> bool {
        if self.identity.inode() != identity.inode() {
            return false;
        }
        match (self.born_ns, resolved_path::birth(path)) {
            (Some(known), Ok((found, Some(born_ns)))) if found == identity => known == born_ns,
            _ => self.identity.device() == identity.device(),
        }
    }
}

struct WritableTrees {
    names: Vec<AbsPath>,
    identities: Vec<Identity>,
    recorded: Vec<RecordedDir>,
    /// The prefix of private temporary directories.
    temporary: Vec<u8>,
}

impl WritableTrees {
    fn of(plan: &Plan, requested: &plan::FilesPlan) -> Result<WritableTrees, UnknownTree> {
        // Paths that the full tier makes itself are not the host's, and a container has its own.
        let made = |grant: &Grant| {
            plan.container.is_some()
                || (plan.tier == Tier::Full && plan::is_private_path(&grant.path))
        };
        let writable = requested.grants.iter().filter(|grant| grant.writes() && !made(grant));
        let named = requested.previously_writable.iter().filter(|tree| !is_replaced(tree));
        let paths = writable.map(|grant| &grant.path).chain(named.map(|tree| &tree.path));
        let parent = resolved_path::follow(plan::TEMP_PARENT.as_bytes())
            .map_or_else(|_| PathBuf::from(plan::TEMP_PARENT), |followed| followed.real);
        let mut trees = WritableTrees {
            names: Vec::new(),
            identities: Vec::new(),
            recorded: requested.previously_writable.iter().filter_map(RecordedDir::of).collect(),
            temporary: plan::temp_path_prefix(&parent, plan.user.uid),
        };
        let mut paths: Vec<&AbsPath> = paths.chain([&plan.cwd]).collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            let unknown = |source| UnknownTree { path: path.clone(), source };
            let followed = resolved_path::follow(path.as_bytes()).map_err(unknown)?;
            trees.identities.extend(followed.resolved.object);
            // The unresolved name counts as well: it led to itself when a command could write it.
            trees.names.push(path.clone());
            if !followed.links.is_empty() {
                trees.names.push(absolute(followed.real).map_err(unknown)?);
            }
        }
        Ok(trees)
    }

    fn hold(&self, dir: &AbsPath, link: &FollowedLink) -> bool {
        let above = &link.resolved.above;
        dir.as_bytes().starts_with(&self.temporary)
            || self.names.iter().any(|tree| dir.is_within(tree))
            || self.identities.iter().any(|tree| above.contains(tree))
            || self.recorded.iter().any(|tree| {
                let mut dirs = link.at.ancestors().skip(1).zip(above);
                dirs.any(|(path, identity)| tree.is(path, *identity))
            })
    }
}

pub fn absolute(path: PathBuf) -> Result<AbsPath, Errno> {
    let bytes = path.into_os_string().into_vec();
    Text::from_bytes(bytes).ok().and_then(|text| AbsPath::new(text).ok()).ok_or(Errno::NOENT)
}
