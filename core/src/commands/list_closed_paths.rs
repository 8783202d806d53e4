//! Answers the verbs `closed` and `links`.

use super::error::Refusal;
use crate::files::guard::GuardError;
use crate::files::linked_dirs;
use crate::plan::wire::bytes::AbsPath;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{Plan, PlanError};

/// The verb `closed`: the paths that the plan closes, and the links in them.
pub fn report(plan: &Plan) -> String {
    let mut out = String::new();
    let closed = plan.files.iter().flat_map(|files| &files.closed);
    writer::strings(&mut out, closed.map(AbsPath::as_bytes), NonUtf8::Surrogate);
    out
}

/// The verb `links`: the symlinks in the directories of a list.
pub fn answer(paths: &[u8]) -> Result<String, Refusal> {
    let paths: Vec<AbsPath> = reader::from_slice(paths).map_err(PlanError::Json)?;
    let found = linked_dirs::links_inside(paths.iter()).map_err(GuardError::from)?;
    let mut out = String::new();
    writer::strings(&mut out, found.iter().map(AbsPath::as_bytes), NonUtf8::Surrogate);
    Ok(out)
}
