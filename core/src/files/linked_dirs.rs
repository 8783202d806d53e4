//! Symlinks inside directories of settings and of secrets.
//!
//! A protected or denied directory stands for all its entries, and a link in it for its target:
//! `~/.ssh/config` may lead to a repository of settings, which may be a workspace. So every start
//! lists these directories, and each symlink in them counts like a listed name.
//!
//! The core does that, not the plan. Plans are cached, and programs write to such directories all
//! the time: a plan that depends on their listings would be compiled at nearly every start. Python
//! asks for the same by the verbs `closed` and `links` (`commands/list_closed_paths.rs`).

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::patterns::{NameMatch, NamePatterns};
use super::previously_writable;
use super::tree_roots::{GrantedTree, OpenTree, TreeRoots};
use super::walk::{self, Below, Dir, Entry, NameDecision, Visitor, WalkError, Walker};
use crate::kernel::{open_beneath, resolved_path};
use crate::plan::ProtectedNames;
use crate::plan::wire::bytes::{AbsPath, Text};

/// The directory itself is level one. Below the last level programs keep their own data: toolchains
/// and browser profiles have a hundred thousand directories. SECURITY.md says so.
const MAX_LEVELS: usize = 4;
/// Directories in which programs keep a history or a profile of thousands of directories. Their
/// settings are one level higher.
const DATA_DIRS: [&str; 14] = [
    ".config/Code",
    ".config/Cursor",
    ".config/JetBrains",
    ".config/VSCodium",
    ".config/Windsurf",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/google-chrome",
    ".config/microsoft-edge",
    ".config/vivaldi",
    ".cursor-server",
    ".mozilla",
    ".thunderbird",
    ".vscode-server",
];
/// Directories of all lists together.
pub const MAX_LINKED_DIRS: usize = 20_000;

/// The symlinks in those of `places` that are directories, or lead to one.
pub fn links_inside<'p>(
    places: impl Iterator<Item = &'p AbsPath>,
) -> Result<Vec<AbsPath>, WalkError> {
    let mut trees: Vec<GrantedTree> = Vec::new();
    for place in places {
        if let Some(path) = directory(place)? {
            trees.push(GrantedTree { path, writable: true, watched: false });
        }
    }
    if trees.is_empty() {
        return Ok(Vec::new());
    }
    let text = |text: &str| Text::from_bytes(text.into());
    let all = ProtectedNames { below: vec![text("**")?], but: Vec::new(), names: vec![text("*")?] };
    let mut names = NamePatterns::new(&[], &[all], &[], &[])?;
    let roots = TreeRoots::open(&trees, &[])?;
    let (mut walker, mut found) = (
        Walker::default(),
        LinkVisitor { links: Vec::new(), directories: 0, stored_path_bytes: 0 },
    );
    for index in 0..roots.trees.len() {
        walker.tree(&mut names, &roots, index, &mut found)?;
    }
    Ok(found.links)
}

/// The resolved path of a directory. None: it is no directory.
fn directory(place: &AbsPath) -> Result<Option<AbsPath>, WalkError> {
    let open = |path: &AbsPath| {
        open_beneath::open_without_symlinks(&path.as_c_str(), OFlags::DIRECTORY).map(drop)
    };
    let failed = |source| WalkError::Look { path: place.clone(), source };
    match open(place) {
        Ok(()) => return Ok(Some(place.clone())),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(_) => {}
    }
    let real = match resolved_path::follow(place.as_bytes()) {
        Ok(followed) => previously_writable::absolute(followed.real).map_err(failed)?,
        Err(Errno::LOOP) => return Ok(None), // the link leads nowhere
        Err(source) => return Err(failed(source)),
    };
    match open(&real) {
        Ok(()) => Ok(Some(real)),
        // It is inside another user's directory: no program of this user gets there.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
        Err(source) => Err(failed(source)),
    }
}

struct LinkVisitor {
    links: Vec<AbsPath>,
    directories: usize,
    /// Bytes of the paths that were found.
    stored_path_bytes: usize,
}

impl Visitor for LinkVisitor {
    type Error = WalkError;

    fn enter(&mut self, _names: &NamePatterns, dir: &Dir<'_>) -> Result<Option<u32>, WalkError> {
        let is_data = |name: &&str| dir.tree.path.as_bytes().ends_with(name.as_bytes());
        let levels = if DATA_DIRS.iter().any(is_data) { MAX_LEVELS - 1 } else { MAX_LEVELS };
        if dir.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count() >= levels {
            return Ok(None);
        }
        self.directories += 1;
        if self.directories > MAX_LINKED_DIRS {
            return Err(WalkError::Crowded { path: walk::shown(dir.tree, dir.path) });
        }
        Ok(Some(0))
    }

    fn root(
        &mut self,
        _tree: &OpenTree,
        _verdict: NameDecision,
        _look: NameMatch,
    ) -> Result<Option<Below>, WalkError> {
        Ok(Some(Below::Locked)) // there each symlink has a decision, and nothing else
    }

    fn found(
        &mut self,
        _names: &mut NamePatterns,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, WalkError> {
        if entry.file_type == FileType::Symlink {
            let path = dir.absolute(entry.name.to_bytes())?;
            walk::count_stored_path(&mut self.stored_path_bytes, path.as_bytes())?;
            self.links.push(path);
        }
        Ok(None)
    }

    /// Another user's directory counts as empty: no program of this user gets there.
    fn shut(&mut self, tree: &OpenTree, path: &[u8], object: &OwnedFd) -> Result<bool, WalkError> {
        let failed = |source| WalkError::List { path: walk::shown(tree, path), source };
        let stat = rustix::fs::fstat(object).map_err(failed)?;
        if stat.st_uid == rustix::process::getuid().as_raw() {
            Err(failed(Errno::ACCESS))
        } else {
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::test_tree::{self as scene, TestTree};

    #[test]
    fn links_are_found_in_directories_and_link_targets_down_to_a_level() {
        let scene = TestTree::new();
        for (link, target) in [
            ("home/.ssh/config", "../../w/config"),
            ("home/.ssh/a/b/c/third", "nowhere"),
            ("home/.ssh/a/b/c/d/fourth", "nowhere"),
            ("elsewhere/aws/credentials", "/x"),
            ("home/.aws", "../elsewhere/aws"),
            ("home/.loop", ".loop"),
        ] {
            scene.link(link, target);
        }
        scene.file("home/.netrc");
        let places: Vec<AbsPath> =
            ["home/.ssh", "home/.aws", "home/.loop", "home/.netrc", "home/.none"]
                .iter()
                .map(|name| scene::absolute(&scene.path(name)))
                .collect();
        let mut found: Vec<String> =
            links_inside(places.iter()).unwrap().iter().map(|path| scene.relative(path)).collect();
        found.sort();
        assert_eq!(
            found,
            ["elsewhere/aws/credentials", "home/.ssh/a/b/c/third", "home/.ssh/config"]
        );
    }

    #[test]
    fn a_directory_that_its_owner_has_shut_is_an_error() {
        use std::os::unix::fs::PermissionsExt as _;
        std::thread::spawn(|| {
            scene::become_ordinary();
            let scene = TestTree::new();
            let shut = scene.dir("home/.ssh/shut");
            let place = scene::absolute(&scene.path("home/.ssh"));
            assert!(links_inside([&place].into_iter()).is_ok());
            std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).unwrap();
            let refused = links_inside([&place].into_iter());
            std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o700)).unwrap();
            assert!(matches!(refused, Err(WalkError::List { source: Errno::ACCESS, .. })));
        })
        .join()
        .unwrap();
    }
}
