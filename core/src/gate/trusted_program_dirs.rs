//! The directories of programs that no sandboxed command can have made: granted for execution, and
//! not writable.
//!
//! A copy of a denied program is another file with another name. The command may still execute
//! files that it can write if the policy says so: by a default of allow (then the content is
//! compared, `gate/program_contents.rs`), by a grant to execute (`exec_globs`), or by a rule that
//! names the path or the content.

use std::os::unix::ffi::OsStrExt as _;

use super::interpreter_chain::ChainFile;
use crate::files::previously_writable::is_replaced;
use crate::kernel::resolved_path;
use crate::plan::{Grant, Plan};

/// Private and writable, whatever is granted above them.
const PRIVATE_DIRS: [&[u8]; 4] = [b"/tmp", b"/var/tmp", b"/dev", b"/proc"];

#[derive(Debug)]
pub struct TrustedDirs {
    /// Granted by name for execution.
    programs: Vec<Vec<u8>>,
    /// Granted to be read and executed.
    readable: Vec<Vec<u8>>,
    /// Paths that this or an earlier command could write.
    written: Vec<Vec<u8>>,
}

impl TrustedDirs {
    /// None: the plan does not restrict files, so every program can be replaced.
    pub fn of(plan: &Plan) -> Option<TrustedDirs> {
        let files = plan.files.as_ref()?;
        let mut trusted_dirs =
            TrustedDirs { programs: Vec::new(), readable: Vec::new(), written: Vec::new() };
        for grant in &files.grants {
            let path = real(grant.path.as_bytes());
            match grant.access.as_bytes() {
                b"exec" => trusted_dirs.programs.push(path),
                b"read" => trusted_dirs.readable.push(path),
                _ if grant.writes() => trusted_dirs.written.push(path),
                _ => {}
            }
        }
        let named = files.previously_writable.iter().filter(|tree| !is_replaced(tree));
        trusted_dirs.written.extend(named.map(|tree| tree.path.as_bytes().to_vec()));
        trusted_dirs.written.extend(plan.temp.iter().map(|temp| real(temp.parent.as_bytes())));
        trusted_dirs.written.extend(PRIVATE_DIRS.map(<[u8]>::to_vec));
        Some(trusted_dirs)
    }

    /// `file`: the resolved path, as the kernel names it. A file without a name (removed, or a
    /// memfd) is not trusted: the command may have made it.
    pub fn hold(&self, file: &[u8]) -> bool {
        if file.ends_with(b" (deleted)") {
            return false;
        }
        let within = |trees: &[Vec<u8>]| trees.iter().any(|tree| is_within(file, tree));
        within(&self.programs) || (within(&self.readable) && !within(&self.written))
    }

    /// Can no command write the file? Then its content stays the same.
    pub fn keep(&self, file: &[u8]) -> bool {
        self.hold(file) && !self.written.iter().any(|tree| is_within(file, tree))
    }
}

impl TrustedDirs {
    /// Is every file of a chain in a trusted directory?
    pub fn hold_all(&self, chain: &[ChainFile]) -> bool {
        chain.iter().all(|link| self.hold(&link.real))
    }

    /// Is the loader in a trusted directory, and does its path lead there for certain?
    pub fn load_surely(&self, named: &[u8], real: &[u8]) -> bool {
        !self.written.iter().any(|tree| is_within(real, tree))
            && self.lead_surely(named, b"/", real)
    }

    /// Is the script trusted, while the command can make its path lead to another one?
    pub fn let_stray(&self, chain: &[ChainFile], cwd: &[u8]) -> bool {
        let scripts = &chain[..chain.len().saturating_sub(1)];
        scripts.iter().any(|script| {
            self.hold(&script.real) && !self.lead_surely(&script.named, cwd, &script.real)
        })
    }

    /// An interpreter opens its script again by the requested path, and the kernel opens a loader.
    /// That path has to lead to the same file for certain. So no link on the way, and no directory
    /// before a `..`, may be writable for a command: both can be exchanged.
    fn lead_surely(&self, named: &[u8], cwd: &[u8], real: &[u8]) -> bool {
        let written = |path: &[u8]| self.written.iter().any(|tree| is_within(path, tree));
        // A command that can write the script itself gains nothing by an exchanged path.
        if named == real || written(real) {
            return true;
        }
        let whole =
            if named.starts_with(b"/") { named.to_vec() } else { [cwd, b"/", named].concat() };
        let Ok(followed) = resolved_path::follow(&whole) else { return false };
        if followed.real.as_os_str().as_bytes() != real
            || followed.links.iter().any(|link| written(link.at.as_os_str().as_bytes()))
        {
            return false;
        }
        let up = |(at, part): (usize, &[u8])| (part == b"/..").then_some(at);
        let mut left = whole
            .windows(3)
            .enumerate()
            .filter_map(up)
            .filter(|at| matches!(whole.get(at + 3), None | Some(b'/')));
        left.all(|at| {
            resolved_path::follow(&whole[..at.max(1)])
                .is_ok_and(|dir| !written(dir.real.as_os_str().as_bytes()))
        })
    }
}

/// Does the grant allow writes to the memory of processes?
pub fn rewrites(grant: &Grant) -> bool {
    let path = real(grant.path.as_bytes());
    grant.writes() && (is_within(&path, b"/proc") || is_within(b"/proc", &path))
}

/// A path that can not be resolved has no other name.
fn real(path: &[u8]) -> Vec<u8> {
    resolved_path::follow(path)
        .map_or_else(|_| path.to_vec(), |followed| followed.real.as_os_str().as_bytes().to_vec())
}

fn is_within(file: &[u8], tree: &[u8]) -> bool {
    match file.strip_prefix(tree) {
        Some([] | [b'/', ..]) => true,
        Some(_) => tree == b"/",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn trusted_dirs(grants: &[(&str, &str)], reached: &[&str]) -> TrustedDirs {
        let mut plan: Value =
            serde_json::from_str(include_str!("../../../schema/examples/plan-landlock.json"))
                .unwrap();
        plan["files"]["grants"] = grants
            .iter()
            .map(|(path, access)| {
                json!({
                    "access": access,
                    "except": [],
                    "optional": true,
                    "paths": [[path, null]],
                    "source": "x",
                })
            })
            .collect();
        plan["files"]["reached"] = reached
            .iter()
            .map(|path| json!({"path": path, "identity": null, "born_ns": null}))
            .collect();
        plan["landlock"]["access"]["exec"] = json!(["execute", "read_file"]);
        plan["landlock"]["access"]["read-noexec"] = json!(["read_file"]);
        TrustedDirs::of(&Plan::parse(plan.to_string().as_bytes(), 1000).unwrap()).unwrap()
    }

    #[test]
    fn a_trusted_program_is_granted_and_not_writable() {
        let trusted_dirs = trusted_dirs(
            &[
                ("/", "read"),
                ("/nowhere/project", "allow"),
                ("/nowhere/project/target", "exec"),
                ("/nowhere/data", "read-noexec"),
            ],
            &["/nowhere/earlier"],
        );
        for (file, expected) in [
            ("/usr/bin/git", true),
            ("/nowhere/data/x", true), // executed through the grant above it: grants add up
            ("/nowhere/project/git", false),
            ("/nowhere/projects/git", true),
            ("/nowhere/project/target/debug/git", true),
            ("/nowhere/earlier/git", false),
            ("/tmp/git", false),
            ("/dev/shm/git", false),
            ("/memfd:git (deleted)", false),
        ] {
            assert_eq!(trusted_dirs.hold(file.as_bytes()), expected, "{file}");
        }
        for (file, expected) in
            [("/usr/bin/git", true), ("/nowhere/project/target/x", false), ("/tmp/git", false)]
        {
            assert_eq!(trusted_dirs.keep(file.as_bytes()), expected, "{file}");
        }
    }

    #[test]
    fn a_path_without_a_grant_is_not_trusted() {
        let trusted_dirs =
            trusted_dirs(&[("/nowhere/bin", "read"), ("/nowhere/data", "read-noexec")], &[]);
        for (file, expected) in
            [("/nowhere/bin/x", true), ("/nowhere/data/x", false), ("/memfd:x (deleted)", false)]
        {
            assert_eq!(trusted_dirs.hold(file.as_bytes()), expected, "{file}");
        }
    }
}
