//! Observes file accesses that the sandbox refuses. The kernel does not report refused accesses. So
//! every call with a path passes through here (`kernel/seccomp_notify.rs`), and each distinct one
//! is sent to the Python observer, which judges it with the rules of `paddock why`.
//!
//! This only reads. Every call continues, and no safety rests on this file: other processes may
//! change what was read before the kernel reads it. Nothing here blocks. The stored data is
//! bounded, and a reached bound is reported.

#[cfg(test)]
mod tests;

use std::collections::{HashSet, VecDeque};
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use rustix::process::WaitOptions;
use serde::Deserialize;

use crate::files::writes;
use crate::journal::event::files::RefusedFileAccess;
use crate::kernel::process_memory::ProcessMemory;
use crate::kernel::seccomp_notify::{InterceptedCall, MAX_PATH_BYTES, NotifyListener};
use crate::kernel::sys::{self, ExecStrings};
use crate::kernel::{child_fds, python_helper, socket_pair};
use crate::plan::syscalls::{self, Arch};
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{Plan, Tier};

/// At most this many different acts are sent. Later ones are only counted.
const MAX_ACTS: usize = 16 * 1024;
/// Bytes of messages that wait to be sent.
const MAX_UNSENT_BYTES: usize = 8 << 20;
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// More messages wait until the next turn.
const MAX_MESSAGES_PER_TURN: usize = 64;
/// A full socket is tried again after this time.
const RESEND_INTERVAL: Duration = Duration::from_millis(5);
/// At the end of the run the observer gets this long for the rest.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("--observe: the first line of {0} names no Python")]
    Interpreter(String),
    #[error("--observe: cannot start {0}: {1}")]
    Start(String, #[source] Errno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FileAct {
    Read,
    Write,
    /// Reads and writes.
    Update,
    Exec,
    Make,
    Remove,
    /// By a rename: an existing name is removed, a missing one is made.
    Replace,
    Change,
}

impl FileAct {
    fn name(self) -> &'static str {
        match self {
            FileAct::Read => "read",
            FileAct::Write => "write",
            FileAct::Update => "update",
            FileAct::Exec => "exec",
            FileAct::Make => "make",
            FileAct::Remove => "remove",
            FileAct::Replace => "replace",
            FileAct::Change => "change",
        }
    }
}

/// Which argument of a call is its path, and which is the directory that the path begins in.
struct ObservedPath {
    act: FileAct,
    dir: Option<usize>,
    path: usize,
}

const fn at(act: FileAct, dir: usize, path: usize) -> ObservedPath {
    ObservedPath { act, dir: Some(dir), path }
}

const fn here(act: FileAct, path: usize) -> ObservedPath {
    ObservedPath { act, dir: None, path }
}

/// Where the flags of an open call are.
enum Flags {
    None,
    Argument(usize),
    /// In memory that this argument points to.
    Behind(usize),
}

struct CallShape {
    call: &'static str,
    flags: Flags,
    names: &'static [ObservedPath],
}

const fn shape(call: &'static str, names: &'static [ObservedPath]) -> CallShape {
    CallShape { call, flags: Flags::None, names }
}

/// Calls that Landlock or a mount may refuse.
const JUDGED_CALLS: &[CallShape] = &[
    CallShape { call: "open", flags: Flags::Argument(1), names: &[here(FileAct::Read, 0)] },
    CallShape { call: "openat", flags: Flags::Argument(2), names: &[at(FileAct::Read, 0, 1)] },
    CallShape { call: "openat2", flags: Flags::Behind(2), names: &[at(FileAct::Read, 0, 1)] },
    shape("creat", &[here(FileAct::Write, 0)]),
    shape("truncate", &[here(FileAct::Write, 0)]),
    shape("mkdir", &[here(FileAct::Make, 0)]),
    shape("mkdirat", &[at(FileAct::Make, 0, 1)]),
    shape("mknod", &[here(FileAct::Make, 0)]),
    shape("mknodat", &[at(FileAct::Make, 0, 1)]),
    shape("symlink", &[here(FileAct::Make, 1)]),
    shape("symlinkat", &[at(FileAct::Make, 1, 2)]),
    shape("link", &[here(FileAct::Make, 1)]),
    shape("linkat", &[at(FileAct::Make, 2, 3)]),
    shape("unlink", &[here(FileAct::Remove, 0)]),
    shape("unlinkat", &[at(FileAct::Remove, 0, 1)]),
    shape("rmdir", &[here(FileAct::Remove, 0)]),
    shape("rename", &[here(FileAct::Remove, 0), here(FileAct::Replace, 1)]),
    shape("renameat", &[at(FileAct::Remove, 0, 1), at(FileAct::Replace, 2, 3)]),
    shape("renameat2", &[at(FileAct::Remove, 0, 1), at(FileAct::Replace, 2, 3)]),
    shape("execve", &[here(FileAct::Exec, 0)]),
    shape("execveat", &[at(FileAct::Exec, 0, 1)]),
];

/// Calls that a mount may refuse, or init if it judges writes: Landlock does not judge them.
const METADATA_CALLS: &[CallShape] = &[
    shape("chmod", &[here(FileAct::Change, 0)]),
    shape("fchmodat", &[at(FileAct::Change, 0, 1)]),
    shape("fchmodat2", &[at(FileAct::Change, 0, 1)]),
    shape("chown", &[here(FileAct::Change, 0)]),
    shape("lchown", &[here(FileAct::Change, 0)]),
    shape("fchownat", &[at(FileAct::Change, 0, 1)]),
    shape("utime", &[here(FileAct::Change, 0)]),
    shape("utimes", &[here(FileAct::Change, 0)]),
    shape("futimesat", &[at(FileAct::Change, 0, 1)]),
    shape("utimensat", &[at(FileAct::Change, 0, 1)]),
    shape("setxattr", &[here(FileAct::Change, 0)]),
    shape("lsetxattr", &[here(FileAct::Change, 0)]),
    shape("setxattrat", &[at(FileAct::Change, 0, 1)]),
    shape("removexattr", &[here(FileAct::Change, 0)]),
    shape("lremovexattr", &[here(FileAct::Change, 0)]),
    shape("removexattrat", &[at(FileAct::Change, 0, 1)]),
];

/// `metadata`: may changes of metadata be refused?
fn shapes(metadata: bool) -> impl Iterator<Item = &'static CallShape> {
    JUDGED_CALLS.iter().chain(if metadata { METADATA_CALLS } else { &[] })
}

fn refuses_metadata(plan: &Plan) -> bool {
    plan.tier == Tier::Full || writes::are_judged(plan)
}

/// The calls that the filter has to send.
pub fn calls(plan: &Plan) -> impl Iterator<Item = &'static str> {
    shapes(refuses_metadata(plan)).map(|shape| shape.call)
}

/// One act that is sent to the Python observer.
pub struct Observed {
    act: FileAct,
    create: bool,
    path: Vec<u8>,
    program: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ObserverMessage {
    Refused(RefusedFileAccess),
    /// At the end: the number of acts that were judged.
    Judged(u64),
}

pub struct Observer {
    /// None: the observer has ended.
    line: Option<OwnedFd>,
    shapes: Vec<(u32, &'static CallShape)>,
    /// A grant that the plan does not have: the private temporary directory.
    granted: Option<Vec<u8>>,
    hasher: RandomState,
    seen: HashSet<u64>,
    memory: ProcessMemory,
    unsent: VecDeque<Vec<u8>>,
    unsent_bytes: usize,
    sent: u64,
    judged: u64,
    refused: Vec<RefusedFileAccess>,
    /// Calls that were only counted, because there were too many others before.
    passed_over: u64,
}

impl Observer {
    /// None: the plan does not ask for an observer. `plan_fd`: the descriptor of the plan.
    pub fn start(plan: &Plan, plan_fd: &OwnedFd) -> Result<Option<Observer>, ObserveError> {
        if !plan.observe {
            return Ok(None);
        }
        let line = start(plan_fd)?;
        Ok(Some(Observer::new(line, refuses_metadata(plan))))
    }

    fn new(line: OwnedFd, metadata: bool) -> Observer {
        let number = |shape: &'static CallShape| {
            Some((syscalls::find(shape.call)?.number(Arch::NATIVE)?, shape))
        };
        let mut shapes: Vec<_> = shapes(metadata).filter_map(number).collect();
        shapes.sort_unstable_by_key(|(number, _)| *number);
        Observer {
            line: Some(line),
            shapes,
            granted: None,
            hasher: RandomState::new(),
            seen: HashSet::new(),
            memory: ProcessMemory::of(0),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            sent: 0,
            judged: 0,
            refused: Vec::new(),
            passed_over: 0,
        }
    }

    pub fn grant(&mut self, path: &[u8]) {
        self.granted = Some(path.to_vec());
    }

    /// Readable when a judgement has arrived.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(|line| line.as_fd())
    }

    pub fn deadline(&self) -> Option<Instant> {
        (self.line.is_some() && !self.unsent.is_empty()).then(|| Instant::now() + RESEND_INTERVAL)
    }

    /// The new acts of a call. Called before the call is answered.
    pub fn look(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
    ) -> [Option<Observed>; 2] {
        let Ok(index) =
            self.shapes.binary_search_by_key(&(call.number as u32), |(number, _)| *number)
        else {
            return [None, None];
        };
        if self.line.is_none()
            || self.seen.len() >= MAX_ACTS
            || self.unsent_bytes >= MAX_UNSENT_BYTES
        {
            self.passed_over += 1;
            return [None, None];
        }
        let shape = self.shapes[index].1;
        let mut names = shape.names.iter();
        let mut next = || names.next().and_then(|named| self.look_at(call, shape, named));
        let seen = [next(), next()];
        // Until this check the pid may have belonged to another process.
        if seen.iter().any(Option::is_some) && !listener.still_waits(call) {
            [None, None]
        } else {
            seen
        }
    }

    fn look_at(
        &mut self,
        call: &InterceptedCall,
        shape: &CallShape,
        named: &ObservedPath,
    ) -> Option<Observed> {
        self.memory.turn_to(call.thread);
        let mut path = Vec::with_capacity(256);
        let address = call.arguments[named.path];
        self.memory.string(address, MAX_PATH_BYTES, Errno::NAMETOOLONG, &mut path).ok()?;
        if path.is_empty() {
            return None; // the descriptor was judged when it was opened
        }
        let flags = match shape.flags {
            Flags::None => None,
            Flags::Argument(index) => Some(call.arguments[index] as i32),
            Flags::Behind(index) => Some(self.memory.word(call.arguments[index]).ok()? as i32),
        };
        let (act, create) = flags.map_or(Some((named.act, shape.call == "creat")), act_of)?;
        if !path.starts_with(b"/") {
            let dir = named.dir.map_or(libc::AT_FDCWD, |index| call.arguments[index] as i32);
            path = [&start_of(call.thread, dir)?[..], b"/", &path].concat();
        }
        if self.granted.as_ref().is_some_and(|granted| is_within(&path, granted)) {
            return None;
        }
        let program = rustix::fs::readlink(format!("/proc/{}/exe", call.thread), Vec::new())
            .ok()?
            .into_bytes();
        let known = self.seen.contains(&self.hasher.hash_one((act, create, &path, &program)));
        (!known).then_some(Observed { act, create, path, program })
    }

    /// Sends the acts. The call was answered before.
    pub fn note(&mut self, seen: [Option<Observed>; 2]) {
        for observed in seen.into_iter().flatten() {
            let Observed { act, create, path, program } = &observed;
            if !self.seen.insert(self.hasher.hash_one((*act, *create, path, program))) {
                continue;
            }
            let message = observed.message();
            if message.len() > MAX_MESSAGE_BYTES {
                self.passed_over += 1;
                continue;
            }
            self.unsent_bytes += message.len();
            self.unsent.push_back(message.into_bytes());
        }
        self.flush();
    }

    fn flush(&mut self) {
        let Some(line) = &self.line else { return };
        while let Some(message) = self.unsent.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::sendmsg(
                line,
                &[IoSlice::new(message)],
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(_) => {
                    self.sent += 1;
                    self.unsent_bytes -= message.len();
                    self.unsent.pop_front();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.lose(),
            }
        }
    }

    fn lose(&mut self) {
        self.line = None;
        self.passed_over += self.unsent.len() as u64;
        self.unsent.clear();
        self.unsent_bytes = 0;
    }

    pub fn turn(&mut self) {
        self.flush();
        for _ in 0..MAX_MESSAGES_PER_TURN {
            if !self.receive() {
                return;
            }
        }
    }

    /// False: no further message waits.
    fn receive(&mut self) -> bool {
        let Some(line) = &self.line else { return false };
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        match rustix::net::recv(line, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok((_, length)) if (1..=MAX_MESSAGE_BYTES).contains(&length) => {
                match reader::from_slice(&buffer[..length]) {
                    Ok(ObserverMessage::Refused(refused)) => {
                        self.refused.push(refused);
                        true
                    }
                    Ok(ObserverMessage::Judged(count)) => {
                        self.judged = count;
                        true
                    }
                    Err(_) => {
                        self.lose();
                        false
                    }
                }
            }
            Ok(_) | Err(_) => {
                self.lose();
                false
            }
        }
    }

    pub fn refused(&mut self) -> Vec<RefusedFileAccess> {
        std::mem::take(&mut self.refused)
    }

    /// Every process has ended. Sends the rest and waits for its judgement. Returns a text about
    /// missed acts, if there are any.
    pub fn finish(&mut self) -> Option<String> {
        let deadline = Instant::now() + FINISH_TIMEOUT;
        let mut told_all = false;
        while let Some(line) = &self.line {
            if self.unsent.is_empty() && !told_all {
                let _ = rustix::net::shutdown(line, Shutdown::Write);
                told_all = true;
            }
            let wanted = if told_all { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
            let ready = rustix::event::poll(&mut [PollFd::new(line, wanted)], left.as_ref());
            if ready == Ok(0) {
                return Some("--observe: some calls could not be checked in time".to_owned());
            }
            self.turn();
        }
        match self.passed_over {
            _ if !told_all || self.judged != self.sent => Some(
                "--observe: the observer has ended; some denied calls are not shown".to_owned(),
            ),
            0 => None,
            more => Some(format!(
                "--observe: {more} more calls were not checked; the limit is {MAX_ACTS} different \
                    calls"
            )),
        }
    }
}

impl Observed {
    fn message(&self) -> String {
        let mut out = format!(
            "{{\"observed\":{{\"op\":\"{}\",\"create\":{},\"path\":",
            self.act.name(),
            self.create
        );
        writer::string(&mut out, &self.path, NonUtf8::Surrogate);
        out.push_str(",\"program\":");
        writer::string(&mut out, &self.program, NonUtf8::Surrogate);
        let _ = write!(out, "}}}}");
        out
    }
}

/// The act of an open call, and whether it may create a file. None: the call opens nothing.
fn act_of(flags: i32) -> Option<(FileAct, bool)> {
    if flags & libc::O_PATH != 0 {
        return None;
    }
    let act = match flags & libc::O_ACCMODE {
        libc::O_RDONLY if flags & libc::O_TRUNC == 0 => FileAct::Read,
        libc::O_RDONLY | libc::O_WRONLY => FileAct::Write,
        _ => FileAct::Update,
    };
    Some((act, flags & libc::O_CREAT != 0))
}

/// The path of the directory that a relative path begins in. None: it has no path.
fn start_of(thread: u32, dir: i32) -> Option<Vec<u8>> {
    let link = if dir == libc::AT_FDCWD {
        format!("/proc/{thread}/cwd")
    } else {
        format!("/proc/{thread}/fd/{dir}")
    };
    let path = rustix::fs::readlink(link, Vec::new()).ok()?.into_bytes();
    (path.starts_with(b"/") && !path.ends_with(b" (deleted)")).then_some(path)
}

fn is_within(path: &[u8], tree: &[u8]) -> bool {
    path.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Starts the Python observer at the other end of a socket. It is reparented, so the limits and the
/// end of the run leave it alone. It ends when the socket does.
fn start(plan_fd: &OwnedFd) -> Result<OwnedFd, ObserveError> {
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let script = own.with_file_name(python_helper::SCRIPT);
    let name = script.display().to_string();
    let interpreter = python_helper::interpreter_of(&script)
        .ok_or_else(|| ObserveError::Interpreter(name.clone()))?;
    let failed = |errno| ObserveError::Start(name.clone(), errno);
    let (ours, theirs) = socket_pair::pair().map_err(failed)?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    let (socket, plan) = (theirs.as_raw_fd().to_string(), plan_fd.as_raw_fd().to_string());
    let words = [interpreter.as_os_str()]
        .into_iter()
        .chain(python_helper::ISOLATION_OPTIONS.map(OsStr::new))
        .chain([script.as_os_str()]);
    let words = words.chain(["observer", "--socket", &socket, "--plan-fd", &plan].map(OsStr::new));
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let argv = ExecStrings::new(words.map_err(|_| failed(Errno::INVAL))?);
    let environment = ExecStrings::new(Vec::new());
    let between = sys::fork(|| {
        let started = sys::fork(|| {
            if alone(&null, [&theirs, plan_fd]).is_ok() {
                sys::execve(&argv.strings()[0], &argv, &environment);
            }
            125
        });
        i32::from(started.is_err())
    });
    let (_, ended) = rustix::process::waitpid(Some(between.map_err(failed)?), WaitOptions::empty())
        .map_err(failed)?
        .ok_or_else(|| failed(Errno::CHILD))?;
    if ended.exit_status() == Some(0) { Ok(ours) } else { Err(failed(Errno::AGAIN)) }
}

/// Runs in the child. It keeps the working directory, because the plan's relative paths begin
/// there.
fn alone(null: &OwnedFd, inherited: [&OwnedFd; 2]) -> Result<(), Errno> {
    rustix::process::setsid()?;
    child_fds::keep_only(null, &inherited)
}
