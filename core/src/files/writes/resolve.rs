//! From a path of the caller to the directory that holds its last name.
//!
//! The kernel walks the path, and this process keeps what it found open. A path is never walked a
//! second time, so a link or a directory that is exchanged meanwhile changes nothing.
//!
//! This process stands in the caller's mounts and has the caller's root. `/proc/self` means this
//! process and not the caller, so a path that leads through /proc is walked name by name.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::call::PathArgument;
use crate::kernel::calling_process::{mount_of, proc_path};
use crate::kernel::resolved_path::Identity;
use crate::kernel::{open_beneath, sys};

/// As many symlinks as the kernel follows in one path.
pub const MAX_SYMLINKS: usize = 40;
const PROC_MAGIC: u64 = 0x9FA0;

const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
const PATH_DIR: OFlags = PATH_ONLY.union(OFlags::DIRECTORY);

/// A name in an open directory. The name may be `.`, `..` or empty: the kernel refuses to make,
/// rename or remove such a name.
#[derive(Debug)]
pub struct Place {
    pub dir: OwnedFd,
    pub name: Vec<u8>,
    /// The path goes on with slashes: only a directory is meant.
    pub has_slash: bool,
}

impl Place {
    /// The name as the kernel has to see it.
    pub fn c_name(&self) -> Result<CString, Errno> {
        let mut name = self.name.clone();
        if self.has_slash {
            name.push(b'/');
        }
        if name.is_empty() {
            name.push(b'.');
        }
        CString::new(name).map_err(|_| Errno::INVAL)
    }

    /// EACCES if the directory may not be searched.
    pub fn check_search(&self) -> Result<(), Errno> {
        rustix::fs::statat(&self.dir, c".", AtFlags::empty()).map(drop)
    }

    /// Is it a name that a directory can hold?
    pub fn is_plain(&self) -> bool {
        !matches!(&self.name[..], b"" | b"." | b"..")
    }
}

/// What a path leads to.
#[derive(Debug)]
pub enum Found {
    /// A name in a directory, which may exist or not.
    Place(Place),
    /// An open file of a process, by a link in /proc.
    Object(OwnedFd),
    /// A descriptor of a process whose first thread has ended: /proc shows none any more.
    Gone,
}

/// Links in /proc that lead to an open file, whatever its name is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MagicLinks {
    Followed,
    Refused,
}

/// A path of openat2(2), if the call restricts the way.
pub struct RestrictedPath {
    caller: Caller,
    start: OwnedFd,
    path: Vec<u8>,
    resolve: ResolveFlags,
    links: usize,
}

impl RestrictedPath {
    /// The directory that holds the last name.
    pub fn parent(&self) -> Result<Found, Errno> {
        match self.parent_by_kernel() {
            // `/proc/self` was this process.
            Err(_) if self.resolve == ResolveFlags::NO_MAGICLINKS => {
                let start = rustix::io::fcntl_dupfd_cloexec(&self.start, 0)?;
                let found = self.caller.by_name(start, &self.path, false, MagicLinks::Refused)?;
                self.caller.checked(found)
            }
            found => found,
        }
    }

    fn parent_by_kernel(&self) -> Result<Found, Errno> {
        let (above, name, has_slash) = split(&self.path)?;
        if matches!(name, b"" | b"." | b"..") {
            // The kernel has to judge the last step too.
            let dir = self.caller.as_caller_sees(self.open(&self.path)?)?;
            let place = Place { dir, name: b".".to_vec(), has_slash };
            return self.caller.checked(Found::Place(place));
        }
        let above = if above.is_empty() { b"." } else { above };
        let dir = self.caller.as_caller_sees(self.open(above)?)?;
        if is_proc(dir.as_fd())? && self.caller.has_no_descriptors(&dir)? {
            return Ok(Found::Gone);
        }
        self.caller.checked(Found::Place(Place { dir, name: name.to_vec(), has_slash }))
    }

    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        for _ in 0..open_beneath::MAX_RETRIES {
            match rustix::fs::openat2(&self.start, path, PATH_DIR, Mode::empty(), self.resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                opened => return opened,
            }
        }
        Err(Errno::AGAIN)
    }

    /// What a symlink at the end of the path leads to.
    pub fn through(&mut self, place: &Place) -> Result<Found, Errno> {
        let is = |flag| self.resolve.contains(flag);
        self.links += 1;
        if is(ResolveFlags::NO_SYMLINKS) || self.links > MAX_SYMLINKS {
            return Err(Errno::LOOP);
        }
        let is_scoped = is(ResolveFlags::BENEATH) || is(ResolveFlags::IN_ROOT);
        let leaves_mount = |dir: &OwnedFd| {
            let mounts = [&place.dir, dir].map(|dir| mount_of(dir, c""));
            is(ResolveFlags::NO_XDEV) && mounts[0] != mounts[1]
        };
        if is_proc(place.dir.as_fd())? {
            let target = self.caller.magic_link(&place.dir, &place.name)?;
            if is(ResolveFlags::NO_MAGICLINKS) {
                return Err(Errno::LOOP);
            }
            return match is_scoped || leaves_mount(&target) {
                true => Err(Errno::XDEV),
                false => Ok(Found::Object(target)),
            };
        }
        let mut target =
            rustix::fs::readlinkat(&place.dir, &place.name[..], Vec::new())?.into_bytes();
        if target.is_empty() {
            return Err(Errno::NOENT);
        }
        if target.starts_with(b"/") {
            // With RESOLVE_NO_XDEV the kernel follows such a link only after it has met the root.
            let has_met_root =
                self.path.starts_with(b"/") || components(&self.path).any(|name| name == b"..");
            let leaves = || Ok(!has_met_root || leaves_mount(&root()?));
            if is(ResolveFlags::BENEATH) || (is(ResolveFlags::NO_XDEV) && !is_scoped && leaves()?) {
                return Err(Errno::XDEV);
            }
        } else {
            let (above, ..) = split(&self.path)?;
            target = [above, &target].concat();
        }
        if place.has_slash {
            target.push(b'/');
        }
        self.path = target;
        self.parent()
    }
}

fn root() -> Result<OwnedFd, Errno> {
    rustix::fs::open(c"/", PATH_DIR, Mode::empty())
}

/// The process that makes the call.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub thread: u32,
}

impl Caller {
    /// The directory that holds the last name of a path. The last name is not followed.
    pub fn parent(self, at: &PathArgument) -> Result<Found, Errno> {
        let PathArgument { dir, path } = at;
        let (above, name, has_slash) = split(path)?;
        let opened = match above {
            b"" => Ok(self.start(*dir, path)?),
            [b'/', ..] => step(rustix::fs::CWD, above, PATH_DIR),
            _ => step(self.start(*dir, path)?.as_fd(), above, PATH_DIR),
        };
        match opened {
            Ok(dir) if !is_proc(dir.as_fd())? => {
                Ok(Found::Place(Place { dir, name: name.to_vec(), has_slash }))
            }
            _ => {
                let start = self.start(*dir, path)?;
                self.checked(self.by_name(start, path, false, MagicLinks::Followed)?)
            }
        }
    }

    /// A path of openat2(2), if the call restricts the way.
    pub fn restricted(
        self,
        at: &PathArgument,
        resolve: ResolveFlags,
    ) -> Result<RestrictedPath, Errno> {
        // With RESOLVE_IN_ROOT an absolute path starts in the directory too.
        let start = match resolve.contains(ResolveFlags::IN_ROOT) {
            true => self.start(at.dir, b"")?,
            false => self.start(at.dir, &at.path)?,
        };
        Ok(RestrictedPath { caller: self, start, path: at.path.clone(), resolve, links: 0 })
    }

    /// EMFILE if the caller has no number left for a new descriptor.
    pub fn check_free_descriptor(self) -> Result<(), Errno> {
        // The size of this directory is the number of descriptors (Linux 6.2; 0 before).
        let open = rustix::fs::stat(proc_path(self.thread, "fd"))?.st_size as u64;
        let limit = self.resource_limit(libc::RLIMIT_NOFILE as _, "Max open files")?;
        if open < limit
            || self.descriptors()?.iter().filter(|fd| u64::from(**fd) < limit).count() as u64
                != limit
        {
            return Ok(());
        }
        Err(Errno::MFILE)
    }

    /// The numbers of the open descriptors.
    pub fn descriptors(self) -> Result<Vec<u32>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::open(proc_path(self.thread, "fd"), flags, Mode::empty())?;
        let mut numbers = Vec::new();
        for entry in Dir::read_from(listed)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            numbers.extend(name.and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(numbers)
    }

    /// Refuses a place in /proc that this process may open and the caller may not: a part of this
    /// process, or a part of another process that not every user may read.
    fn checked(self, found: Found) -> Result<Found, Errno> {
        if let Found::Place(place) = &found
            && is_proc(place.dir.as_fd())?
        {
            let path = path_of(place.dir.as_fd())?;
            let is_below = |dir: String| {
                let rest = path.strip_prefix(dir.as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            };
            if is_below(format!("/proc/{}", std::process::id())) {
                return Err(Errno::ACCESS);
            }
            let is_of_process = path.get(6).is_some_and(u8::is_ascii_digit);
            if is_of_process && !is_below(format!("/proc/{}", self.process()?)) {
                let name = place.c_name()?;
                let stat = rustix::fs::statat(&place.dir, &*name, AtFlags::SYMLINK_NOFOLLOW);
                if stat.is_ok_and(|stat| !Mode::from_raw_mode(stat.st_mode).contains(Mode::ROTH)) {
                    return Err(Errno::ACCESS);
                }
            }
        }
        Ok(found)
    }

    /// A directory that this process found. In /proc, `self` was this process: the caller means
    /// its own.
    fn as_caller_sees(self, dir: OwnedFd) -> Result<OwnedFd, Errno> {
        if !is_proc(dir.as_fd())? {
            return Ok(dir);
        }
        let this = std::process::id();
        let path = path_of(dir.as_fd())?;
        let (process, thread) = (self.process()?, self.thread);
        for (of_this, of_caller) in [
            (format!("/proc/{this}/task/{this}"), format!("/proc/{process}/task/{thread}")),
            (format!("/proc/{this}"), format!("/proc/{process}")),
        ] {
            let rest = path.strip_prefix(of_this.as_bytes());
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with(b"/")) {
                let path = [of_caller.as_bytes(), rest].concat();
                return step(rustix::fs::CWD, &path, PATH_DIR);
            }
        }
        Ok(dir)
    }

    /// Is the directory that of the descriptors in /proc, and has the first thread ended? Only
    /// this process and not the caller fails to search it then.
    fn has_no_descriptors(self, dir: &OwnedFd) -> Result<bool, Errno> {
        let process = self.process()?;
        let path = path_of(dir.as_fd())?;
        if path != format!("/proc/{process}/fd").as_bytes() {
            return Ok(false);
        }
        let stat = std::fs::read(proc_path(process, "stat")).map_err(|_| Errno::SRCH)?;
        let end = stat.iter().rposition(|byte| *byte == b')').unwrap_or(0);
        Ok(stat[end..].starts_with(b") Z"))
    }

    /// Opens the terminal of the caller's session by `open`.
    pub fn open_terminal(
        self,
        flags: OFlags,
        open: impl FnOnce(&str, OFlags) -> Result<OwnedFd, Errno>,
    ) -> Result<OwnedFd, Errno> {
        let stat = std::fs::read(proc_path(self.thread, "stat")).map_err(|_| Errno::SRCH)?;
        let device = terminal_of(&stat).ok_or(Errno::NXIO)?;
        let (major, minor) = (libc::major(device), libc::minor(device));
        let own = std::fs::read("/proc/self/stat").map_err(|_| Errno::NXIO)?;
        let path = match major {
            // The grant names /dev/tty, and perhaps no other terminal.
            _ if terminal_of(&own) == Some(device) => "/dev/tty".to_owned(),
            FIRST_PTY_MAJOR..=LAST_PTY_MAJOR => {
                format!("/dev/pts/{}", 256 * (major - FIRST_PTY_MAJOR) + minor)
            }
            CONSOLE_MAJOR => format!("/dev/tty{minor}"),
            _ => return Err(Errno::NXIO),
        };
        let made = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC;
        let flags = flags.difference(made) | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let terminal = open(&path, flags)?;
        let found = rustix::fs::fstat(&terminal)?.st_rdev;
        match found == device || path == "/dev/tty" {
            true => Ok(terminal),
            false => Err(Errno::NXIO),
        }
    }

    /// The place that a symlink leads to, which can be a symlink too. `place` is a symlink.
    pub fn through(self, place: Place) -> Result<Found, Errno> {
        let name = place.c_name()?;
        self.checked(self.by_name(place.dir, name.to_bytes(), true, MagicLinks::Followed)?)
    }

    /// The directory that a path starts in.
    fn start(self, dir: i32, path: &[u8]) -> Result<OwnedFd, Errno> {
        if path.starts_with(b"/") {
            return root();
        }
        let link = match dir {
            libc::AT_FDCWD => proc_path(self.thread, "cwd"),
            dir if dir < 0 => return Err(Errno::BADF),
            dir => proc_path(self.thread, &format!("fd/{dir}")),
        };
        match rustix::fs::open(link, PATH_DIR, Mode::empty()) {
            Err(Errno::NOENT) => Err(Errno::BADF),
            // A process that changed its user: /proc shows its descriptors to root alone.
            Err(Errno::ACCESS) if dir >= 0 => {
                reopen_dir(sys::duplicate_descriptor(self.thread, dir)?)
            }
            opened => opened,
        }
    }

    /// An open file of the caller.
    pub fn descriptor(self, dir: i32) -> Result<OwnedFd, Errno> {
        if dir == libc::AT_FDCWD {
            return self.start(dir, b"");
        }
        let link = proc_path(self.thread, &format!("fd/{dir}"));
        match rustix::fs::open(link, PATH_ONLY, Mode::empty()) {
            Err(Errno::NOENT) => Err(Errno::BADF),
            Err(Errno::ACCESS) => sys::duplicate_descriptor(self.thread, dir),
            opened => opened,
        }
    }

    /// Walks one name after the other. `follow_last`: one symlink at the end is followed.
    fn by_name(
        self,
        start: OwnedFd,
        path: &[u8],
        mut follow_last: bool,
        magic_links: MagicLinks,
    ) -> Result<Found, Errno> {
        let mut dir = start;
        let mut has_slash = path.ends_with(b"/");
        let mut waiting: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
        let mut links = 0;
        while let Some(name) = waiting.pop() {
            let is_last = waiting.is_empty();
            if name == b"." || name == b".." {
                if is_last {
                    return Ok(Found::Place(Place { dir, name, has_slash }));
                }
                dir = step(dir.as_fd(), &name, PATH_DIR)?;
                continue;
            }
            let in_proc = is_proc(dir.as_fd())?;
            let name = match &name[..] {
                b"self" if in_proc && is_proc_root(&dir)? => self.process()?.to_string().into(),
                b"thread-self" if in_proc && is_proc_root(&dir)? => {
                    format!("{}/task/{}", self.process()?, self.thread).into()
                }
                _ => name,
            };
            if in_proc && self.has_no_descriptors(&dir)? {
                return if is_last { Ok(Found::Gone) } else { Err(Errno::NOENT) };
            }
            if is_last && !follow_last {
                return Ok(Found::Place(Place { dir, name, has_slash }));
            }
            let object = match step(dir.as_fd(), &name, PATH_ONLY | OFlags::NOFOLLOW) {
                // A dangling link leads to a name that can be made.
                Err(Errno::NOENT) if is_last => {
                    return Ok(Found::Place(Place { dir, name, has_slash }));
                }
                object => object?,
            };
            let stat = rustix::fs::fstat(&object)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                if is_last {
                    return Ok(Found::Place(Place { dir, name, has_slash }));
                }
                dir = reopen_dir(object)?;
                continue;
            }
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(Errno::LOOP);
            }
            // The links in the top directory of /proc are plain text.
            if in_proc && !is_proc_root(&dir)? {
                // A link of a thread that has ended is ENOENT.
                let target = self.magic_link(&dir, &name)?;
                if magic_links == MagicLinks::Refused {
                    return Err(Errno::LOOP);
                }
                if is_last {
                    let target = if has_slash { reopen_dir(target)? } else { target };
                    return Ok(Found::Object(target));
                }
                dir = reopen_dir(target)?;
                continue;
            }
            let target = rustix::fs::readlinkat(&object, c"", Vec::new())?.into_bytes();
            if target.is_empty() {
                return Err(Errno::NOENT);
            }
            if target.starts_with(b"/") {
                dir = root()?;
            }
            if is_last {
                follow_last = false;
                has_slash |= target.ends_with(b"/");
            }
            waiting.extend(components(&target).rev().map(<[u8]>::to_vec));
        }
        Ok(Found::Place(Place { dir, name: Vec::new(), has_slash }))
    }

    /// Opens the object of a link in /proc, if the link belongs to the caller's own process. This
    /// process has rights over more processes than the caller.
    fn magic_link(self, dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
        let own = format!("/proc/{}/", self.process()?);
        let path = path_of(dir.as_fd())?;
        if !path.starts_with(own.as_bytes()) && [&path[..], b"/"].concat() != own.as_bytes() {
            return Err(Errno::ACCESS);
        }
        rustix::fs::openat(dir, name, PATH_ONLY, Mode::empty())
    }

    /// The process of the calling thread.
    pub fn process(self) -> Result<u32, Errno> {
        let status = std::fs::read(proc_path(self.thread, "status")).map_err(|_| Errno::SRCH)?;
        status_field(&status, b"Tgid:", 10).map(|process| process as u32).ok_or(Errno::SRCH)
    }

    /// Does a signal wait that the calling thread will handle? The kernel gives a signal for the
    /// whole process to the first thread, if that thread does not block it.
    pub fn has_signal(self) -> Result<bool, Errno> {
        let status = std::fs::read(proc_path(self.thread, "status")).map_err(|_| Errno::SRCH)?;
        let set = |name: &[u8]| status_field(&status, name, 16).ok_or(Errno::SRCH);
        let (own, shared, blocked) = (set(b"SigPnd:")?, set(b"ShdPnd:")?, set(b"SigBlk:")?);
        if own & !blocked != 0 {
            return Ok(true);
        }
        // To ask all other threads takes long.
        let shared = shared & !blocked;
        Ok(shared != 0 && shared & !self.handled_by_others()? != 0)
    }

    /// The signals for the whole process that another thread may handle.
    fn handled_by_others(self) -> Result<u64, Errno> {
        let process = self.process()?;
        if process == self.thread {
            return Ok(0);
        }
        let threads = std::fs::read_dir(proc_path(process, "task")).map_err(|_| Errno::SRCH)?;
        let mut handled = 0;
        for thread in threads.flatten() {
            if thread.file_name().as_encoded_bytes() == self.thread.to_string().as_bytes() {
                continue;
            }
            let status = std::fs::read(thread.path().join("status")).unwrap_or_default();
            let has_ended = status.windows(8).any(|line| line == b"State:\tZ");
            if !has_ended {
                handled |= !status_field(&status, b"SigBlk:", 16).unwrap_or(u64::MAX);
            }
        }
        Ok(handled)
    }

    /// Does the kernel refuse to show its memory and its descriptors? It does so if the file of the
    /// program can be executed and not read.
    pub fn hides_memory(self) -> bool {
        let working = rustix::fs::open(proc_path(self.thread, "cwd"), PATH_ONLY, Mode::empty());
        matches!(working, Err(Errno::ACCESS))
    }

    /// Has the caller another root directory than this process, or other mounts?
    pub fn sees_other_files(self) -> Result<bool, Errno> {
        for name in ["root", "ns/mnt"] {
            let [own, other] = [std::process::id(), self.thread]
                .map(|thread| rustix::fs::stat(proc_path(thread, name)));
            if Identity::from(&own?) != Identity::from(&other?) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The name of its program, for messages. A thread can have a name of its own.
    pub fn program(self) -> Vec<u8> {
        let process = self.process().unwrap_or(self.thread);
        let name = std::fs::read(proc_path(process, "comm")).unwrap_or_default();
        name.strip_suffix(b"\n").unwrap_or(&name).to_vec()
    }
}

const FIRST_PTY_MAJOR: u32 = 136;
const LAST_PTY_MAJOR: u32 = 143;
const CONSOLE_MAJOR: u32 = 4;

/// The device number of the terminal in a text of /proc/PID/stat.
fn terminal_of(stat: &[u8]) -> Option<u64> {
    const FIELDS_AFTER_NAME: usize = 4;
    // The name of the program is in parentheses, and can have any letters.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let field = stat[end + 1..].trim_ascii().split(|byte| *byte == b' ').nth(FIELDS_AFTER_NAME)?;
    let number: u32 = std::str::from_utf8(field).ok()?.parse().ok()?;
    // As new_encode_dev() of the kernel writes it.
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xfff00));
    (number != 0).then(|| libc::makedev(major, minor))
}

pub fn status_field(status: &[u8], name: &[u8], radix: u32) -> Option<u64> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(std::str::from_utf8(line).ok()?.trim(), radix).ok()
}

/// The path of an open file, as this process sees it. The name of a removed file ends in
/// ` (deleted)`. ESTALE: a program outside has moved it out of its mount. Then the kernel shows the
/// path of the root, and the mount can still be written.
pub fn path_of(object: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let mut buffer = [0; 32];
    let link = open_beneath::proc_fd_path(object, &mut buffer);
    let path = rustix::fs::readlink(link, Vec::with_capacity(256))?.into_bytes();
    let claims_root =
        path.strip_prefix(b"/").is_some_and(|rest| matches!(rest, b"" | b" (deleted)"));
    if claims_root
        && Identity::from(&rustix::fs::fstat(object)?) != Identity::from(&rustix::fs::stat("/")?)
    {
        return Err(Errno::STALE);
    }
    Ok(path)
}

/// Opens through links, but not through those of /proc.
fn step(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..open_beneath::MAX_RETRIES {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}

fn reopen_dir(object: OwnedFd) -> Result<OwnedFd, Errno> {
    let stat = rustix::fs::fstat(&object)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(object),
        _ => Err(Errno::NOTDIR),
    }
}

/// Is it a part of /proc whose metadata the kernel protects? It lets only the user of a process
/// change the part of that process. Root may change more.
pub fn is_kept_by_kernel(object: BorrowedFd<'_>, path: &[u8]) -> Result<bool, Errno> {
    let is_of_process =
        path.strip_prefix(b"/proc/").and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit);
    let is_candidate = is_of_process || !rustix::process::geteuid().is_root();
    Ok(path.starts_with(b"/proc") && is_candidate && is_proc(object)?)
}

pub fn is_proc(dir: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(rustix::fs::fstatfs(dir)?.f_type as u64 == PROC_MAGIC)
}

fn is_proc_root(dir: &OwnedFd) -> Result<bool, Errno> {
    const PROC_ROOT_INODE: u64 = 1;
    let found = rustix::fs::statat(dir, c"", AtFlags::EMPTY_PATH)?;
    Ok(found.st_ino == PROC_ROOT_INODE)
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
}

/// The part above the last name, the last name, and whether slashes follow it.
pub fn split(path: &[u8]) -> Result<(&[u8], &[u8], bool), Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    let Some(end) = path.iter().rposition(|byte| *byte != b'/').map(|last| last + 1) else {
        return Ok((b"/", b"", true));
    };
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    Ok((&path[..start], &path[start..end], end < path.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_before_its_last_name() {
        for (path, above, name, has_slash) in [
            ("a", "", "a", false),
            ("a/", "", "a", true),
            ("/a", "/", "a", false),
            ("a/b//", "a/", "b", true),
            ("../b", "../", "b", false),
            ("a/.", "a/", ".", false),
            ("/", "/", "", true),
        ] {
            let expected = (above.as_bytes(), name.as_bytes(), has_slash);
            assert_eq!(split(path.as_bytes()), Ok(expected), "{path}");
        }
        assert_eq!(split(b""), Err(Errno::NOENT));
    }
}
