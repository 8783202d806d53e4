//! Why a sandbox can not be built.

use rustix::io::Errno;

use super::apply_restrictions::EnterError;
use super::container::ContainerError;
use super::init::NamespacesError;
use super::landlock::GrantError;
use super::seccomp::bpf::BpfError;
use super::temp_dir::TempError;
use crate::files::guard::GuardError;
use crate::files::patterns::NamePatternsError;
use crate::files::workspace::session_dir::SessionError;
use crate::journal::JournalError;
use crate::network::NetworkError;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{0}")]
    Usage(&'static str),
    #[error(transparent)]
    Files(#[from] GrantError),
    #[error("cannot build the system call filter: {0}")]
    Filter(#[from] BpfError),
    #[error(transparent)]
    Temp(#[from] TempError),
    #[error(transparent)]
    Enter(#[from] EnterError),
    #[error(transparent)]
    Namespaces(#[from] NamespacesError),
    #[error(transparent)]
    Container(#[from] ContainerError),
    #[error(transparent)]
    Names(#[from] NamePatternsError),
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the kernel does not list the unix sockets (sock_diag): {0}")]
    Services(Errno),
    #[error("cannot open ~/.local/state/paddock/writes.lock: {0}")]
    WriteLock(#[source] Errno),
}

impl SandboxError {
    /// The errno of a system call that builds the sandbox itself.
    pub fn of_a_mechanism(&self) -> Option<Errno> {
        match self {
            SandboxError::Files(GrantError::NoLandlock(errno)) => Some(*errno),
            SandboxError::Enter(error) => error.of_a_mechanism(),
            _ => None,
        }
    }

    /// None: the hint is the usage of the command line.
    pub fn hint(&self) -> Option<&str> {
        Some(match self {
            SandboxError::Usage(_) => return None,
            SandboxError::Network(error) => return error.hint(),
            SandboxError::Files(error) => error.hint(),
            SandboxError::Filter(_) => "list fewer system calls",
            SandboxError::Temp(_) => "check that the directory exists and that you may write to it",
            SandboxError::Enter(error) => error.step.hint(),
            SandboxError::Namespaces(error) => error.hint(),
            SandboxError::Container(error) => error.hint(),
            SandboxError::Names(error) => error.hint(),
            SandboxError::Guard(error) => error.hint(),
            SandboxError::Session(error) => error.hint(),
            SandboxError::Journal(error) => error.hint(),
            SandboxError::WriteLock(_) => {
                "check that you may write to ~/.local/state/paddock: the runs of a user need it to \
                    keep protected names"
            }
            SandboxError::Services(_) => {
                "type `modprobe unix_diag` as root, or run with --tier landlock"
            }
        })
    }
}
