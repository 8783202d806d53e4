//! One file for each kernel interface.
//!
//! All `unsafe` code is in `sys/`. Nothing here knows a policy: of the plan only its encoding is imported.

pub mod ancestry;
pub mod calling_process;
pub mod child_fds;
pub mod clock;
pub mod errno_names;
pub mod filesystem;
pub mod mount;
pub mod netlink;
pub mod open_beneath;
pub mod proc_text;
pub mod process_memory;
pub mod python_helper;
pub mod random;
pub mod resolved_path;
pub mod seccomp_notify;
pub mod socket_pair;
pub mod stderr;
pub mod sys;
