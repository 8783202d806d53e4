//! What is done with a name that appeared.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::beneath;
use crate::cover::{Cover, CoverKind};
use crate::gitdir::{self, Judgement, Known, Role, Sight};
use crate::ground::{Ground, Rooted};
use crate::links;
use crate::names::{Look, Names, StemId};
use crate::place::Identity;
use crate::services;
use crate::survey::{self, Survey, Through};
use crate::taken::{Outcome, Store};
use crate::text::AbsPath;
use crate::walk::{self, Below, Dir, Entry, GitParts, Verdict, Visitor, WalkError};

use super::nodes::{Nodes, UNWATCHED};
use super::strangers::Silent;
use super::{DISAPPEAR, GuardError, GuardEvent, MAX_TAKEN, WRITTEN, appear, watch};

/// A name that was locked or denied at the start. Inside it is a mount point, which the command can not replace; so whoever does is outside,
/// and it is locked again. It goes by the directory that holds it: another directory that comes to the same path is new.
#[derive(Debug)]
pub struct Held {
    pub parent: Identity,
    pub name: Box<[u8]>,
    /// With the mount on it. What comes to the name now may be the command's.
    gone: bool,
}

/// What a guard remembers.
pub struct Post {
    pub nodes: Nodes,
    store: Store,
    guards_git: bool,
    /// By directory and name.
    pub held: Vec<Held>,
    /// What was covered at the start, in order: never taken away. Each is watched, so that its end is known: a number that is
    /// free may be another file's next.
    covered: Vec<Identity>,
    /// The watches of those that are not watched as directories.
    cover_watches: HashMap<i32, Identity>,
    /// Repositories without a work tree that were there before.
    pub bare: Vec<Identity>,
    /// Symlinks in git directories that were there before, in order.
    pub through: Vec<Through>,
    /// Directories that could not be listed, and were closed as a whole.
    pub shut: Vec<Identity>,
    /// What was denied at the start, in order.
    pub masked: Vec<Identity>,
    /// Flagged names, as last seen: the tree, and the path there.
    pub flagged: Vec<(usize, Vec<u8>)>,
    /// How many of them were left out.
    pub unlisted: usize,
    pub taken: usize,
    pub covers: Vec<Cover>,
    /// Bytes of the paths of covers, and of flagged names.
    pub kept: usize,
    /// What the last scan could not look at first.
    pub unfinished: Option<WalkError>,
    pub events: Vec<GuardEvent>,
    /// What could not be taken away was said once.
    failed: Vec<AbsPath>,
    content: Vec<u8>,
    /// Some directory can not be watched.
    pub blind: bool,
    /// The name itself made the event, and was not found on a walk below it.
    pub direct: bool,
    /// Events were lost: what was covered may be covered no more.
    pub again: bool,
    /// Sockets that nobody answers for yet.
    pub silent: Silent,
    /// The sandbox is gone; nothing is covered any more.
    pub finishing: bool,
}

impl Post {
    pub fn new(nodes: Nodes, store: Store, guards_git: bool, survey: Survey) -> Post {
        let Survey { held, mut bare, mut through, shut, flagged, mut masked, .. } = survey;
        masked.sort_unstable();
        through.sort_unstable();
        let mut held: Vec<Held> = held.into_iter().map(|(parent, name)| Held { parent, name, gone: false }).collect();
        held.sort_by(|one, other| (one.parent, &one.name).cmp(&(other.parent, &other.name)));
        held.dedup_by(|one, other| (one.parent, &one.name) == (other.parent, &other.name));
        bare.sort_unstable();
        Post {
            nodes,
            store,
            guards_git,
            held,
            covered: Vec::new(),
            cover_watches: HashMap::new(),
            bare,
            through,
            shut,
            masked,
            flagged,
            unlisted: 0,
            taken: 0,
            covers: Vec::new(),
            kept: 0,
            unfinished: None,
            events: Vec::new(),
            failed: Vec::new(),
            content: Vec::new(),
            blind: false,
            direct: false,
            again: false,
            silent: Silent::default(),
            finishing: false,
        }
    }

    fn find_held(&self, parent: Identity, name: &[u8]) -> Option<usize> {
        self.held.binary_search_by(|held| (held.parent, &*held.name).cmp(&(parent, name))).ok()
    }

    /// A name went away.
    pub fn gone(&mut self, parent: Identity, name: &[u8]) {
        if let Some(index) = self.find_held(parent, name) {
            self.held[index].gone = true;
        }
    }

    fn holds_in(&self, parent: Identity) -> bool {
        let first = self.held.partition_point(|held| held.parent < parent);
        self.held.get(first).is_some_and(|held| held.parent == parent)
    }

    fn was_covered(&self, identity: Identity) -> bool {
        self.covered.binary_search(&identity).is_ok()
    }

    fn was_denied(&self, identity: Identity) -> bool {
        self.masked.binary_search(&identity).is_ok()
    }

    /// Is this a name that was locked or denied, and was replaced just now?
    fn is_replaced(&mut self, parent: Identity, name: &[u8]) -> bool {
        let Some(index) = self.find_held(parent, name) else { return false };
        if self.held[index].gone {
            self.held.remove(index);
            return false;
        }
        true
    }

    /// A covered object is known by its identity for as long as it is watched.
    pub fn remember(
        &mut self,
        inotify: BorrowedFd<'_>,
        object: BorrowedFd<'_>,
        identity: Identity,
    ) -> Result<(), Errno> {
        let Err(at) = self.covered.binary_search(&identity) else { return Ok(()) };
        // A directory may be watched already, for more.
        let watch = match watch(inotify, object, WatchFlags::DELETE_SELF | WatchFlags::MASK_ADD) {
            Ok(watch) => watch,
            // What its owner may not read can not be watched. It is known by its name alone.
            Err(Errno::ACCESS) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.covered.insert(at, identity);
        if self.nodes.of_watch(watch).is_none() {
            self.cover_watches.insert(watch, identity);
        }
        Ok(())
    }

    /// The kernel gave a watch up: what it was on is no more.
    pub fn forget(&mut self, watch: i32) {
        let node = self.nodes.remove(watch);
        let Some(identity) = self.cover_watches.remove(&watch).or(node) else { return };
        if let Ok(at) = self.covered.binary_search(&identity) {
            self.covered.remove(at);
        }
        for known in [&mut self.bare, &mut self.masked] {
            if let Ok(at) = known.binary_search(&identity) {
                known.remove(at);
            }
        }
        self.held.retain(|held| held.parent != identity);
    }

    /// Opens a directory whose owner has taken his own rights away, from it or from one above it. They are given back for good.
    pub fn open_shut(&self, tree: &Rooted, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut dir = tree.open(b"", OFlags::PATH | OFlags::DIRECTORY)?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            self.give_rights(dir.as_fd())?;
            dir = beneath::open(&dir, name, OFlags::PATH | OFlags::DIRECTORY)?;
        }
        self.give_rights(dir.as_fd())?;
        Ok(dir)
    }

    /// Gives a directory back its owner's rights to list and to search it. False: it is another user's, or was shut from the start
    /// and is closed as a whole.
    fn give_rights(&self, dir: BorrowedFd<'_>) -> Result<bool, Errno> {
        let stat = rustix::fs::fstat(dir)?;
        if stat.st_uid != rustix::process::getuid().as_raw() || self.shut.contains(&Identity::from(&stat)) {
            return Ok(false);
        }
        if stat.st_mode & 0o500 != 0o500 {
            let mut buffer = [0; 32];
            let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o500);
            rustix::fs::chmod(beneath::link_to(dir, &mut buffer), mode)?;
        }
        Ok(true)
    }
}

pub struct Visit<'g> {
    pub inotify: BorrowedFd<'g>,
    pub ground: &'g Ground,
    pub post: &'g mut Post,
}

impl Visit<'_> {
    fn cover(&mut self, dir: &Dir<'_>, name: &[u8], stat: &Stat, kind: CoverKind) -> Result<(), WalkError> {
        // With the mount on it. In a copy it was hidden by its path.
        let known = dir.tree.writable && self.post.was_covered(Identity::from(stat));
        let moved_along = known && !self.post.direct && !self.post.again;
        if self.post.finishing || moved_along {
            return Ok(());
        }
        let path = dir.absolute(name)?;
        walk::keep(&mut self.post.kept, path.as_bytes())?;
        self.post.covers.push(survey::cover(path, stat, kind)?);
        Ok(())
    }

    fn pin(&mut self, names: &mut Names, dir: &Dir<'_>, path: &[u8], rule: Option<StemId>) -> Result<(), WalkError> {
        let Some(rule) = rule.filter(|_| dir.tree.writable && !self.post.finishing) else { return Ok(()) };
        for path in survey::pins(names, dir.tree, path, rule, dir.folding)? {
            walk::keep(&mut self.post.kept, &path)?;
            self.post.covers.extend(survey::pin(dir.tree, &path)?);
        }
        Ok(())
    }

    /// A socket is the command's own, or a way out. Who made it is told inside. In a copy it is reached by nobody.
    fn question(&mut self, dir: &Dir<'_>, name: &[u8], stat: &Stat) -> Result<(), WalkError> {
        if dir.tree.is_copy() || self.post.finishing {
            return Ok(());
        }
        let socket = match beneath::look(dir.fd, name) {
            Ok(socket) => socket,
            Err(Errno::NOENT) => return Ok(()),
            Err(source) => return Err(dir.unseen(name, source)),
        };
        if !services::is_silent(socket.as_fd()) {
            return self.cover(dir, name, stat, CoverKind::Stranger);
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
        let Some(followed) = links::leads_to(&dir.absolute(name)?)? else { return Ok(()) };
        match self.ground.look(&followed.end).and_then(rustix::fs::fstat) {
            Ok(stat) => self.post.covers.push(survey::cover(followed.end, &stat, CoverKind::Mask)?),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(source) => return Err(WalkError::Look { path: followed.end, source }),
        }
        Ok(())
    }

    fn take(&mut self, dir: &Dir<'_>, name: &CStr, judged: Option<Identity>) -> Result<(), GuardError> {
        let path = dir.absolute(name.to_bytes())?;
        let Post { store, covered, .. } = &mut *self.post;
        match store.take(dir.fd, name, judged, &|identity| covered.binary_search(&identity).is_ok()) {
            Ok(Outcome::Taken { kept, whole }) => {
                self.post.taken += 1;
                self.post.events.push(GuardEvent::Taken { path, kept, whole });
                // In the end there is nobody left to stop.
                if self.post.taken > MAX_TAKEN && !self.post.finishing { Err(GuardError::TooManyTaken) } else { Ok(()) }
            }
            Ok(Outcome::Removed(source)) => {
                self.post.events.push(GuardEvent::Removed { path, source });
                Ok(())
            }
            Ok(Outcome::Left) => Ok(()),
            Err(source) => {
                if !self.post.failed.contains(&path) && self.post.failed.len() < MAX_TAKEN {
                    self.post.failed.push(path.clone());
                    self.post.events.push(GuardEvent::Failed { path: path.clone(), source });
                }
                // During the run the scan at the end tries again.
                if self.post.finishing { self.failed(WalkError::Left { path, source }) } else { Ok(()) }
            }
        }
    }

    /// Is this a new symlink in a git directory? Git makes none that stays, and writes to most names there without a look at what they are.
    fn is_planted(&self, names: &Names, dir: &Dir<'_>, entry: &Entry<'_>, identity: Identity) -> bool {
        if entry.file_type != FileType::Symlink || !dir.is_in_git(names) {
            return false;
        }
        let said = match rustix::fs::readlinkat(dir.fd, entry.name, Vec::new()) {
            Ok(said) => said.into_bytes(),
            Err(error) => return !matches!(error, Errno::NOENT | Errno::INVAL), // gone, or no link any more
        };
        // By this one `git init` finds out whether there are symlinks.
        if said == b"testing" {
            return false;
        }
        let one = Through { dir: dir.identity, name: entry.name.to_bytes().into(), identity, said };
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
        let watched = (role != Role::Hooks && !self.post.finishing).then(|| self.watch_content(dir, entry.name));
        let mut content = std::mem::take(&mut self.post.content);
        let sight = Sight { ground: self.ground, shut: &self.post.shut, finishing: self.post.finishing };
        let judgement = gitdir::judge(role, &sight, names, dir, entry.name, &mut content);
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
        let opened = beneath::look(dir.fd, name.to_bytes()).and_then(|file| Ok((rustix::fs::fstat(&file)?, file)));
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

    /// Looks whether a directory has become a repository, which git finds when it is started there (protected-paths G10, G11).
    pub fn check_trap(&mut self, known: &Known, dir: &Dir<'_>) -> Result<(), GuardError> {
        let mut parts = GitParts::default();
        for name in gitdir::MAKING {
            if self.stat(dir, name)?.is_some() {
                parts.see(name.to_bytes(), dir.folding);
            }
        }
        self.take_trap(known, dir, parts)
    }

    fn take_trap(&mut self, git: &Known, dir: &Dir<'_>, parts: GitParts) -> Result<(), GuardError> {
        let trap = parts.make_a_repository() && !gitdir::is_git_own(git, dir, parts);
        let known = self.post.bare.binary_search(&dir.identity).is_ok();
        if !self.post.guards_git || !trap || known || !dir.tree.writable || dir.below != Below::Plain {
            return Ok(());
        }
        self.take(dir, c"HEAD", None)
    }
}

impl Visitor for Visit<'_> {
    type Error = GuardError;

    fn enter(&mut self, names: &Names, dir: &Dir<'_>) -> Result<Option<u32>, GuardError> {
        self.post.direct = false;
        if dir.tree.is_read_only() && !names.leads_to_denied(dir.state) {
            return Ok(None);
        }
        if self.post.finishing {
            return Ok(Some(UNWATCHED));
        }
        let disappear = if self.post.holds_in(dir.identity) { DISAPPEAR } else { WatchFlags::empty() };
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
    fn root(&mut self, _tree: &Rooted, verdict: Verdict, _look: Look) -> Result<Option<Below>, GuardError> {
        Ok(match verdict {
            Verdict::Deny(_) => None,
            _ => Some(Below::Locked),
        })
    }

    fn found(&mut self, names: &mut Names, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<Option<Below>, GuardError> {
        let name = entry.name.to_bytes();
        let Some(stat) = self.stat(dir, entry.name)? else { return Ok(None) };
        let identity = Identity::from(&stat);
        match entry.verdict {
            Verdict::Deny(rule) => {
                self.pin(names, dir, &dir.join(name)?, rule)?;
                self.cover(dir, name, &stat, CoverKind::Mask)?;
                let file_type = FileType::from_raw_mode(stat.st_mode);
                if file_type == FileType::Symlink {
                    self.mask_target(dir, name)?;
                }
                let there_before = self.post.was_denied(identity) || self.post.is_replaced(dir.identity, name);
                if there_before || !dir.tree.writable {
                    return Ok(None);
                }
                match walk::verdict_without_denial(names, dir, name, file_type, entry.look) {
                    // The command may have written into it before it was closed.
                    Verdict::Free => Ok(self.post.finishing.then_some(dir.below)),
                    verdict if self.post.finishing || matches!(verdict, Verdict::Protect(_)) => {
                        let Entry { name, inode, look, .. } = *entry;
                        self.found(names, dir, &Entry { name, file_type, inode, verdict, look })
                    }
                    _ => Ok(None),
                }
            }
            Verdict::Protect(_) | Verdict::Way | Verdict::Link(_) if self.post.is_replaced(dir.identity, name) => {
                self.cover(dir, name, &stat, CoverKind::Lock)?;
                match beneath::look(dir.fd, name) {
                    Ok(object) => {
                        let failed = |source| GuardError::Watch { path: walk::shown(dir.tree, dir.path), source };
                        self.post.remember(self.inotify, object.as_fd(), identity).map_err(failed)?;
                    }
                    Err(Errno::NOENT) => {}
                    Err(source) => return Err(dir.unseen(name, source).into()),
                }
                Ok(Some(Below::Locked))
            }
            // It came here together with the directory it is in.
            Verdict::Protect(_) | Verdict::Way if self.post.was_covered(identity) => Ok(Some(Below::Locked)),
            Verdict::Protect(_) => self.judge_new(names, dir, entry, &stat),
            Verdict::Way if dir.tree.writable && entry.look.way_to_protected => {
                self.take(dir, entry.name, None)?;
                Ok(None)
            }
            Verdict::Socket if !dir.tree.is_left_out(dir.path, name) => {
                self.question(dir, name, &stat)?;
                Ok(None)
            }
            Verdict::Way | Verdict::Through | Verdict::Link(_)
                if dir.tree.writable && dir.below == Below::Plain && self.is_planted(names, dir, entry, identity) =>
            {
                self.take(dir, entry.name, Some(identity))?;
                Ok(None)
            }
            Verdict::Way | Verdict::Through | Verdict::Link(_) | Verdict::Socket | Verdict::Free => Ok(None),
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

    /// A list for people: what is too much for it is counted, and never stops the scan.
    fn flagged(&mut self, dir: &Dir<'_>, name: &CStr) {
        if !self.post.finishing {
            return;
        }
        match dir.join(name.to_bytes()) {
            Ok(path) if walk::lists(&mut self.post.kept, &path) => self.post.flagged.push((dir.tree_index, path)),
            _ => self.post.unlisted += 1,
        }
    }

    fn leave(&mut self, names: &Names, dir: &Dir<'_>, parts: GitParts) -> Result<(), GuardError> {
        self.take_trap(&names.git, dir, parts)
    }

    /// A directory that the command has shut, or another user. In the end it gets its rights back. Before, it does if names in it
    /// can be opened all the same, or if it is the root; else nothing gets in before its owner gives himself the right to search it,
    /// and that is an event of the directory above.
    fn shut(&mut self, tree: &Rooted, path: &[u8], object: &OwnedFd) -> Result<bool, GuardError> {
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let stat = rustix::fs::fstat(object).map_err(failed)?;
        let identity = Identity::from(&stat);
        if self.post.shut.contains(&identity) {
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
                return self.failed(failed(Errno::ACCESS)).map(|()| false);
            }
            // Another user's: closed as a whole, as it would have been at the start.
            self.post.covers.push(survey::cover(tree.absolute(path)?, &stat, CoverKind::Mask)?);
            self.post.shut.push(identity);
            return Ok(false);
        }
        let above = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let watched = tree
            .open(above, OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|dir| watch(self.inotify, dir.as_fd(), WatchFlags::ATTRIB | WatchFlags::MASK_ADD));
        self.post.blind |= watched.is_err();
        Ok(false)
    }

    /// In the end only a signal stops the walk, and what concerns no single path.
    fn goes_on(&mut self, error: GuardError) -> Result<(), GuardError> {
        match error {
            GuardError::Walk(error @ (WalkError::Interrupted | WalkError::Behind)) => Err(error.into()),
            GuardError::Walk(error) => self.failed(error),
            GuardError::Watch { path, source } if self.post.finishing => self.failed(WalkError::Look { path, source }),
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
