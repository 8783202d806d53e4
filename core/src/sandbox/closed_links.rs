//! Closes the targets of symlinks in closed directories.

use rustix::fs::{FileType, Mode};

use super::error::SandboxError;
use super::landlock::GrantError;
use crate::files::guard::GuardError;
use crate::files::home_listing::{HomeEntry, HomeListing};
use crate::files::walk::WalkError;
use crate::files::{linked_dirs, patterns, symlink};
use crate::plan::Plan;
use crate::plan::wire::bytes::AbsPath;

/// Closes the targets of symlinks in closed directories. From here on the plan lists each of these
/// links like a denied name.
pub fn close(plan: &mut Plan) -> Result<(), SandboxError> {
    let Some(files) = plan.files.as_mut().filter(|_| plan.container.is_none()) else {
        return Ok(());
    };
    let home = HomeListing::at(&plan.user.home);
    let there = files.closed.iter().filter(|path| {
        home.of(path) != HomeEntry::Missing && !patterns::is_system(path.as_bytes())
    });
    let mut closed = Vec::new();
    let refused = |error| match error {
        WalkError::Look { path, source } => SandboxError::from(GrantError::Locate { path, source }),
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
