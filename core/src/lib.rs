//! paddock-core applies a plan: it builds a sandbox around one command and, if the plan needs it,
//! supervises until every process of the command has ended. It reads no policy, knows no profile,
//! and trusts no input.
//!
//! On other systems the library is empty, and both programs use `core/bin/unsupported_system.rs`.
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
