//! One look at the home directory.
//!
//! A plan names a hundred places under it that most homes do not have. Listing the directory once answers for all of them; a
//! system call for each would be a fifth of a launch.

use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, ResolveFlags};

use crate::text::AbsPath;

/// More than most homes hold; a longer listing costs more than it saves.
const MOST_ENTRIES: usize = 1000;
const BUFFER: usize = 32 * 1024;

pub struct Glance<'p> {
    home: &'p AbsPath,
    /// Unknown when the home can not be listed in one go.
    entries: Option<Vec<(Box<[u8]>, FileType)>>,
}

/// What the listing says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Neither the path nor what leads to it exists.
    Missing,
    /// It is there under its own name: no symlink on the way from the home.
    Itself,
    Unknown,
}

impl<'p> Glance<'p> {
    pub fn at(home: &'p AbsPath) -> Glance<'p> {
        Glance { home, entries: list(home) }
    }

    pub fn of(&self, path: &AbsPath) -> Seen {
        let below = path.as_bytes().strip_prefix(self.home.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        let (Some(entries), Some(below)) = (&self.entries, below) else { return Seen::Unknown };
        let mut names = below.splitn(2, |byte| *byte == b'/');
        let first = names.next().unwrap_or_default();
        match (entries.binary_search_by(|(name, _)| (**name).cmp(first)), names.next()) {
            (Err(_), _) => Seen::Missing,
            (Ok(at), None) if !matches!(entries[at].1, FileType::Symlink | FileType::Unknown) => Seen::Itself,
            (Ok(_), _) => Seen::Unknown,
        }
    }
}

/// In the order of their names.
fn list(home: &AbsPath) -> Option<Vec<(Box<[u8]>, FileType)>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat2(CWD, home.as_c_str(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).ok()?;
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut listing = RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut entries: Vec<(Box<[u8]>, FileType)> = Vec::with_capacity(64);
    while let Some(entry) = listing.next() {
        let entry = entry.ok()?;
        entries.push((entry.file_name().to_bytes().into(), entry.file_type()));
        if entries.len() > MOST_ENTRIES {
            return None;
        }
    }
    entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Text;

    fn path(text: &str) -> AbsPath {
        AbsPath::new(Text::from_bytes(text.as_bytes().to_vec()).unwrap()).unwrap()
    }

    #[test]
    fn a_listing_answers_for_what_is_missing_and_for_plain_names_only() {
        let name = format!("/tmp/paddock-glance-{}", std::process::id());
        std::fs::create_dir_all(format!("{name}/dir/below")).unwrap();
        std::os::unix::fs::symlink("dir", format!("{name}/link")).unwrap();
        let home = path(&name);
        let glance = Glance::at(&home);
        for (below, expected) in [
            ("/dir", Seen::Itself),
            ("/dir/below", Seen::Unknown),
            ("/dir/missing", Seen::Unknown),
            ("/link", Seen::Unknown),
            ("/link/below", Seen::Unknown),
            ("/missing", Seen::Missing),
            ("/missing/below", Seen::Missing),
            ("-evil/dir", Seen::Unknown),
            ("", Seen::Unknown),
        ] {
            assert_eq!(glance.of(&path(&format!("{name}{below}"))), expected, "{below}");
        }
        assert_eq!(Glance::at(&path("/nonexistent")).of(&path("/nonexistent/x")), Seen::Unknown);
        std::fs::remove_dir_all(&name).unwrap();
    }
}
