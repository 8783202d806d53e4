//! Does the last scans that earlier runs left: see `files/unfinished_scan_marks.rs`.
//!
//! A marked tree that is not at its path (unmounted, renamed) can not be scanned. It does not count
//! as removed: its mark stays, each start says so, and the first start that finds the tree again
//! scans it. Meanwhile commands run.
//!
//! A start that finishes a scan holds a lock on the directory of the marks. A second start waits.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RawDir};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::tasks;
use crate::files::guard::{Guard, GuardError, GuardEvent, MissingTree};
use crate::files::patterns::{NamePatterns, NamePatternsError};
use crate::files::unfinished_scan_marks::{
    MARK_VERSION, MarkFile, ProcessStart, SUPERVISOR_KEY, UnfinishedError, directory, open_dir,
    started_at, write_all,
};
use crate::journal::Journal;
use crate::journal::event::Event;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::reader;
use crate::plan::{Plan, PlanError};
use crate::sandbox::{full_tier, landlock};

/// A plan has at most 16 MiB. The saved state of a guard grows with the locked names.
const MAX_MARK_BYTES: u64 = 256 << 20;
/// The kernel kills the processes of a dead supervisor. This takes milliseconds, on a busy machine
/// more.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// A start takes at most this time from the creation of a mark to its final name.
const MARK_CREATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Finishes the last scans of runs that are over. `say` gets a line for each name and each run.
/// Returns how many runs there were.
pub fn finish_all(
    sessions: &AbsPath,
    uid: u32,
    say: &mut dyn FnMut(&str),
) -> Result<usize, UnfinishedError> {
    let path = directory(sessions);
    let shown = String::from_utf8_lossy(&path).into_owned();
    let failed = |source| UnfinishedError::Directory { path: shown.clone(), source };
    let dir = match open_dir(&path) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(0),
        Err(source) => return Err(failed(source)),
    };
    let mut over = Vec::new();
    for name in list(&dir).map_err(failed)? {
        let read = |source| UnfinishedError::Read {
            path: format!("{shown}/{}", name.to_string_lossy()),
            source,
        };
        if name.to_bytes().starts_with(b".") {
            over.push(name);
        } else if let Some(mark) = open_mark(&dir, &name).map_err(read)?
            && is_over(&mark).map_err(read)?
        {
            over.push(name);
        }
    }
    let is_mark = |name: &CString| !name.to_bytes().starts_with(b".");
    if !over.iter().any(is_mark) {
        return Ok(0);
    }
    rustix::io::retry_on_intr(|| rustix::fs::flock(&dir, FlockOperation::LockExclusive))
        .map_err(failed)?;
    let mut finished = 0;
    for name in &over {
        let path = format!("{shown}/{}", name.to_string_lossy());
        let read = |source| UnfinishedError::Read { path: path.clone(), source };
        // Another start may have finished it meanwhile.
        let Some(mark) = open_mark(&dir, name).map_err(read)? else { continue };
        if is_mark(name) {
            if !finish(&dir, &mark, name, &path, uid, say)? {
                continue;
            }
            finished += 1;
        } else if !is_abandoned(&mark).map_err(read)? {
            continue;
        }
        match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(source) => return Err(UnfinishedError::Write { path, source }),
        }
    }
    Ok(finished)
}

fn list(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

fn open_mark(dir: &OwnedFd, name: &CString) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(mark) => Ok(Some(mark)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// A living run holds the lock of its mark. A killed supervisor holds it until the kernel has ended
/// it: this waits for that.
fn is_over(mark: &OwnedFd) -> Result<bool, Errno> {
    let until = Instant::now() + END_TIMEOUT;
    loop {
        // Read before the lock is tried: a supervisor that ends in between has released it.
        let ending = supervisor_of(mark)?.filter(|(_, process)| process.is_ending);
        match rustix::fs::flock(mark, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return rustix::fs::flock(mark, FlockOperation::Unlock).map(|()| true),
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        let Some((pid, _)) = ending else { return Ok(false) };
        let left = until.checked_duration_since(Instant::now()).ok_or(Errno::BUSY)?;
        let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        wait_for(&process, left);
    }
}

/// The process that made a mark, if it still exists.
fn supervisor_of(mark: &OwnedFd) -> Result<Option<(Pid, ProcessStart)>, Errno> {
    let mut beginning = [0; 128];
    let length = rustix::io::pread(mark, &mut beginning, 0)?;
    let text = String::from_utf8_lossy(&beginning[..length]);
    let noted = text
        .split_once(SUPERVISOR_KEY)
        .and_then(|(_, rest)| rest.split_once(']')?.0.split_once(','));
    let Some((Ok(pid), Ok(started))) =
        noted.map(|(pid, started)| (pid.parse::<u32>(), started.parse::<u64>()))
    else {
        return Ok(None);
    };
    let process = started_at(pid).filter(|process| process.started == started);
    Ok(i32::try_from(pid).ok().and_then(Pid::from_raw).zip(process))
}

/// Was its maker killed before the mark was complete? Then no command was started.
fn is_abandoned(fresh: &OwnedFd) -> Result<bool, Errno> {
    let made = rustix::fs::fstat(fresh)?.st_mtime;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(made.saturating_add_unsigned(MARK_CREATION_TIMEOUT.as_secs()) < now.as_secs() as i64
        && is_over(fresh)?)
}

/// False: some tree is not at its path now, and the mark stays for it.
fn finish(
    dir: &OwnedFd,
    mark: &OwnedFd,
    name: &CString,
    path: &str,
    uid: u32,
    say: &mut dyn FnMut(&str),
) -> Result<bool, UnfinishedError> {
    let damaged = || UnfinishedError::Damaged { path: path.to_owned() };
    let read = |source| UnfinishedError::Read { path: path.to_owned(), source };
    let session = name.to_str().map_err(|_| damaged())?.to_owned();
    let stat = rustix::fs::fstat(mark).map_err(read)?;
    let own = stat.st_uid == uid && stat.st_mode & 0o077 == 0;
    if !own
        || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
        || stat.st_size as u64 > MAX_MARK_BYTES
    {
        return Err(damaged());
    }
    let content = read_all(mark, stat.st_size as usize).map_err(read)?;
    let end = content.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
    let note: MarkFile = reader::from_slice(&content[..end]).map_err(|_| damaged())?;
    let plan = Plan::parse(&content[end + 1..], uid).map_err(|_: PlanError| damaged())?;
    let (MARK_VERSION, Some(requested)) = (note.version, &plan.files) else {
        return Err(damaged());
    };
    let scan = |source| UnfinishedError::Scan { session: session.clone(), source };
    if note.waiting.is_none() {
        wait_for_end(note.init);
    }

    // The events belong to the finished run. Names are quarantined even if its journal can not be
    // written.
    let journal = plan.journal.as_ref().and_then(|requested| {
        let opened = landlock::check_journal_path(&plan).map_err(|error| error.to_string());
        let opened = opened.and_then(|()| {
            Journal::open(requested, uid, session.clone()).map_err(|e| e.to_string())
        });
        opened.inspect_err(|error| say(error)).ok()
    });
    let known = |error: NamePatternsError| scan(GuardError::Walk(error.into()));
    let names = NamePatterns::of_plan(requested, &requested.protect, &requested.flagged, None)
        .map_err(known)?;
    let quarantine = full_tier::quarantine_dir(&plan, &session).map_err(|_| damaged())?;
    let (mut guard, away) =
        Guard::restore(names, &note.memory, note.waiting.as_deref(), quarantine).map_err(scan)?;
    let (mut count, mut left) = (0, None);
    let append = |event: &Event<'_>, say: &mut dyn FnMut(&str)| {
        if let Some(Err(error)) = journal.as_ref().map(|journal| journal.append(event)) {
            say(&error.to_string());
        }
    };
    let finished = guard.finish(&mut |event| {
        let (line, journal_event) = tasks::line_and_event(&event);
        line.iter().for_each(|line| say(line));
        append(&journal_event, say);
        match event {
            GuardEvent::Failed { path, source } => left = Some((path, source)),
            GuardEvent::Quarantined { .. } | GuardEvent::Removed { .. } => count += 1,
            GuardEvent::Masked { .. } => {}
        }
    });
    if let Some((left, source)) = left {
        return Err(UnfinishedError::Left { session, left, source });
    }
    finished.map_err(scan)?;
    if !away.is_empty() {
        if note.waiting.as_ref().is_none_or(|waiting| waiting.len() > away.len()) {
            let failed = |source| UnfinishedError::Write { path: path.to_owned(), source };
            rewrite(dir, &session, &content, note.waiting.is_some(), &away).map_err(failed)?;
        }
        let shown = |away: &MissingTree| {
            let why = if away.is_replaced {
                "another directory has this path"
            } else {
                "it does not exist"
            };
            format!("{} ({why})", away.path)
        };
        let paths: Vec<String> = away.iter().map(shown).collect();
        say(&format!(
            "the last scan of session {session} was interrupted, and needs {}. Paddock finishes it \
                when that directory is back. If you removed the directory, type: rm '{path}'",
            paths.join(", ")
        ));
        return Ok(false);
    }
    append(&Event::ScanFinished { quarantined: count }, say);
    say(&format!(
        "finished the interrupted last scan of session {session}: {count} names were removed"
    ));
    Ok(true)
}

/// A scanned tree is not scanned again: names that appear there from now on are the user's own.
fn rewrite(
    dir: &OwnedFd,
    session: &str,
    content: &[u8],
    again: bool,
    away: &[MissingTree],
) -> Result<(), Errno> {
    let fresh = format!(".{session}");
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &*fresh, flags, Mode::RUSR | Mode::WUSR)?;
    let written = write_all(
        &file,
        &rewritten(content, again, away).iter().map(Vec::as_slice).collect::<Vec<_>>(),
    );
    let renamed = written.and_then(|()| rustix::fs::renameat(dir, &*fresh, dir, session));
    renamed.inspect_err(|_| {
        let _ = rustix::fs::unlinkat(dir, &*fresh, AtFlags::empty());
    })
}

/// The same mark with other numbers in front: `{"waiting":[0,2],`, then the rest unchanged.
fn rewritten(content: &[u8], again: bool, away: &[MissingTree]) -> [Vec<u8>; 2] {
    let numbers: Vec<String> = away.iter().map(|away| away.number.to_string()).collect();
    let rest = match content.iter().position(|byte| *byte == b']').filter(|_| again) {
        Some(end) => end + 2,
        None => 1,
    };
    [format!("{{\"waiting\":[{}],", numbers.join(",")).into_bytes(), content[rest..].to_vec()]
}

fn read_all(file: &OwnedFd, size: usize) -> Result<Vec<u8>, Errno> {
    let mut content = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match rustix::io::read(file, &mut content[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    content.truncate(filled);
    Ok(content)
}

/// The sandbox ends with its supervisor, and init ends last. When this returns, none of it runs.
/// The pid of init may already belong to another process: that one is not in its own namespace, or
/// the wait for it times out.
fn wait_for_end(init: i32) {
    let namespace = |pid: &str| rustix::fs::readlink(format!("/proc/{pid}/ns/pid"), Vec::new());
    let Some(pid) = Pid::from_raw(init) else { return };
    let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
    if let (Ok(own), Ok(other)) = (namespace("self"), namespace(&init.to_string()))
        && own == other
    {
        return;
    }
    wait_for(&process, END_TIMEOUT);
}

fn wait_for(process: &OwnedFd, limit: Duration) {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let _ = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, Some(&limit)));
}

/// The verb `finish`: prints what was done.
pub fn report(sessions: &AbsPath, uid: u32) -> Result<String, UnfinishedError> {
    let mut lines = Vec::new();
    let finished = finish_all(sessions, uid, &mut |line| lines.push(line.to_owned()))?;
    let mut out = format!("{{\"finished\":{finished},\"lines\":");
    crate::plan::wire::writer::strings(
        &mut out,
        lines.iter().map(String::as_bytes),
        crate::plan::wire::writer::NonUtf8::Text,
    );
    out.push('}');
    Ok(out)
}

/// A path of the command line.
pub fn sessions(path: &[u8]) -> Option<AbsPath> {
    Text::from_bytes(path.to_vec()).and_then(AbsPath::new).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::test_tree::TestTree;

    #[test]
    fn only_an_ending_supervisor_is_waited_for() {
        let scene = TestTree::new();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let started = started_at(child.id()).unwrap().started;
        let note = format!(
            "{{\"version\":{MARK_VERSION}{SUPERVISOR_KEY}{},{started}],\"init\":1",
            child.id()
        );
        std::fs::write(scene.path("mark"), note).unwrap();
        let open = || OwnedFd::from(std::fs::File::open(scene.path("mark")).unwrap());
        let (mark, held) = (open(), open());
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(is_over(&mark), Ok(false), "it lives");
        child.kill().unwrap();
        assert!(
            started_at(child.id()).unwrap().is_ending,
            "from the signal on, and as long as it is there"
        );
        let waiting = std::thread::spawn(move || is_over(&mark));
        // The lock is released only now, as if the kernel were late.
        std::thread::yield_now();
        drop(held);
        assert_eq!(waiting.join().unwrap(), Ok(true));
        child.wait().unwrap();
    }
}
