//! Which directories are git directories, and the location of a path in one.
//!
//! A directory is git's by its name, `.git`, or by its parts. In the second case it is known by its
//! path, from the first scan of a run on. Such a directory is pinned with all directories above it,
//! so the command can not move it. If the host moves it, the judge of writes finds it at its new
//! path by its parts.

use crate::files::patterns::case_fold;

use super::{OuterFiles, Role, git_table};

/// So many entries of linked work trees are remembered. Further `.git` files are refused.
const MAX_NAMED_PATHS: usize = 4096;

/// Directories that are git's by their parts, by absolute path.
#[derive(Debug, Default)]
pub struct KnownGitDirs {
    dirs: Vec<Vec<u8>>,
    /// Entries that a `.git` file of a linked work tree names.
    named_paths: Vec<Vec<u8>>,
    /// Directories in which a repository outside of the trees has files.
    pub outer: OuterFiles,
}

/// The kind of git directory that contains a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GitDirKind {
    Repository,
    /// The entry of a linked work tree.
    Entry,
    Submodule,
}

/// A path in a git directory.
struct GitLocation<'p> {
    of: GitDirKind,
    names: Vec<&'p [u8]>,
}

pub fn is_git_name(name: &[u8], folding: bool) -> bool {
    if !folding {
        return name == b".git";
    }
    let mut folded = Vec::new();
    case_fold::fold(name, &mut folded);
    folded == b".git"
}

impl KnownGitDirs {
    /// False: it was already known.
    pub fn add(&mut self, path: &[u8]) -> bool {
        let new = !self.dirs.iter().any(|dir| dir == path);
        if new {
            self.dirs.push(path.to_vec());
        }
        new
    }

    /// Those that are git's by their parts.
    pub fn directories(&self) -> &[Vec<u8>] {
        &self.dirs
    }

    /// Remembers a path that git's own files name: the entry in a `.git` file, or a remote. False:
    /// there are too many.
    pub fn add_named_path(&mut self, path: &[u8]) -> bool {
        let is_known = self.named_paths.iter().any(|known| known == path);
        if !is_known && self.named_paths.len() < MAX_NAMED_PATHS {
            self.named_paths.push(path.to_vec());
            return true;
        }
        is_known
    }

    pub fn named_paths(&self) -> &[Vec<u8>] {
        &self.named_paths
    }

    /// Does the way to such a path lead through this one? A symlink here would lead git to another
    /// repository. Case does not count: the file system may ignore it.
    pub fn leads_to_named_path(&self, path: &[u8]) -> bool {
        self.named_paths.iter().any(|entry| {
            let (above, rest) = entry.split_at(path.len().min(entry.len()));
            above.eq_ignore_ascii_case(path) && matches!(rest, [] | [b'/', ..])
        })
    }

    /// Is this a git directory, by its name or by its parts?
    pub fn is_git(&self, path: &[u8], folding: bool) -> bool {
        is_git_name(last(path), folding) || self.dirs.iter().any(|dir| dir == path)
    }

    /// The innermost git directory that a path is or lies in, by the length of its path. Exceptions
    /// depend on the answer, so only the exact letters `.git` count here. Patterns ignore case
    /// where the file system does.
    fn around(&self, path: &[u8]) -> Option<usize> {
        let ends = path
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .map(|(at, _)| at)
            .chain([path.len()]);
        ends.rev().filter(|end| *end > 0).find(|end| self.is_git(&path[..*end], false))
    }

    /// Does git write into this directory? A work tree may be inside a git directory of another
    /// name, and is not part of it.
    pub fn holds(&self, dir: &[u8], folding: bool) -> bool {
        let named = dir.split(|byte| *byte == b'/').any(|name| is_git_name(name, folding));
        named
            || self.dirs.iter().any(|known| match dir.strip_prefix(&known[..]) {
                Some([]) => true,
                Some([b'/', inside @ ..]) => {
                    let first = inside.split(|byte| *byte == b'/').next().unwrap_or_default();
                    git_table::has_part(first)
                }
                _ => false,
            })
    }

    fn inside<'p>(&self, path: &'p [u8]) -> Option<GitLocation<'p>> {
        let end = self.around(path)?;
        let (of, names) = in_layout(&path[end..]);
        let own_entry = of == GitDirKind::Repository && self.is_entry(&path[..end]);
        Some(GitLocation { of: if own_entry { GitDirKind::Entry } else { of }, names })
    }

    /// `GIT-DIRECTORY/worktrees/NAME`.
    pub fn is_entry(&self, path: &[u8]) -> bool {
        let worktrees = parent(path);
        last(worktrees) == b"worktrees" && self.is_git(parent(worktrees), false)
    }

    /// The role of a path, if its content can be harmless.
    pub fn role(&self, path: &[u8]) -> Option<Role> {
        let GitLocation { of, names } = self.inside(path)?;
        if names.is_empty() {
            return Some(Role::GitFile);
        }
        if is_ref(of, &names) {
            return Some(if last(path) == b"HEAD" { Role::Head } else { Role::Ref });
        }
        let role = parts_at(of, &names).find_map(|part| part.role)?;
        let pointer = matches!(role, Role::CommonDir | Role::GitDir);
        let in_entry =
            pointer || (role == Role::Config && names[0].starts_with(b"config.worktree"));
        let stands = match of {
            // A linked work tree has its own index and its own unfinished rebase.
            _ if role.is_checked() && role != Role::PackedRefs => true,
            GitDirKind::Entry => in_entry,
            GitDirKind::Repository | GitDirKind::Submodule => !pointer,
        };
        stands.then_some(role)
    }

    /// Would git obey this name, if its directory became the common directory of a repository? In a
    /// git directory such names stand only where git makes them.
    pub fn is_foreign_part(&self, path: &[u8]) -> bool {
        let stands = |location: GitLocation<'_>| {
            let GitLocation { of, names } = location;
            let is_of_refs = names.ends_with(&[b"refs", b"remotes"])
                && (names.len() == 2 || of == GitDirKind::Submodule);
            names.is_empty() || is_of_refs || parts_at(of, &names).next().is_some()
        };
        OBEYED_NAMES.contains(&last(path))
            && self.inside(path).is_some_and(|location| !stands(location))
            && !self.is_branch(path)
    }

    /// Is this the name of a branch, or a directory of such names, in the repository of a
    /// submodule? It may look like a part of a git directory. A branch name does not begin with a
    /// dot (git-check-ref-format), so a nested `.git` is no branch. A nested repository that is
    /// known by its parts is a git directory of its own.
    pub fn is_branch(&self, path: &[u8]) -> bool {
        self.around(parent(path)).is_some_and(|end| is_branch_in(&path[end..]))
    }

    /// Is this the path where `git worktree add` makes the entry of a work tree? The repository
    /// must be one that git would find from outside: not inside another git directory, unless it
    /// was there before. An entry has the parts of a git directory, and has no entries of its own.
    pub fn is_place_of_entry(&self, path: &[u8]) -> bool {
        let git = parent(parent(path));
        self.is_entry(path)
            && !self.is_entry(git)
            && (self.dirs.iter().any(|dir| dir == git) || self.around(parent(git)).is_none())
    }

    /// Do the patterns of the outer git directory also match this one's parts? In a directory of
    /// branches they do not, and the name of a submodule can look like one: `m/refs/heads`.
    pub fn is_covered(&self, path: &[u8]) -> bool {
        let Some(end) = self.around(parent(path)) else { return false };
        let part = [&path[end..], b"/config"].concat();
        in_layout(&part).0 != GitDirKind::Repository && !is_branch_in(&part)
    }
}

/// The names in a repository that make git run a program, or read another repository.
const OBEYED_NAMES: [&[u8]; 10] = [
    b"alternates",
    b"attributes",
    b"branches",
    b"commondir",
    b"config",
    b"config.worktree",
    b"gitdir",
    b"grafts",
    b"hooks",
    b"remotes",
];

/// The parts of a git directory that a path can be.
fn parts_at<'n>(
    of: GitDirKind,
    names: &'n [&'n [u8]],
) -> impl Iterator<Item = &'static git_table::GitPart> + use<'n> {
    git_table::PARTS.iter().filter(move |part| {
        let pattern: Vec<&str> = part.path.split('/').collect();
        let from = names.len().checked_sub(pattern.len());
        // The number of components in a submodule's name is not known.
        from.is_some_and(|from| from == 0 || of == GitDirKind::Submodule)
            && pattern
                .iter()
                .rev()
                .zip(names.iter().rev())
                .all(|(one, name)| is_named(name, one.as_bytes()))
    })
}

/// Does a component of a part mean this name? A star at its end stands for any letters.
pub fn is_named(name: &[u8], part: &[u8]) -> bool {
    match part.strip_suffix(b"*") {
        Some(start) => name.starts_with(start),
        None => name == part,
    }
}

/// May a path be a ref? A quick check.
pub fn may_be_ref(path: &[u8]) -> bool {
    is_own_ref(last(path)) || path.windows(6).any(|part| part == b"/refs/")
}

/// A ref that stands in the git directory itself: HEAD, ORIG_HEAD, BISECT_EXPECTED_REV. Git writes
/// `FETCH_HEAD` and `MERGE_HEAD` as plain files, and does not follow what they name. A message can
/// have any text.
fn is_own_ref(name: &[u8]) -> bool {
    let is_plain_file = matches!(name, b"FETCH_HEAD" | b"MERGE_HEAD") || name.ends_with(b"MSG");
    let is_upper = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_';
    !name.is_empty() && name.iter().all(is_upper) && !is_plain_file
}

/// Are these the components of a ref in a git directory? Git reads no ref whose name ends in
/// `.lock`.
fn is_ref(of: GitDirKind, names: &[&[u8]]) -> bool {
    let Some((name, above)) = names.split_last() else { return false };
    let in_refs = match of {
        // The number of components in a submodule's name is not known.
        GitDirKind::Submodule => above.iter().skip(1).any(|name| *name == b"refs"),
        GitDirKind::Repository | GitDirKind::Entry => above.first() == Some(&&b"refs"[..]),
    };
    let in_git_dir = above.is_empty() || of == GitDirKind::Submodule;
    !name.ends_with(b".lock") && (in_refs || (in_git_dir && is_own_ref(name)))
}

/// The kind of git directory that a path belongs to, and the components from there on. For a
/// submodule they include its name.
fn in_layout(inside: &[u8]) -> (GitDirKind, Vec<&[u8]>) {
    let names: Vec<&[u8]> =
        inside.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    let (of, skipped) = match names[..] {
        [b"worktrees", _, b"modules", _, _, ..] => (GitDirKind::Submodule, 3),
        [b"modules", _, _, ..] => (GitDirKind::Submodule, 1),
        [b"worktrees", _, _, ..] => (GitDirKind::Entry, 2),
        _ => (GitDirKind::Repository, 0),
    };
    (of, names[skipped..].to_vec())
}

/// Is a path in a git directory the name of a branch, or a directory of such names?
fn is_branch_in(inside: &[u8]) -> bool {
    let (of, names) = in_layout(inside);
    // The first component is the submodule's, if its repository is not known by itself.
    let first = usize::from(of == GitDirKind::Submodule);
    git_table::BRANCHES.iter().any(|branch| {
        let beginning: Vec<&[u8]> = branch.split('/').map(str::as_bytes).collect();
        let mut windows = names.windows(beginning.len()).enumerate().skip(first);
        let at = windows
            .find(|(at, window)| *window == beginning && (of == GitDirKind::Submodule || *at == 0));
        let rest = at.map(|(at, window)| &names[at + window.len()..]);
        rest.is_some_and(|rest| !rest.is_empty() && !rest.iter().any(|name| name.starts_with(b".")))
    })
}

pub fn parent(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)]
}

pub fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownGitDirs {
        let mut known = KnownGitDirs::default();
        for dir in [
            "/w/.bare",
            "/w/.bare/worktrees/old",
            "/w/.git/modules/m/refs/heads/inner",
            "/w/.git/modules/known",
        ] {
            assert!(known.add(dir.as_bytes()));
        }
        assert!(!known.add(b"/w/.bare"));
        known
    }

    #[test]
    fn the_path_in_the_git_directory_gives_the_role() {
        for (path, expected) in [
            ("a/.git", Some(Role::GitFile)),
            (".git/config", Some(Role::Config)),
            (".git/config.lock", Some(Role::Config)),
            ("x/.GIT/hooks", None),
            (".git/hooks/a.sample", Some(Role::Hook)),
            (".git/hooks/a/b", None),
            (".git/modules/a/b/config", Some(Role::Config)),
            (".git/modules/a/hooks/pre-commit", Some(Role::Hook)),
            (".git/modules/a/hooks", Some(Role::Hooks)),
            (".git/modules/a/commondir", None),
            (".git/worktrees/n/commondir", Some(Role::CommonDir)),
            (".git/worktrees/n/gitdir", Some(Role::GitDir)),
            (".git/worktrees/n/config", None),
            (".git/worktrees/n/config.worktree", Some(Role::Config)),
            (".git/worktrees/n/modules/a/config", Some(Role::Config)),
            (".git/commondir", None),
            (".git/gitdir", None),
            (".git/info/attributes", None),
            (".git/index", Some(Role::Index)),
            (".git/worktrees/n/index", Some(Role::Index)),
            (".git/modules/a/b/index", Some(Role::Index)),
            (".git/worktrees/n/rebase-merge/msgnum", Some(Role::Number)),
            (".git/rebase-merge/update-refs", Some(Role::RefList)),
            (".git/rebase-apply/head-name", Some(Role::RefList)),
            (".git/update-refs", None),
            (".git/sharedindex.0123", Some(Role::SharedIndex)),
            (".git/sharedindex_0123", None),
            (".git/worktrees/n/rebase-apply/apply-opt", Some(Role::ApplyOptions)),
            (".git/packed-refs", Some(Role::PackedRefs)),
            (".git/modules/a/b/packed-refs", Some(Role::PackedRefs)),
            (".git/worktrees/n/packed-refs", None),
            (".git/objects/index", None),
            (".git/objects/info/alternates", None),
            (".git/sl/config", None),
            (".git/worktrees/n/sl/config", None),
            (".git/modules/a/sl/config", Some(Role::Config)), // a submodule may be called a/sl
            (".git/modules/a/sl/config-git-user", None),
            (".vscode/config", None),
            ("a/.git/x/.git", Some(Role::GitFile)),
            ("/w/.bare/worktrees/n/commondir", Some(Role::CommonDir)),
            ("/w/.bare/worktrees/old/commondir", Some(Role::CommonDir)),
            ("/w/.bare/worktrees/old/config", None),
            ("/w/.bare/config", Some(Role::Config)),
            ("/w/bare/config", None),
        ] {
            assert_eq!(known().role(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn a_branch_of_a_submodule_may_have_the_name_of_a_git_part() {
        for (path, expected) in [
            ("/w/.git/modules/m/refs/heads/config", true),
            ("/w/.git/modules/a/b/refs/tags/hooks/x", true),
            ("/w/.git/modules/m/logs/refs/heads/config", true),
            ("/w/.git/worktrees/n/modules/m/refs/remotes/origin/config", true),
            ("/w/.git/modules/refs/heads/config", false),
            ("/w/.git/modules/m/config", false),
            ("/w/.git/modules/m/refs/heads/.git/config", false),
            ("/w/.git/modules/m/refs/heads/.git", false),
            ("/w/.git/modules/m/refs/heads/.x/hooks", false),
            ("/w/.git/modules/m/refs/heads/inner/config", false),
            ("/w/.git/refs/heads/config", true),
            ("/w/.git/x/refs/heads/config", false),
            ("/w/.git/modules/known/refs/heads/config", true),
            ("/w/.git/modules/known/config", false),
        ] {
            assert_eq!(known().is_branch(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn a_work_tree_in_a_git_directory_is_not_part_of_it() {
        for (dir, expected) in [
            ("/w/.bare", true),
            ("/w/.bare/worktrees/n/logs", true),
            ("/w/.bare/objects/00", true),
            ("/w/.bare/feature/src", false),
            ("/w/.bare2/logs", false),
            ("/w/x/.git/any/thing", true),
            ("/w/x", false),
        ] {
            assert_eq!(known().holds(dir.as_bytes(), false), expected, "{dir}");
        }
    }

    #[test]
    fn an_entry_counts_only_in_a_repository_that_git_finds() {
        for (path, expected) in [
            ("/w/.git/worktrees/n", true),
            ("/w/.bare/worktrees/n", true),
            ("/w/sub/.git/worktrees/n", true),
            ("/w/.git/modules/m/refs/heads/.git/worktrees/n", false),
            ("/w/.bare/refs/.git/worktrees/n", false),
            ("/w/bare/worktrees/n", false),
            ("/w/x/.GIT/worktrees/n", false),
            ("/w/.git/modules/m", false),
            ("/w/.bare/worktrees/old/worktrees/n", false),
        ] {
            assert_eq!(known().is_place_of_entry(path.as_bytes()), expected, "{path}");
        }
    }

    #[test]
    fn the_way_to_a_named_entry_is_known() {
        let mut known = known();
        assert!(known.add_named_path(b"/w/other/.git/worktrees/n"));
        for (path, expected) in [
            ("/w", true),
            ("/w/other", true),
            ("/w/OTHER", true),
            ("/w/other/.git/worktrees/n", true),
            ("/w/oth", false),
            ("/w/other2", false),
            ("/w/other/.git/worktrees/n/x", false),
        ] {
            assert_eq!(known.leads_to_named_path(path.as_bytes()), expected, "{path}");
        }
        for number in 1..MAX_NAMED_PATHS {
            assert!(known.add_named_path(format!("/w/.git/worktrees/{number}").as_bytes()));
        }
        assert!(!known.add_named_path(b"/w/.git/worktrees/more"));
        assert!(known.add_named_path(b"/w/other/.git/worktrees/n"));
    }

    #[test]
    fn patterns_match_nested_git_directories() {
        assert!(known().is_covered(b"/w/.bare/worktrees/old"));
        assert!(known().is_covered(b"/w/.git/modules/m"));
        for branches in ["refs/heads", "refs/heads/x", "logs/refs/heads", "refs/remotes/origin"] {
            let path = format!("/w/.git/modules/m/{branches}");
            assert!(!known().is_covered(path.as_bytes()), "{path}");
        }
        assert!(known().is_covered(b"/w/.git/modules/m/refs"));
        assert!(!known().is_covered(b"/w/.git/modules/m/refs/heads/inner"));
        assert!(!known().is_covered(b"/w/.bare") && !known().is_covered(b"/w/.git/x"));
    }

    #[test]
    fn refs_are_known_by_their_place() {
        let known = KnownGitDirs::default();
        for path in [
            "/w/.git/HEAD",
            "/w/.git/ORIG_HEAD",
            "/w/.git/AUTO_MERGE",
            "/w/.git/BISECT_EXPECTED_REV",
            "/w/.git/NOTES_MERGE_REF",
            "/w/.git/refs/heads/main",
            "/w/.git/refs/stash",
            "/w/.git/refs/remotes/origin/HEAD",
            "/w/.git/worktrees/x/HEAD",
            "/w/.git/worktrees/x/refs/bisect/bad",
            "/w/.git/modules/m/refs/heads/a/b",
            "/w/.git/modules/m/HEAD",
        ] {
            let role = if path.ends_with("/HEAD") { Role::Head } else { Role::Ref };
            assert_eq!(known.role(path.as_bytes()), Some(role), "{path}");
            assert!(may_be_ref(path.as_bytes()), "{path}");
        }
        for path in [
            "/w/.git/FETCH_HEAD",
            "/w/.git/MERGE_HEAD",
            "/w/.git/COMMIT_EDITMSG",
            "/w/.git/MERGE_MSG",
            "/w/.git/refs/heads/main.lock",
            "/w/.git/logs/HEAD",
            "/w/refs/heads/main",
            "/w/HEAD",
        ] {
            assert_ne!(known.role(path.as_bytes()), Some(Role::Ref), "{path}");
        }
    }

    #[test]
    fn parts_of_a_repository_stand_only_where_git_makes_them() {
        let known = KnownGitDirs::default();
        for path in [
            "/w/.git/abc/config",
            "/w/.git/abc/hooks",
            "/w/.git/abc/remotes",
            "/w/.git/abc/refs/remotes",
            "/w/.git/abc/info/attributes",
            "/w/.git/abc/objects/info/alternates",
            "/w/.git/objects/x/commondir",
        ] {
            assert!(known.is_foreign_part(path.as_bytes()), "{path}");
        }
        for path in [
            "/w/.git/config",
            "/w/.git/hooks",
            "/w/.git/branches",
            "/w/.git/remotes",
            "/w/.git/refs/remotes",
            "/w/.git/logs/refs/remotes",
            "/w/.git/modules/m/refs/remotes",
            "/w/.git/worktrees/w/refs/remotes",
            "/w/.git/info/attributes",
            "/w/.git/modules/m/config",
            "/w/.git/modules/m/branches",
            "/w/.git/refs/heads/config",
            "/w/.git/logs/refs/heads/hooks",
            "/w/config",
            "/w/hooks",
        ] {
            assert!(!known.is_foreign_part(path.as_bytes()), "{path}");
        }
    }
}
