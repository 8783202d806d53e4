//! Closes the targets of symlinks in closed directories, and answers the verbs `closed` and
//! `links`.

use rustix::fs::{FileType, Mode};

use super::error::Refusal;
use crate::files::guard::GuardError;
use crate::files::home_listing::{HomeEntry, HomeListing};
use crate::files::walk::WalkError;
use crate::files::{linked_dirs, patterns, symlink};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{Plan, PlanError};
use crate::sandbox::landlock::GrantError;

/// Closes the targets of symlinks in closed directories. From here on the plan lists each of these
/// links like a denied name.
pub fn close(plan: &mut Plan) -> Result<(), Refusal> {
    let Some(files) = plan.files.as_mut().filter(|_| plan.container.is_none()) else {
        return Ok(());
    };
    let home = HomeListing::at(&plan.user.home);
    let there = files.closed.iter().filter(|path| {
        home.of(path) != HomeEntry::Missing && !patterns::is_system(path.as_bytes())
    });
    let mut closed = Vec::new();
    let refused = |error| match error {
        WalkError::Look { path, source } => Refusal::from(GrantError::Locate { path, source }),
        error => GuardError::from(error).into(),
    };
    for link in linked_dirs::links_inside(there).map_err(refused)? {
        let Some(followed) = symlink::leads_to(&link).map_err(GuardError::from)? else { continue };
        // A target that a grant names stays open: a person wrote the grant.
        let granted = files.grants.iter().any(|grant| grant.path.is_within(&followed.end));
        let inner = files.closed.iter().any(|path| followed.end.is_within(path));
        if !granted
            && !inner
            && !patterns::is_system(followed.end.as_bytes())
            && !is_program(&followed.end)
        {
            closed.push(link);
        }
    }
    files.closed.extend(closed);
    Ok(())
}

/// A file that everybody may read and execute is no secret. Such directories link to plug-ins and
/// interpreters.
fn is_program(path: &AbsPath) -> bool {
    let everybody = Mode::ROTH | Mode::XOTH;
    rustix::fs::lstat(path.as_c_str()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && Mode::from_raw_mode(stat.st_mode).contains(everybody)
    })
}

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
