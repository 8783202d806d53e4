//! The companion: whoever is asked when a rule says `ask`. One socket, one datagram a message
//! (schema/companion.schema.json).
//!
//! A program that started us may be it (`--companion FD`). Else it is the Python half, which asks
//! on the terminal; it is started with the first question, because most runs have none. Where there
//! is no terminal, or `PADDOCK_APPROVER` says so, it is the person's approvals server. It answers,
//! and decides nothing else: whatever it says that is not an answer to an open question makes it
//! gone, and who is gone can not be asked. Nothing here waits for it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, OsStr};
use std::fmt::Write as _;
use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::termios::{OptionalActions, Termios};
use serde::Deserialize;

use super::approvals_server;
use crate::kernel::sys::{self, ExecStrings};
use crate::kernel::{child_fds, python_helper, socket_pair};
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, Invalid};

/// Of a message.
const LONGEST: usize = 64 * 1024;
/// Of all open questions together: a command may have as many processes that ask as it likes.
const ROOM: usize = 16 << 20;
/// Who has more to say gets another turn.
const MOST_HEARD: usize = 64;
const LONGEST_NAME: usize = 64;
/// It has a terminal to give back.
const TO_LEAVE: Duration = Duration::from_secs(2);
/// What the companion gets to know of our environment: how to speak.
const PASSED: [&[u8]; 5] = [b"TERM=", b"LANG=", b"LC_ALL=", b"LC_CTYPE=", b"LC_MESSAGES="];

pub enum Question<'a> {
    Exec(Exec<'a>),
    Host(Host<'a>),
}

/// May this run?
pub struct Exec<'a> {
    pub exe: &'a [u8],
    /// Every file that it brings to run, by its real path.
    pub chain: &'a [&'a [u8]],
    pub argv: &'a [&'a [u8]],
    pub cwd: &'a [u8],
    pub pid: u32,
    pub parent: Option<(&'a [u8], &'a [&'a [u8]])>,
    /// None: default_action asks.
    pub rule: Option<&'a [u8]>,
    pub source: &'a [u8],
    pub reason: Option<&'a [u8]>,
    pub timeout_s: u64,
}

/// May this be connected to?
pub struct Host<'a> {
    pub host: &'a str,
    pub port: u16,
    /// Whose connection it is, as far as that is known: its number and its program.
    pub process: Option<(u32, &'a str)>,
    pub source: &'a [u8],
    pub timeout_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Answer { id: u64, answer: Answer, by: String },
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Once,
    Session,
    Deny,
}

impl Answer {
    pub fn name(self) -> &'static str {
        match self {
            Answer::Once => "once",
            Answer::Session => "session",
            Answer::Deny => "deny",
        }
    }
}

pub struct ApproverProcess {
    state: State,
    open: Open,
}

/// Unanswered questions, and how long each is.
#[derive(Default)]
struct Open {
    lengths: BTreeMap<u64, usize>,
    /// When one was closed last.
    closed: Option<Instant>,
}

impl Open {
    /// False: it was not open.
    fn close(&mut self, id: u64) -> bool {
        let was_open = self.lengths.remove(&id).is_some();
        if was_open {
            self.closed = Some(Instant::now());
        }
        was_open
    }
}

enum State {
    NotStarted,
    Running(Link),
    Gone,
}

impl ApproverProcess {
    /// `given`: the socket of whoever started us. Without one, a companion is started when the
    /// first question comes.
    pub fn new(given: Option<OwnedFd>) -> ApproverProcess {
        let state = match given.map(|socket| Link::new(socket, None)) {
            None => State::NotStarted,
            Some(Ok(link)) => State::Running(link),
            Some(Err(_)) => State::Gone,
        };
        ApproverProcess { state, open: Open::default() }
    }

    /// Can be read when there is something to hear, or to send, or the companion is gone.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Running(link) => Some(link.ready.as_fd()),
            State::NotStarted | State::Gone => None,
        }
    }

    /// Queues what does not fit the socket now; never blocks. Err: nobody can be asked, and why.
    pub fn ask(&mut self, id: u64, question: &Question<'_>) -> Result<(), String> {
        let message = question.message(id);
        if message.len() > LONGEST {
            return Err("the question is too long to show".to_owned());
        }
        if self.open.lengths.values().sum::<usize>() + message.len() > ROOM {
            return Err("too many questions are open".to_owned());
        }
        if matches!(self.state, State::NotStarted) {
            self.state = State::Running(reach()?);
        }
        let State::Running(link) = &mut self.state else {
            return Err("the approver has ended".to_owned());
        };
        if self.open.lengths.is_empty() {
            link.remember_terminal();
        }
        self.open.lengths.insert(id, message.len());
        link.send(Some(id), message.into_bytes());
        Ok(())
    }

    /// The answer is not needed any more. Nothing is heard of it from here on.
    pub fn withdraw(&mut self, id: u64) {
        if !self.open.close(id) {
            return;
        }
        if let State::Running(link) = &mut self.state {
            link.withdraw(id);
        }
    }

    /// Never blocks. None: nothing more for now.
    pub fn hear(&mut self) -> Option<Heard> {
        let State::Running(link) = &mut self.state else { return None };
        link.flush();
        for _ in 0..MOST_HEARD {
            match link.receive() {
                // Withdrawn while it was answered.
                Said::Answer(message) if !self.open.close(message.answer) => {}
                Said::Answer(Message { answer, verdict, by }) => {
                    return Some(Heard::Answer { id: answer, answer: verdict, by });
                }
                Said::Nothing => return None,
                Said::Nonsense => {
                    link.end(Duration::ZERO);
                    self.state = State::Gone;
                    self.open.lengths.clear();
                    return Some(Heard::Gone);
                }
            }
        }
        None
    }

    /// It may have taken the terminal from the command, which stops when it reads: that is no stop
    /// of the job. We may hear of it when the terminal is back already.
    pub fn has_terminal(&self) -> bool {
        let State::Running(Link { started: Some(started), .. }) = &self.state else { return false };
        let just_now = self.open.closed.is_some_and(|at| at.elapsed() < TO_LEAVE);
        !self.open.lengths.is_empty() || started.has_terminal() || just_now
    }
}

impl Question<'_> {
    fn message(&self, id: u64) -> String {
        match self {
            Question::Exec(exec) => exec.message(id),
            Question::Host(host) => host.message(id),
        }
    }
}

impl Exec<'_> {
    fn message(&self, id: u64) -> String {
        let mut out = format!("{{\"ask\":{id},\"exe\":");
        text(&mut out, self.exe);
        out.push_str(",\"chain\":");
        texts(&mut out, self.chain);
        out.push_str(",\"argv\":");
        texts(&mut out, self.argv);
        out.push_str(",\"cwd\":");
        text(&mut out, self.cwd);
        let _ = write!(out, ",\"pid\":{},\"parent\":", self.pid);
        match self.parent {
            Some((exe, argv)) => {
                out.push_str("{\"exe\":");
                text(&mut out, exe);
                out.push_str(",\"argv\":");
                texts(&mut out, argv);
                out.push('}');
            }
            None => out.push_str("null"),
        }
        out.push_str(",\"rule\":");
        text_or_null(&mut out, self.rule);
        out.push_str(",\"source\":");
        text(&mut out, self.source);
        out.push_str(",\"reason\":");
        text_or_null(&mut out, self.reason);
        let _ = write!(out, ",\"timeout_s\":{}}}", self.timeout_s);
        out
    }
}

impl Host<'_> {
    fn message(&self, id: u64) -> String {
        let mut out = format!("{{\"ask\":{id},\"host\":");
        text(&mut out, self.host.as_bytes());
        let _ = write!(out, ",\"port\":{},\"process\":", self.port);
        match self.process {
            Some((pid, exe)) => {
                let _ = write!(out, "{{\"pid\":{pid},\"exe\":");
                text(&mut out, exe.as_bytes());
                out.push('}');
            }
            None => out.push_str("null"),
        }
        out.push_str(",\"source\":");
        text(&mut out, self.source);
        let _ = write!(out, ",\"timeout_s\":{}}}", self.timeout_s);
        out
    }
}

fn text(out: &mut String, bytes: &[u8]) {
    writer::string(out, bytes, Invalid::Surrogate);
}

fn texts(out: &mut String, items: &[&[u8]]) {
    writer::strings(out, items.iter().copied(), Invalid::Surrogate);
}

fn text_or_null(out: &mut String, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => text(out, bytes),
        None => out.push_str("null"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    answer: u64,
    verdict: Answer,
    by: String,
}

impl Message {
    fn read(bytes: &[u8]) -> Option<Message> {
        let message: Message = reader::from_slice(bytes).ok()?;
        (1..=LONGEST_NAME).contains(&message.by.len()).then_some(message)
    }
}

enum Said {
    Answer(Message),
    Nothing,
    /// Or it went.
    Nonsense,
}

/// The socket, and what waits to go into it.
struct Link {
    socket: OwnedFd,
    /// An epoll instance that holds the socket alone: ready for reading, and for writing while
    /// something waits.
    ready: OwnedFd,
    unsent: VecDeque<(Option<u64>, Vec<u8>)>,
    buffer: Vec<u8>,
    started: Option<Started>,
}

/// A companion of our own.
struct Started {
    process: OwnedFd,
    group: Pid,
    terminal: OwnedFd,
    /// Who had the terminal before it was asked, and how it was set: for the case that it is
    /// killed.
    before: Option<(Pid, Termios)>,
}

impl Link {
    fn new(socket: OwnedFd, started: Option<Started>) -> Result<Link, Errno> {
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &socket, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Link { socket, ready, unsent: VecDeque::new(), buffer: vec![0; LONGEST + 1], started })
    }

    fn send(&mut self, id: Option<u64>, message: Vec<u8>) {
        self.unsent.push_back((id, message));
        self.flush();
    }

    fn withdraw(&mut self, id: u64) {
        let unsent = self.unsent.len();
        self.unsent.retain(|(question, _)| *question != Some(id));
        // Who has not been asked needs not be told.
        if self.unsent.len() == unsent {
            self.send(None, format!("{{\"withdrawn\":{id}}}").into_bytes());
        }
    }

    fn flush(&mut self) {
        while let Some((_, message)) = self.unsent.front() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let parts = [IoSlice::new(message)];
            match rustix::net::sendmsg(
                &self.socket,
                &parts,
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(_) => drop(self.unsent.pop_front()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    // Then there is nothing to hear either: the next look finds the end.
                    let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
                    self.unsent.clear();
                }
            }
        }
        let wanted =
            if self.unsent.is_empty() { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
        let _ = epoll::modify(&self.ready, &self.socket, EventData::new_u64(0), wanted);
    }

    fn receive(&mut self) -> Said {
        loop {
            match rustix::net::recv(
                &self.socket,
                &mut self.buffer,
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Said::Nothing,
                // The whole length, also of one that does not fit.
                Ok((_, length)) if (1..=LONGEST).contains(&length) => {
                    return Message::read(&self.buffer[..length])
                        .map_or(Said::Nonsense, Said::Answer);
                }
                Ok(_) | Err(_) => return Said::Nonsense,
            }
        }
    }

    /// It sees the end of the socket, gives the terminal back and ends; or is made to.
    fn end(&mut self, grace: Duration) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let Some(started) = self.started.take() else { return };
        let deadline = Instant::now() + grace;
        let left = || Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let mut waiting = [PollFd::from_borrowed_fd(started.process.as_fd(), PollFlags::IN)];
        while rustix::event::poll(&mut waiting, left().as_ref()) == Err(Errno::INTR) {}
        let _ = rustix::process::pidfd_send_signal(&started.process, Signal::KILL);
        // In the landlock tier everybody is buried by whoever comes first.
        let _ =
            rustix::process::waitid(WaitId::PidFd(started.process.as_fd()), WaitIdOptions::EXITED);
        started.give_terminal_back();
    }

    fn remember_terminal(&mut self) {
        let Some(started) = &mut self.started else { return };
        let holder = rustix::termios::tcgetpgrp(&started.terminal)
            .ok()
            .filter(|holder| *holder != started.group);
        let settings = rustix::termios::tcgetattr(&started.terminal).ok();
        // Else it still has the terminal, and what was remembered counts.
        started.before = holder.zip(settings).or(started.before.take());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end(TO_LEAVE);
    }
}

impl Started {
    fn has_terminal(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.terminal) == Ok(self.group)
    }

    fn give_terminal_back(&self) {
        let Some((holder, settings)) = self.before.as_ref().filter(|_| self.has_terminal()) else {
            return;
        };
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, settings);
        let _ = rustix::termios::tcsetpgrp(&self.terminal, *holder);
        // Whoever read from it meanwhile was stopped.
        let _ = rustix::process::kill_process_group(*holder, Signal::CONT);
    }
}

/// Whoever is to be asked. The person may say who: the environment is the caller's, and no command
/// can change it.
fn reach() -> Result<Link, String> {
    let environment = sys::inherited_environment();
    let said =
        environment.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PADDOCK_APPROVER="));
    match said {
        None | Some(b"") => terminal().map_or_else(|none| served().map_err(|_| none), start),
        Some(b"terminal") => start(terminal()?),
        Some(b"web") => {
            served().map_err(|errno| format!("cannot connect to the approvals server: {errno}"))
        }
        Some(_) => Err("PADDOCK_APPROVER is neither terminal nor web".to_owned()),
    }
}

fn served() -> Result<Link, Errno> {
    let (socket, key) = approvals_server::connect()?;
    let mut link = Link::new(socket, None)?;
    link.send(None, key);
    Ok(link)
}

fn terminal() -> Result<OwnedFd, String> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(c"/dev/tty", flags, Mode::empty())
        .map_err(|_| "no terminal is available for the question".to_owned())
}

/// The Python half with the terminal and one end of a socket, in a process group of its own, and
/// with nothing else of ours.
fn start(terminal: OwnedFd) -> Result<Link, String> {
    let own = std::fs::read_link("/proc/self/exe")
        .map_err(|error| format!("cannot find the path of paddock-core: {error}"))?;
    let script = own.with_file_name(python_helper::SCRIPT);
    let unstarted =
        |why: &dyn std::fmt::Display| format!("cannot start {}: {why}", script.display());
    let interpreter = python_helper::interpreter_of(&script).ok_or_else(|| {
        unstarted(
            &"its first line names no \
            Python",
        )
    })?;
    let (ours, theirs) = socket_pair::pair().map_err(|errno| unstarted(&errno))?;
    let number = theirs.as_raw_fd().to_string();
    let words =
        [interpreter.as_os_str()].into_iter().chain(python_helper::ALONE.map(OsStr::new)).chain([
            script.as_os_str(),
            OsStr::new("companion"),
            OsStr::new("--socket"),
            OsStr::new(&number),
        ]);
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let argv = ExecStrings::new(words.map_err(|error| unstarted(&error))?);
    let passed = |entry: &CString| PASSED.iter().any(|name| entry.as_bytes().starts_with(name));
    let environment =
        ExecStrings::new(sys::inherited_environment().into_iter().filter(passed).collect());
    let mut failure = None;
    let child = sys::spawn_sharing_memory(|| {
        failure = Some(match alone(&terminal, &theirs) {
            Ok(()) => sys::execve(&argv.strings()[0], &argv, &environment),
            Err(errno) => errno,
        });
        125
    })
    .map_err(|errno| unstarted(&errno))?;
    if let Some(errno) = failure {
        let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
        return Err(unstarted(&errno));
    }
    let process = rustix::process::pidfd_open(child, PidfdFlags::empty())
        .map_err(|errno| unstarted(&errno))?;
    let started = Started { process, group: child, terminal, before: None };
    Link::new(ours, Some(started)).map_err(|errno| unstarted(&errno))
}

/// The child's part. A group of its own: what is typed for the command is not for it, and the other
/// way round.
fn alone(terminal: &OwnedFd, socket: &OwnedFd) -> Result<(), Errno> {
    rustix::process::setpgid(None, None)?;
    // The command's directory is no place to stand in.
    rustix::process::chdir(Path::new("/"))?;
    child_fds::keep_only(terminal, &[socket])
}
