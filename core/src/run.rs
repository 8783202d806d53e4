//! `run`: one story from the plan to the command and, when something has to outlive the start, to its end.

use std::ffi::CString;
use std::fmt::Write as _;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::ancestry;
use crate::command::Command;
use crate::environment;
use crate::event::{Enforcement, Event, Start};
use crate::fence::{self, Fence};
use crate::files;
use crate::journal::{self, Journal};
use crate::kernel_names;
use crate::plan::{Level, Plan};
use crate::preflight::Preflight;
use crate::refusal::Refusal;
use crate::stderr;
use crate::supervise::{self, Started};
use crate::sys;
use crate::temp::Temp;

pub const EXIT_NOT_EXECUTABLE: i32 = 126;
pub const EXIT_NOT_FOUND: i32 = 127;

pub fn run(plan_fd: &OwnedFd, uid: u32, argv: Vec<CString>, quiet: bool) -> Result<i32, Refusal> {
    sys::ignore_file_size_signal();
    let (plan, plan_bytes) = Plan::read(plan_fd, uid)?;
    let session = random_name()?;

    // The journal comes first: from here on a refusal leaves a trace, and without a journal that was asked for nothing runs.
    files::check_journal_way(&plan)?;
    let journal = match &plan.journal {
        Some(requested) => Some(Journal::open(requested, uid, session.clone())?),
        None => None,
    };
    let started_at = Instant::now();
    let outcome = fenced(plan, &plan_bytes, argv, quiet, journal.as_ref(), &session);
    let Some(journal) = &journal else { return Ok(outcome?.exit_code) };
    match &outcome {
        Ok(outcome) => {
            let last_words = outcome.events(started_at.elapsed().as_millis());
            for event in last_words {
                if let Err(error) = journal.append(&event) {
                    stderr::complain(&error.to_string(), error.hint());
                }
            }
        }
        Err(refusal) => {
            let error = refusal.to_string();
            let _ = journal.append(&Event::Refused { error: &error });
        }
    }
    Ok(outcome?.exit_code)
}

/// What the journal says at the end.
struct Outcome {
    exit_code: i32,
    signal: Option<i32>,
    not_executed: Option<(Vec<u8>, Errno)>,
}

impl Outcome {
    fn events(&self, duration_ms: u128) -> Vec<Event<'_>> {
        let mut events = Vec::with_capacity(2);
        match &self.not_executed {
            Some((exe, errno)) if *errno != Errno::NOENT => events.push(Event::ExecDenied { exe, errno: *errno }),
            _ => {}
        }
        if self.signal == Some(libc::SIGSYS) {
            events.push(Event::SyscallKilled);
        }
        events.push(Event::End { exit_code: self.exit_code, signal: self.signal, duration_ms });
        events
    }
}

fn fenced(
    plan: Plan,
    plan_bytes: &[u8],
    argv: Vec<CString>,
    quiet: bool,
    journal: Option<&Journal>,
    session: &str,
) -> Result<Outcome, Refusal> {
    // Everything that can be wrong with paths, rules and filter is found before anything is made.
    let preflight = Preflight::prepare(&plan, journal)?;
    announce(&plan, &preflight, quiet);

    if journal.is_none() && plan.temp.is_none() {
        // Nothing has to be done afterwards, so nobody has to wait: the command takes this process over.
        let (fence, command) = ready(&plan, preflight, argv, None);
        fence::become_command(None, None)?;
        fence.enter()?;
        let errno = command.exec();
        return Ok(not_executed(&command, errno));
    }

    // From here on there is something to clean up: no signal may end us before.
    let mask = sys::hold_signals();
    let temp = match &plan.temp {
        Some(requested) => Some(Temp::make(&requested.parent, plan.user.uid, session)?),
        None => None,
    };
    let started = (|| {
        let (requested, actual) = (preflight.requested(&plan), preflight.actual(&plan));
        let mut preflight = preflight;
        if let (Some(temp), Some(files), Some(requested)) = (&temp, &mut preflight.files, &plan.temp) {
            files.grant_temp(temp.dir(), plan.rights(&requested.access))?;
        }
        if let Some(journal) = journal {
            record_start(journal, &plan, plan_bytes, &argv, requested, actual, &preflight)?;
        }
        let (fence, command) = ready(&plan, preflight, argv, temp.as_ref());
        Ok(match supervise::start(&fence, &command, &mask)? {
            Started::Running(pid) => Ok(pid),
            Started::NotExecuted(errno) => Err(not_executed(&command, errno)),
        })
    })();
    // While the command runs, only what its end needs stays in memory.
    drop(plan);
    let outcome = match started {
        Ok(Ok(pid)) => supervise::wait(pid).map_err(Refusal::from).map(|end| Outcome {
            exit_code: end.exit_code(),
            signal: end.signal(),
            not_executed: None,
        }),
        Ok(Err(not_executed)) => Ok(not_executed),
        Err(refusal) => Err(refusal),
    };
    if let Some(Err(error)) = temp.map(Temp::remove) {
        stderr::complain(&error.to_string(), "remove it by hand when nothing uses it any more");
    }
    outcome
}

/// Fence and command, complete: after this only system calls are left.
fn ready(plan: &Plan, preflight: Preflight<'_>, argv: Vec<CString>, temp: Option<&Temp>) -> (Fence, Command) {
    let inherited = sys::inherited_environment();
    let environment = match &plan.environment {
        Some(requested) => environment::build(requested, inherited, temp.map(|temp| temp.path().to_bytes())),
        None => inherited,
    };
    let ruleset = preflight.files.map(|files| files.into_ruleset());
    (Fence::new(plan, ruleset, preflight.filter), Command::new(argv, environment))
}

fn record_start(
    journal: &Journal,
    plan: &Plan,
    plan_bytes: &[u8],
    argv: &[CString],
    requested: Enforcement,
    actual: Enforcement,
    preflight: &Preflight<'_>,
) -> Result<(), Refusal> {
    let tty = ancestry::terminal();
    journal.append(&Event::Start(Start {
        user: plan.user.name.as_bytes(),
        uid: plan.user.uid,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        ppid_chain: &ancestry::parents(),
        cwd: plan.workdir.as_bytes(),
        tty: tty.as_ref().map(|tty| tty.as_bytes()),
        command: argv,
        profile: plan.profiles.first().map_or(b"", |profile| profile.as_bytes()),
        plan: &journal::hash(plan_bytes),
        requested,
        actual,
    }))?;
    // What the user accepted as weaker is never silent.
    let noticed = plan.notices.iter().filter(|notice| notice.level == Level::Unenforced);
    let noticed = noticed.map(|notice| notice.text.as_bytes());
    for text in noticed.chain(preflight.unenforced().map(|text| text.as_bytes())) {
        journal.append(&Event::Partial { text })?;
    }
    Ok(())
}

fn announce(plan: &Plan, preflight: &Preflight<'_>, quiet: bool) {
    let chatty = !quiet
        && plan.notices.iter().any(|notice| notice.level == Level::Info)
        && rustix::termios::isatty(rustix::stdio::stderr());
    for notice in &plan.notices {
        match notice.level {
            Level::Warning | Level::Unenforced => stderr::say("paddock", &format!("warning: {}", notice.text)),
            Level::Info if chatty => stderr::say("paddock", &notice.text.to_string()),
            Level::Info => {}
        }
    }
    for warning in preflight.warnings() {
        stderr::say("paddock", &format!("warning: {warning}"));
    }
}

fn not_executed(command: &Command, errno: Errno) -> Outcome {
    let name = String::from_utf8_lossy(command.name());
    let (exit_code, hint) = match errno {
        Errno::NOENT if command.is_searched() => {
            (EXIT_NOT_FOUND, "no directory of the command's PATH has it; check the name and the PATH that passes")
        }
        Errno::NOENT => (EXIT_NOT_FOUND, "check the path; a script also needs the interpreter of its first line"),
        Errno::ACCESS => (
            EXIT_NOT_EXECUTABLE,
            "it is not executable, or the policy grants no execution there: `paddock why --op exec --path FILE`",
        ),
        Errno::TOOBIG => (EXIT_NOT_EXECUTABLE, "arguments and environment are longer than the kernel takes"),
        _ => (EXIT_NOT_EXECUTABLE, "the kernel can not execute this file"),
    };
    stderr::complain(&format!("cannot run {name}: {}", kernel_names::errno_text(errno)), hint);
    Outcome { exit_code, signal: None, not_executed: Some((command.name().to_vec(), errno)) }
}

/// Whoever starts us without a standard descriptor gets /dev/null there: otherwise the next file opened would be it. A directory
/// is refused: openat(2) relative to one needs no path from the root, and Landlock judges only what is opened later.
pub fn check_standard_descriptors() -> Result<(), Refusal> {
    let standard =
        [(rustix::stdio::stdin(), "stdin"), (rustix::stdio::stdout(), "stdout"), (rustix::stdio::stderr(), "stderr")];
    for (fd, name) in standard {
        match rustix::fs::fstat(fd) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return Err(Refusal::DirectoryOnStandard(name));
            }
            Ok(_) => {}
            // The lowest free number is this one: those below are open.
            Err(_) => {
                let null = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty());
                let _stays_open = null.map_err(|errno| Refusal::NoStandard(name, errno))?.into_raw_fd();
            }
        }
    }
    Ok(())
}

pub fn random_name() -> Result<String, Refusal> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Refusal::Random)?;
    let mut name = String::with_capacity(16);
    for byte in bytes {
        let _ = write!(name, "{byte:02x}");
    }
    Ok(name)
}
