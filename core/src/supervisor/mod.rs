//! The parent process while the command runs: one event loop, and what it serves.

pub mod call_handlers;
pub mod event_loop;
pub mod observer;
pub mod rename_handler;
pub mod session_owner;
pub mod tasks;
