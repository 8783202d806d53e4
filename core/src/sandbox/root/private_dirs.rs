//! The private /tmp, /dev and /proc.
//!
//! The first two are directories of the root's tmpfs, each a mount of its own: another file system
//! takes as long as ten mounts, to make and to unmount. If the root is a directory of the host,
//! they are on a tmpfs that is mounted there before.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::shells::Interception;
use super::{
    RootBlueprint, RootError, RootResult, attach_at, attach_to, failed, make_dir, put_on_new_file,
    relative,
};
use crate::kernel::mount::{self, NO_EXEC, NO_SUID_NO_DEV, NO_SUID_NO_EXEC, READ_ONLY};
use crate::kernel::{proc_text, sys};
use crate::plan::wire::bytes::AbsPath;
use crate::sandbox::cover_mount;

const DEVICES: [&CStr; 6] =
    [c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

const DEVICE_LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"dev/fd"),
    (c"pts/ptmx", c"dev/ptmx"),
    (c"fd/0", c"dev/stdin"),
    (c"fd/1", c"dev/stdout"),
    (c"fd/2", c"dev/stderr"),
];

/// Files that show or reach the machine, and not the processes in the sandbox.
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

/// Files that configure the machine.
const PROC_LOCKS: [&CStr; 4] = [c"proc/sys", c"proc/bus", c"proc/fs", c"proc/irq"];

/// Each with its name inside.
pub type Devices = Vec<(CString, OwnedFd)>;

/// The devices that every program expects, and the caller's terminal.
pub fn take_devices(terminal: Option<&CStr>) -> RootResult<Devices> {
    let mut devices = Vec::with_capacity(DEVICES.len() + 1);
    for host in DEVICES {
        take_device(&mut devices, host, host, host == c"/dev/tty")?;
    }
    if let Some(terminal) = terminal {
        take_device(&mut devices, terminal, c"/dev/console", true)?;
    }
    Ok(devices)
}

pub(super) fn take_device(
    devices: &mut Devices,
    host: &CStr,
    inside: &CStr,
    optional: bool,
) -> RootResult<()> {
    match clone_device(host) {
        Ok(tree) => {
            devices.push((inside.to_owned(), tree));
            Ok(())
        }
        Err(_) if optional => Ok(()),
        Err(errno) => Err(failed("cannot copy the mount of", host.to_bytes())(errno)),
    }
}

/// Does the sandbox make this path itself, or the directory of such paths?
pub(super) fn is_own_device(path: &AbsPath) -> bool {
    let path = path.as_bytes();
    let own: [&[u8]; 6] =
        [b"/dev", b"/dev/pts", b"/dev/shm", b"/dev/ptmx", b"/dev/fd", b"/dev/console"];
    own.contains(&path)
        || path.starts_with(b"/dev/std")
        || DEVICES.iter().any(|device| device.to_bytes() == path)
}

fn clone_device(host: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // Only the name is read-only: the device can still be written.
    mount::clone_tree(rustix::fs::open(host, flags, Mode::empty())?, NO_SUID_NO_EXEC | READ_ONLY)
}

/// With the size limit of the plan, or that of the kernel.
pub fn new_tmpfs(size_mb: Option<u64>) -> RootResult<OwnedFd> {
    let size = size_mb.and_then(|size| CString::new(format!("{size}m")).ok());
    let mut options = vec![(c"mode", c"0755")];
    options.extend(size.as_deref().map(|size| (c"size", size)));
    mount::new_fs(c"tmpfs", &options, NO_SUID_NO_DEV)
        .map_err(failed("cannot create a file system in memory for", b"/"))
}

/// Returns the mount at /tmp.
pub(super) fn make_tmp(root: BorrowedFd<'_>, blueprint: &RootBlueprint<'_>) -> RootResult<OwnedFd> {
    let mut grants = blueprint.made().filter(|grant| grant.path.as_bytes() == b"/tmp").peekable();
    let inert = grants.peek().is_some() && grants.all(|grant| !grant.executes());
    let tmp = make_shared_dir(
        root,
        b"/tmp",
        if inert { NO_SUID_NO_DEV | NO_EXEC } else { NO_SUID_NO_DEV },
    )?;
    attach_to(root, b"/tmp", &tmp)?;
    Ok(tmp)
}

/// The files that programs resolve names with. The relay resolves every name, so the host's own
/// lists do not apply: programs would connect to their addresses directly. Any address would do for
/// the nameserver. Unlike 127.0.0.1, this one is also reached by TCP.
const RESOLVER_FILES: [(&CStr, &CStr); 2] =
    [(c"dev/.hosts", c"etc/hosts"), (c"dev/.resolv.conf", c"etc/resolv.conf")];
const NAMESERVER: &str = "nameserver 10.255.255.53\n";

/// The certificates that programs trust. The plan sets the variables that name this file
/// (`src/paddock/plan/http_routes.py`).
pub(super) const CA_BUNDLE: &CStr = c"dev/paddock-ca.pem";

fn write_ca_bundle(root: BorrowedFd<'_>, ca_bundle: &OwnedFd) -> RootResult<()> {
    let failure = || failed("cannot write", CA_BUNDLE.to_bytes());
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file =
        rustix::fs::openat(root, CA_BUNDLE, flags, Mode::from_raw_mode(0o644)).map_err(failure())?;
    let (mut buffer, mut at) = (vec![0; 64 << 10], 0);
    loop {
        let length = rustix::io::pread(ca_bundle, &mut buffer[..], at).map_err(failure())?;
        if length == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest).map_err(failure())?..];
        }
        at += length as u64;
    }
}

/// Called before /dev is locked.
fn write_names(root: BorrowedFd<'_>) -> RootResult<()> {
    let own = rustix::system::uname();
    let hosts = format!(
        "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {}\n",
        own.nodename().to_string_lossy()
    );
    for ((name, _), text) in RESOLVER_FILES.iter().zip([hosts.as_str(), NAMESERVER]) {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(root, *name, flags, Mode::from_raw_mode(0o644));
        let written = file.and_then(|file| rustix::io::write(&file, text.as_bytes()));
        written.map_err(failed("cannot write", name.to_bytes()))?;
    }
    Ok(())
}

/// Mounts them over the host's files, also over a link.
pub(super) fn put_names(root: BorrowedFd<'_>) -> RootResult<()> {
    for (name, at) in RESOLVER_FILES {
        let target = match mount::open_below_root(root, at) {
            // Without the file programs ask 127.0.0.1, where the relay answers too.
            Err(Errno::NOENT) => continue,
            target => target.map_err(failed("cannot open", at.to_bytes()))?,
        };
        let own = mount::open_below_root(root, name)
            .and_then(|own| mount::clone_tree(own, NO_SUID_NO_DEV | READ_ONLY | NO_EXEC));
        own.and_then(|own| mount::attach(own, target))
            .map_err(failed("cannot cover", at.to_bytes()))?;
    }
    Ok(())
}

/// Builds /dev on a file system of the sandbox. Returns the mount at /dev/shm.
pub fn make_dev(
    root: BorrowedFd<'_>,
    devices: &Devices,
    names: bool,
    ca_bundle: Option<&OwnedFd>,
    interception: Option<&Interception<'_>>,
) -> RootResult<OwnedFd> {
    let shm = make_shared_dir(root, b"/dev/shm", NO_SUID_NO_DEV)?;
    attach_to(root, b"/dev", &set_apart(root, b"/dev", NO_SUID_NO_DEV | NO_EXEC)?)?;
    let made = |name: &CStr| {
        let path = name.to_bytes().to_vec();
        move |errno| RootError { act: "cannot create", path, errno }
    };
    for (path, tree) in devices {
        put_device(root, path.to_bytes(), tree)?;
    }
    for (target, name) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, root, name).map_err(made(name))?;
    }
    let pts =
        mount::new_fs(c"devpts", &[(c"mode", c"0620"), (c"ptmxmode", c"0666")], NO_SUID_NO_EXEC)
            .map_err(made(c"/dev/pts"))?;
    attach_at(root, b"/dev/pts", &pts)?;
    attach_to(root, b"/dev/shm", &shm)?;
    let closed = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(root, cover_mount::MASK_FILE, closed, Mode::empty())
        .map_err(made(cover_mount::MASK_FILE))?;
    rustix::fs::mkdirat(root, cover_mount::MASK_DIR, Mode::empty())
        .map_err(made(cover_mount::MASK_DIR))?;
    if names {
        write_names(root)?;
    }
    ca_bundle.map_or(Ok(()), |ca_bundle| write_ca_bundle(root, ca_bundle))?;
    interception.map_or(Ok(()), |interception| interception.make_place(root))?;
    let dev = mount::open_below_root(root, c"dev").map_err(failed("cannot open", b"/dev"))?;
    sys::mount_setattr(dev.as_fd(), false, (NO_SUID_NO_DEV | NO_EXEC | READ_ONLY).bits().into(), 0)
        .map_err(failed("cannot lock", b"/dev"))?;
    Ok(shm)
}

/// Makes a directory that every user may write, as a mount of its own, with the directories above
/// it.
fn make_shared_dir(
    root: BorrowedFd<'_>,
    path: &[u8],
    attributes: MountAttrFlags,
) -> RootResult<OwnedFd> {
    make_dir(root, path)?;
    let all = Mode::RWXU | Mode::RWXG | Mode::RWXO | Mode::SVTX;
    rustix::fs::chmodat(root, relative(path)?, all, AtFlags::empty())
        .map_err(failed("cannot make writable", path))?;
    set_apart(root, path, attributes)
}

/// Makes a directory of the new root a mount of its own, so that it can be writable or read-only
/// apart from the root.
fn set_apart(root: BorrowedFd<'_>, path: &[u8], attributes: MountAttrFlags) -> RootResult<OwnedFd> {
    let opened = mount::open_below_root(root, &relative(path)?);
    opened
        .and_then(|dir| mount::clone_tree(dir, attributes))
        .map_err(failed("cannot make private", path))
}

pub fn make_proc(root: BorrowedFd<'_>, nested: bool, pid_max: Option<u32>) -> RootResult<OwnedFd> {
    let made = |act| failed(act, b"/proc");
    let proc =
        mount::new_fs(c"proc", &[], NO_SUID_NO_DEV | NO_EXEC).map_err(made("cannot mount"))?;
    attach_at(root, b"/proc", &proc)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::openat(root, c"proc", flags, Mode::empty()).map_err(made("cannot open"))?;
    if !nested {
        write_number(root, c"proc/sys/user/max_user_namespaces", 0)?;
    }
    // inotify watches are counted by user: a command that uses all of them would blind the guard.
    if let Some(watches) = read_number(root, c"proc/sys/fs/inotify/max_user_watches") {
        write_number(root, c"proc/sys/user/max_inotify_watches", watches / 2)?;
    }
    if let Some(pid_max) = pid_max {
        write_number(root, c"proc/sys/kernel/pid_max", pid_max)?;
    }
    let masks = MaskSources::open(root).map_err(made("cannot open the masks of"))?;
    for name in PROC_MASKS {
        let Ok(target) = mount::open_below_root(root, name) else { continue }; // not in this kernel
        masks.put_on(target).map_err(failed("cannot mask", name.to_bytes()))?;
    }
    for name in PROC_LOCKS {
        let Ok(target) = mount::open_below_root(root, name) else { continue };
        let locked = mount::clone_tree(&target, NO_SUID_NO_DEV | NO_EXEC | READ_ONLY);
        let locked = locked.and_then(|locked| mount::attach(locked, target));
        locked.map_err(failed("cannot lock", name.to_bytes()))?;
    }
    Ok(opened)
}

/// The objects that masks are clones of.
pub struct MaskSources {
    file: OwnedFd,
    directory: OwnedFd,
}

impl MaskSources {
    pub fn open(root: BorrowedFd<'_>) -> Result<MaskSources, Errno> {
        let file = mount::open_below_root(root, cover_mount::MASK_FILE)?;
        Ok(MaskSources { file, directory: mount::open_below_root(root, cover_mount::MASK_DIR)? })
    }

    pub fn put_on(&self, target: OwnedFd) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&target)?;
        let source = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::Directory => &self.directory,
            _ => &self.file,
        };
        mount::attach(mount::clone_tree(source, NO_SUID_NO_DEV | READ_ONLY | NO_EXEC)?, target)
    }
}

fn read_number(root: BorrowedFd<'_>, name: &CStr) -> Option<u32> {
    let file =
        rustix::fs::openat(root, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut buffer = [0; 16];
    let length = rustix::io::read(&file, &mut buffer[..]).ok()?;
    proc_text::number(buffer[..length].trim_ascii_end())
        .and_then(|number| u32::try_from(number).ok())
}

fn write_number(root: BorrowedFd<'_>, name: &CStr, value: u32) -> RootResult<()> {
    let failure = || failed("cannot write", name.to_bytes());
    let file = rustix::fs::openat(root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failure())?;
    rustix::io::write(&file, value.to_string().as_bytes()).map_err(failure())?;
    Ok(())
}

/// Adds a device to a /dev that was empty.
fn put_device(root: BorrowedFd<'_>, path: &[u8], tree: &OwnedFd) -> RootResult<()> {
    put_on_new_file(root, path, &relative(path)?, tree)
}
