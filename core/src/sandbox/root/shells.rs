//! Intercepted shells. This program is mounted over each shell. The real shells are on a file
//! system of their own, under the paths that they had. Beside them is the plan that this program
//! reads when it is started as a shell (`commands/intercepted_shell.rs`).
//!
//! The name of that directory is random in every run. No safety rests on that: a process that
//! starts a real shell from there is in the sandbox like every other, and exec rules deny it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use landlock::AccessFs;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{
    RootBlueprint, RootResult, attach_at, failed, make_dir, new_tmpfs, put_on_new_file, relative,
};
use crate::kernel::mount::{self, NO_SUID_NO_DEV, READ_ONLY};
use crate::kernel::random_name::random_name;
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys;
use crate::plan::rights::Rights;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{REAL_SHELLS_DIGITS, REAL_SHELLS_PREFIX, Shell};
use crate::sandbox::landlock::GrantLocation;

/// The programs that are intercepted.
pub const SHELL_NAMES: [&str; 4] = ["bash", "dash", "sh", "zsh"];
/// The directory of real shells, or a link to it. Outside of a run only root can make it; inside no
/// process can.
pub const REAL_SHELLS_LINK: &CStr = c"/dev/.paddock-shell";
/// The plan of shells, in the directory of the real ones.
pub const SHELL_PLAN_FILE: &str = "plan.json";
const SHELL_DIRS: [&str; 3] = ["bin", "usr/bin", "usr/local/bin"];
const TMPFS_SIZE_MB: u64 = 1;

pub struct Interception<'a> {
    requested: &'a Shell,
    /// This program, as a mount.
    own: OwnedFd,
    /// The directory of the real shells.
    dir: Vec<u8>,
}

/// A shell of the new root.
struct FoundShell {
    path: Vec<u8>,
    file: OwnedFd,
}

impl<'a> Interception<'a> {
    /// None: shells are not intercepted. Called while the host's paths are visible.
    pub fn prepare(blueprint: &RootBlueprint<'a>) -> RootResult<Option<Interception<'a>>> {
        let Some(requested) = &blueprint.plan.shell else { return Ok(None) };
        let failure = || failed("cannot mount paddock-core over the shell", b"/proc/self/exe");
        let path = rustix::fs::readlink(c"/proc/self/exe", Vec::new()).map_err(failure())?;
        let opened = mount::open_host(&path)
            .map_err(failed("cannot mount paddock-core over the shell", path.to_bytes()))?;
        let same = rustix::fs::stat(c"/proc/self/exe").and_then(|running| {
            let found = rustix::fs::fstat(&opened)?;
            if Identity::from(&running) == Identity::from(&found) {
                Ok(())
            } else {
                Err(Errno::STALE)
            }
        });
        same.map_err(failure())?;
        let own = mount::clone_tree(opened, NO_SUID_NO_DEV | READ_ONLY).map_err(failure())?;
        let name = random_name().map_err(failure())?;
        Ok(Some(Interception {
            requested,
            own,
            dir: [REAL_SHELLS_PREFIX, &name.as_bytes()[..REAL_SHELLS_DIGITS]].concat(),
        }))
    }

    /// Makes its directory in /dev, before /dev is locked.
    pub fn make_place(&self, root: BorrowedFd<'_>) -> RootResult<()> {
        make_dir(root, &self.dir)?;
        let target = CString::new(&self.dir[b"/dev/".len()..]).unwrap_or_default();
        let link = relative(REAL_SHELLS_LINK.to_bytes())?;
        rustix::fs::symlinkat(&target, root, &link)
            .map_err(failed("cannot link", REAL_SHELLS_LINK.to_bytes()))
    }

    /// Called when all grants are mounted.
    pub fn intercept(
        &self,
        root: BorrowedFd<'_>,
        blueprint: &RootBlueprint<'_>,
        locations: &[GrantLocation<'_>],
        rulesets: &[BorrowedFd<'_>],
    ) -> RootResult<()> {
        attach_at(root, &self.dir, &new_tmpfs(Some(TMPFS_SIZE_MB))?)?;
        let own = [&self.dir[..], b"/core"].concat();
        put_on_new_file(root, &own, &relative(&own)?, &self.own)?;
        let own =
            mount::open_below_root(root, &relative(&own)?).map_err(failed("cannot open", own))?;
        let shells = find(root)?;
        for shell in shells.iter().filter(|shell| may_run(blueprint, locations, &shell.path)) {
            let failure = || failed("cannot intercept", &shell.path);
            let kept = [&self.dir[..], &shell.path].concat();
            let real =
                mount::clone_tree(&shell.file, NO_SUID_NO_DEV | READ_ONLY).map_err(failure())?;
            put_on_new_file(root, &kept, &relative(&kept)?, &real)?;
            let over = mount::clone_tree(&own, NO_SUID_NO_DEV | READ_ONLY).map_err(failure())?;
            mount::attach(over, &shell.file).map_err(failure())?;
        }
        self.write(root)?;
        let dir = mount::open_below_root(root, &relative(&self.dir)?)
            .map_err(failed("cannot open", &self.dir))?;
        sys::mount_setattr(dir.as_fd(), false, (NO_SUID_NO_DEV | READ_ONLY).bits().into(), 0)
            .map_err(failed("cannot lock", &self.dir))?;
        let rights = Rights::from(AccessFs::Execute | AccessFs::ReadFile);
        for ruleset in rulesets {
            sys::landlock_add_rule(*ruleset, rights.bits(), dir.as_fd())
                .map_err(failed("cannot grant", &self.dir))?;
        }
        Ok(())
    }

    fn write(&self, root: BorrowedFd<'_>) -> RootResult<()> {
        let path = [&self.dir[..], b"/", SHELL_PLAN_FILE.as_bytes()].concat();
        let failure = || failed("cannot write", &path);
        let mut text =
            format!("{{\"on_failure\":\"{}\",\"plan\":", self.requested.on_failure.name());
        writer::string(&mut text, self.requested.plan.as_bytes(), NonUtf8::Surrogate);
        text.push_str(",\"shells\":null,\"token\":\"");
        for _ in 0..4 {
            text.push_str(&random_name().map_err(failure())?);
        }
        text.push_str("\"}");
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(root, relative(&path)?, flags, Mode::from_raw_mode(0o444))
            .map_err(failure())?;
        match rustix::io::write(&file, text.as_bytes()) {
            Ok(length) if length == text.len() => Ok(()),
            Ok(_) => Err(failure()(Errno::NOSPC)),
            Err(errno) => Err(failure()(errno)),
        }
    }
}

/// Finds each shell once, by its resolved path.
fn find(root: BorrowedFd<'_>) -> RootResult<Vec<FoundShell>> {
    let real = |file: &dyn std::os::fd::AsFd| {
        let name = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
        rustix::fs::readlink(name, Vec::new()).map(CString::into_bytes)
    };
    let top = real(&root).map_err(failed("cannot find", b"/"))?;
    let mut shells: Vec<FoundShell> = Vec::new();
    for (dir, name) in
        SHELL_DIRS.iter().flat_map(|dir| SHELL_NAMES.iter().map(move |name| (dir, name)))
    {
        let requested = relative(format!("{dir}/{name}").as_bytes())?;
        let Some(file) = regular(root, &requested)? else { continue };
        let whole = real(&file).map_err(failed("cannot find", requested.to_bytes()))?;
        let path = whole.strip_prefix(&top[..]).unwrap_or(&whole).to_vec();
        if shells.iter().all(|shell| shell.path != path) {
            shells.push(FoundShell { path, file });
        }
    }
    Ok(shells)
}

fn regular(root: BorrowedFd<'_>, path: &CStr) -> RootResult<Option<OwnedFd>> {
    let failure = || failed("cannot intercept", path.to_bytes());
    match mount::follow_below_root(root, path) {
        Ok(file) => {
            let stat = rustix::fs::statat(&file, c"", AtFlags::EMPTY_PATH).map_err(failure())?;
            Ok((FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(file))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => Ok(None),
        Err(errno) => Err(failure()(errno)),
    }
}

/// May the shell be executed at all? The copy is executable whatever was granted. A closed shell is
/// covered later, by its inode.
fn may_run(blueprint: &RootBlueprint<'_>, locations: &[GrantLocation<'_>], path: &[u8]) -> bool {
    let above = |tree: &[u8]| {
        tree == b"/" || path.strip_prefix(tree).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    };
    let executes = |location: &&GrantLocation<'_>| {
        blueprint.plan.landlock.is_none() && location.grant.executes()
            || blueprint.plan.rights(&location.grant.access).contains(AccessFs::Execute)
    };
    let granted = locations
        .iter()
        .filter(|location| above(location.real.as_bytes()))
        .any(|location| executes(&location));
    granted && !blueprint.requested.closed.iter().any(|closed| above(closed.as_bytes()))
}
