//! Facts about this machine that can be read without trying anything.

use std::fmt::Write as _;

use rustix::io::Errno;

use crate::json::{self, Invalid};
use crate::kernel_names;
use crate::sys;
use crate::syscalls::Arch;

const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
const SECCOMP_RET_USER_NOTIF: u32 = 0x7FC0_0000;

pub fn report() -> String {
    let landlock = sys::landlock_abi();
    let mut out = String::from("{\"kernel\":");
    json::string(&mut out, rustix::system::uname().release().to_bytes(), Invalid::Text);
    let _ = write!(
        out,
        ",\"arch\":\"{}\",\"landlock_abi\":{},\"landlock_errno\":{},\"seccomp\":{},\"user_notification\":{},\
         \"no_new_privs\":{},\"uid\":{}}}",
        Arch::NATIVE.name(),
        landlock.unwrap_or(0),
        landlock.err().map_or("null".to_owned(), |errno: Errno| format!("\"{}\"", kernel_names::errno(errno))),
        sys::seccomp_knows(SECCOMP_RET_ERRNO),
        sys::seccomp_knows(SECCOMP_RET_USER_NOTIF),
        rustix::thread::no_new_privs().is_ok(),
        rustix::process::getuid().as_raw(),
    );
    out
}
