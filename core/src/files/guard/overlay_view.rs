//! A copy, as the command sees it.
//!
//! An overlay caches what it found in the workspace. If the host has moved a directory, the copy
//! may still show it at a path where the host had it only briefly, with entries that came later. So
//! the guard also checks the view of the command: at every event and, once a directory was moved,
//! everywhere when a denied name appears, and from time to time. Uncovered denied names that are
//! not the command's own are covered.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::files::cover::{Cover, CoverKind};
use crate::files::patterns::{NameMatch, NamePatterns, StateId};
use crate::files::scan;
use crate::files::tree_roots::{OpenTree, TreeRoots};
use crate::files::walk::{self, Below, Dir, Entry, NameDecision, Visitor, WalkError, Walker};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::Identity;
use crate::plan::wire::bytes::AbsPath;

use super::GuardError;
use super::watches::UNWATCHED;

pub struct OverlayView {
    /// The tree of the guard that this is a view of.
    pub tree: usize,
    roots: TreeRoots,
    /// The files that the command has made itself.
    own: OwnedFd,
    /// A directory was moved: the copy may show it at its old path, with new entries.
    pub is_astray: bool,
    last_look: Instant,
    took: Duration,
}

/// The interval between two scans, if a scan takes less than a twentieth of it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The overlay sets it on a directory that does not show the entries of the lower layer.
const OPAQUE_XATTR: &CStr = c"user.overlay.opaque";

/// A directory, as the guard knows it.
pub struct WatchedDir<'p> {
    pub path: &'p [u8],
    pub state: StateId,
    pub below: Below,
    pub folding: bool,
}

impl OverlayView {
    /// None: the guard does not watch that tree.
    pub fn of(
        roots: &TreeRoots,
        path: &AbsPath,
        seen: OwnedFd,
        own: OwnedFd,
    ) -> Result<Option<OverlayView>, GuardError> {
        let Some(tree) = roots.trees.iter().position(|tree| tree.path == *path) else {
            return Ok(None);
        };
        let roots = TreeRoots { trees: vec![roots.trees[tree].seen_from(seen)?] };
        Ok(Some(OverlayView {
            tree,
            roots,
            own,
            is_astray: false,
            last_look: Instant::now(),
            took: Duration::ZERO,
        }))
    }

    pub fn next_look(&self) -> Option<Duration> {
        let pause = LOOK_INTERVAL.max(self.took * 20);
        self.is_astray.then(|| pause.saturating_sub(self.last_look.elapsed()))
    }

    pub fn shows(&self, path: &AbsPath) -> bool {
        path.is_within(&self.roots.trees[0].path)
    }

    pub fn may_show_elsewhere(&self, cover: &Cover) -> bool {
        self.is_astray && cover.kind == CoverKind::Mask && self.shows(&cover.path)
    }

    /// Checks a name in a directory, and everything below it.
    pub fn look_at(
        &mut self,
        walker: &mut Walker,
        names: &mut NamePatterns,
        place: WatchedDir<'_>,
        name: &CStr,
        covers: &mut Vec<Cover>,
    ) -> Result<(), GuardError> {
        let WatchedDir { path, state, below, folding } = place;
        let tree = &self.roots.trees[0];
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let fd = match tree.open(path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(fd) => fd,
            // A name that the command does not see needs no cover.
            Err(Errno::NOENT) => return Ok(()),
            // The name is not visible now, but may be later. The command has shut its own
            // directory, and can open it again.
            Err(error) if is_hidden(error) || error == Errno::ACCESS => {
                self.is_astray = true;
                return Ok(());
            }
            Err(source) => return Err(failed(source).into()),
        };
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        let identity = Identity::from(&stat);
        let dir = Dir {
            tree,
            tree_index: 0,
            fd: fd.as_fd(),
            path,
            identity,
            state,
            below,
            folding,
            numbers_agree: false,
            node: UNWATCHED,
        };
        let mut seen = OverlayVisitor { own: &self.own, covers, stored_path_bytes: 0, shut: false };
        let Some(stat) = seen.stat(&dir, name)? else { return Ok(()) };
        let file_type = FileType::from_raw_mode(stat.st_mode);
        walker.entry(names, &self.roots, &dir, name, file_type, &mut seen)?;
        self.is_astray |= seen.shut;
        Ok(())
    }

    pub fn look_around(
        &mut self,
        walker: &mut Walker,
        names: &mut NamePatterns,
        covers: &mut Vec<Cover>,
    ) -> Result<(), GuardError> {
        let started = Instant::now();
        let mut seen = OverlayVisitor { own: &self.own, covers, stored_path_bytes: 0, shut: false };
        let looked = walker.tree(names, &self.roots, 0, &mut seen);
        self.is_astray |= seen.shut;
        (self.last_look, self.took) = (Instant::now(), started.elapsed());
        looked
    }
}

struct OverlayVisitor<'v> {
    own: &'v OwnedFd,
    covers: &'v mut Vec<Cover>,
    stored_path_bytes: usize,
    /// Something can not be read, by the command neither. It is checked again.
    shut: bool,
}

/// Errors of an overlay for names that no process can see (ESTALE: the host has moved or removed
/// it).
fn is_hidden(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE)
}

impl OverlayVisitor<'_> {
    /// Is it the command's own? A directory that the command has only written to shows more than
    /// its own entries. A directory that it made is marked as opaque.
    fn is_own(&self, path: &[u8], file_type: FileType) -> bool {
        if file_type != FileType::Directory {
            let made = open_beneath::open_path_only(self.own, path).and_then(rustix::fs::fstat);
            // A whiteout means that the command has no such file, although the copy shows one.
            return made.is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice
            });
        }
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at)
            .chain([path.len()]);
        let made = |end: usize| {
            let fd = open_beneath::open(self.own, &path[..end], OFlags::PATH | OFlags::DIRECTORY)?;
            let (mut buffer, mut value) = ([0; 32], [0; 1]);
            rustix::fs::getxattr(
                open_beneath::proc_fd_path(&fd, &mut buffer),
                OPAQUE_XATTR,
                &mut value,
            )?;
            Ok::<_, Errno>(value == *b"y")
        };
        ends.map(made).any(|made| made == Ok(true))
    }
}

impl Visitor for OverlayVisitor<'_> {
    type Error = GuardError;

    fn enter(&mut self, _names: &NamePatterns, _dir: &Dir<'_>) -> Result<Option<u32>, GuardError> {
        Ok(Some(UNWATCHED))
    }

    fn root(
        &mut self,
        _tree: &OpenTree,
        decision: NameDecision,
        _look: NameMatch,
    ) -> Result<Option<Below>, GuardError> {
        Ok((!matches!(decision, NameDecision::Deny(_))).then_some(Below::Plain))
    }

    fn found(
        &mut self,
        _names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, GuardError> {
        let name = entry.name.to_bytes();
        if matches!(entry.decision, NameDecision::Deny(_))
            && !self.is_own(&dir.join(name)?, entry.file_type)
        {
            // It may exist although the lookup fails: the copy has cached it as missing. Then it is
            // hidden, before the cache expires.
            let identity = dir.stat(entry.name).map_or(dir.identity, |stat| Identity::from(&stat));
            let directory = entry.file_type == FileType::Directory;
            let path = dir.absolute(name)?;
            walk::count_stored_path(&mut self.stored_path_bytes, path.as_bytes())?;
            self.covers.push(Cover { path, identity, directory, kind: CoverKind::Mask });
        }
        Ok(None)
    }

    fn stat(&mut self, dir: &Dir<'_>, name: &CStr) -> Result<Option<Stat>, GuardError> {
        match dir.stat(name) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) if is_hidden(error) || error == Errno::ACCESS => {
                self.shut = true;
                Ok(None)
            }
            Err(source) => Err(dir.unseen(name.to_bytes(), source).into()),
        }
    }

    /// The command has shut its own directory. If it can still be searched, names in it can be
    /// opened, so it is closed.
    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd) -> Result<bool, GuardError> {
        self.shut = true;
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        match walk::searchable(object) {
            Ok(stat) => {
                self.covers.push(scan::cover(tree.absolute(path)?, &stat, CoverKind::Mask)?)
            }
            Err(Errno::ACCESS) => {}
            Err(source) => return Err(failed(source).into()),
        }
        Ok(false)
    }

    fn failed(&mut self, error: WalkError) -> Result<(), GuardError> {
        match error {
            // Errors of the overlay, not of the workspace.
            WalkError::List { source, .. } if is_hidden(source) => {
                self.shut |= source != Errno::NOENT;
                Ok(())
            }
            WalkError::Moved { .. } => {
                self.shut = true;
                Ok(())
            }
            error => Err(error.into()),
        }
    }
}
