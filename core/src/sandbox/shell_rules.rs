//! The Landlock rules of intercepted shells. A shell takes them for itself, and init makes them again
//! for the calls that it does for such a shell.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd};

use landlock::AccessFs;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::apply_restrictions::Restrictions;
use super::closed_links;
use super::landlock::{self as rules, FileGrants};
use super::root::shells::REAL_SHELLS_LINK;
use crate::files::writes::{LayerRules, ShellLayer};
use crate::kernel::sys;
use crate::plan::rights::Rights;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::{Plan, Shell};

/// The real shells may be executed, whatever else may be read.
pub fn allow_real_shells(ruleset: BorrowedFd<'_>, dir: &[u8]) -> Result<(), Errno> {
    let rights = Rights::from(AccessFs::Execute | AccessFs::ReadFile);
    let dir = CString::new(dir).map_err(|_| Errno::INVAL)?;
    let shells = rustix::fs::open(&dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    sys::landlock_add_rule(ruleset, rights.bits(), shells.as_fd())
}

/// For init, in the finished root. None: shells are ordinary programs.
pub fn layer_of(plan: &Plan, restrictions: &Restrictions) -> Result<Option<ShellLayer>, Errno> {
    let Some(shell) = &plan.shell else { return Ok(None) };
    let (text, uid) = (shell.plan.clone(), plan.user.uid);
    let shell_plan = Shell::read(&text, uid).map_err(|_| Errno::INVAL)?;
    let restricts_files =
        shell_plan.files.as_ref().is_some_and(|files| !shell_plan.opens_all(files));
    let restricts_ports = shell_plan.network.is_some();
    let make_rules = Box::new(move || make_rules(&text, uid));
    let filters = restrictions.filter_count();
    ShellLayer::new(filters, restricts_files, restricts_ports, make_rules).map(Some)
}

/// The same rules as those of a shell that enters now. None: this shell can not enter either.
fn make_rules(text: &Text, uid: u32) -> Option<LayerRules> {
    let mut plan = Shell::read(text, uid).ok()?;
    closed_links::close(&mut plan).ok()?;
    let (ruleset, _) = rules::create_ruleset(&plan, plan.landlock.as_ref()?).ok()?;
    FileGrants::anywhere(&plan, Some(ruleset.as_fd())).ok()?;
    allow_real_shells(ruleset.as_fd(), REAL_SHELLS_LINK.to_bytes()).ok()?;
    let files = plan.files.as_ref()?;
    let written = files.grants.iter().filter(|grant| grant.writes()).map(|grant| &grant.path);
    let unwritable = files.closed.iter().chain(&files.unwritable);
    Some(LayerRules {
        ruleset,
        writable: written.map(resolved).collect(),
        unwritable: unwritable
            .flat_map(|path| [path.as_bytes().to_vec(), resolved(path)])
            .collect(),
    })
}

/// Where a path leads. A path that does not exist stays as it is.
fn resolved(path: &AbsPath) -> Vec<u8> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let real = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).and_then(|object| {
        let mut buffer = [0; 32];
        let link = crate::kernel::open_beneath::proc_fd_path(&object, &mut buffer);
        rustix::fs::readlink(link, Vec::new())
    });
    real.map_or_else(|_| path.as_bytes().to_vec(), CString::into_bytes)
}
