//! Opens paths below an open directory. No symlink is followed, no path leaves the directory, and
//! the path may be longer than PATH_MAX.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The longest path that the kernel takes in one call: PATH_MAX without its NUL.
const MAX_PATH_BYTES: usize = 4095;

/// openat2(2) gives EAGAIN while another process renames a directory of the path.
pub const MAX_RETRIES: usize = 1000;

const PATH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens `path`, relative to `root` and without an empty, `.` or `..` component; an empty path is
/// the root itself.
pub fn open(root: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if path.is_empty() {
        return reopen(&root, flags);
    }
    let mut rest = path;
    let mut step: Option<OwnedFd> = None;
    while rest.len() > MAX_PATH_BYTES {
        let cut = rest[..MAX_PATH_BYTES]
            .iter()
            .rposition(|byte| *byte == b'/')
            .ok_or(Errno::NAMETOOLONG)?;
        step = Some(match &step {
            Some(above) => resolve(above, &rest[..cut], PATH_DIR)?,
            None => resolve(&root, &rest[..cut], PATH_DIR)?,
        });
        rest = &rest[cut + 1..];
    }
    match &step {
        Some(above) => resolve(above, rest, flags),
        None => resolve(root, rest, flags),
    }
}

/// Opens an open directory again. `.` would need search permission, so it is not used.
fn reopen(dir: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    if flags.contains(OFlags::PATH) {
        return rustix::io::fcntl_dupfd_cloexec(dir, 0);
    }
    let mut buffer = [0; 32];
    rustix::fs::open(
        proc_fd_path(&dir, &mut buffer),
        flags.difference(OFlags::NOFOLLOW),
        Mode::empty(),
    )
}

fn resolve(root: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..MAX_RETRIES {
        match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
            // A directory of the path was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // An outer seccomp filter hides openat2. Opening one name at a time gives the same
            // result.
            Err(Errno::NOSYS) => return name_by_name(root, path, flags),
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

fn name_by_name(root: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut names = path.split(|byte| *byte == b'/');
    let last = names.next_back().ok_or(Errno::NOENT)?;
    let mut above: Option<OwnedFd> = None;
    for name in names {
        let flags = PATH_DIR | OFlags::NOFOLLOW;
        above = Some(match &above {
            Some(above) => rustix::fs::openat(above, name, flags, Mode::empty())?,
            None => rustix::fs::openat(&root, name, flags, Mode::empty())?,
        });
    }
    match &above {
        Some(above) => rustix::fs::openat(above, last, flags, Mode::empty()),
        None => rustix::fs::openat(&root, last, flags, Mode::empty()),
    }
}

/// Opens an absolute path with O_PATH. ELOOP: a symlink is on the way, or is the object itself.
pub fn open_without_symlinks(path: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve) {
        // A filter hides it. Init of a run hides it for O_PATH alone.
        Err(Errno::NOSYS) => {}
        opened => return opened,
    }
    let mut found = rustix::fs::open(c"/", PATH_DIR, Mode::empty())?;
    for name in path.to_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let object = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        found = rustix::fs::openat(&found, name, object, Mode::empty())?;
        let file_type = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
        if file_type == FileType::Symlink {
            return Err(Errno::LOOP);
        }
    }
    let file_type = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    match flags.contains(OFlags::DIRECTORY) && file_type != FileType::Directory {
        true => Err(Errno::NOTDIR),
        false => Ok(found),
    }
}

/// Opens an entry with O_PATH. A symlink at the end is opened itself.
pub fn open_path_only(root: impl AsFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    open(root, path, OFlags::PATH)
}

/// The path below /proc/self/fd that opens this file again, even if the file was renamed.
pub fn proc_fd_path(file: impl AsFd, buffer: &mut [u8; 32]) -> &CStr {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let mut rest = &mut buffer[..];
    let _ = write!(rest, "/proc/self/fd/{}\0", file.as_fd().as_raw_fd());
    CStr::from_bytes_until_nul(buffer).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlinks_and_parents_are_not_opened() {
        let dir = std::env::temp_dir().join(format!("paddock-beneath-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", dir.join("link")).unwrap();
        let root = rustix::fs::open(&dir, PATH_DIR, Mode::empty()).unwrap();
        for (path, flags, opens) in [
            (&b"a/b"[..], OFlags::RDONLY, true),
            (b"link/b", OFlags::RDONLY, false),
            (b"link", OFlags::RDONLY, false),
            (b"link", OFlags::PATH, true),
        ] {
            assert_eq!(resolve(&root, path, flags | OFlags::NOFOLLOW).is_ok(), opens);
            assert_eq!(name_by_name(&root, path, flags | OFlags::NOFOLLOW).is_ok(), opens);
        }
        assert!(open(&root, b"../..", OFlags::PATH).is_err());
        assert!(open(&root, b"", OFlags::PATH).is_ok());
        let mut buffer = [0; 32];
        assert_eq!(
            std::fs::read_link(proc_fd_path(root.as_fd(), &mut buffer).to_str().unwrap()).unwrap(),
            dir
        );
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_path_longer_than_path_max_is_opened() {
        let dir = std::env::temp_dir().join(format!("paddock-deep-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let root = rustix::fs::open(&dir, PATH_DIR, Mode::empty()).unwrap();
        let name = "d".repeat(200);
        let mut at = root.try_clone().unwrap();
        for _ in 0..45 {
            rustix::fs::mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, name.as_str(), PATH_DIR, Mode::empty()).unwrap();
        }
        let path = vec![name; 45].join("/");
        let opened = open(&root, path.as_bytes(), OFlags::RDONLY).unwrap();
        assert_eq!(
            rustix::fs::fstat(&opened).unwrap().st_ino,
            rustix::fs::fstat(&at).unwrap().st_ino
        );
        std::fs::remove_dir_all(dir).unwrap();
    }
}
