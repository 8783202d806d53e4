//! How values cross between Python and Rust: canonical JSON, byte strings, absolute paths.

pub(crate) mod bytes;
pub(crate) mod find_byte;
pub mod reader;
pub(crate) mod writer;
