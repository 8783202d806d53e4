//! Symlinks inside directories of settings and of secrets.
//!
//! A directory that is protected or denied stands for all that is in it, and a link in it for what
//! it leads to: `~/.ssh/config` may lead to a repository of settings, which is somebody's
//! workspace. So every start lists these directories, and each symlink in them counts like a name
//! of the lists.
//!
//! The core does that, and not the plan. Plans are remembered, and programs write to such
//! directories all the time: a plan that rests on their listings would be made anew at nearly every
//! start. Python asks for the same by the verbs `closed` and `links` (`commands/closed_links.rs`).

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::patterns::{Look, Names};
use super::previously_writable;
use super::tree_roots::{OpenTree, Tree, TreeRoots};
use super::walk::{self, Below, Dir, Entry, NameDecision, Visitor, WalkError, Walker};
use crate::kernel::resolved_path;
use crate::plan::ProtectedNames;
use crate::plan::wire::bytes::{AbsPath, Text};

/// The directory itself is the first. Deeper down programs keep what they make for themselves:
/// toolchains and profiles of browsers have a hundred thousand directories. SECURITY.md says so.
const LEVELS: usize = 4;
/// Programs that keep a history or a profile of thousands of directories there. Their settings lie
/// one level higher.
const DATA: [&str; 14] = [
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
/// All together.
pub const MOST_DIRECTORIES: usize = 20_000;

/// The symlinks in those of `places` that are directories, or lead to one.
pub fn inside<'p>(places: impl Iterator<Item = &'p AbsPath>) -> Result<Vec<AbsPath>, WalkError> {
    let mut trees: Vec<Tree> = Vec::new();
    for place in places {
        if let Some(path) = directory(place)? {
            trees.push(Tree { path, writable: true, watched: false });
        }
    }
    if trees.is_empty() {
        return Ok(Vec::new());
    }
    let text = |text: &str| Text::from_bytes(text.into());
    let all = ProtectedNames { below: vec![text("**")?], but: Vec::new(), names: vec![text("*")?] };
    let mut names = Names::new(&[], &[all], &[], &[])?;
    let ground = TreeRoots::open(&trees, &[])?;
    let (mut walker, mut found) =
        (Walker::default(), Inside { links: Vec::new(), directories: 0, kept: 0 });
    for index in 0..ground.trees.len() {
        walker.tree(&mut names, &ground, index, &mut found)?;
    }
    Ok(found.links)
}

/// Where a place really lies. None: it is no directory.
fn directory(place: &AbsPath) -> Result<Option<AbsPath>, WalkError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &AbsPath| {
        rustix::fs::openat2(CWD, path.as_c_str(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .map(drop)
    };
    let failed = |source| WalkError::Look { path: place.clone(), source };
    match open(place) {
        Ok(()) => return Ok(Some(place.clone())),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(_) => {}
    }
    let real = match resolved_path::follow(place.as_bytes()) {
        Ok(way) => previously_writable::absolute(way.real).map_err(failed)?,
        Err(Errno::LOOP) => return Ok(None), // it leads nowhere
        Err(source) => return Err(failed(source)),
    };
    match open(&real) {
        Ok(()) => Ok(Some(real)),
        // Behind another user's directory: no program of this user gets there.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => Ok(None),
        Err(source) => Err(failed(source)),
    }
}

struct Inside {
    links: Vec<AbsPath>,
    directories: usize,
    /// Bytes of the paths that were found.
    kept: usize,
}

impl Visitor for Inside {
    type Error = WalkError;

    fn enter(&mut self, _names: &Names, dir: &Dir<'_>) -> Result<Option<u32>, WalkError> {
        let is_data = |name: &&str| dir.tree.path.as_bytes().ends_with(name.as_bytes());
        let levels = if DATA.iter().any(is_data) { LEVELS - 1 } else { LEVELS };
        if dir.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count() >= levels {
            return Ok(None);
        }
        self.directories += 1;
        if self.directories > MOST_DIRECTORIES {
            return Err(WalkError::Crowded { path: walk::shown(dir.tree, dir.path) });
        }
        Ok(Some(0))
    }

    fn root(
        &mut self,
        _tree: &OpenTree,
        _verdict: NameDecision,
        _look: Look,
    ) -> Result<Option<Below>, WalkError> {
        Ok(Some(Below::Locked)) // there each symlink has a verdict, and nothing else
    }

    fn found(
        &mut self,
        _names: &mut Names,
        dir: &Dir<'_>,
        entry: &Entry<'_>,
    ) -> Result<Option<Below>, WalkError> {
        if entry.file_type == FileType::Symlink {
            let path = dir.absolute(entry.name.to_bytes())?;
            walk::keep(&mut self.kept, path.as_bytes())?;
            self.links.push(path);
        }
        Ok(None)
    }

    /// Another user's is as good as empty: no program of this user gets there.
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
    use crate::files::test_tree::{self as scene, Scene};

    #[test]
    fn links_are_found_in_directories_and_in_what_leads_to_one_down_to_a_level() {
        let scene = Scene::new();
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
            inside(places.iter()).unwrap().iter().map(|path| scene.relative(path)).collect();
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
            let scene = Scene::new();
            let shut = scene.dir("home/.ssh/shut");
            let place = scene::absolute(&scene.path("home/.ssh"));
            assert!(inside([&place].into_iter()).is_ok());
            std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o000)).unwrap();
            let refused = inside([&place].into_iter());
            std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o700)).unwrap();
            assert!(matches!(refused, Err(WalkError::List { source: Errno::ACCESS, .. })));
        })
        .join()
        .unwrap();
    }
}
