//! Limits on the whole process tree.

use serde::Deserialize;

use super::present;

/// The limits as the plan has them. Every key is present; `null` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestedLimits {
    #[serde(deserialize_with = "present")]
    pub memory_mb: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub processes: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub cpu_s: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub open_files: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub file_size_mb: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub wall_s: Option<u64>,
}
