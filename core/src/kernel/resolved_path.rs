//! Where a path really lies: by device and inode, after every symlink, also when its end does not
//! exist (yet).

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
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

/// An object for good: the number of one that is removed may be given to the next. The birth tells
/// them apart. Where the file system does not know it, the last change does: then an object that
/// was changed is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    pub identity: Identity,
    /// Seconds and nanoseconds.
    pub born: (i64, u32),
}

impl Object {
    /// What has a name in a directory, without following it. No name: the open object itself.
    pub fn at(dir: impl AsFd, name: &CStr) -> Result<Object, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let found =
            rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let time = if has_birth { found.stx_btime } else { found.stx_ctime };
        let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        Ok(Object {
            identity: Identity { device, inode: found.stx_ino },
            born: (time.tv_sec, time.tv_nsec),
        })
    }

    /// Is it the one of these, in order, that has its number?
    pub fn is_among(self, known: &[Object]) -> bool {
        known.binary_search(&self).is_ok()
    }
}

#[derive(Clone, Debug)]
pub struct Place {
    /// The thing itself; None when nothing has that name yet.
    pub object: Option<Identity>,
    /// The directories above it: its parent (or the nearest one that exists) first, the root last.
    pub above: Vec<Identity>,
}

impl Place {
    /// The place of an open directory.
    pub fn of_dir(dir: impl AsFd) -> Result<Place, Errno> {
        let mut chain = climb(dir)?;
        let object = Some(chain.remove(0));
        Ok(Place { object, above: chain })
    }

    /// Every place that a path stands for: each symlink on the way, and where it leads in the end.
    pub fn all_of(path: &[u8]) -> Result<Vec<Place>, Errno> {
        let followed = follow(path)?;
        let mut places: Vec<Place> = followed.links.into_iter().map(|link| link.place).collect();
        places.push(followed.place);
        Ok(places)
    }

    pub fn is_within(&self, tree: Identity) -> bool {
        self.object == Some(tree) || self.above.contains(&tree)
    }
}

/// A path after all its symlinks.
pub struct Followed {
    pub real: PathBuf,
    pub place: Place,
    pub links: Vec<Link>,
}

/// A symlink met on the way: where it stands (no link leads there), and what it says.
#[derive(Clone, Debug)]
pub struct Link {
    pub at: PathBuf,
    pub place: Place,
    pub target: CString,
}

/// Walks a path as the kernel would, one name at a time, to see whose links lead it.
///
/// Only what does not exist has no links. A directory that can not be entered may hold one; if it
/// belongs to somebody else, no command of this user has shut it and none gets through it, so it
/// stands for all below. Our own one is an error: a fenced command can shut it, because Landlock
/// does not judge chmod.
pub fn follow(path: &[u8]) -> Result<Followed, Errno> {
    let names = |path: &Path| -> Vec<OsString> { path.iter().map(OsStr::to_owned).rev().collect() };
    let mut ahead = names(Path::new(OsStr::from_bytes(path)));
    let mut real = PathBuf::from("/");
    // Of the directories on the way, the root first.
    let mut chain = vec![Identity::from(&rustix::fs::lstat("/")?)];
    let mut end = End::Found;
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
                if end == End::Found && chain.len() > 1 {
                    chain.pop();
                }
                continue;
            }
            _ => real.join(&name),
        };
        if end != End::Found {
            real = here;
            continue;
        }
        let stat = match rustix::fs::lstat(&here) {
            Ok(stat) => stat,
            Err(errno) => {
                end = End::after(errno, &real)?;
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
        let place = Place {
            object: Some(Identity::from(&stat)),
            above: chain.iter().rev().copied().collect(),
        };
        links.push(Link { at: here, place, target });
    }
    chain.reverse();
    let object = match end {
        End::Missing => None,
        End::Found | End::Shut => Some(chain.remove(0)),
    };
    Ok(Followed { real, place: Place { object, above: chain }, links })
}

/// How the known part of a path ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Found,
    /// The next name is not there.
    Missing,
    /// Nobody can look further: the last thing found stands for all below.
    Shut,
}

impl End {
    fn after(errno: Errno, dir: &Path) -> Result<End, Errno> {
        match errno {
            Errno::NOENT => Ok(End::Missing),
            Errno::NOTDIR => Ok(End::Shut),
            Errno::ACCESS
                if rustix::fs::lstat(dir)?.st_uid != rustix::process::getuid().as_raw() =>
            {
                Ok(End::Shut)
            }
            errno => Err(errno),
        }
    }
}

pub fn of_current_directory() -> Result<Identity, Errno> {
    rustix::fs::stat(".").map(|stat| Identity::from(&stat))
}

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// From a directory up to the root, itself first.
fn climb(dir: impl AsFd) -> Result<Vec<Identity>, Errno> {
    let mut chain = vec![Identity::from(&rustix::fs::fstat(&dir)?)];
    let mut parent = rustix::fs::openat(&dir, c"..", DIR, Mode::empty())?;
    loop {
        let identity = Identity::from(&rustix::fs::fstat(&parent)?);
        if chain.last() == Some(&identity) {
            return Ok(chain);
        }
        chain.push(identity);
        parent = rustix::fs::openat(&parent, c"..", DIR, Mode::empty())?;
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIR, Mode::empty())
}

/// The path under which the kernel knows an open file.
pub fn resolved_path(file: impl AsFd) -> Result<CString, Errno> {
    use std::os::fd::AsRawFd as _;
    rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()), Vec::new())
}

/// The place of an open file that is no directory.
pub fn place_of_file(file: impl AsFd) -> Result<Place, Errno> {
    let stat = rustix::fs::fstat(&file)?;
    let path = resolved_path(&file)?;
    let parent = Path::new(OsStr::from_bytes(path.as_bytes())).parent().ok_or(Errno::NOENT)?;
    let dir = open_dir(parent)?;
    Ok(Place { object: Some(Identity::from(&stat)), above: climb(dir)? })
}

/// Opens one entry of a directory for looking only, and not through a symlink.
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
    fn a_walk_tells_every_link_and_where_the_path_ends() {
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
                assert_eq!(followed.place.object, Some(identity(&real)), "{path}");
            } else {
                // Below a file nothing can be: the file stands for all of it.
                let file = (path == "file/x").then(|| identity(&root.join("file")));
                assert_eq!(followed.place.object, file, "{path}");
            }
            assert!(followed.place.is_within(identity(&root)), "{path}");
            for link in &followed.links {
                assert_eq!(link.place.above[0], identity(link.at.parent().unwrap()), "{path}");
            }
        }
        for path in list(&examples["loops"]) {
            assert!(matches!(follow(root.join(path).as_os_str().as_bytes()), Err(Errno::LOOP)));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
