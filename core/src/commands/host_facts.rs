//! `host`: prints facts about this machine. Some are read, some are tried in a child.

use std::fmt::Write as _;

use rustix::io::Errno;
use rustix::thread::SecureComputingMode;

use crate::kernel::sys::Instruction;
use crate::kernel::{errno_names, sys};
use crate::plan::syscalls::Arch;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::sandbox::init;
use crate::sandbox::seccomp::bpf;

const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
const SECCOMP_RET_USER_NOTIF: u32 = 0x7FC0_0000;

/// Is a foreign system call filter on this process, for example that of a container engine? Without
/// a filter the kernel answers this call, or does not know it.
pub fn filtered() -> bool {
    match rustix::thread::secure_computing_mode() {
        Ok(mode) => mode == SecureComputingMode::Filter,
        Err(errno) => errno != Errno::INVAL,
    }
}

/// May a listener answer calls of this process and its children? Not if one does already, for
/// example that of an outer sandbox. A filter stays on this process, so this is tried last.
fn may_listen() -> bool {
    const ALLOW: Instruction = Instruction { code: bpf::RETURN, jt: 0, jf: 0, k: bpf::RET_ALLOW };
    rustix::thread::set_no_new_privs(true).and_then(|()| sys::seccomp_listener(&[ALLOW])).is_ok()
}

pub fn report() -> String {
    let landlock = sys::landlock_abi();
    let mut out = String::from("{\"kernel\":");
    writer::string(&mut out, rustix::system::uname().release().to_bytes(), NonUtf8::Text);
    let _ = write!(
        out,
        ",\"arch\":\"{}\",\"landlock_abi\":{},\"landlock_errno\":{},\"seccomp\":{},\
         \"user_notification\":{},\
         \"filtered\":{},\"no_new_privs\":{},\"uid\":{}",
        Arch::NATIVE.name(),
        landlock.unwrap_or(0),
        landlock
            .err()
            .map_or("null".to_owned(), |errno: Errno| format!("\"{}\"", errno_names::errno(errno))),
        sys::seccomp_knows(SECCOMP_RET_ERRNO),
        sys::seccomp_knows(SECCOMP_RET_USER_NOTIF),
        filtered(),
        rustix::thread::no_new_privs().is_ok(),
        rustix::process::getuid().as_raw(),
    );
    let usable = init::try_out();
    let (step, errno) = match usable.namespaces {
        Ok(()) => (None, None),
        Err((step, errno)) => (Some(step), Some(errno)),
    };
    let quoted = |text: Option<&str>| text.map_or("null".to_owned(), |text| format!("\"{text}\""));
    let name = |errno: Option<Errno>| quoted(errno.map(errno_names::errno).as_deref());
    let _ = write!(
        out,
        ",\"namespaces\":{{\"usable\":{},\"step\":{},\"errno\":{}}},\"overlay\":{{\"usable\":{},\
         \"errno\":{}}},\"listener\":{}}}",
        step.is_none(),
        quoted(step),
        name(errno),
        usable.overlay.is_ok(),
        name(usable.overlay.err()),
        may_listen(),
    );
    out
}
