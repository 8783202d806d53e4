//! One model of what git reads, follows and executes, and which parts of it may appear while a
//! command runs.
//!
//! `files/git/git_table.rs` lists the parts of a git directory that count.
//! `files/git/recognise_git_dirs.rs` knows the git directories. `files/git/config.rs` and
//! `files/git/trusted_paths.rs` read configurations. `git init`, `clone` and `worktree add` create
//! protected names, because git trusts them. With the content that these commands write they are
//! harmless and stay. With any other content they do not. The guard judges content again whenever
//! it is written.

mod config;
mod git_apply_options;
mod git_table;
mod index;
mod packed_refs;
mod recognise_git_dirs;
mod trusted_paths;

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::patterns::NamePatterns;
use super::tree_roots::TreeRoots;
use super::walk::{Dir, GitParts};
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::{Identity, Object};
use crate::plan::wire::bytes::{AbsPath, Text};

pub use packed_refs::without_replacements;
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
    /// A count that git's prompt script hands to the shell.
    Number,
    /// The options that an unfinished `git am` hands to `git apply`.
    ApplyOptions,
    PackedRefs,
}

impl Role {
    pub fn max_bytes(self) -> usize {
        match self {
            Role::Index | Role::PackedRefs => MAX_INDEX_BYTES,
            _ => MAX_NEW_CONFIG_BYTES,
        }
    }

    /// Is it judged when no process runs any more?
    pub fn is_checked(self) -> bool {
        matches!(self, Role::Index | Role::Number | Role::ApplyOptions | Role::PackedRefs)
    }
}

/// Names that git leaves behind and trusts. Their content is judged when no process runs any more.
pub fn checked() -> impl Iterator<Item = &'static CStr> {
    git_table::CHECKED.iter().copied()
}

/// Is it the last component of such a name?
pub fn is_checked_name(name: &[u8]) -> bool {
    checked().any(|checked| checked.to_bytes().rsplit(|byte| *byte == b'/').next() == Some(name))
}

/// Is the last component of a path the name of a git directory?
pub fn is_git_path(path: &[u8]) -> bool {
    is_git_name(recognise_git_dirs::last(path), false)
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

/// May this directory have such names?
pub fn has_checked_parts(names: &NamePatterns, dir: &Dir<'_>, parts: GitParts) -> bool {
    let named = parts.head || matches!(dir.own_name(), b"rebase-merge" | b"rebase-apply");
    named && dir.tree.writable && dir.is_in_git(names)
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

/// Is it a git directory itself, whose parts are judged one by one, or the entry of a linked work
/// tree, which has no objects?
pub fn is_git_own(known: &KnownGitDirs, dir: &Dir<'_>, parts: GitParts) -> bool {
    let path = whole_path(dir);
    known.is_git(&path, dir.folding) || (known.is_entry(&path) && !parts.objects)
}

/// The absolute path of a directory.
pub fn whole_path(dir: &Dir<'_>) -> Vec<u8> {
    let root = dir.tree.path.as_bytes();
    match dir.path {
        [] => root.to_vec(),
        path => [root.strip_suffix(b"/").unwrap_or(root), b"/", path].concat(),
    }
}

/// The judgement of a name's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Harmless,
    /// The harmful object.
    Harmful(Identity),
    /// The object is gone. Git renames and removes its lock files meanwhile. A new object at the
    /// name makes an event.
    Gone,
    /// It can not be read.
    Unknown(Errno),
}

/// The inputs of a judgement.
pub struct GitView<'a> {
    pub roots: &'a TreeRoots,
    /// Directories that are closed as a whole.
    pub shut: &'a [Object],
    /// No process runs any more: git has written all its files.
    pub finishing: bool,
}

/// Judges the object that has the name now. Only a plain file with one hard link is ever harmless:
/// another name could be written unseen.
pub fn judge(
    role: Role,
    git_view: &GitView<'_>,
    names: &mut NamePatterns,
    dir: &Dir<'_>,
    name: &CStr,
    buffer: &mut Vec<u8>,
) -> Judgement {
    let opened = open_beneath::open_path_only(dir.fd, name.to_bytes())
        .and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd)));
    let (stat, object) = match opened {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Judgement::Gone,
        Err(error) => return Judgement::Unknown(error),
    };
    let harmless = match (role, FileType::from_raw_mode(stat.st_mode)) {
        (Role::Hooks, file_type) => file_type == FileType::Directory,
        (Role::Hook, FileType::RegularFile) => {
            name.to_bytes().ends_with(b".sample") && stat.st_nlink == 1
        }
        (_, FileType::RegularFile) => match read(object.as_fd(), role.max_bytes(), buffer) {
            Ok(0) => return Judgement::Gone,
            // When no process runs any more, no other name can be written.
            Ok(links) if links == 1 || role.is_checked() => {
                content_is_harmless(role, git_view, names, dir, buffer)
            }
            Ok(_) | Err(_) => false,
        },
        _ => false,
    };
    if harmless { Judgement::Harmless } else { Judgement::Harmful(Identity::from(&stat)) }
}

fn content_is_harmless(
    role: Role,
    git_view: &GitView<'_>,
    names: &mut NamePatterns,
    dir: &Dir<'_>,
    content: &[u8],
) -> bool {
    match role {
        // The file is still empty.
        _ if content.is_empty() => true,
        Role::Config => config::is_harmless(content),
        Role::CommonDir => line(content) == Some(b"../.."),
        Role::GitDir => line(content).is_some_and(|path| path.ends_with(b"/.git")),
        Role::GitFile => leads_to_worktree(git_view, names, dir, content),
        Role::Index | Role::Number | Role::ApplyOptions | Role::PackedRefs => {
            state_is_harmless(role, &whole_path(dir), content)
        }
        Role::Hooks | Role::Hook => false,
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
        Role::Config => config::is_harmless_with(content, is_harmless_remote),
        Role::CommonDir => line(content) == Some(b"../.."),
        Role::GitDir => line(content).is_some_and(|path| path.ends_with(b"/.git")),
        Role::Hooks | Role::Hook | Role::GitFile => false,
        Role::Index | Role::Number | Role::ApplyOptions | Role::PackedRefs => {
            state_is_harmless(role, dir, content)
        }
    }
}

/// The judgement of a checked part. `dir` is its directory.
fn state_is_harmless(role: Role, dir: &[u8], content: &[u8]) -> bool {
    match role {
        Role::Index => {
            let is_harmless = |bytes| index::is_harmless(content, bytes);
            content.is_empty() || hash_bytes(dir).is_some_and(is_harmless)
        }
        Role::Number => line(content).is_some_and(|digits| digits.iter().all(u8::is_ascii_digit)),
        Role::ApplyOptions => git_apply_options::are_harmless(content),
        Role::PackedRefs => packed_refs::is_harmless(content),
        _ => true,
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
        Ok(()) => Some(configured_hash_bytes(&config)),
        Err(Errno::NOENT | Errno::NOTDIR) => Some(20),
        Err(_) => None,
    }
}

fn configured_hash_bytes(config: &[u8]) -> usize {
    let mut bytes = 20;
    let _ = config::each(config, &mut |section, key, value| {
        let is_plain = section.name == b"extensions" && section.subsection.is_none();
        if is_plain && key == b"objectformat" {
            bytes = if value == Some(b"sha256") { 32 } else { 20 };
        }
    });
    bytes
}

/// Would a new configuration change the meaning of an index that was judged? An index has other
/// paths with another length of hashes.
pub fn changes_hashes(git_dir: &[u8], config: &[u8]) -> bool {
    let exists = |name: &[u8]| {
        let path = [git_dir, b"/", name].concat();
        !matches!(rustix::fs::lstat(path), Err(Errno::NOENT))
    };
    Some(configured_hash_bytes(config)) != hash_bytes(git_dir)
        && (exists(b"index") || exists(b"worktrees"))
}

/// The answer of `paddock-core git-state`: may a file with this path in a git directory be applied
/// from a copy? `place`: its path on the host.
pub fn may_be_applied(path: &[u8], place: &[u8], content: &[u8]) -> bool {
    let role = KnownGitDirs::default().role(&[b"/.git/", path].concat());
    let dir = recognise_git_dirs::parent(place);
    role.is_none_or(|role| state_is_harmless(role, dir, content))
}

/// The only line of a file.
fn line(content: &[u8]) -> Option<&[u8]> {
    let line = content.strip_suffix(b"\n").unwrap_or(content);
    (!line.iter().any(u8::is_ascii_control)).then_some(line)
}

/// `gitdir: …/worktrees/NAME` in a git directory, if that is a directory in the trees without a
/// link on the way: its parts are judged as well. A submodule's file leads elsewhere, and only the
/// user may make it.
fn leads_to_worktree(
    git_view: &GitView<'_>,
    names: &mut NamePatterns,
    dir: &Dir<'_>,
    content: &[u8],
) -> bool {
    let Some(target) = line(content).and_then(|line| line.strip_prefix(b"gitdir: ")) else {
        return false;
    };
    let path = trusted_paths::resolved(&whole_path(dir), target);
    if !names.git.is_place_of_entry(&path) {
        return false;
    }
    let Some(path) = whole(path).filter(|path| is_searched(git_view, names, path)) else {
        return false;
    };
    // The next run finds the work tree by this entry. `git worktree move` writes it last.
    let top = whole_path(dir);
    let agrees =
        || matches!(trusted_paths::linked_by(path.as_bytes()), Ok(Some(linked)) if linked == top);
    if git_view.finishing && !agrees() {
        return false;
    }
    if !means_nothing_new(git_view.roots, names, path.as_bytes(), &top) {
        return false;
    }
    // The kernel resolves ".." after links. Without links on the way the path means what its text
    // says.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let met = rustix::fs::openat2(dir.fd, target, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let identity = |fd| rustix::fs::fstat(fd).map(|stat| Identity::from(&stat));
    match (met.and_then(identity), git_view.roots.look(&path).and_then(identity)) {
        (Ok(met), Ok(spelled)) => met == spelled,
        _ => false,
    }
}

fn whole(path: Vec<u8>) -> Option<AbsPath> {
    Text::from_bytes(path).and_then(AbsPath::new).ok()
}

/// Is every path that git trusts in a work tree at `top` protected there, or out of the command's
/// reach? Relative values of the configuration mean other files there than in the known work trees.
fn means_nothing_new(
    roots: &TreeRoots,
    names: &mut NamePatterns,
    entry: &[u8],
    top: &[u8],
) -> bool {
    let repository = recognise_git_dirs::parent(recognise_git_dirs::parent(entry));
    let Ok(trusted) = trusted_paths::by_all(repository, entry, top) else { return false };
    trusted.paths.into_iter().all(|path| {
        let Some(path) = whole(path) else { return false };
        match roots.place_of(&path) {
            Some((tree, below)) if tree.writable => names.protects(tree.path.as_bytes(), below),
            _ => true,
        }
    })
}

/// Do walks reach the entry of a work tree, and protect the files that git reads there? They skip
/// denied directories, directories that can not be listed, and left-out paths.
fn is_searched(git_view: &GitView<'_>, names: &mut NamePatterns, entry: &AbsPath) -> bool {
    let GitView { roots, shut, .. } = *git_view;
    let Some((tree, below)) = roots.place_of(entry) else { return false };
    let root = tree.path.as_bytes();
    let commondir = [below, b"/commondir"].concat();
    if !tree.writable || !tree.watched || tree.leaves_out(below) || names.may_deny(root, below) {
        return false;
    }
    let ends = below
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'/')
        .map(|(at, _)| at)
        .chain([below.len()]);
    let is_open = |end: usize| {
        let stat = tree.open(&below[..end], OFlags::PATH).and_then(rustix::fs::fstat);
        stat.is_ok_and(|stat| !shut.iter().any(|shut| shut.identity == Identity::from(&stat)))
    };
    names.protects(root, &commondir) && (shut.is_empty() || ends.into_iter().all(is_open))
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
    trusted_paths::by_all(&common, &git_dir, &top)
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
        false => read(object.as_fd(), trusted_paths::MAX_CONFIG_BYTES, &mut content).map(drop),
    });
    match read {
        Ok(()) => trusted_paths::by(&file, &content, None),
        Err(Errno::NOENT) => Ok(TrustedPaths::default()),
        Err(source) => Err(UnreadableGitFile { path: file, source }),
    }
}

/// Reads a plain file that is open with O_PATH, and returns its number of hard links afterwards.
fn read(object: BorrowedFd<'_>, longest: usize, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
    let mut link = [0; 32];
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(open_beneath::proc_fd_path(object, &mut link), flags, Mode::empty())?;
    read_open(file.as_fd(), longest, buffer)
}

fn read_open(file: BorrowedFd<'_>, longest: usize, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
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
            break;
        }
    }
    Ok(rustix::fs::fstat(file)?.st_nlink as u64)
}
