//! Git's configurations, `.git` files and entries of work trees from before the run: they keep what
//! leads git to a remote or to a repository. The command may change and remove those that it has
//! made in this run.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::judge::{WriteJudge, read_file};
use crate::files::git::{self, ConfigFile, Role};

/// So many files are remembered. A further one that is made counts as from before the run. A further
/// one from before the run can not be changed.
const MAX_PLACED_FILES: usize = 4096;

/// A file as it was when it was put in place. Each change by another process changes the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl From<&Stat> for FileVersion {
    fn from(stat: &Stat) -> FileVersion {
        let changed = (stat.st_ctime, stat.st_ctime_nsec as i64);
        FileVersion { device: stat.st_dev, inode: stat.st_ino, changed }
    }
}

/// The files that this run has put in place, by path.
#[derive(Debug, Default)]
pub struct PlacedFiles {
    files: BTreeMap<Vec<u8>, PlacedFile>,
}

#[derive(Debug)]
struct PlacedFile {
    version: FileVersion,
    origin: FileOrigin,
}

/// Where a file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileOrigin {
    /// The command has made it in this run, or makes it now.
    Made,
    /// It had this text before the run.
    Before(Vec<u8>),
    /// It is from before the run, and can not be read.
    Unknown,
}

/// The judgement of a content.
pub enum ContentVerdict {
    Harmless(FileOrigin),
    /// The setting that would change. Empty: the content is harmful by itself.
    Refused(Vec<u8>),
}

impl PlacedFiles {
    fn origin(&self, path: &[u8], version: FileVersion) -> Option<&FileOrigin> {
        self.files.get(path).filter(|placed| placed.version == version).map(|placed| &placed.origin)
    }

    /// Forgets files that other processes have changed or removed, if there is no room.
    fn has_room(&mut self, path: &[u8]) -> bool {
        if self.files.len() >= MAX_PLACED_FILES && !self.files.contains_key(path) {
            self.files.retain(|path, placed| version_of(path) == Some(placed.version));
        }
        self.files.len() < MAX_PLACED_FILES || self.files.contains_key(path)
    }

    fn put(&mut self, path: &[u8], version: FileVersion, origin: FileOrigin) {
        if self.has_room(path) {
            self.files.insert(path.to_vec(), PlacedFile { version, origin });
        }
    }

    /// A directory was renamed, or two were exchanged.
    fn rename(&mut self, old: &[u8], new: &[u8]) {
        let moved = |path: &[u8]| {
            let below = |dir: &[u8]| path.strip_prefix(dir).filter(|rest| rest.starts_with(b"/"));
            let to =
                below(old).map(|rest| (new, rest)).or_else(|| below(new).map(|rest| (old, rest)));
            to.map(|(dir, rest)| [dir, rest].concat())
        };
        let files = std::mem::take(&mut self.files).into_iter();
        self.files = files.map(|(path, placed)| (moved(&path).unwrap_or(path), placed)).collect();
    }
}

pub(super) fn version_of(path: &[u8]) -> Option<FileVersion> {
    rustix::fs::lstat(path).ok().map(|stat| FileVersion::from(&stat))
}

/// Is the text of a file with this role kept, or a part of it?
fn is_kept(role: Role) -> bool {
    role == Role::Config || pointer(role).is_some()
}

/// The name of the only setting of a file that leads git to a directory.
fn pointer(role: Role) -> Option<&'static [u8]> {
    match role {
        Role::GitFile | Role::GitDir => Some(b"gitdir"),
        Role::CommonDir => Some(b"commondir"),
        _ => None,
    }
}

fn config_file(path: &[u8]) -> ConfigFile {
    match path.ends_with(b"/config.worktree") {
        true => ConfigFile::WorkTree,
        false => ConfigFile::Repository,
    }
}

impl WriteJudge {
    /// `current`: the text of the file, if it was read already.
    pub fn origin(
        &self,
        role: Role,
        dir: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        current: Option<&[u8]>,
    ) -> Result<FileOrigin, Errno> {
        if !is_kept(role) {
            return Ok(FileOrigin::Made);
        }
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It adds to the settings of its repository.
            Err(Errno::NOENT) if role == Role::Config && !self.owns_new_config(path) => {
                return Ok(FileOrigin::Before(Vec::new()));
            }
            Err(Errno::NOENT) => return Ok(FileOrigin::Made),
            Err(errno) => return Err(errno),
        };
        if let Some(origin) = self.placed.origin(path, FileVersion::from(&stat)) {
            return Ok(origin.clone());
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(FileOrigin::Unknown);
        }
        let text = match current {
            Some(text) => Some(text.to_vec()),
            None => read_file(dir, name, role.max_bytes())?,
        };
        Ok(text.map_or(FileOrigin::Unknown, FileOrigin::Before))
    }

    /// Is a configuration that does not exist the command's own? That of a work tree is, if the
    /// command has made the repository.
    fn owns_new_config(&self, path: &[u8]) -> bool {
        if config_file(path) == ConfigFile::Repository {
            return true;
        }
        let dir = git::parent_of(path);
        let repository = match self.is_entry(dir) {
            true => git::parent_of(git::parent_of(dir)),
            false => dir,
        };
        let config = [repository, b"/config"].concat();
        version_of(&config).is_some_and(|version| self.is_made(&config, version))
    }

    /// Has this run made the file?
    pub(super) fn is_made(&self, path: &[u8], version: FileVersion) -> bool {
        self.placed.origin(path, version) == Some(&FileOrigin::Made)
    }

    /// May a file with this role have this content, in the place of `current`?
    pub fn judge_content(
        &mut self,
        role: Role,
        dir: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        content: &[u8],
        current: Option<&[u8]>,
    ) -> Result<ContentVerdict, Errno> {
        let above = git::parent_of(path);
        if role == Role::Index
            && let Some(entry) = self.refused_entry(above, content)?
        {
            return Ok(ContentVerdict::Refused(entry));
        }
        let origin = self.origin(role, dir, name, path, current)?;
        // Git reads the length of hashes in the other file alone.
        let is_of_work_tree = role == Role::Config && config_file(path) == ConfigFile::WorkTree;
        let current = if is_of_work_tree { Some(&b""[..]) } else { current };
        let before = match &origin {
            FileOrigin::Before(text) => &text[..],
            FileOrigin::Made | FileOrigin::Unknown => b"",
        };
        let added = || git::first_added_to(&self.remotes_of_user, before, content);
        if let Some(setting) = (role == Role::Config).then(added).flatten() {
            return Ok(ContentVerdict::Refused(setting));
        }
        let is_harmless = match &origin {
            FileOrigin::Made if role == Role::Hook => name.to_bytes().ends_with(b".sample"),
            FileOrigin::Made => self.is_harmless_instead(role, above, content, current),
            FileOrigin::Unknown => false,
            FileOrigin::Before(_) if !self.placed.has_room(path) => false,
            FileOrigin::Before(text) => {
                let setting = match pointer(role) {
                    Some(_) if text == content => return Ok(ContentVerdict::Harmless(origin)),
                    Some(setting) => Some(setting.to_vec()),
                    None => self.redirected(path, text, content),
                };
                if let Some(setting) = setting {
                    return Ok(ContentVerdict::Refused(setting));
                }
                !git::changes_hashes(above, content, current)
                    && !git::wakes_work_tree_config(above, text, content)
                    && self.keeps_other_settings(text, content)
            }
        };
        Ok(match is_harmless {
            true => ContentVerdict::Harmless(origin),
            false => ContentVerdict::Refused(Vec::new()),
        })
    }

    fn redirected(&self, path: &[u8], before: &[u8], after: &[u8]) -> Option<Vec<u8>> {
        let dir = git::parent_of(path);
        git::first_redirected(config_file(path), before, after, &mut |branch| {
            git::has_branch(dir, branch)
        })
    }

    /// A file got its name. `origin` is that of the file which had the name before.
    pub fn note_placed(
        &mut self,
        role: Role,
        dir: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        origin: FileOrigin,
    ) -> Result<(), Errno> {
        if is_kept(role) {
            let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.placed.put(path, FileVersion::from(&stat), origin);
        }
        Ok(())
    }

    /// Is it a file that this run has put in place, and that is unchanged since?
    pub fn is_placed(&self, object: BorrowedFd<'_>, path: &[u8]) -> Result<bool, Errno> {
        let version = FileVersion::from(&rustix::fs::fstat(object)?);
        Ok(self.placed.origin(path, version).is_some())
    }

    /// The command has changed the metadata of such a file.
    pub fn note_changed(&mut self, object: BorrowedFd<'_>, path: &[u8]) -> Result<(), Errno> {
        let version = FileVersion::from(&rustix::fs::fstat(object)?);
        if let Some(placed) = self.placed.files.get_mut(path) {
            placed.version = version;
        }
        Ok(())
    }

    pub fn note_moved_dir(&mut self, old: &[u8], new: &[u8]) {
        self.placed.rename(old, new);
    }

    /// May a file with this role lose its name? Otherwise the setting that would be lost.
    pub fn refused_removal(
        &self,
        role: Role,
        dir: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
    ) -> Result<Option<Vec<u8>>, Errno> {
        Ok(match self.origin(role, dir, name, path, None)? {
            FileOrigin::Made => None,
            FileOrigin::Before(_) if pointer(role).is_some() => pointer(role).map(<[u8]>::to_vec),
            FileOrigin::Before(text) => match self.redirected(path, &text, b"") {
                // The command could make another one.
                None if config_file(path) == ConfigFile::Repository => Some(Vec::new()),
                setting => setting,
            },
            FileOrigin::Unknown => Some(Vec::new()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: FileVersion = FileVersion { device: 1, inode: 2, changed: (3, 4) };

    #[test]
    fn files_move_with_their_directory() {
        let mut placed = PlacedFiles::default();
        for path in ["/w/a/.git/config", "/w/ab/.git/config", "/w/b/.git/config"] {
            placed.put(path.as_bytes(), VERSION, FileOrigin::Made);
        }
        placed.rename(b"/w/a", b"/w/c");
        assert_eq!(placed.origin(b"/w/a/.git/config", VERSION), None);
        assert_eq!(placed.origin(b"/w/c/.git/config", VERSION), Some(&FileOrigin::Made));
        assert_eq!(placed.origin(b"/w/ab/.git/config", VERSION), Some(&FileOrigin::Made));
        placed.put(b"/w/b/.git/config", VERSION, FileOrigin::Before(b"x".to_vec()));
        placed.rename(b"/w/c", b"/w/b");
        let before = FileOrigin::Before(b"x".to_vec());
        assert_eq!(placed.origin(b"/w/c/.git/config", VERSION), Some(&before));
        assert_eq!(placed.origin(b"/w/b/.git/config", VERSION), Some(&FileOrigin::Made));
    }

    #[test]
    fn a_file_that_another_process_changed_is_not_the_run_s() {
        let mut placed = PlacedFiles::default();
        placed.put(b"/w/.git/config", VERSION, FileOrigin::Made);
        let later = FileVersion { changed: (3, 5), ..VERSION };
        assert_eq!(placed.origin(b"/w/.git/config", later), None);
    }

    #[test]
    fn the_number_of_files_is_bounded() {
        let mut placed = PlacedFiles::default();
        let own = std::env::current_exe().unwrap();
        let own = own.as_os_str().as_encoded_bytes();
        placed.put(own, version_of(own).unwrap(), FileOrigin::Made);
        for number in 1..MAX_PLACED_FILES {
            placed.put(format!("/none/{number}").as_bytes(), VERSION, FileOrigin::Made);
        }
        assert_eq!(placed.files.len(), MAX_PLACED_FILES);
        // Only the first of them exists.
        placed.put(b"/none/more", VERSION, FileOrigin::Made);
        assert_eq!(placed.files.len(), 2);
        assert!(placed.files.contains_key(own));
    }
}
