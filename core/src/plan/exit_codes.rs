//! Exit codes of Paddock itself, which Python passes on.

/// Nothing was run.
pub const EXIT_REFUSED: i32 = 125;
pub const EXIT_NOT_EXECUTABLE: i32 = 126;
pub const EXIT_NOT_FOUND: i32 = 127;
