//! The watches: by the kernel's watch number, with the parent directory and the name in it.
//!
//! A renamed directory keeps its watch, and only its name here changes. Names here may be out of
//! date while events wait. So before a path from here is used, its object is compared with the
//! watched one.

use std::collections::HashMap;

use crate::files::patterns::StateId;
use crate::files::walk::{self, Below, Dir};
use crate::kernel::resolved_path::Identity;

/// Stands for the directory above the root of a tree.
pub const NO_NODE: u32 = u32::MAX;
/// A directory that could not be watched.
pub const UNWATCHED: u32 = u32::MAX - 1;

/// No tree is walked deeper. A longer path is a circle.
const MAX_STEPS: usize = walk::MAX_DEPTH + 2;

#[derive(Debug)]
pub struct WatchedNode {
    pub watch: i32,
    pub above: u32,
    /// Empty for the root of a tree.
    pub name: Vec<u8>,
    pub tree: usize,
    pub identity: Identity,
    pub state: StateId,
    pub below: Below,
    pub folding: bool,
}

#[derive(Debug, Default)]
pub struct Watches {
    slots: Vec<WatchedNode>,
    free: Vec<u32>,
    by_watch: HashMap<i32, u32>,
}

impl Watches {
    /// Adds a watched directory, perhaps not for the first time. `dir.node` is the directory above.
    pub fn put_dir(&mut self, watch: i32, dir: &Dir<'_>) -> u32 {
        let (above, name) =
            if dir.path.is_empty() { (NO_NODE, &b""[..]) } else { (dir.node, dir.own_name()) };
        let known = self.by_watch.get(&watch).copied().or_else(|| self.free.pop());
        let number = known.unwrap_or(self.slots.len() as u32);
        // The memory of an earlier name is used again.
        let mut own_name = match self.slots.get_mut(number as usize) {
            Some(node) => std::mem::take(&mut node.name),
            None => Vec::with_capacity(name.len()),
        };
        own_name.clear();
        own_name.extend_from_slice(name);
        let node = WatchedNode {
            watch,
            above,
            name: own_name,
            tree: dir.tree_index,
            identity: dir.identity,
            state: dir.state,
            below: dir.below,
            folding: dir.folding,
        };
        match self.slots.get_mut(number as usize) {
            Some(slot) => *slot = node,
            None => self.slots.push(node),
        }
        self.by_watch.insert(watch, number);
        number
    }

    pub fn of_watch(&self, watch: i32) -> Option<u32> {
        self.by_watch.get(&watch).copied()
    }

    pub fn get(&self, number: u32) -> Option<&WatchedNode> {
        self.slots
            .get(number as usize)
            .filter(|node| self.by_watch.get(&node.watch) == Some(&number))
    }

    /// The watched directories of a tree.
    pub fn directories(&self, tree: usize) -> impl Iterator<Item = u32> {
        let numbers = self.by_watch.values().copied();
        numbers.filter(move |number| self.slots[*number as usize].tree == tree)
    }

    /// Removes a watch and returns its object.
    pub fn remove(&mut self, watch: i32) -> Option<Identity> {
        let number = self.by_watch.remove(&watch)?;
        self.free.push(number);
        Some(self.slots[number as usize].identity)
    }

    /// The watches of nodes that fail a condition.
    pub fn failing(&self, condition: impl Fn(&WatchedNode) -> bool) -> Vec<i32> {
        let numbers = self.by_watch.iter();
        numbers
            .filter(|(_, number)| !condition(&self.slots[**number as usize]))
            .map(|(watch, _)| *watch)
            .collect()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_watch.len()
    }

    /// The path of a node relative to its tree. False: its path is not known.
    pub fn path(&self, number: u32, path: &mut Vec<u8>) -> bool {
        path.clear();
        let mut at = number;
        for _ in 0..MAX_STEPS {
            if at == NO_NODE {
                // Built from its end.
                path.reverse();
                return true;
            }
            let Some(node) = self.get(at) else { return false };
            if !path.is_empty() && !node.name.is_empty() {
                path.push(b'/');
            }
            path.extend(node.name.iter().rev());
            at = node.above;
        }
        false
    }
}
