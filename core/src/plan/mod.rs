//! The plan: read from a sealed descriptor, parsed strictly, and checked. The core does not trust
//! the compiler of the plan. An unknown key, a duplicate, a missing key or a contradiction is
//! refused.

mod container;
mod deserializers;
pub(crate) mod exit_codes;
mod files;
mod gate;
pub(crate) mod host_name;
mod limits;
mod network;
pub(crate) mod rights;
mod shell;
pub(crate) mod syscalls;
pub mod wire;

use std::collections::BTreeSet;

use landlock::AccessFs;
use rustix::io::Errno;
use rustix::process::Resource;
use serde::Deserialize;

use self::deserializers::{family_set, right_set, rlimits, scope_set, syscall_set, unique};
use self::rights::{Rights, Scopes};
use self::syscalls::Syscall;
use self::wire::bytes::{AbsPath, Text};
use self::wire::reader::{self, CanonicalError};

pub use container::{Container, IdRange, Mask};
pub use deserializers::present;
pub use files::{
    FilesPlan, Grant, PreviouslyWritable, ProtectedNames, TEMP_PARENT, is_private_path,
    temp_name_prefix, temp_path_prefix,
};
pub use gate::{Action, ExecRule, ExecRuleKey, GatePlan};
pub use limits::RequestedLimits;
pub use network::{
    CredentialKind, HostRule, HttpPlan, Network, NetworkMode, PublishedPort, Route, RouteUpstream,
    SocketAccess,
};
pub use shell::{
    CORE_NAME, OnFailure, REAL_SHELLS_DIGITS, REAL_SHELLS_PREFIX, Shell, original_shell,
};

pub const TMP_TOKEN: &[u8] = b"<tmp>";
/// In the value of a variable that a route sets: a random text of this run that stands for the
/// secret.
pub const PLACEHOLDER_TOKEN: &[u8] = b"<placeholder>";
/// Enough for a hundred thousand hosts.
pub const MAX_PLAN_BYTES: u64 = 16 << 20;
const VERSION: u32 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    version: u32,
    pub profiles: Vec<Text>,
    pub tier: Tier,
    pub user: User,
    #[serde(deserialize_with = "present")]
    pub journal: Option<JournalPlan>,
    pub no_new_privs: bool,
    #[serde(deserialize_with = "rlimits")]
    pub rlimits: Vec<(Resource, u64)>,
    #[serde(deserialize_with = "present")]
    pub environment: Option<Environment>,
    #[serde(deserialize_with = "present")]
    pub temp: Option<TempPlan>,
    #[serde(deserialize_with = "present")]
    pub files: Option<FilesPlan>,
    #[serde(deserialize_with = "present")]
    pub landlock: Option<Landlock>,
    #[serde(deserialize_with = "present")]
    pub namespaces: Option<Namespaces>,
    #[serde(deserialize_with = "present")]
    pub workspace: Option<Workspace>,
    /// The container's own root directory, instead of paths of the host.
    #[serde(deserialize_with = "present")]
    pub container: Option<Container>,
    pub limits: RequestedLimits,
    /// The directory of session state that outlives a run.
    pub sessions: AbsPath,
    #[serde(deserialize_with = "present")]
    pub seccomp: Option<Seccomp>,
    /// Which programs may start. None: no restriction besides the files.
    #[serde(deserialize_with = "present")]
    pub gate: Option<GatePlan>,
    /// Which hosts may be reached. None: the network is not restricted.
    #[serde(deserialize_with = "present")]
    pub network: Option<Network>,
    /// Further restrictions of shells. None: a shell is like any other program.
    #[serde(deserialize_with = "present")]
    pub shell: Option<Shell>,
    /// True: report file accesses that the sandbox refuses.
    pub observe: bool,
    /// True: init judges each write to a name, and does it.
    pub judges_writes: bool,
    pub workdir: AbsPath,
    /// The working directory of the compiler, which must be the working directory of this process.
    pub cwd: AbsPath,
    pub require_enforced: bool,
    pub notices: Vec<Notice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Namespaces, and Landlock inside them.
    Full,
    /// For machines without user namespaces.
    Landlock,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub uid: u32,
    pub name: Text,
    pub home: AbsPath,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalPlan {
    pub dir: AbsPath,
    #[serde(deserialize_with = "present")]
    pub file: Option<Text>,
    pub stderr: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    pub pass: Vec<Text>,
    pub deny: Vec<Text>,
    /// Exact names that pass even if a pattern denies them.
    pub keep: Vec<Text>,
    #[serde(deserialize_with = "unique")]
    pub set: Vec<(Text, Text)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TempPlan {
    pub parent: AbsPath,
    pub access: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Landlock {
    pub abi: i32,
    #[serde(deserialize_with = "right_set")]
    pub handled: Rights,
    #[serde(deserialize_with = "scope_set")]
    pub scoped: Scopes,
    #[serde(deserialize_with = "unique")]
    access: Vec<(Text, RightList)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespaces {
    /// True: the command may create user namespaces.
    pub nested: bool,
    pub hostname: Text,
    /// The size of the private /tmp; None leaves it to the kernel.
    #[serde(deserialize_with = "present")]
    pub tmp_mb: Option<u64>,
}

/// A writable grant of which the command gets a copy-on-write copy.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    pub path: AbsPath,
    /// The session whose copy is continued.
    #[serde(deserialize_with = "present")]
    pub resume: Option<Text>,
}

#[derive(Debug, Deserialize)]
struct RightList(#[serde(deserialize_with = "right_set")] Rights);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seccomp {
    pub default: SeccompDefault,
    #[serde(deserialize_with = "syscall_set")]
    pub syscalls: Vec<&'static Syscall>,
    /// The families that socket(2) may make.
    #[serde(deserialize_with = "family_set")]
    pub sockets: BTreeSet<SocketFamily>,
    pub namespaces: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketFamily {
    Unix,
    Inet,
    Inet6,
    /// Only the route protocol of netlink.
    Netlink,
    #[serde(rename = "netlink-all")]
    NetlinkAll,
}

impl SocketFamily {
    pub fn number(self) -> u32 {
        let number = match self {
            SocketFamily::Unix => libc::AF_UNIX,
            SocketFamily::Inet => libc::AF_INET,
            SocketFamily::Inet6 => libc::AF_INET6,
            SocketFamily::Netlink | SocketFamily::NetlinkAll => libc::AF_NETLINK,
        };
        number as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeccompDefault {
    Allow,
    Deny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    pub level: NoticeLevel,
    pub text: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeLevel {
    Info,
    Warning,
    /// Requested, but not enforced on this machine, and the user accepted that. Printed and
    /// journaled.
    Unenforced,
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("--plan-fd {0} is not an open descriptor")]
    NotOpen(i32),
    #[error("the plan descriptor is not a memfd sealed against writing, growing and shrinking")]
    NotSealed,
    #[error("the plan has {0} bytes, more than {most} MiB", most = MAX_PLAN_BYTES >> 20)]
    TooLong(u64),
    #[error("cannot read the plan: {0}")]
    Read(#[source] Errno),
    #[error("the plan is not valid: {0}")]
    Json(#[source] CanonicalError),
    #[error("the plan has version {0}; this paddock-core needs version {VERSION}")]
    Version(u32),
    #[error("the plan was compiled for uid {planned}, but uid {actual} runs it")]
    User { planned: u32, actual: u32 },
    #[error("real and effective user differ: a set-uid program cannot run a plan")]
    SetUid,
    #[error(
        "the grant of {path} ({from}) names the access \"{access}\", which the plan does not define"
    )]
    UnknownAccess { path: AbsPath, access: Text, from: Text },
    #[error("the access \"{name}\" has rights that the plan does not handle: {rights}")]
    UnhandledRight { name: Text, rights: String },
    #[error("the access \"{0}\" has no right")]
    EmptyAccess(Text),
    #[error("the plan handles no file right")]
    NothingHandled,
    #[error("the plan handles rights or scopes that Landlock ABI {0} does not have")]
    BeyondAbi(i32),
    #[error("the system call list denies {0}, which every command needs to start")]
    ExecImpossible(&'static str),
    #[error("no_new_privs is off, but Landlock and seccomp need it for an ordinary user")]
    NeedsNoNewPrivs,
    #[error("the journal file name \"{0}\" is not a plain file name")]
    JournalFile(Text),
    #[error("the environment sets a variable with the invalid name \"{0}\"")]
    VariableName(Text),
    #[error("the plan is for the {0} tier, and has a part too many or too few for this tier: {1}")]
    Tier(&'static str, &'static str),
    #[error("the session to resume, \"{0}\", is not the id of a session")]
    Session(Text),
    #[error("the copy-on-write workspace {0} is not a writable grant")]
    Workspace(AbsPath),
    #[error("the plan is for a container with {0}")]
    Container(&'static str),
    #[error("the plan has exec rules with {0}")]
    Gate(&'static str),
    #[error("the plan has a network with {0}")]
    Network(&'static str),
    #[error("the plan has shells with {0}")]
    Shell(&'static str),
    #[error("the plan for shells is not valid: {0}")]
    ShellPlan(Box<PlanError>),
    #[error("the environment uses <tmp>, but the plan has no private temporary directory")]
    TokenWithoutTemp,
}

impl PlanError {
    pub fn hint(&self) -> &'static str {
        match self {
            PlanError::NotOpen(_)
            | PlanError::NotSealed
            | PlanError::SetUid
            | PlanError::User { .. } => {
                "start it with `paddock run`, which compiles and seals the plan"
            }
            PlanError::NeedsNoNewPrivs => {
                "leave no-new-privs on, or turn landlock and seccomp off as well"
            }
            PlanError::ExecImpossible(_) => "allow the system calls execve and exit_group",
            _ => {
                "the plan comes from `paddock`; use a paddock and a paddock-core of the same release"
            }
        }
    }
}

impl Plan {
    pub fn parse(bytes: &[u8], uid: u32) -> Result<Box<Plan>, PlanError> {
        let mut plan: Box<Plan> = reader::from_slice(bytes).map_err(PlanError::Json)?;
        if let (Tier::Full, Some(files)) = (plan.tier, &mut plan.files) {
            // The full tier mounts outer paths before inner ones. Landlock rules have no order.
            files
                .grants
                .sort_by(|one, other| (&one.path, &one.access).cmp(&(&other.path, &other.access)));
        }
        plan.check(uid)?;
        Ok(plan)
    }

    /// The rights of a named access. Every name in a checked plan has some.
    pub fn rights(&self, access: &Text) -> Rights {
        self.landlock.as_ref().and_then(|landlock| landlock.rights(access)).unwrap_or_default()
    }

    /// Do programs outside see the names that the command makes below this grant? They do not see
    /// those of a private directory, nor those of a copy.
    pub fn shares_names_of(&self, grant: &Grant) -> bool {
        let workspace = self.workspace.as_ref();
        let is_copied = workspace.is_some_and(|workspace| grant.path.is_within(&workspace.path));
        self.tier == Tier::Landlock || !(is_copied || is_private_path(&grant.path))
    }

    /// Do the grants leave all files open? Landlock judges ioctl(2) of devices, which are in /dev.
    /// No grant lets a command make a device.
    pub fn opens_all(&self, files: &FilesPlan) -> bool {
        let rights = |whole: bool| {
            let grants = files.grants.iter().filter(|grant| {
                !whole || (grant.path.as_bytes() == b"/" && grant.except.is_empty())
            });
            grants.fold(Rights::EMPTY, |rights, grant| rights | self.rights(&grant.access))
        };
        files.closed.is_empty()
            && files.unwritable.is_empty()
            && (rights(true) | AccessFs::IoctlDev).contains(rights(false))
    }

    fn check(&self, uid: u32) -> Result<(), PlanError> {
        if self.version != VERSION {
            return Err(PlanError::Version(self.version));
        }
        if self.user.uid != uid {
            return Err(PlanError::User { planned: self.user.uid, actual: uid });
        }
        if !self.no_new_privs && uid != 0 && (self.landlock.is_some() || self.seccomp.is_some()) {
            return Err(PlanError::NeedsNoNewPrivs);
        }
        self.check_tier()?;
        self.container.as_ref().map_or(Ok(()), |container| container.check(self))?;
        self.landlock.as_ref().map_or(Ok(()), Landlock::check)?;
        if let (Some(landlock), Some(files)) = (&self.landlock, &self.files) {
            landlock.check_grants(files)?;
        }
        self.seccomp.as_ref().map_or(Ok(()), Seccomp::check)?;
        self.gate.as_ref().map_or(Ok(()), GatePlan::check)?;
        self.network.as_ref().map_or(Ok(()), |network| network.check_in(self))?;
        self.shell.as_ref().map_or(Ok(()), |shell| shell.check_in(self))?;
        self.environment
            .as_ref()
            .map_or(Ok(()), |environment| environment.check(self.temp.is_some()))?;
        if let (Some(temp), Some(landlock)) = (&self.temp, &self.landlock)
            && landlock.rights(&temp.access).is_none()
        {
            let (path, access) = (temp.parent.clone(), temp.access.clone());
            let from = Text::from_bytes(b"temp".to_vec()).unwrap_or_else(|_| temp.access.clone());
            return Err(PlanError::UnknownAccess { path, access, from });
        }
        match self.journal.as_ref().and_then(|journal| journal.file.as_ref()) {
            Some(name)
                if matches!(name.as_bytes(), b"" | b"." | b"..")
                    || name.as_bytes().contains(&b'/') =>
            {
                Err(PlanError::JournalFile(name.clone()))
            }
            _ => Ok(()),
        }
    }
}

impl Plan {
    fn check_tier(&self) -> Result<(), PlanError> {
        let Some(files) = &self.files else {
            return match (&self.landlock, &self.workspace) {
                (None, None) => Ok(()),
                _ => Err(PlanError::Tier("open", "rules without files")),
            };
        };
        // In the landlock tier names are judged at each write, by intercepted calls.
        let by_name = !files.deny.is_empty()
            || !files.deny_names.is_empty()
            || !files.protect.is_empty()
            || !files.opened.is_empty()
            || !files.flagged.is_empty();
        let unjudged = by_name && self.seccomp.is_none();
        match (self.tier, &self.namespaces) {
            (Tier::Full, None) => return Err(PlanError::Tier("full", "namespaces")),
            (Tier::Full, Some(_)) if self.temp.is_some() => {
                return Err(PlanError::Tier("full", "temp"));
            }
            (Tier::Full, Some(_)) if files.grants.iter().any(|grant| !grant.except.is_empty()) => {
                return Err(PlanError::Tier("full", "an except"));
            }
            (Tier::Landlock, Some(_)) => return Err(PlanError::Tier("landlock", "namespaces")),
            (Tier::Landlock, None) if unjudged => return Err(PlanError::Tier("landlock", "names")),
            (Tier::Landlock, None) if self.workspace.is_some() => {
                return Err(PlanError::Tier("landlock", "workspace"));
            }
            _ => {}
        }
        let Some(workspace) = &self.workspace else { return Ok(()) };
        if !files.grants.iter().any(|grant| grant.path == workspace.path && grant.writes()) {
            return Err(PlanError::Workspace(workspace.path.clone()));
        }
        match &workspace.resume {
            Some(id)
                if !id.as_bytes().iter().all(u8::is_ascii_hexdigit) || id.as_bytes().is_empty() =>
            {
                Err(PlanError::Session(id.clone()))
            }
            _ => Ok(()),
        }
    }
}

impl Landlock {
    fn rights(&self, access: &Text) -> Option<Rights> {
        self.access.iter().find(|(name, _)| name == access).map(|(_, rights)| rights.0)
    }

    fn check(&self) -> Result<(), PlanError> {
        let (rights, scopes) = rights::supported_by(self.abi);
        if self.handled.is_empty() {
            return Err(PlanError::NothingHandled);
        }
        if !rights.contains(self.handled) || !scopes.contains(self.scoped) {
            return Err(PlanError::BeyondAbi(self.abi));
        }
        for (name, RightList(rights)) in &self.access {
            if rights.is_empty() {
                return Err(PlanError::EmptyAccess(name.clone()));
            }
            if !self.handled.contains(*rights) {
                let rights = rights::names(*rights & !self.handled);
                return Err(PlanError::UnhandledRight { name: name.clone(), rights });
            }
        }
        Ok(())
    }

    fn check_grants(&self, files: &FilesPlan) -> Result<(), PlanError> {
        let mut kinds = files.grants.chunk_by(Grant::differs_only_in_path).map(|alike| &alike[0]);
        match kinds.find(|grant| self.rights(&grant.access).is_none()) {
            Some(grant) => {
                let (path, access) = (grant.path.clone(), grant.access.clone());
                Err(PlanError::UnknownAccess { path, access, from: grant.source() })
            }
            None => Ok(()),
        }
    }
}

impl Seccomp {
    fn check(&self) -> Result<(), PlanError> {
        let listed = |name: &str| self.syscalls.iter().any(|syscall| syscall.name == name);
        for needed in ["execve", "exit_group"] {
            if listed(needed) == (self.default == SeccompDefault::Allow) {
                return Err(PlanError::ExecImpossible(needed));
            }
        }
        Ok(())
    }
}

impl Environment {
    fn check(&self, has_temp: bool) -> Result<(), PlanError> {
        for (name, value) in &self.set {
            if name.as_bytes().is_empty() || name.as_bytes().contains(&b'=') {
                return Err(PlanError::VariableName(name.clone()));
            }
            if !has_temp
                && value.as_bytes().windows(TMP_TOKEN.len()).any(|window| window == TMP_TOKEN)
            {
                return Err(PlanError::TokenWithoutTemp);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
