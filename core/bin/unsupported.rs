//! On another system or processor everything compiles, and this program prints that it is not
//! supported.

use std::env::consts::{ARCH, OS};
use std::process::ExitCode;

pub fn refuse() -> ExitCode {
    eprintln!(
        "paddock: {OS} on {ARCH} is not supported: the fence is made of Landlock and seccomp, which are Linux's\n\
         hint: run it in a virtual machine or container with Linux 6.12 or newer on x86_64 or aarch64"
    );
    ExitCode::from(125)
}
