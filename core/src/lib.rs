//! paddock-core carries out a plan: it closes a fence of kernel mechanisms around one command and
//! stays, if it has to, until the command and all it started are gone. It reads no policy, knows no
//! profile and believes nothing it is given.
//!
//! A library because its root is one `cfg` away from being empty: where there is no such kernel,
//! the programs take the other one.
#![cfg(supported)]

mod approve;
pub mod commands;
mod files;
mod gate;
mod journal;
pub mod kernel;
mod limits;
mod network;
pub mod plan;
mod sandbox;
mod supervisor;
