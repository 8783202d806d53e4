//! The exec gate: which programs may be started, with which arguments.

pub mod hosts;
pub mod judge;
pub mod places;
pub mod rules;
mod words;
