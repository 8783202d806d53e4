//! Changes of metadata: mode, owner, times, attributes, and truncation by a path.
//!
//! Landlock judges none of them but truncation. So they are refused here outside of the trees that
//! the command may write.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::call::Change;
use super::judge::WriteDecision;
use super::kept_repositories::REPOSITORY;
use super::resolve::{Caller, is_kept_by_kernel};
use super::{Failure, NamedObject, Writer};
use crate::files::git::Role;
use crate::kernel::{open_beneath, sys};

/// The right of other users to write a file. Names whose content is judged do not get it.
pub(super) const WRITE_BY_OTHERS: u32 = 0o002;

/// An object whose metadata may be changed.
struct CheckedObject {
    file_type: FileType,
    /// Empty: no program outside can open it by a name.
    path: Vec<u8>,
    /// It is a file of git that this run has put in place.
    is_placed: bool,
}

impl Writer {
    /// Changes an object that is open with O_PATH.
    pub(super) fn change(
        &mut self,
        caller: Caller,
        found: &NamedObject,
        flags: AtFlags,
        change: &Change,
    ) -> Result<(), Failure> {
        let object = &found.fd;
        let checked = self.check_change(object, change)?;
        let file_type = checked.file_type;
        let mut buffer = [0; 32];
        let link = open_beneath::proc_fd_path(object, &mut buffer);
        let is_link = file_type == FileType::Symlink && flags.contains(AtFlags::SYMLINK_NOFOLLOW);
        match change {
            Change::Truncate(length) => {
                match file_type {
                    FileType::Directory => return Err(Errno::ISDIR.into()),
                    FileType::RegularFile => {}
                    _ => return Err(Errno::INVAL.into()),
                }
                let open = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
                // The open file keeps the right to truncate.
                let file = self.in_layer(|| rustix::fs::open(link, open, Mode::empty()))?;
                caller.check_file_size(&file, *length)?;
                rustix::fs::ftruncate(&file, *length)?;
            }
            Change::Mode(_) if is_link => return Err(Errno::OPNOTSUPP.into()),
            Change::Mode(mode) => {
                rustix::fs::chmod(link, Mode::from_raw_mode(*mode))?;
            }
            Change::Owner(uid, gid) => {
                let (uid, gid) = owner(*uid, *gid);
                rustix::fs::chownat(object, c"", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            Change::Times(times) => {
                rustix::fs::utimensat(object, c"", times, AtFlags::EMPTY_PATH)?;
            }
            Change::SetAttribute { name, value, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                match found.name_of_link(is_link)? {
                    Some(name_of_link) => {
                        rustix::fs::lsetxattr(&*name_of_link, &name[..], value, flags)?;
                    }
                    None => rustix::fs::setxattr(link, &name[..], value, flags)?,
                }
            }
            Change::RemoveAttribute { name } => match found.name_of_link(is_link)? {
                Some(name_of_link) => rustix::fs::lremovexattr(&*name_of_link, &name[..])?,
                None => rustix::fs::removexattr(link, &name[..])?,
            },
        }
        self.note_changed(object, checked, change)
    }

    fn note_changed(
        &mut self,
        object: &OwnedFd,
        checked: CheckedObject,
        change: &Change,
    ) -> Result<(), Failure> {
        let CheckedObject { file_type, path, is_placed } = checked;
        if is_placed {
            self.judge.note_changed(object.as_fd(), &path)?;
        }
        if change.alters_program() {
            self.note_object(path, file_type, true);
        }
        Ok(())
    }

    /// Changes a file that the caller has open. `file` is a copy of the caller's descriptor.
    pub(super) fn change_open(&mut self, file: &OwnedFd, change: &Change) -> Result<(), Failure> {
        // The kernel refuses a descriptor of a path alone, and so does each call below.
        let is_path = rustix::fs::fcntl_getfl(file)?.contains(OFlags::PATH);
        let checked = if is_path { None } else { Some(self.check_change(file, change)?) };
        match change {
            Change::Truncate(_) => return Err(Errno::INVAL.into()),
            Change::Mode(mode) => rustix::fs::fchmod(file, Mode::from_raw_mode(*mode))?,
            Change::Owner(uid, gid) => {
                let (uid, gid) = owner(*uid, *gid);
                rustix::fs::fchown(file, uid, gid)?;
            }
            Change::Times(times) => rustix::fs::futimens(file, times)?,
            Change::SetAttribute { name, value, flags } => {
                let flags = XattrFlags::from_bits_retain(*flags);
                rustix::fs::fsetxattr(file, &name[..], value, flags)?;
            }
            Change::RemoveAttribute { name } => rustix::fs::fremovexattr(file, &name[..])?,
        }
        match checked {
            Some(checked) => self.note_changed(file, checked, change),
            None => Ok(()),
        }
    }

    /// May the metadata of an open object be changed?
    fn check_change(
        &mut self,
        object: &OwnedFd,
        change: &Change,
    ) -> Result<CheckedObject, Failure> {
        let stat = rustix::fs::fstat(object)?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        // A file without a name is no other program's.
        if stat.st_nlink == 0 {
            return Ok(CheckedObject { file_type, path: Vec::new(), is_placed: false });
        }
        let (decision, path) = self.judge.decide_object(object.as_fd(), file_type)?;
        // Another user of this machine could write what git obeys.
        let lets_others_write =
            matches!(change, Change::Mode(mode) if mode & !stat.st_mode & WRITE_BY_OTHERS != 0);
        let is_free = match decision {
            WriteDecision::Free => true,
            WriteDecision::Protected | WriteDecision::Denied => false,
            WriteDecision::ByContent(_) if lets_others_write => false,
            WriteDecision::ByContent(_) if matches!(change, Change::Truncate(_)) => false,
            // `git init` changes its mode for a test. The content stays as it is.
            WriteDecision::ByContent(Role::Config) if file_type == FileType::RegularFile => true,
            WriteDecision::ByContent(role) => {
                self.judge.is_object_harmless(object.as_fd(), role, &path, file_type)?
            }
        };
        if !is_free {
            return Err(Failure::Protected(path));
        }
        // Landlock judges truncation. The kernel judges /proc.
        let may_change = (!self.judge.holds_metadata() || self.judge.is_writable(&path))
            && self.may_change_in_layer(&path);
        if !may_change
            && !matches!(change, Change::Truncate(_))
            && !is_kept_by_kernel(object.as_fd(), &path)?
        {
            return Err(Errno::ROFS.into());
        }
        if self.judge.closes_repository(&path, stat.st_mode, change) {
            return Err(Failure::Kept { path, setting: REPOSITORY.to_vec() });
        }
        let is_by_content = matches!(decision, WriteDecision::ByContent(_));
        let is_placed = is_by_content && self.judge.is_placed(object.as_fd(), &path)?;
        Ok(CheckedObject { file_type, path, is_placed })
    }
}

impl Change {
    /// Does it change the content of a file, or whether the file can be executed?
    fn alters_program(&self) -> bool {
        matches!(self, Change::Truncate(_) | Change::Mode(_))
    }
}

/// The numbers of chown(2): the largest one means "as it is".
fn owner(uid: u32, gid: u32) -> (Option<Uid>, Option<Gid>) {
    let id = |id: u32| (id != u32::MAX).then_some(id);
    (id(uid).map(Uid::from_raw), id(gid).map(Gid::from_raw))
}

impl Caller {
    /// A caller can not grow a file beyond its own limit (RLIMIT_FSIZE).
    fn check_file_size(self, file: &OwnedFd, length: u64) -> Result<(), Errno> {
        let grows = length > rustix::fs::fstat(file)?.st_size as u64;
        let limit = || self.resource_limit(libc::RLIMIT_FSIZE as _, "Max file size");
        if grows && length > limit()? {
            sys::signal_thread(self.process()?, self.thread, Signal::XFSZ)?;
            return Err(Errno::FBIG);
        }
        Ok(())
    }
}
