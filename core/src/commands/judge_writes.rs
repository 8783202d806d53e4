//! `judge-writes`: prints the decisions of the judge of writes, before anything runs.

use serde::Deserialize;

use super::error::Refusal;
use super::run;
use crate::files::writes::{NameAct, written_trees};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::wire::reader;
use crate::plan::wire::writer;
use crate::plan::{Plan, PlanError};
use crate::sandbox::apply_restrictions::Restrictions;
use crate::sandbox::preflight::Preflight;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameToJudge {
    path: AbsPath,
    act: AskedAct,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AskedAct {
    Make,
    Remove,
    Change,
}

impl From<AskedAct> for NameAct {
    fn from(act: AskedAct) -> NameAct {
        match act {
            AskedAct::Make => NameAct::Make,
            AskedAct::Remove => NameAct::Remove,
            AskedAct::Change => NameAct::Change,
        }
    }
}

/// For each name the decision, and whether its metadata may be changed. An empty list: the plan has
/// no writes to judge.
pub fn report(plan: &Plan, question: &[u8]) -> Result<String, Refusal> {
    let names: Vec<NameToJudge> = reader::from_slice(question).map_err(PlanError::Json)?;
    let restrictions = Restrictions::prepare(plan, &[], Vec::new())?;
    let preflight = Preflight::prepare(plan, &restrictions, None)?;
    let mut answers = Vec::new();
    let trees = written_trees::of_plan(plan, None);
    if let Some(mut judge) = run::judged_writer(plan, preflight.files.as_ref(), trees, None)? {
        for NameToJudge { path, act } in &names {
            let answer = judge.answer((*act).into(), path.as_bytes());
            // Init answers an error, too.
            let answer = answer.map_or("failed", |one| one.name());
            answers.push((answer, judge.may_change_metadata(path.as_bytes())));
        }
    }
    let mut out = String::new();
    writer::list(&mut out, answers, |out, (answer, may_change)| {
        out.push_str(&format!("{{\"answer\":\"{answer}\",\"metadata\":{may_change}}}"));
    });
    Ok(out)
}
