//! Where a path really lies: by device and inode, after every symlink, also when its end does not exist (yet).

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// As many symlinks as the kernel follows in one path.
const MAX_SYMLINKS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub device: u64,
    inode: u64,
}

impl Identity {
    pub fn inode(self) -> u64 {
        self.inode
    }
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino }
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

    /// Every place that a path stands for: where its last name is, and, while that is a symlink, where the link points.
    pub fn all_of(path: &[u8]) -> Result<Vec<Place>, Errno> {
        let mut places = Vec::with_capacity(1);
        let mut path = PathBuf::from(OsStr::from_bytes(path));
        for _ in 0..MAX_SYMLINKS {
            let (place, link) = locate(&path)?;
            places.push(place);
            match link {
                Some(target) => path = target,
                None => return Ok(places),
            }
        }
        Err(Errno::LOOP)
    }
}

/// A path after all its symlinks.
pub struct Followed {
    pub real: PathBuf,
    pub links: Vec<Link>,
}

/// A symlink met on the way: where it stands (no link leads there), and what it says.
#[derive(Clone, Debug)]
pub struct Link {
    pub at: PathBuf,
    pub target: CString,
}

/// Walks a path as the kernel would, one name at a time, to see whose links lead it.
pub fn follow(path: &[u8]) -> Result<Followed, Errno> {
    let names = |path: &Path| -> Vec<OsString> { path.iter().map(OsStr::to_owned).rev().collect() };
    let mut ahead = names(Path::new(OsStr::from_bytes(path)));
    let mut followed = Followed { real: PathBuf::from("/"), links: Vec::new() };
    while let Some(name) = ahead.pop() {
        match name.as_bytes() {
            b"/" => followed.real = PathBuf::from("/"),
            b"." => {}
            b".." => {
                followed.real.pop();
            }
            _ => {
                let here = followed.real.join(&name);
                let stat = match rustix::fs::lstat(&here) {
                    // What is not there is no link; the rest of the name lies below it.
                    Err(Errno::NOENT) => None,
                    found => Some(found?),
                };
                if stat.is_none_or(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Symlink) {
                    followed.real = here;
                    continue;
                }
                if followed.links.len() == MAX_SYMLINKS {
                    return Err(Errno::LOOP);
                }
                let target = rustix::fs::readlink(&here, Vec::new())?;
                ahead.extend(names(Path::new(OsStr::from_bytes(target.as_bytes()))));
                followed.links.push(Link { at: here, target });
            }
        }
    }
    Ok(followed)
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

/// One name without following it, and the path it leads to if it is a symlink.
fn locate(path: &Path) -> Result<(Place, Option<PathBuf>), Errno> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok((Place::of_dir(open_dir(path)?)?, None)); // the root
    };
    let (dir, existing) = match open_dir(above) {
        Ok(dir) => (dir, above),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return locate_missing(path, above),
        Err(error) => return Err(error),
    };
    match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => {
            let place = Place { object: Some(Identity::from(&stat)), above: climb(&dir)? };
            let link = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => Some(existing.join(target(&dir, name)?)),
                _ => None,
            };
            Ok((place, link))
        }
        Err(Errno::NOENT) => Ok((Place { object: None, above: climb(&dir)? }, None)),
        // What can not be looked into stays outside as a whole.
        Err(Errno::ACCESS) => locate(above),
        Err(error) => Err(error),
    }
}

/// The parent does not exist: the place is where the first missing name would be made. A symlink that dangles there moves it.
fn locate_missing(path: &Path, above: &Path) -> Result<(Place, Option<PathBuf>), Errno> {
    let (place, link) = locate(above)?;
    let rest = path.strip_prefix(above).unwrap_or(path);
    let link = link.map(|target| target.join(rest));
    // A parent that exists but is no directory, or can not be entered, is kept as it is found.
    Ok((place, link))
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIR, Mode::empty())
}

fn target(dir: &OwnedFd, name: &OsStr) -> Result<PathBuf, Errno> {
    let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
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
