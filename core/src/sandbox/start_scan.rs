//! The scan at the start of a run: the trees to search, the patterns, and the paths that other
//! means hold. In the full tier the guard does the scan. In the landlock tier there is no guard,
//! and the result goes to the judge of writes.

use super::error::SandboxError;
use super::landlock::{FileGrants, GrantLocation};
use crate::files::cover::{Cover, CoverKind};
use crate::files::guard::GuardError;
use crate::files::home_links;
use crate::files::patterns::{NamePatterns, NameRule};
use crate::files::scan;
use crate::files::tree_roots::{GrantedTree, TreeRoots};
use crate::files::walk::{Dir, Walker};
use crate::files::writes::KnownNames;
use crate::files::writes::written_trees::WrittenTree;
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys;
use crate::plan::wire::bytes::{self, AbsPath, Text};
use crate::plan::{self, FilesPlan, Tier};

pub struct ScanInputs {
    pub names: NamePatterns,
    pub trees: Vec<GrantedTree>,
    /// Paths that other means hold.
    pub left_out: Vec<AbsPath>,
    /// Files with several hard links that other means hold under one known name.
    pub closed: Vec<Identity>,
}

impl ScanInputs {
    /// None: nothing is denied or protected. `covers` and `masked` are the covers of paths that the
    /// plan closes. `workspace`: the command works on a copy of it. `written_trees`: the trees that a
    /// judge of writes in this process concerns.
    pub fn of(
        requested: &FilesPlan,
        files: &FileGrants<'_>,
        covers: &[Cover],
        masked: &[Cover],
        workspace: Option<&AbsPath>,
        written_trees: &[WrittenTree],
        tier: Tier,
    ) -> Result<Option<ScanInputs>, SandboxError> {
        // New names in a copy stay there until a person applies them, and that person is asked.
        let copied = |path: &AbsPath| workspace.is_some_and(|workspace| path.is_within(workspace));
        let all_copied = files
            .locations
            .iter()
            .all(|location| !location.grant.writes() || copied(&location.real));
        let (protect, flagged): (&[plan::ProtectedNames], &[Text]) =
            if all_copied { (&[], &[]) } else { (&requested.protect, &requested.flagged) };
        let exposed =
            |path: &&AbsPath| files.locations.iter().any(|location| path.is_within(&location.real));
        // A read-only grant has nothing to protect. It is searched only if a deny may match in it.
        let written = |location: &GrantLocation<'_>| files.writing(&location.real).next().is_some();
        let below = requested.deny_names.iter().flat_map(|group| &group.below).map(fixed_tree);
        let closed = requested.closed.iter().filter(exposed).map(AbsPath::as_bytes);
        let denied: Vec<_> =
            requested.deny.iter().map(fixed_part).chain(below).chain(closed).collect();
        let concerned = |location: &&GrantLocation<'_>| {
            written(location) || denied.iter().any(|fixed| may_lie_in(fixed, &location.real))
        };
        // The full tier makes these places anew.
        let is_shared = |location: &GrantLocation<'_>| {
            tier == Tier::Landlock && is_shared_by_users(location.real.as_bytes())
        };
        let trees: Vec<GrantedTree> = files
            .locations
            .iter()
            .filter(|location| location.directory && !is_shared(location))
            .filter(concerned)
            .map(|location| GrantedTree {
                path: location.real.clone(),
                writable: written(location) && !copied(&location.real),
                watched: written(location),
            })
            .collect();
        if tier == Tier::Landlock && trees.iter().all(|tree| !tree.writable) {
            return Ok(None);
        }
        let searched = trees.iter().map(|tree| tree.path.as_bytes().to_vec());
        // The judge of writes also needs the denied names of written trees that are not searched.
        let concerned: Vec<Vec<u8>> =
            searched.chain(written_trees.iter().map(|tree| tree.path.clone())).collect();
        let mut names = NamePatterns::of_plan(requested, protect, flagged, Some(&concerned))?;
        let covered = |path: &AbsPath| covers.iter().any(|cover| cover.path == *path);
        // Closed and own paths that do not exist yet.
        for path in requested.closed.iter().filter(exposed).filter(|path| !covered(path)) {
            names.add_path(NameRule::Deny, path.as_bytes());
        }
        for path in requested.unwritable.iter().filter(exposed).filter(|path| !covered(path)) {
            names.add_path(NameRule::Protect, path.as_bytes());
        }
        for cover in masked {
            names.add_path(NameRule::Deny, cover.path.as_bytes());
        }
        names.settle()?;
        if names.is_empty() && requested.deny_names.is_empty() {
            return Ok(None);
        }
        let mut left_out: Vec<AbsPath> = covers
            .iter()
            .filter(|cover| cover.kind != CoverKind::Pin)
            .map(|cover| cover.path.clone())
            .collect();
        // Other sockets that the search finds are covered.
        left_out.extend(files.sockets().into_iter().map(|(path, _)| path));
        home_links::protect_ends(&mut names, &files.home, protect, &trees)
            .map_err(GuardError::from)?;
        names.settle()?;
        let closed = files.closed_with_other_names(requested);
        Ok(Some(ScanInputs { names, trees, left_out, closed }))
    }
}

/// The names that the judge of writes knows when the command starts. None: the patterns of the plan
/// are all.
pub fn known_names(
    requested: &FilesPlan,
    files: &FileGrants<'_>,
    written_trees: &[WrittenTree],
) -> Result<Option<KnownNames>, SandboxError> {
    // Landlock closes these paths.
    let covers = files.covers(requested)?;
    let inputs =
        ScanInputs::of(requested, files, &covers, &[], None, written_trees, Tier::Landlock)?;
    let Some(inputs) = inputs else { return Ok(None) };
    let ScanInputs { mut names, trees, left_out, closed } = inputs;
    let roots = TreeRoots::open(&trees, &left_out).map_err(GuardError::from)?;
    let mut walker = Walker::default();
    walker.is_interrupted = Some(sys::has_end_signal);
    let mut enter = |_: &NamePatterns, _: &Dir<'_>| Ok::<_, GuardError>(0);
    let mut found = scan::scan_trees(&mut names, &roots, &mut walker, &closed, &mut enter)?;
    for cover in &found.covers {
        if found.shut.iter().any(|shut| shut.identity == cover.identity) {
            names.add_path(NameRule::Deny, cover.path.as_bytes());
        }
    }
    names.settle()?;
    Ok(Some(KnownNames { names, found: found.take_found_objects() }))
}

/// What another user makes there could stop the scan.
fn is_shared_by_users(path: &[u8]) -> bool {
    matches!(path, b"/tmp" | b"/dev" | b"/dev/shm")
        || path.starts_with(b"/proc/")
        || path == b"/proc"
}

/// The directories of a pattern before its first wildcard. A floating pattern has none.
fn fixed_part(pattern: &Text) -> &[u8] {
    let (fixed, _) = bytes::split(pattern.as_bytes(), b'*');
    &fixed[..fixed.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash.max(1))]
}

/// The same for the beginning of a pattern that goes on below it.
fn fixed_tree(beginning: &Text) -> &[u8] {
    if beginning.as_bytes().contains(&b'*') { fixed_part(beginning) } else { beginning.as_bytes() }
}

/// By the fixed part of a pattern. Without one the pattern may match anywhere.
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
    fn a_pattern_may_match_in_a_tree_if_one_fixed_part_contains_the_other() {
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
