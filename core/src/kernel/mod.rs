//! One file for each kernel interface.
//!
//! All `unsafe` code is in `sys/`. This room knows no policy: it imports only the encoding of the
//! plan.

pub(crate) mod ancestry;
pub(crate) mod calling_process;
pub(crate) mod child_fds;
pub(crate) mod clock;
pub(crate) mod errno_names;
pub(crate) mod filesystem;
pub(crate) mod mount;
pub(crate) mod netlink;
pub(crate) mod open_beneath;
pub(crate) mod pid_namespace;
pub(crate) mod proc_text;
pub(crate) mod process_memory;
pub mod python_helper;
pub(crate) mod random_name;
pub(crate) mod resolved_path;
pub(crate) mod seccomp_notify;
pub(crate) mod socket_pair;
pub(crate) mod stderr;
pub(crate) mod sys;

#[cfg(not(test))]
pub use self::sys::Allocator;
