//! The supervisor's side: starts the relay and its helpers, and reads what they decide.

pub mod denial_reason;
pub mod helper_process;
pub mod host_questions;
pub mod http_helper;
pub mod loopback_proxy;
pub mod prepare;
pub mod proxy_password;
pub mod published_ports;
pub mod relay_process;
pub mod socket_processes;
