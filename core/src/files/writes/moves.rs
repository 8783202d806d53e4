//! Names that move: link, rename and exchange. A git file is put in place from a copy, because the
//! caller may hold the original open.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use super::change::WRITE_BY_OTHERS;
use super::judge::{self, WriteDecision};
use super::kept_files::ContentVerdict;
use super::resolve::{Found, Place};
use super::{Done, Failure, Writer, c_name};
use crate::files::git::{self, Role};
use crate::kernel::calling_process::mount_of;
use crate::kernel::open_beneath;
use crate::kernel::random_name::random_name;
use crate::kernel::resolved_path::Identity;

/// The result of putting a content in place.
pub(super) enum Placement {
    Done,
    /// The setting that would change. Empty: the content is harmful by itself.
    Refused(Vec<u8>),
}

fn is_same_file(one: &Place, other: &Place) -> Result<bool, Errno> {
    let stat =
        |place: &Place| rustix::fs::statat(&place.dir, &place.name[..], AtFlags::SYMLINK_NOFOLLOW);
    Ok(Identity::from(&stat(one)?) == Identity::from(&stat(other)?))
}

impl Writer {
    pub(super) fn link(&mut self, object: &OwnedFd, new: &Place) -> Result<Done, Failure> {
        let file_type = FileType::from_raw_mode(rustix::fs::fstat(object)?.st_mode);
        let (decision, path) = self.judge.decide_object(object.as_fd(), file_type)?;
        if decision != WriteDecision::Free {
            return Err(Failure::Protected(path));
        }
        let new_path = self.check(new, file_type)?;
        let mut buffer = [0; 32];
        let link = open_beneath::proc_fd_path(object, &mut buffer);
        let name = new.c_name()?;
        self.in_layer(|| {
            rustix::fs::linkat(rustix::fs::CWD, link, &new.dir, &*name, AtFlags::SYMLINK_FOLLOW)
        })?;
        self.note_object(new_path, file_type, false);
        // The file can be written by its new name from now on.
        self.note_path(path, true);
        Ok(Done::Nothing)
    }

    /// `new` is an error if the new path leads nowhere.
    pub(super) fn rename(
        &mut self,
        old: Found,
        new: Result<Found, Errno>,
        flags: RenameFlags,
    ) -> Result<(), Failure> {
        let new = match (&old, new) {
            // The kernel checks the right to search the old directory before it walks the new path.
            (Found::Place(old), Err(errno)) => {
                old.check_search()?;
                return Err(errno.into());
            }
            (_, new) => new?,
        };
        let (old, new) = match (old, new) {
            (Found::Place(old), Found::Place(new)) => (old, new),
            (Found::Gone, Found::Gone) => return Err(Errno::NOENT.into()),
            // Only one of them is in /proc.
            (Found::Place(place), _) | (_, Found::Place(place)) => {
                place.check_search()?;
                return Err(Errno::XDEV.into());
            }
            _ => return Err(Errno::XDEV.into()),
        };
        let renamed = self.rename_place(&old, &new, flags);
        match renamed {
            // The kernel checks these rights and compares the mounts first.
            Err(Failure::Kernel(_)) => {
                old.check_search()?;
                new.check_search()?;
                let mounts = [&old, &new].map(|place| mount_of(&place.dir, c""));
                if mounts[0] != mounts[1] {
                    return Err(self.crossed_mounts(&old, &new));
                }
                renamed
            }
            renamed => renamed,
        }
    }

    /// The kernel renames only inside one mount, and each grant is a mount.
    fn crossed_mounts(&mut self, old: &Place, new: &Place) -> Failure {
        let mut writable = |place: &Place| {
            let (_, path) =
                self.judge.decide(place.dir.as_fd(), &place.name, FileType::RegularFile).ok()?;
            let device = rustix::fs::fstat(&place.dir).ok()?.st_dev;
            self.judge.is_writable(&path).then_some((path, device))
        };
        match (writable(old), writable(new)) {
            (Some((_, from)), Some((path, to))) if from == to => Failure::TwoGrants(path),
            _ => Errno::XDEV.into(),
        }
    }

    fn rename_place(
        &mut self,
        old: &Place,
        new: &Place,
        flags: RenameFlags,
    ) -> Result<(), Failure> {
        let rename = |writer: &Writer| {
            let (from, to) = (old.c_name()?, new.c_name()?);
            writer.in_layer(|| rustix::fs::renameat_with(&old.dir, &*from, &new.dir, &*to, flags))
        };
        if !old.is_plain() || !new.is_plain() {
            return rename(self).map_err(Failure::from);
        }
        let ends = !flags.contains(RenameFlags::EXCHANGE);
        let Some((file_type, old_path)) = self.check_existing(old, ends)? else {
            return rename(self).map_err(Failure::from);
        };
        let replaced = self.check_existing(new, false)?;
        let moved = [Some(&old_path), replaced.as_ref().filter(|_| !ends).map(|(_, path)| path)];
        if let Some(path) = moved.into_iter().flatten().find(|path| self.judge.is_used(path)) {
            let (path, setting) = (path.clone(), b"a path that another run works in".to_vec());
            return Err(Failure::Kept { path, setting });
        }
        let replaced = replaced.map(|(file_type, _)| file_type);
        self.judge.take_moved();
        self.judge.take_moved_links();
        let (decision, new_path) = self.check_moved(old, new, file_type)?;
        if let Some(replaced) = replaced.filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
            let (decision, path) = self.check_moved(new, old, replaced)?;
            let by_content = matches!(decision, WriteDecision::ByContent(_));
            if by_content && replaced == FileType::RegularFile {
                return Err(Failure::Protected(path));
            }
        }
        match decision {
            // The kernel does nothing if both names are of one file.
            _ if replaced.is_some() && is_same_file(old, new)? => rename(self)?,
            WriteDecision::ByContent(role) if file_type == FileType::RegularFile => {
                self.put_copy(old, new, role, new_path.clone(), flags)?;
            }
            _ if file_type == FileType::Directory => {
                rename(self)?;
                self.judge.note_moved_dir(&old_path, &new_path);
            }
            _ => rename(self)?,
        }
        self.note_moved(old_path, new_path, file_type, replaced.is_some());
        Ok(())
    }

    /// May an object have this new name, with everything below it? Returns the decision on the name
    /// alone.
    fn check_moved(
        &mut self,
        old: &Place,
        new: &Place,
        file_type: FileType,
    ) -> Result<(WriteDecision, Vec<u8>), Failure> {
        let (decision, path) = self.judge.decide(new.dir.as_fd(), &new.name, file_type)?;
        match decision {
            WriteDecision::Protected | WriteDecision::Denied => {
                return Err(Failure::Protected(path));
            }
            WriteDecision::ByContent(Role::Hooks) if file_type == FileType::Directory => {}
            WriteDecision::ByContent(_) if file_type != FileType::RegularFile => {
                return Err(Failure::Protected(path));
            }
            WriteDecision::Free | WriteDecision::ByContent(_) => {}
        }
        if file_type == FileType::Directory {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(&old.dir, &*c_name(&old.name)?, flags, Mode::empty())?;
            if let Some(path) = self.judge.first_protected_below(dir.as_fd(), &path)? {
                return Err(Failure::Protected(path));
            }
        }
        Ok((decision, path))
    }

    /// Puts a copy of a file at a name whose content counts. The caller may hold the file open: it
    /// is not the one that gets the name.
    fn put_copy(
        &mut self,
        old: &Place,
        new: &Place,
        role: Role,
        path: Vec<u8>,
        flags: RenameFlags,
    ) -> Result<(), Failure> {
        if !RenameFlags::NOREPLACE.contains(flags) {
            return Err(Failure::Protected(path));
        }
        // The kernel would not rename it. This process may read more of /proc than the caller.
        if mount_of(&old.dir, c"")? != mount_of(&new.dir, c"")? {
            return Err(Errno::XDEV.into());
        }
        let (from, to) = (c_name(&old.name)?, new.c_name()?);
        let file = self.in_layer(|| judge::open_to_read(old.dir.as_fd(), &from))?;
        let Some(file) = file else { return Err(Failure::Protected(path)) };
        let placed = self.place_copy(file.as_fd(), &new.dir, &to, role, &path, flags)?;
        if let Placement::Refused(setting) = placed {
            return Err(Failure::Kept { path, setting });
        }
        match self.in_layer(|| rustix::fs::unlinkat(&old.dir, &*from, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Puts a copy of an open file at a name, with its mode and times.
    pub(super) fn place_copy(
        &mut self,
        file: BorrowedFd<'_>,
        dir: &OwnedFd,
        name: &CStr,
        role: Role,
        path: &[u8],
        flags: RenameFlags,
    ) -> Result<Placement, Errno> {
        let Some(content) = judge::read_open(file, role.max_bytes())? else {
            return Ok(Placement::Refused(Vec::new()));
        };
        let origin =
            match self.judge.judge_content(role, dir.as_fd(), name, path, &content, None)? {
                ContentVerdict::Harmless(origin) => origin,
                ContentVerdict::Refused(setting) => return Ok(Placement::Refused(setting)),
            };
        let content = git::placed_content(role, git::parent_of(path), content);
        let stat = rustix::fs::fstat(file)?;
        let existing = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let kept = existing.map_or(0, |existing| existing.st_mode);
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 & (!WRITE_BY_OTHERS | kept));
        let temporary = c_name(format!(".paddock-{}", random_name()?).as_bytes())?;
        let make = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        self.in_layer(|| {
            let copy = rustix::fs::openat(dir, &*temporary, make, mode)?;
            // Git compares the times of its index with those of the files.
            let placed = write_all(copy.as_fd(), &content)
                .and_then(|()| rustix::fs::fchmod(&copy, mode))
                .and_then(|()| rustix::fs::futimens(&copy, &times_of(&stat)))
                .and_then(|()| rustix::fs::renameat_with(dir, &*temporary, dir, name, flags));
            if placed.is_err() {
                let _ = rustix::fs::unlinkat(dir, &*temporary, AtFlags::empty());
            }
            placed
        })?;
        self.judge.note_placed(role, dir.as_fd(), name, path, origin)?;
        Ok(Placement::Done)
    }
}

fn times_of(stat: &Stat) -> Timestamps {
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec as i64),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec as i64),
    }
}

pub(super) fn write_all(file: BorrowedFd<'_>, mut content: &[u8]) -> Result<(), Errno> {
    while !content.is_empty() {
        match rustix::io::write(file, content) {
            Err(Errno::INTR) => {}
            written => content = &content[written?..],
        }
    }
    Ok(())
}
