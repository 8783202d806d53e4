//! The entries of an index at protected and denied names.
//!
//! `git checkout .` and `git restore` write the content of an entry into the work tree. So a new
//! index has the entries of the old one there, or those of the files that are there now: the command
//! can not write these files. An entry may go.

use std::os::fd::AsFd as _;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::judge::{self, WriteJudge};
use crate::files::git::{self, ChangedEntry, IndexChange};

/// A longer file at a protected name gets no new entry.
const MAX_FILE_BYTES: usize = 16 * 1024 * 1024;

/// The modes of entries. Others are directories: a submodule, or a tree of a sparse index.
const SYMLINK: u32 = 0o120_000;
const FILES: [u32; 2] = [0o100_644, PROGRAM];
const PROGRAM: u32 = 0o100_755;

impl WriteJudge {
    /// The first entry that would give other content to a protected or denied name, for a message.
    pub fn refused_entry(
        &mut self,
        git_dir: &[u8],
        index: &[u8],
    ) -> Result<Option<Vec<u8>>, Errno> {
        // Another rule judges an index that can not be read.
        if index.is_empty() {
            return Ok(None);
        }
        let Some(change) = git::index_change(git_dir, index) else { return Ok(None) };
        for entry in &change.entries {
            let path =
                [&change.work_tree[..], b"/", entry.path.strip_suffix(b"/").unwrap_or(&entry.path)]
                    .concat();
            let file_type = match entry.mode {
                SYMLINK => FileType::Symlink,
                mode if FILES.contains(&mode) => FileType::RegularFile,
                _ => FileType::Directory,
            };
            let is_refused = match self.decide_entry(&path, file_type)? {
                judge::WriteDecision::Protected => !is_of_file(&change, entry, &path),
                judge::WriteDecision::Denied => true,
                judge::WriteDecision::Free | judge::WriteDecision::ByContent(_) => false,
            };
            if is_refused {
                return Ok(Some([b"the entry ", &entry.path[..]].concat()));
            }
        }
        Ok(None)
    }
}

/// Is it the entry of the file that has this name now?
fn is_of_file(change: &IndexChange, entry: &ChangedEntry, path: &[u8]) -> bool {
    let content = match entry.mode {
        SYMLINK => link_target(path),
        mode if FILES.contains(&mode) => content_of(path, mode == PROGRAM),
        _ => Ok(None),
    };
    content.is_ok_and(|content| content.is_some_and(|content| change.has_content(entry, &content)))
}

/// None: it is too long, or no file of this kind.
fn content_of(path: &[u8], is_program: bool) -> Result<Option<Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let file = rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&file)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || (is_program && !mode.contains(Mode::XUSR))
    {
        return Ok(None);
    }
    judge::read_open(file.as_fd(), MAX_FILE_BYTES)
}

fn link_target(path: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    let dir = rustix::fs::openat2(CWD, git::parent_of(path), flags, Mode::empty(), resolve)?;
    let name = &path[git::parent_of(path).len() + 1..];
    rustix::fs::readlinkat(dir, name, Vec::new()).map(|target| Some(target.into_bytes()))
}
