//! Questions to a person, and their answers.

pub mod approvals_server;
pub mod approver_process;
pub mod open_questions;
