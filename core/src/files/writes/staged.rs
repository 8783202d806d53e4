//! Files whose content counts, and which a program writes step by step: `.git` of a linked work
//! tree, or a configuration that is not replaced by a rename.
//!
//! The caller gets a file without a name. After the last close, its content is judged and a copy of
//! it gets the name. So no process ever holds the file with the name open for writing.
//!
//! Meanwhile this process has a lease on the file with the name. So a program that closes its file
//! and reads it at once waits until the content is there.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::change::WRITE_BY_OTHERS;
use super::credentials::{FileCredentials, acting_as};
use super::judge::{self, WriteDecision};
use super::kept_files::ContentVerdict;
use super::moves::{Placement, write_all};
use super::open::restore_flags;
use super::resolve::{Caller, Place};
use super::{Failure, RefusalCause, RefusedWrite, WriteLock, Writer, c_name};
use crate::files::git::{self, Role};
use crate::kernel::random_name::random_name;
use crate::kernel::resolved_path::Identity;
use crate::kernel::{open_beneath, sys};

/// So many such files are open at the same time. Further ones are refused.
const MAX_STAGED: usize = 256;

#[derive(Default)]
pub struct StagedFiles {
    files: Vec<StagedFile>,
    /// Reports closed files. None: no file was staged yet.
    closed: Option<OwnedFd>,
}

struct StagedFile {
    watch: i32,
    file: OwnedFd,
    place: Place,
    role: Role,
    path: Vec<u8>,
    thread: u32,
    program: Vec<u8>,
    credentials: FileCredentials,
    /// The file with the name, open for reading and writing.
    leased: Option<LeasedFile>,
}

/// A file without a name.
struct UnnamedFile {
    watch: i32,
    /// For reading.
    file: OwnedFd,
    /// For the caller.
    opened: OwnedFd,
}

struct LeasedFile {
    file: OwnedFd,
    /// It was made for this lease, and is empty.
    is_new: bool,
    /// No other program has opened it since.
    is_held: bool,
}

/// A longer content is not written at once, so it is placed by a rename.
const MAX_LEASED_BYTES: usize = 4096;

impl StagedFiles {
    /// Readable after a staged file was closed.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.closed.as_ref().filter(|_| !self.files.is_empty())
    }

    fn take_closed(&mut self) -> Result<Vec<StagedFile>, Errno> {
        let Some(closed) = self.fd() else { return Ok(Vec::new()) };
        let mut buffer = [const { std::mem::MaybeUninit::uninit() }; 4096];
        let mut events = inotify::Reader::new(closed, &mut buffer);
        let mut watches = Vec::new();
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::CLOSE_WRITE) => {
                    watches.push(event.wd());
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        let is_closed = |file: &mut StagedFile| watches.contains(&file.watch);
        Ok(self.files.extract_if(.., is_closed).collect())
    }
}

impl Writer {
    pub(super) fn stage(
        &mut self,
        caller: Caller,
        place: Place,
        role: Role,
        path: Vec<u8>,
        flags: OFlags,
        mode: u32,
    ) -> Result<OwnedFd, Failure> {
        let name = place.c_name()?;
        let existing = match rustix::fs::statat(&place.dir, &*name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        let mode = match &existing {
            None if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT.into()),
            None => mode & 0o7777 & !WRITE_BY_OTHERS,
            Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => {
                return Err(Errno::EXIST.into());
            }
            Some(stat) => {
                let file_type = FileType::from_raw_mode(stat.st_mode);
                if !self.may_replace(role, &place, &name, &path, file_type)? {
                    return Err(Failure::Protected(path));
                }
                stat.st_mode & 0o7777
            }
        };
        if self.staged.files.len() == MAX_STAGED {
            return Err(Errno::NFILE.into());
        }
        let old = match existing {
            Some(_) if !flags.contains(OFlags::TRUNC) => {
                let old = judge::read_file(place.dir.as_fd(), &name, role.max_bytes())?;
                let Some(old) = old else { return Err(Failure::Protected(path)) };
                old
            }
            _ => Vec::new(),
        };
        self.set_umask(caller)?;
        let origin = self.judge.origin(role, place.dir.as_fd(), &name, &path, None)?;
        let (thread, program) = (caller.thread, caller.program());
        let credentials = FileCredentials::of(thread)?;
        // The kernel may refuse to open it: in the full tier a protected file is a mount.
        let leased = self.lease(&place, &name, mode, existing.is_none())?;
        if leased.as_ref().is_some_and(|leased| leased.is_new) {
            self.judge.note_placed(role, place.dir.as_fd(), &name, &path, origin)?;
        }
        let unnamed = self.unnamed_file(&place, mode, existing.is_some(), &old, flags);
        let UnnamedFile { watch, file, opened } = match unnamed {
            Ok(unnamed) => unnamed,
            Err(errno) => {
                remove_new(leased.as_ref(), &place);
                return Err(errno.into());
            }
        };
        self.staged.files.push(StagedFile {
            watch,
            file,
            place,
            role,
            path,
            thread,
            program,
            credentials,
            leased,
        });
        Ok(opened)
    }

    /// The file that the caller gets, with a watch for its last close.
    fn unnamed_file(
        &mut self,
        place: &Place,
        mode: u32,
        exact: bool,
        content: &[u8],
        flags: OFlags,
    ) -> Result<UnnamedFile, Errno> {
        let (file, link) = unnamed_file(place, mode, exact, content)?;
        let closed = match &self.staged.closed {
            Some(closed) => closed,
            None => {
                let flags = CreateFlags::CLOEXEC | CreateFlags::NONBLOCK;
                self.staged.closed.insert(inotify::init(flags)?)
            }
        };
        let watch = inotify::add_watch(closed, &link[..], WatchFlags::CLOSE_WRITE)?;
        let made = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOFOLLOW;
        let flags = flags.difference(made);
        let opened = self.in_layer(|| {
            let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::open(&link[..], flags, Mode::empty())
        })?;
        restore_flags(&opened, flags)?;
        Ok(UnnamedFile { watch, file, opened })
    }

    /// The run ends. The content of a file that is still open was not judged, so it has no name.
    pub fn drop_staged(&mut self) -> Vec<RefusedWrite> {
        let dropped = self.staged.files.drain(..).map(|staged| {
            remove_new(staged.leased.as_ref(), &staged.place);
            let StagedFile { thread, program, path, .. } = staged;
            let cause = RefusalCause::of(self.judge.is_denied(&path));
            RefusedWrite { thread, program, path, cause, setting: Vec::new() }
        });
        dropped.collect()
    }

    /// Judges the staged files that were closed, and puts copies of the harmless ones in place.
    pub fn place_closed(&mut self) -> Result<Vec<RefusedWrite>, Errno> {
        let closed = self.staged.take_closed()?;
        if closed.is_empty() {
            return Ok(Vec::new());
        }
        let lock = self.lock.take();
        let held = lock.as_ref().map(WriteLock::hold_alone).transpose();
        let refused = held.and_then(|_held| self.place_alone(closed));
        self.lock = lock;
        refused
    }

    fn place_alone(&mut self, closed: Vec<StagedFile>) -> Result<Vec<RefusedWrite>, Errno> {
        let mut refused = Vec::new();
        for staged in closed {
            let StagedFile { file, place, role, path, thread, program, credentials, .. } = staged;
            let leased = staged.leased.as_ref();
            let name = place.c_name()?;
            let flags = RenameFlags::empty();
            // The directory may have moved since the open.
            let placed =
                match self.judge.decide(place.dir.as_fd(), &place.name, FileType::RegularFile) {
                    Ok((WriteDecision::ByContent(now), at)) if now == role && at == path => {
                        acting_as(&credentials, || {
                            match self.fill_leased(leased, file.as_fd(), &place, role, &path)? {
                                Some(placement) => Ok(placement),
                                None => self.place_copy(
                                    file.as_fd(),
                                    &place.dir,
                                    &name,
                                    role,
                                    &path,
                                    flags,
                                ),
                            }
                        })
                    }
                    _ => Ok(Placement::Refused(Vec::new())),
                };
            // The directory is gone, or the disk is full: the file is not there, and nothing obeys
            // it.
            match placed.unwrap_or_else(|_| Placement::Refused(Vec::new())) {
                Placement::Done => {}
                Placement::Refused(setting) => {
                    remove_new(leased, &place);
                    let cause = RefusalCause::of(self.judge.is_denied(&path));
                    refused.push(RefusedWrite { thread, program, path, cause, setting });
                }
            }
        }
        Ok(refused)
    }
}

impl Writer {
    /// A program opens a leased file, and waits. Its writer has not closed it yet.
    pub fn release_leases(&mut self) {
        for staged in &mut self.staged.files {
            if let Some(leased) = staged.leased.as_mut().filter(|leased| leased.is_held) {
                sys::release_lease(leased.file.as_fd());
                leased.is_held = false;
            }
        }
    }

    /// Writes a harmless content into the leased file. None: the content has to be placed by a
    /// rename.
    fn fill_leased(
        &mut self,
        leased: Option<&LeasedFile>,
        file: BorrowedFd<'_>,
        place: &Place,
        role: Role,
        path: &[u8],
    ) -> Result<Option<Placement>, Errno> {
        let Some(leased) = leased.filter(|leased| leased.is_held && leased.has_name(place)) else {
            return Ok(None);
        };
        let Some(content) = judge::read_open(file, MAX_LEASED_BYTES)? else { return Ok(None) };
        let (dir, name) = (place.dir.as_fd(), place.c_name()?);
        // This process holds the lease, and its own open would wait for itself.
        let current = judge::read_open(leased.file.as_fd(), role.max_bytes())?;
        let current = current.as_deref();
        let origin = match self.judge.judge_content(role, dir, &name, path, &content, current)? {
            ContentVerdict::Harmless(origin) => origin,
            ContentVerdict::Refused(setting) => return Ok(Some(Placement::Refused(setting))),
        };
        let content = git::placed_content(role, git::parent_of(path), content);
        let written = rustix::io::pwrite(&leased.file, &content, 0)?;
        if written != content.len() {
            return Ok(None);
        }
        rustix::fs::ftruncate(&leased.file, content.len() as u64)?;
        self.judge.note_placed(role, dir, &name, path, origin)?;
        Ok(Some(Placement::Done))
    }
}

/// Removes the empty file that was made for a lease.
fn remove_new(leased: Option<&LeasedFile>, place: &Place) {
    if leased.is_some_and(|leased| leased.is_new && leased.has_name(place)) {
        let _ = rustix::fs::unlinkat(&place.dir, &place.name[..], AtFlags::empty());
    }
}

impl LeasedFile {
    /// Does the file still have its name?
    fn has_name(&self, place: &Place) -> bool {
        let found = rustix::fs::statat(&place.dir, &place.name[..], AtFlags::SYMLINK_NOFOLLOW);
        let own = rustix::fs::fstat(&self.file);
        matches!((found, own), (Ok(found), Ok(own)) if Identity::from(&found) == Identity::from(&own))
    }
}

impl Writer {
    /// Opens the file with the name and takes a lease on it. None: the file system has no leases, or
    /// the file is open elsewhere.
    fn lease(
        &self,
        place: &Place,
        name: &CStr,
        mode: u32,
        is_new: bool,
    ) -> Result<Option<LeasedFile>, Errno> {
        let makes = if is_new { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | makes;
        let mode = if is_new { Mode::from_raw_mode(mode) } else { Mode::empty() };
        let open =
            |access| self.in_layer(|| rustix::fs::openat(&place.dir, name, flags | access, mode));
        let file = match open(OFlags::RDWR) {
            // It can be written and not be read.
            Err(Errno::ACCESS) => open(OFlags::WRONLY).map(|_| None)?,
            file => Some(file?),
        };
        let leased = file.filter(|file| {
            let is_alone = rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 1);
            is_alone && sys::take_lease(file.as_fd())
        });
        if let Some(file) = leased {
            return Ok(Some(LeasedFile { file, is_new, is_held: true }));
        }
        if is_new {
            rustix::fs::unlinkat(&place.dir, name, AtFlags::empty())?;
        }
        Ok(None)
    }
}

/// A file without a name in the directory of `place`, open for reading, and its path in /proc.
fn unnamed_file(
    place: &Place,
    mode: u32,
    exact: bool,
    content: &[u8],
) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let temporary = c_name(format!(".paddock-{}", random_name()?).as_bytes())?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    let file = rustix::fs::openat(&place.dir, &*temporary, flags, mode)?;
    rustix::fs::unlinkat(&place.dir, &*temporary, AtFlags::empty())?;
    write_all(file.as_fd(), content)?;
    if exact {
        rustix::fs::fchmod(&file, mode)?;
    }
    let mut buffer = [0; 32];
    let link = open_beneath::proc_fd_path(&file, &mut buffer);
    // This process holds no descriptor for writing: its own close would count as the caller's.
    let read = rustix::fs::open(link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    drop(file);
    let mut buffer = [0; 32];
    let link = open_beneath::proc_fd_path(&read, &mut buffer).to_bytes().to_vec();
    Ok((read, link))
}
