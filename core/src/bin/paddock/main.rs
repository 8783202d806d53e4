//! `paddock`, where there is a kernel it can use; elsewhere its refusal.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(supported)]
#[path = "../../canonical.rs"]
mod canonical;

#[cfg(supported)]
mod door;

#[cfg(supported)]
#[path = "../../python.rs"]
mod python;

#[cfg(supported)]
#[path = "../../scan.rs"]
mod scan;

#[cfg(not(supported))]
#[path = "../../unsupported.rs"]
mod unsupported;

fn main() -> ExitCode {
    #[cfg(supported)]
    return door::enter();
    #[cfg(not(supported))]
    return unsupported::refuse();
}
