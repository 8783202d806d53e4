//! The approver: answers questions when a rule says `ask`. One socket, one datagram per message
//! (schema/companion.schema.json).
//!
//! The caller can pass a socket to an approver (`--companion FD`). Otherwise the core starts the
//! Python approver, which asks on the terminal. It starts with the first question, because most
//! runs have none. Without a terminal, or if `PADDOCK_APPROVER` says so, the user's approvals
//! server is used. The approver answers questions and decides nothing else. Any message that is not
//! an answer to an open question ends it, and then nothing can be asked. Nothing here waits for the
//! approver.

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
use crate::plan::wire::writer::{self, NonUtf8};

/// The longest message.
const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// Bytes of all open questions together: a command can have any number of processes that cause
/// questions.
const MAX_OPEN_BYTES: usize = 16 << 20;
/// More answers are read in the next turn.
const MAX_ANSWERS_PER_TURN: usize = 64;
const MAX_APPROVER_NAME_BYTES: usize = 64;
/// Time for the approver to restore the terminal.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Variables that are passed to the approver: terminal type and language.
const PASSED_VARIABLES: [&[u8]; 5] =
    [b"TERM=", b"LANG=", b"LC_ALL=", b"LC_CTYPE=", b"LC_MESSAGES="];

pub enum Question<'a> {
    Exec(ExecPrompt<'a>),
    Host(HostPrompt<'a>),
}

/// The question whether a program may start.
pub struct ExecPrompt<'a> {
    pub exe: &'a [u8],
    /// Every file that it executes, by its resolved path.
    pub chain: &'a [&'a [u8]],
    pub argv: &'a [&'a [u8]],
    pub cwd: &'a [u8],
    pub pid: u32,
    pub parent: Option<(&'a [u8], &'a [&'a [u8]])>,
    /// None: the default action asks.
    pub rule: Option<&'a [u8]>,
    pub source: &'a [u8],
    pub reason: Option<&'a [u8]>,
    pub timeout_s: u64,
}

/// The question whether a host may be connected to.
pub struct HostPrompt<'a> {
    pub host: &'a str,
    pub port: u16,
    /// The process that connects, if known: pid and program.
    pub process: Option<(u32, &'a str)>,
    pub source: &'a [u8],
    pub timeout_s: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApproverEvent {
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
    state: ApproverState,
    open: UnansweredQuestions,
}

/// Unanswered questions, and the length of each.
#[derive(Default)]
struct UnansweredQuestions {
    lengths: BTreeMap<u64, usize>,
    /// When a question was closed last.
    closed: Option<Instant>,
}

impl UnansweredQuestions {
    /// Returns false if the question was not open.
    fn close(&mut self, id: u64) -> bool {
        let was_open = self.lengths.remove(&id).is_some();
        if was_open {
            self.closed = Some(Instant::now());
        }
        was_open
    }
}

enum ApproverState {
    NotStarted,
    Running(ApproverSocket),
    Gone,
}

impl ApproverProcess {
    /// `socket`: passed by the caller. Without one, an approver is started at the first question.
    pub fn new(socket: Option<OwnedFd>) -> ApproverProcess {
        let state = match socket.map(|socket| ApproverSocket::new(socket, None)) {
            None => ApproverState::NotStarted,
            Some(Ok(link)) => ApproverState::Running(link),
            Some(Err(_)) => ApproverState::Gone,
        };
        ApproverProcess { state, open: UnansweredQuestions::default() }
    }

    /// Readable when an answer arrived, unsent messages can be sent, or the approver is gone.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            ApproverState::Running(link) => Some(link.ready.as_fd()),
            ApproverState::NotStarted | ApproverState::Gone => None,
        }
    }

    /// Sends a question; queues what does not fit into the socket, and never blocks. Err: the
    /// reason why nothing can be asked.
    pub fn ask(&mut self, id: u64, question: &Question<'_>) -> Result<(), String> {
        let message = question.message(id);
        if message.len() > MAX_MESSAGE_BYTES {
            return Err("the question is too long to show".to_owned());
        }
        if self.open.lengths.values().sum::<usize>() + message.len() > MAX_OPEN_BYTES {
            return Err("too many questions are open".to_owned());
        }
        if matches!(self.state, ApproverState::NotStarted) {
            self.state = ApproverState::Running(connect_approver()?);
        }
        let ApproverState::Running(link) = &mut self.state else {
            return Err("the approver has ended".to_owned());
        };
        if self.open.lengths.is_empty() {
            link.remember_terminal();
        }
        self.open.lengths.insert(id, message.len());
        link.send(Some(id), message.into_bytes());
        Ok(())
    }

    /// Withdraws a question. Its answer is ignored from here on.
    pub fn withdraw(&mut self, id: u64) {
        if !self.open.close(id) {
            return;
        }
        if let ApproverState::Running(link) = &mut self.state {
            link.withdraw(id);
        }
    }

    /// Never blocks. None: nothing more to read now.
    pub fn next_event(&mut self) -> Option<ApproverEvent> {
        let ApproverState::Running(link) = &mut self.state else { return None };
        link.flush();
        for _ in 0..MAX_ANSWERS_PER_TURN {
            match link.receive() {
                // The question was withdrawn meanwhile.
                ApproverMessage::Answer(message) if !self.open.close(message.answer) => {}
                ApproverMessage::Answer(AnswerMessage { answer, verdict, by }) => {
                    return Some(ApproverEvent::Answer { id: answer, answer: verdict, by });
                }
                ApproverMessage::Nothing => return None,
                ApproverMessage::Invalid => {
                    link.end(Duration::ZERO);
                    self.state = ApproverState::Gone;
                    self.open.lengths.clear();
                    return Some(ApproverEvent::Gone);
                }
            }
        }
        None
    }

    /// True if the approver has the terminal, or may take it any time.
    pub fn has_terminal(&self) -> bool {
        self.started()
            .is_some_and(|started| !self.open.lengths.is_empty() || started.has_terminal())
    }

    /// True if a stop of the command is not a stop of the job: a command that reads from the
    /// terminal while the approver has it is stopped. The stop can be reported after the terminal
    /// was given back.
    pub fn causes_stops(&self) -> bool {
        let just_now = self.open.closed.is_some_and(|at| at.elapsed() < EXIT_TIMEOUT);
        self.has_terminal() || just_now && self.started().is_some()
    }

    fn started(&self) -> Option<&StartedApprover> {
        match &self.state {
            ApproverState::Running(link) => link.started.as_ref(),
            ApproverState::NotStarted | ApproverState::Gone => None,
        }
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

impl ExecPrompt<'_> {
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

impl HostPrompt<'_> {
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
    writer::string(out, bytes, NonUtf8::Surrogate);
}

fn texts(out: &mut String, items: &[&[u8]]) {
    writer::strings(out, items.iter().copied(), NonUtf8::Surrogate);
}

fn text_or_null(out: &mut String, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => text(out, bytes),
        None => out.push_str("null"),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerMessage {
    answer: u64,
    verdict: Answer,
    by: String,
}

impl AnswerMessage {
    fn read(bytes: &[u8]) -> Option<AnswerMessage> {
        let message: AnswerMessage = reader::from_slice(bytes).ok()?;
        (1..=MAX_APPROVER_NAME_BYTES).contains(&message.by.len()).then_some(message)
    }
}

enum ApproverMessage {
    Answer(AnswerMessage),
    Nothing,
    /// An invalid message, or the socket was closed.
    Invalid,
}

/// The socket and its unsent messages.
struct ApproverSocket {
    socket: OwnedFd,
    /// An epoll instance with only this socket: ready for reading, and for writing while messages
    /// are unsent.
    ready: OwnedFd,
    unsent: VecDeque<(Option<u64>, Vec<u8>)>,
    buffer: Vec<u8>,
    started: Option<StartedApprover>,
}

/// An approver that the core started.
struct StartedApprover {
    process: OwnedFd,
    group: Pid,
    terminal: OwnedFd,
    /// The foreground process group and the settings of the terminal before the question, in case
    /// the approver is killed.
    before: Option<(Pid, Termios)>,
}

impl ApproverSocket {
    fn new(socket: OwnedFd, started: Option<StartedApprover>) -> Result<ApproverSocket, Errno> {
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        let ready = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &socket, EventData::new_u64(0), EventFlags::IN)?;
        Ok(ApproverSocket {
            socket,
            ready,
            unsent: VecDeque::new(),
            buffer: vec![0; MAX_MESSAGE_BYTES + 1],
            started,
        })
    }

    fn send(&mut self, id: Option<u64>, message: Vec<u8>) {
        self.unsent.push_back((id, message));
        self.flush();
    }

    fn withdraw(&mut self, id: u64) {
        let unsent = self.unsent.len();
        self.unsent.retain(|(question, _)| *question != Some(id));
        // An unsent question needs no withdrawal.
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
                    // The next read finds the end of the socket.
                    let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
                    self.unsent.clear();
                }
            }
        }
        let wanted =
            if self.unsent.is_empty() { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
        let _ = epoll::modify(&self.ready, &self.socket, EventData::new_u64(0), wanted);
    }

    fn receive(&mut self) -> ApproverMessage {
        loop {
            match rustix::net::recv(
                &self.socket,
                &mut self.buffer,
                RecvFlags::DONTWAIT | RecvFlags::TRUNC,
            ) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return ApproverMessage::Nothing,
                // The full length, even if the message does not fit.
                Ok((_, length)) if (1..=MAX_MESSAGE_BYTES).contains(&length) => {
                    return AnswerMessage::read(&self.buffer[..length])
                        .map_or(ApproverMessage::Invalid, ApproverMessage::Answer);
                }
                Ok(_) | Err(_) => return ApproverMessage::Invalid,
            }
        }
    }

    /// Closes the socket. The approver then restores the terminal and ends, or is killed after
    /// `grace`.
    fn end(&mut self, grace: Duration) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        let Some(started) = self.started.take() else { return };
        let deadline = Instant::now() + grace;
        let left = || Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let mut waiting = [PollFd::from_borrowed_fd(started.process.as_fd(), PollFlags::IN)];
        while rustix::event::poll(&mut waiting, left().as_ref()) == Err(Errno::INTR) {}
        let _ = rustix::process::pidfd_send_signal(&started.process, Signal::KILL);
        // In the landlock tier another wait can reap it first.
        let _ =
            rustix::process::waitid(WaitId::PidFd(started.process.as_fd()), WaitIdOptions::EXITED);
        started.give_terminal_back();
    }

    fn remember_terminal(&mut self) {
        let Some(started) = &mut self.started else { return };
        let foreground = rustix::termios::tcgetpgrp(&started.terminal)
            .ok()
            .filter(|foreground| *foreground != started.group);
        let settings = rustix::termios::tcgetattr(&started.terminal).ok();
        // Otherwise it still has the terminal, and the stored values stay.
        started.before = foreground.zip(settings).or(started.before.take());
    }
}

impl Drop for ApproverSocket {
    fn drop(&mut self) {
        self.end(EXIT_TIMEOUT);
    }
}

impl StartedApprover {
    fn has_terminal(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.terminal) == Ok(self.group)
    }

    fn give_terminal_back(&self) {
        let Some((foreground, settings)) = self.before.as_ref().filter(|_| self.has_terminal())
        else {
            return;
        };
        let _ = rustix::termios::tcsetattr(&self.terminal, OptionalActions::Now, settings);
        let _ = rustix::termios::tcsetpgrp(&self.terminal, *foreground);
        // Processes that read from the terminal meanwhile were stopped.
        let _ = rustix::process::kill_process_group(*foreground, Signal::CONT);
    }
}

/// Connects to the approver. `PADDOCK_APPROVER` chooses it: the environment is the caller's, and no
/// command can change it.
fn connect_approver() -> Result<ApproverSocket, String> {
    let environment = sys::inherited_environment();
    let chosen =
        environment.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PADDOCK_APPROVER="));
    match chosen {
        None | Some(b"") => {
            terminal().map_or_else(|none| connect_server().map_err(|_| none), start)
        }
        Some(b"terminal") => start(terminal()?),
        Some(b"web") => connect_server()
            .map_err(|errno| format!("cannot connect to the approvals server: {errno}")),
        Some(_) => Err("PADDOCK_APPROVER is neither terminal nor web".to_owned()),
    }
}

fn connect_server() -> Result<ApproverSocket, Errno> {
    let (socket, key) = approvals_server::connect()?;
    let mut link = ApproverSocket::new(socket, None)?;
    link.send(None, key);
    Ok(link)
}

fn terminal() -> Result<OwnedFd, String> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(c"/dev/tty", flags, Mode::empty())
        .map_err(|_| "no terminal is available for the question".to_owned())
}

/// Starts the Python approver with the terminal and one end of a socket, in its own process group.
/// It gets no other descriptor.
fn start(terminal: OwnedFd) -> Result<ApproverSocket, String> {
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
    let words = [interpreter.as_os_str()]
        .into_iter()
        .chain(python_helper::ISOLATION_OPTIONS.map(OsStr::new))
        .chain([
            script.as_os_str(),
            OsStr::new("companion"),
            OsStr::new("--socket"),
            OsStr::new(&number),
        ]);
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let argv = ExecStrings::new(words.map_err(|error| unstarted(&error))?);
    let passed =
        |entry: &CString| PASSED_VARIABLES.iter().any(|name| entry.as_bytes().starts_with(name));
    let environment =
        ExecStrings::new(sys::inherited_environment().into_iter().filter(passed).collect());
    let mut failure = None;
    let child = sys::spawn_sharing_memory(|| {
        failure = Some(match detach_child(&terminal, &theirs) {
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
    let started = StartedApprover { process, group: child, terminal, before: None };
    ApproverSocket::new(ours, Some(started)).map_err(|errno| unstarted(&errno))
}

/// Runs in the child. Its own process group: input for the command does not reach it, and the
/// reverse.
fn detach_child(terminal: &OwnedFd, socket: &OwnedFd) -> Result<(), Errno> {
    rustix::process::setpgid(None, None)?;
    // The command can change its own working directory.
    rustix::process::chdir(Path::new("/"))?;
    child_fds::keep_only(terminal, &[socket])
}
