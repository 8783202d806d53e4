//! What git reads, follows and executes: the table that the policy loader reads too.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use super::Role;

const GIT_TABLE_TSV: &str = include_str!("../../../../src/paddock/policy/git.tsv");

/// One part of a git directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GitPart {
    /// Relative to the git directory; `*` stands for one name.
    pub path: &'static str,
    /// The role of its content, if some content is harmless.
    pub role: Option<Role>,
    held: &'static str,
}

/// The kind of value of a configuration key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKeyKind {
    Include,
    Path,
    WorkTree,
    Program,
    Alias,
    None,
}

#[derive(Debug, Default)]
pub struct GitTable {
    pub parts: Vec<GitPart>,
    /// The last names of the parts that the last scan checks.
    pub checked: Vec<Box<CStr>>,
    /// Where a git directory contains other ones.
    pub layouts: Vec<&'static str>,
    /// Parts that end with the name of a branch.
    pub branches: Vec<&'static str>,
    /// Sorted by name.
    keys: Vec<(&'static str, ConfigKeyKind)>,
}

pub fn table() -> &'static GitTable {
    static TABLE: OnceLock<GitTable> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = GitTable::default();
        for line in GIT_TABLE_TSV.lines().filter(|line| !line.starts_with('#')) {
            let mut columns = line.split('\t');
            let mut column = || columns.next().unwrap_or_default();
            let (kind, name, role, held) = (column(), column(), column(), column());
            match kind {
                "part" => table.parts.push(GitPart { path: name, role: role_of(role), held }),
                "layout" => table.layouts.push(name),
                "branch" => table.branches.push(name),
                _ => table.keys.push((name, key_of(role))),
            }
        }
        let checked = table.parts.iter().filter(|part| part.held == "checked");
        let names: BTreeSet<&str> =
            checked.filter_map(|part| part.path.rsplit('/').next()).collect();
        table.checked =
            names.into_iter().filter_map(|name| CString::new(name).ok()).map(Into::into).collect();
        table
    })
}

/// The roles with harmless content.
fn role_of(name: &str) -> Option<Role> {
    match name {
        "config" => Some(Role::Config),
        "hooks" => Some(Role::Hooks),
        "hook" => Some(Role::Hook),
        "commondir" => Some(Role::CommonDir),
        "gitdir" => Some(Role::GitDir),
        "index" => Some(Role::Index),
        "number" => Some(Role::Number),
        "apply-options" => Some(Role::ApplyOptions),
        "packed-refs" => Some(Role::PackedRefs),
        _ => None,
    }
}

fn key_of(name: &str) -> ConfigKeyKind {
    match name {
        "include" => ConfigKeyKind::Include,
        "path" => ConfigKeyKind::Path,
        "worktree" => ConfigKeyKind::WorkTree,
        "alias" => ConfigKeyKind::Alias,
        "none" => ConfigKeyKind::None,
        _ => ConfigKeyKind::Program,
    }
}

impl GitTable {
    /// A key that is not in the table may name a program.
    pub fn key(&self, section: &[u8], key: &[u8]) -> ConfigKeyKind {
        let find =
            |name: &[u8]| self.keys.binary_search_by(|(known, _)| known.as_bytes().cmp(name)).ok();
        let found =
            find(&[section, b".", key].concat()).or_else(|| find(&[section, b".*"].concat()));
        found.map_or(ConfigKeyKind::Program, |at| self.keys[at].1)
    }

    /// The read-only parts of a git directory and of those inside it, as patterns without a
    /// beginning.
    pub fn protected(&self) -> impl Iterator<Item = String> {
        let own = self
            .parts
            .iter()
            .filter(|part| matches!(part.held, "locked" | "main"))
            .map(|part| part.path.into());
        let held = self.layouts.iter().flat_map(|layout| {
            let locked = self.parts.iter().filter(|part| part.held == "locked");
            locked.map(move |part| format!("{layout}/{}", part.path))
        });
        own.chain(held)
    }

    /// Is it a part of git's own, and not a work tree inside a git directory?
    pub fn has_part(&self, name: &[u8]) -> bool {
        self.parts.iter().any(|part| part.path.as_bytes() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_parsed_and_sorted() {
        for line in GIT_TABLE_TSV.lines().filter(|line| !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('\t').collect();
            let [kind, _, role, held] = columns[..] else { panic!("{line}: four columns") };
            match kind {
                "part" => {
                    assert!(["locked", "main", "makes", "own", "checked"].contains(&held), "{line}")
                }
                "layout" => assert!(["module", "entry"].contains(&role), "{line}"),
                "branch" => {}
                "key" => {
                    assert!(key_of(role) != ConfigKeyKind::Program || role == "program", "{line}")
                }
                _ => panic!("{line}: what kind is that?"),
            }
        }
        assert!(table().keys.is_sorted_by_key(|(name, _)| *name), "keys are looked up by halves");
        assert_eq!(table().key(b"core", b"hookspath"), ConfigKeyKind::Path);
        assert_eq!(table().key(b"alias", b"x"), ConfigKeyKind::Alias);
        assert_eq!(table().key(b"unheard", b"of"), ConfigKeyKind::Program);
    }

    #[test]
    fn parts_that_run_are_locked_in_every_git_directory() {
        let protected: Vec<String> = table().protected().collect();
        for name in [
            "config",
            "worktrees/*/commondir",
            "modules/**/hooks",
            "objects/info/alternates",
            "svn",
        ] {
            assert!(protected.iter().any(|known| known == name), "{name}");
        }
        assert!(!protected.iter().any(|name| name == "modules/**/svn" || name == "HEAD"));
    }

    #[test]
    fn no_key_that_runs_a_program_is_harmless_in_a_new_configuration() {
        for (name, key) in &table().keys {
            if *key == ConfigKeyKind::None {
                continue;
            }
            let (section, key) = name.split_once('.').unwrap();
            for subsection in ["", " \"x\""] {
                for value in ["x", "!x", "./x", "refs/x"] {
                    let config =
                        format!("[{section}{subsection}]\n{} = {value}\n", key.replace('*', "x"));
                    assert!(!super::super::config::is_harmless(config.as_bytes()), "{config}");
                }
            }
        }
    }
}
