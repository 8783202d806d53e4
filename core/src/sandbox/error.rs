//! Why a sandbox can not be built.

use rustix::io::Errno;

use super::container::JailError;
use super::enter::FenceError;
use super::init::NamespacesError;
use super::landlock::FilesError;
use super::seccomp::bpf::BpfError;
use super::temp_dir::TempError;
use crate::files::guard::GuardError;
use crate::files::patterns::NamesError;
use crate::files::unfinished_scans::UnfinishedError;
use crate::files::workspace::session_dir::SessionError;
use crate::journal::JournalError;
use crate::network::NetworkError;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("{0}")]
    Usage(&'static str),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("cannot build the system call filter: {0}")]
    Filter(#[from] BpfError),
    #[error(transparent)]
    Temp(#[from] TempError),
    #[error(transparent)]
    Fence(#[from] FenceError),
    #[error(transparent)]
    Namespaces(#[from] NamespacesError),
    #[error(transparent)]
    Jail(#[from] JailError),
    #[error(transparent)]
    Names(#[from] NamesError),
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Unfinished(#[from] UnfinishedError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the kernel does not list the unix sockets (sock_diag): {0}")]
    Services(Errno),
}

impl SandboxError {
    /// The answer of a call that the sandbox itself is made of.
    pub fn of_a_mechanism(&self) -> Option<Errno> {
        match self {
            SandboxError::Files(FilesError::NoLandlock(errno)) => Some(*errno),
            SandboxError::Fence(error) => error.of_a_mechanism(),
            _ => None,
        }
    }

    /// None: what the command line takes.
    pub fn hint(&self) -> Option<&str> {
        Some(match self {
            SandboxError::Usage(_) => return None,
            SandboxError::Network(error) => return error.hint(),
            SandboxError::Files(error) => error.hint(),
            SandboxError::Filter(_) => "list fewer system calls",
            SandboxError::Temp(_) => "check that the directory exists and that you may write to it",
            SandboxError::Fence(error) => error.step.hint(),
            SandboxError::Namespaces(error) => error.hint(),
            SandboxError::Jail(error) => error.hint(),
            SandboxError::Names(error) => error.hint(),
            SandboxError::Guard(error) => error.hint(),
            SandboxError::Session(error) => error.hint(),
            SandboxError::Unfinished(error) => error.hint(),
            SandboxError::Journal(error) => error.hint(),
            SandboxError::Services(_) => {
                "type `modprobe unix_diag` as root, or run with --tier landlock"
            }
        })
    }
}
