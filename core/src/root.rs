//! The root directory that the command sees: what is granted, at its own place, and nothing else.
//!
//! An empty tmpfs; on it a copy of the mount of each grant, read-only unless the grant writes, and places of its own for /tmp,
//! /dev and /proc. What is denied inside a grant is covered last, so that nothing mounted later uncovers it. Then the old root
//! is left for good. All of it happens in the first process of the new namespaces.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use landlock::AccessFs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};

use crate::channel::{self, Word};
use crate::cover::Cover;
use crate::files::{Files, Placed};
use crate::kernel_text;
use crate::mounts::{self, DEVICE, NO_EXEC, PLAIN, READ_ONLY};
use crate::namespaces::Furnished;
use crate::place::{Identity, Link};
use crate::plan::{Grant, Namespaces, Plan};
use crate::rights::{self, Rights};
use crate::session::{Layers, Session};
use crate::sys;
use crate::text::AbsPath;
use crate::veil::Veil;

#[derive(Debug, thiserror::Error)]
#[error("{act} {}: {}", String::from_utf8_lossy(.path), crate::kernel_names::errno_text(*.errno))]
pub struct RootError {
    act: &'static str,
    path: Vec<u8>,
    errno: Errno,
}

const NO_COPY: &str = "no copy can be laid over";

impl RootError {
    pub fn errno(&self) -> Errno {
        self.errno
    }

    pub fn hint(&self) -> &'static str {
        match self.errno {
            Errno::STALE => "start again",
            _ if self.act == NO_COPY => {
                "its file system, or that of ~/.local/state/paddock, takes no overlay: run without --cow"
            }
            Errno::NOSPC | Errno::MFILE => "the kernel is out of mounts or files; end something else first",
            _ => "`paddock doctor` tries every mechanism; --tier landlock runs without namespaces",
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
    pub files: &'a Files<'a>,
    /// Those that are known before; the supervisor tells the rest.
    pub covers: &'a [Cover],
    /// Where the workspace is a copy.
    pub session: Option<&'a Session>,
    /// The caller's terminal, by name.
    pub terminal: Option<&'a CStr>,
    pub pid_max: Option<u32>,
    /// The caller's group: inside the new namespace nobody has a number until it is mapped.
    pub gid: u32,
}

impl Blueprint<'_> {
    /// The directories that lead to grants hold nothing else, so they may be listed; a rule on the root covers the grants too,
    /// though, so only where none of them keeps its list to itself.
    fn may_list_everything(&self) -> bool {
        let placed = self.files.placed.iter();
        let lists = |placed: &Placed<'_>| {
            !placed.directory || self.plan.rights(&placed.grant.access).contains(AccessFs::ReadDir)
        };
        placed.clone().all(lists) && placed.clone().all(|placed| placed.real.as_bytes() != b"/")
    }
}

/// Places that are made anew inside, whatever the host has there.
pub fn is_made(path: &AbsPath) -> bool {
    path.as_bytes() == b"/tmp" || within(path, b"/proc") || within(path, b"/dev")
}

fn within(path: &AbsPath, tree: &[u8]) -> bool {
    path.as_bytes().strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Any directory of the host: the new root is put there, in this namespace only, until it is the root.
const STAGE: [&CStr; 4] = [c"/tmp", c"/usr", c"/etc", c"/proc"];

const DEVICES: [&CStr; 6] = [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

const DEVICE_LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"dev/fd"),
    (c"pts/ptmx", c"dev/ptmx"),
    (c"fd/0", c"dev/stdin"),
    (c"fd/1", c"dev/stdout"),
    (c"fd/2", c"dev/stderr"),
];

/// What tells of, or reaches, the machine rather than the processes in the sandbox.
const PROC_MASKS: [&CStr; 11] = [
    c"proc/kcore",
    c"proc/keys",
    c"proc/key-users",
    c"proc/timer_list",
    c"proc/timer_stats",
    c"proc/sched_debug",
    c"proc/latency_stats",
    c"proc/sysrq-trigger",
    c"proc/acpi",
    c"proc/scsi",
    c"proc/asound",
];

/// What sets the machine.
const PROC_LOCKS: [&CStr; 4] = [c"proc/sys", c"proc/bus", c"proc/fs", c"proc/irq"];

/// Detached mounts and where they will go.
struct Clones<'a> {
    trees: Vec<Tree<'a>>,
    /// Of the workspace, if that is a copy: its tree waits for what is hidden in it.
    layers: Option<Layers>,
    devices: Devices,
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
        Self { writing: self.writing || other.writing, executing: self.executing || other.executing }
    }

    fn attributes(self) -> MountAttrFlags {
        let locked = if self.writing { MountAttrFlags::empty() } else { READ_ONLY };
        let inert = if self.executing { MountAttrFlags::empty() } else { NO_EXEC };
        PLAIN | locked | inert
    }
}

/// By the name each gets inside.
pub type Devices = Vec<(CString, OwnedFd)>;

/// Leaves this process in the new root.
pub fn build(blueprint: &Blueprint<'_>, ruleset: Option<BorrowedFd<'_>>, channel: &OwnedFd) -> Result<Furnished> {
    // Copies come first: from here on the stage may hide what they are taken from.
    let mut clones = take_clones(blueprint)?;
    let is_whole = |tree: &Tree<'_>| tree.placed.real.as_bytes() == b"/" && tree.mount.is_some();
    let whole = clones.trees.iter().position(is_whole);
    let veil = match &clones.layers {
        Some(_) => Some(Layers::stage().map_err(failed("can not make a file system in memory for", b"/"))?),
        None => None,
    };
    let base = match whole.and_then(|index| clones.trees.remove(index).mount) {
        Some(mount) => mount,
        None => new_tmpfs(c"0755", None, PLAIN)?,
    };
    let root = set_on_stage(&base)?;
    let root = root.as_fd();
    let tmp = make_tmp(root, blueprint)?;
    let shm = make_dev(root, &clones.devices)?;
    let proc = make_proc(root, blueprint.namespaces.nested, blueprint.pid_max)?;
    if whole.is_none() {
        // All of this before the grants: in a writable one it would be made outside.
        for link in blueprint.files.placed.iter().flat_map(|placed| &placed.links) {
            make_link(root, link)?;
        }
        // Places to stand in, where nothing is granted.
        for path in [&blueprint.plan.user.home, &blueprint.plan.workdir] {
            make_dir(root, path.as_bytes())?;
        }
    }
    for tree in &clones.trees {
        if let Some(mount) = &tree.mount {
            put_in_place(root, tree, mount)?;
        }
    }
    // The supervisor was looking for names meanwhile.
    let hear = || Told::by(channel).map_err(failed("can not learn what to cover below", b"/"));
    let mut told = None;
    if let (Some(layers), Some(veil)) = (&clones.layers, &veil) {
        let known = told.insert(hear()?);
        for tree in clones.trees.iter().filter(|tree| tree.mount.is_none()) {
            put_copied(root, blueprint, tree, layers, &known.hidden, veil.as_fd())?;
        }
    }
    add_rules(root, blueprint, ruleset)?;
    for cover in blueprint.covers {
        put_cover(root, blueprint, cover)?;
    }
    let told = match told {
        Some(told) => told,
        None => hear()?,
    };
    for cover in &told.covers {
        put_cover(root, blueprint, cover)?;
    }
    if whole.is_none() {
        // A link, not a place of its own: what is in it is gone with the run all the same.
        make_dir(root, b"/var")?;
        ignoring(Errno::EXIST, rustix::fs::symlinkat(c"/tmp", root, c"var/tmp"))
            .map_err(failed("can not link", b"/var/tmp"))?;
        sys::mount_setattr(root, false, (PLAIN | READ_ONLY).bits().into(), 0).map_err(failed("can not lock", b"/"))?;
    }
    leave_old_root(root)?;
    Ok(Furnished { proc, volatile: vec![tmp, shm] })
}

/// What the supervisor found.
#[derive(Default)]
struct Told {
    hidden: Veil,
    covers: Vec<Cover>,
}

impl Told {
    fn by(channel: &OwnedFd) -> std::result::Result<Told, Errno> {
        let mut told = Told::default();
        loop {
            match channel::receive(channel, true)? {
                Some((Word::Hide(names), _)) => {
                    names.split(|byte| *byte == 0).for_each(|name| told.hidden.add(name));
                }
                Some((Word::Cover(cover), _)) => told.covers.push(cover),
                Some((Word::Covered, _)) => return Ok(told),
                Some(_) => return Err(Errno::PROTO),
                None => return Err(Errno::SRCH),
            }
        }
    }
}

fn put_cover(root: BorrowedFd<'_>, blueprint: &Blueprint<'_>, cover: &Cover) -> Result<()> {
    let copied = blueprint.session.is_some_and(|session| cover.path.is_within(session.workspace()));
    match mounts::cover(root, cover, copied) {
        // Gone since it was seen, or hidden by the private /tmp: nothing is left to be covered.
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(failed("can not cover", cover.path.as_bytes())(errno)),
    }
}

fn take_clones<'a>(blueprint: &Blueprint<'a>) -> Result<Clones<'a>> {
    let mut trees: Vec<Tree<'a>> = Vec::with_capacity(blueprint.files.placed.len());
    let mut layers = None;
    let mut placed: Vec<&'a Placed<'a>> = blueprint.files.placed.iter().collect();
    // Parents before what lies in them; of two grants on one place the writing one, which is all it takes.
    placed.sort_by_key(|placed| (placed.real.as_bytes(), !placed.grant.writes()));
    for placed in placed {
        let asked = Opens::by(placed.grant);
        let above = trees.iter().rev().find(|other| placed.real.is_within(&other.placed.real));
        // Unless a private /tmp lies between the two.
        let shown = above.filter(|other| !within(&placed.real, b"/tmp") || within(&other.placed.real, b"/tmp"));
        let opens = shown.map_or(asked, |other| asked.and(other.opens));
        if shown.is_some_and(|other| other.opens == opens) {
            continue;
        }
        let path = placed.real.as_c_str();
        let opened = mounts::open_host(&path).map_err(failed("can not open", path.to_bytes()))?;
        let stat = rustix::fs::fstat(&opened).map_err(failed("can not look at", path.to_bytes()))?;
        if Identity::from(&stat) != placed.identity {
            return Err(failed("was replaced while paddock started:", path.to_bytes())(Errno::STALE));
        }
        let mount = match blueprint.session {
            Some(session) if placed.real == *session.workspace() => {
                layers = Some(session.layers(opened).map_err(failed(NO_COPY, path.to_bytes()))?);
                None
            }
            Some(session) if placed.real.is_within(session.workspace()) => None,
            _ => {
                let tree = mounts::clone_tree(opened, opens.attributes());
                Some(tree.map_err(failed("can not copy the mount of", path.to_bytes()))?)
            }
        };
        trees.push(Tree { placed, mount, opens });
    }
    let mut devices = take_devices(blueprint.terminal)?;
    for grant in &blueprint.files.made {
        if within(&grant.path, b"/dev") && !is_own_device(&grant.path) {
            take_device(&mut devices, &grant.path.as_c_str(), &grant.path.as_c_str(), grant.optional)?;
        }
    }
    Ok(Clones { trees, layers, devices })
}

/// The devices that every program expects, and the caller's terminal.
pub fn take_devices(terminal: Option<&CStr>) -> Result<Devices> {
    let mut devices = Vec::with_capacity(DEVICES.len() + 1);
    for host in DEVICES {
        take_device(&mut devices, host, host, host == c"/dev/tty")?;
    }
    if let Some(terminal) = terminal {
        take_device(&mut devices, terminal, c"/dev/console", true)?;
    }
    Ok(devices)
}

fn take_device(devices: &mut Devices, host: &CStr, inside: &CStr, optional: bool) -> Result<()> {
    match clone_device(host) {
        Ok(tree) => {
            devices.push((inside.to_owned(), tree));
            Ok(())
        }
        Err(_) if optional => Ok(()),
        Err(errno) => Err(failed("can not copy the mount of", host.to_bytes())(errno)),
    }
}

/// Is there without being copied from the host, or is the directory of such things.
fn is_own_device(path: &AbsPath) -> bool {
    let path = path.as_bytes();
    let own: [&[u8]; 6] = [b"/dev", b"/dev/pts", b"/dev/shm", b"/dev/ptmx", b"/dev/fd", b"/dev/console"];
    own.contains(&path) || path.starts_with(b"/dev/std") || DEVICES.iter().any(|device| device.to_bytes() == path)
}

fn clone_device(host: &CStr) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Read-only is the name; the device behind it is written all the same.
    mounts::clone_tree(rustix::fs::open(host, flags, Mode::empty())?, DEVICE | READ_ONLY)
}

fn new_tmpfs(mode: &CStr, size: Option<&CStr>, attributes: MountAttrFlags) -> Result<OwnedFd> {
    let mut options = vec![(c"mode", mode)];
    options.extend(size.map(|size| (c"size", size)));
    mounts::new_fs(c"tmpfs", &options, attributes).map_err(failed("can not make a file system in memory for", b"/"))
}

/// Attaches what will be the root somewhere, and opens it.
pub fn set_on_stage(base: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |stage: &&CStr| rustix::fs::open(*stage, flags, Mode::empty()).ok();
    let (name, stage) = STAGE
        .iter()
        .find_map(|stage| Some((stage, open(stage)?)))
        .ok_or_else(|| failed("there is no directory to build on, like", b"/tmp")(Errno::NOENT))?;
    mounts::attach(base, stage).map_err(failed("can not build on", name.to_bytes()))?;
    rustix::fs::open(*name, flags, Mode::empty()).map_err(failed("can not open", name.to_bytes()))
}

fn make_tmp(root: BorrowedFd<'_>, blueprint: &Blueprint<'_>) -> Result<OwnedFd> {
    let size = blueprint.namespaces.tmp_mb.and_then(|size| CString::new(format!("{size}m")).ok());
    let mut grants = blueprint.files.made.iter().filter(|grant| grant.path.as_bytes() == b"/tmp").peekable();
    let inert = grants.peek().is_some() && grants.all(|grant| !grant.executes());
    let attributes = if inert { PLAIN | NO_EXEC } else { PLAIN };
    let tmp = new_tmpfs(c"1777", size.as_deref(), attributes)?;
    attach_at(root, b"/tmp", &tmp)?;
    Ok(tmp)
}

/// Returns what lies at /dev/shm.
pub fn make_dev(root: BorrowedFd<'_>, devices: &Devices) -> Result<OwnedFd> {
    attach_at(root, b"/dev", &new_tmpfs(c"0755", Some(c"1m"), PLAIN | NO_EXEC)?)?;
    let made = |name: &CStr| {
        let path = name.to_bytes().to_vec();
        move |errno| RootError { act: "can not make", path, errno }
    };
    for (path, tree) in devices {
        put_device(root, path.to_bytes(), tree)?;
    }
    for (target, name) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, root, name).map_err(made(name))?;
    }
    let pts =
        mounts::new_fs(c"devpts", &[(c"mode", c"0620"), (c"ptmxmode", c"0666")], DEVICE).map_err(made(c"/dev/pts"))?;
    attach_at(root, b"/dev/pts", &pts)?;
    let shm = new_tmpfs(c"1777", None, PLAIN)?;
    attach_at(root, b"/dev/shm", &shm)?;
    let closed = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(root, mounts::MASK_FILE, closed, Mode::empty()).map_err(made(mounts::MASK_FILE))?;
    rustix::fs::mkdirat(root, mounts::MASK_DIR, Mode::empty()).map_err(made(mounts::MASK_DIR))?;
    let dev = mounts::open_inside(root, c"dev").map_err(failed("can not open", b"/dev"))?;
    sys::mount_setattr(dev.as_fd(), false, (PLAIN | NO_EXEC | READ_ONLY).bits().into(), 0)
        .map_err(failed("can not lock", b"/dev"))?;
    Ok(shm)
}

pub fn make_proc(root: BorrowedFd<'_>, nested: bool, pid_max: Option<u32>) -> Result<OwnedFd> {
    let made = |act| failed(act, b"/proc");
    let proc = mounts::new_fs(c"proc", &[], PLAIN | NO_EXEC).map_err(made("can not mount"))?;
    attach_at(root, b"/proc", &proc)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(root, c"proc", flags, Mode::empty()).map_err(made("can not open"))?;
    if !nested {
        write_number(root, c"proc/sys/user/max_user_namespaces", 0)?;
    }
    // Watches are counted by user. Whoever used them all would blind the guard.
    if let Some(watches) = read_number(root, c"proc/sys/fs/inotify/max_user_watches") {
        write_number(root, c"proc/sys/user/max_inotify_watches", watches / 2)?;
    }
    if let Some(pid_max) = pid_max {
        write_number(root, c"proc/sys/kernel/pid_max", pid_max)?;
    }
    let masks = Masks::open(root).map_err(made("can not open the masks of"))?;
    for name in PROC_MASKS {
        let Ok(target) = mounts::open_inside(root, name) else { continue }; // not in this kernel
        masks.put_on(target).map_err(failed("can not mask", name.to_bytes()))?;
    }
    for name in PROC_LOCKS {
        let Ok(target) = mounts::open_inside(root, name) else { continue };
        let locked = mounts::clone_tree(&target, PLAIN | NO_EXEC | READ_ONLY);
        let locked = locked.and_then(|locked| mounts::attach(locked, target));
        locked.map_err(failed("can not lock", name.to_bytes()))?;
    }
    Ok(opened)
}

/// What masks are copies of.
pub struct Masks {
    file: OwnedFd,
    directory: OwnedFd,
}

impl Masks {
    pub fn open(root: BorrowedFd<'_>) -> std::result::Result<Masks, Errno> {
        let file = mounts::open_inside(root, mounts::MASK_FILE)?;
        Ok(Masks { file, directory: mounts::open_inside(root, mounts::MASK_DIR)? })
    }

    pub fn put_on(&self, target: OwnedFd) -> std::result::Result<(), Errno> {
        let stat = rustix::fs::fstat(&target)?;
        let source = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => &self.directory,
            _ => &self.file,
        };
        mounts::attach(mounts::clone_tree(source, PLAIN | READ_ONLY | NO_EXEC)?, target)
    }
}

fn read_number(root: BorrowedFd<'_>, name: &CStr) -> Option<u32> {
    let file = rustix::fs::openat(root, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 16];
    let length = rustix::io::read(&file, &mut buffer[..]).ok()?;
    kernel_text::number(buffer[..length].trim_ascii_end()).and_then(|number| u32::try_from(number).ok())
}

fn write_number(root: BorrowedFd<'_>, name: &CStr, value: u32) -> Result<()> {
    let failure = || failed("can not write", name.to_bytes());
    let file = rustix::fs::openat(root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failure())?;
    rustix::io::write(&file, value.to_string().as_bytes()).map_err(failure())?;
    Ok(())
}

/// The copy itself, or a part of it that a grant opens further.
fn put_copied(
    root: BorrowedFd<'_>,
    blueprint: &Blueprint<'_>,
    tree: &Tree<'_>,
    layers: &Layers,
    hidden: &Veil,
    veil: BorrowedFd<'_>,
) -> Result<()> {
    let path = tree.placed.real.as_bytes();
    if blueprint.session.is_some_and(|session| tree.placed.real == *session.workspace()) {
        let copy = layers.mount(hidden, veil, tree.opens.attributes()).map_err(failed(NO_COPY, path))?;
        return attach_at(root, path, &copy);
    }
    let own = mounts::open_inside(root, &relative(path)?);
    let opened = own.and_then(|own| mounts::attach(mounts::clone_again(&own, tree.opens.attributes())?, own));
    match opened {
        Err(Errno::NOENT) => Ok(()), // removed in the copy
        opened => opened.map_err(failed("can not open up", path)),
    }
}

fn put_in_place(root: BorrowedFd<'_>, tree: &Tree<'_>, mount: &OwnedFd) -> Result<()> {
    let path = tree.placed.real.as_bytes();
    let name = relative(path)?;
    if tree.placed.directory {
        return attach_at(root, path, mount);
    }
    match mounts::open_inside(root, &name) {
        Ok(there) => mounts::attach(mount, there).map_err(failed("can not mount", path)),
        Err(_) => put_on_new_file(root, path, &name, mount),
    }
}

/// On a /dev that was empty.
fn put_device(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> Result<()> {
    put_on_new_file(root, path, &relative(path)?, tree)
}

/// A symlink on the way to a grant, as the host has it. It is there already where its directory came with another grant.
fn make_link(root: BorrowedFd<'_>, link: &Link) -> Result<()> {
    let at = link.at.as_os_str().as_bytes();
    let name = relative(at)?;
    let made = match rustix::fs::symlinkat(&link.target, root, &name) {
        Err(Errno::NOENT) => {
            make_dir(root, parent_of(at))?;
            rustix::fs::symlinkat(&link.target, root, &name)
        }
        Err(Errno::EXIST) if rustix::fs::readlinkat(root, &name, Vec::new()).is_ok() => Ok(()),
        made => made,
    };
    made.map_err(failed("can not link", at))
}

/// A mount at a path; directories that lead there are made where they are missing.
fn attach_at(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> Result<()> {
    // Nearly always it is missing.
    make_dir(root, path)?;
    let onto = mounts::open_inside(root, &relative(path)?).map_err(failed("can not open", path))?;
    mounts::attach(tree, onto).map_err(failed("can not mount", path))
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
    let made = made.map_err(failed("can not make", path))?;
    mounts::attach(tree, made).map_err(failed("can not mount", path))
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
    ignoring(Errno::EXIST, made).map_err(failed("can not make", path))
}

/// As seen from the new root.
fn relative(path: &[u8]) -> Result<CString> {
    let below = path.strip_prefix(b"/").unwrap_or(path);
    let name = if below.is_empty() { b"." } else { below };
    CString::new(name).map_err(|_| failed("is no path:", path)(Errno::INVAL))
}

fn ignoring(expected: Errno, result: std::result::Result<(), Errno>) -> std::result::Result<(), Errno> {
    match result {
        Err(errno) if errno == expected => Ok(()),
        other => other,
    }
}

/// Rules for what did not exist when the others were made.
fn add_rules(root: BorrowedFd<'_>, blueprint: &Blueprint<'_>, ruleset: Option<BorrowedFd<'_>>) -> Result<()> {
    let Some(ruleset) = ruleset else { return Ok(()) };
    let copied = |grant: &&Grant| blueprint.session.is_some_and(|session| grant.path.is_within(session.workspace()));
    let placed = blueprint.files.placed.iter().map(|placed| placed.grant);
    for grant in blueprint.files.made.iter().copied().chain(placed.filter(copied)) {
        match add_rule(root, blueprint.plan, grant, ruleset) {
            Err(Errno::NOENT | Errno::NOTDIR) if grant.optional => {}
            result => result.map_err(failed("can not grant", grant.path.as_bytes()))?,
        }
    }
    if blueprint.may_list_everything() {
        let list = Rights::from(AccessFs::ReadDir);
        sys::landlock_add_rule(ruleset, list.bits(), root).map_err(failed("can not grant", b"/"))?;
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
    add_rule_at(mounts::open_inside(root, &name)?, plan, grant, ruleset)
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
    if rights.is_empty() { Ok(()) } else { sys::landlock_add_rule(ruleset, rights.bits(), opened.as_fd()) }
}

/// Afterwards the old tree can not be reached by any name: pivoting, unlike chroot, takes it away.
pub fn leave_old_root(root: BorrowedFd<'_>) -> Result<()> {
    let failure = || failed("can not leave the old root for", b"/");
    rustix::process::fchdir(root).map_err(failure())?;
    rustix::process::pivot_root(c".", c".").map_err(failure())?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH).map_err(failure())?;
    rustix::process::chdir(c"/").map_err(failure())
}
