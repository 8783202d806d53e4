//! Handles a name that appeared.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::WatchFlags;
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::files::cover::CoverKind;
use crate::files::patterns::{NameMatch, NamePatterns, PrefixId};
use crate::files::scan;
use crate::files::tree_roots::{OpenTree, TreeRoots};
use crate::files::walk::{self, Below, Dir, Entry, NameDecision, Visitor, WalkError};
use crate::files::{host_sockets, symlink};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};

use super::guard_state::GuardState;
use super::watches::UNWATCHED;
use super::{GuardError, appear, watch};

pub struct NameHandler<'g> {
    pub inotify: BorrowedFd<'g>,
    pub roots: &'g TreeRoots,
    pub state: &'g mut GuardState,
}

impl NameHandler<'_> {
    /// `known`: it was covered at the start.
    fn cover(
        &mut self,
        dir: &Dir<'_>,
        name: &[u8],
        stat: &Stat,
        kind: CoverKind,
        known: bool,
    ) -> Result<(), WalkError> {
        // A known object that was moved still has its mount. In a copy it has none: a whiteout hides
        // its old path.
        let known = dir.tree.writable && known;
        let moved_along = known && !self.state.direct && !self.state.again;
        if moved_along {
            return Ok(());
        }
        let path = dir.absolute(name)?;
        walk::count_stored_path(&mut self.state.stored_path_bytes, path.as_bytes())?;
        self.state.covers.push(scan::cover(path, stat, kind)?);
        Ok(())
    }

    fn pin(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        path: &[u8],
        rule: Option<PrefixId>,
    ) -> Result<(), WalkError> {
        let Some(rule) = rule.filter(|_| dir.tree.writable) else {
            return Ok(());
        };
        for path in scan::pins(names, dir.tree, path, rule, dir.folding)? {
            walk::count_stored_path(&mut self.state.stored_path_bytes, &path)?;
            match scan::pin(dir.tree, &path) {
                // An object in its place makes an event. The patrol finds where it is now.
                Err(WalkError::Moved { .. }) => self.state.blind = true,
                pinned => self.state.covers.extend(pinned?),
            }
        }
        Ok(())
    }

    /// A socket is the command's own, or leads outside. Init decides that, inside the sandbox. In a
    /// copy it leads nowhere: the overlay shows another inode than the one that the host has bound.
    fn question(&mut self, dir: &Dir<'_>, name: &[u8], stat: &Stat) -> Result<(), WalkError> {
        if dir.tree.is_copy() {
            return Ok(());
        }
        let socket = match open_beneath::open_path_only(dir.fd, name) {
            Ok(socket) => socket,
            Err(Errno::NOENT) => return Ok(()),
            Err(source) => return Err(dir.unseen(name, source)),
        };
        if !host_sockets::is_silent(socket.as_fd()) {
            return self.cover(dir, name, stat, CoverKind::ForeignSocket, false);
        }
        let place = (dir.tree_index, dir.join(name)?);
        if !self.state.silent.remember(place, Identity::from(stat)) {
            self.state.blind = true;
        }
        Ok(())
    }

    /// A symlink at a denied name: its current target is closed too.
    fn mask_target(&mut self, dir: &Dir<'_>, name: &[u8]) -> Result<(), WalkError> {
        let Some(followed) = symlink::leads_to(&dir.absolute(name)?)? else { return Ok(()) };
        match self.roots.look(&followed.end).and_then(|end| Ok((rustix::fs::fstat(&end)?, end))) {
            Ok((stat, end)) => {
                let failed = |source| WalkError::Look { path: followed.end.clone(), source };
                self.state
                    .close(self.inotify, end.as_fd(), &stat, CoverKind::Mask)
                    .map_err(failed)?;
                self.state.covers.push(scan::cover(followed.end, &stat, CoverKind::Mask)?);
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(source) => return Err(WalkError::Look { path: followed.end, source }),
        }
        Ok(())
    }

    /// Notes a covered file, so that its other names are covered too.
    fn close(
        &mut self,
        dir: &Dir<'_>,
        name: &[u8],
        stat: &Stat,
        kind: CoverKind,
    ) -> Result<(), WalkError> {
        match open_beneath::open_path_only(dir.fd, name) {
            Ok(object) => {
                let same = rustix::fs::fstat(&object)
                    .is_ok_and(|now| Identity::from(&now) == Identity::from(stat));
                let closed =
                    same.then(|| self.state.close(self.inotify, object.as_fd(), stat, kind));
                closed.transpose().map(|_| ()).map_err(|source| dir.unseen(name, source))
            }
            Err(Errno::NOENT) => Ok(()),
            Err(source) => Err(dir.unseen(name, source)),
        }
    }
}

impl Visitor for NameHandler<'_> {
    type Error = GuardError;

    fn enter(&mut self, names: &NamePatterns, dir: &Dir<'_>) -> Result<Option<u32>, GuardError> {
        self.state.direct = false;
        // It is closed as a whole since the start, even if its owner has opened it since.
        if self.state.is_shut(dir.fd).map_err(|source| dir.unseen(b"", source))? {
            return Ok(None);
        }
        if dir.tree.is_read_only() && !names.leads_to_denied(dir.state) {
            return Ok(None);
        }
        match watch(self.inotify, dir.fd, appear(dir.tree)) {
            Ok(watch) => Ok(Some(self.state.nodes.put_dir(watch, dir))),
            // It is listed anyway, and again and again from now on.
            Err(Errno::ACCESS | Errno::NOSPC | Errno::NOENT | Errno::NOTDIR) => {
                self.state.blind = true;
                Ok(Some(UNWATCHED))
            }
            Err(source) => Err(GuardError::Watch { path: walk::shown(dir.tree, dir.path), source }),
        }
    }

    /// The root of a tree existed at the start.
    fn root(
        &mut self,
        _tree: &OpenTree,
        decision: NameDecision,
        look: NameMatch,
    ) -> Result<Option<Below>, GuardError> {
        Ok(match decision {
            NameDecision::Deny(_) => None,
            NameDecision::Protect(_) if look.opened_below => Some(Below::Carved),
            _ => Some(Below::Locked),
        })
    }

    fn found(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, GuardError> {
        let name = entry.name.to_bytes();
        let Some(stat) = self.stat(dir, entry.name)? else { return Ok(None) };
        let object = match Object::at(dir.fd, entry.name) {
            Ok(object) => object,
            Err(Errno::NOENT) => return Ok(None),
            Err(source) => return self.failed(dir.unseen(name, source)).map(|()| None),
        };
        let was_covered = object.is_in(&self.state.covered);
        match entry.decision {
            NameDecision::Deny(rule) => {
                self.pin(names, dir, &dir.join(name)?, rule)?;
                self.cover(dir, name, &stat, CoverKind::Mask, was_covered)?;
                self.close(dir, name, &stat, CoverKind::Mask)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    self.mask_target(dir, name)?;
                }
                Ok(None)
            }
            NameDecision::Protect(_) | NameDecision::OnPath | NameDecision::Link(_)
                if self.state.is_held(dir.identity, name) =>
            {
                self.cover(dir, name, &stat, CoverKind::Lock, was_covered)?;
                self.close(dir, name, &stat, CoverKind::Lock)?;
                Ok(Some(Below::Locked))
            }
            // The judge of writes holds it. Denied names below it are masked.
            NameDecision::Protect(_)
            | NameDecision::OnPath
            | NameDecision::Link(_)
            | NameDecision::Through => Ok(Some(Below::Locked)),
            NameDecision::Socket if !dir.tree.is_left_out(dir.path, name) => {
                self.question(dir, name, &stat)?;
                Ok(None)
            }
            NameDecision::Socket | NameDecision::Free => Ok(None),
        }
    }

    fn stat(&mut self, dir: &Dir<'_>, name: &CStr) -> Result<Option<Stat>, GuardError> {
        let stat = match dir.stat(name) {
            // The command has removed the right to search the directory since it was opened.
            Err(Errno::ACCESS) => match self.state.give_rights(dir.fd) {
                Ok(_) => dir.stat(name),
                Err(error) => Err(error),
            },
            stat => stat,
        };
        match stat {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(source) => self.failed(dir.unseen(name.to_bytes(), source)).map(|()| None),
        }
    }

    fn wants_files(&self, below: Below) -> bool {
        self.state.closes_files() && below != Below::Masked
    }

    /// Another name of a file that is closed.
    fn file(&mut self, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<(), GuardError> {
        if dir.numbers_agree && entry.inode != 0 && !self.state.closes_inode(entry.inode) {
            return Ok(());
        }
        let Some(stat) = self.stat(dir, entry.name)? else { return Ok(()) };
        let Some(kind) = self.state.closed(Identity::from(&stat)) else { return Ok(()) };
        // A tree that is locked as a whole or read-only needs no further lock.
        if kind == CoverKind::Mask || (dir.tree.writable && dir.below != Below::Locked) {
            let known = Object::at(dir.fd, entry.name)
                .is_ok_and(|object| object.is_in(&self.state.covered));
            self.cover(dir, entry.name.to_bytes(), &stat, kind, known)?;
        }
        Ok(())
    }

    /// A directory that the command or another user has shut. It gets its rights back if names in it
    /// can still be opened, or if it is the root. Otherwise nothing gets in until its owner restores
    /// the right to search it, and that is an event of the directory above.
    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd) -> Result<bool, GuardError> {
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let stat = rustix::fs::fstat(object).map_err(failed)?;
        if self.state.is_shut(object.as_fd()).map_err(failed)? {
            return Ok(false);
        }
        let can_be_searched = match walk::searchable(object) {
            Ok(_) => true,
            Err(Errno::ACCESS) => false,
            Err(source) => return self.failed(failed(source)).map(|()| false),
        };
        if can_be_searched || path.is_empty() {
            if self.state.give_rights(object.as_fd()).map_err(failed)? {
                return Ok(true);
            }
            // It belongs to another user: closed as a whole, as at the start.
            self.state.covers.push(scan::cover(tree.absolute(path)?, &stat, CoverKind::Mask)?);
            self.state.shut.push(Object::at(object, c"").map_err(failed)?);
            return Ok(false);
        }
        let above = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let watched = tree.open(above, OFlags::PATH | OFlags::DIRECTORY).and_then(|dir| {
            watch(self.inotify, dir.as_fd(), WatchFlags::ATTRIB | WatchFlags::MASK_ADD)
        });
        self.state.blind |= watched.is_err();
        Ok(false)
    }

    fn goes_on(&mut self, error: GuardError) -> Result<(), GuardError> {
        match error {
            GuardError::Walk(error) => self.failed(error),
            error => Err(error),
        }
    }

    fn failed(&mut self, error: WalkError) -> Result<(), GuardError> {
        match error {
            // An event reports its new path.
            WalkError::Moved { .. } => {
                self.state.blind = true;
                Ok(())
            }
            error => Err(error.into()),
        }
    }
}
