//! Marks of unfinished last scans (`supervisor/finish_earlier_scans.rs` finishes them).
//!
//! Before a command starts that can write to a tree of the host, the supervisor makes a mark: a
//! file in Paddock's own state, which no command can write. It holds the plan and the saved state
//! of the guard. The supervisor holds a lock on it, and removes it after a complete last scan. If
//! everything was killed, or the scan did not finish, the mark stays without its lock. Then the
//! next run of this user, in any workspace, and `paddock doctor` do the scan first. It does not
//! matter whether that run uses the marked trees: the host executes planted names without any run.
//!
//! Marks appear by rename, so each is complete.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use serde::Deserialize;

use super::guard::{Guard, GuardError, SavedState};
use super::workspace::session_dir;
use crate::kernel::errno_names::errno_text;
use crate::kernel::proc_text;
use crate::plan::wire::bytes::AbsPath;

const MARKS_DIR: &[u8] = b"unfinished";

#[derive(Debug, thiserror::Error)]
pub enum UnfinishedError {
    #[error("cannot use {path}, which records unfinished scans: {}", errno_text(*.source))]
    Directory { path: String, source: Errno },
    #[error("cannot write {path}, the record of an unfinished scan: {}", errno_text(*.source))]
    Write { path: String, source: Errno },
    #[error("cannot read {path}, the record of an unfinished scan: {}", errno_text(*.source))]
    Read { path: String, source: Errno },
    #[error("{path}, the record of an unfinished scan, is damaged or has another version")]
    Damaged { path: String },
    #[error(
        "an earlier run did not finish its last scan (session {session}), and Paddock cannot \
            finish it now: {source}"
    )]
    Scan { session: String, source: GuardError },
    #[error("an earlier run (session {session}) left {left}, and Paddock cannot remove it: {}", errno_text(*.source))]
    Left { session: String, left: AbsPath, source: Errno },
    #[error(transparent)]
    Guard(#[from] GuardError),
}

impl UnfinishedError {
    pub fn hint(&self) -> &'static str {
        match self {
            UnfinishedError::Directory { .. } | UnfinishedError::Write { .. } => {
                "~/.local/state/paddock must belong to you, and its disk must have free space"
            }
            UnfinishedError::Read { .. } | UnfinishedError::Damaged { .. } => {
                "check the workspace of that run for names that you did not create, then remove \
                    the record"
            }
            UnfinishedError::Scan { .. } => {
                "correct the cause, then type `paddock doctor` to finish the scan; or check the \
                    workspace yourself, and remove the record of that session in \
                    ~/.local/state/paddock/unfinished"
            }
            UnfinishedError::Left { .. } => {
                "check it, remove it by hand, then type `paddock doctor`"
            }
            UnfinishedError::Guard(error) => error.hint(),
        }
    }
}

/// The first line of a mark; the plan follows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkFile {
    /// The numbers of the trees that still have to be scanned, if some were. It comes
    /// first: `supervisor/finish_earlier_scans.rs` writes it in front of an existing mark.
    pub waiting: Option<Vec<usize>>,
    pub version: u32,
    /// The process that holds the lock: its pid and its start time.
    /// `supervisor/finish_earlier_scans.rs` reads it from the beginning of the mark.
    #[allow(dead_code, reason = "the note is read as a whole, and nothing else may be in it")]
    supervisor: (u32, u64),
    /// The pid of init.
    pub init: i32,
    pub memory: SavedState,
}

pub const MARK_VERSION: u32 = 2;

/// The mark of this run. While it is open, the run lives.
pub struct Mark {
    dir: OwnedFd,
    name: String,
    _locked: OwnedFd,
}

impl Mark {
    /// Makes the mark before the command starts. None: the command can write to no tree of the
    /// host.
    pub fn set(
        sessions: &AbsPath,
        id: &str,
        plan: &[u8],
        guard: &Guard,
        init: Pid,
    ) -> Result<Option<Mark>, UnfinishedError> {
        let mut note = String::with_capacity(4096);
        let own = std::process::id();
        let started = read_stat(own).map_or(0, |(started, _)| started);
        let _ = write!(
            note,
            "{{\"version\":{MARK_VERSION}{SUPERVISOR_KEY}{own},{started}],\"init\":{}",
            init.as_raw_nonzero()
        );
        note.push_str(",\"memory\":");
        if !guard.write_saved_state(&mut note).map_err(GuardError::from)? {
            return Ok(None);
        }
        note.push_str("}\n");
        let path = directory(sessions);
        let shown = |name: &str| format!("{}/{name}", String::from_utf8_lossy(&path));
        let opened = match open_dir(&path) {
            Err(Errno::NOENT) => session_dir::make_all(&path).and_then(|()| open_dir(&path)),
            opened => opened,
        };
        let dir =
            opened.map_err(|source| UnfinishedError::Directory { path: shown(""), source })?;
        let fresh = format!(".{id}");
        let written = (|| {
            let flags = OFlags::WRONLY
                | OFlags::CREATE
                | OFlags::TRUNC
                | OFlags::NOFOLLOW
                | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&dir, &*fresh, flags, Mode::RUSR | Mode::WUSR)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            write_all(&file, &[note.as_bytes(), plan])?;
            rustix::fs::renameat(&dir, &*fresh, &dir, id)?;
            Ok(file)
        })();
        match written {
            Ok(file) => Ok(Some(Mark { dir, name: id.to_owned(), _locked: file })),
            Err(source) => {
                let _ = rustix::fs::unlinkat(&dir, &*fresh, AtFlags::empty());
                Err(UnfinishedError::Write { path: shown(id), source })
            }
        }
    }

    /// Called after a complete last scan, or if no command was started.
    pub fn remove(self) -> Result<(), UnfinishedError> {
        let removed = rustix::fs::unlinkat(&self.dir, &*self.name, AtFlags::empty());
        removed.map_err(|source| UnfinishedError::Write { path: self.name, source })
    }
}

pub const SUPERVISOR_KEY: &str = ",\"supervisor\":[";

pub struct ProcessStart {
    /// In clock ticks since the machine started.
    pub started: u64,
    /// It was killed, or is exiting.
    pub is_ending: bool,
}

/// From `/proc/PID/stat` and `/proc/PID/status` (proc_pid_stat(5), proc_pid_status(5)).
pub fn started_at(pid: u32) -> Option<ProcessStart> {
    let (started, mut is_ending) = read_stat(pid)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let pending = |line: &str| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    is_ending |=
        status.lines().filter_map(pending).any(|mask| mask & 1 << (libc::SIGKILL - 1) != 0);
    Some(ProcessStart { started, is_ending })
}

/// The start of a process, and whether it is exiting.
fn read_stat(pid: u32) -> Option<(u64, bool)> {
    /// The kernel's PF_EXITING and PF_SIGNALED.
    const ENDING_FLAGS: u64 = 0x4 | 0x400;
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&[u8]> = proc_text::words(&stat[close + 1..]).collect();
    let flags = proc_text::number(fields.get(6)?)?;
    let is_ending = flags & ENDING_FLAGS != 0 || matches!(*fields.first()?, b"Z" | b"X");
    Some((proc_text::number(fields.get(19)?)?, is_ending))
}

pub fn directory(sessions: &AbsPath) -> Vec<u8> {
    let path = sessions.as_bytes();
    let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    [&path[..end], b"/", MARKS_DIR].concat()
}

pub fn open_dir(path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

pub fn write_all(file: &OwnedFd, parts: &[&[u8]]) -> Result<(), Errno> {
    for mut part in parts.iter().copied() {
        while !part.is_empty() {
            match rustix::io::write(file, part)? {
                0 => return Err(Errno::NOSPC),
                count => part = &part[count..],
            }
        }
    }
    Ok(())
}
