//! The full tier besides its restrictions: the locations of grants, the covers, the guard, and the
//! copy of the workspace.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use super::apply_restrictions::Restrictions;
use super::error::SandboxError;
use super::init::{self, Launch, SandboxStart, SendMessage};
use super::init_channel::InitMessage;
use super::landlock::{FileGrants, GrantError, grant_location};
use super::preflight::Preflight;
use super::root::RootBlueprint;
use super::start_scan::ScanInputs;
use crate::files::cover::{Cover, CoverKind};
use crate::files::guard::Guard;
use crate::files::host_sockets;
use crate::files::workspace::session_dir::{Session, SessionError};
use crate::files::workspace::whiteouts::{self, Whiteouts};
use crate::files::writes::{self, FoundObjects, ScannedNames, WriteLock};
use crate::kernel::mount;
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::MAX_PATH_BYTES;
use crate::limits::Limits;
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{self, Namespaces, Plan, Tier};

pub struct FullTier<'p> {
    plan: &'p Plan,
    namespaces: &'p Namespaces,
    requested: &'p plan::FilesPlan,
    /// Set by the start: the names that a copy hides, and the guard.
    pub whiteouts: Whiteouts,
    pub guard: Option<Guard>,
    pub session: Option<Session>,
    run: Option<RunRecord<'p>>,
    /// For init, which does the writes of the command.
    lock: Cell<Option<WriteLock>>,
}

/// The facts about a run that the note of its session stores.
#[derive(Clone, Copy)]
pub struct RunRecord<'p> {
    pub session_id: &'p str,
    pub argv: &'p [CString],
    pub plan_sha256: &'p str,
}

/// So many whiteouts are made in half a millisecond. If more are needed to hide every denied name
/// in every directory, only the likely directories get them, and the guard covers the others.
const MAX_WHITEOUTS: usize = 256;

impl<'p> FullTier<'p> {
    /// Without a run nothing is made on disk.
    pub fn prepare(
        plan: &'p Plan,
        namespaces: &'p Namespaces,
        requested: &'p plan::FilesPlan,
        run: Option<RunRecord<'p>>,
        lock: Option<WriteLock>,
    ) -> Result<FullTier<'p>, SandboxError> {
        let session = match (&plan.workspace, run) {
            (Some(workspace), Some(run)) => {
                Some(Session::open(&plan.sessions, workspace, run.session_id)?)
            }
            _ => None,
        };
        let whiteouts = Whiteouts::default();
        Ok(FullTier {
            plan,
            namespaces,
            requested,
            whiteouts,
            guard: None,
            session,
            run,
            lock: Cell::new(lock),
        })
    }

    /// The covers of paths that are closed or unwritable, and the closed paths inside directory
    /// grants, which the guard covers.
    fn by_path(&self, files: &FileGrants<'_>) -> Result<(Vec<Cover>, Vec<Cover>), SandboxError> {
        let FullTier { plan, requested, .. } = self;
        // A mask is lost when the host replaces the masked object. Where that can happen, the guard
        // has to cover the name.
        let live = |cover: &Cover| is_live(files, copied(plan), &cover.path);
        let replaceable = |cover: &Cover| is_replaceable(files, copied(plan), &cover.path);
        let (masked, mut covers): (Vec<_>, Vec<_>) = files
            .covers(requested)?
            .into_iter()
            .partition(|cover| cover.kind == CoverKind::Mask && replaceable(cover));
        let pins = files.pins(masked.iter().chain(covers.iter().filter(|cover| live(cover))))?;
        covers.splice(..0, pins);
        Ok((covers, masked))
    }

    /// Finds the names to hide and to cover.
    fn scan_grants(&self, files: &FileGrants<'_>) -> Result<StartScan, SandboxError> {
        let FullTier { requested, session, .. } = self;
        let (mut covers, masked) = self.by_path(files)?;
        let inputs =
            ScanInputs::of(requested, files, &covers, &masked, copied(self.plan), &[], Tier::Full)?;
        let ArmedGuard { mut guard, covers: mut found, for_judge } =
            arm_guard(inputs, writes::are_judged(self.plan))?;
        found.extend(service_sockets(files, covers.iter().chain(&found))?);
        let found = shorten_paths(found)?;
        let Some(session) = session else {
            covers.extend(found);
            return Ok(StartScan { guard, covers, for_judge, ..StartScan::default() });
        };
        let workspace = session.workspace();
        let masks = covers.iter().chain(&found).filter(|cover| cover.kind == CoverKind::Mask);
        let hidden: Vec<_> = masks
            .map(|cover| cover.path.clone())
            .filter(|path| path.is_within(workspace))
            .collect();
        let whiteouts = choose_whiteouts(requested, files, &hidden, workspace, guard.as_mut())?;
        // A hidden name needs no mask.
        let shown = |cover: &Cover| {
            cover.kind != CoverKind::Mask || !whiteouts.hides(workspace, &cover.path)
        };
        covers.extend(found.into_iter().filter(shown));
        Ok(StartScan { guard, covers, whiteouts, hidden, for_judge })
    }

    /// `look` returns the locations of the grants. It is called while init makes its namespaces,
    /// and nothing runs if it refuses. `announce` is called when the hidden names of a copy are
    /// known.
    pub fn start<'f>(
        &mut self,
        launch: Launch<'_>,
        ca_bundle: Option<&OwnedFd>,
        look: impl FnOnce() -> Result<Option<FileGrants<'f>>, SandboxError>,
        announce: impl Fn(&Whiteouts),
    ) -> Result<SandboxStart, SandboxError> {
        let Launch { terminal, limits, .. } = launch;
        let FullTier { plan, namespaces, requested, session, run, .. } = &*self;
        let blueprint = RootBlueprint {
            plan,
            namespaces,
            requested,
            session: session.as_ref(),
            terminal,
            ca_bundle,
            pid_max: limits.and_then(Limits::pid_max),
            gid: rustix::process::getegid().as_raw(),
            lock: &self.lock,
        };
        let mut kept = (None, Whiteouts::default());
        let admit =
            |pid| limits.map_or(Ok(()), |limits| limits.admit(pid)).map_err(|error| error.errno());
        let (mut look, mut files) = (Some(look), None);
        let meanwhile = |send: SendMessage<'_>| {
            if let Some(look) = look.take() {
                let found =
                    files.insert(look()?.ok_or(SandboxError::Usage("the plan has no files"))?);
                InitMessage::grant_locations(&grant_location::encode(requested, &found.locations))
                    .for_each(|message| send(&message));
                send(&InitMessage::All);
            }
            let Some(files) = &files else {
                return Err(SandboxError::Usage("the plan has no files"));
            };
            // The guard of an earlier round watched names that have moved since.
            kept = (None, Whiteouts::default());
            let StartScan { guard, covers, whiteouts, hidden, for_judge } =
                self.scan_grants(files)?;
            if let (Some(session), Some(run)) = (session, run) {
                // Describes the copy before anything can change in it.
                let directories = guard
                    .as_ref()
                    .map(|guard| guard.numbered(session.workspace()))
                    .unwrap_or_default();
                session.note(run.argv, &hidden, &directories, plan, run.plan_sha256)?;
                if guard.is_some() {
                    announce(&whiteouts);
                }
                InitMessage::hiding(whiteouts.names()).iter().for_each(&mut *send);
                send(&InitMessage::All);
            }
            if writes::are_judged(plan) {
                let names = guard.as_ref().map(Guard::patterns);
                let names = ScannedNames::write(names, &for_judge);
                InitMessage::scanned_names(&names).for_each(|message| send(&message));
                send(&InitMessage::All);
            }
            covers.into_iter().for_each(|cover| send(&InitMessage::Cover(cover)));
            send(&InitMessage::All);
            kept = (guard, whiteouts);
            Ok(())
        };
        let started = init::start(&blueprint, launch, admit, meanwhile);
        (self.guard, self.whiteouts) = kept;
        started
    }
}

/// The workspace, if the command works on a copy of it.
fn copied(plan: &Plan) -> Option<&AbsPath> {
    plan.workspace.as_ref().map(|workspace| &workspace.path)
}

/// The verb `covers`: the covers of names that exist now, and the symlinks in git directories,
/// which get no cover.
pub fn report(plan: &Plan) -> Result<String, SandboxError> {
    let (mut covers, mut guard) = (Vec::new(), None);
    let restrictions = Restrictions::prepare(plan, &[], Vec::new())?;
    let mut preflight = Preflight::prepare(plan, &restrictions, None)?;
    if let (Some(namespaces), Some(requested), Some(files), None) =
        (&plan.namespaces, &plan.files, preflight.files.take(), &plan.container)
    {
        let full_tier = FullTier::prepare(plan, namespaces, requested, None, None)?;
        let (by_path, masked) = full_tier.by_path(&files)?;
        let inputs =
            ScanInputs::of(requested, &files, &by_path, &masked, copied(plan), &[], Tier::Full)?;
        let ArmedGuard { guard: armed, covers: found, .. } = arm_guard(inputs, false)?;
        guard = armed;
        let service_sockets = service_sockets(&files, by_path.iter().chain(&found))?;
        covers = [by_path, shorten_paths([found, service_sockets].concat())?].concat();
    }
    let mut out = String::from("{\"covers\":");
    writer::list(&mut out, &covers, |out, cover| {
        out.push_str("{\"path\":");
        writer::string(out, cover.path.as_bytes(), NonUtf8::Surrogate);
        let (device, inode) = (cover.identity.device(), cover.identity.inode());
        out.push_str(&format!(
            ",\"kind\":\"{}\",\"device\":{device},\"inode\":{inode}}}",
            cover.kind.name()
        ));
    });
    let links = guard.as_ref().map_or(&[][..], Guard::links_in_git);
    out.push_str(",\"links\":");
    writer::list(&mut out, links, |out, (path, target)| {
        out.push_str("{\"path\":");
        writer::string(out, path.as_bytes(), NonUtf8::Surrogate);
        out.push_str(",\"said\":");
        writer::string(out, target, NonUtf8::Surrogate);
        out.push('}');
    });
    out.push('}');
    Ok(out)
}

/// The result of the search through the grants.
#[derive(Default)]
struct StartScan {
    guard: Option<Guard>,
    covers: Vec<Cover>,
    whiteouts: Whiteouts,
    /// Names that the command must not see in its copy.
    hidden: Vec<AbsPath>,
    /// What the judge of writes needs besides patterns.
    for_judge: FoundObjects,
}

/// A guard that watches, and what its scan found. The default: there is nothing to guard.
#[derive(Default)]
struct ArmedGuard {
    guard: Option<Guard>,
    covers: Vec<Cover>,
    for_judge: FoundObjects,
}

/// Searches the grants for denied and protected names, and starts the guard.
fn arm_guard(inputs: Option<ScanInputs>, is_judged: bool) -> Result<ArmedGuard, SandboxError> {
    let Some(ScanInputs { names, trees, left_out, closed }) = inputs else {
        return Ok(ArmedGuard::default());
    };
    let mut for_judge = FoundObjects::default();
    let (guard, covers) = Guard::arm(names, &trees, &left_out, &closed, is_judged, &mut for_judge)?;
    Ok(ArmedGuard { guard: Some(guard), covers, for_judge })
}

/// Covers for the sockets of services that no grant names and that are not covered yet.
fn service_sockets<'c>(
    files: &FileGrants<'_>,
    covers: impl Iterator<Item = &'c Cover>,
) -> Result<Vec<Cover>, SandboxError> {
    let granted = files.sockets();
    let masks: Vec<&Cover> = covers.filter(|cover| cover.kind == CoverKind::Mask).collect();
    let shown = |path: &AbsPath| {
        files.locations.iter().any(|location| location.directory && path.is_within(&location.real))
    };
    let is_granted = |path: &AbsPath| granted.iter().any(|(other, _)| other == path);
    let is_masked = |path: &AbsPath| masks.iter().any(|mask| path.is_within(&mask.path));
    host_sockets::covers(|path| shown(path) && !is_granted(path) && !is_masked(path))
        .map_err(SandboxError::Services)
}

/// A path that is longer than the kernel takes is covered by its last directory that is short
/// enough.
fn shorten_paths(covers: Vec<Cover>) -> Result<Vec<Cover>, SandboxError> {
    let (mut covers, deep): (Vec<_>, Vec<_>) =
        covers.into_iter().partition(|cover| cover.path.as_bytes().len() < MAX_PATH_BYTES);
    for cover in deep {
        let path = cover.path.as_bytes();
        let end = path[..MAX_PATH_BYTES].iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let above = Text::from_bytes(path[..end].to_vec()).and_then(AbsPath::new);
        let above = above.map_err(|_| SandboxError::Usage("the scan found an invalid path"))?;
        if covers.iter().any(|other| other.path == above && other.kind == CoverKind::Mask) {
            continue;
        }
        let stat = rustix::fs::lstat(above.as_c_str());
        let stat = stat.map_err(|source| GrantError::Locate { path: above.clone(), source })?;
        covers.retain(|other| other.path != above);
        let identity = Identity::from(&stat);
        covers.push(Cover { path: above, identity, directory: true, kind: CoverKind::Mask });
    }
    Ok(covers)
}

/// Does the path lie in a directory that the command and the host write to?
fn is_live(files: &FileGrants<'_>, workspace: Option<&AbsPath>, path: &AbsPath) -> bool {
    files.writing(path).any(|location| location.directory && *path != location.real)
        && !workspace.is_some_and(|workspace| path.is_within(workspace))
}

/// Does the path lie in a directory that the command sees as the host does?
fn is_replaceable(files: &FileGrants<'_>, workspace: Option<&AbsPath>, path: &AbsPath) -> bool {
    files.locations.iter().any(|location| {
        location.directory && *path != location.real && path.is_within(&location.real)
    }) && !workspace.is_some_and(|workspace| path.is_within(workspace))
}

/// Chooses the names that a copy hides: in its root, in every directory that has such a name, and
/// in every directory where an exact path expects one. In a small workspace they are hidden in
/// every directory.
fn choose_whiteouts(
    requested: &plan::FilesPlan,
    files: &FileGrants<'_>,
    masked: &[AbsPath],
    workspace: &AbsPath,
    guard: Option<&mut Guard>,
) -> Result<Whiteouts, SandboxError> {
    let mut whiteouts = Whiteouts::default();
    let opened = mount::open_host(&workspace.as_c_str());
    let opened =
        opened.map_err(|source| SessionError::Workspace { path: workspace.clone(), source })?;
    // A whiteout has no effect below another mount.
    let others =
        || files.locations.iter().map(|location| &location.real).filter(|path| *path != workspace);
    let free =
        |path: &AbsPath| others().all(|other| !other.is_within(path) && !path.is_within(other));
    let mut dirs = BTreeSet::from([Vec::new()]);
    let mut denied = Vec::new();
    let exact = |pattern: &Text| {
        let path = pattern.as_bytes().strip_suffix(b"/**").unwrap_or(pattern.as_bytes());
        (!path.contains(&b'*'))
            .then(|| path.to_vec())
            .and_then(|path| AbsPath::new(Text::from_bytes(path).ok()?).ok())
    };
    let mut guard = guard;
    for path in masked.iter().filter(|path| free(path)) {
        let closed = requested.closed.contains(path);
        if let Some((dir, name)) = whiteouts::split(workspace, path)
            && (closed || guard.as_mut().is_some_and(|guard| guard.names().denies(path.as_bytes())))
        {
            dirs.insert(dir.to_vec());
            denied.push((dir.to_vec(), name.to_vec()));
        }
    }
    for path in requested
        .deny
        .iter()
        .filter_map(exact)
        .chain(requested.closed.iter().cloned())
        .filter(|path| free(path))
    {
        dirs.extend(whiteouts::split(workspace, &path).map(|(dir, _)| dir.to_vec()));
    }
    for (dir, name) in denied {
        whiteouts.hide(opened.as_fd(), &dir, [name]);
    }
    let Some(guard) = guard else { return Ok(whiteouts) };
    let in_root = guard.names().denied_in(workspace.as_bytes()).len().max(1);
    let all = guard.directories(workspace, MAX_WHITEOUTS / in_root);
    let everywhere = all.is_some();
    dirs.extend(all.into_iter().flatten());
    for dir in dirs {
        let path = if dir.is_empty() {
            workspace.as_bytes().to_vec()
        } else {
            [workspace.as_bytes(), b"/", &dir].concat()
        };
        let hidden = |name: &Vec<u8>| {
            Text::from_bytes([&path[..], b"/", name].concat())
                .and_then(AbsPath::new)
                .is_ok_and(|path| free(&path))
        };
        let names = guard.names().denied_in(&path);
        whiteouts.hide(opened.as_fd(), &dir, names.into_iter().filter(hidden));
    }
    whiteouts.everywhere = everywhere;
    Ok(whiteouts)
}
