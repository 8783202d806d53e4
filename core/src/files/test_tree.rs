//! A directory for a test, which is removed with it, and functions to fill it.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::patterns::NamePatterns;
use super::tree_roots::GrantedTree;
use crate::plan::ProtectedNames;
use crate::plan::wire::bytes::{AbsPath, Text};

/// If a test runs as root, its thread becomes an ordinary user.
pub fn become_ordinary() {
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
    if rustix::process::getuid().is_root() {
        let (uid, gid) =
            (rustix::process::Uid::from_raw(65534), rustix::process::Gid::from_raw(65534));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
    }
}

pub struct TestTree(pub PathBuf);

impl TestTree {
    pub fn new() -> TestTree {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "paddock-scene-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        TestTree(path)
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    pub fn dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Makes a file and its directories. Its content is its own name.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, name.as_ref().as_os_str().as_bytes()).unwrap();
        path
    }

    pub fn link(&self, name: impl AsRef<Path>, target: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, &path).unwrap();
        path
    }

    pub fn tree(&self, name: impl AsRef<Path>, writable: bool) -> GrantedTree {
        GrantedTree { path: absolute(&self.dir(name)), writable, watched: writable }
    }

    /// The path relative to the test tree.
    pub fn relative(&self, path: &AbsPath) -> String {
        let path = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
        path.strip_prefix(&self.0).unwrap().to_string_lossy().into_owned()
    }
}

impl Drop for TestTree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn absolute(path: &Path) -> AbsPath {
    AbsPath::new(Text::from_bytes(path.as_os_str().as_bytes().to_vec()).unwrap()).unwrap()
}

pub fn names(deny: &[&str], protect: &[&str], opened: &[&str]) -> NamePatterns {
    let texts = |list: &[&str]| list.iter().map(|one| text(one)).collect::<Vec<_>>();
    let protect = protect.iter().map(|one| protected(one)).collect::<Vec<_>>();
    NamePatterns::new(&texts(deny), &protect, &texts(opened), &[]).unwrap()
}

pub fn text(text: &str) -> Text {
    Text::from_bytes(text.into()).unwrap()
}

/// One pattern, as in a plan.
pub fn protected(pattern: &str) -> ProtectedNames {
    let (beginning, name) = pattern.rsplit_once('/').unwrap();
    let beginning = if beginning.is_empty() { "/" } else { beginning };
    ProtectedNames { below: vec![text(beginning)], but: Vec::new(), names: vec![text(name)] }
}

/// The kinds of names that a plan protects.
pub const PROTECTED: &[&str] = &[
    "**/.git/config",
    "**/.git/config.lock",
    "**/.git/config.worktree",
    "**/.git/hooks",
    "**/.git/commondir",
    "**/.git/gitdir",
    "**/.git/info/attributes",
    "**/.git/info/grafts",
    "**/.git/objects/info/alternates",
    "**/.git/worktrees/*/commondir",
    "**/.git/worktrees/*/gitdir",
    "**/.git/worktrees/*/config.worktree",
    "**/.git/modules/**/config",
    "**/.git/modules/**/hooks",
    "**/.git/modules/**/commondir",
    "**/.gitmodules",
    "**/.vscode",
    "**/.idea",
    "**/.envrc",
    "**/.claude",
    "**/.husky",
    "**/.mcp.json",
    "**/*.code-workspace",
    "**/.bashrc",
    "**/.config/fish",
    "**/.npmrc",
];
pub const DENIED: &[&str] =
    &["**/.env", "**/.env.*", "**/*.pem", "**/*.key", "**/id_rsa*", "**/*.kdbx"];

/// The CPU time of this thread so far: a busy machine does not change it.
pub fn cpu_us() -> u128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u128 * 1_000_000 + now.tv_nsec as u128 / 1000
}
