//! What the fence refused of a file.

use serde::Deserialize;

use crate::plan::wire::bytes::Text;

/// What the fence has refused, as the Python half judges it.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedFileAccess {
    pub op: Text,
    pub path: Text,
    pub program: Text,
    pub reason: Text,
    /// The option that would have allowed it; None: there is none.
    #[serde(deserialize_with = "Option::deserialize")]
    pub allow: Option<Text>,
}

impl RefusedFileAccess {
    /// For people.
    pub fn line(&self) -> String {
        let allow =
            self.allow.as_ref().map_or(String::new(), |allow| format!("; to allow it: {allow}"));
        format!("refused: {} {} by {}: {}{allow}", self.op, self.path, self.program, self.reason)
    }
}
