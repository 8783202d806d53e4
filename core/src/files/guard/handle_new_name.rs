//! Handles a name that appeared.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::files::cover::CoverKind;
use crate::files::git::{self, GitView, Judgement, KnownGitDirs, Role};
use crate::files::patterns::{NameMatch, NamePatterns, PrefixId};
use crate::files::quarantine::RemovalResult;
use crate::files::scan::{self, GitLink};
use crate::files::tree_roots::{OpenTree, TreeRoots};
use crate::files::walk::{self, Below, Dir, Entry, GitParts, NameDecision, Visitor, WalkError};
use crate::files::{host_sockets, symlink};
use crate::kernel::resolved_path::{Identity, Object};
use crate::kernel::{filesystem, open_beneath};

use super::guard_state::GuardState;
use super::watches::UNWATCHED;
use super::{DISAPPEAR, GuardError, GuardEvent, MAX_QUARANTINED, WRITTEN, appear, watch};

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
        if self.state.finishing || moved_along {
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
        let Some(rule) = rule.filter(|_| dir.tree.writable && !self.state.finishing) else {
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
        if dir.tree.is_copy() || self.state.finishing {
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
        if self.state.finishing {
            return Ok(());
        }
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

    fn take(
        &mut self,
        dir: &Dir<'_>,
        name: &CStr,
        judged: Option<Identity>,
    ) -> Result<(), GuardError> {
        let path = dir.absolute(name.to_bytes())?;
        let GuardState { store, covered, .. } = &mut *self.state;
        match store.take(dir.fd, name, judged, &|object| object.is_in(covered)) {
            Ok(RemovalResult::Quarantined { moved_to, whole }) => {
                self.state.quarantined += 1;
                self.state.events.push(GuardEvent::Quarantined { path, moved_to, whole });
                // At the end no process is left to stop.
                if self.state.quarantined > MAX_QUARANTINED && !self.state.finishing {
                    Err(GuardError::TooManyQuarantined)
                } else {
                    Ok(())
                }
            }
            Ok(RemovalResult::Removed(source)) => {
                self.state.events.push(GuardEvent::Removed { path, source });
                Ok(())
            }
            Ok(RemovalResult::Left) => Ok(()),
            Err(source) => {
                if !self.state.failed.contains(&path) && self.state.failed.len() < MAX_QUARANTINED {
                    self.state.failed.push(path.clone());
                    self.state.events.push(GuardEvent::Failed { path: path.clone(), source });
                }
                // During the run: the last scan tries again.
                if self.state.finishing {
                    self.failed(WalkError::Left { path, source })
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Is this a new object in a git directory that is neither a file nor a directory? Git leaves
    /// none, writes through a symlink without checking it, and waits for ever at a FIFO.
    fn is_planted(&self, names: &NamePatterns, dir: &Dir<'_>, entry: &Entry<'_>) -> bool {
        let counts = !matches!(entry.file_type, FileType::RegularFile | FileType::Directory);
        counts
            && dir.tree.writable
            && dir.below == Below::Plain
            && dir.is_in_git(names)
            && dir.stat(entry.name).is_ok_and(|stat| self.is_new_in_git(dir, entry.name, &stat))
    }

    fn is_new_in_git(&self, dir: &Dir<'_>, name: &CStr, stat: &Stat) -> bool {
        let target = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory => return false,
            FileType::Symlink => match rustix::fs::readlinkat(dir.fd, name, Vec::new()) {
                Ok(target) => target.into_bytes(),
                // gone, or no link any more
                Err(error) => return !matches!(error, Errno::NOENT | Errno::INVAL),
            },
            _ => Vec::new(),
        };
        // `git init` makes this one to test for symlinks.
        if target == b"testing" && !git::checked().any(|checked| checked == name) {
            return false;
        }
        let Ok(object) = Object::at(dir.fd, name) else { return false };
        let one = GitLink { dir: dir.identity, name: name.to_bytes().into(), object, target };
        self.state.through.binary_search(&one).is_err()
    }

    /// At the end a socket of the command is silent. A socket that answers is one of the host's.
    fn is_left_socket(&self, names: &NamePatterns, dir: &Dir<'_>, entry: &Entry<'_>) -> bool {
        self.state.finishing
            && self.is_planted(names, dir, entry)
            && open_beneath::open_path_only(dir.fd, entry.name.to_bytes())
                .is_ok_and(|socket| host_sockets::is_silent(socket.as_fd()))
    }

    /// Handles a new protected name.
    fn judge_new(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
        stat: &Stat,
    ) -> Result<Option<Below>, GuardError> {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        // It contains an exception, or may: its entries are judged one by one.
        if directory && entry.look.opened_below {
            return Ok(Some(Below::Carved));
        }
        let path = dir.absolute(entry.name.to_bytes())?;
        let Some(role) = names.git.role(path.as_bytes()) else {
            self.take(dir, entry.name, None)?;
            return Ok(None);
        };
        // Watched first, then read: a later write makes an event.
        let watched = (role != Role::Hooks && !self.state.finishing)
            .then(|| self.watch_content(dir, entry.name));
        let mut content = std::mem::take(&mut self.state.content);
        let git_view =
            GitView { roots: self.roots, shut: &self.state.shut, finishing: self.state.finishing };
        let judgement = git::judge(role, &git_view, names, dir, entry.name, &mut content);
        self.state.content = content;
        let judged = match judgement {
            Judgement::Harmless => return Ok((role == Role::Hooks).then_some(Below::Carved)),
            Judgement::Gone => return Ok(None),
            Judgement::Unknown(source) => {
                self.failed(dir.unseen(entry.name.to_bytes(), source))?;
                return Ok(None);
            }
            Judgement::Harmful(judged) => judged,
        };
        if let Some(Some(watch)) = watched {
            let _ = inotify::remove_watch(self.inotify, watch);
            self.state.nodes.remove(watch);
        }
        self.take(dir, entry.name, Some(judged))?;
        Ok(None)
    }

    /// Watches the file itself, not its directory: it may be written under another name.
    fn watch_content(&mut self, dir: &Dir<'_>, name: &CStr) -> Option<i32> {
        let opened = open_beneath::open_path_only(dir.fd, name.to_bytes())
            .and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
        let (stat, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.state.blind |= error != Errno::NOENT;
                return None;
            }
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        match watch(self.inotify, file.as_fd(), WRITTEN) {
            Ok(watch) => {
                self.state.nodes.put_file(watch, dir, name.to_bytes(), Identity::from(&stat));
                Some(watch)
            }
            Err(_) => {
                self.state.blind = true;
                None
            }
        }
    }

    /// Checks whether a directory has become a repository, which git finds when it is started there
    /// (protected-paths G10, G11).
    pub fn check_trap(&mut self, known: &KnownGitDirs, dir: &Dir<'_>) -> Result<(), GuardError> {
        let mut parts = GitParts::default();
        for name in git::GIT_DIR_NAMES {
            if self.stat(dir, name)?.is_some() {
                parts.see(name.to_bytes(), dir.folding);
            }
        }
        self.take_trap(known, dir, parts)
    }

    /// Checks the state that git left behind and trusts. During the run git rewrites it all the
    /// time. `quiet`: the names are those of the start, so a file that was not written since is
    /// left out.
    pub fn check_state(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        quiet: bool,
    ) -> Result<(), GuardError> {
        let keeps_ctime = filesystem::keeps_ctime_of_mappings(dir.fd);
        for name in git::checked() {
            let Some(stat) = self.stat(dir, name)? else { continue };
            let is_old = keeps_ctime
                && Identity::from(&stat).device() == dir.identity.device()
                && (stat.st_ctime, stat.st_ctime_nsec as i64) < self.state.since;
            let path = dir.absolute(name.to_bytes())?;
            let role = names.git.role(path.as_bytes()).filter(|role| role.is_checked());
            let Some(role) = role else { continue };
            // Refs that the user has replaced stay as long as the command does not write the file.
            if is_old && (quiet || role == Role::PackedRefs) {
                continue;
            }
            let file_type = FileType::from_raw_mode(stat.st_mode);
            let is_link = file_type == FileType::Symlink;
            if is_link && role == Role::PackedRefs && !self.is_new_in_git(dir, name, &stat) {
                continue;
            }
            let mut content = std::mem::take(&mut self.state.content);
            let git_view = GitView { roots: self.roots, shut: &self.state.shut, finishing: true };
            let judgement = git::judge(role, &git_view, names, dir, name, &mut content);
            let repaired = match judgement {
                Judgement::Harmful(_)
                    if role == Role::PackedRefs
                        && file_type == FileType::RegularFile
                        && content.len() as i64 == stat.st_size =>
                {
                    Some(git::without_replacements(&content))
                }
                _ => None,
            };
            content.truncate(0);
            content.shrink_to(64 * 1024);
            self.state.content = content;
            match judgement {
                Judgement::Harmless | Judgement::Gone => {}
                Judgement::Unknown(source) => self.failed(dir.unseen(name.to_bytes(), source))?,
                Judgement::Harmful(judged) => self.take(dir, name, Some(judged))?,
            }
            // The branches in it stay.
            if let Some(repaired) = repaired
                && let Err(source) = write_new(dir, name, stat.st_mode, &repaired)
            {
                self.failed(WalkError::Left { path, source })?;
            }
        }
        Ok(())
    }

    fn take_trap(
        &mut self,
        git: &KnownGitDirs,
        dir: &Dir<'_>,
        parts: GitParts,
    ) -> Result<(), GuardError> {
        let trap = parts.make_a_repository() && !git::is_git_own(git, dir, parts);
        let known = || self.state.was_bare(dir);
        if !self.state.guards_git
            || !trap
            || known()
            || !dir.tree.writable
            || dir.below != Below::Plain
        {
            return Ok(());
        }
        self.take(dir, c"HEAD", None)
    }
}

impl Visitor for NameHandler<'_> {
    type Error = GuardError;

    fn enter(&mut self, names: &NamePatterns, dir: &Dir<'_>) -> Result<Option<u32>, GuardError> {
        self.state.direct = false;
        // It is closed as a whole since the start, even if its owner has opened it since. The
        // command wrote nothing there.
        if self.state.is_shut(dir.fd).map_err(|source| dir.unseen(b"", source))? {
            return Ok(None);
        }
        if self.state.was_bare(dir) {
            let path = git::whole_path(dir);
            // A `.git` directory is held by its name, at any path.
            if !names.git.is_git(&path, false) && !names.git.is_covered(&path) {
                self.state.moved.push(path);
            }
        }
        if dir.tree.is_read_only() && !names.leads_to_denied(dir.state) {
            return Ok(None);
        }
        if self.state.finishing {
            return Ok(Some(UNWATCHED));
        }
        let disappear =
            if self.state.holds_in(dir.identity) { DISAPPEAR } else { WatchFlags::empty() };
        match watch(self.inotify, dir.fd, appear(dir.tree) | disappear) {
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
                let file_type = FileType::from_raw_mode(stat.st_mode);
                if file_type == FileType::Symlink {
                    self.mask_target(dir, name)?;
                }
                let there_before = object.is_in(&self.state.masked)
                    || self.state.is_held(dir.identity, name, object);
                if there_before || !dir.tree.writable {
                    return Ok(None);
                }
                match walk::verdict_without_denial(names, dir, name, file_type, entry.look) {
                    // The command may have written into it before it was closed.
                    NameDecision::Free => Ok(self.state.finishing.then_some(dir.below)),
                    decision
                        if self.state.finishing || matches!(decision, NameDecision::Protect(_)) =>
                    {
                        let Entry { name, inode, look, .. } = *entry;
                        self.found(names, dir, &Entry { name, file_type, inode, decision, look })
                    }
                    _ => Ok(None),
                }
            }
            NameDecision::Protect(_) | NameDecision::OnPath | NameDecision::Link(_)
                if self.state.is_held(dir.identity, name, object) =>
            {
                self.cover(dir, name, &stat, CoverKind::Lock, was_covered)?;
                self.close(dir, name, &stat, CoverKind::Lock)?;
                Ok(Some(Below::Locked))
            }
            // It moved here together with its directory.
            NameDecision::Protect(_) | NameDecision::OnPath if was_covered => {
                Ok(Some(Below::Locked))
            }
            NameDecision::Protect(_) => self.judge_new(names, dir, entry, &stat),
            NameDecision::OnPath if dir.tree.writable && entry.look.way_to_protected => {
                self.take(dir, entry.name, None)?;
                Ok(None)
            }
            NameDecision::Socket if self.is_left_socket(names, dir, entry) => {
                self.take(dir, entry.name, Some(object.identity))?;
                Ok(None)
            }
            NameDecision::Socket if !dir.tree.is_left_out(dir.path, name) => {
                self.question(dir, name, &stat)?;
                Ok(None)
            }
            NameDecision::OnPath | NameDecision::Through | NameDecision::Link(_)
                if self.is_planted(names, dir, entry) =>
            {
                self.take(dir, entry.name, Some(object.identity))?;
                Ok(None)
            }
            NameDecision::OnPath
            | NameDecision::Through
            | NameDecision::Link(_)
            | NameDecision::Socket
            | NameDecision::Free => Ok(None),
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
        self.state.closes_files() && below != Below::Masked && !self.state.finishing
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

    /// A list for people. Names that do not fit are counted, and never stop the scan.
    fn flagged(&mut self, dir: &Dir<'_>, name: &CStr) {
        if !self.state.finishing {
            return;
        }
        match dir.join(name.to_bytes()) {
            Ok(path) if walk::fits_stored_paths(&mut self.state.stored_path_bytes, &path) => {
                self.state.flagged.push((dir.tree_index, path))
            }
            _ => self.state.unlisted += 1,
        }
    }

    fn leave(
        &mut self,
        names: &mut NamePatterns,
        dir: &Dir<'_>,
        parts: GitParts,
    ) -> Result<(), GuardError> {
        let checked = if self.state.finishing && git::has_checked_parts(names, dir, parts) {
            self.check_state(names, dir, false)
        } else {
            Ok(())
        };
        checked.and(self.take_trap(&names.git, dir, parts))
    }

    /// A directory that the command or another user has shut. At the end it gets its rights back.
    /// Before, it gets them if names in it can still be opened, or if it is the root. Otherwise
    /// nothing gets in until its owner restores the right to search it, and that is an event of the
    /// directory above.
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
        if self.state.finishing || can_be_searched || path.is_empty() {
            if self.state.give_rights(object.as_fd()).map_err(failed)? {
                return Ok(true);
            }
            if self.state.finishing {
                // It was already closed for the command when it appeared: the command put nothing
                // there.
                if !can_be_searched && self.state.nodes.never_had(Identity::from(&stat)) {
                    return Ok(false);
                }
                return self.failed(failed(Errno::ACCESS)).map(|()| false);
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

    /// At the end only a signal stops the walk, and an error that concerns no single path.
    fn goes_on(&mut self, error: GuardError) -> Result<(), GuardError> {
        match error {
            GuardError::Walk(error @ (WalkError::Interrupted | WalkError::Behind)) => {
                Err(error.into())
            }
            GuardError::Walk(error) => self.failed(error),
            GuardError::Watch { path, source } if self.state.finishing => {
                self.failed(WalkError::Look { path, source })
            }
            error => Err(error),
        }
    }

    /// At the end the rest is scanned anyway, and the first error is reported.
    fn failed(&mut self, error: WalkError) -> Result<(), GuardError> {
        match error {
            // An event reports its new path.
            WalkError::Moved { .. } if !self.state.finishing => {
                self.state.blind = true;
                Ok(())
            }
            error if self.state.finishing => {
                self.state.unfinished.get_or_insert(error);
                Ok(())
            }
            error => Err(error.into()),
        }
    }
}

/// Writes a new file in a directory, in the place of a quarantined one.
fn write_new(dir: &Dir<'_>, name: &CStr, mode: u32, content: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir.fd, name, flags, Mode::from_raw_mode(mode & 0o777))?;
    let mut rest = content;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}
