//! The names that the judge knows when the command starts: the patterns of the plan, and what the
//! scan of the trees has added.

use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;

use crate::files::patterns::{NamePatterns, NamePatternsError};
use crate::kernel::resolved_path::Identity;
use crate::plan::FilesPlan;

pub struct KnownNames {
    pub names: NamePatterns,
    pub found: FoundObjects,
}

/// Objects of the scan that no pattern describes.
#[derive(Default)]
pub struct FoundObjects {
    /// Sorted paths of directories that a match depends on. None of them may be renamed.
    pinned: Vec<Vec<u8>>,
    /// Denied and protected files that have other names too, sorted.
    linked: Vec<Identity>,
}

impl KnownNames {
    /// Without a scan.
    pub fn of_plan(files: &FilesPlan) -> Result<KnownNames, NamePatternsError> {
        let names = NamePatterns::of_plan(files, &files.protect, &[], None)?;
        Ok(KnownNames { names, found: FoundObjects::default() })
    }
}

impl FoundObjects {
    pub fn new(mut pinned: Vec<Vec<u8>>, mut linked: Vec<Identity>) -> FoundObjects {
        pinned.sort_unstable();
        linked.sort_unstable();
        FoundObjects { pinned, linked }
    }

    pub fn is_pinned(&self, path: &[u8]) -> bool {
        self.pinned.binary_search_by(|pinned| pinned[..].cmp(path)).is_ok()
    }

    /// Is the file denied or protected under another name? A change would change it there too.
    pub fn is_linked(&self, stat: &Stat) -> bool {
        self.linked.binary_search(&Identity::from(stat)).is_ok()
    }

    /// The same for a name in a directory.
    pub fn is_linked_at(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        if self.linked.is_empty() {
            return Ok(false);
        }
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(self.is_linked(&stat)),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// The same for an open object.
    pub fn is_linked_object(&self, object: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(!self.linked.is_empty() && self.is_linked(&rustix::fs::fstat(object)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_linked_files_are_found_in_any_order() {
        let identity = |number| Identity::from((1, number));
        let paths = ["/w/b", "/w", "/w/a/c"].map(|path| path.as_bytes().to_vec());
        let found = FoundObjects::new(paths.to_vec(), vec![identity(9), identity(3)]);
        assert!(paths.iter().all(|path| found.is_pinned(path)));
        assert!(!found.is_pinned(b"/w/a") && !found.is_pinned(b"/w/b/x"));
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_dev, stat.st_ino) = (1, 3);
        assert!(found.is_linked(&stat));
        stat.st_dev = 2;
        assert!(!found.is_linked(&stat));
    }
}
