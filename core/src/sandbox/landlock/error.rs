//! Why a grant can not be given.

use rustix::io::Errno;

use crate::files::previously_writable::UnknownTree;
use crate::plan::wire::bytes::{AbsPath, Text};

#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("this kernel has no Landlock ({})", crate::kernel::errno_names::errno(*.0))]
    NoLandlock(#[source] Errno),
    #[error("the plan needs Landlock ABI {requested}, this kernel has {actual}")]
    OldAbi { requested: i32, actual: i32 },
    #[error("the Landlock ruleset can not be created: {0}")]
    Create(#[source] Errno),
    #[error("{path} does not exist ({from})")]
    Missing { path: AbsPath, from: Text },
    #[error("{path} can not be opened: {source} ({from})")]
    Open { path: AbsPath, from: Text, source: Errno },
    #[error("{path} can not be listed, which keeping {except} out of it needs: {source} ({from})")]
    List { path: AbsPath, except: AbsPath, from: Text, source: Errno },
    #[error("{path} has to stay outside the fence, but can not be located: {source}")]
    Locate { path: AbsPath, source: Errno },
    #[error(
        "{path} is no longer where this process stands: it was moved or replaced while paddock started"
    )]
    Moved { path: AbsPath },
    #[error(
        "{path} leads through a symlink in {dir}, where a fenced command could have put it ({from})"
    )]
    Planted { path: AbsPath, dir: AbsPath, from: Text },
    #[error(
        "{path}, which paddock itself relies on, is reached through a symlink in {dir}, where a command could change it"
    )]
    OwnWay { path: AbsPath, dir: AbsPath },
    #[error("{path} lies on a remote file system ({kind}), which Landlock can not police ({from})")]
    Remote { path: AbsPath, kind: &'static str, from: Text },
    #[error("Landlock refuses a rule on {path} ({from}): {source}")]
    AddRule { path: AbsPath, from: Text, source: Errno },
    #[error(
        "the journal {journal} would be reachable from inside through the grant of {path} ({from})"
    )]
    JournalExposed { journal: AbsPath, path: AbsPath, from: Text },
    #[error(
        "the journal {journal} is reached through a symlink in {dir}, where a fenced command could have put it"
    )]
    JournalWay { journal: AbsPath, dir: AbsPath },
    #[error(
        "{path} leads to {real}, which was not its place when later runs were told of it ({from})"
    )]
    Unrecorded { path: AbsPath, real: AbsPath, from: Text },
    #[error("a command could write in {path}, but where that is can not be told: {source}")]
    Reach { path: AbsPath, source: Errno },
    #[error("the private temporary directory can not be granted: {0}")]
    Temp(#[source] Errno),
}

impl From<UnknownTree> for GrantError {
    fn from(UnknownTree { path, source }: UnknownTree) -> GrantError {
        GrantError::Reach { path, source }
    }
}

impl GrantError {
    pub fn hint(&self) -> &'static str {
        match self {
            GrantError::NoLandlock(_) | GrantError::OldAbi { .. } => {
                "`paddock doctor` shows what this kernel can enforce; Landlock needs Linux 5.13 and lsm=landlock"
            }
            GrantError::Missing { .. } => {
                "create it, or mark the grant optional with a trailing \"?\""
            }
            GrantError::Moved { .. } | GrantError::Unrecorded { .. } => "start again",
            GrantError::OwnWay { .. } => "put a real directory there, or work elsewhere",
            GrantError::Planted { .. } => {
                "look where it leads; grant that place by its own name if you mean it"
            }
            GrantError::Remote { .. } => {
                "work on a local copy, or accept the weaker fence: [filesystem] require_enforced = false"
            }
            GrantError::Locate { source: Errno::ACCESS, .. }
            | GrantError::Reach { source: Errno::ACCESS, .. } => {
                "a directory of yours on the way is shut; see who did that, then: chmod u+x DIRECTORY"
            }
            GrantError::JournalWay { .. } => "name the journal's own place: --audit-log DIR",
            GrantError::JournalExposed { .. } => {
                "put the journal elsewhere (--audit-log DIR) or grant less"
            }
            GrantError::List { .. } => {
                "make the directory readable for you, or grant its parts one by one"
            }
            _ => "check the path and its permissions",
        }
    }
}
