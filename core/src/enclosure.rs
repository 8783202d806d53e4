//! What the full tier has besides the fence: the places of the grants, what covers names in them, who guards them, and the copy
//! that is worked on.

use std::ffi::{CStr, CString};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::cover::Cover;
use crate::fence::Fence;
use crate::files::{Files, Placed};
use crate::ground::Tree;
use crate::guard::Guard;
use crate::names::{Names, Rule};
use crate::namespaces::{self, NamespacesError, Payload, Started};
use crate::plan::{self, Namespaces, Plan};
use crate::refusal::Refusal;
use crate::root::Blueprint;
use crate::session::Session;
use crate::sys::SignalMask;
use crate::text::{AbsPath, Text};

pub struct Enclosure<'p> {
    plan: &'p Plan,
    namespaces: &'p Namespaces,
    files: Files<'p>,
    covers: Vec<Cover>,
    pub guard: Option<Guard>,
    pub session: Option<Session>,
}

impl<'p> Enclosure<'p> {
    /// `copied`: the workspace is a copy. Without an id nothing will run, so nothing is made that would have to outlive it.
    pub fn prepare(
        plan: &'p Plan,
        namespaces: &'p Namespaces,
        requested: &'p plan::Files,
        files: Files<'p>,
        id: Option<&str>,
    ) -> Result<Enclosure<'p>, Refusal> {
        let session = match (&plan.workspace, id) {
            (Some(workspace), Some(id)) => Some(Session::open(&plan.sessions, workspace, id)?),
            _ => None,
        };
        let mut covers = files.covers(requested)?;
        let taken = taken_dir(plan, id.unwrap_or("none"))?;
        let guard = arm(requested, &files, &mut covers, session.as_ref(), taken)?;
        Ok(Enclosure { plan, namespaces, files, covers, guard, session })
    }

    pub fn start(
        &self,
        fence: &Fence,
        payload: Payload<'_>,
        mask: &SignalMask,
        terminal: Option<&CStr>,
        pid_max: Option<u32>,
        admit: impl FnOnce(Pid) -> Result<(), Errno>,
    ) -> Result<Started, NamespacesError> {
        let blueprint = Blueprint {
            plan: self.plan,
            namespaces: self.namespaces,
            files: &self.files,
            covers: &self.covers,
            session: self.session.as_ref(),
            terminal,
            pid_max,
            gid: rustix::process::getegid().as_raw(),
        };
        namespaces::start(&blueprint, fence, payload, mask, admit)
    }

    /// Leaves a note of what the copy is, before anything can be changed in it.
    pub fn note(&self, command: &[CString], sha256: &str) -> Result<(), Refusal> {
        match &self.session {
            Some(session) => Ok(session.note(command, &self.covers, self.plan, sha256)?),
            None => Ok(()),
        }
    }
}

/// Where names that were taken away are kept for review.
fn taken_dir(plan: &Plan, id: &str) -> Result<AbsPath, Refusal> {
    let path = [plan.sessions.as_bytes(), b"/", id.as_bytes(), b"/taken"].concat();
    Text::from_bytes(path).and_then(AbsPath::new).map_err(|_| Refusal::Usage("the sessions directory is no path"))
}

/// Looks through the grants for names that are denied or protected, adds what covers them, and stays to watch.
fn arm(
    requested: &plan::Files,
    files: &Files<'_>,
    covers: &mut Vec<Cover>,
    session: Option<&Session>,
    taken: AbsPath,
) -> Result<Option<Guard>, Refusal> {
    // Whatever is made in a copy stays there until a person applies it, who is then asked.
    let copied = |path: &AbsPath| session.is_some_and(|session| path.is_within(session.workspace()));
    let all_copied = files.placed.iter().all(|placed| !placed.grant.writes() || copied(&placed.real));
    let (protect, flagged): (&[Text], &[Text]) =
        if all_copied { (&[], &[]) } else { (&requested.protect, &requested.flagged) };
    let mut names = Names::new(&requested.deny, protect, &requested.opened, flagged)?;
    names.packages.clone_from(&requested.packages);
    let exposed = |path: &&AbsPath| files.placed.iter().any(|placed| path.is_within(&placed.real));
    let covered = |path: &AbsPath| covers.iter().any(|cover| cover.path == *path);
    // Closed and own places that do not exist yet.
    for path in requested.closed.iter().filter(exposed).filter(|path| !covered(path)) {
        names.add_path(Rule::Deny, path.as_bytes());
    }
    for path in requested.unwritable.iter().filter(exposed).filter(|path| !covered(path)) {
        names.add_path(Rule::Protect, path.as_bytes());
    }
    names.settle()?;
    if names.is_empty() {
        return Ok(None);
    }
    let left_out: Vec<AbsPath> = covers.iter().map(|cover| cover.path.clone()).collect();
    // What can only be read has nothing to protect; it is looked through only where a deny may lie in it.
    let concerned = |placed: &&Placed<'_>| {
        placed.grant.writes() || requested.deny.iter().any(|pattern| may_lie_in(pattern, &placed.real))
    };
    let directories = files.placed.iter().filter(|placed| placed.directory).filter(concerned);
    let trees: Vec<Tree> = directories
        .map(|placed| Tree {
            path: placed.real.clone(),
            writable: placed.grant.writes() && !copied(&placed.real),
            watched: placed.grant.writes(),
        })
        .collect();
    let closed = files.closed_with_other_names(requested);
    let (guard, found) = Guard::arm(names, &trees, &left_out, &closed, taken)?;
    covers.extend(found);
    Ok(Some(guard))
}

/// By the part of a pattern before its first wildcard. A floating one has none, and may lie anywhere.
fn may_lie_in(pattern: &Text, tree: &AbsPath) -> bool {
    let fixed = pattern.as_bytes().split(|byte| *byte == b'*').next().unwrap_or_default();
    let whole = &fixed[..fixed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash.max(1))];
    let (short, long) =
        if whole.len() < tree.as_bytes().len() { (whole, tree.as_bytes()) } else { (tree.as_bytes(), whole) };
    long.strip_prefix(short)
        .is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || short.ends_with(b"/") || short.is_empty())
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
            assert_eq!(may_lie_in(&text(pattern), &AbsPath::new(text(tree)).unwrap()), expected, "{pattern} {tree}");
        }
    }
}
