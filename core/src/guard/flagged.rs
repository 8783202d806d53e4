//! Names that a command may write and that are executed outside later: which of them a run has changed.

use rustix::event::Timespec;
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno;

use crate::ground::Ground;
use crate::place::Identity;
use crate::text::AbsPath;

/// The tree, and the path there.
type Place = (usize, Vec<u8>);

/// Those that were there at the start, in order, each with the file that it was.
#[derive(Default)]
pub struct Flagged(Vec<(Place, Identity)>);

impl Flagged {
    pub fn new(ground: &Ground, places: &[Place]) -> Flagged {
        // One that is gone again, or out of reach, is new if it is there at the end.
        let known = |place: &Place| Some((place.clone(), Identity::from(&stat(ground, place).ok()?)));
        let mut all: Vec<_> = places.iter().filter_map(known).collect();
        all.sort_unstable();
        Flagged(all)
    }

    /// Those that were there at the start come first, then those that lie higher: decoys push none of them out of sight. A name counts
    /// when its file is another one than at the start, which a directory that was moved brings along, or when its time of change, which
    /// no command can set, is later.
    pub fn changed(&self, ground: &Ground, now: &[Place], since: Timespec) -> Vec<AbsPath> {
        let since = (since.tv_sec, since.tv_nsec);
        let mut changed = Vec::new();
        for place in now {
            let known = self.0.binary_search_by(|(other, _)| other.cmp(place)).ok().map(|at| self.0[at].1);
            let is_changed = match stat(ground, place) {
                Ok(stat) => known != Some(Identity::from(&stat)) || (stat.st_ctime, stat.st_ctime_nsec as i64) >= since,
                Err(Errno::NOENT) => false,
                Err(_) => true, // it can not be told
            };
            if let Some(path) = ground.trees[place.0].absolute(&place.1).ok().filter(|_| is_changed) {
                let depth = path.as_bytes().iter().filter(|byte| **byte == b'/').count();
                changed.push((known.is_none(), depth, path));
            }
        }
        changed.sort();
        changed.dedup();
        changed.into_iter().map(|(_, _, path)| path).collect()
    }
}

fn stat(ground: &Ground, (tree, path): &Place) -> Result<Stat, Errno> {
    ground.trees[*tree].open(path, OFlags::PATH | OFlags::NOFOLLOW).and_then(rustix::fs::fstat)
}
