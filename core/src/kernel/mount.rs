//! Mount operations. A mount is created detached, by descriptor, and then attached to a tree. Names
//! are resolved inside that tree.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use super::{open_beneath, sys};

pub const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
pub const NO_EXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
/// Flags of every mount in the sandbox: set-user-id bits and device nodes have no effect.
pub const NO_SUID_NO_DEV: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
pub const NO_SUID_NO_EXEC: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Creates a file system with its options. It is not mounted yet.
pub fn new_fs(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let fs = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        rustix::mount::fsconfig_set_string(&fs, *name, *value)?;
    }
    rustix::mount::fsconfig_create(&fs)?;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A detached copy of the mounts at and below an open file or directory. Later changes of the
/// original do not show in the copy.
pub fn clone_tree(at: impl AsFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    if let Ok(tree) = sys::open_tree_attr(at.as_fd(), attributes.bits().into()) {
        return Ok(tree);
    }
    // An older kernel, or an outer seccomp filter that does not know the call.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(at, c"", flags)?;
    sys::mount_setattr(tree.as_fd(), true, attributes.bits().into(), 0)?;
    Ok(tree)
}

/// Like `clone_tree`, for a mount that the core created: the copy may be less restricted than the
/// original.
pub fn clone_own_mount(at: impl AsFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(at, attributes)?;
    let closed = (READ_ONLY | NO_EXEC).difference(attributes);
    sys::mount_setattr(tree.as_fd(), false, 0, closed.bits().into())?;
    Ok(tree)
}

/// Attaches a detached mount to an open file or directory.
pub fn attach(tree: impl AsFd, onto: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", onto, c"", flags)
}

/// Attaches a detached mount to a name in a directory. The kernel does not follow a symlink here
/// and does not mount on one.
pub fn attach_by_name(tree: impl AsFd, dir: impl AsFd, name: &CStr) -> Result<(), Errno> {
    rustix::mount::move_mount(tree, c"", dir, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Opens a path of the host with O_PATH, without following any symlink.
pub fn open_host(path: &CStr) -> Result<OwnedFd, Errno> {
    open_host_at(CWD, path)
}

pub fn open_host_at(dir: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Opens a path below `root` with O_PATH, without following any symlink.
pub fn open_below_root(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// Like `open_below_root`, for a path that may exceed PATH_MAX.
pub fn open_deep_path(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    open_beneath::open(root, path.strip_prefix(b"/").unwrap_or(path), OFlags::PATH)
}

/// Like `open_below_root`, but follows symlinks. They are resolved inside `root`.
pub fn follow_below_root(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}
