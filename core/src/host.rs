//! Facts about this machine that can be read without trying anything.

use std::fmt::Write as _;

use rustix::io::Errno;
use rustix::thread::SecureComputingMode;

use crate::json::{self, Invalid};
use crate::kernel_names;
use crate::sys;
use crate::syscalls::Arch;

const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
const SECCOMP_RET_USER_NOTIF: u32 = 0x7FC0_0000;

/// Whether somebody else's system call filter is on this process: a container engine's, for one. Without a filter the kernel
/// answers the question, or does not know it.
pub fn filtered() -> bool {
    match rustix::thread::secure_computing_mode() {
        Ok(mode) => mode == SecureComputingMode::Filter,
        Err(errno) => errno != Errno::INVAL,
    }
}

pub fn report() -> String {
    let landlock = sys::landlock_abi();
    let mut out = String::from("{\"kernel\":");
    json::string(&mut out, rustix::system::uname().release().to_bytes(), Invalid::Text);
    let _ = write!(
        out,
        ",\"arch\":\"{}\",\"landlock_abi\":{},\"landlock_errno\":{},\"seccomp\":{},\"user_notification\":{},\
         \"filtered\":{},\"no_new_privs\":{},\"uid\":{}}}",
        Arch::NATIVE.name(),
        landlock.unwrap_or(0),
        landlock.err().map_or("null".to_owned(), |errno: Errno| format!("\"{}\"", kernel_names::errno(errno))),
        sys::seccomp_knows(SECCOMP_RET_ERRNO),
        sys::seccomp_knows(SECCOMP_RET_USER_NOTIF),
        filtered(),
        rustix::thread::no_new_privs().is_ok(),
        rustix::process::getuid().as_raw(),
    );
    out
}
