//! The system calls of Landlock.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::{Result, check};

/// The Landlock ABI of the running kernel.
pub fn landlock_abi() -> Result<i32> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let none: *const c_void = ptr::null();
    // SAFETY: with the version flag, attributes must be NULL and of size 0; nothing is created.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, LANDLOCK_CREATE_RULESET_VERSION)
    })
    .map(|abi| abi as i32)
}

/// Creates a ruleset that handles these rights on files and ports, and these scopes.
pub fn landlock_create_ruleset(files: u64, network: u64, scoped: u64) -> Result<OwnedFd> {
    #[repr(C)]
    struct RulesetAttributes {
        files: u64,
        network: u64,
        scoped: u64,
    }
    let attributes = RulesetAttributes { files, network, scoped };
    // SAFETY: the struct has the layout of landlock_ruleset_attr, its size is passed, and the
    // kernel copies it before it returns. A kernel that knows fewer fields requires the rest to be
    // zero.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            ptr::from_ref(&attributes),
            size_of::<RulesetAttributes>(),
            0,
        )
    })?;
    // SAFETY: the kernel just made this descriptor, marked close-on-exec, and no other value owns
    // it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Adds a rule for everything at and below an open file or directory.
pub fn landlock_add_rule(
    ruleset: BorrowedFd<'_>,
    rights: u64,
    parent: BorrowedFd<'_>,
) -> Result<()> {
    const LANDLOCK_RULE_PATH_BENEATH: c_int = 1;
    #[repr(C, packed)]
    struct PathBeneath {
        allowed_access: u64,
        parent_fd: i32,
    }
    let rule = PathBeneath { allowed_access: rights, parent_fd: parent.as_raw_fd() };
    // SAFETY: the struct has the layout of landlock_path_beneath_attr, and the kernel copies it
    // before it returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            LANDLOCK_RULE_PATH_BENEATH,
            ptr::from_ref(&rule),
            0,
        )
    })
    .map(drop)
}

/// Restricts the calling process by a ruleset, permanently.
pub fn landlock_restrict_self(ruleset: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: takes a descriptor and flags only; the kernel checks both.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })
        .map(drop)
}
