//! `paddock-core`: the entry point and the allocator. On other systems it prints that they are not
//! supported.
#![cfg_attr(supported, no_main)]

#[cfg(supported)]
#[allow(unsafe_code, reason = "the C library calls main")]
mod entry {
    use std::ffi::{CStr, c_char, c_int};

    #[global_allocator]
    static ALLOCATOR: paddock_core::kernel::Allocator = paddock_core::kernel::Allocator;

    /// The C library calls this, without Rust's own runtime. That runtime reads /proc/self/maps and
    /// makes an alternate signal stack for a message on stack overflow. It would cost a tenth of
    /// the launch budget.
    // SAFETY: `main` is the one symbol with this name; crt1 calls it once, with the C convention.
    #[unsafe(no_mangle)]
    extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
        // SAFETY: argv holds argc NUL-terminated strings.
        let word = |index| unsafe { CStr::from_ptr(*argv.add(index)) };
        paddock_core::commands::start(
            (0..argc as usize).map(|index| word(index).to_owned()).collect(),
        )
    }
}

#[cfg(not(supported))]
mod unsupported_system;

#[cfg(not(supported))]
fn main() -> std::process::ExitCode {
    unsupported_system::refuse()
}
