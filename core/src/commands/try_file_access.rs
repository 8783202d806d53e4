//! `attempt`: tries one operation on one path inside the sandbox, and prints the result.

use std::ffi::{CStr, CString};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::WaitOptions;

use super::error::Refusal;
use crate::kernel::{errno_names, sys};
use crate::plan::Plan;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::sandbox::apply_restrictions::{self, Restrictions};
use crate::sandbox::error::SandboxError;
use crate::sandbox::full_tier::FullTier;
use crate::sandbox::init::{self, Launch, SandboxStart};
use crate::sandbox::landlock::FileGrants;
use crate::sandbox::preflight::Preflight;
use crate::supervisor::event_loop::SuperviseError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Exec,
}

impl Operation {
    pub fn named(name: &[u8]) -> Option<Operation> {
        match name {
            b"read" => Some(Operation::Read),
            b"write" => Some(Operation::Write),
            b"exec" => Some(Operation::Exec),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Exec => "exec",
        }
    }

    /// The system call that the attempt needs.
    fn system_call(self) -> &'static str {
        match self {
            Operation::Read | Operation::Write => "openat",
            Operation::Exec => "execveat",
        }
    }

    /// Changes nothing: no file is created, truncated, written or executed.
    fn try_on(self, path: &CStr) -> Result<(), Errno> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match self {
            Operation::Read => {
                rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty()).map(drop)
            }
            Operation::Write => {
                rustix::fs::open(path, flags | OFlags::WRONLY, Mode::empty()).map(drop)
            }
            Operation::Exec => sys::execve_check(path),
        }
    }
}

fn outcome(result: Result<(), Errno>) -> &'static str {
    match result {
        // ENXIO: a pipe without a reader, or a socket. The permission checks come before that.
        Ok(()) | Err(Errno::NXIO) => "allowed",
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => "denied",
        Err(Errno::NOENT | Errno::NOTDIR) => "missing",
        // A directory opened for writing, a program that runs just now, a kernel without
        // AT_EXECVE_CHECK (before 6.14).
        Err(_) => "untried",
    }
}

pub fn report(plan: &Plan, operation: Operation, path: &CString) -> Result<String, Refusal> {
    let restrictions = Restrictions::prepare(plan, &[], Vec::new())?
        .without_answers_to(plan, operation.system_call())?;
    let look = || Preflight::prepare(plan, &restrictions, None);
    let result = match (&plan.namespaces, &plan.files) {
        (Some(namespaces), Some(requested)) => {
            let mut full_tier = FullTier::prepare(plan, namespaces, requested, None, None)?;
            in_full_tier(&mut full_tier, &restrictions, || Ok(look()?.files), operation, path)?
        }
        _ => {
            look()?;
            in_child(&restrictions, operation, path)?
        }
    };

    let mut out = format!("{{\"op\":\"{}\",\"path\":", operation.name());
    writer::string(&mut out, path.as_bytes(), NonUtf8::Surrogate);
    let errno = result
        .err()
        .map_or("null".to_owned(), |errno| format!("\"{}\"", errno_names::errno(errno)));
    out.push_str(&format!(",\"outcome\":\"{}\",\"errno\":{errno}}}", outcome(result)));
    Ok(out)
}

fn in_child(
    restrictions: &Restrictions,
    operation: Operation,
    path: &CStr,
) -> Result<Result<(), Errno>, Refusal> {
    let mut entered = Ok(());
    let mut result = Ok(());
    let child = sys::spawn_sharing_memory(|| {
        entered = apply_restrictions::become_command(None, None)
            .and_then(|()| restrictions.bound())
            .and_then(|()| restrictions.enter(None));
        if entered.is_ok() {
            result = operation.try_on(path);
        }
        0
    });
    let child = child.map_err(SuperviseError::Spawn)?;
    rustix::process::waitpid(Some(child), WaitOptions::empty()).map_err(SuperviseError::Wait)?;
    entered?;
    Ok(result)
}

fn in_full_tier<'f>(
    full_tier: &mut FullTier<'_>,
    restrictions: &Restrictions,
    look: impl FnOnce() -> Result<Option<FileGrants<'f>>, SandboxError>,
    operation: Operation,
    path: &CStr,
) -> Result<Result<(), Errno>, Refusal> {
    let payload = || operation.try_on(path).map_or_else(Errno::raw_os_error, |()| 0);
    let mask = sys::block_signals();
    let launch = Launch {
        restrictions,
        payload: &payload,
        mask: &mask,
        terminal: None,
        limits: None,
        answer_calls: &mut |_, _| Ok(()),
    };
    let started = full_tier.start(launch, None, look, |_| ());
    sys::restore_signal_mask(&mask);
    match started? {
        SandboxStart::NotExecuted(0) => Ok(Ok(())),
        SandboxStart::NotExecuted(errno) => Ok(Err(Errno::from_raw_os_error(errno))),
        SandboxStart::Running(sandbox) => {
            init::kill_and_reap(sandbox.init);
            Err(Refusal::Scene(Errno::PROTO))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_permission_error_counts_as_denied() {
        for (result, expected) in [
            (Ok(()), "allowed"),
            (Err(Errno::ACCESS), "denied"),
            (Err(Errno::PERM), "denied"),
            (Err(Errno::NOENT), "missing"),
            (Err(Errno::ISDIR), "untried"),
            (Err(Errno::INVAL), "untried"),
        ] {
            assert_eq!(outcome(result), expected);
        }
    }
}
