//! Opens for writing, and every openat2(2): its flags are in the caller's memory.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::call::PathArgument;
use super::judge::WriteDecision;
use super::resolve::{Caller, Found, MAX_SYMLINKS, Place, is_proc, path_of};
use super::shell_layer::with_rules;
use super::{Failure, Writer, c_name, changed_names};
use crate::files::git::Role;
use crate::kernel::open_beneath;

/// The arguments of an open call.
#[derive(Clone, Copy, Debug)]
pub struct OpenArguments<'a> {
    pub at: &'a PathArgument,
    pub flags: OFlags,
    pub mode: u32,
    pub resolve: ResolveFlags,
}

/// No open may hold up other calls or give this process a terminal.
fn with_added(flags: OFlags) -> OFlags {
    let waits = if never_blocks(flags) { OFlags::empty() } else { OFlags::NONBLOCK };
    flags | waits | OFlags::NOCTTY | OFlags::CLOEXEC
}

/// Can only a new regular file be opened?
fn never_blocks(flags: OFlags) -> bool {
    flags.contains(OFlags::CREATE | OFlags::EXCL) || makes_no_name(flags)
}

impl Writer {
    pub(super) fn open(
        &mut self,
        caller: Caller,
        arguments: OpenArguments<'_>,
        still_waits: impl Fn() -> Result<(), Errno>,
    ) -> Result<OwnedFd, Failure> {
        let OpenArguments { at, flags, mode, resolve } = arguments;
        // The kernel reserves the number first: a full table must not leave a new file behind.
        caller.check_free_descriptor()?;
        let mut restricted = match resolve.is_empty() {
            true => None,
            false => Some(caller.restricted(at, resolve)?),
        };
        let mut found = match &restricted {
            None => caller.parent(at)?,
            Some(path) => path.parent()?,
        };
        still_waits()?;
        for _ in 0..=MAX_SYMLINKS {
            let place = match found {
                Found::Place(place) => place,
                Found::Object(object) => return self.reopen(caller, &object, flags, mode),
                Found::Gone => return Err(Errno::NOENT.into()),
            };
            let name = place.c_name()?;
            let mut changed = None;
            if writes(flags) && place.is_plain() && !place.has_slash && !makes_no_name(flags) {
                let dir = place.dir.as_fd();
                let (decision, path) =
                    self.judge.decide(dir, &place.name, FileType::RegularFile)?;
                let is_free = match decision {
                    WriteDecision::Free => true,
                    WriteDecision::ByContent(Role::Hook) => place.name.ends_with(b".sample"),
                    WriteDecision::ByContent(role) if role.has_content() => {
                        return self.stage(caller, place, role, path, flags, mode);
                    }
                    _ => false,
                };
                if !is_free || self.judge.has_protected_name(dir, &place.name)? {
                    return Err(Failure::Protected(path));
                }
                if self.judge.is_flagged(&path) {
                    changed = Some((path, changed_names::exists(&place.dir, &name)));
                }
            }
            if flags.intersects(OFlags::CREATE | OFlags::TMPFILE) {
                self.set_umask(caller)?;
            }
            if is_own_terminal(&place)? {
                return self.open_terminal(caller, flags);
            }
            let open = || open_exactly(&place.dir, &name, with_added(flags), mode);
            match self.within_rules(flags, open) {
                Err(Errno::LOOP) if !flags.contains(OFlags::NOFOLLOW) || place.has_slash => {
                    found = match &mut restricted {
                        None => caller.through(place)?,
                        Some(path) => path.through(&place)?,
                    };
                }
                Err(Errno::NXIO) if waits_for_reader(&place, flags)? => return Err(Failure::Waits),
                Err(errno) => return Err(errno.into()),
                // The kernel gives no such descriptor to another process. A program that finds no
                // openat2(2) uses openat(2).
                Ok(_) if flags.contains(OFlags::PATH) => return Err(Errno::NOSYS.into()),
                Ok(fd) => {
                    restore_flags(&fd, flags)?;
                    if let Some((path, existed)) = changed {
                        self.note_path(path, existed);
                    }
                    return Ok(fd);
                }
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Opens a file with the rules of the caller's layer. Without a layer it opens a file of /proc
    /// a second time, with the rules of the command, if this process has more rights there.
    fn within_rules(
        &self,
        flags: OFlags,
        open: impl Fn() -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        if let Some(layer) = self.layer_rules() {
            let rules = self.rules.iter().map(|rules| rules.as_fd());
            return with_rules(&rules.chain([layer]).collect::<Vec<_>>(), open);
        }
        let fd = open()?;
        let only_writes = flags.contains(OFlags::WRONLY);
        let Some(rules) = self.rules.as_ref().filter(|_| !only_writes) else { return Ok(fd) };
        // Other file systems are mounted below /proc.
        if !is_proc(fd.as_fd())? && !path_of(fd.as_fd())?.starts_with(b"/proc/") {
            return Ok(fd);
        }
        drop(fd);
        with_rules(&[rules.as_fd()], open)
    }

    fn open_terminal(&self, caller: Caller, flags: OFlags) -> Result<OwnedFd, Failure> {
        let open =
            |path: &str, flags| self.in_layer(|| rustix::fs::open(path, flags, Mode::empty()));
        caller.open_terminal(flags, open).map_err(Failure::from)
    }

    /// Opens an object again that is open with O_PATH.
    fn reopen(
        &mut self,
        caller: Caller,
        object: &OwnedFd,
        flags: OFlags,
        mode: u32,
    ) -> Result<OwnedFd, Failure> {
        let stat = rustix::fs::fstat(object)?;
        let file_type = FileType::from_raw_mode(stat.st_mode);
        if file_type == FileType::Symlink && !flags.contains(OFlags::PATH) {
            return Err(Errno::LOOP.into());
        }
        let mut written = None;
        if writes(flags) {
            let (decision, path) = self.judge.decide_object(object.as_fd(), file_type)?;
            if decision != WriteDecision::Free {
                return Err(Failure::Protected(path));
            }
            written = Some(path);
        }
        if flags.contains(OFlags::PATH) {
            return Err(Errno::NOSYS.into());
        }
        let mode = if makes_no_name(flags) { mode & 0o7777 } else { 0 };
        self.set_umask(caller)?;
        if file_type == FileType::CharacterDevice && stat.st_rdev == OWN_TERMINAL {
            return self.open_terminal(caller, flags);
        }
        let mut buffer = [0; 32];
        let link = open_beneath::proc_fd_path(object, &mut buffer);
        // With O_CREAT the kernel refuses a directory. The object exists, so nothing is made.
        let mode = Mode::from_raw_mode(mode);
        // Slashes follow the link if O_NOFOLLOW is here: the kernel follows it too then.
        let slash: &[u8] = if flags.contains(OFlags::NOFOLLOW) { b"/" } else { b"" };
        let link = c_name(&[link.to_bytes(), slash].concat())?;
        let open = || rustix::fs::open(&*link, with_added(flags), mode);
        let fd = match self.within_rules(flags, open) {
            Err(Errno::NXIO)
                if file_type == FileType::Fifo && !flags.contains(OFlags::NONBLOCK) =>
            {
                return Err(Failure::Waits);
            }
            fd => fd?,
        };
        restore_flags(&fd, flags)?;
        if let Some(path) = written {
            self.note_object(path, file_type, true);
        }
        Ok(fd)
    }
}

fn writes(flags: OFlags) -> bool {
    let writing = OFlags::from_bits_retain(super::call::WRITING_OPEN_FLAGS);
    flags.intersects(writing) && !flags.contains(OFlags::PATH)
}

/// O_TMPFILE names the directory of a file that has no name.
fn makes_no_name(flags: OFlags) -> bool {
    flags.contains(OFlags::TMPFILE)
}

/// The device number of /dev/tty, which stands for the terminal of the process that opens it.
const OWN_TERMINAL: u64 = 5 << 8;

/// Is it /dev/tty, which means another terminal for each process?
fn is_own_terminal(place: &Place) -> Result<bool, Errno> {
    if place.name != b"tty" {
        return Ok(false);
    }
    match rustix::fs::statat(&place.dir, c"tty", AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && stat.st_rdev == OWN_TERMINAL),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Is it a FIFO, which the caller opens with the intent to wait?
fn waits_for_reader(place: &Place, flags: OFlags) -> Result<bool, Errno> {
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(false);
    }
    let stat = rustix::fs::statat(&place.dir, &*place.c_name()?, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

/// Opens a name and follows no symlink. O_NOFOLLOW would do so too, but the caller would see it in
/// the flags of its descriptor.
pub(super) fn open_exactly(
    dir: &OwnedFd,
    name: &CString,
    flags: OFlags,
    mode: u32,
) -> Result<OwnedFd, Errno> {
    // open(2) ignores unknown flags and a mode that nothing needs; openat2(2) refuses them.
    let known = OFlags::from_bits_retain(KNOWN_OPEN_FLAGS as u32);
    let mut flags = flags.intersection(known) | OFlags::CLOEXEC;
    if flags.contains(OFlags::PATH) {
        let of_path = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        flags = flags.intersection(of_path);
    }
    let makes = flags.contains(OFlags::CREATE) || flags.contains(OFlags::TMPFILE);
    let mode = if makes { mode & 0o7777 } else { 0 };
    for _ in 0..open_beneath::MAX_RETRIES {
        let resolve = ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(dir, &**name, flags, Mode::from_raw_mode(mode), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

/// VALID_OPEN_FLAGS of the kernel (fcntl.h).
const KNOWN_OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_LARGEFILE
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE;

/// An open for the caller does not block. The caller gets the flags that it asked for.
pub(super) fn restore_flags(fd: &OwnedFd, flags: OFlags) -> Result<(), Errno> {
    if flags.contains(OFlags::NONBLOCK) || flags.contains(OFlags::PATH) || never_blocks(flags) {
        return Ok(());
    }
    // The kernel changes only flags that differ, and of those only some.
    rustix::fs::fcntl_setfl(fd, flags.difference(OFlags::NONBLOCK))
}
