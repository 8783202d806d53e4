//! Names in the granted trees: patterns, search, guard, git, copy-on-write.
//!
//! Everything goes by descriptors, through no symlink. Nothing here mounts or confines.

pub mod cover;
pub mod git;
pub mod guard;
pub mod home_links;
pub mod home_listing;
pub mod host_sockets;
pub mod linked_dirs;
pub mod patterns;
pub mod previously_writable;
pub mod scan;
pub mod symlink;
#[cfg(test)]
pub mod test_tree;
pub mod tree_roots;
pub mod walk;
pub mod workspace;
pub mod writes;
