//! The quarantine: names that were removed from a tree, kept for review.
//!
//! Each goes to a numbered directory of its own, by a rename from one descriptor to another. No
//! link is followed, nothing is overwritten, and the moved object is checked afterwards. Between
//! file systems it is copied and removed, entry by entry; an entry is removed only while it is
//! still the copied one. Spared objects stay, or are put back. A spared object below a quarantined
//! directory keeps only itself there: the rest is moved, and that the directory stays is an error.
//! An object that can not be kept, for example on a full disk, is removed: a command that fills the
//! disk gains nothing.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, Stat};
use rustix::io::Errno;

use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::{AbsPath, Text};

/// The disk space that a copy may take.
const MAX_COPY_BYTES: u64 = 256 << 20;
const MAX_COPY_ENTRIES: u64 = 100_000;
/// Deeper entries are first moved up, because there are not enough descriptors.
const MAX_DEPTH: usize = 32;
const MAX_ROUNDS: usize = 4096;

/// Is this an object of the start, which stays?
pub type Spared<'a> = dyn Fn(Object) -> bool + 'a;

#[derive(Debug, PartialEq, Eq)]
pub enum RemovalResult {
    /// Moved, and where it is kept. Not whole if it was too large to copy.
    Quarantined { moved_to: AbsPath, whole: bool },
    /// Removed for good: it could not be kept.
    Removed(Errno),
    /// Nothing has the name any more, or a spared object has it.
    Left,
}

#[derive(Debug)]
pub struct Quarantine {
    path: AbsPath,
    dir: Option<OwnedFd>,
    next: u32,
}

impl Quarantine {
    /// Makes no directory before there is something to keep.
    pub fn new(path: AbsPath) -> Quarantine {
        Quarantine { path, dir: None, next: 1 }
    }

    /// Moves the object with this name to the quarantine. With `judged`, only if it is that object.
    pub fn take(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        judged: Option<Identity>,
        spared: &Spared<'_>,
    ) -> Result<RemovalResult, Errno> {
        let stays = |object: Object| {
            spared(object) || judged.is_some_and(|judged| judged != object.identity)
        };
        let is_left = || match Object::at(dir, name) {
            Ok(object) => Ok(stays(object)),
            Err(Errno::NOENT) => Ok(true),
            Err(error) => Err(error),
        };
        if is_left()? {
            return Ok(RemovalResult::Left);
        }
        let source = match self.keep(dir, name, &stays, spared) {
            Err(source) => source,
            moved => return moved,
        };
        match CopyJob::new(0, 0, &stays, spared).carry(dir, name, dir) {
            Ok(()) => Ok(RemovalResult::Removed(source)),
            // The command may have put another object there meanwhile.
            Err(_) if is_left()? => Ok(RemovalResult::Left),
            Err(_) => Err(source),
        }
    }

    fn keep(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        stays: &Spared<'_>,
        spared: &Spared<'_>,
    ) -> Result<RemovalResult, Errno> {
        let (number, slot) = self.slot()?;
        let result = match rename(dir, name, slot.as_fd(), name) {
            Err(Errno::ACCESS | Errno::PERM) => {
                with_rights(dir, name, || rename(dir, name, slot.as_fd(), name))
            }
            result => result,
        };
        let whole = match result {
            Ok(()) => {
                let object = Object::at(&slot, name)?;
                // If the name has another object by now, it stays here, and that is reported.
                if stays(object) && rename(slot.as_fd(), name, dir, name).is_ok() {
                    self.discard(number);
                    return Ok(RemovalResult::Left);
                }
                Ok(true)
            }
            Err(Errno::XDEV) => {
                let mut copy = CopyJob::new(MAX_COPY_BYTES, MAX_COPY_ENTRIES, stays, spared);
                copy.carry(dir, name, slot.as_fd()).map(|()| copy.whole)
            }
            Err(error) => Err(error),
        };
        let whole = whole.inspect_err(|_| self.discard(number))?;
        let moved_to =
            [self.path.as_bytes(), format!("/{number}/").as_bytes(), name.to_bytes()].concat();
        let moved_to =
            Text::from_bytes(moved_to).and_then(AbsPath::new).map_err(|_| Errno::INVAL)?;
        Ok(RemovalResult::Quarantined { moved_to, whole })
    }

    /// A new directory. Numbers that an earlier part of the session used are skipped.
    fn slot(&mut self) -> Result<(u32, OwnedFd), Errno> {
        let dir = match self.dir.take() {
            Some(dir) => dir,
            None => make(&self.path)?,
        };
        let dir = self.dir.insert(dir);
        loop {
            let number = self.next;
            self.next += 1;
            let name = number.to_string();
            match rustix::fs::mkdirat(&*dir, name.as_str(), Mode::RWXU) {
                Ok(()) => {
                    return Ok((
                        number,
                        rustix::fs::openat(&*dir, name.as_str(), LIST_FLAGS, Mode::empty())?,
                    ));
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn discard(&mut self, number: u32) {
        if let Some(dir) = &self.dir {
            let _ = rustix::fs::unlinkat(dir, number.to_string(), AtFlags::REMOVEDIR);
        }
        self.next = number;
    }
}

const LIST_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Makes a directory and the missing ones above it, for the user alone.
fn make(path: &AbsPath) -> Result<OwnedFd, Errno> {
    let bytes = path.as_bytes();
    let ends =
        bytes.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    for end in ends.chain([bytes.len()]) {
        match rustix::fs::mkdir(&bytes[..end], Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            // Above Paddock's own directories one may exist that is not writable.
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) if end < bytes.len() => {}
            Err(error) => return Err(error),
        }
    }
    rustix::fs::open(path.as_c_str(), LIST_FLAGS, Mode::empty())
}

fn rename(
    from: BorrowedFd<'_>,
    name: &CStr,
    to: BorrowedFd<'_>,
    new_name: &CStr,
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from, name, to, new_name, RenameFlags::NOREPLACE) {
        // A file system without the flag. Only this process uses the slot, so it is empty.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(from, name, to, new_name),
        result => result,
    }
}

/// The command may have removed its owner's rights, from the directory or from its entries.
fn with_rights(
    dir: BorrowedFd<'_>,
    name: &CStr,
    act: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let before = rustix::fs::fstat(dir)?;
    give_rights(dir, &before)?;
    if let Ok(object) = open_beneath::open_path_only(dir, name.to_bytes()) {
        let stat = rustix::fs::fstat(&object)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            give_rights(object.as_fd(), &stat)?;
        }
    }
    let result = act();
    let mut buffer = [0; 32];
    let _ = rustix::fs::chmod(
        open_beneath::proc_fd_path(dir, &mut buffer),
        Mode::from_raw_mode(before.st_mode & 0o7777),
    );
    result
}

/// chmod through the descriptor: by name it would follow a symlink.
fn give_rights(object: BorrowedFd<'_>, stat: &Stat) -> Result<(), Errno> {
    let mut buffer = [0; 32];
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700);
    rustix::fs::chmod(open_beneath::proc_fd_path(object, &mut buffer), mode)
}

struct CopyJob<'a> {
    bytes: u64,
    entries: u64,
    deep: u64,
    whole: bool,
    /// The number of moved entries.
    carried: u64,
    /// Applies to the name itself.
    stays: &'a Spared<'a>,
    /// Applies to the entries below it.
    spared: &'a Spared<'a>,
}

impl<'a> CopyJob<'a> {
    fn new(bytes: u64, entries: u64, stays: &'a Spared<'a>, spared: &'a Spared<'a>) -> CopyJob<'a> {
        CopyJob { bytes, entries, deep: 0, whole: true, carried: 0, stays, spared }
    }

    /// Copies one entry to the directory `to` and removes it.
    fn carry(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let before = rustix::fs::fstat(from)?;
        let owned = before.st_uid == rustix::process::getuid().as_raw();
        if owned && before.st_mode & 0o700 != 0o700 {
            return with_rights(from, name, || self.carry_entry(from, name, to, None, 0));
        }
        self.carry_entry(from, name, to, None, 0)
    }

    fn carry_entry(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: BorrowedFd<'_>,
        top: Option<BorrowedFd<'_>>,
        depth: usize,
    ) -> Result<(), Errno> {
        let object = open_beneath::open_path_only(from, name.to_bytes())?;
        let stat = rustix::fs::fstat(&object)?;
        let whole = Object::at(&object, c"")?;
        if depth == 0 && (self.stays)(whole) {
            return Err(Errno::BUSY);
        }
        if depth > 0 && (self.spared)(whole) {
            return Err(Errno::NOTEMPTY);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                if stat.st_mode & 0o700 != 0o700 {
                    give_rights(object.as_fd(), &stat)?;
                }
                if depth == MAX_DEPTH {
                    return self.move_up(from, name, top.ok_or(Errno::LOOP)?);
                }
                let source = rustix::fs::openat(&object, c".", LIST_FLAGS, Mode::empty())?;
                self.carry_dir(from, name, source.as_fd(), to, top, depth)
            }
            FileType::RegularFile => {
                self.copy_file(&object, &stat, name, to)?;
                self.remove(from, name, &stat)
            }
            FileType::Symlink => {
                if self.spend(0) {
                    let target = rustix::fs::readlinkat(&object, c"", Vec::new())?;
                    rustix::fs::symlinkat(target, to, name)?;
                }
                self.remove(from, name, &stat)
            }
            // A pipe, a socket or a device has no content to review.
            _ => self.remove(from, name, &stat),
        }
    }

    fn carry_dir(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        source: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        top: Option<BorrowedFd<'_>>,
        depth: usize,
    ) -> Result<(), Errno> {
        let copy = if self.spend(0) {
            match rustix::fs::mkdirat(to, name, Mode::RWXU) {
                // An earlier round has made it.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            Some(rustix::fs::openat(to, name, LIST_FLAGS, Mode::empty())?)
        } else {
            None
        };
        let copy = copy.as_ref().map_or(to, |copy| copy.as_fd());
        let mut last = Errno::NOTEMPTY;
        for _ in 0..MAX_ROUNDS {
            let (before, mut stuck) = (self.carried, None);
            let listed = rustix::fs::openat(source, c".", LIST_FLAGS, Mode::empty())?;
            let mut buffer = Vec::with_capacity(8 * 1024);
            let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let inner = entry.file_name();
                if inner == c"." || inner == c".." {
                    continue;
                }
                match self.carry_entry(source, inner, copy, Some(top.unwrap_or(source)), depth + 1)
                {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // The rest is moved anyway.
                    Err(error) => stuck = stuck.or(Some(error)),
                }
            }
            match rustix::fs::unlinkat(from, name, AtFlags::REMOVEDIR) {
                Ok(()) => {
                    self.carried += 1;
                    return Ok(());
                }
                Err(Errno::NOENT) => return Ok(()),
                // An entry was moved up, or another process adds entries.
                Err(error) => last = stuck.unwrap_or(error),
            }
            if stuck.is_some() && self.carried == before {
                break;
            }
        }
        Err(last)
    }

    /// Moves a directory up to a free name: the command may have made names like these.
    fn move_up(
        &mut self,
        from: BorrowedFd<'_>,
        name: &CStr,
        top: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        loop {
            self.deep += 1;
            let free = CString::new(format!(".deep-{}", self.deep)).map_err(|_| Errno::INVAL)?;
            match rename(from, name, top, &free) {
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.carried += 1;
        Ok(())
    }

    /// May one more object of this size be kept?
    fn spend(&mut self, bytes: u64) -> bool {
        let fits = self.entries > 0 && self.bytes >= bytes;
        if fits {
            self.entries -= 1;
            self.bytes -= bytes;
        } else {
            self.whole = false;
        }
        fits
    }

    fn copy_file(
        &mut self,
        object: &OwnedFd,
        stat: &Stat,
        name: &CStr,
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        if !self.spend(stat.st_size as u64) {
            return Ok(());
        }
        let mut buffer = [0; 32];
        let link = open_beneath::proc_fd_path(object, &mut buffer);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let source = match rustix::fs::open(link, flags, Mode::empty()) {
            Err(Errno::ACCESS) => {
                give_rights(object.as_fd(), stat)?;
                rustix::fs::open(link, flags, Mode::empty())?
            }
            opened => opened?,
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
        // It may grow while it is copied. Only its first size is copied.
        let mut left = stat.st_size as u64;
        while left > 0 {
            match rustix::fs::sendfile(&copy, &source, None, left.min(1 << 20) as usize)? {
                0 => break,
                count => left -= count as u64,
            }
        }
        rustix::fs::fchmod(&copy, Mode::from_raw_mode(stat.st_mode & 0o777))
    }

    /// Removes an entry while it is still the one that was seen.
    fn remove(&mut self, dir: BorrowedFd<'_>, name: &CStr, seen: &Stat) -> Result<(), Errno> {
        let now = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if Identity::from(&now) != Identity::from(seen) {
            return Err(Errno::BUSY);
        }
        rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
        self.carried += 1;
        Ok(())
    }
}
