//! The root directory of the command: each grant at its own path, and nothing else.
//!
//! It is an empty tmpfs. On it is a copy of the mount of each grant, read-only unless the grant
//! writes, and private /tmp, /dev and /proc (`sandbox/root/private_dirs.rs`). Then the old root is
//! left for good. Denied names inside grants are covered last (`sandbox/root/cover_names.rs`), so
//! that no later mount uncovers them. All of it happens in init. Meanwhile the supervisor finds, in
//! this order, the locations of grants, the names that a copy hides, and the names to cover.

mod cover_names;
mod private_dirs;
pub mod shells;

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use landlock::AccessFs;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};

use super::init::RootReady;
use super::init_channel::{self, InitMessage};
use super::landlock::{GrantLocation, grant_location};
use super::overlay::OverlayLayers;
use crate::files::workspace::session_dir::Session;
use crate::files::workspace::whiteouts::Whiteouts;
use crate::files::writes::WriteLock;
use crate::kernel::mount::{self, NO_EXEC, NO_SUID_NO_DEV, READ_ONLY};
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys;
use crate::plan::rights::{self, Rights};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{self, Grant, Namespaces, Plan};

pub use cover_names::cover;
use private_dirs::{CA_BUNDLE, is_own_device, make_tmp, take_device};
pub use private_dirs::{Devices, MaskSources, make_dev, make_proc, new_tmpfs, take_devices};
use shells::Interception;

#[derive(Debug, thiserror::Error)]
#[error("{act} {}: {}", String::from_utf8_lossy(.path), crate::kernel::errno_names::errno_text(*.errno))]
pub struct RootError {
    act: &'static str,
    path: Vec<u8>,
    errno: Errno,
}

const NO_COPY: &str = "cannot mount a copy over";

impl RootError {
    pub fn errno(&self) -> Errno {
        self.errno
    }

    pub fn hint(&self) -> &'static str {
        match self.errno {
            Errno::STALE => "it was moved or replaced while paddock started: start the run again",
            _ if self.act == NO_COPY => {
                "its file system, or that of ~/.local/state/paddock, does not support overlayfs: \
                    run without --cow"
            }
            Errno::MFILE => "raise the limit of open files: ulimit -n 1024",
            Errno::NOSPC | Errno::NFILE => {
                "the kernel has no free mounts or files; end other programs first"
            }
            _ => {
                "type `paddock doctor` to test every mechanism, or run without namespaces: --tier \
                landlock"
            }
        }
    }
}

type RootResult<T> = Result<T, RootError>;

fn failed(act: &'static str, path: impl AsRef<[u8]>) -> impl FnOnce(Errno) -> RootError {
    move |errno| RootError { act, path: path.as_ref().to_vec(), errno }
}

/// The inputs of the root.
pub struct RootBlueprint<'a> {
    pub plan: &'a Plan,
    pub namespaces: &'a Namespaces,
    pub requested: &'a plan::FilesPlan,
    /// Set if the workspace is a copy.
    pub session: Option<&'a Session>,
    /// The caller's terminal, by name.
    pub terminal: Option<&'a CStr>,
    /// Certificates that programs inside trust, if some hosts are inspected.
    pub ca_bundle: Option<&'a OwnedFd>,
    pub pid_max: Option<u32>,
    /// The caller's group id: in the new namespace no id is known until it is mapped.
    pub gid: u32,
    /// For init, if it does the writes of the command.
    pub lock: &'a Cell<Option<WriteLock>>,
}

impl<'a> RootBlueprint<'a> {
    /// Grants of paths that the sandbox makes itself: they are no paths of the host.
    fn made(&self) -> impl Iterator<Item = &'a Grant> {
        self.requested.grants.iter().filter(|grant| plan::is_private_path(&grant.path))
    }

    /// May every directory be listed? The directories above grants hold nothing else. But a rule on
    /// the root covers the grants too, so only if every grant may be listed.
    fn may_list_everything(&self, locations: &[GrantLocation<'_>]) -> bool {
        let lists = |location: &GrantLocation<'_>| {
            !location.directory
                || self.plan.rights(&location.grant.access).contains(AccessFs::ReadDir)
        };
        locations.iter().all(lists)
            && locations.iter().all(|location| location.real.as_bytes() != b"/")
    }
}

fn within(path: &AbsPath, tree: &[u8]) -> bool {
    path.as_bytes().strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// A directory of the host where the new root is mounted, in this namespace only, until it becomes
/// the root.
pub struct StageDir {
    name: &'static CStr,
    /// The host's directory below the mount.
    below: OwnedFd,
}

impl StageDir {
    const STAGE_DIRS: [&CStr; 4] = [c"/tmp", c"/usr", c"/etc", c"/proc"];

    pub fn find() -> RootResult<StageDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |name: &&'static CStr| {
            Some(StageDir { name, below: rustix::fs::open(*name, flags, Mode::empty()).ok()? })
        };
        let found = StageDir::STAGE_DIRS.iter().find_map(open);
        found.ok_or_else(|| {
            failed("no directory exists to build the root on, such as", b"/tmp")(Errno::NOENT)
        })
    }

    /// Mounts a tree there, over earlier ones, and opens it.
    pub fn put(&self, tree: &OwnedFd) -> RootResult<OwnedFd> {
        let name = self.name;
        mount::attach_by_name(tree, CWD, name)
            .map_err(failed("cannot build the root on", name.to_bytes()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(name, flags, Mode::empty()).map_err(failed("cannot open", name.to_bytes()))
    }

    /// As [`mount::open_host`], below the mounts that were placed here.
    fn open_host(&self, path: &CStr) -> Result<OwnedFd, Errno> {
        let rest = path.to_bytes_with_nul().strip_prefix(self.name.to_bytes());
        match rest.and_then(|rest| CStr::from_bytes_with_nul(rest.strip_prefix(b"/")?).ok()) {
            Some(name) => mount::open_host_at(&self.below, name),
            None => mount::open_host(path),
        }
    }
}

/// Detached mounts and their paths.
struct MountClones<'a> {
    trees: Vec<MountClone<'a>>,
    /// The workspace, if it will be a copy: its mount waits for the list of hidden names.
    lower: Option<OwnedFd>,
}

struct MountClone<'a> {
    location: &'a GrantLocation<'a>,
    /// None: it is the copy or a part of it.
    mount: Option<OwnedFd>,
    opens: MountAccess,
}

/// The access that a mount gives. Grants add up, so one inside another gives at least as much.
#[derive(Clone, Copy, PartialEq)]
struct MountAccess {
    writing: bool,
    executing: bool,
}

impl MountAccess {
    fn by(grant: &Grant) -> Self {
        Self { writing: grant.writes(), executing: grant.executes() }
    }

    fn and(self, other: Self) -> Self {
        Self {
            writing: self.writing || other.writing,
            executing: self.executing || other.executing,
        }
    }

    fn attributes(self) -> MountAttrFlags {
        let locked = if self.writing { MountAttrFlags::empty() } else { READ_ONLY };
        let inert = if self.executing { MountAttrFlags::empty() } else { NO_EXEC };
        NO_SUID_NO_DEV | locked | inert
    }
}

/// The parts that every root has.
struct BaseRoot {
    root: OwnedFd,
    tmp: OwnedFd,
    shm: OwnedFd,
    proc: OwnedFd,
    /// The entries of its /dev.
    devices: Devices,
}

impl BaseRoot {
    /// `root` is empty, or has a tmpfs of the sandbox at /tmp and at /dev.
    fn furnish(
        root: OwnedFd,
        blueprint: &RootBlueprint<'_>,
        devices: Devices,
        interception: Option<&Interception<'_>>,
        rulesets: &[BorrowedFd<'_>],
    ) -> RootResult<BaseRoot> {
        let at = root.as_fd();
        let tmp = make_tmp(at, blueprint)?;
        let shm = make_dev(
            at,
            &devices,
            blueprint.plan.network.is_some(),
            blueprint.ca_bundle,
            interception,
        )?;
        let proc = make_proc(at, blueprint.namespaces.nested, blueprint.pid_max)?;
        add_rules(at, blueprint.plan, blueprint.made(), rulesets)?;
        for ruleset in rulesets.iter().filter(|_| blueprint.ca_bundle.is_some()) {
            let ca_bundle = mount::open_below_root(at, CA_BUNDLE)
                .map_err(failed("cannot open", CA_BUNDLE.to_bytes()))?;
            let read = Rights::from(AccessFs::ReadFile);
            sys::landlock_add_rule(*ruleset, read.bits(), ca_bundle.as_fd())
                .map_err(failed("cannot grant", CA_BUNDLE.to_bytes()))?;
        }
        Ok(BaseRoot { root, tmp, shm, proc, devices })
    }
}

/// Leaves this process in the new root.
pub fn build(
    blueprint: &RootBlueprint<'_>,
    rulesets: &[BorrowedFd<'_>],
    channel: &OwnedFd,
) -> RootResult<RootReady> {
    let tmp_mb = blueprint.namespaces.tmp_mb;
    // These parts do not depend on the locations of grants, which the supervisor still looks up.
    let devices = copy_devices(blueprint)?;
    let interception = Interception::prepare(blueprint)?;
    let reopen = |session: &Session| {
        session.reopen().map_err(failed(NO_COPY, session.workspace().as_bytes()))
    };
    let above = blueprint.session.map(reopen).transpose()?;
    let stage = StageDir::find()?;
    let whiteouts = match &above {
        Some(_) => Some(
            OverlayLayers::stage(&stage)
                .map_err(failed("cannot create a file system in memory for", b"/"))?,
        ),
        None => None,
    };
    let own = new_tmpfs(tmp_mb)?;
    let mut base =
        BaseRoot::furnish(stage.put(&own)?, blueprint, devices, interception.as_ref(), rulesets)?;

    let received = receive_locations(channel)
        .and_then(|bytes| grant_location::decode(blueprint.requested, &bytes));
    let locations = received.map_err(failed("cannot examine the mount point", b"/"))?;
    let MountClones { mut trees, lower } = take_clones(blueprint, &stage, &locations)?;
    let is_whole =
        |tree: &MountClone<'_>| tree.location.real.as_bytes() == b"/" && tree.mount.is_some();
    let whole = trees.iter().position(is_whole).and_then(|index| trees.remove(index).mount);
    if let Some(whole) = &whole {
        // Nothing can be created in the host's directories.
        let root = stage.put(whole)?;
        attach_at(root.as_fd(), b"/tmp", &new_tmpfs(tmp_mb)?)?;
        attach_at(root.as_fd(), b"/dev", &new_tmpfs(tmp_mb)?)?;
        base = BaseRoot::furnish(
            root,
            blueprint,
            copy_devices(blueprint)?,
            interception.as_ref(),
            rulesets,
        )?;
    }
    let root = base.root.as_fd();
    if whole.is_none() {
        // All of this comes before the grants: in a writable one it would be made on the host.
        for link in locations.iter().flat_map(|location| &location.links) {
            make_link(root, link)?;
        }
        // Directories that must exist, even without a grant.
        for path in [&blueprint.plan.user.home, &blueprint.plan.workdir] {
            make_dir(root, path.as_bytes())?;
        }
    }
    for tree in &trees {
        if let Some(mount) = &tree.mount {
            put_in_place(root, tree, mount)?;
        }
    }
    if let (Some(session), Some(lower), Some(above), Some(whiteouts)) =
        (blueprint.session, lower, above, &whiteouts)
    {
        let layers = OverlayLayers::new(lower, above);
        let hidden =
            receive_hidden(channel).map_err(failed("cannot read the names to hide below", b"/"))?;
        for tree in trees.iter().filter(|tree| tree.mount.is_none()) {
            put_copied(root, session, tree, &layers, &hidden, whiteouts.as_fd())?;
        }
        // Rules for paths that did not exist when the other rules were added.
        let copied = locations.iter().map(|location| location.grant);
        let copied = copied.filter(|grant| grant.path.is_within(session.workspace()));
        add_rules(root, blueprint.plan, copied, rulesets)?;
    }
    if blueprint.may_list_everything(&locations) {
        let list = Rights::from(AccessFs::ReadDir);
        for ruleset in rulesets {
            sys::landlock_add_rule(*ruleset, list.bits(), root)
                .map_err(failed("cannot grant", b"/"))?;
        }
    }
    if let Some(interception) = &interception {
        interception.intercept(root, blueprint, &locations, rulesets)?;
    }
    if whole.is_none() {
        // A link, not another directory: its content is gone with the run anyway.
        make_dir(root, b"/var")?;
        ignoring(Errno::EXIST, rustix::fs::symlinkat(c"/tmp", root, c"var/tmp"))
            .map_err(failed("cannot link", b"/var/tmp"))?;
        sys::mount_setattr(root, false, (NO_SUID_NO_DEV | READ_ONLY).bits().into(), 0)
            .map_err(failed("cannot lock", b"/"))?;
    }
    leave_old_root(root)?;
    if let (Some(session), Some(whiteouts)) = (blueprint.session, &whiteouts) {
        let path = session.workspace().as_bytes();
        let view =
            mount::open_below_root(root, &relative(path)?).map_err(failed("cannot open", path))?;
        init_channel::send(channel, &InitMessage::Copied, &[view.as_fd(), whiteouts.as_fd()])
            .map_err(failed("cannot show", path))?;
    }
    let BaseRoot { root, tmp, shm, proc, devices } = base;
    // Each file system is listed once.
    let volatile = if whole.is_some() { vec![tmp, shm] } else { vec![tmp] };
    // To close these takes long. The exec of the command closes them, and init does while the
    // command runs.
    std::mem::forget((trees, root, devices, own, whole, interception, stage));
    Ok(RootReady { proc, volatile })
}

/// Receives messages until the list is complete. `take` returns whether the message belongs to the
/// list.
fn receive_list(channel: &OwnedFd, mut take: impl FnMut(InitMessage) -> bool) -> Result<(), Errno> {
    loop {
        match init_channel::receive(channel, true)? {
            Some((InitMessage::All, _)) => return Ok(()),
            Some((message, _)) => {
                if !take(message) {
                    return Err(Errno::PROTO);
                }
            }
            None => return Err(Errno::SRCH),
        }
    }
}

fn receive_locations(channel: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut places = Vec::new();
    receive_list(channel, |message| match message {
        InitMessage::GrantLocations(part) => {
            places.extend(part);
            true
        }
        _ => false,
    })?;
    Ok(places)
}

fn receive_hidden(channel: &OwnedFd) -> Result<Whiteouts, Errno> {
    let mut hidden = Whiteouts::default();
    receive_list(channel, |message| match message {
        InitMessage::Hide(names) => {
            names.split(|byte| *byte == 0).for_each(|name| hidden.add(name));
            true
        }
        _ => false,
    })?;
    Ok(hidden)
}

fn take_clones<'a>(
    blueprint: &RootBlueprint<'_>,
    stage: &StageDir,
    locations: &'a [GrantLocation<'a>],
) -> RootResult<MountClones<'a>> {
    let mut trees: Vec<MountClone<'a>> = Vec::with_capacity(locations.len());
    let mut lower = None;
    let mut locations: Vec<&'a GrantLocation<'a>> = locations.iter().collect();
    // Parents come before their entries. Of two grants on one path the writing one counts, which
    // includes the other.
    locations.sort_by_key(|location| (location.real.as_bytes(), !location.grant.writes()));
    for location in locations {
        let requested = MountAccess::by(location.grant);
        let above = trees.iter().rev().find(|other| location.real.is_within(&other.location.real));
        // Unless the private /tmp is between the two.
        let shown = above.filter(|other| {
            !within(&location.real, b"/tmp") || within(&other.location.real, b"/tmp")
        });
        let opens = shown.map_or(requested, |other| requested.and(other.opens));
        if shown.is_some_and(|other| other.opens == opens) {
            continue;
        }
        let path = location.real.as_c_str();
        let opened = stage.open_host(&path).map_err(failed("cannot open", path.to_bytes()))?;
        let stat = rustix::fs::fstat(&opened).map_err(failed("cannot look at", path.to_bytes()))?;
        if Identity::from(&stat) != location.identity {
            return Err(failed("was replaced while paddock started:", path.to_bytes())(
                Errno::STALE,
            ));
        }
        let mount = match blueprint.session {
            Some(session) if location.real == *session.workspace() => {
                lower = Some(opened);
                None
            }
            Some(session) if location.real.is_within(session.workspace()) => None,
            _ => {
                let tree = mount::clone_tree(opened, opens.attributes());
                Some(tree.map_err(failed("cannot copy the mount of", path.to_bytes()))?)
            }
        };
        trees.push(MountClone { location, mount, opens });
    }
    Ok(MountClones { trees, lower })
}

/// The devices that every program expects, and those that are granted.
fn copy_devices(blueprint: &RootBlueprint<'_>) -> RootResult<Devices> {
    let mut devices = take_devices(blueprint.terminal)?;
    for grant in blueprint.made() {
        if within(&grant.path, b"/dev") && !is_own_device(&grant.path) {
            take_device(
                &mut devices,
                &grant.path.as_c_str(),
                &grant.path.as_c_str(),
                grant.optional,
            )?;
        }
    }
    Ok(devices)
}

/// Mounts the copy itself, or a part of it that a grant opens further.
fn put_copied(
    root: BorrowedFd<'_>,
    session: &Session,
    tree: &MountClone<'_>,
    layers: &OverlayLayers,
    hidden: &Whiteouts,
    whiteouts: BorrowedFd<'_>,
) -> RootResult<()> {
    let path = tree.location.real.as_bytes();
    if tree.location.real == *session.workspace() {
        let copy = layers
            .mount(hidden, whiteouts, tree.opens.attributes())
            .map_err(failed(NO_COPY, path))?;
        return attach_at(root, path, &copy);
    }
    let own = mount::open_below_root(root, &relative(path)?);
    let opened = own
        .and_then(|own| mount::attach(mount::clone_own_mount(&own, tree.opens.attributes())?, own));
    match opened {
        Err(Errno::NOENT) => Ok(()), // removed in the copy
        opened => opened.map_err(failed("cannot make writable", path)),
    }
}

fn put_in_place(root: BorrowedFd<'_>, tree: &MountClone<'_>, mount: &OwnedFd) -> RootResult<()> {
    let path = tree.location.real.as_bytes();
    let name = relative(path)?;
    if tree.location.directory {
        return attach_at(root, path, mount);
    }
    match mount::open_below_root(root, &name) {
        Ok(there) => mount::attach(mount, there).map_err(failed("cannot mount", path)),
        Err(_) => put_on_new_file(root, path, &name, mount),
    }
}

/// Makes a symlink on the path of a grant, as the host has it. It exists already if its directory
/// belongs to another grant.
fn make_link(root: BorrowedFd<'_>, link: &grant_location::GrantSymlink) -> RootResult<()> {
    let at = &link.at[..];
    let name = relative(at)?;
    let made = match rustix::fs::symlinkat(&link.target, root, &name) {
        Err(Errno::NOENT) => {
            make_dir(root, parent_of(at))?;
            rustix::fs::symlinkat(&link.target, root, &name)
        }
        Err(Errno::EXIST) if rustix::fs::readlinkat(root, &name, Vec::new()).is_ok() => Ok(()),
        made => made,
    };
    made.map_err(failed("cannot link", at))
}

/// Mounts a tree at a path, and makes missing directories.
pub fn attach_at(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> RootResult<()> {
    // The directory is nearly always missing.
    make_dir(root, path)?;
    attach_to(root, path, tree)
}

/// Mounts a tree at an existing path.
fn attach_to(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> RootResult<()> {
    let name = relative(path)?;
    // A single name goes through no link, and the kernel follows no link at the name itself.
    if !name.to_bytes().contains(&b'/') {
        return mount::attach_by_name(tree, root, &name).map_err(failed("cannot mount", path));
    }
    let onto = mount::open_below_root(root, &name).map_err(failed("cannot open", path))?;
    mount::attach(tree, onto).map_err(failed("cannot mount", path))
}

/// Makes an empty file and mounts on it.
fn put_on_new_file(
    root: BorrowedFd<'_>,
    path: &[u8],
    name: &CStr,
    tree: &OwnedFd,
) -> RootResult<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = match rustix::fs::openat(root, name, flags, Mode::RUSR) {
        Err(Errno::NOENT) => {
            make_dir(root, parent_of(path))?;
            rustix::fs::openat(root, name, flags, Mode::RUSR)
        }
        Err(Errno::EXIST) => return attach_at(root, path, tree),
        made => made,
    };
    let made = made.map_err(failed("cannot create", path))?;
    mount::attach(tree, made).map_err(failed("cannot mount", path))
}

fn parent_of(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)]
}

/// Makes a directory and those above it. An existing name is left alone.
fn make_dir(root: BorrowedFd<'_>, path: &[u8]) -> RootResult<()> {
    let name = relative(path)?;
    let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
    let made = match rustix::fs::mkdirat(root, &name, mode) {
        Err(Errno::NOENT) if !parent_of(path).is_empty() => {
            make_dir(root, parent_of(path))?;
            rustix::fs::mkdirat(root, &name, mode)
        }
        made => made,
    };
    ignoring(Errno::EXIST, made).map_err(failed("cannot create", path))
}

/// The path relative to the new root.
fn relative(path: &[u8]) -> RootResult<CString> {
    let below = path.strip_prefix(b"/").unwrap_or(path);
    let name = if below.is_empty() { b"." } else { below };
    CString::new(name).map_err(|_| failed("is not a path:", path)(Errno::INVAL))
}

fn ignoring(expected: Errno, result: Result<(), Errno>) -> Result<(), Errno> {
    match result {
        Err(errno) if errno == expected => Ok(()),
        other => other,
    }
}

/// Adds rules for paths that did not exist when the other rules were made.
fn add_rules<'a>(
    root: BorrowedFd<'_>,
    plan: &Plan,
    grants: impl Iterator<Item = &'a Grant>,
    rulesets: &[BorrowedFd<'_>],
) -> RootResult<()> {
    if rulesets.is_empty() {
        return Ok(());
    }
    for grant in grants {
        match add_rule(root, plan, grant, rulesets) {
            Err(Errno::NOENT | Errno::NOTDIR) if grant.optional => {}
            result => result.map_err(failed("cannot grant", grant.path.as_bytes()))?,
        }
    }
    Ok(())
}

fn add_rule(
    root: BorrowedFd<'_>,
    plan: &Plan,
    grant: &Grant,
    rulesets: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let name = CString::new(&grant.path.as_bytes()[1..]).map_err(|_| Errno::INVAL)?;
    // A link (/dev/ptmx, /dev/fd) has no rights of its own. Its target is granted or not.
    add_rule_at(mount::open_below_root(root, &name)?, plan, grant, rulesets)
}

pub fn add_rule_at(
    opened: OwnedFd,
    plan: &Plan,
    grant: &Grant,
    rulesets: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(&opened)?;
    let rights = plan.rights(&grant.access);
    let rights = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Directory => rights,
        rustix::fs::FileType::Symlink => return Ok(()),
        _ => rights::for_file(rights),
    };
    for ruleset in rulesets.iter().filter(|_| !rights.is_empty()) {
        sys::landlock_add_rule(*ruleset, rights.bits(), opened.as_fd())?;
    }
    Ok(())
}

/// Afterwards no name leads to the old tree: pivot_root, unlike chroot, removes it.
pub fn leave_old_root(root: BorrowedFd<'_>) -> RootResult<()> {
    let failure = || failed("cannot leave the old root for", b"/");
    rustix::process::fchdir(root).map_err(failure())?;
    rustix::process::pivot_root(c".", c".").map_err(failure())?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).map_err(failure())?;
    rustix::process::chdir(c"/").map_err(failure())
}
