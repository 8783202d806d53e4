//! The core as its callers use it: a sealed plan, a command, its output. Everything runs as an
//! ordinary user; root drops to one.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::{Value, json};

const NOBODY: u32 = 65534;

pub fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

pub fn uid() -> u32 {
    if is_root() { NOBODY } else { rustix::process::getuid().as_raw() }
}

/// A directory of the ordinary user, removed after the test.
pub struct TestDir(pub PathBuf);

impl TestDir {
    pub fn new() -> TestDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "paddock-test-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().canonicalize().unwrap().join(name);
        fs::create_dir(&path).unwrap();
        own(&path);
        TestDir(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let mut below = self.0.clone();
        for part in Path::new(name) {
            below.push(part);
            if !below.exists() {
                fs::create_dir(&below).unwrap();
                own(&below);
            }
        }
        path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, name).unwrap();
        own(&path);
        path
    }

    pub fn link(&self, name: &str, target: impl AsRef<Path>) -> PathBuf {
        let path = self.0.join(name);
        std::os::unix::fs::symlink(target, &path).unwrap();
        path
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn own(path: &Path) {
    if is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

/// The path of the core for the ordinary user: a copy, if it was built in a private directory.
pub fn core() -> &'static Path {
    static REACHABLE: OnceLock<PathBuf> = OnceLock::new();
    REACHABLE.get_or_init(|| {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_paddock-core"));
        if as_user("test").arg("-x").arg(&built).status().unwrap().success() {
            return built;
        }
        let copy =
            std::env::temp_dir().join(format!("paddock-core-under-test-{}", std::process::id()));
        fs::copy(built, &copy).unwrap();
        fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        copy
    })
}

pub fn grant(path: impl AsRef<Path>, access: &str) -> Value {
    json!({"access": access, "except": [], "optional": true, "paths": [[path.as_ref(), 1]],
    "source": "test"})
}

pub fn grant_except(path: impl AsRef<Path>, access: &str, except: &[PathBuf]) -> Value {
    json!({"access": access, "except": except, "optional": false, "paths": [[path.as_ref(), 2]],
    "source": "test"})
}

/// System directories to run programs from, and `grants`; no journal, no private temporary
/// directory.
pub fn plan(workdir: &Path, grants: &[Value]) -> Value {
    let mut all: Vec<Value> = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"]
        .iter()
        .map(|path| grant(path, "read"))
        .collect();
    all.extend(["/dev/null", "/dev/zero", "/dev/tty"].iter().map(|path| grant(path, "device")));
    all.extend_from_slice(grants);
    let write = [
        "make_dir",
        "make_fifo",
        "make_reg",
        "make_sock",
        "make_sym",
        "refer",
        "remove_dir",
        "remove_file",
        "truncate",
        "write_file",
    ];
    let read = ["execute", "read_dir", "read_file"];
    let both = [&read[..], &write[..]].concat();
    json!({
        "version": 1, "profiles": ["test"], "tier": "landlock",
        "user": {"uid": uid(), "name": "tester", "home": "/"},
        "journal": null, "no_new_privs": true, "rlimits": {"core": 0},
        "environment": {"pass": ["PATH"], "deny": [], "keep": [], "set": {}},
        "temp": null,
        "landlock": {
            "abi": 7,
            "handled": [
                "execute", "ioctl_dev", "make_block", "make_char", "make_dir", "make_fifo",
                "make_reg", "make_sock",
                "make_sym", "read_dir", "read_file", "refer", "remove_dir", "remove_file",
                "truncate", "write_file",
            ],
            "scoped": ["abstract_unix_socket", "signal"],
            "access": {
                "allow": both,
                "device": ["ioctl_dev", "read_file", "write_file"],
                "read": read,
                "write": write,
            },
        },
        "files": {
            "grants": all, "closed": [], "unwritable": [], "reached": [], "deny": [],
            "deny_names": [], "protect": [], "opened": [],
            "flagged": [], "packages": [], "git_remotes": [],
        },
        "namespaces": null, "workspace": null, "container": null,
        "sessions": "/nonexistent/sessions",
        "limits": {
            "memory_mb": null, "processes": null, "cpu_s": null, "open_files": null,
            "file_size_mb": null, "wall_s": null,
        },
        "gate": null, "network": null,
        "shell": null,
        "observe": false,
        "judges_writes": false,
        "seccomp": {"default": "allow", "syscalls": ["mount", "ptrace"], "sockets": ["inet",
        "inet6"], "namespaces": false},
        "workdir": workdir, "cwd": workdir, "require_enforced": true, "notices": [],
    })
}

/// The same plan in the full tier, with a private /tmp.
pub fn full_plan(workdir: &Path, grants: &[Value]) -> Value {
    let mut full = plan(workdir, grants);
    full["tier"] = json!("full");
    full["namespaces"] = json!({"nested": false, "hostname": "", "tmp_mb": 64});
    full["files"]["grants"].as_array_mut().unwrap().push(grant("/tmp", "allow"));
    full
}

pub fn seal(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    // Not close-on-exec: the core inherits it.
    let fd = rustix::fs::memfd_create(c"plan", MemfdFlags::ALLOW_SEALING).unwrap();
    fs::File::from(fd.try_clone().unwrap()).write_all(bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

pub fn all_seals() -> SealFlags {
    SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK
}

/// A core process to start; `words` come after the plan.
pub struct Core {
    pub command: Command,
    _plan: OwnedFd,
}

/// A shell that starts the tests in the background ignores some signals, and each child inherits
/// that. No shell can trap a signal that it was started to ignore.
pub fn as_user(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal");
    if is_root() {
        let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        command.arg("setpriv").args(ids).arg("--clear-groups");
    }
    command.arg(program);
    command
}

impl Core {
    pub fn new<S: AsRef<OsStr>>(subcommand: &str, plan: &Value, words: &[S]) -> Core {
        let mut core =
            Core::sealed(subcommand, seal(plan.to_string().as_bytes(), all_seals()), words);
        if let Some(cwd) = plan["cwd"].as_str().filter(|cwd| Path::new(cwd).is_dir()) {
            core.command.current_dir(cwd);
        }
        core
    }

    pub fn sealed<S: AsRef<OsStr>>(subcommand: &str, plan: OwnedFd, words: &[S]) -> Core {
        let mut command = as_user(core());
        command.args([subcommand, "--plan-fd", &plan.as_raw_fd().to_string()]).args(words);
        command.current_dir("/").stdin(Stdio::null());
        Core { command, _plan: plan }
    }

    pub fn output(mut self) -> Output {
        self.command.output().unwrap()
    }
}

/// Runs a shell command in the sandbox.
pub fn sh(plan: &Value, script: &str) -> Output {
    Core::new("run", plan, &["--", "/bin/sh", "-c", script]).output()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The result of a real attempt in the sandbox.
pub fn attempt(plan: &Value, operation: &str, path: impl AsRef<Path>) -> String {
    let output = Core::new(
        "attempt",
        plan,
        &[OsStr::new("--op"), operation.as_ref(), path.as_ref().as_os_str()],
    )
    .output();
    json_of(&output)["outcome"].as_str().unwrap().to_owned()
}

/// Asserts a refusal: exit code 125, a message with `words`, and a hint.
pub fn assert_refused(output: &Output, words: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.starts_with("paddock: ") && text.contains("\nhint: "), "{text}");
    assert!(text.contains(words), "{text}");
    assert!(output.stdout.is_empty());
}
