//! The private temporary directory of a run: made, locked, granted, and removed at the end with its
//! content.
//!
//! Removal works by descriptor and never follows a symlink. The content may be nested deeper than
//! there are descriptors: a directory below a certain depth is first moved up to the top.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::kernel::resolved_path;
use crate::plan;
use crate::plan::wire::bytes::AbsPath;

const MAX_DEPTH: usize = 32;
/// Rounds over the top directory. Each one removes what earlier rounds moved there.
const MAX_ROUNDS: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum TempError {
    #[error("cannot create the private temporary directory in {parent}: {source}")]
    Make { parent: AbsPath, source: Errno },
    #[error("cannot remove the private temporary directory {path}: {source}", path = .path.to_string_lossy())]
    Remove { path: CString, source: Errno },
}

pub struct TempDir {
    parent: OwnedFd,
    name: CString,
    path: CString,
    /// Holds the lock that marks this directory as in use.
    dir: OwnedFd,
}

const LIST_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl TempDir {
    pub fn make(parent_path: &AbsPath, uid: u32, session: &str) -> Result<TempDir, TempError> {
        let failed = |source| TempError::Make { parent: parent_path.clone(), source };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent =
            rustix::fs::open(parent_path.as_c_str(), flags, Mode::empty()).map_err(failed)?;
        let name = format!("{}{session}", plan::temp_name_prefix(uid));
        let separator: &[u8] = if parent_path.as_bytes() == b"/" { b"" } else { b"/" };
        let path = [parent_path.as_bytes(), separator, name.as_bytes()].concat();
        let (name, path) = match (CString::new(name), CString::new(path)) {
            (Ok(name), Ok(path)) => (name, path),
            _ => return Err(failed(Errno::INVAL)),
        };
        // The umask could take from 0700 what the command needs.
        let umask = rustix::process::umask(Mode::empty());
        let made = rustix::fs::mkdirat(&parent, name.as_c_str(), Mode::RWXU);
        rustix::process::umask(umask);
        made.map_err(failed)?;
        let dir = rustix::fs::openat(&parent, name.as_c_str(), LIST_FLAGS, Mode::empty())
            .map_err(failed)?;
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        Ok(TempDir { parent, name, path, dir })
    }

    pub fn path(&self) -> &CStr {
        &self.path
    }

    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub fn remove(self) -> Result<(), TempError> {
        let removed = self.empty_and_remove();
        removed.map_err(|source| TempError::Remove { path: self.path, source })
    }

    fn empty_and_remove(&self) -> Result<(), Errno> {
        // It is usually empty.
        let mut last =
            match rustix::fs::unlinkat(&self.parent, self.name.as_c_str(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(error) => error,
            };
        let mut moved = 0;
        for _ in 0..MAX_ROUNDS {
            // The command may have removed its owner's rights.
            make_accessible(&self.dir)?;
            empty(self.dir.as_fd(), self.dir.as_fd(), 0, &mut moved)?;
            match rustix::fs::unlinkat(&self.parent, self.name.as_c_str(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// Removes the content of `dir`. Directories that are too deep are moved to `top` for another
/// round.
fn empty(
    top: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    depth: usize,
    moved: &mut usize,
) -> Result<(), Errno> {
    // A new file description: listing moves its position.
    let listed = rustix::fs::openat(dir, c".", LIST_FLAGS, Mode::empty())?;
    let mut buffer = Vec::with_capacity(8 * 1024);
    let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let directory = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => is_directory(dir, name)?,
            _ => false,
        };
        if !directory {
            ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::empty()))?;
            continue;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(_) => {}
        }
        make_accessible(resolved_path::open_entry(dir, name)?)?;
        if depth < MAX_DEPTH {
            let below = rustix::fs::openat(dir, name, LIST_FLAGS, Mode::empty())?;
            empty(top, below.as_fd(), depth + 1, moved)?;
            ignore_missing(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR))?;
        } else {
            *moved += 1;
            rustix::fs::renameat(dir, name, top, format!(".paddock-deep-{moved}"))?;
        }
    }
    Ok(())
}

fn is_directory(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// chmod through the descriptor: by name it would follow a symlink.
fn make_accessible(dir: impl AsFd) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(&dir)?;
    if stat.st_mode & 0o700 == 0o700 || FileType::from_raw_mode(stat.st_mode) != FileType::Directory
    {
        return Ok(());
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()), Mode::RWXU)
}

fn ignore_missing(result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
