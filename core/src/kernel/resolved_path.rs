//! Resolves a path to device and inode after every symlink, also if its last part does not exist
//! yet.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Statx, StatxFlags};
use rustix::io::Errno;

/// As many symlinks as the kernel follows in one path.
const MAX_SYMLINKS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub device: u64,
    inode: u64,
}

impl Identity {
    pub fn device(self) -> u64 {
        self.device
    }

    pub fn inode(self) -> u64 {
        self.inode
    }
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl From<(u64, u64)> for Identity {
    fn from((device, inode): (u64, u64)) -> Identity {
        Identity { device, inode }
    }
}

/// Identifies a file even after its inode number is reused: the birth time differs. If the file
/// system has no birth time, the time of the last change is used. Then a changed file counts as
/// another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    pub identity: Identity,
    /// Birth time in seconds and nanoseconds.
    pub born: (i64, u32),
}

impl Object {
    /// The file with this name in a directory; a symlink is not followed. An empty name means the
    /// open file itself.
    pub fn at(dir: impl AsFd, name: &CStr) -> Result<Object, Errno> {
        let found = statx(dir, name)?;
        let time = if has_birth(&found) { found.stx_btime } else { found.stx_ctime };
        Ok(Object { identity: Identity::from(&found), born: (time.tv_sec, time.tv_nsec) })
    }

    /// True if `known`, which is sorted, contains this file.
    pub fn is_in(self, known: &[Object]) -> bool {
        known.binary_search(&self).is_ok()
    }
}

impl From<&Statx> for Identity {
    fn from(found: &Statx) -> Identity {
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        Identity { device, inode: found.stx_ino }
    }
}

/// The file with this path, and its birth time in nanoseconds; a symlink is not followed. None: the
/// file system has no birth times.
pub fn birth(path: &Path) -> Result<(Identity, Option<i64>), Errno> {
    const NS_PER_S: i64 = 1_000_000_000;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let found = statx(rustix::fs::CWD, &path)?;
    let time = found.stx_btime;
    let born_ns = has_birth(&found)
        .then(|| time.tv_sec.checked_mul(NS_PER_S)?.checked_add(time.tv_nsec.into()))
        .flatten();
    Ok((Identity::from(&found), born_ns))
}

fn statx(dir: impl AsFd, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

fn has_birth(found: &Statx) -> bool {
    StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME)
}

#[derive(Clone, Debug)]
pub struct ResolvedPath {
    /// The file itself. None: nothing has this name yet.
    pub object: Option<Identity>,
    /// The directories above it. The parent (or the nearest existing one) comes first, the root
    /// last.
    pub above: Vec<Identity>,
}

impl ResolvedPath {
    pub fn of_dir(dir: impl AsFd) -> Result<ResolvedPath, Errno> {
        let mut chain = ancestors_of(dir)?;
        let object = Some(chain.remove(0));
        Ok(ResolvedPath { object, above: chain })
    }

    /// Every location that the path touches: each symlink on the way, and the final target.
    pub fn all_of(path: &[u8]) -> Result<Vec<ResolvedPath>, Errno> {
        let followed = follow(path)?;
        let mut resolved_paths: Vec<ResolvedPath> =
            followed.links.into_iter().map(|link| link.resolved).collect();
        resolved_paths.push(followed.resolved);
        Ok(resolved_paths)
    }

    pub fn is_within(&self, tree: Identity) -> bool {
        self.object == Some(tree) || self.above.contains(&tree)
    }
}

/// A path with all symlinks followed.
pub struct FollowedPath {
    pub real: PathBuf,
    pub resolved: ResolvedPath,
    pub links: Vec<FollowedLink>,
}

/// A symlink on the path: its own location (without links), and its target text.
#[derive(Clone, Debug)]
pub struct FollowedLink {
    pub at: PathBuf,
    pub resolved: ResolvedPath,
    pub target: CString,
}

/// Walks a path one name at a time, as the kernel does, and records every symlink.
///
/// A name that does not exist has no links. A directory that can not be entered may contain one. If
/// another user owns that directory, no command of this user closed it and none gets through it.
/// Then the directory stands for everything below it. A closed directory of this user is an error:
/// a sandboxed command can close it, because Landlock does not check chmod.
pub fn follow(path: &[u8]) -> Result<FollowedPath, Errno> {
    let names = |path: &Path| -> Vec<OsString> { path.iter().map(OsStr::to_owned).rev().collect() };
    let mut ahead = names(Path::new(OsStr::from_bytes(path)));
    let mut real = PathBuf::from("/");
    // Identities of the directories on the path, the root first.
    let mut chain = vec![Identity::from(&rustix::fs::lstat("/")?)];
    let mut end = WalkEnd::Found;
    let mut links = Vec::new();
    while let Some(name) = ahead.pop() {
        let here = match name.as_bytes() {
            b"/" => {
                real = PathBuf::from("/");
                chain.truncate(1);
                continue;
            }
            b"." => continue,
            b".." => {
                real.pop();
                if end == WalkEnd::Found && chain.len() > 1 {
                    chain.pop();
                }
                continue;
            }
            _ => real.join(&name),
        };
        if end != WalkEnd::Found {
            real = here;
            continue;
        }
        let stat = match rustix::fs::lstat(&here) {
            Ok(stat) => stat,
            Err(errno) => {
                end = WalkEnd::after(errno, &real)?;
                real = here;
                continue;
            }
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            chain.push(Identity::from(&stat));
            real = here;
            continue;
        }
        if links.len() == MAX_SYMLINKS {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlink(&here, Vec::new())?;
        ahead.extend(names(Path::new(OsStr::from_bytes(target.as_bytes()))));
        let resolved = ResolvedPath {
            object: Some(Identity::from(&stat)),
            above: chain.iter().rev().copied().collect(),
        };
        links.push(FollowedLink { at: here, resolved, target });
    }
    chain.reverse();
    let object = match end {
        WalkEnd::Missing => None,
        WalkEnd::Found | WalkEnd::Shut => Some(chain.remove(0)),
    };
    Ok(FollowedPath { real, resolved: ResolvedPath { object, above: chain }, links })
}

/// How the walk ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkEnd {
    Found,
    /// The next name does not exist.
    Missing,
    /// The next name can not be looked up. The last directory stands for everything below it.
    Shut,
}

impl WalkEnd {
    fn after(errno: Errno, dir: &Path) -> Result<WalkEnd, Errno> {
        match errno {
            Errno::NOENT => Ok(WalkEnd::Missing),
            Errno::NOTDIR => Ok(WalkEnd::Shut),
            Errno::ACCESS
                if rustix::fs::lstat(dir)?.st_uid != rustix::process::getuid().as_raw() =>
            {
                Ok(WalkEnd::Shut)
            }
            errno => Err(errno),
        }
    }
}

pub fn current_directory_identity() -> Result<Identity, Errno> {
    rustix::fs::stat(".").map(|stat| Identity::from(&stat))
}

const PATH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Identities of a directory and of all directories above it, up to the root.
fn ancestors_of(dir: impl AsFd) -> Result<Vec<Identity>, Errno> {
    let mut chain = vec![Identity::from(&rustix::fs::fstat(&dir)?)];
    let mut parent = rustix::fs::openat(&dir, c"..", PATH_DIR, Mode::empty())?;
    loop {
        let identity = Identity::from(&rustix::fs::fstat(&parent)?);
        if chain.last() == Some(&identity) {
            return Ok(chain);
        }
        chain.push(identity);
        parent = rustix::fs::openat(&parent, c"..", PATH_DIR, Mode::empty())?;
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, PATH_DIR, Mode::empty())
}

/// The path of an open file, as the kernel knows it.
pub fn resolved_path(file: impl AsFd) -> Result<CString, Errno> {
    use std::os::fd::AsRawFd as _;
    rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), Vec::new())
}

/// The location of an open file that is not a directory.
pub fn resolved_file(file: impl AsFd) -> Result<ResolvedPath, Errno> {
    let stat = rustix::fs::fstat(&file)?;
    let path = resolved_path(&file)?;
    let parent = Path::new(OsStr::from_bytes(path.as_bytes())).parent().ok_or(Errno::NOENT)?;
    let dir = open_dir(parent)?;
    Ok(ResolvedPath { object: Some(Identity::from(&stat)), above: ancestors_of(dir)? })
}

/// Opens one entry of a directory with O_PATH. A symlink is not followed.
pub fn open_entry(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const EXAMPLES: &str = include_str!("../../../schema/examples/paths.json");

    /// Python's `follow` (src/paddock/text/path_walk.py) is held to the same examples.
    #[test]
    fn a_walk_records_every_symlink_and_the_end() {
        let root = std::env::temp_dir()
            .canonicalize()
            .unwrap()
            .join(format!("paddock-place-{}", std::process::id()));
        let examples: serde_json::Value = serde_json::from_str(EXAMPLES).unwrap();
        let tree = &examples["tree"];
        let list = |value: &serde_json::Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(|name| name.as_str().unwrap().into()).collect()
        };
        for name in list(&tree["directories"]) {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in list(&tree["files"]) {
            std::fs::write(root.join(name), "").unwrap();
        }
        for (name, target) in tree["links"].as_object().unwrap() {
            let target = target.as_str().unwrap().replace("{root}", root.to_str().unwrap());
            symlink(target, root.join(name)).unwrap();
        }
        let identity = |path: &Path| Identity::from(&rustix::fs::lstat(path).unwrap());
        for example in examples["paths"].as_array().unwrap() {
            let path = example["path"].as_str().unwrap();
            let followed = follow(root.join(path).as_os_str().as_bytes()).unwrap();
            let real = root.join(example["real"].as_str().unwrap());
            assert_eq!(followed.real, real, "{path}");
            let at: Vec<&Path> =
                followed.links.iter().map(|link| link.at.strip_prefix(&root).unwrap()).collect();
            let links = list(&example["links"]);
            assert_eq!(at, links.iter().map(Path::new).collect::<Vec<_>>(), "{path}");
            if example["exists"] == true {
                assert_eq!(followed.resolved.object, Some(identity(&real)), "{path}");
            } else {
                // Below a file nothing can be: the file stands for all of it.
                let file = (path == "file/x").then(|| identity(&root.join("file")));
                assert_eq!(followed.resolved.object, file, "{path}");
            }
            assert!(followed.resolved.is_within(identity(&root)), "{path}");
            for link in &followed.links {
                assert_eq!(link.resolved.above[0], identity(link.at.parent().unwrap()), "{path}");
            }
        }
        for path in list(&examples["loops"]) {
            assert!(matches!(follow(root.join(path).as_os_str().as_bytes()), Err(Errno::LOOP)));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
