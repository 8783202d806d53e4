//! The copy-on-write overlay: its layers, and its mount.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::root::StageDir;
use crate::files::workspace::session_dir::{SessionLayers, make_dir};
use crate::files::workspace::whiteouts::Whiteouts;
use crate::kernel::mount::{self, NO_SUID_NO_DEV};

/// The layers of the overlay.
pub struct OverlayLayers {
    lower: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
}

impl OverlayLayers {
    pub fn new(lower: OwnedFd, above: SessionLayers) -> OverlayLayers {
        let SessionLayers { upper, work } = above;
        OverlayLayers { lower, upper, work }
    }

    /// A file system in memory for the layer of whiteouts. The overlay takes only a mounted one. It
    /// is mounted where the new root will be built on it, and goes with the old root.
    pub fn stage(stage: &StageDir) -> Result<OwnedFd, Errno> {
        let whiteouts = mount::new_fs(c"tmpfs", &[(c"mode", c"0700")], NO_SUID_NO_DEV)?;
        stage.put(&whiteouts).map_err(|error| error.errno())
    }

    /// The overlay, as a detached mount.
    pub fn mount(
        &self,
        whiteouts: &Whiteouts,
        stage: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> Result<OwnedFd, Errno> {
        let OverlayLayers { lower, upper, work } = self;
        whiteouts.lay(lower.as_fd(), stage)?;
        // Without this option a layer on another file system would change the inode numbers of
        // files at their first write. If the copy is on another file system than the workspace,
        // they change anyway.
        let one = rustix::fs::fstat(lower)?.st_dev == rustix::fs::fstat(upper)?.st_dev;
        let numbers: &[_] = if one { &[(c"xino", c"on")] } else { &[] };
        mount_overlay(&[stage, lower.as_fd()], upper.as_fd(), work.as_fd(), numbers, attributes)
    }
}

/// `lowers`: the first layer hides the next.
fn mount_overlay(
    lowers: &[BorrowedFd<'_>],
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
    options: &[(&CStr, &CStr)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    // By descriptor: the path may have any characters, and another mount may cover it by now.
    let named = |fd: &BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let lowers: Vec<String> = lowers.iter().map(named).collect();
    let fs = rustix::mount::fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&fs, c"lowerdir", lowers.join(":"))?;
    rustix::mount::fsconfig_set_string(&fs, c"upperdir", named(&upper))?;
    rustix::mount::fsconfig_set_string(&fs, c"workdir", named(&work))?;
    for (name, value) in options {
        rustix::mount::fsconfig_set_string(&fs, *name, *value)?;
    }
    // Without it a removed directory can not be made again.
    rustix::mount::fsconfig_set_flag(&fs, c"userxattr")?;
    rustix::mount::fsconfig_create(&fs)?;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Tries an overlay on a temporary file system in memory.
pub fn try_overlay(stage: BorrowedFd<'_>) -> Result<(), Errno> {
    let (lower, upper, work) =
        (make_dir(stage, c"lower")?, make_dir(stage, c"upper")?, make_dir(stage, c"work")?);
    mount_overlay(&[lower.as_fd()], upper.as_fd(), work.as_fd(), &[], NO_SUID_NO_DEV).map(drop)
}
