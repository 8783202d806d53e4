//! Previously writable paths: what the plan makes writable, what earlier runs could write, and the
//! private temporary directories of other runs, alive or killed. A command may have put a link
//! there.
//!
//! A path counts by its name and by its inode: a directory that its owner has renamed is still one
//! that a command wrote.

use std::cell::OnceCell;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::kernel::resolved_path::{self, FollowedLink, Identity, ResolvedPath};
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
            if dir.as_bytes() != b"/" && self.trees()?.hold(&dir, &link.resolved) {
                return Ok(Some(dir));
            }
        }
        Ok(None)
    }

    /// Is the path recorded as writable for later runs?
    pub fn is_recorded(&self, real: &AbsPath, identity: Identity) -> bool {
        let known = |tree: &PreviouslyWritable| tree.identity.map(Identity::from) == Some(identity);
        self.requested
            .previously_writable
            .iter()
            .any(|tree| known(tree) || real.is_within(&tree.path))
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

struct WritableTrees {
    names: Vec<AbsPath>,
    identities: Vec<Identity>,
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
        let paths = writable
            .map(|grant| &grant.path)
            .chain(requested.previously_writable.iter().map(|tree| &tree.path));
        let parent = resolved_path::follow(plan::TEMP_PARENT.as_bytes())
            .map_or_else(|_| PathBuf::from(plan::TEMP_PARENT), |followed| followed.real);
        let mut trees = WritableTrees {
            names: Vec::new(),
            identities: requested
                .previously_writable
                .iter()
                .filter_map(|tree| tree.identity)
                .map(Identity::from)
                .collect(),
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

    fn hold(&self, dir: &AbsPath, link: &ResolvedPath) -> bool {
        dir.as_bytes().starts_with(&self.temporary)
            || self.names.iter().any(|tree| dir.is_within(tree))
            || self.identities.iter().any(|tree| link.above.contains(tree))
    }
}

pub fn absolute(path: PathBuf) -> Result<AbsPath, Errno> {
    let bytes = path.into_os_string().into_vec();
    Text::from_bytes(bytes).ok().and_then(|text| AbsPath::new(text).ok()).ok_or(Errno::NOENT)
}
