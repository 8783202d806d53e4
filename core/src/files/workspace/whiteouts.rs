//! A layer of whiteouts that hides denied names below a copy-on-write workspace.
//!
//! A mount covers an existing file. When the host's editor replaces the file, the new one is
//! visible until the guard has covered it. A whiteout hides the name, whatever the host puts there,
//! at any time. The layer is in memory: init makes it, and it is gone with the mount. Each of its
//! directories is shown instead of the real one, so it has the same mode and times.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::kernel::open_beneath;
use crate::plan::wire::bytes::AbsPath;

/// The hidden names, by directory.
#[derive(Debug, Default)]
pub struct Whiteouts {
    /// Relative to the workspace, which is the empty path. A directory comes before its entries,
    /// and none is left out between.
    dirs: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    /// True: in every directory of the workspace, not only in the likely ones.
    pub everywhere: bool,
}

impl Whiteouts {
    /// Hides names in a directory, if the layer can replace it: this user must own it, because the
    /// layer's directory has this owner.
    pub fn hide(
        &mut self,
        workspace: BorrowedFd<'_>,
        dir: &[u8],
        names: impl IntoIterator<Item = Vec<u8>>,
    ) -> bool {
        let above = |end: usize| dir[..end].to_vec();
        let ends = dir.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let dirs: Vec<Vec<u8>> =
            [Vec::new()].into_iter().chain(ends.map(above)).chain([dir.to_vec()]).collect();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for part in &dirs {
            if !self.dirs.contains_key(part) && owner(workspace, part) != Ok(own) {
                return false;
            }
        }
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return true;
        }
        for part in dirs {
            self.dirs.entry(part).or_default();
        }
        self.dirs.entry(dir.to_vec()).or_default().extend(names);
        true
    }

    /// Every name, relative to the workspace.
    pub fn names(&self) -> impl Iterator<Item = Vec<u8>> {
        let whole = |dir: &[u8], name: &[u8]| {
            if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
        };
        self.dirs
            .iter()
            .flat_map(move |(dir, names)| names.iter().map(move |name| whole(dir, name)))
    }

    /// Adds a name from [`Whiteouts::names`].
    pub fn add(&mut self, path: &[u8]) {
        let mut dir: &[u8] = b"";
        self.dirs.entry(Vec::new()).or_default();
        for (slash, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            dir = &path[..slash];
            self.dirs.entry(dir.to_vec()).or_default();
        }
        let name = path[dir.len()..].strip_prefix(b"/").unwrap_or(path);
        self.dirs.entry(dir.to_vec()).or_default().insert(name.to_vec());
    }

    /// Is the path itself hidden, or a directory above it?
    pub fn hides(&self, workspace: &AbsPath, path: &AbsPath) -> bool {
        below(workspace, path).is_some_and(|below| self.hides_below(below))
    }

    fn hides_below(&self, path: &[u8]) -> bool {
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at)
            .chain([path.len()]);
        let named = |(dir, name): (&[u8], &[u8])| {
            self.dirs.get(dir).is_some_and(|names| names.contains(name))
        };
        ends.map(|end| split_last(&path[..end])).any(named)
    }

    /// Makes the layer in an empty file system, or adds to one. The overlay keeps showing what it
    /// has already cached.
    pub fn lay(&self, workspace: BorrowedFd<'_>, layer: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut path = Vec::with_capacity(256);
        // A hidden directory hides its entries.
        let shown = || self.dirs.iter().filter(|(dir, _)| !self.hides_below(dir));
        for (dir, names) in shown() {
            if !dir.is_empty() {
                settled(rustix::fs::mkdirat(layer, &dir[..], Mode::RWXU))?;
            }
            for name in names {
                path.clear();
                path.extend_from_slice(dir);
                if !dir.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                let whiteout = FileType::CharacterDevice;
                settled(rustix::fs::mknodat(
                    layer,
                    &path[..],
                    whiteout,
                    Mode::empty(),
                    rustix::fs::makedev(0, 0),
                ))?;
            }
        }
        // From the innermost outwards: each new name changes the times of its directory.
        for (dir, _) in shown().rev() {
            // If the host has removed it meanwhile, it is empty.
            let real = match open(workspace, dir).and_then(rustix::fs::fstat) {
                Ok(real) => real,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(error) => return Err(error),
            };
            let name = CString::new(if dir.is_empty() { &b"."[..] } else { dir })
                .map_err(|_| Errno::INVAL)?;
            let mode = Mode::from_raw_mode(real.st_mode & 0o7777);
            settled(rustix::fs::chmodat(layer, &name, mode, AtFlags::empty()))?;
            let time = |seconds: i64, nanoseconds: u64| Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds as _,
            };
            let times = Timestamps {
                last_access: time(real.st_atime, real.st_atime_nsec),
                last_modification: time(real.st_mtime, real.st_mtime_nsec),
            };
            settled(rustix::fs::utimensat(layer, &name, &times, AtFlags::empty()))?;
        }
        Ok(())
    }
}

/// An existing entry of the layer stays, and below a whiteout nothing has to be hidden.
fn settled(made: Result<(), Errno>) -> Result<(), Errno> {
    match made {
        Err(Errno::EXIST | Errno::NOTDIR) => Ok(()),
        made => made,
    }
}

/// The directory, relative to the workspace, and the name in it.
pub fn split<'p>(workspace: &AbsPath, path: &'p AbsPath) -> Option<(&'p [u8], &'p [u8])> {
    below(workspace, path).map(split_last)
}

fn below<'p>(workspace: &AbsPath, path: &'p AbsPath) -> Option<&'p [u8]> {
    path.as_bytes().strip_prefix(workspace.as_bytes())?.strip_prefix(b"/")
}

fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

fn open(workspace: BorrowedFd<'_>, dir: &[u8]) -> Result<std::os::fd::OwnedFd, Errno> {
    open_beneath::open(workspace.as_fd(), dir, OFlags::PATH | OFlags::DIRECTORY)
}

fn owner(workspace: BorrowedFd<'_>, dir: &[u8]) -> Result<(u32, u32), Errno> {
    let stat = rustix::fs::fstat(open(workspace, dir)?)?;
    Ok((stat.st_uid, stat.st_gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whiteouts_are_restored_from_their_names() {
        let mut whiteouts = Whiteouts::default();
        for path in [&b".env"[..], b"a/b/.env", b"a/b/id_rsa", b"a/.env", b"c/\xff/x"] {
            whiteouts.add(path);
        }
        let dirs: Vec<&[u8]> = whiteouts.dirs.keys().map(Vec::as_slice).collect();
        assert_eq!(dirs, [&b""[..], b"a", b"a/b", b"c", b"c/\xff"]);
        assert_eq!(whiteouts.dirs[&b"a/b"[..]].len(), 2);
        assert!(whiteouts.dirs[&b"c"[..]].is_empty());
        let mut again = Whiteouts::default();
        whiteouts.names().for_each(|name| again.add(&name));
        assert_eq!(again.dirs, whiteouts.dirs);
    }
}
