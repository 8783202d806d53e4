//! The Python half that speaks HTTP (src/paddock/http): started before the command is, because
//! secrets that can not be read are a reason not to start. Connections come to it from the relay
//! ([`crate::network::relay::http_handover`]); its line to the supervisor says that it is ready, or
//! why it is not, and then what it decided.
//!
//! It takes a while to start. Where all secrets are variables in which nothing is odd, nobody waits
//! for it: connections that are handed over meanwhile wait on their line.

use std::ffi::{CString, OsStr};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{PidfdFlags, Signal, WaitOptions};
use serde::Deserialize;

use super::relay_process::HelperProcess;
use crate::kernel::sys::{self, ExecStrings};
use crate::kernel::{child_fds, python_helper, socket_pair};
use crate::plan::wire::reader;
use crate::plan::{self, CredentialKind, Plan, present};

/// Of its first message.
const LONGEST: usize = 16 * 1024;
/// How long a secret may be (credentials.py).
const SECRET: RangeInclusive<usize> = 8..=4096;

/// A Python that has not said a word by then never will.
pub const SILENT: Duration = Duration::from_secs(60);

/// What it gets of our environment in any case: how names of files are read, and whom it trusts.
const PASSED: [&[u8]; 7] =
    [b"HOME", b"PATH", b"LANG", b"LC_ALL", b"LC_CTYPE", b"SSL_CERT_FILE", b"SSL_CERT_DIR"];

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("the HTTP helper: the first line of {0} names no Python")]
    Interpreter(String),
    #[error("cannot start the HTTP helper {0}: {1}")]
    Start(String, #[source] Errno),
    #[error("the HTTP helper ended before it was ready: {0}")]
    Ended(String),
    /// In its own words.
    #[error("{error}")]
    Refused { error: String, hint: String },
}

impl HttpError {
    pub fn hint(&self) -> &str {
        match self {
            HttpError::Refused { hint, .. } => hint,
            _ => "reinstall paddock, or run without routes and inspected hosts",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    /// Why it does not serve; None: it does.
    #[serde(deserialize_with = "present")]
    error: Option<String>,
    #[serde(deserialize_with = "present")]
    hint: Option<String>,
}

pub struct Http {
    pub partner: HelperProcess,
    /// The relay's end of the line between the two.
    pub handover: OwnedFd,
    /// The command starts only when it is ready.
    awaited: bool,
}

impl Http {
    /// None: the plan has nothing for it to do.
    pub fn start(plan: &Plan, plan_fd: &OwnedFd) -> Result<Option<Http>, HttpError> {
        match plan.network.as_ref().and_then(|network| network.http.as_ref()) {
            Some(http) => start(http, plan_fd).map(Some),
            None => Ok(None),
        }
    }

    /// Waits until it has read its secrets, if anything can be wrong with them. Returns what
    /// programs inside are to trust, if they are to trust more than others.
    pub fn ready(&self) -> Result<Option<OwnedFd>, HttpError> {
        if !self.awaited {
            return Ok(None);
        }
        first_word(&self.partner, RecvFlags::empty()).unwrap_or(Ok(None))
    }

    /// And whether its first word is still to come.
    pub fn parts(self) -> (HelperProcess, OwnedFd, bool) {
        (self.partner, self.handover, !self.awaited)
    }
}

/// None: it has not said one yet, and `flags` let nobody wait.
pub fn first_word(
    partner: &HelperProcess,
    flags: RecvFlags,
) -> Option<Result<Option<OwnedFd>, HttpError>> {
    let mut bytes = [0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(
            &partner.line,
            buffers,
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return None,
            received => break received,
        }
    };
    let length = received.map_or(0, |received| received.bytes);
    let Ok(first) = reader::from_slice::<First>(&bytes[..length]) else {
        return Some(Err(HttpError::Ended(partner.end())));
    };
    if let Some(error) = first.error {
        return Some(Err(HttpError::Refused { error, hint: first.hint.unwrap_or_default() }));
    }
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Some(Ok(descriptors.next().and_then(|mut descriptors| descriptors.next())))
}

/// Whether it has to be heard before anything runs: if it may refuse a secret or the certificates
/// that it is told to trust, or if programs are to trust it.
fn is_awaited(http: &plan::Http, environment: &[CString]) -> bool {
    let is_plain = |route: &plan::Route| match &route.credential {
        None => true,
        // A user and a password are two secrets in one.
        Some(_) if route.inject_mode.as_ref().is_some_and(|mode| mode.as_bytes() == b"basic") => {
            false
        }
        Some(credential) => {
            credential.kind == CredentialKind::Env
                && is_usable(credential.place.as_bytes(), environment)
        }
    };
    let is_told_whom_to_trust = |entry: &CString| entry.as_bytes().starts_with(b"SSL_CERT_");
    !http.inspect.is_empty()
        || environment.iter().any(is_told_whom_to_trust)
        || http.routes.iter().any(|route| route.inspect || !is_plain(route))
}

/// What credentials.py has no word against.
fn is_usable(name: &[u8], environment: &[CString]) -> bool {
    let value = environment
        .iter()
        .find_map(|entry| entry.as_bytes().strip_prefix(name)?.strip_prefix(b"="));
    value.is_some_and(|value| {
        SECRET.contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
    })
}

fn start(http: &plan::Http, plan_fd: &OwnedFd) -> Result<Http, HttpError> {
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let script = own.with_file_name(python_helper::SCRIPT);
    let name = script.display().to_string();
    let interpreter = python_helper::interpreter_of(&script)
        .ok_or_else(|| HttpError::Interpreter(name.clone()))?;
    let failed = |errno| HttpError::Start(name.clone(), errno);
    let (ours, theirs) = socket_pair::pair().map_err(failed)?;
    let (relays, servers) = socket_pair::pair().map_err(failed)?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    let [line, relay, plan] = [&theirs, &servers, plan_fd].map(|fd| fd.as_raw_fd().to_string());
    let words = [interpreter.as_os_str()]
        .into_iter()
        .chain(python_helper::ALONE.map(OsStr::new))
        .chain([script.as_os_str()]);
    let words = words
        .chain(["http", "--line", &line, "--relay", &relay, "--plan-fd", &plan].map(OsStr::new));
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let argv = ExecStrings::new(words.map_err(|_| failed(Errno::INVAL))?);
    let passes = |entry: &CString| passes(http, entry.as_bytes());
    let environment: Vec<CString> =
        sys::inherited_environment().into_iter().filter(passes).collect();
    let awaited = is_awaited(http, &environment);
    let environment = ExecStrings::new(environment);
    let supervisor = rustix::process::getpid();
    let become_it = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have died before the line above.
        if rustix::process::getppid() != Some(supervisor) {
            return Err(Errno::SRCH);
        }
        // What is typed for the command is not for it, and the command's directory is no place to
        // stand in.
        rustix::process::setpgid(None, None)?;
        rustix::process::chdir(Path::new("/"))?;
        child_fds::keep_only(&null, &[&theirs, &servers, plan_fd])
    };
    let mut failure = None;
    let child = sys::spawn_sharing_memory(|| {
        failure = Some(match become_it() {
            Ok(()) => sys::execve(&argv.strings()[0], &argv, &environment),
            Err(errno) => errno,
        });
        125
    })
    .map_err(failed)?;
    if let Some(errno) = failure {
        let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        return Err(failed(errno));
    }
    let process = rustix::process::pidfd_open(child, PidfdFlags::empty()).map_err(failed)?;
    Ok(Http { partner: HelperProcess::new(process, ours), handover: relays, awaited })
}

/// A keyring, or a command that prints a secret, finds its way by variables that we do not know.
fn passes(http: &plan::Http, entry: &[u8]) -> bool {
    let name = entry.split(|byte| *byte == b'=').next().unwrap_or_default();
    let mut credentials = http.routes.iter().filter_map(|route| route.credential.as_ref());
    PASSED.contains(&name)
        || credentials.any(|credential| match credential.kind {
            CredentialKind::Env => credential.place.as_bytes() == name,
            CredentialKind::File => false,
            CredentialKind::Keyring | CredentialKind::Command => true,
        })
}
