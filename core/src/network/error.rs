//! Why the network of a run can not be set up.

use rustix::io::Errno;

use super::PublishError;
use super::rules::host_table::TableError;
use super::supervisor::http_helper::HttpHelperError;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("{0}")]
    Usage(&'static str),
    #[error(transparent)]
    Hosts(#[from] TableError),
    #[error(transparent)]
    Http(#[from] HttpHelperError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error("the relay can not be kept from what it does not need: {0}")]
    Relay(Errno),
    #[error("the proxy of the run finds no port on this machine's loopback: {0}")]
    LoopbackProxy(Errno),
    #[error(
        "sockets of the command can not be connected for it, as this tier needs it (pidfd_getfd): {0}"
    )]
    SupervisedConnect(Errno),
    #[error("the kernel gives no random numbers: {0}")]
    Random(Errno),
}

impl NetworkError {
    /// None: show the usage of the command line.
    pub fn hint(&self) -> Option<&str> {
        Some(match self {
            NetworkError::Usage(_) => return None,
            NetworkError::Hosts(_) => {
                "the plan comes from `paddock`; use a paddock and a paddock-core of the same release"
            }
            NetworkError::Http(error) => error.hint(),
            NetworkError::Publish(error) => error.hint(),
            NetworkError::SupervisedConnect(_) => {
                "a container's filter may refuse it: --security-opt seccomp=unconfined; or leave the network open (network.mode = \"host\") and grant no sockets"
            }
            NetworkError::Relay(_) | NetworkError::LoopbackProxy(_) | NetworkError::Random(_) => {
                "`paddock doctor` tries every mechanism on this machine"
            }
        })
    }
}
