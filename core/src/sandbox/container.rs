//! A container: the command's root is a directory of the host, and nothing else of the host is
//! there.
//!
//! Everything that can be wrong is found before anything is made ([`Jail::prepare`]). The
//! supervisor then gives the new namespaces their users and their control groups ([`Jail::admit`]),
//! and init furnishes the root and leaves the old one ([`Furnish`]). Who the command is in there,
//! the fence decides last ([`crate::sandbox::capabilities`]).

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::LinkNameSpaceType;

use super::capabilities;
use super::enter::Fence;
use super::error::SandboxError;
use super::id_map::{self, IdentityError};
use super::init::{self, Attend, Furnish, InitError, Payload, RootReady, Started};
use super::root::{self, Masks, RootError};
use crate::kernel::mount::{self, PLAIN};
use crate::kernel::resolved_path::{Identity, Place};
use crate::kernel::sys::{self, SignalMask};
use crate::limits::{Limits, LimitsError};
use crate::network::namespace::{self, InsideError};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{Container, Grant, Namespaces, Plan};

/// linux/magic.h.
const CGROUP_SUPER_MAGIC: u64 = 0x0027_E0EB;
const CGROUP2_SUPER_MAGIC: u64 = 0x6367_7270;
const NSFS_MAGIC: u64 = 0x6E73_6673;

/// Where the container gets file systems of its own, so they have to be there.
const MOUNT_POINTS: [&CStr; 2] = [c"dev", c"proc"];

#[derive(Debug, thiserror::Error)]
pub enum JailError {
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
    Identity(#[from] IdentityError),
    #[error("{what}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Step { what: &'static str, source: Errno },
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Network(#[from] InsideError),
}

impl JailError {
    pub fn hint(&self) -> &'static str {
        match self {
            JailError::Rootdir { .. } => {
                "give an existing directory by its real path, without symlinks"
            }
            JailError::HostRoot(_) => {
                "give the container its own root directory, or use `paddock run` for the host's"
            }
            JailError::MountPoint { .. } => "create it: an empty directory is enough",
            JailError::Journal { .. } => "put the journal in another directory: --audit-log DIR",
            JailError::Missing { .. } => {
                "grants and masks use paths in the container; mark a grant optional with a \
                    trailing \"?\""
            }
            JailError::Inside { source: Errno::LOOP, .. } => {
                "the path contains a symlink that a command could have created: write the path \
                    that it leads to"
            }
            JailError::Netns { source: Errno::NOENT, .. } => {
                "type `ip netns list` to see the names, or `ip netns add NAME` to create one"
            }
            JailError::Netns { .. } => "run paddock as root to join a network namespace",
            JailError::Cgroup { source: Errno::NOENT, .. } => {
                "create the control group first, with mkdir"
            }
            JailError::Cgroup { .. } => {
                "run paddock as root, or give a control group that is delegated to you"
            }
            JailError::NoCgroup(_) => "give a directory below /sys/fs/cgroup",
            JailError::Limits(error) => error.hint(),
            JailError::Identity(error) => error.hint(),
            JailError::Network(error) => error.hint(),
            JailError::Inside { .. } | JailError::Step { .. } | JailError::Root(_) => {
                "type `paddock doctor` to test every mechanism on this machine"
            }
        }
    }
}

pub struct Jail<'p> {
    plan: &'p Plan,
    namespaces: &'p Namespaces,
    container: &'p Container,
    rootdir: OwnedFd,
    netns: Option<OwnedFd>,
    cgroups: Vec<(&'p AbsPath, OwnedFd)>,
}

impl<'p> Jail<'p> {
    /// Opens everything, changes nothing.
    pub fn prepare(
        plan: &'p Plan,
        namespaces: &'p Namespaces,
        container: &'p Container,
    ) -> Result<Jail<'p>, JailError> {
        let rootdir = open_rootdir(&container.rootdir)?;
        if let Some(journal) = &plan.journal {
            check_journal(&journal.dir, &container.rootdir, &rootdir)?;
        }
        let netns = container.netns.as_ref().map(open_netns).transpose()?;
        let cgroups = container.cgroups.iter().map(|path| Ok((path, open_cgroup(path)?)));
        let cgroups = cgroups.collect::<Result<_, JailError>>()?;
        let jail = Jail { plan, namespaces, container, rootdir, netns, cgroups };
        jail.check_places()?;
        Ok(jail)
    }

    pub fn start(
        self,
        fence: &Fence,
        payload: Payload<'_>,
        mask: &SignalMask,
        terminal: Option<&CStr>,
        limits: &Limits,
        attend: Attend<'_>,
    ) -> Result<Result<Started, SandboxError>, JailError> {
        let step = |what| move |source| JailError::Step { what, source };
        // Before the user namespace is left behind, in which that is allowed.
        if let (Some(netns), Some(path)) = (&self.netns, &self.container.netns) {
            let kind = Some(LinkNameSpaceType::Network);
            let joined = rustix::thread::move_into_link_name_space(netns.as_fd(), kind);
            joined.map_err(|source| JailError::Netns { path: path.clone(), source })?;
        }
        // Root opens what the root of the container may not reach: the way to the directory.
        let tree = if self.plan.user.uid == 0 {
            let copied = mount::clone_tree(&self.rootdir, PLAIN);
            Some(copied.map_err(step("cannot copy the mount of the root directory"))?)
        } else {
            None
        };
        let interior = Interior { jail: &self, tree, terminal, pid_max: limits.pid_max() };
        let mut refused = None;
        let admit = |init| {
            let limited = limits.admit(init).map_err(JailError::from);
            limited.and_then(|()| self.admit(init, mask)).map_err(|error| {
                refused = Some(error);
                Errno::CANCELED
            })
        };
        let started = init::start(&interior, fence, payload, mask, admit, |_| Ok(()), attend);
        match refused {
            Some(error) => Err(error),
            None => Ok(started),
        }
    }

    /// Users and control groups, before anything of the container runs.
    fn admit(&self, init: Pid, mask: &SignalMask) -> Result<(), JailError> {
        id_map::map(init, self.container, self.plan.user.uid, mask)?;
        for (path, dir) in &self.cgroups {
            enter_cgroup(dir.as_fd(), init)
                .map_err(|source| JailError::Cgroup { path: (*path).clone(), source })?;
        }
        Ok(())
    }

    fn grants(&self) -> &'p [Grant] {
        self.plan.files.as_ref().map_or(&[], |files| &files.grants)
    }

    /// What the plan names inside and is not made anew has to be there.
    fn check_places(&self) -> Result<(), JailError> {
        let grants = self
            .grants()
            .iter()
            .map(|grant| (&grant.path, grant.optional, grant.source(), self.follows(grant)));
        let masks = self
            .container
            .masks
            .iter()
            .map(|mask| (&mask.path, mask.optional, mask.source.clone(), true));
        for (path, optional, from, follow) in grants.chain(masks) {
            if !optional && !is_made(path) {
                open_place(self.rootdir.as_fd(), path, follow).map_err(missing(path, &from))?;
            }
        }
        Ok(())
    }

    /// A link to a place that can be written, or in one, could have been put there by an earlier
    /// command.
    fn follows(&self, grant: &Grant) -> bool {
        let writing = |other: &&Grant| other.writes() && grant.path.is_within(&other.path);
        !grant.writes() && self.grants().iter().find(writing).is_none()
    }
}

/// Places of the container that are not of its root directory.
fn is_made(path: &AbsPath) -> bool {
    let top = path.as_bytes().split(|byte| *byte == b'/').nth(1);
    MOUNT_POINTS.iter().any(|made| top == Some(made.to_bytes()))
}

fn missing(path: &AbsPath, from: &Text) -> impl FnOnce(Errno) -> JailError {
    let (path, from) = (path.clone(), from.clone());
    move |source| match source {
        Errno::NOENT | Errno::NOTDIR => JailError::Missing { path, from },
        source => JailError::Inside { path, from, source },
    }
}

/// A name of the container, resolved in it: no link can lead out. Without `follow`, none may be
/// there at all.
fn open_place(root: BorrowedFd<'_>, path: &AbsPath, follow: bool) -> Result<OwnedFd, Errno> {
    if follow {
        return mount::follow_inside(root, &path.as_c_str());
    }
    let opened = mount::open_inside(root, &path.as_c_str())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(opened),
    }
}

fn open_rootdir(path: &AbsPath) -> Result<OwnedFd, JailError> {
    let failed = |source| JailError::Rootdir { path: path.clone(), source };
    let rootdir = mount::open_host(&path.as_c_str()).map_err(failed)?;
    let stat = rustix::fs::fstat(&rootdir).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(failed(Errno::NOTDIR));
    }
    let host = rustix::fs::stat(c"/").map_err(failed)?;
    if Identity::from(&stat) == Identity::from(&host) {
        return Err(JailError::HostRoot(path.clone()));
    }
    for name in MOUNT_POINTS {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&rootdir, name, flags, Mode::empty())
            .map_err(|_| JailError::MountPoint { path: path.clone(), name: name.to_owned() })?;
    }
    Ok(rootdir)
}

fn check_journal(journal: &AbsPath, path: &AbsPath, rootdir: &OwnedFd) -> Result<(), JailError> {
    let failed = |source| JailError::Rootdir { path: path.clone(), source };
    let root = Identity::from(&rustix::fs::fstat(rootdir).map_err(failed)?);
    for place in Place::all_of(journal.as_bytes()).map_err(failed)? {
        if place.object == Some(root) || place.above.contains(&root) {
            return Err(JailError::Journal { journal: journal.clone(), path: path.clone() });
        }
    }
    Ok(())
}

fn open_netns(path: &AbsPath) -> Result<OwnedFd, JailError> {
    let failed = |source| JailError::Netns { path: path.clone(), source };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).map_err(failed)?;
    match rustix::fs::fstatfs(&opened) {
        Ok(facts) if facts.f_type as u64 == NSFS_MAGIC => Ok(opened),
        Ok(_) => Err(failed(Errno::INVAL)),
        Err(source) => Err(failed(source)),
    }
}

fn open_cgroup(path: &AbsPath) -> Result<OwnedFd, JailError> {
    let failed = |source| JailError::Cgroup { path: path.clone(), source };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).map_err(failed)?;
    let facts = rustix::fs::fstatfs(&opened).map_err(failed)?;
    match facts.f_type as u64 {
        CGROUP_SUPER_MAGIC | CGROUP2_SUPER_MAGIC => Ok(opened),
        _ => Err(JailError::NoCgroup(path.clone())),
    }
}

/// The same file in both versions: a process with all its threads, by its number.
fn enter_cgroup(dir: BorrowedFd<'_>, process: Pid) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let members = rustix::fs::openat(dir, c"cgroup.procs", flags, Mode::empty())?;
    rustix::io::write(&members, process.as_raw_nonzero().to_string().as_bytes()).map(drop)
}

/// What init makes of the container.
struct Interior<'a, 'p> {
    jail: &'a Jail<'p>,
    /// The root directory's mount, copied where that takes the host's root.
    tree: Option<OwnedFd>,
    terminal: Option<&'a CStr>,
    pid_max: Option<u32>,
}

impl Furnish for Interior<'_, '_> {
    fn kinds(&self) -> i32 {
        if self.jail.netns.is_some() { 0 } else { libc::CLONE_NEWNET }
    }

    fn hostname(&self) -> &[u8] {
        self.jail.namespaces.hostname.as_bytes()
    }

    fn furnish(
        &self,
        channel: &OwnedFd,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<RootReady, InitError> {
        self.take_over(channel, ruleset).map_err(InitError::Jail)
    }
}

impl Interior<'_, '_> {
    fn take_over(
        &self,
        channel: &OwnedFd,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<RootReady, JailError> {
        let step = |what| move |source| JailError::Step { what, source };
        let container = self.jail.container;
        // As long as we are our caller, and may go where he may.
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
            // Nobody in here is our caller: what is made by us would have no owner.
            capabilities::become_group_and_user(0, 0)
                .map_err(step("cannot change to the root directory of the container"))?;
            init::follow_supervisor(channel).map_err(step("cannot tie init to its supervisor"))?;
        }
        // After the control groups were entered: they are the top of what can be seen of them.
        sys::numeric_syscall(libc::SYS_unshare, [libc::CLONE_NEWCGROUP as u64, 0, 0, 0])
            .map_err(step("cannot create a cgroup namespace"))?;
        if container.loopback {
            namespace::bring_loopback_up()?;
        }
        let root = root::Stage::find()?.put(tree)?;
        let root = root.as_fd();
        root::attach_at(root, b"/dev", &root::new_tmpfs(None)?)?;
        let shm = root::make_dev(root, &devices, false, None, None)?;
        let proc = root::make_proc(root, self.jail.namespaces.nested, self.pid_max)?;
        self.pin_ways_to_masks(root)?;
        let masks = Masks::open(root).map_err(step("cannot open the masks"))?;
        for mask in &container.masks {
            match open_place(root, &mask.path, true) {
                Err(Errno::NOENT | Errno::NOTDIR) if mask.optional => {}
                place => {
                    let place = place.map_err(missing(&mask.path, &mask.source))?;
                    masks.put_on(place).map_err(|source| JailError::Inside {
                        path: mask.path.clone(),
                        from: mask.source.clone(),
                        source,
                    })?;
                }
            }
        }
        self.add_rules(root, ruleset)?;
        root::leave_old_root(root)?;
        Ok(RootReady { proc, volatile: vec![shm] })
    }

    /// What is mounted on can not be moved: what a mask hides would be somewhere else in the next
    /// container, where it is hidden from nobody.
    fn pin_ways_to_masks(&self, root: BorrowedFd<'_>) -> Result<(), JailError> {
        let mut pinned = BTreeSet::new();
        for mask in &self.jail.container.masks {
            let path = mask.path.as_bytes();
            for end in (1..path.len()).filter(|end| path[*end] == b'/') {
                let Ok(way) = Text::from_bytes(path[..end].to_vec()).and_then(AbsPath::new) else {
                    break;
                };
                if is_made(&way) || pinned.contains(&way) {
                    continue;
                }
                // What is not there is missed when it is masked, if it is.
                let Ok(place) = open_place(root, &way, true) else { break };
                mount::clone_tree(&place, PLAIN)
                    .and_then(|tree| mount::attach(tree, place))
                    .map_err(|source| JailError::Inside {
                        path: way.clone(),
                        from: mask.source.clone(),
                        source,
                    })?;
                pinned.insert(way);
            }
        }
        Ok(())
    }

    fn copy_rootdir(&self) -> Result<OwnedFd, JailError> {
        let path = &self.jail.container.rootdir;
        let failed = |source| JailError::Rootdir { path: path.clone(), source };
        let seen = rustix::fs::fstat(&self.jail.rootdir).map_err(failed)?;
        // What was opened before belongs to the mounts of another namespace.
        let opened = mount::open_host(&path.as_c_str()).map_err(failed)?;
        if Identity::from(&rustix::fs::fstat(&opened).map_err(failed)?) != Identity::from(&seen) {
            return Err(failed(Errno::STALE));
        }
        mount::clone_tree(opened, PLAIN).map_err(failed)
    }

    fn add_rules(
        &self,
        root: BorrowedFd<'_>,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<(), JailError> {
        let Some(ruleset) = ruleset else { return Ok(()) };
        for grant in self.jail.grants() {
            let place = match open_place(root, &grant.path, self.jail.follows(grant)) {
                Err(_) if grant.optional => continue,
                place => place.map_err(missing(&grant.path, &grant.source()))?,
            };
            root::add_rule_at(place, self.jail.plan, grant, ruleset).map_err(|source| {
                JailError::Inside { path: grant.path.clone(), from: grant.source(), source }
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
    fn a_process_enters_a_control_group_by_its_number() {
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
        assert!(matches!(open_cgroup(&path("/etc")), Err(JailError::NoCgroup(_))));
        assert!(matches!(
            open_cgroup(&path("/no/such")),
            Err(JailError::Cgroup { source: Errno::NOENT, .. })
        ));
    }

    #[test]
    fn the_hosts_root_is_no_container() {
        assert!(matches!(open_rootdir(&path("/")), Err(JailError::HostRoot(_))));
        assert!(matches!(
            open_netns(&path("/etc/passwd")),
            Err(JailError::Netns { source: Errno::INVAL, .. })
        ));
    }
}
