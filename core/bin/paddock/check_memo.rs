//! The memo: the cached plan of a command line.
//!
//! `paddock run …` with the same options, in the same directory, from the same unchanged files
//! gives the same plan. Python has compiled it once and stored a memo
//! (`src/paddock/launch/write_memo.py` lists the inputs of a plan). The launcher finds the memo, checks that every input is unchanged,
//! and starts the core. In any doubt, and for every other command, it becomes Python. It parses no
//! option, compiles nothing and decides nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::process::Resource;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use paddock_core::kernel::python_helper;
use paddock_core::plan::wire::reader;

const CORE: &str = "paddock-core";
const MAX_MEMO_BYTES: u64 = 4 << 20;
/// With fewer open files nothing can run, and Python would fail with a message of its own.
const MIN_OPEN_FILES: u64 = 32;

pub fn enter() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Ok(launcher) = fs::read_link("/proc/self/exe") else {
        return refuse("cannot find the directory of paddock", "mount /proc");
    };
    // Python itself refuses to start with a directory as stdin, with its own message and status.
    if rustix::fs::fstat(rustix::stdio::stdin())
        .is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_dir())
    {
        return refuse(
            "standard input is a directory",
            "give the command a file, a pipe or /dev/null",
        );
    }
    let most = rustix::process::getrlimit(Resource::Nofile).current;
    if let Some(most) = most.filter(|most| *most < MIN_OPEN_FILES) {
        return refuse(
            &format!("only {most} files may be open at once"),
            "raise the limit: ulimit -n 1024",
        );
    }
    if let Some(remembered) = RunCommandLine::of(&arguments).and_then(|run| run.recall(&launcher)) {
        // Only a failed exec returns. Python then tries the same and prints the error.
        let _failed = remembered.start(&launcher);
    }
    let script = launcher.with_file_name(python_helper::SCRIPT);
    let Some(python) = python_helper::interpreter_of(&script) else {
        return refuse(
            &format!("the first line of {} names no Python", script.display()),
            "reinstall paddock",
        );
    };
    let failure = Command::new(&python)
        .args(python_helper::ISOLATION_OPTIONS)
        .arg(&script)
        .args(&arguments)
        .exec();
    refuse(
        &format!("cannot start {}: {failure}", python.display()),
        "check that your user can run this file, or reinstall paddock",
    )
}

fn refuse(what: &str, hint: &str) -> ExitCode {
    eprintln!("paddock: {what}\nhint: {hint}");
    ExitCode::from(125)
}

/// `paddock run OPTIONS -- COMMAND`, or `paddock -- COMMAND`.
struct RunCommandLine<'a> {
    options: &'a [OsString],
    command: &'a [OsString],
}

impl<'a> RunCommandLine<'a> {
    fn of(arguments: &'a [OsString]) -> Option<Self> {
        let dashes = arguments.iter().position(|argument| argument == "--")?;
        let (options, command) = (&arguments[..dashes], &arguments[dashes + 1..]);
        let runs = options.first().is_none_or(|first| first == "run");
        (runs && !command.is_empty()).then_some(Self { options, command })
    }

    /// The memo for these arguments, if it exists and all its inputs are unchanged.
    fn recall(&self, launcher: &Path) -> Option<CachedRun<'a>> {
        let uid = rustix::process::getuid().as_raw();
        let home = home_of(uid, &fs::read("/etc/passwd").ok()?)?;
        let place = home.join(".local/state/paddock/plans").join(self.key(uid, launcher)?);
        let text = read_own(&place, uid)?;
        let memo: Memo = reader::from_slice(&text).ok()?;
        memo.holds(launcher).then_some(CachedRun { memo, command: self.command })
    }

    fn key(&self, uid: u32, launcher: &Path) -> Option<String> {
        let cwd = std::env::current_dir().ok()?;
        let release = rustix::system::uname();
        let uid = uid.to_string();
        let parts: [&[u8]; 7] = [
            b"paddock-memo-2",
            env!("CARGO_PKG_VERSION").as_bytes(),
            uid.as_bytes(),
            cwd.as_os_str().as_bytes(),
            release.release().to_bytes(),
            launcher.as_os_str().as_bytes(),
            self.command[0].as_bytes(),
        ];
        // No part can hold a NUL, so no two lists of parts give the same bytes.
        let mut digest = Sha256::new();
        digest.update(parts.join(&0u8));
        for option in self.options.iter().skip(1) {
            digest.update([0]);
            digest.update(option.as_bytes());
        }
        Some(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The home directory of the passwd entry, never `$HOME`: a variable must not choose the plan.
fn home_of(uid: u32, passwd: &[u8]) -> Option<PathBuf> {
    let uid = uid.to_string();
    let entry = passwd
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b':').collect::<Vec<_>>())
        .find(|fields| fields.len() == 7 && fields[2] == uid.as_bytes())?;
    Some(PathBuf::from(OsStr::from_bytes(entry[5])))
}

/// Reads a file that only this user could have written.
fn read_own(path: &Path, uid: u32) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let facts = file.metadata().ok()?;
    if !facts.is_file()
        || facts.uid() != uid
        || facts.mode() & 0o077 != 0
        || facts.len() > MAX_MEMO_BYTES
    {
        return None;
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).ok()?;
    Some(text)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Memo {
    quiet: bool,
    /// The plan uses no namespaces because there were none. No file tells when that changes.
    unless_namespaces: bool,
    /// Path to its state, by content (all of it) or as a directory (who may write there). Null: the
    /// path did not exist.
    contents: BTreeMap<String, Option<[i128; 8]>>,
    places: BTreeMap<String, Option<[i128; 5]>>,
    /// Variable to the value that a pattern used.
    variables: BTreeMap<String, Option<String>>,
    plan: String,
}

impl Memo {
    fn holds(&self, launcher: &Path) -> bool {
        self.contents.iter().all(|(path, was)| content(path).is_ok_and(|now| now == *was))
            && self.places.iter().all(|(path, was)| place(path).is_ok_and(|now| now == *was))
            && self.variables.iter().all(|(name, was)| {
                std::env::var_os(name).as_deref() == was.as_deref().map(OsStr::new)
            })
            && !(self.unless_namespaces && may_make_namespaces(launcher))
    }
}

/// The core tries to make namespaces. If the core can not be started, the answer is yes.
fn may_make_namespaces(launcher: &Path) -> bool {
    let tried = Command::new(launcher.with_file_name(CORE)).arg("namespaces").status();
    !tried.is_ok_and(|status| status.code() == Some(1))
}

/// None: the path does not exist. An error means that the state is not known.
fn content(path: &str) -> std::io::Result<Option<[i128; 8]>> {
    // The state of a symlink itself: its target is another input.
    let facts = match fs::symlink_metadata(path) {
        Ok(facts) => facts,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    Ok(Some([
        facts.dev().into(),
        facts.ino().into(),
        facts.mode().into(),
        facts.uid().into(),
        facts.gid().into(),
        facts.size().into(),
        i128::from(facts.mtime()) * 1_000_000_000 + i128::from(facts.mtime_nsec()),
        i128::from(facts.ctime()) * 1_000_000_000 + i128::from(facts.ctime_nsec()),
    ]))
}

fn place(path: &str) -> std::io::Result<Option<[i128; 5]>> {
    Ok(content(path)?.map(|[dev, ino, mode, uid, gid, ..]| [dev, ino, mode, uid, gid]))
}

struct CachedRun<'a> {
    memo: Memo,
    command: &'a [OsString],
}

impl CachedRun<'_> {
    /// Becomes the core, with the plan in a sealed memfd. Returns only if that failed.
    fn start(&self, launcher: &Path) -> std::io::Error {
        match self.sealed_plan() {
            Ok(plan) => {
                use std::os::fd::AsRawFd;
                let mut core = Command::new(launcher.with_file_name(CORE));
                core.args(["run", "--plan-fd", &plan.as_raw_fd().to_string()]);
                if self.memo.quiet {
                    core.arg("--quiet");
                }
                core.arg("--").args(self.command).exec()
            }
            Err(error) => error,
        }
    }

    fn sealed_plan(&self) -> std::io::Result<File> {
        // Not close-on-exec: the program that replaces this one reads it.
        let mut plan =
            File::from(rustix::fs::memfd_create("paddock-plan", MemfdFlags::ALLOW_SEALING)?);
        plan.write_all(self.memo.plan.as_bytes())?;
        rustix::fs::fcntl_add_seals(
            &plan,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(plan)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(|word| OsString::from_vec(word.into())).collect()
    }

    #[test]
    fn only_a_run_with_a_command_is_looked_up() {
        for text in ["run -- true", "-- true", "run --profile x -- true -- --help"] {
            assert!(RunCommandLine::of(&words(text)).is_some(), "{text}");
        }
        for text in ["run", "run --", "why -- true", "--debug run -- true", "run true"] {
            assert!(RunCommandLine::of(&words(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn the_home_comes_from_the_whole_uid_field() {
        let passwd =
            b"root:x:0:0::/root:/bin/sh\nada:x:1000:1000:Ada:/home/ada:/bin/sh\nbad:x:10:10\n";
        assert_eq!(home_of(1000, passwd).unwrap(), Path::new("/home/ada"));
        assert_eq!(home_of(10, passwd), None);
        assert_eq!(home_of(100, passwd), None);
    }

    #[test]
    fn a_vanished_and_an_appeared_file_are_changes() {
        assert_eq!(content("/nonexistent/file").unwrap(), None);
        assert!(content("/").unwrap().is_some());
        let memo = |path: &str, was| Memo {
            quiet: false,
            unless_namespaces: false,
            contents: BTreeMap::from([(path.to_owned(), was)]),
            places: BTreeMap::new(),
            variables: BTreeMap::new(),
            plan: String::new(),
        };
        assert!(memo("/", content("/").unwrap()).holds(Path::new("/nonexistent/launcher")));
        assert!(memo("/nonexistent/file", None).holds(Path::new("/nonexistent/launcher")));
        assert!(!memo("/", None).holds(Path::new("/nonexistent/launcher")));
        assert!(
            !memo("/nonexistent/file", content("/").unwrap())
                .holds(Path::new("/nonexistent/launcher"))
        );
        // If the core can not be asked, namespaces count as possible.
        let weaker = Memo { unless_namespaces: true, ..memo("/nonexistent/file", None) };
        assert!(!weaker.holds(Path::new("/nonexistent/launcher")));
        // This is not a missing file: its state is not known.
        assert!(
            !memo(&format!("/{}", "x".repeat(300)), None).holds(Path::new("/nonexistent/launcher"))
        );
    }
}
