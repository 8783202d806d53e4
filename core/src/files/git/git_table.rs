//! What git reads, follows and executes: the table that the policy loader reads too.

use std::ffi::CStr;

use super::Role;
use super::recognise_git_dirs::is_named;

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
    Worktree,
    Program,
    Alias,
    None,
}

include!(concat!(env!("OUT_DIR"), "/git_table.rs"));

/// A key that is not in the table may name a program.
pub fn key_kind(section: &[u8], key: &[u8]) -> ConfigKeyKind {
    let find = |name: &[u8]| KEYS.binary_search_by(|(known, _)| known.as_bytes().cmp(name)).ok();
    let found = find(&[section, b".", key].concat()).or_else(|| find(&[section, b".*"].concat()));
    found.map_or(ConfigKeyKind::Program, |at| KEYS[at].1)
}

/// The read-only parts of a git directory and of those inside it, as patterns without a beginning.
pub fn protected() -> impl Iterator<Item = String> {
    let own = PARTS
        .iter()
        .filter(|part| matches!(part.held, "locked" | "main"))
        .map(|part| part.path.into());
    let held = LAYOUTS.iter().flat_map(|layout| {
        let locked = PARTS.iter().filter(|part| part.held == "locked");
        locked.map(move |part| format!("{layout}/{}", part.path))
    });
    own.chain(held)
}

/// Is it a part of git's own, and not a work tree inside a git directory?
pub fn has_part(name: &[u8]) -> bool {
    PARTS.iter().any(|part| part.path.as_bytes() == name)
}

/// Does git, or a tool of git, write a file of this name directly in a git directory?
pub fn is_written(name: &[u8]) -> bool {
    let first = |path: &'static str| path.split('/').next().unwrap_or_default().as_bytes();
    let is_capital = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'_';
    name.iter().all(is_capital)
        || name.ends_with(b".lock")
        || PARTS.iter().any(|part| is_named(name, first(part.path)))
        || WRITTEN.iter().any(|written| is_named(name, written.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_held_in_a_known_way() {
        for part in PARTS {
            assert!(["locked", "main", "makes", "own", "checked"].contains(&part.held), "{part:?}");
        }
    }

    #[test]
    fn git_writes_files_of_these_names() {
        for name in ["index", "COMMIT_EDITMSG", "config.lock", "sl", "lfs", "shallow", "index.x"] {
            assert!(is_written(name.as_bytes()), "{name}");
        }
        for name in ["tool.sh", "clean", "MERGE.sh", "lfs-tool", "hooks.d"] {
            assert!(!is_written(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_key_without_a_row_is_a_program() {
        assert_eq!(key_kind(b"core", b"hookspath"), ConfigKeyKind::Path);
        assert_eq!(key_kind(b"alias", b"x"), ConfigKeyKind::Alias);
        assert_eq!(key_kind(b"unheard", b"of"), ConfigKeyKind::Program);
    }

    #[test]
    fn parts_that_run_are_locked_in_every_git_directory() {
        let protected: Vec<String> = protected().collect();
        for name in [
            "config",
            "worktrees/*/commondir",
            "modules/**/hooks",
            "objects/info/alternates",
            "svn",
            "sl/config",
            "worktrees/*/sl/config",
        ] {
            assert!(protected.iter().any(|known| known == name), "{name}");
        }
        assert!(!protected.iter().any(|name| name == "modules/**/svn" || name == "HEAD"));
    }

    #[test]
    fn no_key_that_runs_a_program_is_harmless_in_a_new_configuration() {
        for (name, key) in KEYS {
            if *key == ConfigKeyKind::None {
                continue;
            }
            let (section, key) = name.split_once('.').unwrap();
            for subsection in ["", " \"x\""] {
                for value in ["x", "!x", "./x", "refs/x"] {
                    let config =
                        format!("[{section}{subsection}]\n{} = {value}\n", key.replace('*', "x"));
                    assert!(
                        !super::super::harmless_settings::is_harmless(config.as_bytes()),
                        "{config}"
                    );
                }
            }
        }
    }
}
