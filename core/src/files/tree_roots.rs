//! The trees of a run. Each is opened once, and everything in it is reached from there.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;

use super::patterns::{NamePatterns, StateId};
use super::walk::WalkError;
use crate::kernel::open_beneath;
use crate::plan::wire::bytes::{AbsPath, Text};

/// A path that the command is granted.
#[derive(Clone, Debug)]
pub struct GrantedTree {
    /// Without symlinks.
    pub path: AbsPath,
    pub writable: bool,
    /// Does the guard watch for names that appear later?
    pub watched: bool,
}

/// An open tree.
#[derive(Debug)]
pub struct OpenTree {
    pub path: AbsPath,
    pub writable: bool,
    pub watched: bool,
    root: OwnedFd,
    stat: Stat,
    /// Relative paths that belong to other trees, or are left out.
    left_out: Vec<Box<[u8]>>,
}

/// All trees of a run.
#[derive(Debug)]
pub struct TreeRoots {
    pub trees: Vec<OpenTree>,
}

impl TreeRoots {
    /// Opens the trees. Paths in `left_out` are not walked: other means hold them.
    pub fn open(trees: &[GrantedTree], left_out: &[AbsPath]) -> Result<TreeRoots, WalkError> {
        let mut opened: Vec<OpenTree> = Vec::with_capacity(trees.len());
        for tree in trees {
            if left_out.iter().any(|path| tree.path.is_within(path)) {
                continue;
            }
            if let Some(same) = opened.iter_mut().find(|other| other.path == tree.path) {
                same.writable |= tree.writable;
                same.watched |= tree.watched;
                continue;
            }
            let failed = |source| WalkError::Root { path: tree.path.clone(), source };
            let path = tree.path.as_c_str();
            let root = open_beneath::open_without_symlinks(&path, OFlags::empty());
            let root = root.map_err(failed)?;
            let stat = rustix::fs::fstat(&root).map_err(failed)?;
            let below =
                |path| relative(&tree.path, path).filter(|path| !path.is_empty()).map(Box::from);
            let others = trees.iter().map(|tree| &tree.path).chain(left_out);
            opened.push(OpenTree {
                path: tree.path.clone(),
                writable: tree.writable,
                watched: tree.watched,
                root,
                stat,
                left_out: others.filter_map(below).collect(),
            });
        }
        Ok(TreeRoots { trees: opened })
    }

    /// The innermost tree that contains a path.
    pub fn tree_of(&self, path: &AbsPath) -> Option<&OpenTree> {
        let holding = self.trees.iter().filter(|tree| path.is_within(&tree.path));
        holding.max_by_key(|tree| tree.path.as_bytes().len())
    }
}

fn relative<'p>(root: &AbsPath, path: &'p AbsPath) -> Option<&'p [u8]> {
    if !path.is_within(root) {
        return None;
    }
    let rest = &path.as_bytes()[root.as_bytes().len()..];
    Some(rest.strip_prefix(b"/").unwrap_or(rest))
}

impl TreeRoots {
    /// The innermost tree that contains a path, and the path in it.
    pub fn place_of<'p>(&self, path: &'p AbsPath) -> Option<(&OpenTree, &'p [u8])> {
        let tree = self.tree_of(path)?;
        Some((tree, relative(&tree.path, path)?))
    }

    /// Opens an object in the trees with O_PATH, through no symlink.
    pub fn look(&self, path: &AbsPath) -> Result<OwnedFd, Errno> {
        let (tree, below) = self.place_of(path).ok_or(Errno::NOENT)?;
        match below {
            b"" => tree.root.try_clone().map_err(|_| Errno::MFILE),
            below => tree.open(below, OFlags::PATH),
        }
    }
}

impl OpenTree {
    pub fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }

    /// Is it read-only, and not a copy?
    pub fn is_read_only(&self) -> bool {
        !self.writable && !self.watched
    }

    /// Does the command work on a copy of it?
    pub fn is_copy(&self) -> bool {
        !self.writable && self.watched
    }

    /// Can a name below a directory in this state have a decision? In a read-only tree nothing is
    /// protected.
    pub fn is_worth_a_look(&self, names: &NamePatterns, state: StateId) -> bool {
        if self.is_read_only() { names.expects_denied(state) } else { names.expects(state) }
    }

    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The same tree through another root, for lookups only.
    pub fn seen_from(&self, root: OwnedFd) -> Result<OpenTree, WalkError> {
        let failed = |source| WalkError::Root { path: self.path.clone(), source };
        let stat = rustix::fs::fstat(&root).map_err(failed)?;
        let (path, left_out) = (self.path.clone(), self.left_out.clone());
        Ok(OpenTree { path, writable: false, watched: true, root, stat, left_out })
    }

    pub fn absolute(&self, path: &[u8]) -> Result<AbsPath, WalkError> {
        if path.is_empty() {
            return Ok(self.path.clone());
        }
        let separator: &[u8] = if self.path.as_bytes() == b"/" { b"" } else { b"/" };
        let text = Text::from_bytes([self.path.as_bytes(), separator, path].concat())?;
        Ok(AbsPath::new(text)?)
    }

    /// The number of components of its own path.
    pub fn depth(&self) -> usize {
        self.path.as_bytes().split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count()
    }

    pub fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        open_beneath::open(&self.root, path, flags)
    }

    pub fn is_left_out(&self, path: &[u8], name: &[u8]) -> bool {
        self.left_out.iter().any(|other| match other.strip_prefix(path) {
            Some(rest) if path.is_empty() => rest == name,
            Some([b'/', rest @ ..]) => rest == name,
            _ => false,
        })
    }
}
