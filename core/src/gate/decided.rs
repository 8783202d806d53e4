//! What became of an exec.

use super::expect::{self, Process};
use super::words;

/// What became of an exec, for the journal and for people.
#[derive(Debug)]
pub struct Decided {
    pub process: Process,
    /// Of what was refused: the child of the run's command that it descends from.
    pub branch: Option<u32>,
    pub exe: Vec<u8>,
    pub argv: Vec<u8>,
    pub cwd: Vec<u8>,
    pub outcome: Outcome,
    pub rule: Option<Vec<u8>>,
    pub reason: Option<String>,
    pub by: Option<String>,
    /// How long who was asked took, or had.
    pub asked_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was allowed and runs. Not verified: another program traces it, and the policy lets it.
    Ran {
        verified: bool,
    },
    /// It was allowed, and then the kernel did not start it.
    Failed,
    Denied,
    /// It was allowed, changed what it asked for meanwhile, and was killed.
    Attack(&'static str),
}

impl Decided {
    /// What people are told at once; None: there is nothing wrong.
    pub fn refusal(&self) -> Option<String> {
        const SHOWN: usize = 200;
        let changed = match self.outcome {
            Outcome::Ran { .. } | Outcome::Failed => return None,
            Outcome::Denied => None,
            Outcome::Attack(what) => Some(what),
        };
        let mut line = match &self.argv[..] {
            [] => self.exe.clone(),
            argv => words::joined(expect::words(argv)),
        };
        if line.len() > SHOWN {
            line.truncate(SHOWN);
            line.extend_from_slice("…".as_bytes());
        }
        let line = String::from_utf8_lossy(&line);
        let rule = self.rule.as_ref().map(|rule| format!("rule {}", String::from_utf8_lossy(rule)));
        let because = [rule, self.reason.clone()].into_iter().flatten().collect::<Vec<_>>().join(": ");
        let because = if because.is_empty() { "no rule allows it".to_owned() } else { because };
        Some(match changed {
            None => format!("denied: {line} ({because})"),
            Some(what) => format!("killed: {line} ({what} changed after it was judged, before it ran)"),
        })
    }
}
