//! What the full tier has besides the fence: the places of the grants, what covers names in them,
//! who guards them, and the copy that is worked on.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::process::Pid;

use super::enter::Fence;
use super::error::SandboxError;
use super::init::{self, Attend, Payload, Started, Tell};
use super::init_channel::InitMessage;
use super::landlock::{Files, FilesError, Placed, grant_location};
use super::preflight::Preflight;
use super::root::Blueprint;
use crate::files::cover::{Cover, CoverKind};
use crate::files::guard::{Guard, GuardError};
use crate::files::patterns::{Names, NamesError, Rule};
use crate::files::tree_roots::Tree;
use crate::files::unfinished_scans::Mark;
use crate::files::workspace::session_dir::{Session, SessionError};
use crate::files::workspace::whiteouts::{self, Whiteouts};
use crate::files::{home_links, host_sockets};
use crate::kernel::mount;
use crate::kernel::resolved_path::Identity;
use crate::kernel::seccomp_notify::LONGEST_PATH;
use crate::kernel::sys::SignalMask;
use crate::plan::wire::bytes::{self, AbsPath, Text};
use crate::plan::wire::writer::{self, Invalid};
use crate::plan::{self, Namespaces, Plan};

pub struct FullTier<'p> {
    plan: &'p Plan,
    namespaces: &'p Namespaces,
    requested: &'p plan::Files,
    /// Where names that are taken away are kept for review.
    taken: AbsPath,
    /// From the start on: what a copy hides, and who looks out for names.
    pub veil: Whiteouts,
    pub guard: Option<Guard>,
    pub session: Option<Session>,
    /// See [`Mark`].
    pub mark: Option<Mark>,
    run: Option<Run<'p>>,
}

/// What the mark of a run says of it.
#[derive(Clone, Copy)]
pub struct Run<'p> {
    pub id: &'p str,
    /// As it was read.
    pub plan: &'p [u8],
}

/// So many whiteouts are made in half a millisecond. Where more are needed to hide every denied
/// name in every directory, those directories have them where such a name is most likely to appear,
/// and the guard sees to the others.
const MOST_HIDDEN: usize = 256;

impl<'p> FullTier<'p> {
    /// Without a run nothing is made that would have to outlive it.
    pub fn prepare(
        plan: &'p Plan,
        namespaces: &'p Namespaces,
        requested: &'p plan::Files,
        run: Option<Run<'p>>,
    ) -> Result<FullTier<'p>, SandboxError> {
        let session = match (&plan.workspace, run) {
            (Some(workspace), Some(run)) => Some(Session::open(&plan.sessions, workspace, run.id)?),
            _ => None,
        };
        let taken = taken_dir(plan, run.map_or("none", |run| run.id))?;
        let veil = Whiteouts::default();
        Ok(FullTier {
            plan,
            namespaces,
            requested,
            taken,
            veil,
            guard: None,
            session,
            mark: None,
            run,
        })
    }

    /// What covers places that are closed or unwritable by their path; and closed ones inside
    /// grants of directories, which are the guard's.
    fn by_path(&self, files: &Files<'_>) -> Result<(Vec<Cover>, Vec<Cover>), SandboxError> {
        let FullTier { plan, requested, .. } = self;
        // A mask falls off when the host replaces what it lies on: where that can be, the guard has
        // to hold it, by its name.
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

    /// Finds what is to be hidden and covered.
    fn look_through(&self, files: &Files<'_>) -> Result<Found, SandboxError> {
        let FullTier { requested, taken, session, .. } = self;
        let (mut covers, masked) = self.by_path(files)?;
        let (mut guard, mut found) =
            arm(requested, files, &covers, &masked, copied(self.plan), taken.clone())?;
        found.extend(callable(files, covers.iter().chain(&found))?);
        let found = within_reach(found)?;
        let Some(session) = session else {
            covers.extend(found);
            return Ok(Found { guard, covers, ..Found::default() });
        };
        let workspace = session.workspace();
        let masks = covers.iter().chain(&found).filter(|cover| cover.kind == CoverKind::Mask);
        let hidden: Vec<_> = masks
            .map(|cover| cover.path.clone())
            .filter(|path| path.is_within(workspace))
            .collect();
        let veil = weave(requested, files, &hidden, workspace, guard.as_mut())?;
        // What is hidden needs no mask.
        let shown =
            |cover: &Cover| cover.kind != CoverKind::Mask || !veil.hides(workspace, &cover.path);
        covers.extend(found.into_iter().filter(shown));
        Ok(Found { guard, covers, veil, hidden })
    }

    /// `look` says where the grants lie: it is asked while init makes its namespaces, and nothing
    /// runs if it refuses. `command` and `sha256` are what the note of a session says. `announce`
    /// is called when it is known what a copy hides.
    #[allow(clippy::too_many_arguments, reason = "what a start is made of")]
    pub fn start<'f>(
        &mut self,
        fence: &Fence,
        look: impl FnOnce() -> Result<Option<Files<'f>>, SandboxError>,
        payload: Payload<'_>,
        mask: &SignalMask,
        terminal: Option<&CStr>,
        bundle: Option<&OwnedFd>,
        pid_max: Option<u32>,
        admit: impl FnOnce(Pid) -> Result<(), Errno>,
        attend: Attend<'_>,
        command: &[CString],
        sha256: &str,
        announce: impl Fn(&Whiteouts),
    ) -> Result<Started, SandboxError> {
        let FullTier { plan, namespaces, requested, session, run, .. } = &*self;
        let blueprint = Blueprint {
            plan,
            namespaces,
            requested,
            session: session.as_ref(),
            terminal,
            bundle,
            pid_max,
            gid: rustix::process::getegid().as_raw(),
        };
        let mut kept = (None, Whiteouts::default());
        let mut mark = None;
        let init = Cell::new(None);
        let admit = |pid| {
            init.set(Some(pid));
            admit(pid)
        };
        let (mut look, mut files) = (Some(look), None);
        let meanwhile = |tell: Tell<'_>| {
            if let Some(look) = look.take() {
                let found =
                    files.insert(look()?.ok_or(SandboxError::Usage("the plan has no files"))?);
                InitMessage::placing(&grant_location::spell(requested, &found.placed))
                    .for_each(|word| tell(&word));
                tell(&InitMessage::All);
            }
            let Some(files) = &files else {
                return Err(SandboxError::Usage("the plan has no files"));
            };
            // What watched before was for names that are elsewhere by now.
            kept = (None, Whiteouts::default());
            let Found { guard, covers, veil, hidden } = self.look_through(files)?;
            if let Some(session) = session {
                // What the copy is, before anything can be changed in it.
                let directories = guard
                    .as_ref()
                    .map(|guard| guard.numbered(session.workspace()))
                    .unwrap_or_default();
                session.note(command, &hidden, &directories, plan, sha256)?;
                if guard.is_some() {
                    announce(&veil);
                }
                InitMessage::hiding(veil.names()).iter().for_each(&mut *tell);
                tell(&InitMessage::All);
            }
            // From the last word on the command runs.
            if let (Some(guard), Some(run), Some(init)) = (&guard, run, init.get()) {
                mark = Mark::set(&plan.sessions, run.id, run.plan, guard, init)?;
            }
            covers.into_iter().for_each(|cover| tell(&InitMessage::Cover(cover)));
            tell(&InitMessage::All);
            kept = (guard, veil);
            Ok(())
        };
        let started = init::start(&blueprint, fence, payload, mask, admit, meanwhile, attend);
        (self.guard, self.veil) = kept;
        self.mark = mark;
        started
    }
}

/// The workspace, if the command works on a copy of it.
fn copied(plan: &Plan) -> Option<&AbsPath> {
    plan.workspace.as_ref().map(|workspace| &workspace.path)
}

/// The command `covers`: what would be laid over names that are there now, and the symlinks in git
/// directories, which nothing is laid over.
pub fn report(plan: &Plan) -> Result<String, SandboxError> {
    let (mut covers, mut guard) = (Vec::new(), None);
    let fence = Fence::prepare(plan, &[], Vec::new())?;
    let mut preflight = Preflight::prepare(plan, &fence, None)?;
    if let (Some(namespaces), Some(requested), Some(files), None) =
        (&plan.namespaces, &plan.files, preflight.files.take(), &plan.container)
    {
        let enclosure = FullTier::prepare(plan, namespaces, requested, None)?;
        let (by_path, masked) = enclosure.by_path(&files)?;
        let (armed, found) =
            arm(requested, &files, &by_path, &masked, copied(plan), enclosure.taken)?;
        guard = armed;
        let callable = callable(&files, by_path.iter().chain(&found))?;
        covers = [by_path, within_reach([found, callable].concat())?].concat();
    }
    let mut out = String::from("{\"covers\":");
    writer::list(&mut out, &covers, |out, cover| {
        out.push_str("{\"path\":");
        writer::string(out, cover.path.as_bytes(), Invalid::Surrogate);
        let (device, inode) = (cover.identity.device(), cover.identity.inode());
        out.push_str(&format!(
            ",\"kind\":\"{}\",\"device\":{device},\"inode\":{inode}}}",
            cover.kind.name()
        ));
    });
    let links = guard.as_ref().map_or_else(|| Ok(Vec::new()), Guard::links_in_git)?;
    out.push_str(",\"links\":");
    writer::list(&mut out, &links, |out, (path, said)| {
        out.push_str("{\"path\":");
        writer::string(out, path.as_bytes(), Invalid::Surrogate);
        out.push_str(",\"said\":");
        writer::string(out, said, Invalid::Surrogate);
        out.push('}');
    });
    out.push('}');
    Ok(out)
}

/// What a look through the grants gives.
#[derive(Default)]
struct Found {
    guard: Option<Guard>,
    covers: Vec<Cover>,
    veil: Whiteouts,
    /// What the command was not to see in its copy.
    hidden: Vec<AbsPath>,
}

/// Where names that were taken away are kept for review.
pub fn taken_dir(plan: &Plan, id: &str) -> Result<AbsPath, SandboxError> {
    let path = [plan.sessions.as_bytes(), b"/", id.as_bytes(), b"/taken"].concat();
    Text::from_bytes(path)
        .and_then(AbsPath::new)
        .map_err(|_| SandboxError::Usage("the sessions directory is not a path"))
}

/// Looks through the grants for names that are denied or protected, says what covers them, and
/// stays to watch.
fn arm(
    requested: &plan::Files,
    files: &Files<'_>,
    covers: &[Cover],
    masked: &[Cover],
    workspace: Option<&AbsPath>,
    taken: AbsPath,
) -> Result<(Option<Guard>, Vec<Cover>), SandboxError> {
    // Whatever is made in a copy stays there until a person applies it, who is then asked.
    let copied = |path: &AbsPath| workspace.is_some_and(|workspace| path.is_within(workspace));
    let all_copied =
        files.placed.iter().all(|placed| !placed.grant.writes() || copied(&placed.real));
    let (protect, flagged): (&[plan::Protected], &[Text]) =
        if all_copied { (&[], &[]) } else { (&requested.protect, &requested.flagged) };
    let mut names = names_of(requested, protect, flagged)?;
    let exposed = |path: &&AbsPath| files.placed.iter().any(|placed| path.is_within(&placed.real));
    let covered = |path: &AbsPath| covers.iter().any(|cover| cover.path == *path);
    // Closed and own places that do not exist yet.
    for path in requested.closed.iter().filter(exposed).filter(|path| !covered(path)) {
        names.add_path(Rule::Deny, path.as_bytes());
    }
    for path in requested.unwritable.iter().filter(exposed).filter(|path| !covered(path)) {
        names.add_path(Rule::Protect, path.as_bytes());
    }
    for cover in masked {
        names.add_path(Rule::Deny, cover.path.as_bytes());
    }
    names.settle()?;
    if names.is_empty() {
        return Ok((None, Vec::new()));
    }
    let mut left_out: Vec<AbsPath> = covers
        .iter()
        .filter(|cover| cover.kind != CoverKind::Pin)
        .map(|cover| cover.path.clone())
        .collect();
    // Other sockets that are found are covered.
    left_out.extend(files.sockets().into_iter().map(|(path, _)| path));
    // What can only be read has nothing to protect; it is looked through only where a deny may lie
    // in it.
    let written = |placed: &Placed<'_>| files.writing(&placed.real).next().is_some();
    let below = requested.deny_names.iter().flat_map(|group| &group.below).map(fixed_tree);
    let closed = requested.closed.iter().filter(exposed).map(AbsPath::as_bytes);
    let denied: Vec<_> = requested.deny.iter().map(fixed_part).chain(below).chain(closed).collect();
    let concerned = |placed: &&Placed<'_>| {
        written(placed) || denied.iter().any(|fixed| may_lie_in(fixed, &placed.real))
    };
    let directories = files.placed.iter().filter(|placed| placed.directory).filter(concerned);
    let trees: Vec<Tree> = directories
        .map(|placed| Tree {
            path: placed.real.clone(),
            writable: written(placed) && !copied(&placed.real),
            watched: written(placed),
        })
        .collect();
    home_links::protect_ends(&mut names, &files.home, protect, &trees).map_err(GuardError::from)?;
    names.settle()?;
    let closed = files.closed_with_other_names(requested);
    let (guard, found) = Guard::arm(names, &trees, &left_out, &closed, taken)?;
    Ok((Some(guard), found))
}

/// What covers sockets of services that no grant names, besides what is covered already.
fn callable<'c>(
    files: &Files<'_>,
    covers: impl Iterator<Item = &'c Cover>,
) -> Result<Vec<Cover>, SandboxError> {
    let granted = files.sockets();
    let masks: Vec<&Cover> = covers.filter(|cover| cover.kind == CoverKind::Mask).collect();
    let shown = |path: &AbsPath| {
        files.placed.iter().any(|placed| placed.directory && path.is_within(&placed.real))
    };
    let is_granted = |path: &AbsPath| granted.iter().any(|(other, _)| other == path);
    let is_masked = |path: &AbsPath| masks.iter().any(|mask| path.is_within(&mask.path));
    host_sockets::covers(|path| shown(path) && !is_granted(path) && !is_masked(path))
        .map_err(SandboxError::Services)
}

/// What lies deeper than a path reaches is closed with the last directory on the way that one leads
/// to.
fn within_reach(covers: Vec<Cover>) -> Result<Vec<Cover>, SandboxError> {
    let (mut covers, deep): (Vec<_>, Vec<_>) =
        covers.into_iter().partition(|cover| cover.path.as_bytes().len() < LONGEST_PATH);
    for cover in deep {
        let path = cover.path.as_bytes();
        let end = path[..LONGEST_PATH].iter().rposition(|byte| *byte == b'/').unwrap_or_default();
        let above = Text::from_bytes(path[..end].to_vec()).and_then(AbsPath::new);
        let above = above.map_err(|_| SandboxError::Usage("the scan found an invalid path"))?;
        if covers.iter().any(|other| other.path == above && other.kind == CoverKind::Mask) {
            continue;
        }
        let stat = rustix::fs::lstat(above.as_c_str());
        let stat = stat.map_err(|source| FilesError::Locate { path: above.clone(), source })?;
        covers.retain(|other| other.path != above);
        let identity = Identity::from(&stat);
        covers.push(Cover { path: above, identity, directory: true, kind: CoverKind::Mask });
    }
    Ok(covers)
}

/// In a directory that the command writes to as the host does.
fn is_live(files: &Files<'_>, workspace: Option<&AbsPath>, path: &AbsPath) -> bool {
    files.writing(path).any(|placed| placed.directory && *path != placed.real)
        && !workspace.is_some_and(|workspace| path.is_within(workspace))
}

/// The patterns of a plan.
pub fn names_of(
    requested: &plan::Files,
    protect: &[plan::Protected],
    flagged: &[Text],
) -> Result<Names, NamesError> {
    let mut names = Names::new(&requested.deny, protect, &requested.opened, flagged)?;
    names.packages.clone_from(&requested.packages);
    for group in &requested.deny_names {
        names.deny(group)?;
    }
    Ok(names)
}

/// In a directory that the command sees as the host does.
fn is_replaceable(files: &Files<'_>, workspace: Option<&AbsPath>, path: &AbsPath) -> bool {
    files
        .placed
        .iter()
        .any(|placed| placed.directory && *path != placed.real && path.is_within(&placed.real))
        && !workspace.is_some_and(|workspace| path.is_within(workspace))
}

/// Which names are hidden in a copy: in its root and in every directory that has such a name, or is
/// to have one by its exact path; in a small workspace everywhere.
fn weave(
    requested: &plan::Files,
    files: &Files<'_>,
    masked: &[AbsPath],
    workspace: &AbsPath,
    guard: Option<&mut Guard>,
) -> Result<Whiteouts, SandboxError> {
    let mut veil = Whiteouts::default();
    let opened = mount::open_host(&workspace.as_c_str());
    let opened =
        opened.map_err(|source| SessionError::Workspace { path: workspace.clone(), source })?;
    // What is mounted on the copy shows what it shows.
    let others =
        || files.placed.iter().map(|placed| &placed.real).filter(|path| *path != workspace);
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
        veil.hide(opened.as_fd(), &dir, [name]);
    }
    let Some(guard) = guard else { return Ok(veil) };
    let in_root = guard.names().denied_in(workspace.as_bytes()).len().max(1);
    let all = guard.directories(workspace, MOST_HIDDEN / in_root);
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
        veil.hide(opened.as_fd(), &dir, names.into_iter().filter(hidden));
    }
    veil.everywhere = everywhere;
    Ok(veil)
}

/// The directories of a pattern before its first wildcard. A floating one has none.
fn fixed_part(pattern: &Text) -> &[u8] {
    let (fixed, _) = bytes::split(pattern.as_bytes(), b'*');
    &fixed[..fixed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash.max(1))]
}

/// The same of the beginning of a pattern, which goes on below it.
fn fixed_tree(beginning: &Text) -> &[u8] {
    if beginning.as_bytes().contains(&b'*') { fixed_part(beginning) } else { beginning.as_bytes() }
}

/// By the fixed part of a pattern; without one it may lie anywhere.
fn may_lie_in(fixed: &[u8], tree: &AbsPath) -> bool {
    let (short, long) = if fixed.len() < tree.as_bytes().len() {
        (fixed, tree.as_bytes())
    } else {
        (tree.as_bytes(), fixed)
    };
    long.strip_prefix(short).is_some_and(|rest| {
        rest.is_empty() || rest[0] == b'/' || short.ends_with(b"/") || short.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_concerns_a_tree_if_their_fixed_parts_lie_in_one_another() {
        let text = |text: &str| Text::from_bytes(text.as_bytes().to_vec()).unwrap();
        for (pattern, tree, expected) in [
            ("**/.env", "/opt", true),
            ("/home/a/w/**/.env", "/home/a/w", true),
            ("/home/a/w/**/.env", "/home/a", true),
            ("/home/a/w/**/.env", "/home/a/w/sub", true),
            ("/home/a/w/**/.env", "/opt", false),
            ("/home/a/w/**/.env", "/home/a/w-evil", false),
            ("/home/a/w*/.env", "/home/a/w-evil", true),
            ("/home/a/secret", "/home/a", true),
            ("/home/a/secret", "/home/b", false),
            ("/*/x", "/opt", true),
        ] {
            let (pattern, tree) = (text(pattern), AbsPath::new(text(tree)).unwrap());
            assert_eq!(may_lie_in(fixed_part(&pattern), &tree), expected, "{pattern} {tree}");
        }
    }
}
