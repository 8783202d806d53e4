//! Builds the sandbox and enters it: Landlock, seccomp, namespaces, root, container.
//!
//! Everything is prepared in the supervisor; entering only makes system calls.

pub mod apply_restrictions;
pub mod capabilities;
pub mod closed_links;
pub mod command;
pub mod container;
pub mod cover_mount;
pub mod cpu_affinity;
pub mod environment;
pub mod error;
pub mod full_tier;
pub mod id_map;
pub mod init;
pub mod init_channel;
pub mod landlock;
pub mod landlock_init;
pub mod overlay;
pub mod preflight;
pub mod root;
pub mod seccomp;
pub mod shell_rules;
pub mod start_scan;
pub mod temp_dir;
pub mod write_server;
