//! One file for each verb of `paddock-core`. The only room that knows all others.

mod arguments;
mod credential_command;
mod error;
mod exec_server;
mod host_facts;
mod intercepted_shell;
mod judge_exec;
mod judge_host;
mod judge_writes;
mod list_closed_paths;
mod plan_fd;
mod probe;
mod record_events;
mod redact_server;
mod run;
mod standard_fds;
mod try_file_access;

use std::ffi::CString;

use self::arguments::Arguments;
use self::error::Refusal;
use self::run::RunArguments;
use crate::approve::approver_process::ApproverProcess;
use crate::files::git::{self, AppliedState};
use crate::kernel::stderr;
use crate::network;
use crate::plan::PlanError;
use crate::plan::exit_codes::EXIT_REFUSED;
use crate::sandbox::{closed_links, full_tier, init, preflight};
use crate::supervisor::session_owner::SessionOwner;

/// Called by the C library's start code, through `core/bin/paddock_core.rs`.
pub fn start(words: Vec<CString>) -> i32 {
    if let Some(called) = intercepted_shell::called(&words) {
        return intercepted_shell::start(called, words);
    }
    let mut words = words.into_iter();
    words.next();
    match dispatch(Arguments::new(words.collect())) {
        Ok(status) => status,
        Err(refusal) => {
            stderr::print_error(&refusal.to_string(), refusal.hint());
            EXIT_REFUSED
        }
    }
}

fn dispatch(mut arguments: Arguments) -> Result<i32, Refusal> {
    standard_fds::check_descriptors()?;
    let uid = rustix::process::getuid().as_raw();
    if uid != rustix::process::geteuid().as_raw() {
        return Err(PlanError::SetUid.into());
    }
    match arguments.next().as_deref() {
        Some(b"run") => {
            let plan_fd = arguments.plan_fd()?;
            let approver = ApproverProcess::new(arguments.socket(b"--companion")?);
            let session_owner = arguments.socket(b"--holder")?.map(SessionOwner::new);
            let quiet = arguments.flag(b"--quiet");
            let argv = arguments.command()?;
            run::run(RunArguments { plan_fd, argv, quiet, approver, session_owner }, uid)
        }
        Some(b"unreached") => {
            let plan_fd = arguments.plan_fd()?;
            let argv = arguments.command()?;
            let (plan, _) = plan_fd::read(&plan_fd, uid)?;
            credential_command::execute(&plan, argv)
        }
        Some(b"attend") => {
            let grace = arguments.grace()?;
            arguments.end()?;
            exec_server::run(grace)
        }
        Some(b"relay") => {
            let plan_fd = arguments.plan_fd()?;
            let (socket, relay_arguments) = arguments.sockets()?;
            let (plan, _) = plan_fd::read(&plan_fd, uid)?;
            Ok(network::run_relay(&plan, socket, relay_arguments)?)
        }
        Some(b"record") => {
            let plan_fd = arguments.plan_fd()?;
            let socket = arguments.line()?;
            arguments.end()?;
            let (plan, _) = plan_fd::read(&plan_fd, uid)?;
            record_events::serve(&plan, uid, &socket)
        }
        Some(b"preflight") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = plan_fd::read(&plan_fd, uid)?;
            closed_links::close(&mut plan)?;
            print(&preflight::report(&plan, uid)?)
        }
        Some(b"covers") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = plan_fd::read(&plan_fd, uid)?;
            closed_links::close(&mut plan)?;
            print(&full_tier::report(&plan)?)
        }
        Some(b"closed") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = plan_fd::read(&plan_fd, uid)?;
            closed_links::close(&mut plan)?;
            print(&list_closed_paths::report(&plan))
        }
        Some(b"links") => {
            arguments.end()?;
            print(&list_closed_paths::answer(&question()?)?)
        }
        Some(b"attempt") => {
            let plan_fd = arguments.plan_fd()?;
            let operation = arguments.operation()?;
            let path = arguments.path()?;
            arguments.end()?;
            let (mut plan, _) = plan_fd::read(&plan_fd, uid)?;
            closed_links::close(&mut plan)?;
            print(&try_file_access::report(&plan, operation, &path)?)
        }
        Some(b"judge") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (plan, _) = plan_fd::read(&plan_fd, uid)?;
            print(&judge_exec::report(&plan, &question()?)?)
        }
        Some(b"judge-host") => {
            arguments.end()?;
            print(&judge_host::report(&question()?)?)
        }
        Some(b"judge-writes") => {
            let plan_fd = arguments.plan_fd()?;
            arguments.end()?;
            let (mut plan, _) = plan_fd::read(&plan_fd, uid)?;
            closed_links::close(&mut plan)?;
            print(&judge_writes::report(&plan, &question()?)?)
        }
        Some(b"redact") => {
            arguments.end()?;
            redact_server::serve()
        }
        Some(b"regexes") => {
            arguments.end()?;
            print(&judge_exec::regexes(&question()?)?)
        }
        Some(b"exactly") => {
            arguments.end()?;
            print(&judge_exec::exactly(&question()?)?)
        }
        Some(b"probe") => {
            arguments.end()?;
            print(&probe::report(uid)?)
        }
        Some(b"namespaces") => {
            arguments.end()?;
            Ok(i32::from(init::try_out().namespaces.is_err()))
        }
        Some(b"git-state") => {
            let (path, place) = (arguments.path()?, arguments.path()?);
            arguments.end()?;
            let content = question()?;
            print(&match git::applied_state(path.as_bytes(), place.as_bytes(), content.clone()) {
                AppliedState::Harmful => "false".to_owned(),
                AppliedState::Harmless(applied) if applied == content => "true".to_owned(),
                AppliedState::Harmless(applied) => {
                    format!("\"{}\"", crate::plan::wire::bytes::hex(&applied))
                }
            })
        }
        Some(b"--version") => {
            let verbose = arguments.flag(b"--verbose");
            arguments.end()?;
            let (version, dir) = (env!("CARGO_PKG_VERSION"), intercepted_shell::DEFAULT_DIR);
            print(&if verbose {
                format!("paddock-core {version}\nreal shells: {dir}")
            } else {
                format!("paddock-core {version}")
            })
        }
        Some(b"host") => {
            arguments.end()?;
            print(&host_facts::report())
        }
        _ => Err(Refusal::Usage("no such command")),
    }
}

/// Reads the question from stdin. An exec has at most a few megabytes, and JSON takes at most six
/// letters for a byte.
fn question() -> Result<Vec<u8>, Refusal> {
    use std::io::Read as _;
    let mut text = Vec::new();
    let read = std::io::stdin().take(64 << 20).read_to_end(&mut text);
    read.map(|_| text).map_err(|_| Refusal::Usage("cannot read stdin"))
}

/// Prints one line of JSON on stdout. The exit status tells if the reader has gone.
fn print(json: &str) -> Result<i32, Refusal> {
    use std::io::Write as _;
    Ok(match writeln!(std::io::stdout(), "{json}") {
        Ok(()) => 0,
        Err(_) => EXIT_REFUSED,
    })
}
