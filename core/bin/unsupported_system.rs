//! On another system or processor everything compiles, and this program prints that it is not
//! supported.

use std::env::consts::{ARCH, OS};
use std::process::ExitCode;

pub fn refuse() -> ExitCode {
    eprintln!(
        "paddock: {OS} on {ARCH} is not supported: the sandbox needs Landlock and seccomp, which \
            only Linux has\nhint: run paddock in a virtual machine or container with Linux 6.12 \
            or newer on x86_64 or aarch64"
    );
    ExitCode::from(125)
}
