//! What is done with a name that appeared.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use crate::files::cover::CoverKind;
use crate::files::git::{self, GitView, Judgement, Known, Role};
use crate::files::patterns::{Look, Names, StemId};
use crate::files::quarantine::RemovalResult;
use crate::files::scan::{self, Through};
use crate::files::tree_roots::{OpenTree, TreeRoots};
use crate::files::walk::{self, Below, Dir, Entry, GitParts, NameDecision, Visitor, WalkError};
use crate::files::{host_sockets, symlink};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};

use super::post::Post;
use super::watches::UNWATCHED;
use super::{DISAPPEAR, GuardError, GuardEvent, MAX_TAKEN, WRITTEN, appear, watch};

pub struct Visit<'g> {
    pub inotify: BorrowedFd<'g>,
    pub ground: &'g TreeRoots,
    pub post: &'g mut Post,
}

impl Visit<'_> {
    /// `known`: it was covered at the start.
    fn cover(
        &mut self,
        dir: &Dir<'_>,
        name: &[u8],
        stat: &Stat,
        kind: CoverKind,
        known: bool,
    ) -> Result<(), WalkError> {
        // With the mount on it. In a copy it was hidden by its path.
        let known = dir.tree.writable && known;
        let moved_along = known && !self.post.direct && !self.post.again;
        if self.post.finishing || moved_along {
            return Ok(());
        }
        let path = dir.absolute(name)?;
        walk::keep(&mut self.post.kept, path.as_bytes())?;
        self.post.covers.push(scan::cover(path, stat, kind)?);
        Ok(())
    }

    fn pin(
        &mut self,
        names: &mut Names,
        dir: &Dir<'_>,
        path: &[u8],
        rule: Option<StemId>,
    ) -> Result<(), WalkError> {
        let Some(rule) = rule.filter(|_| dir.tree.writable && !self.post.finishing) else {
            return Ok(());
        };
        for path in scan::pins(names, dir.tree, path, rule, dir.folding)? {
            walk::keep(&mut self.post.kept, &path)?;
            match scan::pin(dir.tree, &path) {
                // What came in its place makes an event; the patrol finds where it is now.
                Err(WalkError::Moved { .. }) => self.post.blind = true,
                pinned => self.post.covers.extend(pinned?),
            }
        }
        Ok(())
    }

    /// A socket is the command's own, or a way out. Who made it is told inside. In a copy it is
    /// reached by nobody.
    fn question(&mut self, dir: &Dir<'_>, name: &[u8], stat: &Stat) -> Result<(), WalkError> {
        if dir.tree.is_copy() || self.post.finishing {
            return Ok(());
        }
        let socket = match open_beneath::open_path_only(dir.fd, name) {
            Ok(socket) => socket,
            Err(Errno::NOENT) => return Ok(()),
            Err(source) => return Err(dir.unseen(name, source)),
        };
        if !host_sockets::is_silent(socket.as_fd()) {
            return self.cover(dir, name, stat, CoverKind::Stranger, false);
        }
        let place = (dir.tree_index, dir.join(name)?);
        if !self.post.silent.remember(place, Identity::from(stat)) {
            self.post.blind = true;
        }
        Ok(())
    }

    /// A symlink at a denied name: what it leads to now is closed too.
    fn mask_target(&mut self, dir: &Dir<'_>, name: &[u8]) -> Result<(), WalkError> {
        if self.post.finishing {
            return Ok(());
        }
        let Some(followed) = symlink::leads_to(&dir.absolute(name)?)? else { return Ok(()) };
        match self.ground.look(&followed.end).and_then(|end| Ok((rustix::fs::fstat(&end)?, end))) {
            Ok((stat, end)) => {
                let failed = |source| WalkError::Look { path: followed.end.clone(), source };
                self.post
                    .close(self.inotify, end.as_fd(), &stat, CoverKind::Mask)
                    .map_err(failed)?;
                self.post.covers.push(scan::cover(followed.end, &stat, CoverKind::Mask)?);
            }
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(source) => return Err(WalkError::Look { path: followed.end, source }),
        }
        Ok(())
    }

    /// Remembers a file that is covered now, so that it is covered under other names too.
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
                    same.then(|| self.post.close(self.inotify, object.as_fd(), stat, kind));
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
        let Post { store, covered, .. } = &mut *self.post;
        match store.take(dir.fd, name, judged, &|object| object.is_in(covered)) {
            Ok(RemovalResult::Taken { kept, whole }) => {
                self.post.taken += 1;
                self.post.events.push(GuardEvent::Taken { path, kept, whole });
                // In the end there is nobody left to stop.
                if self.post.taken > MAX_TAKEN && !self.post.finishing {
                    Err(GuardError::TooManyTaken)
                } else {
                    Ok(())
                }
            }
            Ok(RemovalResult::Removed(source)) => {
                self.post.events.push(GuardEvent::Removed { path, source });
                Ok(())
            }
            Ok(RemovalResult::Left) => Ok(()),
            Err(source) => {
                if !self.post.failed.contains(&path) && self.post.failed.len() < MAX_TAKEN {
                    self.post.failed.push(path.clone());
                    self.post.events.push(GuardEvent::Failed { path: path.clone(), source });
                }
                // During the run the scan at the end tries again.
                if self.post.finishing {
                    self.failed(WalkError::Left { path, source })
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Is this a new symlink in a git directory? Git makes none that stays, and writes to most
    /// names there without a look at what they are.
    fn is_planted(&self, names: &Names, dir: &Dir<'_>, entry: &Entry<'_>, object: Object) -> bool {
        if entry.file_type != FileType::Symlink || !dir.is_in_git(names) {
            return false;
        }
        let said = match rustix::fs::readlinkat(dir.fd, entry.name, Vec::new()) {
            Ok(said) => said.into_bytes(),
            // gone, or no link any more
            Err(error) => return !matches!(error, Errno::NOENT | Errno::INVAL),
        };
        // By this one `git init` finds out whether there are symlinks.
        if said == b"testing" {
            return false;
        }
        let one = Through { dir: dir.identity, name: entry.name.to_bytes().into(), object, said };
        self.post.through.binary_search(&one).is_err()
    }

    /// A protected name that is new.
    fn judge_new(
        &mut self,
        names: &mut Names,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
        stat: &Stat,
    ) -> Result<Option<Below>, GuardError> {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        // An exception is inside, or can be: what is in it is judged piece by piece.
        if directory && entry.look.opened_below {
            return Ok(Some(Below::Carved));
        }
        let path = dir.absolute(entry.name.to_bytes())?;
        let Some(role) = names.git.role(path.as_bytes()) else {
            self.take(dir, entry.name, None)?;
            return Ok(None);
        };
        // Watched first, then read: what is written after the reading makes an event.
        let watched = (role != Role::Hooks && !self.post.finishing)
            .then(|| self.watch_content(dir, entry.name));
        let mut content = std::mem::take(&mut self.post.content);
        let sight =
            GitView { ground: self.ground, shut: &self.post.shut, finishing: self.post.finishing };
        let judgement = git::judge(role, &sight, names, dir, entry.name, &mut content);
        self.post.content = content;
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
            self.post.nodes.remove(watch);
        }
        self.take(dir, entry.name, Some(judged))?;
        Ok(None)
    }

    /// The file itself, and not its directory: it may be written under another name.
    fn watch_content(&mut self, dir: &Dir<'_>, name: &CStr) -> Option<i32> {
        let opened = open_beneath::open_path_only(dir.fd, name.to_bytes())
            .and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
        let (stat, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.post.blind |= error != Errno::NOENT;
                return None;
            }
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        match watch(self.inotify, file.as_fd(), WRITTEN) {
            Ok(watch) => {
                self.post.nodes.put_file(watch, dir, name.to_bytes(), Identity::from(&stat));
                Some(watch)
            }
            Err(_) => {
                self.post.blind = true;
                None
            }
        }
    }

    /// Looks whether a directory has become a repository, which git finds when it is started there
    /// (protected-paths G10, G11).
    pub fn check_trap(&mut self, known: &Known, dir: &Dir<'_>) -> Result<(), GuardError> {
        let mut parts = GitParts::default();
        for name in git::MAKING {
            if self.stat(dir, name)?.is_some() {
                parts.see(name.to_bytes(), dir.folding);
            }
        }
        self.take_trap(known, dir, parts)
    }

    /// What git left behind and obeys. During the run git rewrites it all the time.
    fn check_state(
        &mut self,
        names: &mut Names,
        dir: &Dir<'_>,
        parts: GitParts,
    ) -> Result<(), GuardError> {
        let has_state = parts.head || matches!(dir.own_name(), b"rebase-merge" | b"rebase-apply");
        if !self.post.finishing || !has_state || !dir.tree.writable || !dir.is_in_git(names) {
            return Ok(());
        }
        for name in git::checked() {
            if self.stat(dir, name)?.is_none() {
                continue;
            }
            let path = dir.absolute(name.to_bytes())?;
            let Some(role @ (Role::Index | Role::Number)) = names.git.role(path.as_bytes()) else {
                continue;
            };
            let mut content = std::mem::take(&mut self.post.content);
            let sight = GitView { ground: self.ground, shut: &self.post.shut, finishing: true };
            let judgement = git::judge(role, &sight, names, dir, name, &mut content);
            content.truncate(0);
            content.shrink_to(64 * 1024);
            self.post.content = content;
            match judgement {
                Judgement::Harmless | Judgement::Gone => {}
                Judgement::Unknown(source) => self.failed(dir.unseen(name.to_bytes(), source))?,
                Judgement::Harmful(judged) => self.take(dir, name, Some(judged))?,
            }
        }
        Ok(())
    }

    fn take_trap(&mut self, git: &Known, dir: &Dir<'_>, parts: GitParts) -> Result<(), GuardError> {
        let trap = parts.make_a_repository() && !git::is_git_own(git, dir, parts);
        let known = || self.post.was_bare(dir);
        if !self.post.guards_git
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

impl Visitor for Visit<'_> {
    type Error = GuardError;

    fn enter(&mut self, names: &Names, dir: &Dir<'_>) -> Result<Option<u32>, GuardError> {
        self.post.direct = false;
        if self.post.was_bare(dir) {
            let path = git::whole_path(dir);
            // What lies in a `.git` is held by that name, wherever it is.
            if !names.git.is_git(&path, false) && !names.git.is_covered(&path) {
                self.post.moved.push(path);
            }
        }
        if dir.tree.is_read_only() && !names.leads_to_denied(dir.state) {
            return Ok(None);
        }
        if self.post.finishing {
            return Ok(Some(UNWATCHED));
        }
        let disappear =
            if self.post.holds_in(dir.identity) { DISAPPEAR } else { WatchFlags::empty() };
        match watch(self.inotify, dir.fd, appear(dir.tree) | disappear) {
            Ok(watch) => Ok(Some(self.post.nodes.put_dir(watch, dir))),
            // It is listed all the same, and again and again from now on.
            Err(Errno::ACCESS | Errno::NOSPC | Errno::NOENT | Errno::NOTDIR) => {
                self.post.blind = true;
                Ok(Some(UNWATCHED))
            }
            Err(source) => Err(GuardError::Watch { path: walk::shown(dir.tree, dir.path), source }),
        }
    }

    /// The root of a tree was there at the start.
    fn root(
        &mut self,
        _tree: &OpenTree,
        verdict: NameDecision,
        look: Look,
    ) -> Result<Option<Below>, GuardError> {
        Ok(match verdict {
            NameDecision::Deny(_) => None,
            NameDecision::Protect(_) if look.opened_below => Some(Below::Carved),
            _ => Some(Below::Locked),
        })
    }

    fn found(
        &mut self,
        names: &mut Names,
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
        let was_covered = object.is_in(&self.post.covered);
        match entry.verdict {
            NameDecision::Deny(rule) => {
                self.pin(names, dir, &dir.join(name)?, rule)?;
                self.cover(dir, name, &stat, CoverKind::Mask, was_covered)?;
                self.close(dir, name, &stat, CoverKind::Mask)?;
                let file_type = FileType::from_raw_mode(stat.st_mode);
                if file_type == FileType::Symlink {
                    self.mask_target(dir, name)?;
                }
                let there_before = object.is_in(&self.post.masked)
                    || self.post.is_held(dir.identity, name, object);
                if there_before || !dir.tree.writable {
                    return Ok(None);
                }
                match walk::verdict_without_denial(names, dir, name, file_type, entry.look) {
                    // The command may have written into it before it was closed.
                    NameDecision::Free => Ok(self.post.finishing.then_some(dir.below)),
                    verdict
                        if self.post.finishing || matches!(verdict, NameDecision::Protect(_)) =>
                    {
                        let Entry { name, inode, look, .. } = *entry;
                        self.found(names, dir, &Entry { name, file_type, inode, verdict, look })
                    }
                    _ => Ok(None),
                }
            }
            NameDecision::Protect(_) | NameDecision::Way | NameDecision::Link(_)
                if self.post.is_held(dir.identity, name, object) =>
            {
                self.cover(dir, name, &stat, CoverKind::Lock, was_covered)?;
                self.close(dir, name, &stat, CoverKind::Lock)?;
                Ok(Some(Below::Locked))
            }
            // It came here together with the directory it is in.
            NameDecision::Protect(_) | NameDecision::Way if was_covered => Ok(Some(Below::Locked)),
            NameDecision::Protect(_) => self.judge_new(names, dir, entry, &stat),
            NameDecision::Way if dir.tree.writable && entry.look.way_to_protected => {
                self.take(dir, entry.name, None)?;
                Ok(None)
            }
            NameDecision::Socket if !dir.tree.is_left_out(dir.path, name) => {
                self.question(dir, name, &stat)?;
                Ok(None)
            }
            NameDecision::Way | NameDecision::Through | NameDecision::Link(_)
                if dir.tree.writable
                    && dir.below == Below::Plain
                    && self.is_planted(names, dir, entry, object) =>
            {
                self.take(dir, entry.name, Some(object.identity))?;
                Ok(None)
            }
            NameDecision::Way
            | NameDecision::Through
            | NameDecision::Link(_)
            | NameDecision::Socket
            | NameDecision::Free => Ok(None),
        }
    }

    fn stat(&mut self, dir: &Dir<'_>, name: &CStr) -> Result<Option<Stat>, GuardError> {
        let stat = match dir.stat(name) {
            // The command took the right to search the directory away since it was opened.
            Err(Errno::ACCESS) => match self.post.give_rights(dir.fd) {
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
        self.post.closes_files() && below != Below::Masked && !self.post.finishing
    }

    /// Another name of a file that is closed.
    fn file(&mut self, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<(), GuardError> {
        if dir.numbers_agree && entry.inode != 0 && !self.post.closes_inode(entry.inode) {
            return Ok(());
        }
        let Some(stat) = self.stat(dir, entry.name)? else { return Ok(()) };
        let Some(kind) = self.post.closed(Identity::from(&stat)) else { return Ok(()) };
        // What is locked as a whole, or only read, needs no lock of its own.
        if kind == CoverKind::Mask || (dir.tree.writable && dir.below != Below::Locked) {
            let known =
                Object::at(dir.fd, entry.name).is_ok_and(|object| object.is_in(&self.post.covered));
            self.cover(dir, entry.name.to_bytes(), &stat, kind, known)?;
        }
        Ok(())
    }

    /// A list for people: what is too much for it is counted, and never stops the scan.
    fn flagged(&mut self, dir: &Dir<'_>, name: &CStr) {
        if !self.post.finishing {
            return;
        }
        match dir.join(name.to_bytes()) {
            Ok(path) if walk::lists(&mut self.post.kept, &path) => {
                self.post.flagged.push((dir.tree_index, path))
            }
            _ => self.post.unlisted += 1,
        }
    }

    fn leave(
        &mut self,
        names: &mut Names,
        dir: &Dir<'_>,
        parts: GitParts,
    ) -> Result<(), GuardError> {
        let checked = self.check_state(names, dir, parts);
        checked.and(self.take_trap(&names.git, dir, parts))
    }

    /// A directory that the command has shut, or another user. In the end it gets its rights back.
    /// Before, it does if names in it can be opened all the same, or if it is the root; else
    /// nothing gets in before its owner gives himself the right to search it, and that is an event
    /// of the directory above.
    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd) -> Result<bool, GuardError> {
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let stat = rustix::fs::fstat(object).map_err(failed)?;
        if self.post.is_shut(object.as_fd()).map_err(failed)? {
            return Ok(false);
        }
        let can_be_searched = match walk::searchable(object) {
            Ok(_) => true,
            Err(Errno::ACCESS) => false,
            Err(source) => return self.failed(failed(source)).map(|()| false),
        };
        if self.post.finishing || can_be_searched || path.is_empty() {
            if self.post.give_rights(object.as_fd()).map_err(failed)? {
                return Ok(true);
            }
            if self.post.finishing {
                // It appeared closed to the command too, as it is to this process: the command put
                // nothing there.
                if !can_be_searched && self.post.nodes.never_had(Identity::from(&stat)) {
                    return Ok(false);
                }
                return self.failed(failed(Errno::ACCESS)).map(|()| false);
            }
            // Another user's: closed as a whole, as it would have been at the start.
            self.post.covers.push(scan::cover(tree.absolute(path)?, &stat, CoverKind::Mask)?);
            self.post.shut.push(Object::at(object, c"").map_err(failed)?);
            return Ok(false);
        }
        let above = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let watched = tree.open(above, OFlags::PATH | OFlags::DIRECTORY).and_then(|dir| {
            watch(self.inotify, dir.as_fd(), WatchFlags::ATTRIB | WatchFlags::MASK_ADD)
        });
        self.post.blind |= watched.is_err();
        Ok(false)
    }

    /// In the end only a signal stops the walk, and what concerns no single path.
    fn goes_on(&mut self, error: GuardError) -> Result<(), GuardError> {
        match error {
            GuardError::Walk(error @ (WalkError::Interrupted | WalkError::Behind)) => {
                Err(error.into())
            }
            GuardError::Walk(error) => self.failed(error),
            GuardError::Watch { path, source } if self.post.finishing => {
                self.failed(WalkError::Look { path, source })
            }
            error => Err(error),
        }
    }

    /// In the end the rest is looked through all the same, and the first error is told.
    fn failed(&mut self, error: WalkError) -> Result<(), GuardError> {
        match error {
            // An event tells where it is now.
            WalkError::Moved { .. } if !self.post.finishing => {
                self.post.blind = true;
                Ok(())
            }
            error if self.post.finishing => {
                self.post.unfinished.get_or_insert(error);
                Ok(())
            }
            error => Err(error.into()),
        }
    }
}
