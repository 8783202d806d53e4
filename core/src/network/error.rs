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
    #[error("cannot restrict the relay: {0}")]
    Relay(Errno),
    #[error("cannot open a loopback port for the proxy of the run: {0}")]
    LoopbackProxy(Errno),
    #[error(
        "cannot duplicate the command's sockets (pidfd_getfd), which network rules need in the \
            landlock tier: {0}"
    )]
    SupervisedConnect(Errno),
    #[error("cannot read random numbers from the kernel: {0}")]
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
                "the filter of a container may deny it: start the container with --security-opt \
                    seccomp=unconfined, or leave the network open (network.mode = \"host\") and \
                    grant no sockets"
            }
            NetworkError::Relay(_) | NetworkError::LoopbackProxy(_) | NetworkError::Random(_) => {
                "type `paddock doctor` to test every mechanism on this machine"
            }
        })
    }
}
