//! Moving a directory on an overlay that will not rename it.
//!
//! A new directory is made beside the new name, everything is carried over into it, the old one is
//! removed, and only then the new one takes its name, by a rename that the kernel judges by its own
//! rules. Files are renamed, and so are directories that exist in the copy alone; the others are
//! carried piece by piece. Whatever fails is carried back. At no time is anything in neither place.
//!
//! Runs in a process with the command's own rights, while the command may do to the tree what it
//! likes: everything goes by descriptors, and what comes in between is an error, a piece that is
//! not moved, or a piece more.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, Statx, StatxFlags, Timespec,
    Timestamps, XattrFlags,
};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::kernel::seccomp_notify::Answer;
use crate::kernel::stderr;

/// What is more than this is left to programs that copy by themselves: deeper, more, longer.
const DEEPEST: usize = 100;
const MOST_ENTRIES: usize = 1_000_000;
const LONGEST: Duration = Duration::from_secs(600);
/// A directory into which something is put again and again can not be emptied.
const ROUNDS: usize = 16;

const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LISTING: usize = 32 * 1024;

/// A name in an open directory.
pub struct Name {
    pub dir: OwnedFd,
    pub name: CString,
}

impl Name {
    pub fn is_directory(&self) -> bool {
        let found = rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }
}

/// As renameat2(2), on the overlay whose mount this is.
pub fn rename(old: &Name, new: &Name, flags: RenameFlags, mount: u64) -> Answer {
    match rustix::fs::renameat_with(&old.dir, &old.name, &new.dir, &new.name, flags) {
        Ok(()) => return Answer::Value(0),
        Err(Errno::XDEV) if flags.difference(RenameFlags::NOREPLACE).is_empty() => {}
        // Two directories that change places have no third one to wait in: EXDEV, as the kernel
        // says.
        Err(errno) => return Answer::Fail(errno),
    }
    let mut carrier = Carrier {
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
        stderr::say("paddock", &format!("{text} a directory .paddock-… beside the new name"));
    }
    match moved {
        Ok(()) => Answer::Value(0),
        Err(errno) => Answer::Fail(errno),
    }
}

struct Carrier {
    mount: u64,
    uid: u32,
    /// Seen so far.
    entries: usize,
    /// None: however long it takes.
    deadline: Option<Instant>,
    /// Something could not be carried back.
    torn: bool,
}

impl Carrier {
    fn rename(&mut self, old: &Name, new: &Name, flags: RenameFlags) -> Result<(), Errno> {
        self.check(open(&old.dir, &old.name).map_err(closed)?, 0)?;
        // The kernel asks the same in the end; there is no need to move everything for that.
        if let Ok(target) = open(&new.dir, &new.name)
            && !list(&target)?.is_empty()
        {
            return Err(Errno::NOTEMPTY);
        }
        self.deadline = Some(Instant::now() + LONGEST);
        let temporary = temporary_name()?;
        self.carry_dir(old.dir.as_fd(), &old.name, new.dir.as_fd(), &temporary)?;
        let named = rustix::fs::renameat_with(&new.dir, &temporary, &new.dir, &new.name, flags);
        if named.is_err() {
            let back = RenameFlags::NOREPLACE;
            self.torn |=
                rustix::fs::renameat_with(&new.dir, &temporary, &old.dir, &old.name, back).is_err();
        }
        named
    }

    /// What stands in the way, before anything is moved: a mount point, somebody else's directory,
    /// one that can not be listed, too much of everything.
    fn check(&mut self, dir: OwnedFd, depth: usize) -> Result<(), Errno> {
        if depth > DEEPEST {
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
                if found.stx_uid != self.uid || self.entries > MOST_ENTRIES {
                    return Err(Errno::XDEV);
                }
                self.check(open(&dir, &name).map_err(closed)?, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Moves everything in a directory to another one.
    fn carry(&mut self, from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
        for _ in 0..ROUNDS {
            let names = list(from)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                if self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
                    return Err(Errno::XDEV);
                }
                self.carry_entry(from, to, &name)?;
            }
        }
        Err(Errno::BUSY)
    }

    fn carry_entry(&mut self, from: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let refused = match rustix::fs::renameat_with(from, name, to, name, RenameFlags::NOREPLACE)
        {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => errno,
        };
        // EACCES: a directory that can not be written may not get another parent, but its own may
        // be renamed with it.
        let is_dir = || look(from, name).is_ok_and(|found| is_dir(&found));
        if !matches!(refused, Errno::XDEV | Errno::ACCESS) || !is_dir() {
            return Err(refused);
        }
        self.carry_dir(from.as_fd(), name, to.as_fd(), name)
    }

    /// Makes the new one, fills it, makes it like the old one, and removes the old one.
    fn carry_dir(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: BorrowedFd<'_>,
        new_name: &CStr,
    ) -> Result<(), Errno> {
        let source = open(from, name)?;
        let facts = Facts::of(&source)?;
        if facts.mount != self.mount {
            return Err(Errno::BUSY);
        }
        rustix::fs::mkdirat(to, new_name, Mode::RWXU)?;
        let target = open(to, new_name)?;
        let moved = facts
            .open_up(&source)
            .and_then(|()| self.carry(&source, &target))
            .and_then(|()| facts.give(&target))
            .and_then(|()| self.remove(from, name, &source, &target));
        if moved.is_err() {
            let deadline = self.deadline.take();
            let emptied = facts.open_up(&target).and_then(|()| self.carry(&target, &source));
            self.deadline = deadline;
            self.torn |=
                emptied.is_err() || rustix::fs::unlinkat(to, new_name, AtFlags::REMOVEDIR).is_err();
            let _ = facts.give(&source);
        }
        moved
    }

    /// Something may have been put into it meanwhile, by whoever does not know that it is being
    /// renamed.
    fn remove(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        source: &OwnedFd,
        target: &OwnedFd,
    ) -> Result<(), Errno> {
        for _ in 0..ROUNDS {
            match rustix::fs::unlinkat(from, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY) => self.carry(source, target)?,
                removed => return removed,
            }
        }
        Err(Errno::BUSY)
    }
}

/// What a directory has besides its entries.
struct Facts {
    mount: u64,
    mode: Mode,
    gid: u32,
    times: Timestamps,
    attributes: Vec<(CString, Vec<u8>)>,
}

impl Facts {
    fn of(dir: &OwnedFd) -> Result<Facts, Errno> {
        let found = look(dir, c"")?;
        let time = |time: rustix::fs::StatxTimestamp| Timespec {
            tv_sec: time.tv_sec,
            tv_nsec: time.tv_nsec.into(),
        };
        Ok(Facts {
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

    /// Entries can be moved only out of and into what its owner may write.
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

/// Those that a person or a program set: the others belong to the kernel, and come by themselves.
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
    rustix::fs::openat(dir, name, DIR, Mode::empty())
}

/// A directory that its owner may not list can not be carried: the overlay's own answer is all
/// there is.
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
    let mut buffer = Vec::with_capacity(LISTING);
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
