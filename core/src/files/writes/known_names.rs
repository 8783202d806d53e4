//! The names that the judge knows when the command starts: the patterns of the plan, and what the
//! scan of the trees has added.

use std::fmt::Write as _;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;
use serde::Deserialize;

use super::written_trees::WrittenTree;
use crate::files::patterns::{AddedNames, NamePatterns, NamePatternsError};
use crate::kernel::resolved_path::Identity;
use crate::plan::FilesPlan;
use crate::plan::wire::bytes::Text;
use crate::plan::wire::writer::{self, NonUtf8};

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
    /// Sorted paths of the targets of flagged symlinks.
    flagged: Vec<Vec<u8>>,
}

/// The result of a scan in another process, which sends it as JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScannedNames {
    names: AddedNames,
    pinned: Vec<Text>,
    /// Devices and inodes.
    linked: Vec<(u64, u64)>,
    flagged: Vec<Text>,
}

impl ScannedNames {
    /// `names`: the patterns after the scan. None: there was no scan.
    pub fn write(names: Option<&NamePatterns>, found: &FoundObjects) -> String {
        let mut out = String::from("{\"names\":");
        match names {
            Some(names) => AddedNames::write(names, &mut out),
            None => {
                out.push_str("{\"added\":[],\"git\":[],\"named\":[],\"outer\":[],\"unread\":[]}")
            }
        }
        out.push_str(",\"pinned\":");
        writer::list(&mut out, &found.pinned, |out, path| {
            writer::string(out, path, NonUtf8::Surrogate)
        });
        out.push_str(",\"linked\":");
        writer::list(&mut out, &found.linked, |out, file| {
            let _ = write!(out, "[{},{}]", file.device(), file.inode());
        });
        out.push_str(",\"flagged\":");
        writer::list(&mut out, &found.flagged, |out, path| {
            writer::string(out, path, NonUtf8::Surrogate)
        });
        out.push('}');
        out
    }
}

impl KnownNames {
    /// Without a scan. Denied names that can not lie in the `trees` are left out: a plan denies the
    /// same names below dozens of directories.
    pub fn of_plan(
        files: &FilesPlan,
        trees: &[WrittenTree],
    ) -> Result<KnownNames, NamePatternsError> {
        let searched: Vec<Vec<u8>> = trees.iter().map(|tree| tree.path.clone()).collect();
        let names = NamePatterns::of_plan(files, &files.protect, &files.flagged, Some(&searched))?;
        Ok(KnownNames { names, found: FoundObjects::default() })
    }

    /// In the full tier the guard of the supervisor has scanned the trees.
    pub fn of_scan(
        files: &FilesPlan,
        trees: &[WrittenTree],
        scanned: ScannedNames,
    ) -> Result<KnownNames, NamePatternsError> {
        let ScannedNames { names: added, pinned, linked, flagged } = scanned;
        let mut known = KnownNames::of_plan(files, trees)?;
        added.apply(&mut known.names)?;
        let bytes = |paths: Vec<Text>| paths.iter().map(|path| path.as_bytes().to_vec()).collect();
        let linked = linked.into_iter().map(Identity::from).collect();
        known.found = FoundObjects::new(bytes(pinned), linked, bytes(flagged));
        Ok(known)
    }
}

impl FoundObjects {
    pub fn new(
        mut pinned: Vec<Vec<u8>>,
        mut linked: Vec<Identity>,
        mut flagged: Vec<Vec<u8>>,
    ) -> FoundObjects {
        pinned.sort_unstable();
        linked.sort_unstable();
        flagged.sort_unstable();
        FoundObjects { pinned, linked, flagged }
    }

    /// Does a flagged symlink lead to this path?
    pub fn is_flagged(&self, path: &[u8]) -> bool {
        self.flagged.binary_search_by(|flagged| flagged[..].cmp(path)).is_ok()
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
    use crate::files::patterns::NameRule;
    use crate::plan::wire::reader;

    #[test]
    fn a_scan_arrives_as_it_was_sent() {
        let mut names = NamePatterns::new(&[], &[], &[], &[]).unwrap();
        names.add_path(NameRule::Protect, b"/w/\xff");
        names.add_git_directory(b"/w/bare").unwrap();
        names.git.outer.add_dir(b"/w/src");
        names.git.outer.add_unread(b"/x");
        let pinned = vec![b"/w/b".to_vec()];
        let flagged = vec![b"/w/rules".to_vec()];
        let found = FoundObjects::new(pinned, vec![Identity::from((1, u64::MAX))], flagged);
        let text = ScannedNames::write(Some(&names), &found);
        let read: ScannedNames = reader::from_slice(text.as_bytes()).unwrap();
        assert_eq!(read.linked, [(1, u64::MAX)]);
        assert_eq!(read.pinned[0].as_bytes(), b"/w/b");
        assert_eq!(read.flagged[0].as_bytes(), b"/w/rules");
        let mut other = NamePatterns::new(&[], &[], &[], &[]).unwrap();
        read.names.apply(&mut other).unwrap();
        assert_eq!(other.added(), names.added());
        assert_eq!(other.git.directories(), names.git.directories());
        assert!(other.git.outer.has(b"/w/src") && other.git.outer.has(b"/x/y"));
        let none = ScannedNames::write(None, &FoundObjects::default());
        assert!(reader::from_slice::<ScannedNames>(none.as_bytes()).is_ok());
    }

    #[test]
    fn pins_and_linked_files_are_found_in_any_order() {
        let identity = |number| Identity::from((1, number));
        let paths = ["/w/b", "/w", "/w/a/c"].map(|path| path.as_bytes().to_vec());
        let (pinned, flagged) = (paths.to_vec(), paths.to_vec());
        let found = FoundObjects::new(pinned, vec![identity(9), identity(3)], flagged);
        assert!(paths.iter().all(|path| found.is_pinned(path) && found.is_flagged(path)));
        assert!(!found.is_pinned(b"/w/a") && !found.is_pinned(b"/w/b/x"));
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_dev, stat.st_ino) = (1, 3);
        assert!(found.is_linked(&stat));
        stat.st_dev = 2;
        assert!(!found.is_linked(&stat));
    }
}
