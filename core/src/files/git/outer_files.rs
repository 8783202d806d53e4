//! Directories of the writable trees in which a repository outside of them has files.
//!
//! The command, and the judge of its writes, do not see such a repository: the workspace is a
//! directory of a larger repository, or a `.git` file leads out of it. So the supervisor reads its
//! index when the run starts.

use std::collections::BTreeSet;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::recognise_git_dirs::parent;
use super::{hash_bytes, index, read_index, trusted_paths};

#[derive(Debug, Default)]
pub struct OuterFiles {
    /// Directories that hold files.
    dirs: BTreeSet<Vec<u8>>,
    /// Each directory at and below these paths counts: the index can not be read.
    unread: Vec<Vec<u8>>,
}

impl OuterFiles {
    pub fn add_dir(&mut self, dir: &[u8]) {
        self.dirs.insert(dir.to_vec());
    }

    pub fn add_unread(&mut self, tree: &[u8]) {
        self.unread.push(tree.to_vec());
    }

    pub fn extend(&mut self, other: OuterFiles) {
        self.dirs.extend(other.dirs);
        self.unread.extend(other.unread);
    }

    pub fn dirs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.dirs.iter()
    }

    pub fn unread(&self) -> &[Vec<u8>] {
        &self.unread
    }

    /// Would a new repository in this directory take the place of one outside?
    pub fn has(&self, dir: &[u8]) -> bool {
        let is_below = |tree: &Vec<u8>| {
            dir.strip_prefix(&tree[..]).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
        };
        self.dirs.contains(dir) || self.unread.iter().any(is_below)
    }

    fn unread_tree(tree: &[u8]) -> OuterFiles {
        OuterFiles { dirs: BTreeSet::new(), unread: vec![tree.to_vec()] }
    }
}

/// The directories of a tree that the repository above it has files in. `is_seen`: does the judge
/// see this path?
pub fn above_tree(tree: &[u8], is_seen: &dyn Fn(&[u8]) -> bool) -> OuterFiles {
    let mut top = tree;
    while !top.is_empty() {
        let git = [top, b"/.git"].concat();
        match rustix::fs::lstat(&git[..]) {
            // The scan of the tree finds it.
            Ok(_) if top == tree => return OuterFiles::default(),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                return files_of(top, &git, tree, is_seen);
            }
            Ok(_) => return below_git_file(top, tree, is_seen),
            Err(Errno::NOENT | Errno::NOTDIR) => top = parent(top),
            Err(_) => return OuterFiles::unread_tree(tree),
        }
    }
    OuterFiles::default()
}

/// The same for the `.git` file of a directory in a tree.
pub fn of_git_file(top: &[u8], is_seen: &dyn Fn(&[u8]) -> bool) -> OuterFiles {
    below_git_file(top, top, is_seen)
}

fn below_git_file(top: &[u8], tree: &[u8], is_seen: &dyn Fn(&[u8]) -> bool) -> OuterFiles {
    match trusted_paths::first_line([top, b"/.git"].concat()) {
        Ok(Some(line)) => match line.strip_prefix(b"gitdir: ") {
            Some(target) => files_of(top, &trusted_paths::resolved(top, target), tree, is_seen),
            // Git stops with an error there.
            None => OuterFiles::default(),
        },
        Ok(None) => OuterFiles::default(),
        Err(_) => OuterFiles::unread_tree(tree),
    }
}

fn files_of(
    top: &[u8],
    git_dir: &[u8],
    tree: &[u8],
    is_seen: &dyn Fn(&[u8]) -> bool,
) -> OuterFiles {
    if is_seen(git_dir) {
        return OuterFiles::default();
    }
    let read = match read_index(git_dir) {
        Err(Errno::NOENT | Errno::NOTDIR) => return OuterFiles::default(),
        read => read.ok().zip(hash_bytes(git_dir)),
    };
    let tracked = read.and_then(|(content, hash)| index::directories(&content, hash));
    let Some(tracked) = tracked else { return OuterFiles::unread_tree(tree) };
    let path = |dir: Vec<u8>| match &dir[..] {
        [] => top.to_vec(),
        dir => [top, b"/", dir].concat(),
    };
    let is_in_tree =
        |dir: &Vec<u8>| dir.strip_prefix(tree).is_some_and(|rest| matches!(rest, [] | [b'/', ..]));
    let dirs = tracked.into_iter().map(path).filter(is_in_tree).collect();
    OuterFiles { dirs, unread: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_can_not_be_read_counts_as_a_whole() {
        let mut files = OuterFiles::default();
        files.add_dir(b"/w/a");
        files.add_unread(b"/x");
        for (dir, expected) in
            [("/w/a", true), ("/w", false), ("/w/a/b", false), ("/x/y", true), ("/xy", false)]
        {
            assert_eq!(files.has(dir.as_bytes()), expected, "{dir}");
        }
    }
}
