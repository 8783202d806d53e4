//! The message about an exec that did not run.

use super::argv_text;
use crate::journal::event::exec::{self, ExecReport, ExecResult};

impl ExecReport {
    /// The line that is printed at once. None: the exec was not denied.
    pub fn refusal(&self) -> Option<String> {
        const MAX_SHOWN_BYTES: usize = 200;
        let changed = match self.result {
            ExecResult::Ran { .. } | ExecResult::Failed => return None,
            ExecResult::Denied => None,
            ExecResult::Attack(what) => Some(what),
        };
        let mut line = match &self.argv[..] {
            [] => self.exe.clone(),
            argv => argv_text::joined(exec::nul_separated(argv)),
        };
        if line.len() > MAX_SHOWN_BYTES {
            line.truncate(MAX_SHOWN_BYTES);
            line.extend_from_slice("…".as_bytes());
        }
        let line = String::from_utf8_lossy(&line);
        let rule = self.rule.as_ref().map(|rule| format!("rule {}", String::from_utf8_lossy(rule)));
        let because =
            [rule, self.reason.clone()].into_iter().flatten().collect::<Vec<_>>().join(": ");
        let because = if because.is_empty() { "no rule allows it".to_owned() } else { because };
        Some(match changed {
            None => format!("denied: {line} ({because})"),
            Some(what) => {
                format!("killed: {line} ({what} changed after the check, before it ran)")
            }
        })
    }
}
