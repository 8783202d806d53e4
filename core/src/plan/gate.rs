//! The gate of a plan: which programs may be started, with which arguments. What the rules mean is
//! in gate/rules.rs.

use serde::Deserialize;

use super::PlanError;
use super::values::present;
use super::wire::bytes::Text;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// For what no rule matches.
    pub default: Action,
    /// For what can not be judged; never allow.
    pub on_error: Action,
    /// How long a judgement may take.
    pub timeout_ms: u32,
    /// How long a person may take.
    pub ask_timeout_s: u32,
    /// May programs inside trace each other? Then one can be changed after it was judged.
    pub trace: bool,
    /// Programs that the command could have made itself start only by rules that name their place
    /// or their content.
    pub exec_only_granted: bool,
    /// The first that matches decides.
    pub rules: Vec<Rule>,
    /// What a person approved for good: they answer questions, and nothing else.
    pub approved: Vec<Rule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    Allow,
    Deny,
    Ask,
}

impl Action {
    pub fn name(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Deny => "deny",
            Action::Ask => "ask",
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub id: Text,
    pub action: Action,
    #[serde(deserialize_with = "present")]
    pub reason: Option<Text>,
    pub source: Text,
    #[serde(rename = "match")]
    pub matches: Vec<Match>,
}

/// One key of a rule with the values it lists, one of which has to fit; or, with `not`, none.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    pub key: Key,
    pub not: bool,
    pub values: Vec<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    Exe,
    ExeBasename,
    ExeGlob,
    ExeSha256,
    ArgvRegex,
    ArgvContains,
    ArgvHostIn,
    CwdGlob,
    Uid,
    ParentExe,
    ParentArgv,
}

impl Gate {
    /// The values are checked where they are compiled.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.on_error == Action::Allow {
            return Err(PlanError::Gate("permission for programs that cannot be checked"));
        }
        if self.timeout_ms == 0 || self.ask_timeout_s == 0 {
            return Err(PlanError::Gate("no time to answer"));
        }
        if self.approved.iter().any(|rule| rule.action != Action::Allow) {
            return Err(PlanError::Gate("an approval that does not allow"));
        }
        check(&self.rules)?;
        check(&self.approved)
    }
}

fn check(rules: &[Rule]) -> Result<(), PlanError> {
    for (index, rule) in rules.iter().enumerate() {
        if rule.id.as_bytes().is_empty() {
            return Err(PlanError::Gate("an empty id"));
        }
        if rules[..index].iter().any(|earlier| earlier.id == rule.id) {
            return Err(PlanError::Gate("one id twice"));
        }
        if rule.matches.is_empty() || rule.matches.iter().any(|one| one.values.is_empty()) {
            return Err(PlanError::Gate("nothing to match"));
        }
    }
    Ok(())
}
