//! The journal: one JSON object per line. Each line contains the hash of the line before.
//!
//! One process writes at a time: the owner of the lock on `head`, which records the end of the
//! chain (`seq hash file size`). Lines of one call are appended with one write, then `head` is
//! rewritten. A crash between the two leaves whole lines that continue the chain; the next writer
//! adopts them. A crash inside the first leaves a torn line; the next writer cuts it off. Anything
//! else at the end of a file is foreign, and then nothing runs: a journal that can not be continued
//! truthfully is not continued.
//!
//! Events that can not be written are counted in `head`, or in memory if `head` can not be written
//! either. The usual cause is a full disk, which the command can fill. The next writer reports the
//! count first, in the same write: a session's `journal.lost` stands before the events after the
//! gap.

mod chain_head;
pub mod event;
pub mod redact;

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use self::event::{Event, MAX_BODY_BYTES};
use crate::kernel::clock::Utc;
use crate::kernel::{errno_names, stderr};
use crate::plan;
use crate::plan::wire::bytes::{self, AbsPath, Text};
use chain_head::{JournalHead, Loss};

pub const MAX_LINE_BYTES: usize = 4096;

/// seq, prev, ts, session, opens and their punctuation. The values have at most 20 + 64 + 24 + 16 +
/// 4 characters.
const MAX_PREFIX_BYTES: usize = 192;
const _: () = assert!(MAX_BODY_BYTES + MAX_PREFIX_BYTES + 2 <= MAX_LINE_BYTES);

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot create the journal directory {dir}: {source}")]
    Create { dir: AbsPath, source: Errno },
    #[error("cannot open the journal directory {dir}: {source}")]
    OpenDir { dir: AbsPath, source: Errno },
    #[error("cannot open the journal {dir}/{name}: {source}")]
    Open { dir: AbsPath, name: String, source: Errno },
    #[error("the journal {path} belongs to uid {owner}, not to you")]
    Owner { path: String, owner: u32 },
    #[error("the journal {path} has mode {actual:04o}; it must be {needed}")]
    WrongMode { path: String, actual: u32, needed: &'static str },
    #[error("the journal {path} is not {needed}")]
    WrongType { path: String, needed: &'static str },
    #[error("the journal {path} has {links} names (hard links)")]
    Linked { path: String, links: u64 },
    #[error("cannot lock the journal {path}: {source}")]
    Lock { path: String, source: Errno },
    #[error("cannot read the journal {path}: {source}")]
    Read { path: String, source: Errno },
    #[error("cannot write the journal {path}: {source}")]
    Write { path: String, source: Errno },
    #[error("{path} does not record the end of the journal")]
    Head { path: String },
    #[error("the journal {path} ends with lines that do not continue its chain")]
    Foreign { path: String },
    #[error(
        "{path} is missing or empty, but the journal has events: the end of the chain is \
        unknown"
    )]
    Headless { path: String },
}

impl JournalError {
    pub fn hint(&self) -> &'static str {
        match self {
            JournalError::Create { .. } | JournalError::OpenDir { .. } => {
                "give your own directory with --audit-log DIR, or run without a journal: --off \
                    audit"
            }
            JournalError::Write { source: Errno::NOSPC | Errno::DQUOT | Errno::FBIG, .. } => {
                "the disk is full, or a limit is reached: free some space, or give another \
                    directory with --audit-log DIR"
            }
            JournalError::Head { .. }
            | JournalError::Headless { .. }
            | JournalError::Foreign { .. } => {
                "type `paddock audit verify` to see what is wrong, then move the journal directory \
                    away to start a new chain"
            }
            _ => {
                "only you may have access to the journal: correct owner and mode, or give another \
                    directory with --audit-log DIR"
            }
        }
    }

    /// A short reason for `head`.
    fn reason(&self) -> String {
        match self {
            JournalError::Create { source, .. }
            | JournalError::OpenDir { source, .. }
            | JournalError::Open { source, .. }
            | JournalError::Lock { source, .. }
            | JournalError::Read { source, .. }
            | JournalError::Write { source, .. } => errno_names::errno(*source),
            JournalError::Owner { .. }
            | JournalError::WrongMode { .. }
            | JournalError::WrongType { .. }
            | JournalError::Linked { .. } => "other users could access it".to_owned(),
            JournalError::Head { .. }
            | JournalError::Foreign { .. }
            | JournalError::Headless { .. } => "its chain could not be continued".to_owned(),
        }
    }
}

#[derive(Debug)]
pub struct Journal {
    dir_path: AbsPath,
    dir: OwnedFd,
    head: OwnedFd,
    head_name: String,
    fixed_name: Option<Text>,
    uid: u32,
    session: String,
    to_stderr: bool,
    /// The file that was written last, kept open. The command can own it, and could change its mode
    /// before the end event.
    file: RefCell<Option<CurrentFile>>,
    /// True once a line was written. A session that could not write its start event has lost
    /// nothing.
    has_written: Cell<bool>,
    /// Lost events that could not be recorded in `head`.
    lost: RefCell<Option<Loss>>,
}

#[derive(Debug)]
struct CurrentFile {
    /// None: the file has a fixed name.
    day: Option<i64>,
    name: CString,
    file: OwnedFd,
}

impl Journal {
    /// Opens the journal for appending, creating what is missing.
    pub fn open(
        requested: &plan::JournalPlan,
        uid: u32,
        session: String,
    ) -> Result<Journal, JournalError> {
        let dir = open_or_create_dir(requested, uid)?;
        let head_name = match &requested.file {
            Some(name) => format!("{name}.head"),
            None => "head".to_owned(),
        };
        let dir_path = requested.dir.clone();
        let head = open_file(&dir, &dir_path, &CString::from_name(&head_name), OFlags::RDWR, uid)?;
        let (fixed_name, to_stderr) = (requested.file.clone(), requested.stderr);
        let (file, has_written, lost) = (RefCell::new(None), Cell::new(false), RefCell::new(None));
        Ok(Journal {
            dir_path,
            dir,
            head,
            head_name,
            fixed_name,
            uid,
            session,
            to_stderr,
            file,
            has_written,
            lost,
        })
    }

    /// Checks what [`Journal::open`] would refuse, without creating anything. Returns true if a
    /// reboot would delete the journal.
    pub fn inspect(requested: &plan::JournalPlan, uid: u32) -> Result<bool, JournalError> {
        const TMPFS: u32 = 0x0102_1994;
        match open_dir(&requested.dir) {
            Ok(dir) => {
                check_dir(&dir, requested, uid)?;
                Ok(rustix::fs::fstatfs(&dir).is_ok_and(|facts| facts.f_type as u32 == TMPFS))
            }
            Err(Errno::NOENT) => Ok(false),
            Err(source) => Err(JournalError::OpenDir { dir: requested.dir.clone(), source }),
        }
    }

    pub fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub fn append(&self, event: &Event<'_>) -> Result<(), JournalError> {
        self.append_all(std::slice::from_ref(event))
    }

    /// Appends several events: all of them or none. If none, they are counted as lost.
    pub fn append_all(&self, events: &[Event<'_>]) -> Result<(), JournalError> {
        if events.is_empty() {
            return Ok(());
        }
        let lines = self.lock().and_then(|()| self.append_locked(events));
        if let Err(error) = &lines {
            self.count_lost(events.len(), error);
        }
        let _ = rustix::fs::flock(&self.head, FlockOperation::Unlock);
        let lines = lines?;
        if self.to_stderr {
            lines.lines().for_each(|line| stderr::print_line("paddock", &format!("audit {line}")));
        }
        Ok(())
    }

    fn lock(&self) -> Result<(), JournalError> {
        rustix::io::retry_on_intr(|| rustix::fs::flock(&self.head, FlockOperation::LockExclusive))
            .map_err(|source| JournalError::Lock { path: self.path(&self.head_name), source })
    }

    fn count_lost(&self, count: usize, error: &JournalError) {
        if !self.has_written.get() {
            return;
        }
        let mut lost = self.lost.borrow_mut();
        let new = || Loss { session: self.session.clone(), count: 0, reason: error.reason() };
        let loss = lost.get_or_insert_with(new);
        loss.count += count as u64;
        let locked = !matches!(error, JournalError::Lock { .. });
        if locked && self.store_loss(loss).is_ok() {
            *lost = None;
        }
    }

    fn store_loss(&self, loss: &Loss) -> Result<(), JournalError> {
        let Some((mut head, stored_length)) = self.read_head()? else {
            return Err(JournalError::Headless { path: self.path(&self.head_name) });
        };
        head.add(loss);
        self.write_head(&head, stored_length)
    }

    fn append_locked(&self, events: &[Event<'_>]) -> Result<String, JournalError> {
        let now = Utc::now();
        let written = match self.file.take() {
            Some(written) if written.day.is_none_or(|day| day == now.day()) => written,
            _ => {
                let (day, name) = match &self.fixed_name {
                    Some(name) => (None, name.as_c_str().into_owned()),
                    None => (Some(now.day()), CString::from_name(&format!("{}.jsonl", now.date()))),
                };
                let file = open_file(
                    &self.dir,
                    &self.dir_path,
                    &name,
                    OFlags::RDWR | OFlags::APPEND,
                    self.uid,
                )?;
                CurrentFile { day, name, file }
            }
        };
        let lines = self.append_to(&written.file, &written.name, &now, events);
        self.file.replace(Some(written));
        lines
    }

    fn append_to(
        &self,
        file: &OwnedFd,
        name: &CString,
        now: &Utc,
        events: &[Event<'_>],
    ) -> Result<String, JournalError> {
        let (mut head, head_length) = match self.read_head()? {
            Some(stored) => stored,
            None => {
                self.refuse_headless()?;
                (JournalHead::first(name), 0)
            }
        };
        // Only a new file gets `opens`. A file whose lines were removed must not look new.
        let opens = head_length == 0 || head.file != *name;
        if head.file != *name {
            // A new day. The last line of yesterday can be missing in `head`.
            match open_existing(&self.dir, &head.file) {
                Ok(yesterday) => self.catch_up(&mut head, &yesterday)?,
                Err(Errno::NOENT) => {}
                Err(source) => return Err(self.open_error(&head.file, source)),
            }
            head = JournalHead { file: name.clone(), size: 0, ..head };
        }
        self.catch_up(&mut head, file)?;

        if let Some(loss) = &*self.lost.borrow() {
            head.add(loss);
        }
        let losses = std::mem::take(&mut head.losses);
        let lost_events = losses.iter().map(|loss| {
            let event = Event::JournalLost { count: loss.count, reason: &loss.reason };
            (loss.session.as_str(), event.body())
        });
        let bodies =
            lost_events.chain(events.iter().map(|event| (self.session.as_str(), event.body())));

        let before = head.size;
        let ts = now.timestamp();
        let mut lines =
            String::with_capacity((losses.len() + events.len()) * (MAX_PREFIX_BYTES + 512));
        for (session, body) in bodies {
            let start = lines.len();
            let _ = write!(
                lines,
                "{{\"seq\":{},\"prev\":\"{}\",\"ts\":\"{ts}\",\"session\":\"{session}\",",
                head.seq + 1,
                head.hash,
            );
            if opens && head.size == 0 {
                // The first line has this mark, so that `verify` notices removed lines at the
                // start.
                lines.push_str("\"opens\":true,");
            }
            lines.push_str(&body);
            lines.push('}');
            head.seq += 1;
            head.hash = hash(&lines.as_bytes()[start..]);
            lines.push('\n');
            head.size += (lines.len() - start) as u64;
        }
        let written = write_all(file, lines.as_bytes())
            .map_err(|source| JournalError::Write { path: self.path_of(&head.file), source })
            .and_then(|()| self.write_head(&head, head_length));
        if let Err(error) = written {
            // Half a line, or lines that `head` does not record. If they stay, the next writer cuts
            // them off or adopts them.
            let _ = rustix::fs::ftruncate(file, before);
            return Err(error);
        }
        self.has_written.set(true);
        self.lost.take();
        Ok(lines)
    }

    /// The stored head and its length in bytes. None: nothing was ever written.
    fn read_head(&self) -> Result<Option<(JournalHead, usize)>, JournalError> {
        let path = || self.path(&self.head_name);
        let mut buffer = [0; chain_head::MAX_HEAD_BYTES];
        let length = rustix::io::pread(&self.head, &mut buffer, 0)
            .map_err(|source| JournalError::Read { path: path(), source })?;
        match &buffer[..length] {
            [] => Ok(None),
            stored => Ok(Some((
                JournalHead::parse(stored).ok_or_else(|| JournalError::Head { path: path() })?,
                length,
            ))),
        }
    }

    /// Refuses daily files without a head: the end of the chain is lost.
    fn refuse_headless(&self) -> Result<(), JournalError> {
        let failed = |source| JournalError::OpenDir { dir: self.dir_path.clone(), source };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.dir, c".", flags, Mode::empty()).map_err(failed)?;
        let mut buffer = Vec::with_capacity(8 * 1024);
        let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            let ours = self.fixed_name.as_ref().is_none_or(|fixed| fixed.as_bytes() == name);
            if !ours || !name.ends_with(b".jsonl") {
                continue;
            }
            let stat = rustix::fs::statat(&self.dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed)?;
            if stat.st_size > 0 {
                return Err(JournalError::Headless { path: self.path(&self.head_name) });
            }
        }
        Ok(())
    }

    fn write_head(&self, head: &JournalHead, stored_length: usize) -> Result<(), JournalError> {
        let mut text = head.text();
        let length = text.len();
        // Overwrites the old text in one write, in case this process is killed before the truncate.
        text.resize(length.max(stored_length), 0);
        let failed = |source| JournalError::Write { path: self.path(&self.head_name), source };
        if text.len() > chain_head::MAX_HEAD_BYTES {
            return Err(failed(Errno::FBIG));
        }
        match rustix::io::pwrite(&self.head, &text, 0).map_err(failed)? {
            count if count == text.len() => {}
            _ => return Err(failed(Errno::NOSPC)),
        }
        if length < stored_length {
            let _ = rustix::fs::ftruncate(&self.head, length as u64);
        }
        Ok(())
    }

    /// Moves `head` to the end of its file: adopts whole lines that continue the chain, and cuts
    /// off a torn one.
    fn catch_up(&self, head: &mut JournalHead, file: &OwnedFd) -> Result<(), JournalError> {
        let path = || self.path_of(&head.file);
        let read_failed = |source| JournalError::Read { path: path(), source };
        let actual = rustix::fs::fstat(file).map_err(read_failed)?.st_size as u64;
        if actual <= head.size {
            // The file is shorter than `head` says: lines were removed. The chain continues from
            // `head`, so that `verify` finds the gap.
            head.size = actual;
            return Ok(());
        }
        let mut tail = vec![0; (actual - head.size) as usize];
        let mut filled = 0;
        while filled < tail.len() {
            match rustix::io::pread(file, &mut tail[filled..], head.size + filled as u64)
                .map_err(read_failed)?
            {
                0 => return Err(read_failed(Errno::IO)),
                count => filled += count,
            }
        }
        let mut rest = tail.as_slice();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = &rest[..end];
            let expected = format!("{{\"seq\":{},\"prev\":\"{}\",", head.seq + 1, head.hash);
            if !line.starts_with(expected.as_bytes()) {
                return Err(JournalError::Foreign { path: path() });
            }
            head.seq += 1;
            head.hash = hash(line);
            head.size += end as u64 + 1;
            rest = &rest[end + 1..];
        }
        if !rest.is_empty() {
            rustix::fs::ftruncate(file, head.size)
                .map_err(|source| JournalError::Write { path: self.path_of(&head.file), source })?;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir_path)
    }

    fn path_of(&self, name: &CString) -> String {
        self.path(&name.to_string_lossy())
    }

    fn open_error(&self, name: &CString, source: Errno) -> JournalError {
        JournalError::Open {
            dir: self.dir_path.clone(),
            name: name.to_string_lossy().into_owned(),
            source,
        }
    }
}

/// SHA-256 in hexadecimal.
pub fn hash(bytes: &[u8]) -> String {
    bytes::hex(&Sha256::digest(bytes))
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(file, bytes))? {
            0 => return Err(Errno::IO),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

trait FromName {
    fn from_name(name: &str) -> CString;
}

impl FromName for CString {
    /// For names whose parts were checked for NUL.
    fn from_name(name: &str) -> CString {
        CString::new(name.replace('\0', "")).unwrap_or_default()
    }
}

fn open_dir(dir: &AbsPath) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(dir.as_c_str(), flags, Mode::empty())
}

fn open_or_create_dir(requested: &plan::JournalPlan, uid: u32) -> Result<OwnedFd, JournalError> {
    let dir = &requested.dir;
    let mut opened = open_dir(dir);
    if matches!(opened, Err(Errno::NOENT)) {
        // The umask could remove permissions that the core needs.
        let umask = rustix::process::umask(Mode::empty());
        let made = rustix::fs::mkdir(dir.as_c_str(), Mode::RWXU);
        rustix::process::umask(umask);
        match made {
            Ok(()) | Err(Errno::EXIST) => opened = open_dir(dir),
            Err(source) => return Err(JournalError::Create { dir: dir.clone(), source }),
        }
    }
    let opened = opened.map_err(|source| JournalError::OpenDir { dir: dir.clone(), source })?;
    check_dir(&opened, requested, uid)?;
    Ok(opened)
}

/// A directory of daily files must be 0700. A directory with a journal file that the user named may
/// be readable: the file itself is 0600, and no other user can replace it.
fn check_dir(
    opened: &OwnedFd,
    requested: &plan::JournalPlan,
    uid: u32,
) -> Result<(), JournalError> {
    let dir = &requested.dir;
    let stat = rustix::fs::fstat(opened)
        .map_err(|source| JournalError::OpenDir { dir: dir.clone(), source })?;
    check_owner(&stat, uid, || dir.to_string())?;
    let actual = stat.st_mode & 0o777;
    let (good, needed) = match requested.file {
        None => (actual == 0o700, "0700"),
        Some(_) => (actual & 0o022 == 0, "writable by you only"),
    };
    if good {
        Ok(())
    } else {
        Err(JournalError::WrongMode { path: dir.to_string(), actual, needed })
    }
}

fn check_owner(stat: &Stat, uid: u32, path: impl FnOnce() -> String) -> Result<(), JournalError> {
    if stat.st_uid == uid {
        Ok(())
    } else {
        Err(JournalError::Owner { path: path(), owner: stat.st_uid })
    }
}

fn open_existing(dir: &OwnedFd, name: &CString) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name.as_c_str(), flags, Mode::empty())
}

/// Opens or creates a file that only this user can access. Otherwise returns the reason.
fn open_file(
    dir: &OwnedFd,
    dir_path: &AbsPath,
    name: &CString,
    access: OFlags,
    uid: u32,
) -> Result<OwnedFd, JournalError> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let failed = |source| JournalError::Open {
        dir: dir_path.clone(),
        name: name.to_string_lossy().into_owned(),
        source,
    };
    let path = || format!("{dir_path}/{}", name.to_string_lossy());
    let file = match rustix::fs::openat(dir, name.as_c_str(), flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => create_file(dir, name, flags, mode).map_err(failed)?,
        Err(Errno::LOOP | Errno::NXIO) => {
            return Err(JournalError::WrongType { path: path(), needed: "a regular file" });
        }
        Err(source) => return Err(failed(source)),
    };
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(JournalError::WrongType { path: path(), needed: "a regular file" });
    }
    check_owner(&stat, uid, path)?;
    if stat.st_mode & 0o777 != mode.bits() {
        return Err(JournalError::WrongMode {
            path: path(),
            actual: stat.st_mode & 0o777,
            needed: "0600",
        });
    }
    if stat.st_nlink != 1 {
        return Err(JournalError::Linked { path: path(), links: stat.st_nlink as u64 });
    }
    Ok(file)
}

fn create_file(dir: &OwnedFd, name: &CString, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(dir, name.as_c_str(), flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(file) => {
            // Restores what the umask removed.
            rustix::fs::fchmod(&file, mode)?;
            Ok(file)
        }
        // Another session created it first. Between its open and its fchmod the mode can be
        // narrower than 0600, never wider.
        Err(Errno::EXIST) => rustix::fs::openat(dir, name.as_c_str(), flags, Mode::empty()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
