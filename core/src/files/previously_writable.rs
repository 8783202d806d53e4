//! Where a command could have prepared something for this run: what the plan makes writable, what
//! earlier runs were given, and the private temporary directories of other runs, alive or killed. A
//! link that stands there may have been put there by one.
//!
//! A place counts by its name and by its inode: a directory that its owner has renamed since is
//! still the one a command wrote.

use std::cell::OnceCell;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::kernel::resolved_path::{self, FollowedLink, Identity, ResolvedPath};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{self, Grant, Plan, PreviouslyWritable, Tier};

/// One of the places can not be told; then nobody can say what stands in it.
#[derive(Debug)]
pub struct Unknown {
    pub path: AbsPath,
    pub source: Errno,
}

pub struct Reach<'p> {
    plan: &'p Plan,
    requested: &'p plan::FilesPlan,
    /// Looked up when the first link outside the root directory is met: most runs meet none.
    trees: OnceCell<Trees>,
}

impl<'p> Reach<'p> {
    pub fn of(plan: &'p Plan, requested: &'p plan::FilesPlan) -> Reach<'p> {
        Reach { plan, requested, trees: OnceCell::new() }
    }

    /// The directory of the first of these links that a command could have made.
    pub fn planted<'l>(
        &self,
        links: impl IntoIterator<Item = &'l FollowedLink>,
    ) -> Result<Option<AbsPath>, Unknown> {
        for link in links {
            let unknown = |source| Unknown { path: self.plan.cwd.clone(), source };
            let dir = link
                .at
                .parent()
                .ok_or(Errno::INVAL)
                .and_then(|dir| absolute(dir.to_owned()))
                .map_err(unknown)?;
            // The root directory, which holds the links of a merged /usr, is in no tree a command
            // can write.
            if dir.as_bytes() != b"/" && self.trees()?.hold(&dir, &link.resolved) {
                return Ok(Some(dir));
            }
        }
        Ok(None)
    }

    /// Later runs know that this place was given.
    pub fn is_recorded(&self, real: &AbsPath, identity: Identity) -> bool {
        let known = |tree: &PreviouslyWritable| tree.identity.map(Identity::from) == Some(identity);
        self.requested
            .previously_writable
            .iter()
            .any(|tree| known(tree) || real.is_within(&tree.path))
    }

    fn trees(&self) -> Result<&Trees, Unknown> {
        match self.trees.get() {
            Some(trees) => Ok(trees),
            None => {
                let trees = Trees::of(self.plan, self.requested)?;
                Ok(self.trees.get_or_init(|| trees))
            }
        }
    }
}

struct Trees {
    names: Vec<AbsPath>,
    identities: Vec<Identity>,
    /// How the names of private temporary directories begin.
    temporary: Vec<u8>,
}

impl Trees {
    fn of(plan: &Plan, requested: &plan::FilesPlan) -> Result<Trees, Unknown> {
        // What the full tier makes anew is not the host's, and a container has places of its own.
        let made = |grant: &Grant| {
            plan.container.is_some()
                || (plan.tier == Tier::Full && plan::is_private_path(&grant.path))
        };
        let writable = requested.grants.iter().filter(|grant| grant.writes() && !made(grant));
        let given = writable
            .map(|grant| &grant.path)
            .chain(requested.previously_writable.iter().map(|tree| &tree.path));
        let parent = resolved_path::follow(plan::TEMP_PARENT.as_bytes())
            .map_or_else(|_| PathBuf::from(plan::TEMP_PARENT), |way| way.real);
        let mut trees = Trees {
            names: Vec::new(),
            identities: requested
                .previously_writable
                .iter()
                .filter_map(|tree| tree.identity)
                .map(Identity::from)
                .collect(),
            temporary: plan::temp_path_prefix(&parent, plan.user.uid),
        };
        let mut given: Vec<&AbsPath> = given.chain([&plan.cwd]).collect();
        given.sort_unstable();
        given.dedup();
        for path in given {
            let unknown = |source| Unknown { path: path.clone(), source };
            let way = resolved_path::follow(path.as_bytes()).map_err(unknown)?;
            trees.identities.extend(way.resolved.object);
            // The name as it is written counts as well: it led to itself when a command was given
            // it.
            trees.names.push(path.clone());
            if !way.links.is_empty() {
                trees.names.push(absolute(way.real).map_err(unknown)?);
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
