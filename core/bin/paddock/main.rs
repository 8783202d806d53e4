//! `paddock`: the launcher. It starts a cached plan if all inputs are unchanged, else Python. On
//! other systems it prints that they are not supported.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(supported)]
mod memo;

#[cfg(not(supported))]
#[path = "../unsupported.rs"]
mod unsupported;

fn main() -> ExitCode {
    #[cfg(supported)]
    return memo::enter();
    #[cfg(not(supported))]
    return unsupported::refuse();
}
