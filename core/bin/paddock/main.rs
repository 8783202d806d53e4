//! `paddock`: the launcher. It starts a cached plan if all inputs are unchanged, else Python. On
//! other systems it prints that they are not supported.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(supported)]
mod check_memo;

#[cfg(not(supported))]
#[path = "../unsupported_system.rs"]
mod unsupported_system;

fn main() -> ExitCode {
    #[cfg(supported)]
    return check_memo::enter();
    #[cfg(not(supported))]
    return unsupported_system::refuse();
}
