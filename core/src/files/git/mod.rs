//! One model of what git reads, follows and executes, and which parts of it may appear while a
//! command runs.
//!
//! `files/git/git_table.rs` lists the parts of a git directory that count.
//! `files/git/recognise_git_dirs.rs` knows the git directories. `files/git/harmless_settings.rs` and
//! `files/git/trusted_paths.rs` read configurations. `git init`, `clone` and `worktree add` create
//! protected names, because git trusts them. With the content that these commands write they are
//! harmless and may be made. With any other content they are refused (`files/writes/judge.rs`).

mod git_apply_options;
mod git_table;
mod harmless_settings;
mod index;
mod kept_settings;
mod outer_files;
mod packed_refs;
mod recognise_git_dirs;
mod refs;
mod trusted_paths;

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::walk::{Dir, GitParts};
use crate::kernel::open_beneath;
use crate::plan::wire::bytes::{AbsPath, Text};

pub use index::ChangedEntry;
pub use kept_settings::{ConfigFile, first_added_to, first_redirected};
pub use outer_files::{OuterFiles, above_tree, of_git_file};
pub use recognise_git_dirs::{KnownGitDirs, is_git_name, parent as parent_of};
pub use trusted_paths::{TrustedPaths, UnreadableGitFile};

/// Git itself writes no longer configuration.
const MAX_NEW_CONFIG_BYTES: usize = 64 * 1024;
/// Bytes of an index. A million files need half of it.
const MAX_INDEX_BYTES: usize = 256 * 1024 * 1024;

/// What a protected name means to git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Config,
    /// A directory of samples.
    Hooks,
    Hook,
    /// In the entry of a linked work tree.
    CommonDir,
    GitDir,
    /// `.git`, where it is a file.
    GitFile,
    /// The index.
    Index,
    /// The part of a split index that several indexes share. Its name is its checksum, so its
    /// content stays as it is.
    SharedIndex,
    /// A count that git's prompt script hands to the shell.
    Number,
    /// The options that an unfinished `git am` hands to `git apply`.
    ApplyOptions,
    PackedRefs,
    /// HEAD of a repository, a linked work tree or a remote. It may name another ref.
    Head,
    /// Another loose ref, or another ref of the git directory itself: ORIG_HEAD.
    Ref,
    /// The refs that an unfinished rebase writes or removes at its end.
    RefList,
}

impl Role {
    pub fn max_bytes(self) -> usize {
        match self {
            Role::Index | Role::SharedIndex | Role::PackedRefs => MAX_INDEX_BYTES,
            _ => MAX_NEW_CONFIG_BYTES,
        }
    }

    /// Does the content of a file decide whether it may have its name?
    pub fn has_content(self) -> bool {
        !matches!(self, Role::Hooks | Role::Hook)
    }

    pub fn is_ref(self) -> bool {
        matches!(self, Role::Head | Role::Ref)
    }

    /// Is its content judged, although no pattern protects its name?
    pub fn is_checked(self) -> bool {
        matches!(
            self,
            Role::Index
                | Role::SharedIndex
                | Role::Number
                | Role::ApplyOptions
                | Role::PackedRefs
                | Role::Head
                | Role::Ref
                | Role::RefList
        )
    }
}

/// May a path be a name that git leaves behind and trusts, or a ref? A quick check.
pub fn may_be_checked(path: &[u8]) -> bool {
    let name = recognise_git_dirs::last(path);
    git_table::CHECKED
        .iter()
        .any(|part| recognise_git_dirs::is_named(name, recognise_git_dirs::last(part.to_bytes())))
        || recognise_git_dirs::may_be_ref(path)
}

/// Is the last component of a path the name of a git directory?
pub fn is_git_path(path: &[u8]) -> bool {
    is_git_name(recognise_git_dirs::last(path), false)
}

/// Is it a file directly in a `.git` directory that git and its tools do not write? A person has put
/// it there, and a command in a configuration can name it: `$(git rev-parse --git-dir)/clean.sh`.
pub fn is_foreign_file(path: &[u8]) -> bool {
    is_git_path(recognise_git_dirs::parent(path))
        && !git_table::is_written(recognise_git_dirs::last(path))
}

/// Is it the first component of a part of a git directory?
pub fn is_part(name: &[u8]) -> bool {
    git_table::has_part(name)
}

/// The meaning of the `.git` file of a linked work tree.
pub struct LinkedWorkTree {
    /// The text in the file.
    pub target: Vec<u8>,
    /// The entry that it leads to.
    pub entry: Vec<u8>,
    /// The paths that git then trusts.
    pub trusted: Vec<Vec<u8>>,
}

/// The meaning of a `.git` file in `top`. None: the file is not of this form.
pub fn linked_work_tree(top: &[u8], content: &[u8]) -> Option<LinkedWorkTree> {
    let target = line(content)?.strip_prefix(b"gitdir: ")?;
    let entry = trusted_paths::resolved(top, target);
    let repository = recognise_git_dirs::parent(recognise_git_dirs::parent(&entry));
    let trusted = trusted_paths::by_all(repository, &entry, top).ok()?.paths;
    Some(LinkedWorkTree { target: target.to_vec(), entry, trusted })
}

/// The read-only parts of every git directory, as patterns without a beginning.
pub fn protected() -> impl Iterator<Item = Text> {
    git_table::protected().filter_map(|name| Text::from_bytes(name.into_bytes()).ok())
}

/// Names that make a directory a git directory.
pub const GIT_DIR_NAMES: [&CStr; 4] = [c"HEAD", c"objects", c"refs", c"commondir"];

/// Which of these names a directory has. Every error but ENOENT is returned.
pub fn parts_in(dir: BorrowedFd<'_>) -> Result<GitParts, Errno> {
    let mut parts = GitParts::default();
    for name in GIT_DIR_NAMES {
        match rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => parts.see(name.to_bytes(), false),
            Err(Errno::NOENT) if name == GIT_DIR_NAMES[0] => break,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(parts)
}

/// The directories above a path that are git's by their parts.
pub fn directories_above(path: &AbsPath) -> Result<Vec<Vec<u8>>, UnreadableGitFile> {
    let mut found = Vec::new();
    let mut above = recognise_git_dirs::parent(path.as_bytes());
    while !above.is_empty() {
        let failed = |source| UnreadableGitFile { path: above.to_vec(), source };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(above, flags, Mode::empty()).map_err(failed)?;
        if parts_in(dir.as_fd()).map_err(failed)?.make_a_repository() {
            found.push(above.to_vec());
        }
        above = recognise_git_dirs::parent(above);
    }
    Ok(found)
}

/// The absolute path of a directory.
pub fn whole_path(dir: &Dir<'_>) -> Vec<u8> {
    let root = dir.tree.path.as_bytes();
    match dir.path {
        [] => root.to_vec(),
        path => [root.strip_suffix(b"/").unwrap_or(root), b"/", path].concat(),
    }
}

/// Is this content harmless at a name with this role, before the name exists? A file that leads to
/// another repository never is: its content depends on other files. `is_harmless_remote`: may a
/// repository at this path be a remote?
pub fn is_harmless_content(
    role: Role,
    dir: &[u8],
    content: &[u8],
    is_harmless_remote: &mut dyn FnMut(&[u8]) -> bool,
) -> bool {
    match role {
        Role::Config => harmless_settings::is_harmless_with(content, is_harmless_remote),
        Role::CommonDir => line(content) == Some(b"../.."),
        Role::GitDir => line(content).is_some_and(|path| path.ends_with(b"/.git")),
        Role::Hooks | Role::Hook | Role::GitFile => false,
        role => state_is_harmless(role, dir, content),
    }
}

/// Has a changed configuration the same settings as before, apart from harmless ones?
pub fn keeps_other_settings(
    before: &[u8],
    after: &[u8],
    is_harmless_remote: &mut dyn FnMut(&[u8]) -> bool,
) -> bool {
    let later = harmless_settings::other_settings(after, is_harmless_remote);
    later.is_ok() && later == harmless_settings::other_settings(before, is_harmless_remote)
}

/// Does a repository have this branch? If that is not known, it has.
pub fn has_branch(git_dir: &[u8], branch: &[u8]) -> bool {
    let is_missing = |path: &[u8]| {
        let found = rustix::fs::lstat([git_dir, b"/", path].concat());
        matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    };
    let name = [b"refs/heads/", branch].concat();
    if !is_missing(b"reftable") || !is_missing(&name) {
        return true;
    }
    let mut packed = Vec::new();
    match trusted_paths::read_file(&[git_dir, b"/packed-refs"].concat(), &mut packed) {
        Ok(()) => packed
            .split(|byte| *byte == b'\n')
            .any(|line| line.strip_suffix(&name[..]).is_some_and(|hash| hash.ends_with(b" "))),
        Err(Errno::NOENT) => false,
        Err(_) => true,
    }
}

/// The content that a name with this role gets in the place of `content`, which is harmless.
pub fn placed_content(role: Role, dir: &[u8], content: Vec<u8>) -> Vec<u8> {
    match (role, hash_bytes(dir)) {
        (Role::Index, Some(hash)) => index::without_caches(&content, hash).unwrap_or(content),
        _ => content,
    }
}

/// The judgement of a checked part. `dir` is its directory.
fn state_is_harmless(role: Role, dir: &[u8], content: &[u8]) -> bool {
    match role {
        Role::Index | Role::SharedIndex => {
            let is_harmless = |bytes| index::is_harmless(content, bytes);
            content.is_empty() || hash_bytes(dir).is_some_and(is_harmless)
        }
        Role::Number => line(content).is_some_and(|digits| digits.iter().all(u8::is_ascii_digit)),
        Role::ApplyOptions => git_apply_options::are_harmless(content),
        Role::PackedRefs => packed_refs::is_harmless(content),
        Role::Head => refs::is_harmless_head(content),
        Role::Ref => refs::is_harmless(content),
        Role::RefList => refs::is_harmless_list(content),
        _ => false,
    }
}

/// The bytes of an object's hash in a repository: 32 for SHA-256, else 20. None: its configuration
/// can not be read.
fn hash_bytes(git_dir: &[u8]) -> Option<usize> {
    let common = match trusted_paths::first_line([git_dir, b"/commondir"].concat()) {
        Ok(Some(common)) => trusted_paths::resolved(git_dir, &common),
        Ok(None) => git_dir.to_vec(),
        Err(_) => return None,
    };
    let mut config = Vec::new();
    match trusted_paths::read_file(&[&common[..], b"/config"].concat(), &mut config) {
        Ok(()) => configured_hash_bytes(&config),
        Err(Errno::NOENT | Errno::NOTDIR) => Some(20),
        Err(_) => None,
    }
}

/// The length of hashes in a repository with this configuration. None: versions of git read it
/// differently. Git obeys the extension in version 1 alone.
fn configured_hash_bytes(config: &[u8]) -> Option<usize> {
    let (mut versions, mut formats) = (Vec::new(), Vec::new());
    let parsed = harmless_settings::each(config, &mut |section, key, value| {
        let value = value.map(<[u8]>::to_vec);
        match (&section.name[..], &section.subsection, key) {
            (b"core", None, b"repositoryformatversion") => versions.push(value),
            (b"extensions", None, b"objectformat") => formats.push(value),
            _ => {}
        }
    });
    parsed.ok()?;
    let all_are = |values: &[Option<Vec<u8>>], expected: &[u8]| {
        values.iter().all(|value| value.as_deref() == Some(expected))
    };
    match () {
        () if all_are(&formats, b"sha1") => Some(20),
        () if all_are(&formats, b"sha256") && !versions.is_empty() && all_are(&versions, b"1") => {
            Some(32)
        }
        () => None,
    }
}

/// Would a new configuration change the meaning of an index that was judged? An index has other
/// paths with another length of hashes. `current`: the text of the configuration, if it is known.
pub fn changes_hashes(git_dir: &[u8], config: &[u8], current: Option<&[u8]>) -> bool {
    let exists = |name: &[u8]| {
        let path = [git_dir, b"/", name].concat();
        !matches!(rustix::fs::lstat(path), Err(Errno::NOENT))
    };
    let now = || current.map_or_else(|| hash_bytes(git_dir), configured_hash_bytes);
    let later = configured_hash_bytes(config);
    later.is_none() || ((exists(b"index") || exists(b"worktrees")) && later != now())
}

/// Would git begin to read a `config.worktree` that is there already? It was not judged, because git
/// did not read it.
pub fn wakes_work_tree_config(git_dir: &[u8], before: &[u8], after: &[u8]) -> bool {
    if !reads_work_tree_config(after) || reads_work_tree_config(before) {
        return false;
    }
    let exists = |dir: &[u8]| {
        let path = [dir, b"/config.worktree"].concat();
        !matches!(rustix::fs::lstat(path), Err(Errno::NOENT))
    };
    exists(git_dir)
        || trusted_paths::entries_of(git_dir)
            .map_or(true, |entries| entries.iter().any(|entry| exists(entry)))
}

fn reads_work_tree_config(config: &[u8]) -> bool {
    let mut reads = false;
    let _ = harmless_settings::each(config, &mut |section, key, value| {
        let is_plain = section.name == b"extensions" && section.subsection.is_none();
        if is_plain && key == b"worktreeconfig" {
            reads = value != Some(b"false");
        }
    });
    reads
}

/// The same for the file `commondir` of a linked work tree's entry. `None`: it is removed.
pub fn changes_hashes_by_common_dir(entry: &[u8], content: Option<&[u8]>) -> bool {
    let common = match content.and_then(line) {
        Some(common) if !common.is_empty() => trusted_paths::resolved(entry, common),
        _ => entry.to_vec(),
    };
    let mut config = Vec::new();
    let later = match trusted_paths::read_file(&[&common[..], b"/config"].concat(), &mut config) {
        Ok(()) => configured_hash_bytes(&config),
        Err(Errno::NOENT | Errno::NOTDIR) => Some(20),
        Err(_) => None,
    };
    let index = [entry, b"/index"].concat();
    let has_index = !matches!(rustix::fs::lstat(index), Err(Errno::NOENT));
    has_index && (later.is_none() || later != hash_bytes(entry))
}

/// Does a repository above this directory have files in it? A new repository here would take its
/// place. A repository that can not be read counts as yes, because the command can take the right
/// away for a moment. Only Landlock's own refusal counts as no: then the repository lies outside of
/// the grants, and [`OuterFiles`] has its directories. If the index is away for a moment,
/// [`takes_files_of_repository`] does not let it back.
pub fn holds_tracked_files(dir: &[u8]) -> bool {
    let mut top = recognise_git_dirs::parent(dir);
    while !top.is_empty() {
        let git_file = [top, b"/.git"].concat();
        let git_dir = match rustix::fs::lstat(&git_file[..]) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => git_file,
            Ok(_) => match trusted_paths::first_line(git_file) {
                Ok(Some(line)) => match line.strip_prefix(b"gitdir: ") {
                    Some(target) => trusted_paths::resolved(top, target),
                    None => return false,
                },
                Ok(None) => return false,
                Err(_) => return true,
            },
            Err(Errno::NOENT | Errno::NOTDIR) => {
                top = recognise_git_dirs::parent(top);
                continue;
            }
            Err(_) => return true,
        };
        let index = [&git_dir[..], b"/index"].concat();
        return match read_index(&git_dir) {
            Err(Errno::NOENT | Errno::NOTDIR) => false,
            // Landlock does not judge lstat(2).
            Err(Errno::ACCESS) => !rustix::fs::lstat(index)
                .is_ok_and(|stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::RUSR)),
            Err(_) => true,
            Ok(content) => hash_bytes(&git_dir)
                .and_then(|hash| index::has_path_below(&content, hash, &dir[top.len() + 1..]))
                .unwrap_or(true),
        };
    }
    false
}

/// Would this index get files that another repository has now? Git outside would find the inner
/// repository there. Those that the present index has already may stay.
pub fn takes_files_of_repository(git_dir: &[u8], index: &[u8]) -> bool {
    let Some(top) = work_tree_of(git_dir) else { return false };
    let Some(hash) = hash_bytes(git_dir) else { return true };
    let has_repository = |dir: &[u8]| {
        let inner = [&top[..], b"/", dir, b"/.git"].concat();
        // The top has the repository itself.
        !dir.is_empty() && !matches!(rustix::fs::lstat(inner), Err(Errno::NOENT | Errno::NOTDIR))
    };
    let Some(dirs) = index::directories(index, hash) else { return true };
    let inner: Vec<_> = dirs.into_iter().filter(|dir| has_repository(dir)).collect();
    if inner.is_empty() {
        return false;
    }
    let Ok(current) = read_index(git_dir) else { return true };
    let has_now = |dir: &Vec<u8>| index::has_path_below(&current, hash, dir) == Some(true);
    !inner.iter().all(has_now)
}

fn read_index(git_dir: &[u8]) -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open([git_dir, b"/index"].concat(), flags, Mode::empty())?;
    let mut content = Vec::new();
    read_open(file.as_fd(), MAX_INDEX_BYTES, &mut content).map(|()| content)
}

/// The entries of an index that differ from those of the present one.
pub struct IndexChange {
    pub work_tree: Vec<u8>,
    pub entries: Vec<ChangedEntry>,
    /// The bytes of an object's hash.
    hash: usize,
}

impl IndexChange {
    /// Is it the entry that git makes of a file with this content?
    pub fn has_content(&self, entry: &ChangedEntry, content: &[u8]) -> bool {
        entry.id == index::blob_id(content, self.hash)
    }
}

/// None: the index can not be read.
pub fn index_change(git_dir: &[u8], index: &[u8]) -> Option<IndexChange> {
    let hash = hash_bytes(git_dir)?;
    // Without it each entry counts.
    let current = read_index(git_dir).unwrap_or_default();
    let entries = index::changed_entries(&current, index, hash)?;
    // Patterns match in every work tree, so a repository without one counts as its own.
    let work_tree = work_tree_of(git_dir).unwrap_or_else(|| git_dir.to_vec());
    Some(IndexChange { work_tree, entries, hash })
}

/// The work tree of a repository, or of a linked work tree's entry.
fn work_tree_of(git_dir: &[u8]) -> Option<Vec<u8>> {
    if let Some(line) = trusted_paths::first_line([git_dir, b"/gitdir"].concat()).ok()? {
        return Some(recognise_git_dirs::parent(&trusted_paths::resolved(git_dir, &line)).to_vec());
    }
    let mut configured = None;
    for name in [&b"/config"[..], b"/config.worktree"] {
        let mut config = Vec::new();
        if trusted_paths::read_file(&[git_dir, name].concat(), &mut config).is_err() {
            continue;
        }
        let _ = harmless_settings::each(&config, &mut |section, key, value| {
            if section.name == b"core" && section.subsection.is_none() && key == b"worktree" {
                configured = value.map(<[u8]>::to_vec);
            }
        });
    }
    match configured {
        Some(top) => Some(trusted_paths::resolved(git_dir, &top)),
        None if is_git_path(git_dir) => Some(recognise_git_dirs::parent(git_dir).to_vec()),
        None => None,
    }
}

/// The answer of `paddock-core git-state`.
pub enum AppliedState {
    Harmful,
    /// The file gets this content.
    Harmless(Vec<u8>),
}

/// May a file with this path in a git directory be applied from a copy? `place`: its path on the
/// host.
pub fn applied_state(path: &[u8], place: &[u8], content: Vec<u8>) -> AppliedState {
    let known = KnownGitDirs::default();
    let path = [b"/.git/", path].concat();
    let dir = recognise_git_dirs::parent(place);
    let role = known.role(&path).filter(|role| role.is_checked());
    // `path` begins with `/.git/`.
    let git_dir = place.len().checked_sub(path.len() - b"/.git".len()).map(|end| &place[..end]);
    let takes_place = |git_dir: &[u8]| {
        is_git_path(git_dir) && holds_tracked_files(recognise_git_dirs::parent(git_dir))
    };
    match role {
        _ if git_dir.is_some_and(takes_place) => AppliedState::Harmful,
        _ if known.is_foreign_part(&path) => AppliedState::Harmful,
        Some(role) if !state_is_harmless(role, dir, &content) => AppliedState::Harmful,
        Some(role) => AppliedState::Harmless(placed_content(role, dir, content)),
        None => AppliedState::Harmless(content),
    }
}

/// The only line of a file.
fn line(content: &[u8]) -> Option<&[u8]> {
    let line = content.strip_suffix(b"\n").unwrap_or(content);
    (!line.iter().any(u8::is_ascii_control)).then_some(line)
}

/// The paths that a `.git` file makes git trust in its work tree, whatever the repository's own
/// record of the work tree is.
pub fn trusted_paths_of_git_file(
    dir: &Dir<'_>,
    name: &CStr,
) -> Result<TrustedPaths, UnreadableGitFile> {
    let top = whole_path(dir);
    let Some(line) = trusted_paths::first_line([&top[..], b"/", name.to_bytes()].concat())? else {
        return Ok(TrustedPaths::default());
    };
    let Some(target) = line.strip_prefix(b"gitdir: ") else { return Ok(TrustedPaths::default()) };
    let git_dir = trusted_paths::resolved(&top, target);
    let common = trusted_paths::first_line([&git_dir[..], b"/commondir"].concat())?;
    let common =
        common.map_or_else(|| git_dir.clone(), |common| trusted_paths::resolved(&git_dir, &common));
    let mut trusted = trusted_paths::by_all(&common, &git_dir, &top)?;
    trusted.named.push(git_dir);
    Ok(trusted)
}

/// The paths that the configuration at a name makes git trust.
pub fn trusted_paths_of_config(
    dir: &Dir<'_>,
    name: &CStr,
) -> Result<TrustedPaths, UnreadableGitFile> {
    let file = [&whole_path(dir)[..], b"/", name.to_bytes()].concat();
    let mut content = Vec::new();
    let object = open_beneath::open_path_only(dir.fd, name.to_bytes()).and_then(|object| {
        let link =
            FileType::from_raw_mode(rustix::fs::fstat(&object)?.st_mode) == FileType::Symlink;
        Ok((object, link))
    });
    let read = object.and_then(|(object, link)| match link {
        // Git follows the symlink.
        true => trusted_paths::read_file(&file, &mut content),
        false => read(object.as_fd(), trusted_paths::MAX_CONFIG_BYTES, &mut content),
    });
    match read {
        Ok(()) => trusted_paths::by(&file, &content, None),
        Err(Errno::NOENT) => Ok(TrustedPaths::default()),
        Err(source) => Err(UnreadableGitFile { path: file, source }),
    }
}

/// Reads a plain file that is open with O_PATH.
fn read(object: BorrowedFd<'_>, longest: usize, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    let mut link = [0; 32];
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(open_beneath::proc_fd_path(object, &mut link), flags, Mode::empty())?;
    read_open(file.as_fd(), longest, buffer)
}

fn read_open(file: BorrowedFd<'_>, longest: usize, buffer: &mut Vec<u8>) -> Result<(), Errno> {
    buffer.clear();
    loop {
        let length = buffer.len();
        if length > longest {
            return Err(Errno::FBIG);
        }
        if length == buffer.capacity() {
            buffer.try_reserve(MAX_NEW_CONFIG_BYTES + 1).map_err(|_| Errno::NOMEM)?;
        }
        if rustix::io::pread(file, spare_capacity(buffer), length as u64)? == 0 {
            return Ok(());
        }
    }
}
