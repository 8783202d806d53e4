//! The exec gate of a plan: which programs may start, with which arguments. gate/rules.rs says what
//! the rules mean.

use serde::Deserialize;

use super::PlanError;
use super::deserializers::present;
use super::wire::bytes::Text;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GatePlan {
    /// The action if no rule matches.
    pub default: Action,
    /// The action if an exec can not be judged; never `allow`.
    pub on_error: Action,
    /// The time limit of a decision.
    pub timeout_ms: u32,
    /// The time limit of a person's answer.
    pub ask_timeout_s: u32,
    /// True: programs in the sandbox may trace each other. Then a tracer can change a program after
    /// the decision.
    pub trace: bool,
    /// Programs that the command could have created start only if a rule names their path or their
    /// content.
    pub exec_only_granted: bool,
    /// The first matching rule decides.
    pub rules: Vec<ExecRule>,
    /// What a person approved permanently. These rules only answer questions.
    pub approved: Vec<ExecRule>,
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
pub struct ExecRule {
    pub id: Text,
    pub action: Action,
    #[serde(deserialize_with = "present")]
    pub reason: Option<Text>,
    pub source: Text,
    #[serde(rename = "match")]
    pub matches: Vec<ExecRuleMatch>,
}

/// One key of a rule with its values. One of them must match; with `not`, none may match.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRuleMatch {
    pub key: ExecRuleKey,
    pub not: bool,
    pub values: Vec<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecRuleKey {
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

impl GatePlan {
    /// The gate checks the values when it compiles them.
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

fn check(rules: &[ExecRule]) -> Result<(), PlanError> {
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
