//! One listing of the home directory, and of the shared directories in it.
//!
//! A plan names a hundred paths that most homes do not have. Listing a few directories once answers
//! nearly all of them. A system call for each would be a fifth of a launch.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::plan::wire::bytes::{self, AbsPath};

/// More than most homes have. A longer listing costs more than it saves.
const MAX_HOME_ENTRIES: usize = 1000;
const LISTING_BUFFER_BYTES: usize = 32 * 1024;

/// Directories that contain many paths of a plan. Each comes after its parent.
const SHARED_DIRS: [&str; 3] = [".config", ".local", ".local/share"];

pub struct HomeListing<'p> {
    home: &'p AbsPath,
    /// By their path below the home. A directory that does not fit into one buffer is missing here.
    listings: Vec<(&'static str, Listing)>,
}

/// Sorted by name, with the first letters of each as a number: that is compared in one step, for
/// hundreds of paths.
type Listing = Vec<(u64, Box<[u8]>, FileType)>;

fn first_letters(name: &[u8]) -> u64 {
    match name.first_chunk() {
        Some(letters) => u64::from_be_bytes(*letters),
        None => name
            .iter()
            .zip([56, 48, 40, 32, 24, 16, 8])
            .fold(0, |all, (letter, place)| all | u64::from(*letter) << place),
    }
}

/// What the listings tell about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HomeEntry {
    /// The path does not exist.
    Missing,
    /// The path exists, without a symlink on the way from the home.
    Itself,
    Unknown,
}

impl<'p> HomeListing<'p> {
    pub fn at(home: &'p AbsPath) -> HomeListing<'p> {
        let mut listing_of_home =
            HomeListing { home, listings: Vec::with_capacity(1 + SHARED_DIRS.len()) };
        let mut buffer = Vec::with_capacity(LISTING_BUFFER_BYTES);
        let Ok(dir) = open(CWD, home.as_c_str()) else { return listing_of_home };
        listing_of_home.listings.extend(list(&dir, &mut buffer).map(|listing| ("", listing)));
        for name in SHARED_DIRS {
            if listing_of_home.entry(name.as_bytes()) == Some((Some(FileType::Directory), true))
                && let Some(listing) = open(&dir, name).ok().and_then(|dir| list(&dir, &mut buffer))
            {
                listing_of_home.listings.push((name, listing));
            }
        }
        listing_of_home
    }

    pub fn path(&self) -> &AbsPath {
        self.home
    }

    pub fn of(&self, path: &AbsPath) -> HomeEntry {
        let below = path
            .as_bytes()
            .strip_prefix(self.home.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"/"));
        below.map_or(HomeEntry::Unknown, |below| self.below(below))
    }

    /// The same for a path below the home.
    pub fn below(&self, below: &[u8]) -> HomeEntry {
        match self.entry(below) {
            Some((None, _)) => HomeEntry::Missing,
            Some((Some(kind), true)) if !matches!(kind, FileType::Symlink | FileType::Unknown) => {
                HomeEntry::Itself
            }
            _ => HomeEntry::Unknown,
        }
    }

    /// The entry of the next component in the innermost listing, and whether the path ends with it.
    fn entry(&self, below: &[u8]) -> Option<(Option<FileType>, bool)> {
        let inside = |dir: &str| match dir {
            "" => Some(below),
            dir if below.get(dir.len()) != Some(&b'/') => None,
            dir => Some(&below.strip_prefix(dir.as_bytes())?[1..]),
        };
        let innermost =
            self.listings.iter().rev().find_map(|(dir, listing)| Some((listing, inside(dir)?)));
        let (listing, rest) = innermost?;
        let (first, others) = bytes::split(rest, b'/');
        let letters = first_letters(first);
        let found = listing.binary_search_by(|(known, name, _)| {
            known.cmp(&letters).then_with(|| (**name).cmp(first))
        });
        Some((found.ok().map(|at| listing[at].2), others.is_none()))
    }
}

fn open(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(at, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn list(dir: &OwnedFd, buffer: &mut Vec<u8>) -> Option<Listing> {
    let mut listing = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut entries: Listing = Vec::with_capacity(32);
    while let Some(entry) = listing.next() {
        let entry = entry.ok()?;
        let name = entry.file_name().to_bytes();
        entries.push((first_letters(name), name.into(), entry.file_type()));
        if entries.len() > MAX_HOME_ENTRIES {
            return None;
        }
    }
    entries.sort_unstable_by(|(first, one, _), (second, other, _)| {
        first.cmp(second).then_with(|| one.cmp(other))
    });
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::bytes::Text;

    fn path(text: &str) -> AbsPath {
        AbsPath::new(Text::from_bytes(text.as_bytes().to_vec()).unwrap()).unwrap()
    }

    #[test]
    fn first_letters_sort_like_names() {
        let names: [&[u8]; 9] =
            [b"", b"\x01", b"a", b"a\x01", b"ab", b"abcdefgh", b"abcdefghi", b"b", b"\xff"];
        assert!(names.is_sorted_by_key(|name| first_letters(name)));
        assert_eq!(first_letters(b"abcdefgh"), first_letters(b"abcdefghi"));
    }

    #[test]
    fn a_listing_answers_for_missing_and_plain_names_only() {
        let name = format!("/tmp/paddock-glance-{}", std::process::id());
        std::fs::create_dir_all(format!("{name}/dir/below")).unwrap();
        std::fs::create_dir_all(format!("{name}/.local/share/tool")).unwrap();
        for (target, link) in [("dir", "link"), ("dir", ".config"), ("tool", ".local/share/linked")]
        {
            std::os::unix::fs::symlink(target, format!("{name}/{link}")).unwrap();
        }
        let home = path(&name);
        let listing_of_home = HomeListing::at(&home);
        for (below, expected) in [
            ("/dir", HomeEntry::Itself),
            ("/dir/below", HomeEntry::Unknown),
            ("/dir/missing", HomeEntry::Unknown),
            ("/link", HomeEntry::Unknown),
            ("/link/below", HomeEntry::Unknown),
            ("/missing", HomeEntry::Missing),
            ("/missing/below", HomeEntry::Missing),
            ("/.local", HomeEntry::Itself),
            ("/.local/share", HomeEntry::Itself),
            ("/.local/state", HomeEntry::Missing),
            ("/.local/state/below", HomeEntry::Missing),
            ("/.local/share/tool", HomeEntry::Itself),
            ("/.local/share/tool/below", HomeEntry::Unknown),
            ("/.local/share/linked", HomeEntry::Unknown),
            ("/.local/share/linked/below", HomeEntry::Unknown),
            ("/.local/share/missing", HomeEntry::Missing),
            ("/.local/shared", HomeEntry::Missing),
            ("/.config", HomeEntry::Unknown),
            ("/.config/missing", HomeEntry::Unknown),
            ("-evil/dir", HomeEntry::Unknown),
            ("", HomeEntry::Unknown),
        ] {
            assert_eq!(listing_of_home.of(&path(&format!("{name}{below}"))), expected, "{below}");
        }
        assert_eq!(
            HomeListing::at(&path("/nonexistent")).of(&path("/nonexistent/x")),
            HomeEntry::Unknown
        );
        std::fs::remove_dir_all(&name).unwrap();
    }
}
