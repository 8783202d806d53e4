//! Why a grant can not be given.

use rustix::io::Errno;

use crate::files::previously_writable::UnknownTree;
use crate::plan::wire::bytes::{AbsPath, Text};

#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("this kernel has no Landlock ({})", crate::kernel::errno_names::errno(*.0))]
    NoLandlock(#[source] Errno),
    #[error("the plan needs Landlock ABI {requested}, and this kernel has ABI {actual}")]
    OldAbi { requested: i32, actual: i32 },
    #[error("cannot create the Landlock ruleset: {0}")]
    Create(#[source] Errno),
    #[error("{path} does not exist ({from})")]
    Missing { path: AbsPath, from: Text },
    #[error("cannot open {path}: {source} ({from})")]
    Open { path: AbsPath, from: Text, source: Errno },
    #[error("cannot list {path}, which is needed to deny {except} inside it: {source} ({from})")]
    List { path: AbsPath, except: AbsPath, from: Text, source: Errno },
    #[error("cannot locate {path}, which must stay outside the sandbox: {source}")]
    Locate { path: AbsPath, source: Errno },
    #[error("{path} was moved or replaced while paddock started")]
    Moved { path: AbsPath },
    #[error(
        "{path} leads through a symlink in {dir}, which a sandboxed command could have created \
            ({from})"
    )]
    Planted { path: AbsPath, dir: AbsPath, from: Text },
    #[error(
        "{path}, which Paddock itself needs, leads through a symlink in {dir}, which a command \
            could change"
    )]
    OwnWay { path: AbsPath, dir: AbsPath },
    #[error(
        "{path} is on a remote file system ({kind}), where Landlock cannot enforce rules \
        ({from})"
    )]
    Remote { path: AbsPath, kind: &'static str, from: Text },
    #[error("Landlock rejects a rule for {path} ({from}): {source}")]
    AddRule { path: AbsPath, from: Text, source: Errno },
    #[error("the command could reach the journal {journal} through the grant of {path} ({from})")]
    JournalExposed { journal: AbsPath, path: AbsPath, from: Text },
    #[error(
        "the path of the journal {journal} leads through a symlink in {dir}, which a sandboxed \
            command could have created"
    )]
    JournalWay { journal: AbsPath, dir: AbsPath },
    #[error(
        "{path} now leads to {real}, and led elsewhere when Paddock recorded it for later runs \
            ({from})"
    )]
    Unrecorded { path: AbsPath, real: AbsPath, from: Text },
    #[error("cannot locate {path}, where a command could write: {source}")]
    Reach { path: AbsPath, source: Errno },
    #[error("cannot grant the private temporary directory: {0}")]
    Temp(#[source] Errno),
    #[error("cannot open /proc for the process that judges writes: {0}")]
    Proc(#[source] Errno),
}

impl From<UnknownTree> for GrantError {
    fn from(UnknownTree { path, source }: UnknownTree) -> GrantError {
        GrantError::Reach { path, source }
    }
}

impl GrantError {
    pub fn hint(&self) -> &'static str {
        match self {
            GrantError::NoLandlock(Errno::OPNOTSUPP) => {
                "Landlock is off (lsm=landlock), or a run of Paddock in the landlock tier surrounds \
                    this process: inside, no second sandbox can restrict files"
            }
            GrantError::NoLandlock(_) | GrantError::OldAbi { .. } => {
                "type `paddock doctor` to see what this kernel can enforce; Landlock needs Linux \
                    5.13 and lsm=landlock"
            }
            GrantError::Missing { .. } => {
                "create it, or mark the grant optional with a trailing \"?\""
            }
            GrantError::Moved { .. } | GrantError::Unrecorded { .. } => "start again",
            GrantError::OwnWay { .. } => "put a real directory there, or work elsewhere",
            GrantError::Planted { .. } => {
                "check where the symlink leads; if it is correct, grant the path that it leads to"
            }
            GrantError::Remote { .. } => {
                "work on a local copy, or accept a weaker sandbox: [filesystem] require_enforced = \
                    false"
            }
            GrantError::Locate { source: Errno::ACCESS, .. }
            | GrantError::Reach { source: Errno::ACCESS, .. } => {
                "a directory in the path is closed to you; find out why, then type `chmod u+x \
                    DIRECTORY`"
            }
            GrantError::JournalWay { .. } => {
                "give the real path of the journal with --audit-log \
                DIR"
            }
            GrantError::JournalExposed { .. } => {
                "put the journal in another directory (--audit-log DIR), or grant less"
            }
            GrantError::List { .. } => {
                "make the directory readable to you, or grant its entries one by one"
            }
            _ => "check the path and its permissions",
        }
    }
}
