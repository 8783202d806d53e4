//! Moves a directory on an overlay that refuses to rename it.
//!
//! A new directory is made next to the new name, all entries are moved into it, and the old one is
//! removed. Only then the new one gets its name, by a rename that the kernel judges by its own
//! rules. Files are renamed, and so are directories that exist only in the copy. Other directories
//! are moved entry by entry. After a failure the entries are moved back. Every entry is always in
//! one of the two directories.
//!
//! This runs in a process with the rights of the command, while the command may change the tree.
//! Everything goes by descriptors. An interference is an error, an entry that is not moved, or an
//! additional entry.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, Statx, StatxFlags, Timespec,
    Timestamps, XattrFlags,
};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::kernel::seccomp_notify::NotifyAnswer;
use crate::kernel::stderr;

/// Larger trees are left to programs that copy by themselves: deeper, more entries, longer.
const MAX_DEPTH: usize = 100;
const MAX_ENTRIES: usize = 1_000_000;
const MOVE_TIMEOUT: Duration = Duration::from_secs(600);
/// A directory that gets new entries again and again can not be emptied.
const MAX_ROUNDS: usize = 16;

const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LISTING_BUFFER_BYTES: usize = 32 * 1024;

/// A name in an open directory.
pub struct NameInDir {
    pub dir: OwnedFd,
    pub name: CString,
}

impl NameInDir {
    pub fn is_directory(&self) -> bool {
        let found = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }
}

/// As renameat2(2), on the overlay of this mount.
pub fn rename(old: &NameInDir, new: &NameInDir, flags: RenameFlags, mount: u64) -> NotifyAnswer {
    match rustix::fs::renameat_with(&old.dir, &old.name, &new.dir, &new.name, flags) {
        Ok(()) => return NotifyAnswer::Value(0),
        Err(Errno::XDEV) if flags.difference(RenameFlags::NOREPLACE).is_empty() => {}
        // Two directories that are exchanged have no third one as a buffer: EXDEV, as the kernel
        // answers.
        Err(errno) => return NotifyAnswer::Fail(errno),
    }
    let mut carrier = TreeMover {
        mount,
        uid: rustix::process::geteuid().as_raw(),
        entries: 0,
        deadline: None,
        torn: false,
    };
    let moved = carrier.rename(old, new, flags);
    if carrier.torn {
        let text =
            "Paddock could not undo an unfinished rename of a directory: some of its files are in";
        stderr::print_line(
            "paddock",
            &format!("{text} a directory .paddock-… beside the new name"),
        );
    }
    match moved {
        Ok(()) => NotifyAnswer::Value(0),
        Err(errno) => NotifyAnswer::Fail(errno),
    }
}

struct TreeMover {
    mount: u64,
    uid: u32,
    /// Entries so far.
    entries: usize,
    /// None: without a time limit.
    deadline: Option<Instant>,
    /// An entry could not be moved back.
    torn: bool,
}

impl TreeMover {
    fn rename(
        &mut self,
        old: &NameInDir,
        new: &NameInDir,
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        self.check(open(&old.dir, &old.name).map_err(closed)?, 0)?;
        // The kernel checks the same at the end; this avoids moving everything first.
        if let Ok(target) = open(&new.dir, &new.name)
            && !list(&target)?.is_empty()
        {
            return Err(Errno::NOTEMPTY);
        }
        self.deadline = Some(Instant::now() + MOVE_TIMEOUT);
        let temporary = temporary_name()?;
        self.move_dir(old.dir.as_fd(), &old.name, new.dir.as_fd(), &temporary)?;
        let named = rustix::fs::renameat_with(&new.dir, &temporary, &new.dir, &new.name, flags);
        if named.is_err() {
            let back = RenameFlags::NOREPLACE;
            self.torn |=
                rustix::fs::renameat_with(&new.dir, &temporary, &old.dir, &old.name, back).is_err();
        }
        named
    }

    /// Finds obstacles before anything is moved: a mount point, another user's directory, one that
    /// can not be listed, or one that is too large.
    fn check(&mut self, dir: OwnedFd, depth: usize) -> Result<(), Errno> {
        if depth > MAX_DEPTH {
            return Err(Errno::XDEV);
        }
        for name in list(&dir).map_err(closed)? {
            self.entries += 1;
            let found = match look(&dir, &name) {
                Err(Errno::NOENT) => continue,
                found => found?,
            };
            if found.stx_mnt_id != self.mount {
                return Err(Errno::BUSY);
            }
            if is_dir(&found) {
                if found.stx_uid != self.uid || self.entries > MAX_ENTRIES {
                    return Err(Errno::XDEV);
                }
                self.check(open(&dir, &name).map_err(closed)?, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Moves all entries of a directory to another one.
    fn move_entries(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
        for _ in 0..MAX_ROUNDS {
            let names = list(from)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                    return Err(Errno::XDEV);
                }
                self.move_entry(from, to, &name)?;
            }
        }
        Err(Errno::BUSY)
    }

    fn move_entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let refused = match rustix::fs::renameat_with(from, name, to, name, RenameFlags::NOREPLACE)
        {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => errno,
        };
        // EACCES: a directory that is not writable may not get another parent, but its own parent
        // may be renamed with it.
        let is_dir = || look(from, name).is_ok_and(|found| is_dir(&found));
        if !matches!(refused, Errno::XDEV | Errno::ACCESS) || !is_dir() {
            return Err(refused);
        }
        self.move_dir(from.as_fd(), name, to.as_fd(), name)
    }

    /// Makes the new one, moves the entries, copies the metadata, and removes the old one.
    fn move_dir(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: BorrowedFd<'_>,
        new_name: &CStr,
    ) -> Result<(), Errno> {
        let source = open(from, name)?;
        let facts = DirMetadata::of(&source)?;
        if facts.mount != self.mount {
            return Err(Errno::BUSY);
        }
        rustix::fs::mkdirat(to, new_name, Mode::RWXU)?;
        let target = open(to, new_name)?;
        let moved = facts
            .open_up(&source)
            .and_then(|()| self.move_entries(&source, &target))
            .and_then(|()| facts.give(&target))
            .and_then(|()| self.remove(from, name, &source, &target));
        if moved.is_err() {
            let deadline = self.deadline.take();
            let emptied = facts.open_up(&target).and_then(|()| self.move_entries(&target, &source));
            self.deadline = deadline;
            self.torn |=
                emptied.is_err() || rustix::fs::unlinkat(to, new_name, AtFlags::REMOVEDIR).is_err();
            let _ = facts.give(&source);
        }
        moved
    }

    /// Another process may have added an entry meanwhile.
    fn remove(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        source: &OwnedFd,
        target: &OwnedFd,
    ) -> Result<(), Errno> {
        for _ in 0..MAX_ROUNDS {
            match rustix::fs::unlinkat(from, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => self.move_entries(source, target)?,
                removed => return removed,
            }
        }
        Err(Errno::BUSY)
    }
}

/// The metadata of a directory.
struct DirMetadata {
    mount: u64,
    mode: Mode,
    gid: u32,
    times: Timestamps,
    attributes: Vec<(CString, Vec<u8>)>,
}

impl DirMetadata {
    fn of(dir: &OwnedFd) -> Result<DirMetadata, Errno> {
        let found = look(dir, c"")?;
        let time = |time: rustix::fs::StatxTimestamp| Timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_nsec.into(),
        };
        Ok(DirMetadata {
            mount: found.stx_mnt_id,
            mode: Mode::from_raw_mode((found.stx_mode & 0o7777).into()),
            gid: found.stx_gid,
            times: Timestamps {
                last_access: time(found.stx_atime),
                last_modification: time(found.stx_mtime),
            },
            attributes: attributes(dir)?,
        })
    }

    /// Entries can be moved only between directories that their owner may write.
    fn open_up(&self, dir: &OwnedFd) -> Result<(), Errno> {
        if self.mode.contains(Mode::RWXU) {
            Ok(())
        } else {
            rustix::fs::fchmod(dir, self.mode | Mode::RWXU)
        }
    }

    fn give(&self, dir: &OwnedFd) -> Result<(), Errno> {
        let now = look(dir, c"")?;
        if now.stx_gid != self.gid {
            rustix::fs::fchown(dir, None, Some(Gid::from_raw(self.gid)))
                .map_err(|_| Errno::XDEV)?;
        }
        for (name, value) in &self.attributes {
            rustix::fs::fsetxattr(dir, name, value, XattrFlags::empty())?;
        }
        rustix::fs::fchmod(dir, self.mode)?;
        rustix::fs::futimens(dir, &self.times)
    }
}

/// The attributes that a user or a program has set. The kernel makes the others.
fn attributes(dir: &OwnedFd) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    let mut names = vec![0; 64 * 1024];
    let length = match rustix::fs::flistxattr(dir, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    let ours = |name: &&[u8]| name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_");
    let mut attributes = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(ours) {
        let mut value = vec![0; 64 * 1024];
        let length = rustix::fs::fgetxattr(dir, name, &mut value[..])?;
        value.truncate(length);
        attributes.push((CString::new(name).map_err(|_| Errno::INVAL)?, value));
    }
    Ok(attributes)
}

fn open(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())
}

/// A directory that its owner may not list can not be moved: the overlay's own answer is used.
fn closed(errno: Errno) -> Errno {
    if errno == Errno::ACCESS { Errno::XDEV } else { errno }
}

fn look(dir: impl AsFd, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)
}

fn is_dir(found: &Statx) -> bool {
    FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory
}

fn list(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let opened = open(dir, c".")?;
    let mut buffer = Vec::with_capacity(LISTING_BUFFER_BYTES);
    let mut entries = RawDir::new(&opened, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

fn temporary_name() -> Result<CString, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    CString::new(format!(".paddock-{:016x}", u64::from_le_bytes(bytes))).map_err(|_| Errno::INVAL)
}
