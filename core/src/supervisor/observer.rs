//! Seeing what the fence refuses. The kernel tells nobody whom it has refused a file, so every call
//! with a path comes by here on its way (kernel/seccomp_notify.rs), and each distinct one is told
//! to the Python half, which judges it with the reasoning behind `paddock why`.
//!
//! This only looks. Every call goes on, whatever is thought of it, and no safety rests on anything
//! here: what was read of a caller may be changed by others before the kernel reads it. Nothing
//! here waits, and what is remembered has its limits, which are told when they are met.

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

use crate::journal::event::files::Refused;
use crate::kernel::process_memory::Memory;
use crate::kernel::seccomp_notify::{Call, LONGEST_PATH, Listener};
use crate::kernel::sys::{self, ExecStrings};
use crate::kernel::{child_fds, python_helper, socket_pair};
use crate::plan::syscalls::{self, Arch};
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, Invalid};
use crate::plan::{Plan, Tier};

/// Different acts that are looked at; of later ones it is only told how many there were.
const MOST_SEEN: usize = 16 * 1024;
/// Of what waits to be judged.
const ROOM: usize = 8 << 20;
/// Of a message.
const LONGEST: usize = 64 * 1024;
/// Who has more to say gets another turn.
const MOST_HEARD: usize = 64;
/// A socket that is full is tried again after so long.
const PAUSE: Duration = Duration::from_millis(5);
/// At the end the rest is judged for so long.
const LAST_WORDS: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("--observe: the first line of {0} names no Python")]
    Interpreter(String),
    #[error("--observe: cannot start {0}: {1}")]
    Start(String, #[source] Errno),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Read,
    Write,
    /// Both.
    Update,
    Exec,
    Make,
    Remove,
    /// By a rename: what has the name is removed, else it is made.
    Replace,
    Change,
}

impl Act {
    fn name(self) -> &'static str {
        match self {
            Act::Read => "read",
            Act::Write => "write",
            Act::Update => "update",
            Act::Exec => "exec",
            Act::Make => "make",
            Act::Remove => "remove",
            Act::Replace => "replace",
            Act::Change => "change",
        }
    }
}

/// Where a call has its path: which argument, and which is the directory that it begins in.
struct Named {
    act: Act,
    dir: Option<usize>,
    path: usize,
}

const fn at(act: Act, dir: usize, path: usize) -> Named {
    Named { act, dir: Some(dir), path }
}

const fn here(act: Act, path: usize) -> Named {
    Named { act, dir: None, path }
}

/// The flags of an opening say what it is for.
enum Flags {
    None,
    Argument(usize),
    /// In memory, at this argument.
    Behind(usize),
}

struct Shape {
    call: &'static str,
    flags: Flags,
    names: &'static [Named],
}

const fn shape(call: &'static str, names: &'static [Named]) -> Shape {
    Shape { call, flags: Flags::None, names }
}

/// What Landlock or a mount may refuse.
const SHAPES: &[Shape] = &[
    Shape { call: "open", flags: Flags::Argument(1), names: &[here(Act::Read, 0)] },
    Shape { call: "openat", flags: Flags::Argument(2), names: &[at(Act::Read, 0, 1)] },
    Shape { call: "openat2", flags: Flags::Behind(2), names: &[at(Act::Read, 0, 1)] },
    shape("creat", &[here(Act::Write, 0)]),
    shape("truncate", &[here(Act::Write, 0)]),
    shape("mkdir", &[here(Act::Make, 0)]),
    shape("mkdirat", &[at(Act::Make, 0, 1)]),
    shape("mknod", &[here(Act::Make, 0)]),
    shape("mknodat", &[at(Act::Make, 0, 1)]),
    shape("symlink", &[here(Act::Make, 1)]),
    shape("symlinkat", &[at(Act::Make, 1, 2)]),
    shape("link", &[here(Act::Make, 1)]),
    shape("linkat", &[at(Act::Make, 2, 3)]),
    shape("unlink", &[here(Act::Remove, 0)]),
    shape("unlinkat", &[at(Act::Remove, 0, 1)]),
    shape("rmdir", &[here(Act::Remove, 0)]),
    shape("rename", &[here(Act::Remove, 0), here(Act::Replace, 1)]),
    shape("renameat", &[at(Act::Remove, 0, 1), at(Act::Replace, 2, 3)]),
    shape("renameat2", &[at(Act::Remove, 0, 1), at(Act::Replace, 2, 3)]),
    shape("execve", &[here(Act::Exec, 0)]),
    shape("execveat", &[at(Act::Exec, 0, 1)]),
];

/// What only a mount may refuse: Landlock does not judge it.
const CHANGES: &[Shape] = &[
    shape("chmod", &[here(Act::Change, 0)]),
    shape("fchmodat", &[at(Act::Change, 0, 1)]),
    shape("fchmodat2", &[at(Act::Change, 0, 1)]),
    shape("chown", &[here(Act::Change, 0)]),
    shape("lchown", &[here(Act::Change, 0)]),
    shape("fchownat", &[at(Act::Change, 0, 1)]),
    shape("utime", &[here(Act::Change, 0)]),
    shape("utimes", &[here(Act::Change, 0)]),
    shape("futimesat", &[at(Act::Change, 0, 1)]),
    shape("utimensat", &[at(Act::Change, 0, 1)]),
    shape("setxattr", &[here(Act::Change, 0)]),
    shape("lsetxattr", &[here(Act::Change, 0)]),
    shape("setxattrat", &[at(Act::Change, 0, 1)]),
    shape("removexattr", &[here(Act::Change, 0)]),
    shape("lremovexattr", &[here(Act::Change, 0)]),
    shape("removexattrat", &[at(Act::Change, 0, 1)]),
];

fn shapes(tier: Tier) -> impl Iterator<Item = &'static Shape> {
    SHAPES.iter().chain(if tier == Tier::Full { CHANGES } else { &[] })
}

/// The calls that have to come by.
pub fn calls(tier: Tier) -> impl Iterator<Item = &'static str> {
    shapes(tier).map(|shape| shape.call)
}

/// One act, on its way to be judged.
pub struct Observed {
    act: Act,
    create: bool,
    path: Vec<u8>,
    program: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Message {
    Refused(Refused),
    /// At the end: so many acts.
    Judged(u64),
}

pub struct Observer {
    /// None: it is gone.
    line: Option<OwnedFd>,
    shapes: Vec<(u32, &'static Shape)>,
    /// What is granted beside the plan: the private temporary directory.
    granted: Option<Vec<u8>>,
    hasher: RandomState,
    seen: HashSet<u64>,
    memory: Memory,
    unsent: VecDeque<Vec<u8>>,
    unsent_bytes: usize,
    sent: u64,
    judged: u64,
    refused: Vec<Refused>,
    /// Calls that were not looked at, because there were too many others before them.
    passed_over: u64,
}

impl Observer {
    /// None: nobody wants to know. `plan_fd`: the plan as it was given to us.
    pub fn start(plan: &Plan, plan_fd: &OwnedFd) -> Result<Option<Observer>, ObserveError> {
        if !plan.observe {
            return Ok(None);
        }
        let line = start(plan_fd)?;
        Ok(Some(Observer::new(line, plan.tier)))
    }

    fn new(line: OwnedFd, tier: Tier) -> Observer {
        let number = |shape: &'static Shape| {
            Some((syscalls::find(shape.call)?.number(Arch::NATIVE)?, shape))
        };
        let mut shapes: Vec<_> = shapes(tier).filter_map(number).collect();
        shapes.sort_unstable_by_key(|(number, _)| *number);
        Observer {
            line: Some(line),
            shapes,
            granted: None,
            hasher: RandomState::new(),
            seen: HashSet::new(),
            memory: Memory::of(0),
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

    /// Readable when something was judged.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.as_ref().map(|line| line.as_fd())
    }

    pub fn deadline(&self) -> Option<Instant> {
        (self.line.is_some() && !self.unsent.is_empty()).then(|| Instant::now() + PAUSE)
    }

    /// What a call is about to do, as far as it is new. To be read before the call is answered.
    pub fn look(&mut self, listener: &Listener, call: &Call) -> [Option<Observed>; 2] {
        let Ok(index) =
            self.shapes.binary_search_by_key(&(call.number as u32), |(number, _)| *number)
        else {
            return [None, None];
        };
        if self.line.is_none() || self.seen.len() >= MOST_SEEN || self.unsent_bytes >= ROOM {
            self.passed_over += 1;
            return [None, None];
        }
        let shape = self.shapes[index].1;
        let mut names = shape.names.iter();
        let mut next = || names.next().and_then(|named| self.look_at(call, shape, named));
        let seen = [next(), next()];
        // Until now it may have been another's.
        if seen.iter().any(Option::is_some) && !listener.still_waits(call) {
            [None, None]
        } else {
            seen
        }
    }

    fn look_at(&mut self, call: &Call, shape: &Shape, named: &Named) -> Option<Observed> {
        self.memory.turn_to(call.thread);
        let mut path = Vec::with_capacity(256);
        let address = call.arguments[named.path];
        self.memory.string(address, LONGEST_PATH, Errno::NAMETOOLONG, &mut path).ok()?;
        if path.is_empty() {
            return None; // by a descriptor, which was judged when it was made
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

    /// Tells of it. The call has been answered by now.
    pub fn note(&mut self, seen: [Option<Observed>; 2]) {
        for observed in seen.into_iter().flatten() {
            let Observed { act, create, path, program } = &observed;
            if !self.seen.insert(self.hasher.hash_one((*act, *create, path, program))) {
                continue;
            }
            let message = observed.message();
            if message.len() > LONGEST {
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
        for _ in 0..MOST_HEARD {
            if !self.hear() {
                return;
            }
        }
    }

    /// False: there is nothing more to hear for now.
    fn hear(&mut self) -> bool {
        let Some(line) = &self.line else { return false };
        let mut buffer = vec![0; LONGEST];
        match rustix::net::recv(line, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Err(Errno::INTR) => true,
            Err(Errno::AGAIN) => false,
            Ok((_, length)) if (1..=LONGEST).contains(&length) => {
                match reader::from_slice(&buffer[..length]) {
                    Ok(Message::Refused(refused)) => {
                        self.refused.push(refused);
                        true
                    }
                    Ok(Message::Judged(count)) => {
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

    pub fn refused(&mut self) -> Vec<Refused> {
        std::mem::take(&mut self.refused)
    }

    /// Everything has ended: the rest is sent and judged. What was missed, if something was.
    pub fn finish(&mut self) -> Option<String> {
        let deadline = Instant::now() + LAST_WORDS;
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
                "--observe: {more} more calls were not checked; the limit is {MOST_SEEN} different \
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
        writer::string(&mut out, &self.path, Invalid::Surrogate);
        out.push_str(",\"program\":");
        writer::string(&mut out, &self.program, Invalid::Surrogate);
        let _ = write!(out, "}}}}");
        out
    }
}

/// What an opening is for, and whether it may make a file. None: it opens nothing.
fn act_of(flags: i32) -> Option<(Act, bool)> {
    if flags & libc::O_PATH != 0 {
        return None;
    }
    let act = match flags & libc::O_ACCMODE {
        libc::O_RDONLY if flags & libc::O_TRUNC == 0 => Act::Read,
        libc::O_RDONLY | libc::O_WRONLY => Act::Write,
        _ => Act::Update,
    };
    Some((act, flags & libc::O_CREAT != 0))
}

/// The path of the directory that a relative one begins in. None: it has none.
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

/// The Python half, at the other end of a socket. It is nobody's child: whatever counts or ends the
/// processes of the run leaves it alone. It ends when the socket does.
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
        .chain(python_helper::ALONE.map(OsStr::new))
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

/// The child's part. It stays in our directory, because the plan's paths were looked at from there.
fn alone(null: &OwnedFd, kept: [&OwnedFd; 2]) -> Result<(), Errno> {
    rustix::process::setsid()?;
    child_fds::keep_only(null, &kept)
}
