//! The HTTP helper: a Python process (src/paddock/http). It starts before the command, because
//! unreadable secrets must stop the start. The relay hands connections to it
//! ([`crate::network::relay::http_handover`]). On its socket to the supervisor it first reports
//! that it is ready, or why not, and then its decisions.
//!
//! It takes a while to start. If all secrets are variables without unusual characters, nothing
//! waits for it: connections that are handed over meanwhile wait in its socket.

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

/// The longest first message.
const MAX_READY_BYTES: usize = 16 * 1024;
/// The allowed length of a secret (credentials.py).
const SECRET_BYTES: RangeInclusive<usize> = 8..=4096;

/// Time until the first message. After it, the helper counts as failed.
pub const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables that it always gets: for reading file names, and for trusted certificates.
const PASSED_VARIABLES: [&[u8]; 7] =
    [b"HOME", b"PATH", b"LANG", b"LC_ALL", b"LC_CTYPE", b"SSL_CERT_FILE", b"SSL_CERT_DIR"];

#[derive(Debug, thiserror::Error)]
pub enum HttpHelperError {
    #[error("the HTTP helper: the first line of {0} names no Python")]
    Interpreter(String),
    #[error("cannot start the HTTP helper {0}: {1}")]
    Start(String, #[source] Errno),
    #[error("the HTTP helper ended before it was ready: {0}")]
    Ended(String),
    /// The helper's own message.
    #[error("{error}")]
    Refused { error: String, hint: String },
}

impl HttpHelperError {
    pub fn hint(&self) -> &str {
        match self {
            HttpHelperError::Refused { hint, .. } => hint,
            _ => "reinstall paddock, or run without routes and inspected hosts",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadyMessage {
    /// Why it does not serve. None: it does.
    #[serde(deserialize_with = "present")]
    error: Option<String>,
    #[serde(deserialize_with = "present")]
    hint: Option<String>,
}

pub struct HttpHelper {
    pub process: HelperProcess,
    /// The relay's end of the socket to the helper.
    pub handover: OwnedFd,
    /// True: the command starts only when the helper is ready.
    waits_until_ready: bool,
}

impl HttpHelper {
    /// None: the plan has no route and no inspected host.
    pub fn start(plan: &Plan, plan_fd: &OwnedFd) -> Result<Option<HttpHelper>, HttpHelperError> {
        match plan.network.as_ref().and_then(|network| network.http.as_ref()) {
            Some(http) => start(http, plan_fd).map(Some),
            None => Ok(None),
        }
    }

    /// Waits until the helper has read its secrets, if they can be wrong. Returns the certificates
    /// that programs inside should trust, if any.
    pub fn ready(&self) -> Result<Option<OwnedFd>, HttpHelperError> {
        if !self.waits_until_ready {
            return Ok(None);
        }
        ready_message(&self.process, RecvFlags::empty()).unwrap_or(Ok(None))
    }

    /// The process, its relay socket, and whether its first message is still to come.
    pub fn into_parts(self) -> (HelperProcess, OwnedFd, bool) {
        (self.process, self.handover, !self.waits_until_ready)
    }
}

/// Reads the first message. None: it has not arrived, and `flags` do not block.
pub fn ready_message(
    process: &HelperProcess,
    flags: RecvFlags,
) -> Option<Result<Option<OwnedFd>, HttpHelperError>> {
    let mut bytes = [0; MAX_READY_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let buffers = &mut [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(
            &process.socket,
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
    let Ok(first) = reader::from_slice::<ReadyMessage>(&bytes[..length]) else {
        return Some(Err(HttpHelperError::Ended(process.end())));
    };
    if let Some(error) = first.error {
        return Some(Err(HttpHelperError::Refused { error, hint: first.hint.unwrap_or_default() }));
    }
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Some(Ok(descriptors.next().and_then(|mut descriptors| descriptors.next())))
}

/// True if the command must wait for the helper: it may refuse a secret or the certificates that it
/// should trust, or programs should trust it.
fn must_wait(http: &plan::HttpPlan, environment: &[CString]) -> bool {
    let is_plain = |route: &plan::Route| match &route.credential {
        None => true,
        // A user and a password are two secrets in one variable.
        Some(_) if route.inject_mode.as_ref().is_some_and(|mode| mode.as_bytes() == b"basic") => {
            false
        }
        Some(credential) => {
            credential.kind == CredentialKind::Env
                && is_plain_secret(credential.place.as_bytes(), environment)
        }
    };
    let is_told_whom_to_trust = |entry: &CString| entry.as_bytes().starts_with(b"SSL_CERT_");
    !http.inspect.is_empty()
        || environment.iter().any(is_told_whom_to_trust)
        || http.routes.iter().any(|route| route.inspect || !is_plain(route))
}

/// True for a secret that credentials.py accepts.
fn is_plain_secret(name: &[u8], environment: &[CString]) -> bool {
    let value = environment
        .iter()
        .find_map(|entry| entry.as_bytes().strip_prefix(name)?.strip_prefix(b"="));
    value.is_some_and(|value| {
        SECRET_BYTES.contains(&value.len()) && value.iter().all(u8::is_ascii_graphic)
    })
}

fn start(http: &plan::HttpPlan, plan_fd: &OwnedFd) -> Result<HttpHelper, HttpHelperError> {
    let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let script = own.with_file_name(python_helper::SCRIPT);
    let name = script.display().to_string();
    let interpreter = python_helper::interpreter_of(&script)
        .ok_or_else(|| HttpHelperError::Interpreter(name.clone()))?;
    let failed = |errno| HttpHelperError::Start(name.clone(), errno);
    let (ours, theirs) = socket_pair::pair().map_err(failed)?;
    let (relays, servers) = socket_pair::pair().map_err(failed)?;
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed)?;
    let [line, relay, plan] = [&theirs, &servers, plan_fd].map(|fd| fd.as_raw_fd().to_string());
    let words = [interpreter.as_os_str()]
        .into_iter()
        .chain(python_helper::ISOLATION_OPTIONS.map(OsStr::new))
        .chain([script.as_os_str()]);
    let words = words
        .chain(["http", "--line", &line, "--relay", &relay, "--plan-fd", &plan].map(OsStr::new));
    let words: Result<Vec<CString>, _> = words.map(|word| CString::new(word.as_bytes())).collect();
    let argv = ExecStrings::new(words.map_err(|_| failed(Errno::INVAL))?);
    let passes = |entry: &CString| passes(http, entry.as_bytes());
    let environment: Vec<CString> =
        sys::inherited_environment().into_iter().filter(passes).collect();
    let waits_until_ready = must_wait(http, &environment);
    let environment = ExecStrings::new(environment);
    let supervisor = rustix::process::getpid();
    let prepare_child = || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The supervisor may have died before the line above.
        if rustix::process::getppid() != Some(supervisor) {
            return Err(Errno::SRCH);
        }
        // Terminal input for the command must not reach the helper. The command can change its own
        // working directory.
        rustix::process::setpgid(None, None)?;
        rustix::process::chdir(Path::new("/"))?;
        child_fds::keep_only(&null, &[&theirs, &servers, plan_fd])
    };
    let mut failure = None;
    let child = sys::spawn_sharing_memory(|| {
        failure = Some(match prepare_child() {
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
    Ok(HttpHelper {
        process: HelperProcess::new(process, ours),
        handover: relays,
        waits_until_ready,
    })
}

/// A keyring, or a command that prints a secret, can need any variable.
fn passes(http: &plan::HttpPlan, entry: &[u8]) -> bool {
    let name = entry.split(|byte| *byte == b'=').next().unwrap_or_default();
    let mut credentials = http.routes.iter().filter_map(|route| route.credential.as_ref());
    PASSED_VARIABLES.contains(&name)
        || credentials.any(|credential| match credential.kind {
            CredentialKind::Env => credential.place.as_bytes() == name,
            CredentialKind::File => false,
            CredentialKind::Keyring | CredentialKind::Command => true,
        })
}
