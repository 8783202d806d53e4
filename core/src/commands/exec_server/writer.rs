//! Writes one file inside the sandbox for the session owner.
//!
//! A file tool has no rights of its own. The writer makes the same calls as an editor that a
//! command starts, so init judges each name, place and content. The writer makes missing
//! directories, writes a temporary file beside the name, syncs it, and exchanges the two names. If
//! the replaced file is not the expected one, the writer exchanges them back. One message:
//! `{"written":true}`, or `{"errno":N,"failed":STEP}`.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Access, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::fs::{SeekFrom, XattrFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::command_reaper::{self, ALL_ENDED};
use super::opener;
use crate::kernel::random_name::random_name;
use crate::plan::wire::bytes::Text;

const BLOCK_BYTES: usize = 64 * 1024;
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;
/// A write by another user removes the set-id bits, so a replaced file does not keep them either.
const KEPT_MODE_BITS: u32 = 0o1777;
const PATH_DIR: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteRequest {
    /// A directory that exists. Absolute, without a symlink, `.` or `..`.
    directory: Text,
    /// Directories to make below it, from the top.
    missing: Vec<Text>,
    /// The name of the file.
    name: Text,
    /// The file that the session owner has seen. None: the name must be new.
    before: Option<ExpectedFile>,
}

/// What changes if another program writes or replaces a file.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct ExpectedFile {
    device: u64,
    inode: u64,
    size: i64,
    mtime_s: i64,
    mtime_ns: i64,
}

impl ExpectedFile {
    fn of(stat: &Stat) -> ExpectedFile {
        ExpectedFile {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size,
            mtime_s: stat.st_mtime,
            mtime_ns: stat.st_mtime_nsec as i64,
        }
    }
}

/// Where a write failed. The session owner makes a message of it.
#[derive(Debug, Clone, Copy)]
enum Step {
    Request,
    Directory,
    Permission,
    Owner,
    Write,
    Changed,
}

impl Step {
    const fn name(self) -> &'static str {
        match self {
            Step::Request => "request",
            Step::Directory => "directory",
            Step::Permission => "permission",
            Step::Owner => "owner",
            Step::Write => "write",
            Step::Changed => "changed",
        }
    }

    fn failed(self) -> impl Fn(Errno) -> WriteFailure {
        move |errno| WriteFailure { step: self, errno }
    }
}

#[derive(Debug)]
struct WriteFailure {
    step: Step,
    errno: Errno,
}

const CHANGED: WriteFailure = WriteFailure { step: Step::Changed, errno: Errno::STALE };

/// A file that was shown and is gone has changed.
fn unless_gone(step: Step) -> impl Fn(Errno) -> WriteFailure {
    move |errno| if errno == Errno::NOENT { CHANGED } else { WriteFailure { step, errno } }
}

/// `contents`: the new content, and the old content if the session owner has read it. The exit
/// status says that no process is left: a writer starts none.
pub fn answer(request: Option<WriteRequest>, contents: &[OwnedFd], socket: &OwnedFd) -> i32 {
    let written = match (request, contents) {
        (Some(request), [new]) => write(&request, new, None),
        (Some(request), [new, old]) => write(&request, new, Some(old)),
        _ => Err(WriteFailure { step: Step::Request, errno: Errno::INVAL }),
    };
    match written {
        Ok(()) => command_reaper::send(socket, "{\"written\":true}", None),
        Err(WriteFailure { step, errno }) => {
            let _ = command_reaper::refuse(socket, step.name(), errno);
        }
    }
    ALL_ENDED
}

fn write(request: &WriteRequest, new: &OwnedFd, old: Option<&OwnedFd>) -> Result<(), WriteFailure> {
    for name in request.missing.iter().chain([&request.name]) {
        if matches!(name.as_bytes(), b"" | b"." | b"..") || name.as_bytes().contains(&b'/') {
            return Err(WriteFailure { step: Step::Request, errno: Errno::INVAL });
        }
    }
    let mut target = TargetDir::open(request).map_err(Step::Directory.failed())?;
    target.make_missing(&request.missing).map_err(Step::Directory.failed())?;
    if request.before.is_some() {
        target.check_writable(&request.name).map_err(unless_gone(Step::Permission))?;
    }
    let temporary = random_name()
        .and_then(|digits| {
            Text::from_bytes(format!(".paddock-{digits}").into_bytes()).map_err(|_| Errno::INVAL)
        })
        .map_err(Step::Write.failed())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let file = rustix::fs::openat(&target.dir, &*temporary.as_c_str(), flags, mode)
        .map_err(Step::Write.failed())?;
    let filled = fill(&target, request, &file, new);
    drop(file);
    let placed = filled
        .and_then(|()| target.check_kept(&temporary, new).map_err(Step::Write.failed()))
        .and_then(|()| target.put(request, &temporary, old));
    match rustix::fs::unlinkat(&target.dir, &*temporary.as_c_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => placed?,
        Err(errno) => {
            placed?;
            return Err(WriteFailure { step: Step::Write, errno });
        }
    }
    target.sync().map_err(Step::Write.failed())
}

fn fill(
    target: &TargetDir,
    request: &WriteRequest,
    file: &OwnedFd,
    new: &OwnedFd,
) -> Result<(), WriteFailure> {
    if request.before.is_some() {
        let old = rustix::fs::openat(&target.dir, &*request.name.as_c_str(), READ, Mode::empty())
            .map_err(unless_gone(Step::Write))?;
        keep_metadata(&old, file)?;
    }
    copy(new, file).and_then(|()| rustix::fs::fsync(file)).map_err(Step::Write.failed())
}

/// Gives the new file the owner, the attributes and the mode of the old one.
fn keep_metadata(old: &OwnedFd, new: &OwnedFd) -> Result<(), WriteFailure> {
    let before = rustix::fs::fstat(old).map_err(Step::Write.failed())?;
    let ours = rustix::fs::fstat(new).map_err(Step::Write.failed())?;
    if (ours.st_uid, ours.st_gid) != (before.st_uid, before.st_gid) {
        let (owner, group) = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
        rustix::fs::fchown(new, Some(owner), Some(group)).map_err(Step::Owner.failed())?;
    }
    // Not every file system has attributes.
    let _ = copy_attributes(old, new);
    rustix::fs::fchmod(new, Mode::from_raw_mode(before.st_mode & KEPT_MODE_BITS))
        .map_err(Step::Write.failed())
}

fn copy_attributes(old: &OwnedFd, new: &OwnedFd) -> Result<(), Errno> {
    let mut names = vec![0; MAX_ATTRIBUTE_BYTES];
    let length = rustix::fs::flistxattr(old, &mut names[..])?;
    let mut value = vec![0; MAX_ATTRIBUTE_BYTES];
    for name in names[..length].split(|byte| *byte == 0) {
        if name.starts_with(b"user.") || name == b"system.posix_acl_access" {
            let size = rustix::fs::fgetxattr(old, name, &mut value[..])?;
            rustix::fs::fsetxattr(new, name, &value[..size], XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn copy(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::seek(from, SeekFrom::Start(0))?;
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let length = read(from.as_fd(), &mut block)?;
        if length == 0 {
            return Ok(());
        }
        let mut rest = &block[..length];
        while !rest.is_empty() {
            match rustix::io::write(to, rest) {
                Err(Errno::INTR) => {}
                written => rest = &rest[written?..],
            }
        }
    }
}

/// Fills the block, unless the file ends.
fn read(from: BorrowedFd<'_>, block: &mut [u8]) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < block.len() {
        match rustix::io::read(from, &mut block[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// An open directory, and its path.
struct TargetDir {
    dir: OwnedFd,
    path: Vec<u8>,
}

impl TargetDir {
    fn open(request: &WriteRequest) -> Result<TargetDir, Errno> {
        let path = request.directory.as_bytes().to_vec();
        Ok(TargetDir { dir: opener::open_path(&path, PATH_DIR)?, path })
    }

    fn make_missing(&mut self, names: &[Text]) -> Result<(), Errno> {
        for name in names {
            match rustix::fs::mkdirat(&self.dir, &*name.as_c_str(), Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            self.dir = rustix::fs::openat(&self.dir, &*name.as_c_str(), PATH_DIR, Mode::empty())?;
            if !self.path.ends_with(b"/") {
                self.path.push(b'/');
            }
            self.path.extend(name.as_bytes());
        }
        Ok(())
    }

    /// A rename needs no right to write the file that it replaces.
    fn check_writable(&self, name: &Text) -> Result<(), Errno> {
        rustix::fs::accessat(&self.dir, &*name.as_c_str(), Access::WRITE_OK, AtFlags::EACCESS)
    }

    fn stat(&self, name: &Text) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.dir, &*name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Among the refs of git each name is a file that git obeys. Init judges its content after the
    /// last close, and takes a refused file away.
    fn check_kept(&self, temporary: &Text, new: &OwnedFd) -> Result<(), Errno> {
        let expected = rustix::fs::fstat(new)?.st_size;
        let is_kept = || match self.stat(temporary) {
            Ok(stat) => Ok(stat.st_size == expected),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        };
        if is_kept()? {
            return Ok(());
        }
        // Init answers no call before it has judged the files that were closed. No file has this
        // name.
        let spare = [temporary.as_bytes(), b"~"].concat();
        let _ = rustix::fs::unlinkat(&self.dir, &spare[..], AtFlags::empty());
        if is_kept()? { Ok(()) } else { Err(Errno::ACCESS) }
    }

    fn rename(&self, from: &Text, to: &Text, flags: RenameFlags) -> Result<(), Errno> {
        let (from, to) = (from.as_c_str(), to.as_c_str());
        rustix::fs::renameat_with(&self.dir, &*from, &self.dir, &*to, flags)
    }

    /// Gives the temporary file its name.
    fn put(
        &self,
        request: &WriteRequest,
        temporary: &Text,
        old: Option<&OwnedFd>,
    ) -> Result<(), WriteFailure> {
        let name = &request.name;
        if !self.is_at_path() {
            return Err(CHANGED);
        }
        let Some(before) = &request.before else {
            return self.put_new(temporary, name).map_err(Step::Write.failed());
        };
        let exchanged = match self.is_git(name) {
            // Init puts a git file in place by a plain rename only.
            true => Err(Errno::ACCESS),
            false => self.rename(temporary, name, RenameFlags::EXCHANGE),
        };
        match exchanged {
            Ok(()) if self.is_expected(temporary, before, old) => Ok(()),
            Ok(()) => {
                self.rename(temporary, name, RenameFlags::EXCHANGE)
                    .map_err(Step::Write.failed())?;
                Err(CHANGED)
            }
            // Some file systems (NFS, FAT, some FUSE) do not exchange.
            Err(Errno::ACCESS | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if !self.is_expected(name, before, old) {
                    return Err(CHANGED);
                }
                self.rename(temporary, name, RenameFlags::empty()).map_err(Step::Write.failed())
            }
            Err(Errno::NOENT) => Err(CHANGED),
            Err(errno) => Err(WriteFailure { step: Step::Write, errno }),
        }
    }

    /// By the usual name. In another git directory init refuses the exchange first.
    fn is_git(&self, name: &Text) -> bool {
        let above = self.path.split(|byte| *byte == b'/');
        above.chain([name.as_bytes()]).any(|part| part == b".git")
    }

    fn put_new(&self, temporary: &Text, name: &Text) -> Result<(), Errno> {
        match self.rename(temporary, name, RenameFlags::NOREPLACE) {
            // The same file systems. Another process may take the name in between.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match self.stat(name) {
                Err(Errno::NOENT) => self.rename(temporary, name, RenameFlags::empty()),
                Ok(_) => Err(Errno::EXIST),
                Err(errno) => Err(errno),
            },
            renamed => renamed,
        }
    }

    /// False: another process has moved the directory, so the file would get another path than the
    /// one that was judged and shown.
    fn is_at_path(&self) -> bool {
        let identity =
            |dir: &OwnedFd| rustix::fs::fstat(dir).map(|stat| (stat.st_dev, stat.st_ino));
        opener::open_path(&self.path, PATH_DIR)
            .and_then(|found| Ok(identity(&found)? == identity(&self.dir)?))
            .unwrap_or(false)
    }

    /// An overlay may give a changed file a new inode number. Then the content is compared.
    fn is_expected(&self, name: &Text, before: &ExpectedFile, old: Option<&OwnedFd>) -> bool {
        let Ok(stat) = self.stat(name) else { return false };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return false;
        }
        ExpectedFile::of(&stat) == *before
            || old.is_some_and(|old| self.has_content(name, old).unwrap_or(false))
    }

    fn has_content(&self, name: &Text, old: &OwnedFd) -> Result<bool, Errno> {
        let file = rustix::fs::openat(&self.dir, &*name.as_c_str(), READ, Mode::empty())?;
        rustix::fs::seek(old, SeekFrom::Start(0))?;
        let mut blocks = [vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]];
        loop {
            let [found, expected] = &mut blocks;
            let lengths = [read(file.as_fd(), found)?, read(old.as_fd(), expected)?];
            if found[..lengths[0]] != expected[..lengths[1]] {
                return Ok(false);
            }
            if lengths[0] == 0 {
                return Ok(true);
            }
        }
    }

    /// Syncs the name itself. A directory that is writable but not readable is skipped.
    fn sync(&self) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.dir, c".", flags, Mode::empty()) {
            Err(Errno::ACCESS | Errno::PERM) => Ok(()),
            opened => rustix::fs::fsync(opened?),
        }
    }
}
