//! Which hosts may be reached: the compiled table. Pure.

pub mod address;
pub mod host_table;
pub mod http_hosts;
