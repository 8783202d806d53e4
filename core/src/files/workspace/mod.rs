//! The copy-on-write workspace on disk.

pub mod move_tree;
pub mod session_dir;
pub mod whiteouts;
