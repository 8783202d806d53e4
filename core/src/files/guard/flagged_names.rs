//! Flagged names: the command may write them, and they are executed outside later. This lists those
//! that a run has changed.

use rustix::event::Timespec;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::files::tree_roots::TreeRoots;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;

/// The tree, and the path in it.
type FlaggedPath = (usize, Vec<u8>);

/// The names of the start, in order, each with its file. A symlink counts with its target.
#[derive(Default)]
pub struct FlaggedNames(Vec<(FlaggedPath, FlaggedFiles)>);

/// The name itself and, for a symlink, its target. None: the target does not exist.
type FlaggedFiles = (Identity, Option<Identity>);

impl FlaggedNames {
    pub fn new(roots: &TreeRoots, places: &[FlaggedPath]) -> FlaggedNames {
        // A name that is gone or not reachable counts as new if it exists at the end.
        let known = |place: &FlaggedPath| Some((place.clone(), files(&look(roots, place).ok()?)));
        let mut all: Vec<_> = places.iter().filter_map(known).collect();
        all.sort_unstable();
        FlaggedNames(all)
    }

    /// Names of the start come first, then names nearer the root: decoys push none of them out of
    /// the list. A name counts as changed if its file is another one than at the start (a moved
    /// directory brings its own), or if its ctime, which no command can set, is later. The same
    /// holds for the target of a symlink.
    pub fn changed(&self, roots: &TreeRoots, now: &[FlaggedPath], since: Timespec) -> Vec<AbsPath> {
        let since = (since.tv_sec, since.tv_nsec);
        let mut changed = Vec::new();
        for place in now {
            let known =
                self.0.binary_search_by(|(other, _)| other.cmp(place)).ok().map(|at| self.0[at].1);
            let is_later = |stat: &Stat| (stat.st_ctime, stat.st_ctime_nsec as i64) >= since;
            let is_changed = match look(roots, place) {
                Ok(looked) => {
                    known != Some(files(&looked))
                        || is_later(&looked.0)
                        || looked.1.as_ref().is_some_and(is_later)
                }
                Err(Errno::NOENT) => false,
                Err(_) => true, // not known
            };
            if let Some(path) = roots.trees[place.0].absolute(&place.1).ok().filter(|_| is_changed)
            {
                let depth = path.as_bytes().iter().filter(|byte| **byte == b'/').count();
                changed.push((known.is_none(), depth, path));
            }
        }
        changed.sort();
        changed.dedup();
        changed.into_iter().map(|(_, _, path)| path).collect()
    }
}

fn files((own, target): &(Stat, Option<Stat>)) -> FlaggedFiles {
    (Identity::from(own), target.as_ref().map(Identity::from))
}

/// The name itself and, for a symlink, its target outside of the sandbox.
fn look(roots: &TreeRoots, (tree, path): &FlaggedPath) -> Result<(Stat, Option<Stat>), Errno> {
    let tree = &roots.trees[*tree];
    let own = tree.open(path, OFlags::PATH | OFlags::NOFOLLOW).and_then(rustix::fs::fstat)?;
    if FileType::from_raw_mode(own.st_mode) != FileType::Symlink {
        return Ok((own, None));
    }
    let whole = tree.absolute(path).map_err(|_| Errno::NAMETOOLONG)?;
    match rustix::fs::stat(whole.as_bytes()) {
        // A directory changes with every name in it, and is not executed.
        Ok(target) if FileType::from_raw_mode(target.st_mode) == FileType::Directory => {
            Ok((own, None))
        }
        Ok(target) => Ok((own, Some(target))),
        // The caller could not execute it.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok((own, None)),
        Err(error) => Err(error),
    }
}
