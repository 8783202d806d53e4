//! What is denied or protected in the new root is covered there, by mounts.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::private_dirs::put_names;
use super::{Blueprint, Result, RootError, failed, hear};
use crate::files::cover::{Cover, Placed};
use crate::kernel::mount;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;
use crate::sandbox::cover_mount;
use crate::sandbox::init_channel::{self, InitMessage};

/// For names to be covered, while others move and remove them.
const MOST_LOOKS: usize = 5;

/// What is denied or protected below the root, which is ours by now.
pub fn cover(blueprint: &Blueprint<'_>, channel: &OwnedFd) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(c"/", flags, Mode::empty()).map_err(failed("cannot open", b"/"))?;
    // A copy was noted and announced as it was found first.
    let mut more_looks = if blueprint.session.is_none() { 1..MOST_LOOKS } else { 1..1 };
    loop {
        let covers =
            told_covers(channel).map_err(failed("cannot read the names to cover below", b"/"))?;
        match covers.iter().try_for_each(|cover| put_cover(root.as_fd(), blueprint, cover)) {
            Err(RootError { errno: Errno::STALE, .. }) if more_looks.next().is_some() => {
                init_channel::send(channel, &InitMessage::Moved, &[])
                    .map_err(failed("cannot request the names to cover below", b"/"))?;
            }
            done => break done?,
        }
    }
    if blueprint.plan.network.is_some() {
        put_names(root.as_fd())?;
    }
    Ok(())
}

fn told_covers(channel: &OwnedFd) -> std::result::Result<Vec<Cover>, Errno> {
    let mut covers = Vec::new();
    hear(channel, |word| match word {
        InitMessage::Cover(cover) => {
            covers.push(cover);
            true
        }
        _ => false,
    })?;
    Ok(covers)
}

fn put_cover(root: BorrowedFd<'_>, blueprint: &Blueprint<'_>, cover: &Cover) -> Result<()> {
    let copied = blueprint.session.is_some_and(|session| cover.path.is_within(session.workspace()));
    match cover_mount::cover(root, cover, copied) {
        // After an earlier look, and perhaps under another name: a mount goes where its place goes.
        Ok(Placed::Absent) if !is_masked(root, &cover.path) => {
            Err(failed("cannot cover", cover.path.as_bytes())(Errno::STALE))
        }
        Ok(_) => Ok(()),
        // In a copy it is looked for again wherever it comes to.
        Err(Errno::NOENT | Errno::NOTDIR) if copied || is_hidden(root, &cover.path) => Ok(()),
        // It was seen, so from now on it counts as covered, also where a directory on the way was
        // moved to.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            Err(failed("cannot cover", cover.path.as_bytes())(Errno::STALE))
        }
        Err(errno) => Err(failed("cannot cover", cover.path.as_bytes())(errno)),
    }
}

/// Does the way to a path that is not there end in what we made ourselves: a mask, the private
/// /tmp?
fn is_hidden(root: BorrowedFd<'_>, path: &AbsPath) -> bool {
    let device = |name: &CStr| {
        mount::open_inside(root, name).and_then(rustix::fs::fstat).map(|stat| stat.st_dev)
    };
    let own = [device(cover_mount::MASK_DIR), device(c"tmp")];
    let path = path.as_bytes();
    let ends = (1..path.len()).rev().filter(|end| path[*end] == b'/');
    let above = ends
        .map(|end| mount::open_however_deep(root, &path[..end]))
        .find_map(std::result::Result::ok);
    above
        .and_then(|dir| rustix::fs::fstat(dir).ok())
        .is_some_and(|stat| own.contains(&Ok(stat.st_dev)))
}

/// Is what lies there one of our masks?
fn is_masked(root: BorrowedFd<'_>, path: &AbsPath) -> bool {
    let found = mount::open_however_deep(root, path.as_bytes()).and_then(rustix::fs::fstat);
    found.is_ok_and(|stat| cover_mount::is_mask(root, Identity::from(&stat)))
}
