//! The copy-on-write overlay: its layers, and mounting it.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::root::Stage;
use crate::files::workspace::session_dir::{Above, make_dir};
use crate::files::workspace::whiteouts::Whiteouts;
use crate::kernel::mount::{self, NO_SUID_NO_DEV};

/// What the overlay is made of.
pub struct Layers {
    lower: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
}

impl Layers {
    pub fn new(lower: OwnedFd, above: Above) -> Layers {
        let Above { upper, work } = above;
        Layers { lower, upper, work }
    }

    /// A file system in memory for the layer between. The overlay takes only what is mounted
    /// somewhere; it lies where the new root will be built on it, and goes with the old one.
    pub fn stage(stage: &Stage) -> Result<OwnedFd, Errno> {
        let veil = mount::new_fs(c"tmpfs", &[(c"mode", c"0700")], NO_SUID_NO_DEV)?;
        stage.put(&veil).map_err(|error| error.errno())
    }

    /// The overlay, mounted nowhere yet.
    pub fn mount(
        &self,
        veil: &Whiteouts,
        stage: BorrowedFd<'_>,
        attributes: MountAttrFlags,
    ) -> Result<OwnedFd, Errno> {
        let Layers { lower, upper, work } = self;
        veil.lay(lower.as_fd(), stage)?;
        // With a layer of another file system files would show the numbers of theirs and change
        // them with the first write, but for this; where the copy is on another file system than
        // the workspace they do so anyway.
        let one = rustix::fs::fstat(lower)?.st_dev == rustix::fs::fstat(upper)?.st_dev;
        let numbers: &[_] = if one { &[(c"xino", c"on")] } else { &[] };
        mount_overlay(&[stage, lower.as_fd()], upper.as_fd(), work.as_fd(), numbers, attributes)
    }
}

/// `lowers`: the first hides what is in the next.
fn mount_overlay(
    lowers: &[BorrowedFd<'_>],
    upper: BorrowedFd<'_>,
    work: BorrowedFd<'_>,
    options: &[(&CStr, &CStr)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    // By descriptor: whatever characters the path has, and whatever is mounted over it by now.
    let named = |fd: &BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
    let lowers: Vec<String> = lowers.iter().map(named).collect();
    let fs = rustix::mount::fsopen(c"overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(&fs, c"lowerdir", lowers.join(":"))?;
    rustix::mount::fsconfig_set_string(&fs, c"upperdir", named(&upper))?;
    rustix::mount::fsconfig_set_string(&fs, c"workdir", named(&work))?;
    for (name, value) in options {
        rustix::mount::fsconfig_set_string(&fs, *name, *value)?;
    }
    // Without it a directory that was removed can not be made again.
    rustix::mount::fsconfig_set_flag(&fs, c"userxattr")?;
    rustix::mount::fsconfig_create(&fs)?;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// On a file system in memory that is thrown away.
pub fn try_overlay(stage: BorrowedFd<'_>) -> Result<(), Errno> {
    let (lower, upper, work) =
        (make_dir(stage, c"lower")?, make_dir(stage, c"upper")?, make_dir(stage, c"work")?);
    mount_overlay(&[lower.as_fd()], upper.as_fd(), work.as_fd(), &[], NO_SUID_NO_DEV).map(drop)
}
