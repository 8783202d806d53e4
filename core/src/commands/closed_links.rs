//! Closes what symlinks in closed directories lead to, and answers the verbs `closed` and `links`.

use rustix::fs::{FileType, Mode};

use super::error::Refusal;
use crate::files::guard::GuardError;
use crate::files::home_listing::{HomeListing, Seen};
use crate::files::walk::WalkError;
use crate::files::{linked_dirs, patterns, symlink};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{Plan, PlanError};
use crate::sandbox::landlock::FilesError;

/// Closes what symlinks in closed directories lead to. From here on the plan's list has these
/// links, each like a name that was denied.
pub fn close(plan: &mut Plan) -> Result<(), Refusal> {
    let Some(files) = plan.files.as_mut().filter(|_| plan.container.is_none()) else {
        return Ok(());
    };
    let home = HomeListing::at(&plan.user.home);
    let there = files
        .closed
        .iter()
        .filter(|path| home.of(path) != Seen::Missing && !patterns::is_system(path.as_bytes()));
    let mut closed = Vec::new();
    let refused = |error| match error {
        WalkError::Look { path, source } => Refusal::from(FilesError::Locate { path, source }),
        error => GuardError::from(error).into(),
    };
    for link in linked_dirs::inside(there).map_err(refused)? {
        let Some(followed) = symlink::leads_to(&link).map_err(GuardError::from)? else { continue };
        // A place that was granted itself stays open: the grant is a person's word.
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

/// A file that everybody may read and execute is no secret: plug-ins and interpreters are linked to
/// from such directories.
fn is_program(path: &AbsPath) -> bool {
    let everybody = Mode::ROTH | Mode::XOTH;
    rustix::fs::lstat(path.as_c_str()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && Mode::from_raw_mode(stat.st_mode).contains(everybody)
    })
}

/// The verb `closed`: the places that the plan closes, and the links in them.
pub fn report(plan: &Plan) -> String {
    let mut out = String::new();
    let closed = plan.files.iter().flat_map(|files| &files.closed);
    writer::strings(&mut out, closed.map(AbsPath::as_bytes), NonUtf8::Surrogate);
    out
}

/// The verb `links`: the symlinks in the directories of a list.
pub fn answer(asked: &[u8]) -> Result<String, Refusal> {
    let asked: Vec<AbsPath> = reader::from_slice(asked).map_err(PlanError::Json)?;
    let found = linked_dirs::inside(asked.iter()).map_err(GuardError::from)?;
    let mut out = String::new();
    writer::strings(&mut out, found.iter().map(AbsPath::as_bytes), NonUtf8::Surrogate);
    Ok(out)
}
