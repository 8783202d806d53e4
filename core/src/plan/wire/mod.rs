//! How values cross between Python and Rust: canonical JSON, byte strings, absolute paths.

pub mod bytes;
pub mod find_byte;
pub mod reader;
pub mod writer;
