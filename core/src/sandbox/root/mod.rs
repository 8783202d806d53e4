//! The root directory that the command sees: what is granted, at its own place, and nothing else.
//!
//! An empty tmpfs; on it a copy of the mount of each grant, read-only unless the grant writes, and
//! places of its own for /tmp, /dev and /proc (`sandbox/root/private_dirs.rs`). Then the old root
//! is left for good. What is denied inside a grant is covered last (`sandbox/root/covers.rs`), so
//! that nothing mounted later uncovers it. All of it happens in the first process of the new
//! namespaces, while the supervisor finds out, in this order, where the grants lie, what a copy
//! hides, and what is to be covered.

mod covers;
mod private_dirs;
pub mod shells;

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use landlock::AccessFs;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};

use super::init::RootReady;
use super::init_channel::{self, InitMessage};
use super::landlock::{Placed, grant_location};
use super::overlay::Layers;
use crate::files::workspace::session_dir::Session;
use crate::files::workspace::whiteouts::Whiteouts;
use crate::kernel::mount::{self, NO_EXEC, PLAIN, READ_ONLY};
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys;
use crate::plan::rights::{self, Rights};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{self, Grant, Namespaces, Plan};

pub use covers::cover;
use private_dirs::{BUNDLE, is_own_device, make_tmp, take_device};
pub use private_dirs::{Devices, Masks, make_dev, make_proc, new_tmpfs, take_devices};
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

type Result<T> = std::result::Result<T, RootError>;

fn failed(act: &'static str, path: impl AsRef<[u8]>) -> impl FnOnce(Errno) -> RootError {
    move |errno| RootError { act, path: path.as_ref().to_vec(), errno }
}

/// What the root is built from.
pub struct Blueprint<'a> {
    pub plan: &'a Plan,
    pub namespaces: &'a Namespaces,
    pub requested: &'a plan::Files,
    /// Where the workspace is a copy.
    pub session: Option<&'a Session>,
    /// The caller's terminal, by name.
    pub terminal: Option<&'a CStr>,
    /// Certificates that programs inside are to trust, where some hosts are inspected.
    pub bundle: Option<&'a OwnedFd>,
    pub pid_max: Option<u32>,
    /// The caller's group: inside the new namespace nobody has a number until it is mapped.
    pub gid: u32,
}

impl<'a> Blueprint<'a> {
    /// Grants of places that are made anew: they are no places of the host.
    fn made(&self) -> impl Iterator<Item = &'a Grant> {
        self.requested.grants.iter().filter(|grant| plan::is_made_anew(&grant.path))
    }

    /// The directories that lead to grants hold nothing else, so they may be listed; a rule on the
    /// root covers the grants too, though, so only where none of them keeps its list to itself.
    fn may_list_everything(&self, placed: &[Placed<'_>]) -> bool {
        let lists = |placed: &Placed<'_>| {
            !placed.directory || self.plan.rights(&placed.grant.access).contains(AccessFs::ReadDir)
        };
        placed.iter().all(lists) && placed.iter().all(|placed| placed.real.as_bytes() != b"/")
    }
}

fn within(path: &AbsPath, tree: &[u8]) -> bool {
    path.as_bytes().strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Any directory of the host: the new root is put there, in this namespace only, until it is the
/// root.
pub struct Stage {
    name: &'static CStr,
    /// What the host has there, which the name does not lead to any more.
    below: OwnedFd,
}

impl Stage {
    const NAMES: [&CStr; 4] = [c"/tmp", c"/usr", c"/etc", c"/proc"];

    pub fn find() -> Result<Stage> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |name: &&'static CStr| {
            Some(Stage { name, below: rustix::fs::open(*name, flags, Mode::empty()).ok()? })
        };
        let found = Stage::NAMES.iter().find_map(open);
        found.ok_or_else(|| {
            failed("no directory exists to build the root on, such as", b"/tmp")(Errno::NOENT)
        })
    }

    /// Attaches a tree there, over others that are, and opens it.
    pub fn put(&self, tree: &OwnedFd) -> Result<OwnedFd> {
        let name = self.name;
        mount::attach_by_name(tree, CWD, name)
            .map_err(failed("cannot build the root on", name.to_bytes()))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(name, flags, Mode::empty()).map_err(failed("cannot open", name.to_bytes()))
    }

    /// As [`mount::open_host`], whatever was put here.
    fn open_host(&self, path: &CStr) -> std::result::Result<OwnedFd, Errno> {
        let rest = path.to_bytes_with_nul().strip_prefix(self.name.to_bytes());
        match rest.and_then(|rest| CStr::from_bytes_with_nul(rest.strip_prefix(b"/")?).ok()) {
            Some(name) => mount::open_host_at(&self.below, name),
            None => mount::open_host(path),
        }
    }
}

/// Detached mounts and where they will go.
struct Clones<'a> {
    trees: Vec<Tree<'a>>,
    /// The workspace, if that is to be a copy: its tree waits for what is hidden in it.
    lower: Option<OwnedFd>,
}

struct Tree<'a> {
    placed: &'a Placed<'a>,
    /// None: it is the copy, or a part of it, and shows what that has.
    mount: Option<OwnedFd>,
    opens: Opens,
}

/// What a mount leaves open. Grants add up, so one below another opens at least as much.
#[derive(Clone, Copy, PartialEq)]
struct Opens {
    writing: bool,
    executing: bool,
}

impl Opens {
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
        PLAIN | locked | inert
    }
}

/// What every root has, whatever is granted.
struct Base {
    root: OwnedFd,
    tmp: OwnedFd,
    shm: OwnedFd,
    proc: OwnedFd,
    /// What lies in its /dev.
    devices: Devices,
}

impl Base {
    /// `root` is empty, or has a file system of ours at /tmp and at /dev.
    fn furnish(
        root: OwnedFd,
        blueprint: &Blueprint<'_>,
        devices: Devices,
        interception: Option<&Interception<'_>>,
        ruleset: Option<BorrowedFd<'_>>,
    ) -> Result<Base> {
        let at = root.as_fd();
        let tmp = make_tmp(at, blueprint)?;
        let shm = make_dev(
            at,
            &devices,
            blueprint.plan.network.is_some(),
            blueprint.bundle,
            interception,
        )?;
        let proc = make_proc(at, blueprint.namespaces.nested, blueprint.pid_max)?;
        add_rules(at, blueprint.plan, blueprint.made(), ruleset)?;
        if let (Some(_), Some(ruleset)) = (blueprint.bundle, ruleset) {
            let bundle =
                mount::open_inside(at, BUNDLE).map_err(failed("cannot open", BUNDLE.to_bytes()))?;
            let read = Rights::from(AccessFs::ReadFile);
            sys::landlock_add_rule(ruleset, read.bits(), bundle.as_fd())
                .map_err(failed("cannot grant", BUNDLE.to_bytes()))?;
        }
        Ok(Base { root, tmp, shm, proc, devices })
    }
}

/// Leaves this process in the new root.
pub fn build(
    blueprint: &Blueprint<'_>,
    ruleset: Option<BorrowedFd<'_>>,
    channel: &OwnedFd,
) -> Result<RootReady> {
    let tmp_mb = blueprint.namespaces.tmp_mb;
    // What does not depend on where the grants lie, which the supervisor is still looking at.
    let devices = copy_devices(blueprint)?;
    let interception = Interception::prepare(blueprint)?;
    let reopen = |session: &Session| {
        session.reopen().map_err(failed(NO_COPY, session.workspace().as_bytes()))
    };
    let above = blueprint.session.map(reopen).transpose()?;
    let stage = Stage::find()?;
    let veil = match &above {
        Some(_) => Some(
            Layers::stage(&stage)
                .map_err(failed("cannot create a file system in memory for", b"/"))?,
        ),
        None => None,
    };
    let own = new_tmpfs(tmp_mb)?;
    let mut base =
        Base::furnish(stage.put(&own)?, blueprint, devices, interception.as_ref(), ruleset)?;

    let told =
        told_places(channel).and_then(|bytes| grant_location::read(blueprint.requested, &bytes));
    let placed = told.map_err(failed("cannot examine the mount point", b"/"))?;
    let Clones { mut trees, lower } = take_clones(blueprint, &stage, &placed)?;
    let is_whole = |tree: &Tree<'_>| tree.placed.real.as_bytes() == b"/" && tree.mount.is_some();
    let whole = trees.iter().position(is_whole).and_then(|index| trees.remove(index).mount);
    if let Some(whole) = &whole {
        // On the host's directories nothing can be made.
        let root = stage.put(whole)?;
        attach_at(root.as_fd(), b"/tmp", &new_tmpfs(tmp_mb)?)?;
        attach_at(root.as_fd(), b"/dev", &new_tmpfs(tmp_mb)?)?;
        base = Base::furnish(
            root,
            blueprint,
            copy_devices(blueprint)?,
            interception.as_ref(),
            ruleset,
        )?;
    }
    let root = base.root.as_fd();
    if whole.is_none() {
        // All of this before the grants: in a writable one it would be made outside.
        for link in placed.iter().flat_map(|placed| &placed.links) {
            make_link(root, link)?;
        }
        // Places to stand in, where nothing is granted.
        for path in [&blueprint.plan.user.home, &blueprint.plan.workdir] {
            make_dir(root, path.as_bytes())?;
        }
    }
    for tree in &trees {
        if let Some(mount) = &tree.mount {
            put_in_place(root, tree, mount)?;
        }
    }
    if let (Some(session), Some(lower), Some(above), Some(veil)) =
        (blueprint.session, lower, above, &veil)
    {
        let layers = Layers::new(lower, above);
        let hidden =
            told_hidden(channel).map_err(failed("cannot read the names to hide below", b"/"))?;
        for tree in trees.iter().filter(|tree| tree.mount.is_none()) {
            put_copied(root, session, tree, &layers, &hidden, veil.as_fd())?;
        }
        // What did not exist when the others were granted.
        let copied = placed.iter().map(|placed| placed.grant);
        let copied = copied.filter(|grant| grant.path.is_within(session.workspace()));
        add_rules(root, blueprint.plan, copied, ruleset)?;
    }
    if let Some(ruleset) = ruleset.filter(|_| blueprint.may_list_everything(&placed)) {
        let list = Rights::from(AccessFs::ReadDir);
        sys::landlock_add_rule(ruleset, list.bits(), root).map_err(failed("cannot grant", b"/"))?;
    }
    if let Some(interception) = &interception {
        interception.intercept(root, blueprint, &placed, ruleset)?;
    }
    if whole.is_none() {
        // A link, not a place of its own: what is in it is gone with the run all the same.
        make_dir(root, b"/var")?;
        ignoring(Errno::EXIST, rustix::fs::symlinkat(c"/tmp", root, c"var/tmp"))
            .map_err(failed("cannot link", b"/var/tmp"))?;
        sys::mount_setattr(root, false, (PLAIN | READ_ONLY).bits().into(), 0)
            .map_err(failed("cannot lock", b"/"))?;
    }
    leave_old_root(root)?;
    if let (Some(session), Some(veil)) = (blueprint.session, &veil) {
        let path = session.workspace().as_bytes();
        let view =
            mount::open_inside(root, &relative(path)?).map_err(failed("cannot open", path))?;
        init_channel::send(channel, &InitMessage::Copied, &[view.as_fd(), veil.as_fd()])
            .map_err(failed("cannot show", path))?;
    }
    let Base { root, tmp, shm, proc, devices } = base;
    // Each file system once.
    let volatile = if whole.is_some() { vec![tmp, shm] } else { vec![tmp] };
    // Closing these takes longer than to leave it to whoever closes everything: the exec of the
    // command, and init while that runs.
    std::mem::forget((trees, root, devices, own, whole, interception, stage));
    Ok(RootReady { proc, volatile })
}

/// What the supervisor tells until it says that this is all. `take` says whether the word is one of
/// those.
fn hear(
    channel: &OwnedFd,
    mut take: impl FnMut(InitMessage) -> bool,
) -> std::result::Result<(), Errno> {
    loop {
        match init_channel::receive(channel, true)? {
            Some((InitMessage::All, _)) => return Ok(()),
            Some((word, _)) => {
                if !take(word) {
                    return Err(Errno::PROTO);
                }
            }
            None => return Err(Errno::SRCH),
        }
    }
}

fn told_places(channel: &OwnedFd) -> std::result::Result<Vec<u8>, Errno> {
    let mut places = Vec::new();
    hear(channel, |word| match word {
        InitMessage::Placed(part) => {
            places.extend(part);
            true
        }
        _ => false,
    })?;
    Ok(places)
}

fn told_hidden(channel: &OwnedFd) -> std::result::Result<Whiteouts, Errno> {
    let mut hidden = Whiteouts::default();
    hear(channel, |word| match word {
        InitMessage::Hide(names) => {
            names.split(|byte| *byte == 0).for_each(|name| hidden.add(name));
            true
        }
        _ => false,
    })?;
    Ok(hidden)
}

fn take_clones<'a>(
    blueprint: &Blueprint<'_>,
    stage: &Stage,
    placed: &'a [Placed<'a>],
) -> Result<Clones<'a>> {
    let mut trees: Vec<Tree<'a>> = Vec::with_capacity(placed.len());
    let mut lower = None;
    let mut placed: Vec<&'a Placed<'a>> = placed.iter().collect();
    // Parents before what lies in them; of two grants on one place the writing one, which is all it
    // takes.
    placed.sort_by_key(|placed| (placed.real.as_bytes(), !placed.grant.writes()));
    for placed in placed {
        let asked = Opens::by(placed.grant);
        let above = trees.iter().rev().find(|other| placed.real.is_within(&other.placed.real));
        // Unless a private /tmp lies between the two.
        let shown = above
            .filter(|other| !within(&placed.real, b"/tmp") || within(&other.placed.real, b"/tmp"));
        let opens = shown.map_or(asked, |other| asked.and(other.opens));
        if shown.is_some_and(|other| other.opens == opens) {
            continue;
        }
        let path = placed.real.as_c_str();
        let opened = stage.open_host(&path).map_err(failed("cannot open", path.to_bytes()))?;
        let stat = rustix::fs::fstat(&opened).map_err(failed("cannot look at", path.to_bytes()))?;
        if Identity::from(&stat) != placed.identity {
            return Err(failed("was replaced while paddock started:", path.to_bytes())(
                Errno::STALE,
            ));
        }
        let mount = match blueprint.session {
            Some(session) if placed.real == *session.workspace() => {
                lower = Some(opened);
                None
            }
            Some(session) if placed.real.is_within(session.workspace()) => None,
            _ => {
                let tree = mount::clone_tree(opened, opens.attributes());
                Some(tree.map_err(failed("cannot copy the mount of", path.to_bytes()))?)
            }
        };
        trees.push(Tree { placed, mount, opens });
    }
    Ok(Clones { trees, lower })
}

/// Those that every program expects, and those that are granted.
fn copy_devices(blueprint: &Blueprint<'_>) -> Result<Devices> {
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

/// The copy itself, or a part of it that a grant opens further.
fn put_copied(
    root: BorrowedFd<'_>,
    session: &Session,
    tree: &Tree<'_>,
    layers: &Layers,
    hidden: &Whiteouts,
    veil: BorrowedFd<'_>,
) -> Result<()> {
    let path = tree.placed.real.as_bytes();
    if tree.placed.real == *session.workspace() {
        let copy =
            layers.mount(hidden, veil, tree.opens.attributes()).map_err(failed(NO_COPY, path))?;
        return attach_at(root, path, &copy);
    }
    let own = mount::open_inside(root, &relative(path)?);
    let opened =
        own.and_then(|own| mount::attach(mount::clone_again(&own, tree.opens.attributes())?, own));
    match opened {
        Err(Errno::NOENT) => Ok(()), // removed in the copy
        opened => opened.map_err(failed("cannot make writable", path)),
    }
}

fn put_in_place(root: BorrowedFd<'_>, tree: &Tree<'_>, mount: &OwnedFd) -> Result<()> {
    let path = tree.placed.real.as_bytes();
    let name = relative(path)?;
    if tree.placed.directory {
        return attach_at(root, path, mount);
    }
    match mount::open_inside(root, &name) {
        Ok(there) => mount::attach(mount, there).map_err(failed("cannot mount", path)),
        Err(_) => put_on_new_file(root, path, &name, mount),
    }
}

/// A symlink on the way to a grant, as the host has it. It is there already where its directory
/// came with another grant.
fn make_link(root: BorrowedFd<'_>, link: &grant_location::Signpost) -> Result<()> {
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

/// A mount at a path; directories that lead there are made where they are missing.
pub fn attach_at(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> Result<()> {
    // Nearly always it is missing.
    make_dir(root, path)?;
    attach_to(root, path, tree)
}

/// A mount at a path that is there.
fn attach_to(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> Result<()> {
    let name = relative(path)?;
    // No link leads to a single name, and the kernel follows none that has it.
    if !name.to_bytes().contains(&b'/') {
        return mount::attach_by_name(tree, root, &name).map_err(failed("cannot mount", path));
    }
    let onto = mount::open_inside(root, &name).map_err(failed("cannot open", path))?;
    mount::attach(tree, onto).map_err(failed("cannot mount", path))
}

/// An empty file is made, and mounted on.
fn put_on_new_file(root: BorrowedFd<'_>, path: &[u8], name: &CStr, tree: &OwnedFd) -> Result<()> {
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

/// With those that lead to it. Whatever has the name already is left alone.
fn make_dir(root: BorrowedFd<'_>, path: &[u8]) -> Result<()> {
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

/// As seen from the new root.
fn relative(path: &[u8]) -> Result<CString> {
    let below = path.strip_prefix(b"/").unwrap_or(path);
    let name = if below.is_empty() { b"." } else { below };
    CString::new(name).map_err(|_| failed("is not a path:", path)(Errno::INVAL))
}

fn ignoring(
    expected: Errno,
    result: std::result::Result<(), Errno>,
) -> std::result::Result<(), Errno> {
    match result {
        Err(errno) if errno == expected => Ok(()),
        other => other,
    }
}

/// Rules for what did not exist when the others were made.
fn add_rules<'a>(
    root: BorrowedFd<'_>,
    plan: &Plan,
    grants: impl Iterator<Item = &'a Grant>,
    ruleset: Option<BorrowedFd<'_>>,
) -> Result<()> {
    let Some(ruleset) = ruleset else { return Ok(()) };
    for grant in grants {
        match add_rule(root, plan, grant, ruleset) {
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
    ruleset: BorrowedFd<'_>,
) -> std::result::Result<(), Errno> {
    let name = CString::new(&grant.path.as_bytes()[1..]).map_err(|_| Errno::INVAL)?;
    // A link (/dev/ptmx, /dev/fd) has no rights of its own; what it leads to is granted or not.
    add_rule_at(mount::open_inside(root, &name)?, plan, grant, ruleset)
}

pub fn add_rule_at(
    opened: OwnedFd,
    plan: &Plan,
    grant: &Grant,
    ruleset: BorrowedFd<'_>,
) -> std::result::Result<(), Errno> {
    let stat = rustix::fs::fstat(&opened)?;
    let rights = plan.rights(&grant.access);
    let rights = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::Directory => rights,
        rustix::fs::FileType::Symlink => return Ok(()),
        _ => rights::on_a_file(rights),
    };
    if rights.is_empty() {
        Ok(())
    } else {
        sys::landlock_add_rule(ruleset, rights.bits(), opened.as_fd())
    }
}

/// Afterwards the old tree can not be reached by any name: pivoting, unlike chroot, takes it away.
pub fn leave_old_root(root: BorrowedFd<'_>) -> Result<()> {
    let failure = || failed("cannot leave the old root for", b"/");
    rustix::process::fchdir(root).map_err(failure())?;
    rustix::process::pivot_root(c".", c".").map_err(failure())?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).map_err(failure())?;
    rustix::process::chdir(c"/").map_err(failure())
}
