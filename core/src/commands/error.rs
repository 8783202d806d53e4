//! The top-level error. Every failure before the command starts ends here: one line, one hint, exit
//! code 125.

use rustix::io::Errno;

use super::credential_command::UnreachedError;
use super::host_facts;
use crate::files::guard::GuardError;
use crate::files::patterns::NamePatternsError;
use crate::files::workspace::session_dir::SessionError;
use crate::gate::rules::RuleError;
use crate::journal::JournalError;
use crate::limits::LimitsError;
use crate::network::NetworkError;
use crate::network::rules::host_table::TableError;
use crate::network::supervisor::http_helper::HttpHelperError;
use crate::plan::PlanError;
use crate::sandbox::apply_restrictions::EnterError;
use crate::sandbox::container::ContainerError;
use crate::sandbox::error::SandboxError;
use crate::sandbox::init::NamespacesError;
use crate::sandbox::landlock::GrantError;
use crate::sandbox::seccomp::bpf::BpfError;
use crate::sandbox::temp_dir::TempError;
use crate::supervisor::event_loop::SuperviseError;
use crate::supervisor::observer::ObserveError;

const USAGE: &str = "paddock-core run --plan-fd N [--companion N] [--quiet] -- COMMAND… | \
                     preflight --plan-fd N | record --plan-fd N --line N | \
                     unreached --plan-fd N -- COMMAND… | \
                     attempt --plan-fd N --op read|write|exec PATH | covers --plan-fd N | \
                     judge --plan-fd N | judge-writes --plan-fd N | regexes | exactly | host | probe";

#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Usage(&'static str),
    #[error("{0} is a directory, which gives the command access to files outside the sandbox")]
    DirectoryOnStandard(&'static str),
    #[error("{0} is closed, and /dev/null cannot replace it: {1}")]
    NoStandard(&'static str, Errno),
    #[error("the exec server cannot read requests: {}", crate::kernel::errno_names::errno_text(*.0))]
    Attend(#[source] Errno),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Rules(#[from] RuleError),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error(transparent)]
    Unreached(#[from] UnreachedError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Supervise(#[from] SuperviseError),
    #[error("cannot create the files of the probe: {0}")]
    Scene(Errno),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(
        "{0} is a socket that the command could reconnect to a host or service that the \
        sandbox denies"
    )]
    SocketOnStandard(&'static str),
    #[error("cannot read random numbers from the kernel: {0}")]
    Random(Errno),
    #[error("{what}: {}", crate::kernel::errno_names::errno_text(*.errno))]
    Shell { what: &'static str, errno: Errno },
}

impl Refusal {
    /// The errno of a system call that builds the sandbox itself.
    fn of_a_mechanism(&self) -> Option<Errno> {
        match self {
            Refusal::Sandbox(error) => error.of_a_mechanism(),
            Refusal::Supervise(SuperviseError::Enter(error)) => error.of_a_mechanism(),
            _ => None,
        }
    }

    pub fn hint(&self) -> &str {
        if let Some(Errno::PERM | Errno::NOSYS) = self.of_a_mechanism()
            && host_facts::filtered()
        {
            // src/paddock/plan/compile.py says the same.
            return "this process already has a system call filter, as in a container, which may \
                deny the call: update the container engine, start the container with a profile \
                that allows the landlock_* calls, seccomp and prctl (--security-opt \
                seccomp=FILE), or without one (--security-opt seccomp=unconfined)";
        }
        match self {
            Refusal::Usage(_) => USAGE,
            Refusal::Sandbox(error) => error.hint().unwrap_or(USAGE),
            Refusal::Network(error) => error.hint().unwrap_or(USAGE),
            Refusal::DirectoryOnStandard(_)
            | Refusal::NoStandard(..)
            | Refusal::SocketOnStandard(_) => "redirect it from or to a file, a pipe or a terminal",
            Refusal::Attend(_) => "stdin must be the socket of the session owner",
            Refusal::Plan(error) => error.hint(),
            Refusal::Journal(error) => error.hint(),
            Refusal::Rules(_) => {
                "the plan comes from `paddock`; use a paddock and a paddock-core of the same release"
            }
            Refusal::Unreached(error) => error.hint(),
            Refusal::Limits(error) => error.hint(),
            Refusal::Supervise(SuperviseError::Enter(error)) => error.step.hint(),
            Refusal::Shell { .. } => {
                "type `paddock doctor` to test every mechanism; Paddock starts no shell that it \
                    cannot restrict"
            }
            Refusal::Observe(_) => "reinstall paddock, or run without --observe",
            Refusal::Supervise(_) | Refusal::Random(_) | Refusal::Scene(_) => {
                "type `paddock doctor` to test every mechanism on this machine"
            }
        }
    }
}

/// Converts the error of a file into the error of its room.
macro_rules! through {
    ($room:ident: $($part:ty),+) => {
        $(impl From<$part> for Refusal {
            fn from(error: $part) -> Refusal {
                $room::from(error).into()
            }
        })+
    };
}

through!(SandboxError: GrantError, BpfError, TempError, EnterError, NamespacesError);
through!(SandboxError: ContainerError, NamePatternsError, GuardError, SessionError);
through!(NetworkError: HttpHelperError, TableError);
