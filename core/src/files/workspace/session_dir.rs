//! The directory of a copy-on-write session: the changes of the command wait there for `paddock
//! diff`, `apply` and `discard`.
//!
//! `upper` and `work` belong to the overlay. `session.json` describes the workspace, and
//! `directories` lists its directories. A lock on the directory means that the session runs. The
//! directory is in Paddock's own state, which no command can see.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{self, Plan, Workspace};

const SESSION_FILE: &CStr = c"session.json";
const HIDDEN_FILE: &CStr = c"hidden.jsonl";
const DIRECTORIES_FILE: &CStr = c"directories";
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const DIR_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("cannot create the session directory {path}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Make { path: String, source: Errno },
    #[error("the session {path} does not exist: {}", crate::kernel::errno_names::errno_text(*.source))]
    Missing { path: String, source: Errno },
    #[error("the session {path} is still running")]
    Running { path: String },
    #[error("the session {path} belongs to another workspace")]
    Foreign { path: String },
    #[error("cannot examine the workspace {path}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Workspace { path: AbsPath, source: Errno },
}

impl SessionError {
    pub fn hint(&self) -> &'static str {
        match self {
            SessionError::Missing { .. } | SessionError::Foreign { .. } => {
                "type `paddock sessions` to list the sessions"
            }
            SessionError::Running { .. } => {
                "wait until it ends, or start a new session without --resume"
            }
            SessionError::Make { .. } => {
                "Paddock keeps sessions in ~/.local/state/paddock, which must belong to you"
            }
            SessionError::Workspace { .. } => "check that it exists and belongs to you",
        }
    }
}

pub struct Session {
    pub id: String,
    path: String,
    dir: OwnedFd,
    workspace: AbsPath,
    upper: OwnedFd,
    work: OwnedFd,
}

impl Session {
    /// A new session, or one to resume.
    pub fn open(
        sessions: &AbsPath,
        requested: &Workspace,
        id: &str,
    ) -> Result<Session, SessionError> {
        let resumed =
            requested.resume.as_ref().map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
        let id = resumed.clone().unwrap_or_else(|| id.to_owned());
        let path = format!("{sessions}/{id}");
        let lower = rustix::fs::stat(requested.path.as_c_str())
            .map_err(|source| SessionError::Workspace { path: requested.path.clone(), source })?;
        if resumed.is_some() {
            return Session::resume(id, path, requested, &lower);
        }
        let failed = |source| SessionError::Make { path: path.clone(), source };
        let dir = make_dirs(sessions, &id).map_err(failed)?;
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
        let upper = make_dir(&dir, c"upper").map_err(failed)?;
        // The root of the overlay has the mode of this directory.
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(lower.st_mode & 0o777)).map_err(failed)?;
        let work = make_dir(&dir, c"work").map_err(failed)?;
        Ok(Session { id, path, dir, workspace: requested.path.clone(), upper, work })
    }

    fn resume(
        id: String,
        path: String,
        requested: &Workspace,
        lower: &Stat,
    ) -> Result<Session, SessionError> {
        let missing = |source| SessionError::Missing { path: path.clone(), source };
        let dir = rustix::fs::open(path.as_str(), DIR_FLAGS, Mode::empty()).map_err(missing)?;
        lock(&dir).map_err(|_| SessionError::Running { path: path.clone() })?;
        let open =
            |name: &CStr| rustix::fs::openat(&dir, name, DIR_FLAGS, Mode::empty()).map_err(missing);
        let (upper, work) = (open(c"upper")?, open(c"work")?);
        let note = rustix::fs::openat(
            &dir,
            SESSION_FILE,
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let mut buffer = vec![0; 64 * 1024];
        let length = rustix::io::read(&note.map_err(missing)?, &mut buffer[..]).map_err(missing)?;
        // The copy must belong to this very directory. The device number may change at a reboot.
        let mut known = String::from("\"workspace\":");
        writer::string(&mut known, requested.path.as_bytes(), NonUtf8::Surrogate);
        known.push_str(",\"device\":");
        let text = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
        let rest = text
            .split_once(&known)
            .map_or("", |(_, rest)| rest)
            .trim_start_matches(|c: char| c.is_ascii_digit());
        if !rest.starts_with(&format!(",\"inode\":{},", lower.st_ino)) {
            return Err(SessionError::Foreign { path });
        }
        Ok(Session { id, path, dir, workspace: requested.path.clone(), upper, work })
    }

    /// The files that the command has made or changed.
    pub fn upper(&self) -> &OwnedFd {
        &self.upper
    }

    pub fn workspace(&self) -> &AbsPath {
        &self.workspace
    }

    /// Opens the layers again. Only in init: earlier descriptors belong to the mounts of another
    /// namespace, which the overlay refuses.
    pub fn reopen(&self) -> Result<SessionLayers, Errno> {
        let again = |name: &str, known: &OwnedFd| {
            let opened =
                rustix::fs::open(format!("{}/{name}", self.path), DIR_FLAGS, Mode::empty())?;
            let same = Identity::from(&rustix::fs::fstat(&opened)?)
                == Identity::from(&rustix::fs::fstat(known)?);
            if same { Ok(opened) } else { Err(Errno::STALE) }
        };
        Ok(SessionLayers { upper: again("upper", &self.upper)?, work: again("work", &self.work)? })
    }

    /// Describes the session for later programs. A resumed one keeps its start time: changes of the
    /// host count from there. `directories`: those of the workspace, each with its inode number. A
    /// file in a moved directory shows no trace of the move itself.
    pub fn note(
        &self,
        command: &[CString],
        masked: &[AbsPath],
        directories: &[(Vec<u8>, u64)],
        plan: &Plan,
        sha256: &str,
    ) -> Result<(), SessionError> {
        self.note_hidden(masked, plan)?;
        if plan.workspace.as_ref().is_some_and(|workspace| workspace.resume.is_some()) {
            return Ok(());
        }
        let failed = |source| SessionError::Make { path: self.path.clone(), source };
        let mut known =
            Vec::with_capacity(directories.iter().map(|(path, _)| path.len() + 16).sum());
        for (path, inode) in directories {
            known.extend_from_slice(inode.to_string().as_bytes());
            known.push(b' ');
            known.extend_from_slice(path);
            known.push(0);
        }
        self.write_new(DIRECTORIES_FILE, &known).map_err(failed)?;
        let lower = rustix::fs::stat(self.workspace.as_c_str()).map_err(failed)?;
        let started =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos());
        let mut out = String::with_capacity(1024);
        let _ = write!(out, "{{\"version\":1,\"id\":\"{}\",\"workspace\":", self.id);
        writer::string(&mut out, self.workspace.as_bytes(), NonUtf8::Surrogate);
        let _ = write!(
            out,
            ",\"device\":{},\"inode\":{},\"started_ns\":{started},\
             \"plan\":{{\"sha256\":\"{sha256}\",\"files\":{{\"protect\":",
            lower.st_dev, lower.st_ino
        );
        // Names that a person is asked about before they are applied.
        let quoted =
            |out: &mut String, pattern: Vec<u8>| writer::string(out, &pattern, NonUtf8::Surrogate);
        writer::list(&mut out, plan.files.iter().flat_map(plan::FilesPlan::protected), quoted);
        out.push_str(",\"opened\":");
        writer::list(&mut out, plan.files.iter().flat_map(plan::FilesPlan::excepted), quoted);
        out.push_str("}},\"command\":");
        writer::strings(&mut out, command.iter().map(|word| word.as_bytes()), NonUtf8::Surrogate);
        out.push_str("}\n");
        self.write_new(SESSION_FILE, out.as_bytes()).map_err(failed)
    }

    fn write_new(&self, name: &CStr, mut content: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        while !content.is_empty() {
            match rustix::io::write(&file, content)? {
                0 => return Err(Errno::NOSPC),
                written => content = &content[written..],
            }
        }
        Ok(())
    }

    /// The names that were hidden in this part of the session: one line each time, because a
    /// resumed session may be denied more.
    fn note_hidden(&self, masked: &[AbsPath], plan: &Plan) -> Result<(), SessionError> {
        let mut out = String::from("{\"masked\":");
        let below = masked
            .iter()
            .filter_map(|path| path.as_bytes().strip_prefix(self.workspace.as_bytes()));
        writer::strings(
            &mut out,
            below.filter_map(|path| path.strip_prefix(b"/")),
            NonUtf8::Surrogate,
        );
        out.push_str(",\"deny\":");
        let closed = plan
            .files
            .iter()
            .flat_map(|files| &files.closed)
            .filter(|path| path.is_within(&self.workspace));
        let patterns = plan.files.iter().flat_map(|files| &files.deny).map(Text::as_bytes);
        let named: Vec<Vec<u8>> =
            plan.files.iter().flat_map(|files| files.denied_names()).collect();
        let named = named.iter().map(Vec::as_slice);
        writer::strings(
            &mut out,
            patterns.chain(named).chain(closed.map(AbsPath::as_bytes)),
            NonUtf8::Surrogate,
        );
        out.push_str("}\n");
        let failed = |source| SessionError::Make { path: self.path.clone(), source };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, HIDDEN_FILE, flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed)?;
        match rustix::io::write(&file, out.as_bytes()) {
            Ok(written) if written == out.len() => Ok(()),
            Ok(_) => Err(failed(Errno::NOSPC)),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Makes it survive a crash of the machine. Slow: done while the command already runs.
    pub fn settle(&self) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if let Ok(note) = rustix::fs::openat(&self.dir, SESSION_FILE, flags, Mode::empty()) {
            let _ = rustix::fs::fsync(note);
        }
        let _ = rustix::fs::fsync(&self.dir);
    }

    /// Removes a session without changes. True: there are changes.
    pub fn close(self) -> bool {
        let mut buffer = Vec::with_capacity(1024);
        let mut changes = true;
        if let Ok(listed) = rustix::fs::openat(&self.upper, c".", DIR_FLAGS, Mode::empty()) {
            let mut entries = RawDir::new(&listed, buffer.spare_capacity_mut());
            changes = loop {
                match entries.next() {
                    None => break false,
                    Some(Ok(entry)) if entry.file_name() == c"." || entry.file_name() == c".." => {}
                    Some(_) => break true,
                }
            };
        }
        if changes {
            return true;
        }
        let remove = |at: &OwnedFd, name: &CStr| rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR);
        // The kernel leaves an empty directory of mode 000 in `work`.
        let _ = remove(&self.work, c"work");
        let _ = remove(&self.work, c"index");
        let emptied = remove(&self.dir, c"work").is_ok() && remove(&self.dir, c"upper").is_ok();
        if emptied {
            let _ = rustix::fs::unlinkat(&self.dir, SESSION_FILE, AtFlags::empty());
            let _ = rustix::fs::unlinkat(&self.dir, HIDDEN_FILE, AtFlags::empty());
            let _ = rustix::fs::unlinkat(&self.dir, DIRECTORIES_FILE, AtFlags::empty());
            let _ = rustix::fs::rmdir(self.path.as_str()); // stays if another name is in it
        }
        false
    }
}

/// The layers, opened in the namespace in which the overlay is mounted.
pub struct SessionLayers {
    pub upper: OwnedFd,
    pub work: OwnedFd,
}

/// A program that lists or reads sessions holds the lock for an instant. A program that runs or
/// applies one holds it longer than this waits.
fn lock(session: &OwnedFd) -> Result<(), Errno> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match rustix::fs::flock(session, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
}

fn make_dirs(sessions: &AbsPath, id: &str) -> Result<OwnedFd, Errno> {
    make_all(sessions.as_bytes())?;
    let parent = rustix::fs::open(sessions.as_c_str(), DIR_FLAGS, Mode::empty())?;
    rustix::fs::mkdirat(&parent, id, Mode::RWXU)?;
    rustix::fs::openat(&parent, id, DIR_FLAGS, Mode::empty())
}

/// Makes a directory and the missing ones above it, for the user alone.
pub fn make_all(path: &[u8]) -> Result<(), Errno> {
    let ends =
        path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
    for end in ends.chain([path.len()]) {
        match rustix::fs::mkdirat(CWD, &path[..end], Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            // A directory above may exist although this process can not write it.
            Err(Errno::ACCESS | Errno::ROFS) if rustix::fs::stat(&path[..end]).is_ok() => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub fn make_dir(dir: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::mkdirat(&dir, name, Mode::RWXU)?;
    rustix::fs::openat(&dir, name, DIR_FLAGS, Mode::empty())
}
