//! Mounts as the core uses them: made detached, by descriptor, and put into a tree whose names are resolved inside that tree.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

use crate::beneath;
use crate::cover::{Cover, CoverKind, Placed};
use crate::place::Identity;
use crate::sys;

pub const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
pub const NO_EXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
/// What every mount inside has: set-user-id files and device nodes mean nothing there.
pub const PLAIN: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
pub const DEVICE: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Where masks come from: two empty objects of mode 000 on the private /dev. They stay, because later masks need them too.
pub const MASK_FILE: &CStr = c"dev/.closed-file";
pub const MASK_DIR: &CStr = c"dev/.closed-dir";

/// A new file system with its options, mounted nowhere yet.
pub fn new_fs(kind: &CStr, options: &[(&CStr, &CStr)], attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let fs = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        rustix::mount::fsconfig_set_string(&fs, *name, *value)?;
    }
    rustix::mount::fsconfig_create(&fs)?;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A detached copy of what is mounted at and below an open file or directory. Nothing that happens to the original shows in it.
pub fn clone_tree(at: impl AsFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    if let Ok(tree) = sys::open_tree_attr(at.as_fd(), attributes.bits().into()) {
        return Ok(tree);
    }
    // An older kernel, or an outer filter that does not know the call.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = rustix::mount::open_tree(at, c"", flags)?;
    sys::mount_setattr(tree.as_fd(), true, attributes.bits().into(), 0)?;
    Ok(tree)
}

/// The same of a mount that we made ourselves: it may open more than the original.
pub fn clone_again(at: impl AsFd, attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(at, attributes)?;
    let closed = (READ_ONLY | NO_EXEC).difference(attributes);
    sys::mount_setattr(tree.as_fd(), false, 0, closed.bits().into())?;
    Ok(tree)
}

/// Puts a detached mount onto an open file or directory.
pub fn attach(tree: impl AsFd, onto: impl AsFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(tree, c"", onto, c"", flags)
}

/// Puts a detached mount onto what a directory has by this name. A symlink is not followed, and can not be mounted on.
pub fn attach_by_name(tree: impl AsFd, dir: impl AsFd, name: &CStr) -> Result<(), Errno> {
    rustix::mount::move_mount(tree, c"", dir, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Opens a name of the host for looking, through no symlink.
pub fn open_host(path: &CStr) -> Result<OwnedFd, Errno> {
    open_host_at(CWD, path)
}

pub fn open_host_at(dir: impl AsFd, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Opens a name of the tree below `root` for looking: no symlink can lead out of it, or anywhere.
pub fn open_inside(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

/// The same of a path that may be longer than one call takes.
pub fn open_however_deep(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    beneath::open(root, path.strip_prefix(b"/").unwrap_or(path), OFlags::PATH)
}

/// The same through symlinks, which are resolved in that tree.
pub fn follow_inside(root: BorrowedFd<'_>, path: &CStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Hides a name of the host in a copy that remembers it as missing, or a directory on the way to it, because it was asked for before
/// it was there: made and removed again, it leaves a whiteout.
pub fn hide(root: BorrowedFd<'_>, cover: &Cover) -> Result<Placed, Errno> {
    let path = cover.path.as_bytes();
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let mut dir = open_inside(root, c".")?;
    let mut start = 1;
    for end in ends {
        dir = match open_however_deep(root, &path[..end]) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&dir, &path[start..end], Mode::RWXU)?;
                return rustix::fs::unlinkat(&dir, &path[start..end], AtFlags::REMOVEDIR).map(|()| Placed::Absent);
            }
            Err(errno) => return Err(errno),
        };
        start = end + 1;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, &path[start..], flags, Mode::empty()) {
        Ok(_) => rustix::fs::unlinkat(&dir, &path[start..], AtFlags::empty()).map(|()| Placed::Absent),
        Err(Errno::EXIST) => self::cover(root, cover, true),
        Err(errno) => Err(errno),
    }
}

/// Covers a name. [`Placed::Absent`]: something else has that name by now. A copy has identities of its own, and its names do not
/// change behind our back.
pub fn cover(root: BorrowedFd<'_>, cover: &Cover, copied: bool) -> Result<Placed, Errno> {
    let target = open_however_deep(root, cover.path.as_bytes())?;
    let stat = rustix::fs::fstat(&target)?;
    if !copied && cover.identity != Identity::from(&stat) {
        return Ok(Placed::Absent);
    }
    if copied && cover.kind == CoverKind::Mask && is_mask(root, Identity::from(&stat)) {
        return Ok(Placed::Needless);
    }
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let tree = match cover.kind {
        CoverKind::Mask | CoverKind::Stranger => {
            let source = open_inside(root, if directory { MASK_DIR } else { MASK_FILE })?;
            clone_tree(source, PLAIN | READ_ONLY | NO_EXEC)?
        }
        CoverKind::Lock => clone_tree(&target, PLAIN | READ_ONLY)?,
        CoverKind::Pin => clone_tree(&target, PLAIN)?,
    };
    attach(tree, target).map(|()| Placed::Now)
}

/// Is this one of our masks?
pub fn is_mask(root: BorrowedFd<'_>, identity: Identity) -> bool {
    let of = |mask: &CStr| open_inside(root, mask).and_then(rustix::fs::fstat).map(|stat| Identity::from(&stat));
    [MASK_DIR, MASK_FILE].into_iter().any(|mask| of(mask) == Ok(identity))
}
