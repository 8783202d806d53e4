//! Files whose content counts, and which a program writes step by step: `.git` of a linked work
//! tree, or a configuration that is not replaced by a rename.
//!
//! The caller gets a file without a name. After the last close, its content is judged and a copy of
//! it gets the name. So no process ever holds the file with the name open for writing.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::credentials::{FileCredentials, acting_as};
use super::judge::{self, WriteDecision};
use super::moves::write_all;
use super::open::restore_flags;
use super::resolve::{Caller, Place};
use super::{Failure, RefusedWrite, Writer, c_name};
use crate::files::git::Role;
use crate::kernel::open_beneath;
use crate::kernel::random_name::random_name;

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
}

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
            None => mode & 0o7777,
            Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => {
                return Err(Errno::EXIST.into());
            }
            Some(stat) => {
                let file_type = FileType::from_raw_mode(stat.st_mode);
                if !self.judge.exists_harmless(place.dir.as_fd(), &name, &path, file_type)? {
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
                judge::read_file(place.dir.as_fd(), &name, role.max_bytes())?.unwrap_or_default()
            }
            _ => Vec::new(),
        };
        self.set_umask(caller)?;
        let (file, link) = unnamed_file(&place, mode, existing.is_some(), &old)?;
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
        let opened =
            rustix::fs::open(&link[..], flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        restore_flags(&opened, flags)?;
        let (thread, program) = (caller.thread, caller.program());
        let credentials = FileCredentials::of(thread)?;
        let staged = StagedFile { watch, file, place, role, path, thread, program, credentials };
        self.staged.files.push(staged);
        Ok(opened)
    }

    /// Judges the staged files that were closed, and puts copies of the harmless ones in place.
    pub fn place_closed(&mut self) -> Result<Vec<RefusedWrite>, Errno> {
        let mut refused = Vec::new();
        for staged in self.staged.take_closed()? {
            let StagedFile { file, place, role, path, thread, program, credentials, .. } = staged;
            let name = place.c_name()?;
            let flags = RenameFlags::empty();
            // The directory may have moved since the open.
            let placed =
                match self.judge.decide(place.dir.as_fd(), &place.name, FileType::RegularFile) {
                    Ok((WriteDecision::ByContent(now), at)) if now == role && at == path => {
                        acting_as(&credentials, || {
                            self.place_copy(file.as_fd(), &place.dir, &name, role, &path, flags)
                        })
                    }
                    _ => Ok(false),
                };
            match placed {
                Ok(true) => {}
                // The directory is gone, or the disk is full: the file is not there, and nothing
                // obeys it.
                Ok(false) | Err(_) => {
                    let denied = self.judge.is_denied(&path);
                    refused.push(RefusedWrite { thread, program, path, denied });
                }
            }
        }
        Ok(refused)
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
