//! A repository from before the run stays one. If git outside no longer took the directory for a
//! repository, it would go to one above it.
//!
//! Git looks for HEAD, which it reads, and for objects and refs, which it must be able to search
//! (setup.c, is_git_directory). With a `commondir` file it looks for the two elsewhere.

use rustix::fs::Mode;

use super::call::Change;
use super::judge::WriteJudge;
use super::kept_files::version_of;
use crate::files::git;

/// The setting in the message of a refused change.
pub const REPOSITORY: &[u8] = b"the repository";

/// Sets the mode of a file too.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

impl WriteJudge {
    /// Is it a repository that the run has not made? One that the command has made in this run is
    /// its own.
    pub fn is_repository_from_before(&self, dir: &[u8]) -> bool {
        let is_from_before = |name: &[u8]| {
            version_of(&[dir, name].concat())
                .is_some_and(|version| !self.is_made(&[dir, name].concat(), version))
        };
        self.is_git(dir) && [&b"/config"[..], b"/gitdir"].into_iter().any(is_from_before)
    }

    /// Is it a part without which git would not take the directory for a repository? `ends`: no
    /// object has the name afterwards. A new HEAD takes the place of the old one by a rename.
    pub fn is_kept_part(&self, path: &[u8], ends: bool) -> bool {
        let (dir, name) = (git::parent_of(path), last(path));
        let is_part = match name {
            b"objects" | b"refs" => true,
            b"HEAD" | b"commondir" => ends,
            _ => false,
        };
        is_part && self.is_repository_from_before(dir)
    }

    /// Would a change of the metadata of this object keep git from its repository? `mode`: that of
    /// the object now.
    pub fn closes_repository(&self, path: &[u8], mode: u32, change: &Change) -> bool {
        let (is_object, needed) = match last(path) {
            b"HEAD" => (self.is_repository_from_before(git::parent_of(path)), Mode::RUSR),
            b"objects" | b"refs" => {
                let needed = Mode::RUSR | Mode::XUSR;
                (self.is_repository_from_before(git::parent_of(path)), needed)
            }
            _ => (self.is_repository_from_before(path), Mode::RUSR | Mode::XUSR),
        };
        let takes = |later: u32| mode & !later & needed.as_raw_mode() != 0;
        match change {
            Change::Mode(later) => is_object && takes(*later),
            Change::SetAttribute { name, .. } => is_object && name == ACCESS_LIST,
            _ => false,
        }
    }
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}
