//! May a name be made, written, replaced, renamed or removed?
//!
//! A protected name may exist only with content that is harmless: then git made it, and a program
//! outside gains nothing from it. Everything else at a protected name is refused.

use std::collections::HashSet;
use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::changed_names::{ChangedName, MAX_CHANGED_NAMES};
use super::kept_files::PlacedFiles;
use super::known_names::{FoundObjects, KnownNames};
use super::resolve::path_of;
use super::written_trees::{BeforeStart, FileTime, WrittenTree, is_within};
use crate::files::git::{self, LinkedWorkTree, Role};
use crate::files::patterns::{AddedPattern, NameMatch, NamePatterns, NameRule};
use crate::files::walk::GitParts;
use crate::kernel::calling_process::mount_of;
use crate::kernel::open_beneath;
use crate::plan::wire::bytes::Text;
use crate::plan::{FilesPlan, Plan, Tier};

/// A directory with more names than this is not moved: to check it would hold up other calls.
const MAX_MOVED_NAMES: usize = 200_000;

/// Nor is a deeper one.
const MAX_MOVED_LEVELS: usize = 1000;

/// The decision on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDecision {
    Free,
    /// The name is protected, but may exist with harmless content.
    ByContent(Role),
    Protected,
    /// A deny rule closes the name, whatever its content is.
    Denied,
}

pub struct WriteJudge {
    names: NamePatterns,
    found: FoundObjects,
    writable: Vec<WrittenTree>,
    /// No mount holds anything: names outside of the writable trees are judged too.
    is_alone: bool,
    /// Another run can make names at the same time.
    pub may_race: bool,
    /// A name was refused only because of that.
    pub is_unsure: bool,
    /// Does the plan flag any name?
    flags_names: bool,
    /// Flagged names below the directory that is being renamed, at their old and new paths.
    moved: Vec<ChangedName>,
    /// The new paths of symlinks below it.
    moved_links: Vec<Vec<u8>>,
    /// Programs make many calls in one directory.
    last_dir: Option<LastDir>,
    /// The mounts that this process sees.
    mounts: HashSet<u64>,
    /// The trees that other runs may write, at the time of a rename.
    pub trees_of_others: Vec<Vec<u8>>,
    pub(super) placed: PlacedFiles,
    started: FileTime,
    /// Remotes of the user's own git configuration.
    pub(super) remotes_of_user: Vec<Text>,
}

/// Is a name about to be made, or does it exist already?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameAge {
    New,
    Exists,
}

/// A directory of the walk down to a name.
#[derive(Clone, Copy)]
struct DirState {
    look: NameMatch,
    protected: bool,
    denied: bool,
}

/// The directory of the last decision. Its state depends on the patterns alone.
struct LastDir {
    path: Vec<u8>,
    state: DirState,
}

impl WriteJudge {
    pub fn new(
        plan: &Plan,
        files: &FilesPlan,
        known: KnownNames,
        before: BeforeStart,
    ) -> WriteJudge {
        let KnownNames { names, found } = known;
        let BeforeStart { trees: writable, time: started } = before;
        WriteJudge {
            names,
            found,
            writable,
            is_alone: plan.tier == Tier::Landlock,
            may_race: false,
            is_unsure: false,
            flags_names: !files.flagged.is_empty(),
            moved: Vec::new(),
            moved_links: Vec::new(),
            last_dir: None,
            mounts: HashSet::new(),
            trees_of_others: Vec::new(),
            placed: PlacedFiles::default(),
            started,
            remotes_of_user: files.git_remotes.clone(),
        }
    }

    pub fn flags_names(&self) -> bool {
        self.flags_names
    }

    /// Is the path in a directory of installed packages? Nothing is flagged there.
    pub fn is_shipped(&self, path: &[u8]) -> bool {
        let trees = self.writable.iter().filter(|tree| is_within(path, &tree.path));
        let top = trees.map(|tree| tree.path.len()).max().unwrap_or(0);
        self.names.is_shipped(&path[top..])
    }

    /// Do programs outside run the file at this path, which the command may write?
    pub fn is_flagged(&mut self, path: &[u8]) -> bool {
        if !self.flags_names || !path.starts_with(b"/") || !self.is_judged(path) {
            return false;
        }
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let Ok(above) = self.state_of(git::parent_of(path)) else { return false };
        self.is_flagged_in(above, name, path)
    }

    fn is_flagged_in(&mut self, above: DirState, name: &[u8], path: &[u8]) -> bool {
        (self.names.look(above.look.next, name, false).flagged && !self.is_shipped(path))
            || self.found.is_flagged(path)
    }

    /// The flagged names that the last checked renames move.
    pub fn take_moved(&mut self) -> Vec<ChangedName> {
        std::mem::take(&mut self.moved)
    }

    /// The symlinks that the last checked renames move, at their new paths.
    pub fn take_moved_links(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.moved_links)
    }

    fn note_moved(&mut self, above: DirState, name: &[u8], path: &[u8], existed: bool) {
        // So many are more than a list holds, which says so.
        let is_room = self.moved.len() <= 2 * MAX_CHANGED_NAMES;
        if is_room && self.is_judged(path) && self.is_flagged_in(above, name, path) {
            self.moved.push(ChangedName { path: path.to_vec(), existed });
        }
    }

    /// The path of an open object. ESTALE: it lies on a mount of another sandbox, so its path says
    /// nothing. A process can get such a descriptor from another run.
    fn path_of(&mut self, object: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
        let path = path_of(object)?;
        // A pipe, a socket: it has no path.
        if !path.starts_with(b"/") {
            return Ok(path);
        }
        let mount = mount_of(object, c"")?;
        if !self.mounts.contains(&mount) {
            self.mounts = own_mounts()?;
        }
        // A file without a name is no other program's. It can lie on a mount of the kernel.
        let is_known = self.mounts.contains(&mount) || rustix::fs::fstat(object)?.st_nlink == 0;
        if is_known { Ok(path) } else { Err(Errno::STALE) }
    }

    /// Are names at this path judged? In the full tier the mounts refuse every write outside of the
    /// writable trees.
    fn is_judged(&self, path: &[u8]) -> bool {
        let trees = self.writable.iter().filter(|tree| is_within(path, &tree.path));
        // A private directory can lie in a shared tree, and a shared tree in a private directory.
        trees.max_by_key(|tree| tree.path.len()).map_or(self.is_alone, |tree| tree.is_shared)
    }

    /// Does the judge hold the metadata of objects outside of the writable trees?
    pub fn holds_metadata(&self) -> bool {
        self.is_alone
    }

    /// May the command write in this directory, or change this object? A path that does not start
    /// with a slash is no name: a pipe, a socket.
    pub fn is_writable(&self, path: &[u8]) -> bool {
        !path.starts_with(b"/") || self.writable.iter().any(|tree| tree.holds(path))
    }

    /// The decision on a name in an open directory, for an object of this type.
    pub fn decide(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        file_type: FileType,
    ) -> Result<(WriteDecision, Vec<u8>), Errno> {
        let above = self.path_of(dir)?;
        let path = [above.strip_suffix(b"/").unwrap_or(&above), b"/", name].concat();
        if !self.is_judged(&path) {
            return Ok((WriteDecision::Free, path));
        }
        self.learn_repository(&above, name, Some(dir))?;
        let state = self.state_of(&above)?;
        let decision = self.decide_in(dir, &above, state, name, file_type)?;
        Ok((self.by_role(decision, &path, file_type), path))
    }

    /// The decision on a name that exists.
    pub fn decide_existing(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        file_type: FileType,
    ) -> Result<(WriteDecision, Vec<u8>), Errno> {
        let above = self.path_of(dir)?;
        let path = [above.strip_suffix(b"/").unwrap_or(&above), b"/", name].concat();
        if !self.is_judged(&path) {
            return Ok((WriteDecision::Free, path));
        }
        self.learn_repository(&above, name, Some(dir))?;
        let state = self.state_of(&above)?;
        let decision = self.decide_name(&above, state, name, file_type, NameAge::Exists);
        match self.by_role(decision, &path, file_type) {
            WriteDecision::Free if self.has_protected_name(dir, name)? => {
                Ok((WriteDecision::Protected, path))
            }
            decision => Ok((decision, path)),
        }
    }

    /// A protected part of a git directory may exist with harmless content. So may some parts that
    /// only their content makes dangerous.
    fn by_role(&self, decision: WriteDecision, path: &[u8], file_type: FileType) -> WriteDecision {
        let is_checked = || self.names.guards_git && git::may_be_checked(path);
        let role = match decision {
            // Patterns protect no ref. If one is protected, so is a directory above it.
            WriteDecision::Protected => self
                .names
                .git
                .role(path)
                .filter(|role| !role.is_ref() && !self.is_named_hook(*role, path)),
            WriteDecision::Free if is_checked() => {
                self.names.git.role(path).filter(|role| role.is_checked())
            }
            WriteDecision::Free if self.is_file_of_person(path, file_type) => {
                return WriteDecision::Protected;
            }
            _ => None,
        };
        // Refs lie in directories of any name.
        let role = role.filter(|role| !role.is_ref() || file_type == FileType::RegularFile);
        role.map_or(decision, WriteDecision::ByContent)
    }

    /// Has a person put this file into a git directory before the run? Without a time of its birth it
    /// counts as from before.
    fn is_file_of_person(&self, path: &[u8], file_type: FileType) -> bool {
        if !self.names.guards_git
            || file_type != FileType::RegularFile
            || !git::is_foreign_file(path)
        {
            return false;
        }
        let (flags, mask) = (AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME);
        match rustix::fs::statx(rustix::fs::CWD, path, flags, mask) {
            Ok(stat) => {
                let born = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
                stat.stx_mask & StatxFlags::BTIME.bits() == 0 || born < self.started
            }
            Err(errno) => errno != Errno::NOENT,
        }
    }

    /// Does a symlink or a configuration lead to this hook? Then git runs it, whatever its name is.
    fn is_named_hook(&self, role: Role, path: &[u8]) -> bool {
        let is_named = |added: &AddedPattern| {
            added.rule == NameRule::Protect && added.rest.is_empty() && is_within(path, &added.path)
        };
        role == Role::Hook && self.names.added().iter().any(is_named)
    }

    /// The decision on an open object, by its own path.
    pub fn decide_object(
        &mut self,
        object: BorrowedFd<'_>,
        file_type: FileType,
    ) -> Result<(WriteDecision, Vec<u8>), Errno> {
        let path = self.path_of(object)?;
        let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
            // A pipe, a socket: it has no path.
            return Ok((WriteDecision::Free, path));
        };
        if !self.is_judged(&path) {
            return Ok((WriteDecision::Free, path));
        }
        let (above, name) = (&path[..slash.max(1)], &path[slash + 1..]);
        match self.decide_path(above, name, file_type, NameAge::Exists)? {
            WriteDecision::Free if self.found.is_linked_object(object)? => {
                Ok((WriteDecision::Protected, path))
            }
            decision => Ok((decision, path)),
        }
    }

    /// The decision on a name in a directory that does not exist yet.
    pub fn decide_later(&mut self, dir: &[u8], name: &[u8]) -> Result<WriteDecision, Errno> {
        match self.is_judged(dir) {
            true => self.decide_path(dir, name, FileType::RegularFile, NameAge::New),
            false => Ok(WriteDecision::Free),
        }
    }

    /// The decision on a name of the work tree that git may write later.
    pub(super) fn decide_entry(
        &mut self,
        path: &[u8],
        file_type: FileType,
    ) -> Result<WriteDecision, Errno> {
        let dir = git::parent_of(path);
        let state = self.state_of(dir)?;
        Ok(self.decide_name(dir, state, &path[dir.len() + 1..], file_type, NameAge::Exists))
    }

    fn decide_path(
        &mut self,
        dir: &[u8],
        name: &[u8],
        file_type: FileType,
        age: NameAge,
    ) -> Result<WriteDecision, Errno> {
        self.learn_repository(dir, name, None)?;
        let state = self.state_of(dir)?;
        let decision = self.decide_name(dir, state, name, file_type, age);
        let path = [dir.strip_suffix(b"/").unwrap_or(dir), b"/", name].concat();
        Ok(self.by_role(decision, &path, file_type))
    }

    /// Was the file denied or protected under another name when the command started?
    pub fn has_protected_name(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<bool, Errno> {
        self.found.is_linked_at(dir, name)
    }

    fn state_of(&mut self, dir: &[u8]) -> Result<DirState, Errno> {
        if let Some(last) = self.last_dir.as_ref().filter(|last| last.path == dir) {
            return Ok(last.state);
        }
        let mut end: usize = 0;
        let mut is_lasting = true;
        for name in dir.split(|byte| *byte == b'/') {
            is_lasting &= !self.learn_repository(&dir[..end.saturating_sub(1)], name, None)?;
            end += name.len() + 1;
        }
        let mut state =
            DirState { look: self.names.start(b"/", true).look, protected: false, denied: false };
        let mut end = 0;
        for name in dir.split(|byte| *byte == b'/') {
            end += name.len();
            if !name.is_empty() {
                state = self.enter(&dir[..end], state, name);
            }
            end += 1;
        }
        self.last_dir = is_lasting.then(|| LastDir { path: dir.to_vec(), state });
        Ok(state)
    }

    /// A directory of another name than `.git` is git's by its parts. It is looked for where a path
    /// leads through a name that is such a part. `open`: the directory, if it is open. An error that
    /// is not ENOENT does not mean that there is no repository. True: the directory was looked at,
    /// and the next time it may have other parts.
    fn learn_repository(
        &mut self,
        dir: &[u8],
        name: &[u8],
        open: Option<BorrowedFd<'_>>,
    ) -> Result<bool, Errno> {
        let is_candidate = self.names.guards_git
            && git::is_part(name)
            && !self.names.git.is_git(dir, false)
            && !self.names.git.is_covered(dir)
            && !dir.is_empty();
        if !is_candidate {
            return Ok(false);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parts = match open {
            Some(open) => git::parts_in(open),
            None => rustix::fs::open(dir, flags, Mode::empty())
                .and_then(|dir| git::parts_in(dir.as_fd())),
        };
        match parts {
            Ok(parts) if parts.make_a_repository() => {
                self.last_dir = None;
                // Too many patterns: what follows could not be judged.
                let added = self.names.add_git_directory(dir).and_then(|()| self.names.settle());
                added.map(|_| true).map_err(|_| Errno::ACCESS)
            }
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    /// The state of a directory. `path` is its path, `above` the state of the one above it.
    fn enter(&mut self, path: &[u8], above: DirState, name: &[u8]) -> DirState {
        let look = self.look(above.look, name);
        let protects = look.protect.is_some() && !self.stays_open(path, name);
        DirState {
            look,
            protected: (above.protected || protects) && !look.opened,
            denied: above.denied || look.deny.is_some(),
        }
    }

    /// The match of a name. A file system that ignores case has the name in other letters too. Names
    /// that differ from a protected one in case only are rare, so they count on every file system.
    fn look(&mut self, above: NameMatch, name: &[u8]) -> NameMatch {
        let exact = self.names.look(above.next, name, false);
        let may_fold = name.iter().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii());
        if !may_fold {
            return exact;
        }
        let folded = self.names.look(above.next, name, true);
        let adds = |of: fn(&NameMatch) -> bool| of(&folded) && !of(&exact);
        let is_stricter = adds(|look| look.protect.is_some())
            || adds(|look| look.deny.is_some())
            || (exact.is_nothing() && !folded.is_nothing());
        if is_stricter { folded } else { exact }
    }

    /// A git directory stays writable as a whole, because its parts are protected. So does the
    /// directory .jj/repo, and a branch whose name looks like a part of a git directory.
    fn stays_open(&self, path: &[u8], name: &[u8]) -> bool {
        let jj = || name.eq_ignore_ascii_case(b"repo") && path.ends_with(b"/.jj/repo");
        self.names.is_git(name, false) || jj() || self.names.git.is_branch(path)
    }

    fn decide_in(
        &mut self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        state: DirState,
        name: &[u8],
        file_type: FileType,
    ) -> Result<WriteDecision, Errno> {
        match self.decide_name(path, state, name, file_type, NameAge::New) {
            WriteDecision::Free if self.completes_repository(dir, path, name)? => {
                Ok(WriteDecision::Protected)
            }
            WriteDecision::Free if self.takes_place(path, name, file_type) => {
                Ok(WriteDecision::Protected)
            }
            decision => Ok(decision),
        }
    }

    /// Would git find this new repository in the place of the one that has the files here?
    fn takes_place(&self, dir: &[u8], name: &[u8], file_type: FileType) -> bool {
        file_type == FileType::Directory
            && self.names.guards_git
            && self.names.is_git(name, false)
            && self.holds_tracked_files(dir)
    }

    fn holds_tracked_files(&self, dir: &[u8]) -> bool {
        self.names.git.outer.has(dir) || git::holds_tracked_files(dir)
    }

    /// Is it one of the names by which git knows a repository of another name than `.git`? Without
    /// it the next run would not know the repository.
    pub fn makes_known_repository(&self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        git::GIT_DIR_NAMES.iter().any(|part| part.to_bytes() == name)
            && self.names.git.directories().iter().any(|dir| dir == git::parent_of(path))
    }

    fn decide_name(
        &mut self,
        dir: &[u8],
        state: DirState,
        name: &[u8],
        file_type: FileType,
        age: NameAge,
    ) -> WriteDecision {
        let whole = [dir.strip_suffix(b"/").unwrap_or(dir), b"/", name].concat();
        let look = self.look(state.look, name);
        let is_dir = file_type == FileType::Directory;
        let own = look.protect.is_some()
            && !self.names.git.is_branch(&whole)
            && !(is_dir && self.stays_open(&whole, name));
        if state.denied || look.deny.is_some() {
            return WriteDecision::Denied;
        }
        if (state.protected || own) && !look.opened {
            return WriteDecision::Protected;
        }
        // A file or a link in the place of a git directory leads git elsewhere as a whole.
        if self.names.guards_git && !is_dir && self.names.is_git(name, true) && !look.opened {
            return WriteDecision::Protected;
        }
        if self.names.guards_git && self.names.git.is_foreign_part(&whole) && !look.opened {
            return WriteDecision::Protected;
        }
        let is_odd = !matches!(file_type, FileType::RegularFile | FileType::Directory);
        let leads = file_type == FileType::Symlink
            && (look.way_to_protected
                || look.link.is_some()
                || self.names.git.leads_to_named_path(&whole));
        let is_odd_in_git = || is_odd && self.names.guards_git && self.names.git.holds(dir, false);
        if leads || (age == NameAge::New && is_odd_in_git()) {
            return WriteDecision::Protected;
        }
        WriteDecision::Free
    }

    /// `git init` makes such a symlink in its directory, to learn whether the file system has
    /// symlinks, and removes it.
    pub fn is_symlink_probe(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        target: &[u8],
    ) -> Result<bool, Errno> {
        let is_random =
            name.len() == 7 && name.starts_with(b"t") && name.iter().all(u8::is_ascii_alphanumeric);
        let above = self.path_of(dir)?;
        Ok(is_random && target == b"testing" && self.names.git.is_git(&above, false))
    }

    /// Would this name make its directory a repository, which git finds when it is started there?
    fn completes_repository(
        &mut self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
    ) -> Result<bool, Errno> {
        let is_part = git::GIT_DIR_NAMES.iter().any(|part| part.to_bytes() == name);
        if !self.names.guards_git || !is_part {
            return Ok(false);
        }
        // The other run could make another part.
        if self.may_race {
            self.is_unsure = true;
            return Ok(true);
        }
        let mut parts = GitParts::default();
        for part in git::GIT_DIR_NAMES {
            match rustix::fs::statat(dir, part, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => parts.see(part.to_bytes(), false),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        parts.see(name, false);
        let known = match self.names.git.is_entry(path) {
            true => !parts.objects,
            false => self.names.git.is_git(path, false) || self.names.git.is_covered(path),
        };
        Ok(parts.make_a_repository() && !known)
    }

    /// Is the content of a file harmless at a name with this role?
    pub fn is_harmless(&mut self, role: Role, dir: &[u8], content: &[u8]) -> bool {
        self.is_harmless_instead(role, dir, content, None)
    }

    /// The same in the place of the content `current`. None: that is not known yet.
    pub fn is_harmless_instead(
        &mut self,
        role: Role,
        dir: &[u8],
        content: &[u8],
        current: Option<&[u8]>,
    ) -> bool {
        match role {
            Role::Config if git::changes_hashes(dir, content, current) => false,
            Role::CommonDir if git::changes_hashes_by_common_dir(dir, Some(content)) => false,
            Role::Head if content.is_empty() => !self.is_repository_from_before(dir),
            _ if content.is_empty() => true,
            // Git would find this repository in the place of the one that has the files here.
            Role::GitFile if self.holds_tracked_files(dir) => false,
            Role::GitFile => self.leads_to_own_work_tree(dir, content),
            Role::Index | Role::SharedIndex if git::takes_files_of_repository(dir, content) => {
                false
            }
            role => git::is_harmless_content(role, dir, content, &mut |path| {
                self.is_harmless_remote(path)
            }),
        }
    }

    /// May a repository at this path be a remote? Its hooks run when the user pushes to it.
    fn is_harmless_remote(&mut self, path: &[u8]) -> bool {
        let Some(path) = without_links(rustix::fs::CWD, path) else { return false };
        let hook = [&path[..], b"/.git/hooks/update"].concat();
        // A symlink on the way would lead to another repository.
        !self.is_writable(&path)
            || (self.is_protected(&hook) && self.names.git.add_named_path(&path))
    }

    /// Has a changed configuration the same settings as before, apart from harmless ones?
    pub(super) fn keeps_other_settings(&mut self, before: &[u8], after: &[u8]) -> bool {
        git::keeps_other_settings(before, after, &mut |path| self.is_harmless_remote(path))
    }

    pub(super) fn is_git(&self, dir: &[u8]) -> bool {
        self.names.guards_git && self.names.git.is_git(dir, false)
    }

    /// Is it the entry of a linked work tree?
    pub(super) fn is_entry(&self, dir: &[u8]) -> bool {
        self.names.git.is_entry(dir)
    }

    /// A `.git` file of a linked work tree: it leads to the entry of this work tree, in a
    /// repository whose parts are judged too. A submodule's file leads elsewhere, and only the user
    /// may make it.
    fn leads_to_own_work_tree(&mut self, dir: &[u8], content: &[u8]) -> bool {
        let Some(linked) = git::linked_work_tree(dir, content) else { return false };
        let LinkedWorkTree { target, entry, trusted } = linked;
        // Git gives the text to the kernel, which resolves ".." after links.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = rustix::fs::open(dir, flags, Mode::empty())
            .ok()
            .and_then(|top| without_links(top.as_fd(), &target));
        found.as_ref() == Some(&entry)
            && self.names.git.is_place_of_entry(&entry)
            && self.is_writable(&entry)
            && self.is_repository_protected(&entry)
            && trusted.iter().all(|path| !self.is_writable(path) || self.is_protected(path))
            && self.names.git.add_named_path(&entry)
    }

    /// Are the files protected that git trusts in the repository of a work tree's entry?
    fn is_repository_protected(&mut self, entry: &[u8]) -> bool {
        let repository = git::parent_of(git::parent_of(entry));
        let parts = [
            [entry, b"/commondir"].concat(),
            [repository, b"/config"].concat(),
            [repository, b"/hooks/update"].concat(),
        ];
        parts.iter().all(|path| self.is_protected(path))
    }

    /// Does a deny rule close the name, or a directory above it?
    pub fn is_denied(&mut self, path: &[u8]) -> bool {
        self.state_of(path).is_ok_and(|state| state.denied)
    }

    fn is_absolute_git_file(&self, dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
        let content = read_file(dir, name, Role::GitFile.max_bytes())?;
        Ok(content.is_some_and(|content| content.starts_with(b"gitdir: /")))
    }

    fn is_protected(&mut self, path: &[u8]) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let learned = self.learn_repository(git::parent_of(path), name, None);
        let Ok(state) = learned.and_then(|_| self.state_of(git::parent_of(path))) else {
            return false;
        };
        let file_type = FileType::RegularFile;
        let decision = self.decide_name(git::parent_of(path), state, name, file_type, NameAge::New);
        matches!(decision, WriteDecision::Protected | WriteDecision::Denied)
    }

    /// Does another run work at this path, or below it?
    pub fn is_used(&self, path: &[u8]) -> bool {
        self.is_judged(path) && self.trees_of_others.iter().any(|tree| is_within(tree, path))
    }

    /// Checks every name below a directory that is renamed: none of them may be protected where it
    /// is or where it comes to lie, unless its content is harmless. Returns the first that is.
    pub fn first_protected_below(
        &mut self,
        dir: BorrowedFd<'_>,
        new_path: &[u8],
    ) -> Result<Option<Vec<u8>>, Errno> {
        let old_path = self.path_of(dir)?;
        if !self.is_judged(&old_path) {
            return Ok(None);
        }
        if self.found.is_pinned(&old_path) {
            return Ok(Some(old_path));
        }
        let (old, new) = (self.state_of(&old_path)?, self.state_of(new_path)?);
        let expects = self.names.expects(old.look.next) || self.names.expects(new.look.next);
        if !expects && !self.names.guards_git {
            return Ok(None);
        }
        let mut left = MAX_MOVED_NAMES;
        let in_git = [&old_path[..], new_path].iter().all(|path| git::is_git_path(path));
        self.search(dir, (&old_path, old), (new_path, new), in_git, &mut left)
    }

    /// `in_git`: the directory is a `.git` directory or lies in one, which is moved as a whole.
    fn search(
        &mut self,
        dir: BorrowedFd<'_>,
        (old_path, old): (&[u8], DirState),
        (new_path, new): (&[u8], DirState),
        in_git: bool,
        left: &mut usize,
    ) -> Result<Option<Vec<u8>>, Errno> {
        // Each level is a call of this function.
        if old_path.iter().filter(|byte| **byte == b'/').count() > MAX_MOVED_LEVELS {
            return Err(Errno::NAMETOOLONG);
        }
        // Another repository means other files at its new path, and git finds it there.
        let git = &self.names.git;
        let stays = in_git && (git.is_git(new_path, false) || git.is_covered(new_path));
        if self.names.guards_git && !stays && git::parts_in(dir)?.make_a_repository() {
            return Ok(Some(new_path.to_vec()));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
        for entry in Dir::read_from(&listed)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            *left = left.checked_sub(1).ok_or(Errno::TOOBIG)?;
            let file_type = type_of(dir, name, entry.file_type())?;
            let (old_name, new_name) = (join(old_path, name), join(new_path, name));
            let age = NameAge::New;
            let was = self.decide_name(old_path, old, name.to_bytes(), file_type, age);
            let becomes = self.decide_name(new_path, new, name.to_bytes(), file_type, age);
            let stays = match self.by_role(was, &old_name, file_type) {
                WriteDecision::Denied => true,
                WriteDecision::ByContent(role) if was == WriteDecision::Protected => {
                    !self.exists_harmless(dir, name, &old_name, file_type)?
                        || self.refused_removal(role, dir, name, &old_name)?.is_some()
                }
                _ => was == WriteDecision::Protected,
            };
            if stays {
                return Ok(Some(old_name));
            }
            // An index can mean other files in another repository.
            let is_index = |path: &[u8]| self.names.git.role(path) == Some(Role::Index);
            if !in_git && (is_index(&old_name) || is_index(&new_name)) {
                return Ok(Some(new_name));
            }
            // A relative path in it means another directory at its new path.
            if self.names.git.role(&new_name) == Some(Role::GitFile)
                && file_type == FileType::RegularFile
                && !self.is_absolute_git_file(dir, name)?
            {
                return Ok(Some(new_name));
            }
            // A process may hold a file open that was not protected until now.
            let is_plain_dir = file_type == FileType::Directory
                && self.names.git.role(&new_name) == Some(Role::Hooks);
            let becomes = self.by_role(becomes, &new_name, file_type);
            if becomes != WriteDecision::Free
                && becomes != self.by_role(was, &old_name, file_type)
                && !is_plain_dir
            {
                return Ok(Some(new_name));
            }
            if self.takes_place(new_path, name.to_bytes(), file_type) {
                return Ok(Some(new_name));
            }
            if self.flags_names && file_type != FileType::Directory {
                self.note_moved(old, name.to_bytes(), &old_name, true);
                self.note_moved(new, name.to_bytes(), &new_name, false);
                let is_room = self.moved_links.len() <= MAX_CHANGED_NAMES;
                if is_room && file_type == FileType::Symlink && self.is_judged(&new_name) {
                    self.moved_links.push(new_name.clone());
                }
            }
            if file_type == FileType::Directory {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below: OwnedFd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                let old = self.enter(&old_name, old, name.to_bytes());
                let new = self.enter(&new_name, new, name.to_bytes());
                let in_git = in_git || git::is_git_path(name.to_bytes());
                let (old, new) = ((&old_name[..], old), (&new_name[..], new));
                let found = self.search(below.as_fd(), old, new, in_git, left)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Does a protected name exist with harmless content?
    pub fn exists_harmless(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        path: &[u8],
        file_type: FileType,
    ) -> Result<bool, Errno> {
        let Some(role) = self.names.git.role(path) else { return Ok(false) };
        match (role, file_type) {
            (Role::Hooks, FileType::Directory) => Ok(true),
            (Role::Hook, FileType::RegularFile) => Ok(name.to_bytes().ends_with(b".sample")),
            (Role::Hooks | Role::Hook, _) => Ok(false),
            (_, FileType::RegularFile) => {
                let content = read_file(dir, name, role.max_bytes())?;
                let dir = git::parent_of(path);
                Ok(content.is_some_and(|content| self.is_harmless(role, dir, &content)))
            }
            _ => Ok(false),
        }
    }

    /// The same for an object that is open, perhaps with O_PATH.
    pub fn is_object_harmless(
        &mut self,
        object: BorrowedFd<'_>,
        role: Role,
        path: &[u8],
        file_type: FileType,
    ) -> Result<bool, Errno> {
        match (role, file_type) {
            (Role::Hooks, FileType::Directory) => Ok(true),
            (Role::Hook, FileType::RegularFile) => Ok(path.ends_with(b".sample")),
            (Role::Hooks | Role::Hook, _) => Ok(false),
            (_, FileType::RegularFile) => {
                let mut buffer = [0; 32];
                let link = open_beneath::proc_fd_path(object, &mut buffer);
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let file = rustix::fs::open(link, flags, Mode::empty())?;
                let content = read_open(file.as_fd(), role.max_bytes())?;
                let dir = git::parent_of(path);
                Ok(content.is_some_and(|content| self.is_harmless(role, dir, &content)))
            }
            _ => Ok(false),
        }
    }
}

/// The ids of all mounts in this process's own tree.
fn own_mounts() -> Result<HashSet<u64>, Errno> {
    let text = std::fs::read("/proc/self/mountinfo").map_err(|_| Errno::STALE)?;
    let id = |line: &[u8]| {
        let first = line.split(|byte| *byte == b' ').next()?;
        std::str::from_utf8(first).ok()?.parse().ok()
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(id).collect())
}

/// The plain path of a directory, if no symlink is on the way.
fn without_links(start: BorrowedFd<'_>, path: &[u8]) -> Option<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(start, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    opened.and_then(|opened| path_of(opened.as_fd())).ok()
}

fn join(path: &[u8], name: &CStr) -> Vec<u8> {
    [path.strip_suffix(b"/").unwrap_or(path), b"/", name.to_bytes()].concat()
}

fn type_of(dir: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Result<FileType, Errno> {
    if listed != FileType::Unknown {
        return Ok(listed);
    }
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode))
}

/// Opens a plain name for reading. None: it is a symlink, or can not be read.
pub fn open_to_read(dir: BorrowedFd<'_>, name: &CStr) -> Result<Option<OwnedFd>, Errno> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS | Errno::LOOP) => Ok(None),
        file => file.map(Some),
    }
}

/// None: it is longer than `max_bytes`, or can not be read.
pub fn read_file(
    dir: BorrowedFd<'_>,
    name: &CStr,
    max_bytes: usize,
) -> Result<Option<Vec<u8>>, Errno> {
    match open_to_read(dir, name)? {
        Some(file) => read_open(file.as_fd(), max_bytes),
        None => Ok(None),
    }
}

/// None: it is longer than `max_bytes`.
pub fn read_open(file: BorrowedFd<'_>, max_bytes: usize) -> Result<Option<Vec<u8>>, Errno> {
    let mut content = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        match rustix::io::pread(file, &mut buffer, content.len() as u64) {
            Err(Errno::INTR) => {}
            read => match read? {
                0 => return Ok(Some(content)),
                count => content.extend_from_slice(&buffer[..count]),
            },
        }
        if content.len() > max_bytes {
            return Ok(None);
        }
    }
}
