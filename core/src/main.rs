//! paddock-core, where there is a kernel it can use; elsewhere its refusal.
#![cfg_attr(supported, no_main)]

// Its `main` is the one that the C library calls; see sys.rs.
#[cfg(supported)]
use paddock_core as _;

#[cfg(not(supported))]
mod unsupported;

#[cfg(not(supported))]
fn main() -> std::process::ExitCode {
    unsupported::refuse()
}
