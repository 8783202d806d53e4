//! The answers of the judge for a person who asks before a run: there is no caller and no call.

use std::os::fd::AsFd as _;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::judge::WriteDecision;
use super::{Writer, c_name};
use crate::files::git::Role;

/// What happens to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameAct {
    /// A file of this name is made, or opened for writing. The name is no symlink.
    Make,
    /// An existing name is removed or renamed.
    Remove,
    /// The metadata of an existing name is changed.
    Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    Free,
    ByContent,
    /// The metadata of a file of git may be changed, whatever its content is.
    Unread,
    Protected,
    Denied,
}

impl NameAnswer {
    pub fn name(self) -> &'static str {
        match self {
            NameAnswer::Free => "free",
            NameAnswer::ByContent => "by-content",
            NameAnswer::Unread => "unread",
            NameAnswer::Protected => "protected",
            NameAnswer::Denied => "denied",
        }
    }
}

impl Writer {
    /// `path` is absolute. If the user may not search its directory, the kernel
    /// refuses the call itself.
    pub fn answer(&mut self, act: NameAct, path: &[u8]) -> Result<NameAnswer, Errno> {
        let slash = path.iter().rposition(|byte| *byte == b'/').ok_or(Errno::INVAL)?;
        let (above, name) = (&path[..slash.max(1)], &path[slash + 1..]);
        if matches!(name, b"" | b"." | b"..") {
            return Ok(NameAnswer::Free);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(above, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                let decision = self.judge.decide_later(above, name)?;
                return Ok(to_make(decision, name));
            }
            Err(Errno::NOTDIR | Errno::ACCESS) => return Ok(NameAnswer::Free),
            dir => dir?,
        };
        let dir = dir.as_fd();
        if act == NameAct::Make {
            let (decision, _) = self.judge.decide(dir, name, FileType::RegularFile)?;
            return Ok(match to_make(decision, name) {
                NameAnswer::Free if self.judge.has_protected_name(dir, name)? => {
                    NameAnswer::Protected
                }
                answer => answer,
            });
        }
        let c_name = c_name(name)?;
        let stat = match rustix::fs::statat(dir, &*c_name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT | Errno::ACCESS) => return Ok(NameAnswer::Free),
            stat => stat?,
        };
        let file_type = FileType::from_raw_mode(stat.st_mode);
        let (decision, path) = self.judge.decide_existing(dir, name, file_type)?;
        Ok(match decision {
            WriteDecision::Free => NameAnswer::Free,
            WriteDecision::Protected => NameAnswer::Protected,
            WriteDecision::Denied => NameAnswer::Denied,
            WriteDecision::ByContent(role)
                if act == NameAct::Remove
                    && self.judge.refused_removal(role, dir, &c_name, &path)?.is_some() =>
            {
                NameAnswer::Protected
            }
            WriteDecision::ByContent(Role::Config)
                if act == NameAct::Change && file_type == FileType::RegularFile =>
            {
                NameAnswer::Unread
            }
            WriteDecision::ByContent(role) => {
                match self.judge.exists_harmless(dir, &c_name, &path, file_type)? {
                    true if role.has_content() => NameAnswer::ByContent,
                    true => NameAnswer::Free,
                    false => NameAnswer::Protected,
                }
            }
        })
    }

    /// May the metadata of this object be changed?
    pub fn may_change_metadata(&self, path: &[u8]) -> bool {
        !self.judge.holds_metadata() || self.judge.is_writable(path)
    }
}

/// The answer for a new file, or one that is opened for writing.
fn to_make(decision: WriteDecision, name: &[u8]) -> NameAnswer {
    match decision {
        WriteDecision::Free => NameAnswer::Free,
        WriteDecision::ByContent(Role::Hook) if name.ends_with(b".sample") => NameAnswer::Free,
        WriteDecision::ByContent(role) if role.has_content() => NameAnswer::ByContent,
        WriteDecision::ByContent(_) | WriteDecision::Protected => NameAnswer::Protected,
        WriteDecision::Denied => NameAnswer::Denied,
    }
}
