//! paddock-core carries out a plan: it closes a fence of kernel mechanisms around one command and stays, if it has to, until
//! the command and all it started are gone. It reads no policy, knows no profile and believes nothing it is given.
//!
//! A library because its root is one `cfg` away from being empty: where there is no such kernel, `main.rs` takes the other one.
#![cfg(supported)]

mod ancestry;
mod apart;
mod attempt;
mod attend;
mod beneath;
mod bpf;
mod caller;
mod calls;
mod canonical;
mod carry;
mod census;
mod cgroup;
mod channel;
mod chores;
mod clock;
mod command;
mod companion;
mod cover;
mod desk;
mod dirlinks;
mod enclosure;
mod environment;
mod event;
mod fence;
mod files;
mod gate;
mod gitdir;
mod glance;
mod ground;
mod guard;
mod holder;
mod host;
mod identity;
mod jail;
mod journal;
mod json;
mod keeper;
mod kernel_names;
mod kernel_text;
mod led;
mod limits;
mod links;
mod memory;
mod mounts;
mod names;
mod namespaces;
mod netlink;
mod network;
mod notify;
mod observe;
mod pin;
mod place;
mod plan;
mod preflight;
mod privileges;
mod probe;
mod processors;
mod python;
mod reach;
mod record;
mod redact;
mod refusal;
mod rename;
mod rights;
mod root;
mod run;
mod scan;
#[cfg(test)]
mod scene;
mod seccomp;
mod services;
mod session;
mod shell;
mod standard;
mod stderr;
mod supervise;
mod survey;
mod sys;
mod syscalls;
mod taken;
mod temp;
mod text;
mod unfinished;
mod unreached;
mod veil;
mod vigil;
mod volume;
mod walk;
mod watch;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::SocketType;

use crate::attempt::Operation;
use crate::companion::Companion;
use crate::holder::Holder;
use crate::network::{Given, Within};
use crate::plan::{Plan, PlanError};
use crate::refusal::Refusal;
use crate::run::EXIT_REFUSED;

/// Called by the C library's start code, through [`sys`].
#[cfg_attr(test, allow(dead_code, reason = "tests have their own start"))]
fn start(words: Vec<CString>) -> i32 {
    if let Some(called) = shell::called(&words) {
        return shell::start(called, words);
    }
    let mut words = words.into_iter();
    words.next();
    match dispatch(Arguments(words.collect::<Vec<_>>().into_iter().peekable())) {
        Ok(status) => status,
        Err(refusal) => {
            stderr::complain(&refusal.to_string(), refusal.hint());
            EXIT_REFUSED
        }
    }
}

fn dispatch(mut arguments: Arguments) -> Result<i32, Refusal> {
    standard::check_descriptors()?;
    let uid = rustix::process::getuid().as_raw();
    if uid != rustix::process::geteuid().as_raw() {
        return Err(PlanError::SetUid.into());
    }
    match arguments.next().as_deref() {
        Some(b"run") => {
            let plan_fd = arguments.plan_fd()?;
            let companion = Companion::new(arguments.socket(b"--companion")?);
            let holder = arguments.socket(b"--holder")?.map(Holder::new);
            let quiet = arguments.flag(b"--quiet");
            let argv = arguments.command()?;
            run::run(&plan_fd, uid, argv, quiet, companion, holder)
        }
        Some(b"unreached") => {
            let plan_fd = arguments.plan_fd()?;
            let argv = arguments.command()?;
            let (plan, _) = Plan::read(&plan_fd, uid)?;
            unreached::execute(&plan, argv)
        }
        Some(b"attend") => {
            let grace = arguments.grace()?;
            arguments.end()?;
            attend::attend(grace)
        }
        Some(b"relay") => {
            let plan_fd = arguments.plan_fd()?;
            let (line, given) = arguments.sockets()?;
            let (plan, _) = Plan::read(&plan_fd, uid)?;
            network::attend(&plan, line, given)
        }
        Some(b"record") => {
            let plan_fd = arguments.plan_fd()?;
            let line = arguments.line()?;
            arguments.end()?;
            let (plan, _) = Plan::read(&plan_fd, uid)?;
            record::attend(&plan, uid, &line)
        }
        Some(b"preflight") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = Plan::read(&plan_fd, uid)?;
            dirlinks::close(&mut plan)?;
            print(&preflight::report(&plan, uid)?)
        }
        Some(b"covers") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = Plan::read(&plan_fd, uid)?;
            dirlinks::close(&mut plan)?;
            print(&enclosure::report(&plan)?)
        }
        Some(b"closed") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = Plan::read(&plan_fd, uid)?;
            dirlinks::close(&mut plan)?;
            print(&dirlinks::report(&plan))
        }
        Some(b"links") => {
            arguments.end()?;
            print(&dirlinks::answer(&question()?)?)
        }
        Some(b"attempt") => {
            let plan_fd = arguments.plan_fd()?;
            let operation = arguments.operation()?;
            let path = arguments.path()?;
            arguments.end()?;
            let (mut plan, _) = Plan::read(&plan_fd, uid)?;
            dirlinks::close(&mut plan)?;
            print(&attempt::report(&plan, operation, &path)?)
        }
        Some(b"judge") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (plan, _) = Plan::read(&plan_fd, uid)?;
            print(&gate::judge::report(&plan, &question()?)?)
        }
        Some(b"judge-host") => {
            arguments.end()?;
            print(&network::judge::report(&question()?)?)
        }
        Some(b"regexes") => {
            arguments.end()?;
            print(&gate::judge::regexes(&question()?)?)
        }
        Some(b"exactly") => {
            arguments.end()?;
            print(&gate::judge::exactly(&question()?)?)
        }
        Some(b"probe") => {
            arguments.end()?;
            print(&probe::report(uid)?)
        }
        Some(b"namespaces") => {
            arguments.end()?;
            Ok(i32::from(namespaces::try_out().namespaces.is_err()))
        }
        Some(b"finish") => {
            let sessions = unfinished::sessions(arguments.path()?.as_bytes());
            arguments.end()?;
            let sessions = sessions.ok_or(Refusal::Usage("finish takes the directory of the sessions"))?;
            print(&unfinished::report(&sessions, uid)?)
        }
        Some(b"--version") => {
            let verbose = arguments.flag(b"--verbose");
            arguments.end()?;
            let (version, dir) = (env!("CARGO_PKG_VERSION"), shell::DEFAULT_DIR);
            print(&if verbose {
                format!("paddock-core {version}\nreal shells: {dir}")
            } else {
                format!("paddock-core {version}")
            })
        }
        Some(b"host") => {
            arguments.end()?;
            print(&host::report())
        }
        _ => Err(Refusal::Usage("no such command")),
    }
}

/// What is asked about, on stdin. An exec has at most a few megabytes, six letters of JSON for a byte at worst.
fn question() -> Result<Vec<u8>, Refusal> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let read = std::io::stdin().take(64 << 20).read_to_end(&mut text);
    read.map(|_| text).map_err(|_| Refusal::Usage("stdin can not be read"))
}

/// One line of JSON on stdout. A reader that went away is told by the exit status.
fn print(json: &str) -> Result<i32, Refusal> {
    use std::io::Write as _;
    Ok(match writeln!(std::io::stdout(), "{json}") {
        Ok(()) => 0,
        Err(_) => EXIT_REFUSED,
    })
}

/// The command line, taken from the front.
struct Arguments(std::iter::Peekable<std::vec::IntoIter<CString>>);

impl Arguments {
    fn next(&mut self) -> Option<Vec<u8>> {
        self.0.next().map(CString::into_bytes)
    }

    fn flag(&mut self, name: &[u8]) -> bool {
        self.0.next_if(|word| word.as_bytes() == name).is_some()
    }

    fn plan_fd(&mut self) -> Result<OwnedFd, Refusal> {
        if !self.flag(b"--plan-fd") {
            return Err(Refusal::Usage("--plan-fd N is missing"));
        }
        let number = self.number().ok_or(Refusal::Usage("--plan-fd takes a number"))?;
        sys::inherited_descriptor(number).ok_or(PlanError::NotOpen(number).into())
    }

    /// Of whoever answers questions, or holds the session.
    fn socket(&mut self, name: &[u8]) -> Result<Option<OwnedFd>, Refusal> {
        if !self.flag(name) {
            return Ok(None);
        }
        let socket = self.number().and_then(sys::inherited_descriptor);
        let whole = |socket: &OwnedFd| rustix::net::sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET);
        let usage = "--companion and --holder take a SOCK_SEQPACKET socket";
        socket.filter(whole).map(Some).ok_or(Refusal::Usage(usage))
    }

    /// Of an attendant, in seconds.
    fn grace(&mut self) -> Result<Option<Duration>, Refusal> {
        if !self.flag(b"--grace") {
            return Ok(None);
        }
        let seconds = self.next().and_then(|digits| kernel_text::number(&digits));
        seconds.map(|seconds| Some(Duration::from_secs(seconds))).ok_or(Refusal::Usage("--grace takes seconds"))
    }

    /// Of a relay: where it says what it decides, and what it is given.
    fn sockets(mut self) -> Result<(OwnedFd, Given), Refusal> {
        let line = self.line()?;
        let mut within = None;
        if self.flag(b"--within") {
            let mut space = || self.number().and_then(sys::inherited_descriptor);
            let (Some(user), Some(network)) = (space(), space()) else {
                return Err(Refusal::Usage("--within takes two namespaces"));
            };
            within = Some(Within { user, network });
        }
        let mut handover = None;
        if self.flag(b"--handover") {
            let socket = self.number().and_then(sys::inherited_descriptor);
            handover = Some(socket.ok_or(Refusal::Usage("--handover takes a socket"))?);
        }
        if !self.flag(b"--sockets") {
            return Err(Refusal::Usage("--sockets is missing"));
        }
        let mut sockets = Vec::new();
        while self.0.peek().is_some() {
            let socket = self.number().and_then(sys::inherited_descriptor);
            sockets.push(socket.ok_or(Refusal::Usage("--sockets takes sockets"))?);
        }
        Ok((line, Given { within, handover, sockets }))
    }

    fn line(&mut self) -> Result<OwnedFd, Refusal> {
        let line = if self.flag(b"--line") { self.number().and_then(sys::inherited_descriptor) } else { None };
        line.ok_or(Refusal::Usage("--line takes a socket"))
    }

    fn number(&mut self) -> Option<i32> {
        self.next().and_then(|word| String::from_utf8(word).ok())?.parse().ok()
    }

    fn operation(&mut self) -> Result<Operation, Refusal> {
        if !self.flag(b"--op") {
            return Err(Refusal::Usage("--op read|write|exec is missing"));
        }
        let operation = self.next().and_then(|word| Operation::named(&word));
        operation.ok_or(Refusal::Usage("--op takes read, write or exec"))
    }

    fn path(&mut self) -> Result<CString, Refusal> {
        self.0.next().ok_or(Refusal::Usage("a path is missing"))
    }

    fn command(self) -> Result<Vec<CString>, Refusal> {
        let mut words = self.0;
        if words.next_if(|word| word.as_bytes() == b"--").is_none() {
            return Err(Refusal::Usage("-- and a command are missing"));
        }
        let argv: Vec<CString> = words.collect();
        if argv.is_empty() { Err(Refusal::Usage("no command was given")) } else { Ok(argv) }
    }

    fn end(mut self) -> Result<(), Refusal> {
        match self.0.next() {
            None => Ok(()),
            Some(_) => Err(Refusal::Usage("too many arguments")),
        }
    }
}
