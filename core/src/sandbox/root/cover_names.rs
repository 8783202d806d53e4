//! Covers denied and protected names in the new root, by mounts.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::private_dirs::put_names;
use super::{RootBlueprint, RootError, RootResult, failed, receive_list};
use crate::files::cover::{Cover, CoverResult};
use crate::files::writes::{self, ScannedNames};
use crate::kernel::mount;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;
use crate::plan::wire::reader;
use crate::sandbox::cover_mount;
use crate::sandbox::init_channel::{self, InitMessage};

/// At most so many rounds are tried while other processes move and remove the names.
const MAX_COVER_ROUNDS: usize = 5;

/// Covers the denied and protected names below the root, which is already entered. Returns the names
/// that the judge of writes needs, if there is one.
pub fn cover(blueprint: &RootBlueprint<'_>, channel: &OwnedFd) -> RootResult<Option<ScannedNames>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(c"/", flags, Mode::empty()).map_err(failed("cannot open", b"/"))?;
    // The note of a copy has the names of the first search, so that search must stand.
    let mut more_looks = if blueprint.session.is_none() { 1..MAX_COVER_ROUNDS } else { 1..1 };
    let unread = || failed("cannot read the names to protect below", b"/");
    let mut scanned = None;
    loop {
        if writes::are_judged(blueprint.plan) {
            scanned = Some(receive_scanned_names(channel).map_err(unread())?);
        }
        let covers = receive_covers(channel)
            .map_err(failed("cannot read the names to cover below", b"/"))?;
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
    Ok(scanned)
}

fn receive_scanned_names(channel: &OwnedFd) -> Result<ScannedNames, Errno> {
    let mut text = Vec::new();
    receive_list(channel, |message| match message {
        InitMessage::ScannedNames(part) => {
            text.extend(part);
            true
        }
        _ => false,
    })?;
    reader::from_slice(&text).map_err(|_| Errno::PROTO)
}

fn receive_covers(channel: &OwnedFd) -> Result<Vec<Cover>, Errno> {
    let mut covers = Vec::new();
    receive_list(channel, |message| match message {
        InitMessage::Cover(cover) => {
            covers.push(cover);
            true
        }
        _ => false,
    })?;
    Ok(covers)
}

fn put_cover(root: BorrowedFd<'_>, blueprint: &RootBlueprint<'_>, cover: &Cover) -> RootResult<()> {
    let copied = blueprint.session.is_some_and(|session| cover.path.is_within(session.workspace()));
    match cover_mount::cover(root, cover, copied) {
        // An earlier round may have covered it, perhaps under another name: a mount moves with its
        // directory.
        Ok(CoverResult::Absent) if !is_masked(root, &cover.path) => {
            Err(failed("cannot cover", cover.path.as_bytes())(Errno::STALE))
        }
        Ok(_) => Ok(()),
        // In a copy the guard searches for it again, wherever it appears.
        Err(Errno::NOENT | Errno::NOTDIR) if copied || is_hidden(root, &cover.path) => Ok(()),
        // The search has seen it, so it counts as covered, also where a directory above it was
        // moved to.
        Err(Errno::NOENT | Errno::NOTDIR) => {
            Err(failed("cannot cover", cover.path.as_bytes())(Errno::STALE))
        }
        Err(errno) => Err(failed("cannot cover", cover.path.as_bytes())(errno)),
    }
}

/// Does the path end below an object of the sandbox itself: a mask, or the private /tmp?
fn is_hidden(root: BorrowedFd<'_>, path: &AbsPath) -> bool {
    let device = |name: &CStr| {
        mount::open_below_root(root, name).and_then(rustix::fs::fstat).map(|stat| stat.st_dev)
    };
    let own = [device(cover_mount::MASK_DIR), device(c"tmp")];
    let path = path.as_bytes();
    let ends = (1..path.len()).rev().filter(|end| path[*end] == b'/');
    let above = ends.map(|end| mount::open_deep_path(root, &path[..end])).find_map(Result::ok);
    above
        .and_then(|dir| rustix::fs::fstat(dir).ok())
        .is_some_and(|stat| own.contains(&Ok(stat.st_dev)))
}

/// Is the object at the path a mask?
fn is_masked(root: BorrowedFd<'_>, path: &AbsPath) -> bool {
    let found = mount::open_deep_path(root, path.as_bytes()).and_then(rustix::fs::fstat);
    found.is_ok_and(|stat| cover_mount::is_mask(root, Identity::from(&stat)))
}
