//! Places a cover over a name: a mount of a mask, or of the object itself.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::files::cover::{Cover, CoverKind, CoverResult};
use crate::kernel::mount::{
    NO_EXEC, NO_SUID_NO_DEV, READ_ONLY, attach, clone_tree, open_below_root, open_deep_path,
};
use crate::kernel::resolved_path::Identity;

/// The sources of masks: two empty objects of mode 000 on the private /dev. They stay, because
/// later masks need them too.
pub const MASK_FILE: &CStr = c"dev/.closed-file";
pub const MASK_DIR: &CStr = c"dev/.closed-dir";

/// Hides a name of the host in a copy. The overlay may have cached the name, or a directory above
/// it, as missing, because the command asked for it too early. So the name is made and removed
/// again, which leaves a whiteout.
pub fn hide(root: BorrowedFd<'_>, cover: &Cover) -> Result<CoverResult, Errno> {
    let path = cover.path.as_bytes();
    let ends =
        path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    let mut dir = open_below_root(root, c".")?;
    let mut start = 1;
    for end in ends {
        dir = match open_deep_path(root, &path[..end]) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&dir, &path[start..end], Mode::RWXU)?;
                return rustix::fs::unlinkat(&dir, &path[start..end], AtFlags::REMOVEDIR)
                    .map(|()| CoverResult::Absent);
            }
            Err(errno) => return Err(errno),
        };
        start = end + 1;
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, &path[start..], flags, Mode::empty()) {
        Ok(_) => rustix::fs::unlinkat(&dir, &path[start..], AtFlags::empty())
            .map(|()| CoverResult::Absent),
        Err(Errno::EXIST) => self::cover(root, cover, true),
        Err(errno) => Err(errno),
    }
}

/// Covers a name. [`CoverResult::Absent`]: another object has that name by now. A copy has its own
/// inode numbers, and the host does not change its names.
pub fn cover(root: BorrowedFd<'_>, cover: &Cover, copied: bool) -> Result<CoverResult, Errno> {
    let target = open_deep_path(root, cover.path.as_bytes())?;
    let stat = rustix::fs::fstat(&target)?;
    if !copied && cover.identity != Identity::from(&stat) {
        return Ok(CoverResult::Absent);
    }
    if copied && cover.kind == CoverKind::Mask && is_mask(root, Identity::from(&stat)) {
        return Ok(CoverResult::Needless);
    }
    let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    let tree = match cover.kind {
        CoverKind::Mask | CoverKind::ForeignSocket => {
            let source = open_below_root(root, if directory { MASK_DIR } else { MASK_FILE })?;
            clone_tree(source, NO_SUID_NO_DEV | READ_ONLY | NO_EXEC)?
        }
        CoverKind::Lock => clone_tree(&target, NO_SUID_NO_DEV | READ_ONLY)?,
        CoverKind::Pin => clone_tree(&target, NO_SUID_NO_DEV)?,
    };
    attach(tree, target).map(|()| CoverResult::Now)
}

/// Is this object one of the masks?
pub fn is_mask(root: BorrowedFd<'_>, identity: Identity) -> bool {
    let of = |mask: &CStr| {
        open_below_root(root, mask).and_then(rustix::fs::fstat).map(|stat| Identity::from(&stat))
    };
    [MASK_DIR, MASK_FILE].into_iter().any(|mask| of(mask) == Ok(identity))
}
