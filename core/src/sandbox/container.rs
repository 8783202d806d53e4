//! A container: the root of the command is a directory of the host, and no other part of the host
//! is there.
//!
//! [`ContainerSandbox::prepare`] finds every error before anything is made. The supervisor then
//! gives the new namespaces their users and control groups ([`ContainerSandbox::admit`]). Init
//! builds the root and leaves the old one ([`RootBuilder`]). The user of the command is set last
//! ([`crate::sandbox::capabilities`]).

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;

use super::capabilities;
use super::error::SandboxError;
use super::id_map::{self, IdMapError};
use super::init::{self, InitError, Launch, RootBuilder, RootReady, SandboxStart};
use super::root::{self, MaskSources, RootError};
use crate::kernel::mount::{self, NO_SUID_NO_DEV};
use crate::kernel::resolved_path::{Identity, ResolvedPath};
use crate::kernel::sys::{self, SignalMask};
use crate::limits::{Limits, LimitsError};
use crate::network::namespace::{self, NamespaceError};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{Container, Grant, Mask, Namespaces, Plan};

/// linux/magic.h.
const CGROUP_SUPER_MAGIC: u64 = 0x0027_E0EB;
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
const NSFS_MAGIC: u64 = 0x6E73_6673;

/// The container mounts its own file systems here, so these directories must exist.
const MOUNT_POINTS: [&CStr; 2] = [c"dev", c"proc"];

#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    #[error("cannot open the root directory {path}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Rootdir { path: AbsPath, source: Errno },
    #[error("the root directory {0} is the host's own")]
    HostRoot(AbsPath),
    #[error("the root directory {path} has no directory /{}", .name.to_string_lossy())]
    MountPoint { path: AbsPath, name: CString },
    #[error(
        "the journal {journal} is in the root directory {path}, where the command could change it"
    )]
    Journal { journal: AbsPath, path: AbsPath },
    #[error("{path} does not exist in the container ({from})")]
    Missing { path: AbsPath, from: Text },
    #[error("cannot open {path} in the container: {} ({from})", crate::kernel::errno_names::errno_text(*.source))]
    Inside { path: AbsPath, from: Text, source: Errno },
    #[error("cannot join the network namespace {path}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Netns { path: AbsPath, source: Errno },
    #[error("cannot enter the control group {path}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Cgroup { path: AbsPath, source: Errno },
    #[error("{0} is not a directory of a control group file system")]
    NoCgroup(AbsPath),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error(transparent)]
    Identity(#[from] IdMapError),
    #[error("{what}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Step { what: &'static str, source: Errno },
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Network(#[from] NamespaceError),
}

impl ContainerError {
    pub fn hint(&self) -> &'static str {
        match self {
            ContainerError::Rootdir { .. } => {
                "give an existing directory by its real path, without symlinks"
            }
            ContainerError::HostRoot(_) => {
                "give the container its own root directory, or use `paddock run` for the host's"
            }
            ContainerError::MountPoint { .. } => "create it: an empty directory is enough",
            ContainerError::Journal { .. } => {
                "put the journal in another directory: --audit-log DIR"
            }
            ContainerError::Missing { .. } => {
                "grants and masks use paths in the container; mark a grant optional with a \
                    trailing \"?\""
            }
            ContainerError::Inside { source: Errno::LOOP, .. } => {
                "the path contains a symlink that a command could have created: write the path \
                    that it leads to"
            }
            ContainerError::Netns { source: Errno::NOENT, .. } => {
                "type `ip netns list` to see the names, or `ip netns add NAME` to create one"
            }
            ContainerError::Netns { .. } => "run paddock as root to join a network namespace",
            ContainerError::Cgroup { source: Errno::NOENT, .. } => {
                "create the control group first, with mkdir"
            }
            ContainerError::Cgroup { .. } => {
                "run paddock as root, or give a control group that is delegated to you"
            }
            ContainerError::NoCgroup(_) => "give a directory below /sys/fs/cgroup",
            ContainerError::Limits(error) => error.hint(),
            ContainerError::Identity(error) => error.hint(),
            ContainerError::Network(error) => error.hint(),
            ContainerError::Inside { .. }
            | ContainerError::Step { .. }
            | ContainerError::Root(_) => {
                "type `paddock doctor` to test every mechanism on this machine"
            }
        }
    }
}

pub struct ContainerSandbox<'p> {
    plan: &'p Plan,
    namespaces: &'p Namespaces,
    container: &'p Container,
    rootdir: OwnedFd,
    netns: Option<OwnedFd>,
    cgroups: Vec<(&'p AbsPath, OwnedFd)>,
}

impl<'p> ContainerSandbox<'p> {
    /// Opens everything, changes nothing.
    pub fn prepare(
        plan: &'p Plan,
        namespaces: &'p Namespaces,
        container: &'p Container,
    ) -> Result<ContainerSandbox<'p>, ContainerError> {
        let rootdir = open_rootdir(&container.rootdir)?;
        if let Some(journal) = &plan.journal {
            check_journal(&journal.dir, &container.rootdir, &rootdir)?;
        }
        let netns = container.netns.as_ref().map(open_netns).transpose()?;
        let cgroups = container.cgroups.iter().map(|path| Ok((path, open_cgroup(path)?)));
        let cgroups = cgroups.collect::<Result<_, ContainerError>>()?;
        let jail = ContainerSandbox { plan, namespaces, container, rootdir, netns, cgroups };
        jail.check_places()?;
        Ok(jail)
    }

    pub fn start(
        self,
        launch: Launch<'_>,
    ) -> Result<Result<SandboxStart, SandboxError>, ContainerError> {
        let Launch { mask, terminal, limits, .. } = launch;
        let step = |what| move |source| ContainerError::Step { what, source };
        // Done before init enters its user namespace: only here is it allowed.
        if let (Some(netns), Some(path)) = (&self.netns, &self.container.netns) {
            let kind = Some(LinkNameSpaceType::Network);
            let joined = rustix::thread::move_into_link_name_space(netns.as_fd(), kind);
            joined.map_err(|source| ContainerError::Netns { path: path.clone(), source })?;
        }
        // The root of the container may not reach this directory, so the host's root opens it.
        let tree = if self.plan.user.uid == 0 {
            let copied = mount::clone_tree(&self.rootdir, NO_SUID_NO_DEV);
            Some(copied.map_err(step("cannot copy the mount of the root directory"))?)
        } else {
            None
        };
        let root_builder = ContainerRoot {
            jail: &self,
            tree,
            terminal,
            pid_max: limits.and_then(Limits::pid_max),
        };
        let mut refused = None;
        let admit = |init| {
            let limited =
                limits.map_or(Ok(()), |limits| limits.admit(init)).map_err(ContainerError::from);
            limited.and_then(|()| self.admit(init, mask)).map_err(|error| {
                refused = Some(error);
                Errno::CANCELED
            })
        };
        let started = init::start(&root_builder, launch, admit, |_| Ok(()));
        match refused {
            Some(error) => Err(error),
            None => Ok(started),
        }
    }

    /// Sets users and control groups, before any process of the container runs.
    fn admit(&self, init: Pid, mask: &SignalMask) -> Result<(), ContainerError> {
        id_map::map(init, self.container, self.plan.user.uid, mask)?;
        for (path, dir) in &self.cgroups {
            enter_cgroup(dir.as_fd(), init)
                .map_err(|source| ContainerError::Cgroup { path: (*path).clone(), source })?;
        }
        Ok(())
    }

    fn grants(&self) -> &'p [Grant] {
        self.plan.files.as_ref().map_or(&[], |files| &files.grants)
    }

    /// Every path that the plan names inside must exist, unless init makes it.
    fn check_places(&self) -> Result<(), ContainerError> {
        for grant in self.grants().iter().filter(|grant| !grant.optional && !is_made(&grant.path)) {
            open_place(self.rootdir.as_fd(), &grant.path, self.follows(grant))
                .map_err(missing(&grant.path, &grant.source()))?;
        }
        for mask in self.container.masks.iter().filter(|mask| !is_made(&mask.path)) {
            open_masked(self.rootdir.as_fd(), mask)?;
        }
        Ok(())
    }

    /// Are symlinks followed? An earlier command could have placed a link to, or in, a writable
    /// directory.
    fn follows(&self, grant: &Grant) -> bool {
        let writing = |other: &&Grant| other.writes() && grant.path.is_within(&other.path);
        !grant.writes() && self.grants().iter().find(writing).is_none()
    }
}

/// Is the path in a file system that the container makes itself?
fn is_made(path: &AbsPath) -> bool {
    let top = path.as_bytes().split(|byte| *byte == b'/').nth(1);
    MOUNT_POINTS.iter().any(|made| top == Some(made.to_bytes()))
}

fn missing(path: &AbsPath, from: &Text) -> impl FnOnce(Errno) -> ContainerError {
    let (path, from) = (path.clone(), from.clone());
    move |source| match source {
        Errno::NOENT | Errno::NOTDIR => ContainerError::Missing { path, from },
        source => ContainerError::Inside { path, from, source },
    }
}

/// Opens a path inside the container: no link can lead out. Without `follow` the path must have no
/// link at all.
fn open_place(root: BorrowedFd<'_>, path: &AbsPath, follow: bool) -> Result<OwnedFd, Errno> {
    if follow {
        return mount::follow_below_root(root, &path.as_c_str());
    }
    let opened = mount::open_below_root(root, &path.as_c_str())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(opened),
    }
}

/// None: the path is missing, and may be. No symlink is followed: a command of an earlier container
/// could have changed it, and the mask would cover another file.
fn open_masked(root: BorrowedFd<'_>, mask: &Mask) -> Result<Option<OwnedFd>, ContainerError> {
    match open_place(root, &mask.path, false) {
        Err(Errno::NOENT | Errno::NOTDIR) if mask.optional => Ok(None),
        place => place.map(Some).map_err(missing(&mask.path, &mask.source)),
    }
}

fn open_rootdir(path: &AbsPath) -> Result<OwnedFd, ContainerError> {
    let failed = |source| ContainerError::Rootdir { path: path.clone(), source };
    let rootdir = mount::open_host(&path.as_c_str()).map_err(failed)?;
    let stat = rustix::fs::fstat(&rootdir).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(failed(Errno::NOTDIR));
    }
    let host = rustix::fs::stat(c"/").map_err(failed)?;
    if Identity::from(&stat) == Identity::from(&host) {
        return Err(ContainerError::HostRoot(path.clone()));
    }
    for name in MOUNT_POINTS {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&rootdir, name, flags, Mode::empty()).map_err(|_| {
            ContainerError::MountPoint { path: path.clone(), name: name.to_owned() }
        })?;
    }
    Ok(rootdir)
}

fn check_journal(
    journal: &AbsPath,
    path: &AbsPath,
    rootdir: &OwnedFd,
) -> Result<(), ContainerError> {
    let failed = |source| ContainerError::Rootdir { path: path.clone(), source };
    let root = Identity::from(&rustix::fs::fstat(rootdir).map_err(failed)?);
    for place in ResolvedPath::all_of(journal.as_bytes()).map_err(failed)? {
        if place.object == Some(root) || place.above.contains(&root) {
            return Err(ContainerError::Journal { journal: journal.clone(), path: path.clone() });
        }
    }
    Ok(())
}

fn open_netns(path: &AbsPath) -> Result<OwnedFd, ContainerError> {
    let failed = |source| ContainerError::Netns { path: path.clone(), source };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).map_err(failed)?;
    match rustix::fs::fstatfs(&opened) {
        Ok(facts) if facts.f_type as u64 == NSFS_MAGIC => Ok(opened),
        Ok(_) => Err(failed(Errno::INVAL)),
        Err(source) => Err(failed(source)),
    }
}

fn open_cgroup(path: &AbsPath) -> Result<OwnedFd, ContainerError> {
    let failed = |source| ContainerError::Cgroup { path: path.clone(), source };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).map_err(failed)?;
    let facts = rustix::fs::fstatfs(&opened).map_err(failed)?;
    match facts.f_type as u64 {
        CGROUP_SUPER_MAGIC | CGROUP2_SUPER_MAGIC => Ok(opened),
        _ => Err(ContainerError::NoCgroup(path.clone())),
    }
}

/// The same file in both cgroup versions: it moves a process with all its threads.
fn enter_cgroup(dir: BorrowedFd<'_>, process: Pid) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let members = rustix::fs::openat(dir, c"cgroup.procs", flags, Mode::empty())?;
    rustix::io::write(&members, process.as_raw_nonzero().to_string().as_bytes()).map(drop)
}

/// Builds the root of the container, in init.
struct ContainerRoot<'a, 'p> {
    jail: &'a ContainerSandbox<'p>,
    /// A copy of the root directory's mount, if only the host's root may make it.
    tree: Option<OwnedFd>,
    terminal: Option<&'a CStr>,
    pid_max: Option<u32>,
}

impl RootBuilder for ContainerRoot<'_, '_> {
    fn extra_namespaces(&self) -> i32 {
        if self.jail.netns.is_some() { 0 } else { libc::CLONE_NEWNET }
    }

    fn hostname(&self) -> &[u8] {
        self.jail.namespaces.hostname.as_bytes()
    }

    fn build_root(
        &self,
        channel: &OwnedFd,
        rulesets: &[BorrowedFd<'_>],
    ) -> Result<RootReady, InitError> {
        self.take_over(channel, rulesets).map_err(InitError::Container)
    }
}

impl ContainerRoot<'_, '_> {
    fn take_over(
        &self,
        channel: &OwnedFd,
        rulesets: &[BorrowedFd<'_>],
    ) -> Result<RootReady, ContainerError> {
        let step = |what| move |source| ContainerError::Step { what, source };
        let container = self.jail.container;
        // While this process still has the caller's user and the caller's rights.
        let copied;
        let tree = match &self.tree {
            Some(tree) => tree,
            None => {
                copied = self.copy_rootdir()?;
                &copied
            }
        };
        let devices = root::take_devices(self.terminal)?;
        if !container.maps_caller(self.jail.plan.user.uid) {
            // The caller's user is not mapped inside: files that it makes would have no owner.
            capabilities::become_group_and_user(0, 0)
                .map_err(step("cannot change to the root directory of the container"))?;
            init::follow_supervisor(channel).map_err(step("cannot tie init to its supervisor"))?;
        }
        // After the control groups were entered: they become the root of what the container sees.
        sys::numeric_syscall(libc::SYS_unshare, [libc::CLONE_NEWCGROUP as u64, 0, 0, 0])
            .map_err(step("cannot create a cgroup namespace"))?;
        if container.loopback {
            namespace::bring_loopback_up()?;
        }
        let root = root::StageDir::find()?.put(tree)?;
        let root = root.as_fd();
        root::attach_at(root, b"/dev", &root::new_tmpfs(None)?)?;
        let shm = root::make_dev(root, &devices, false, None, None)?;
        let proc = root::make_proc(root, self.jail.namespaces.nested, self.pid_max)?;
        self.pin_parents_of_masks(root)?;
        let masks = MaskSources::open(root).map_err(step("cannot open the masks"))?;
        for mask in &container.masks {
            let Some(place) = open_masked(root, mask)? else { continue };
            masks.put_on(place).map_err(|source| ContainerError::Inside {
                path: mask.path.clone(),
                from: mask.source.clone(),
                source,
            })?;
        }
        self.add_rules(root, rulesets)?;
        root::leave_old_root(root)?;
        Ok(RootReady { proc, volatile: vec![shm] })
    }

    /// Pins the directories above masks: a mount point can not be moved. Otherwise a masked file
    /// could be moved to a name that the next container does not mask.
    fn pin_parents_of_masks(&self, root: BorrowedFd<'_>) -> Result<(), ContainerError> {
        let mut pinned = BTreeSet::new();
        for mask in &self.jail.container.masks {
            let path = mask.path.as_bytes();
            for end in (1..path.len()).filter(|end| path[*end] == b'/') {
                let Ok(parent) = Text::from_bytes(path[..end].to_vec()).and_then(AbsPath::new)
                else {
                    break;
                };
                if is_made(&parent) || pinned.contains(&parent) {
                    continue;
                }
                // A missing path and a symlink are reported when the mask is placed.
                let Ok(place) = open_place(root, &parent, false) else { break };
                mount::clone_tree(&place, NO_SUID_NO_DEV)
                    .and_then(|tree| mount::attach(tree, place))
                    .map_err(|source| ContainerError::Inside {
                        path: parent.clone(),
                        from: mask.source.clone(),
                        source,
                    })?;
                pinned.insert(parent);
            }
        }
        Ok(())
    }

    fn copy_rootdir(&self) -> Result<OwnedFd, ContainerError> {
        let path = &self.jail.container.rootdir;
        let failed = |source| ContainerError::Rootdir { path: path.clone(), source };
        let seen = rustix::fs::fstat(&self.jail.rootdir).map_err(failed)?;
        // Descriptors that were opened before belong to the mounts of another namespace.
        let opened = mount::open_host(&path.as_c_str()).map_err(failed)?;
        if Identity::from(&rustix::fs::fstat(&opened).map_err(failed)?) != Identity::from(&seen) {
            return Err(failed(Errno::STALE));
        }
        mount::clone_tree(opened, NO_SUID_NO_DEV).map_err(failed)
    }

    fn add_rules(
        &self,
        root: BorrowedFd<'_>,
        rulesets: &[BorrowedFd<'_>],
    ) -> Result<(), ContainerError> {
        for grant in self.jail.grants().iter().filter(|_| !rulesets.is_empty()) {
            let place = match open_place(root, &grant.path, self.jail.follows(grant)) {
                Err(_) if grant.optional => continue,
                place => place.map_err(missing(&grant.path, &grant.source()))?,
            };
            root::add_rule_at(place, self.jail.plan, grant, rulesets).map_err(|source| {
                ContainerError::Inside { path: grant.path.clone(), from: grant.source(), source }
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> AbsPath {
        AbsPath::new(Text::from_bytes(text.as_bytes().to_vec()).unwrap()).unwrap()
    }

    #[test]
    fn the_container_makes_its_own_dev_and_proc() {
        assert!(
            is_made(&path("/proc"))
                && is_made(&path("/proc/timer_list"))
                && is_made(&path("/dev/null"))
        );
        assert!(
            !is_made(&path("/")) && !is_made(&path("/process")) && !is_made(&path("/srv/proc"))
        );
    }

    /// C-150, without a cgroup file system.
    #[test]
    fn a_process_enters_a_control_group_by_its_pid() {
        let dir = std::env::temp_dir().join(format!("paddock-cgroup-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let opened =
            rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert_eq!(enter_cgroup(opened.as_fd(), Pid::INIT), Err(Errno::NOENT));
        std::fs::write(dir.join("cgroup.procs"), "").unwrap();
        enter_cgroup(opened.as_fd(), Pid::INIT).unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("cgroup.procs")).unwrap(), "1");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_plain_directory_is_no_control_group() {
        assert!(matches!(open_cgroup(&path("/etc")), Err(ContainerError::NoCgroup(_))));
        assert!(matches!(
            open_cgroup(&path("/no/such")),
            Err(ContainerError::Cgroup { source: Errno::NOENT, .. })
        ));
    }

    #[test]
    fn the_root_of_the_host_is_refused_as_a_container() {
        assert!(matches!(open_rootdir(&path("/")), Err(ContainerError::HostRoot(_))));
        assert!(matches!(
            open_netns(&path("/etc/passwd")),
            Err(ContainerError::Netns { source: Errno::INVAL, .. })
        ));
    }
}
