//! A file access that the sandbox refused.

use serde::Deserialize;

use crate::plan::wire::bytes::Text;

/// A refused file access, as the Python observer reports it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedFileAccess {
    pub op: Text,
    pub path: Text,
    pub program: Text,
    pub reason: Text,
    /// The option that would allow it. None: there is none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub allow: Option<Text>,
}

impl RefusedFileAccess {
    /// The message for the user.
    pub fn line(&self) -> String {
        let allow =
            self.allow.as_ref().map_or(String::new(), |allow| format!("; to allow it: {allow}"));
        format!("refused: {} {} by {}: {}{allow}", self.op, self.path, self.program, self.reason)
    }
}
