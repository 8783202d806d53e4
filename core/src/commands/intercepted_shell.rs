//! Started under the name of a shell: applies the `[shell]` section of the policy and execs the
//! real shell.
//!
//! In a run that intercepts shells, this program is mounted over each of them
//! (`sandbox/root/shells.rs`). The real shells are in a directory whose path is at
//! [`REAL_SHELLS_LINK`], under their own paths, beside the plan of shells. Without such a run PATH
//! leads to this program by a link, and the plan of shells is beside the link.
//!
//! Nothing in the call says whether the caller is already inside: the kernel does. To enter
//! installs a filter that answers one call with an errno that this call never has, if its arguments
//! are the token of this plan. Only a process that installed such a filter, or descends from one
//! that did, gets this answer. Each further shell below then only execs: Landlock takes 16 layers.

use std::ffi::CString;

use rustix::fs::{Access, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use serde::Deserialize;

use super::error::Refusal;
use super::standard_fds;
use crate::kernel::errno_names::errno_text;
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys::{self, ExecStrings, Instruction};
use crate::kernel::{proc_text, stderr};
use crate::plan::exit_codes::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND};
use crate::plan::syscalls::{self, Arch};
use crate::plan::wire::bytes::{AbsPath, Text};
use crate::plan::wire::reader;
use crate::plan::{CORE_NAME, OnFailure, Shell, present};
use crate::sandbox::apply_restrictions::Restrictions;
use crate::sandbox::landlock::{FileGrants, GrantError};
use crate::sandbox::root::shells::{REAL_SHELLS_LINK, SHELL_NAMES, SHELL_PLAN_FILE};
use crate::sandbox::seccomp::bpf;
use crate::sandbox::{closed_links, environment, shell_rules};

/// The default directory of real shells. A build may choose another one.
pub const DEFAULT_DIR: &str = match option_env!("PADDOCK_DEFAULT_SHELL_DIR") {
    Some(dir) => dir,
    None => "/bin/shells",
};
const SHELL_DIR_VARIABLE: &[u8] = b"PADDOCK_SHELL_DIR=";
/// A number that is no option of prctl(2).
const PRCTL_QUESTION: u64 = 0x7061_6464;
const INSIDE_ERRNO: Errno = Errno::ALREADY;
const MAX_SHELL_PLAN_BYTES: usize = 256 << 10;

/// The plan of shells, as the file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShellPlanFile {
    on_failure: OnFailure,
    plan: Text,
    /// The directory of the real shells, for shells that PATH leads to.
    #[serde(deserialize_with = "present")]
    shells: Option<AbsPath>,
    token: Text,
}

/// How this program was started.
#[derive(Debug, PartialEq, Eq)]
pub enum CalledAs {
    /// This program is mounted over the shell with this path.
    Over(Vec<u8>),
    /// Through a link of this name.
    By(&'static str),
}

#[derive(Debug, thiserror::Error)]
enum ShellFailure {
    #[error("{0}")]
    Refused(#[from] Refusal),
    #[error("cannot read the plan for shells: {}: {what}", String::from_utf8_lossy(.path))]
    Unreadable { path: Vec<u8>, what: String },
    #[error("the plan for shells is in /dev, which is writable here")]
    Writable,
    #[error("the real shell is missing: {}", String::from_utf8_lossy(.0))]
    Missing(Vec<u8>),
    #[error("{} leads to paddock instead of a shell", String::from_utf8_lossy(.0))]
    Circle(Vec<u8>),
    #[error("cannot execute {}: {}", String::from_utf8_lossy(.0), errno_text(*.1))]
    NotExecuted(Vec<u8>, Errno),
}

impl ShellFailure {
    fn exit_code(&self) -> i32 {
        match self {
            ShellFailure::Missing(_) => EXIT_NOT_FOUND,
            _ => EXIT_NOT_EXECUTABLE,
        }
    }

    fn hint(&self) -> &str {
        match self {
            ShellFailure::Refused(refusal) => refusal.hint(),
            ShellFailure::Unreadable { .. } => {
                "Paddock starts no shell without it: type `paddock shims install` to create it \
                    again"
            }
            ShellFailure::Writable => {
                "with bubblewrap, add --remount-ro /dev after the binds in /dev"
            }
            ShellFailure::Missing(_) | ShellFailure::Circle(_) | ShellFailure::NotExecuted(..) => {
                "set PADDOCK_SHELL_DIR to the directory of the real shells, or type `paddock shims \
                    install --shells DIR`"
            }
        }
    }
}

/// None: under its own name.
pub fn called(argv: &[CString]) -> Option<CalledAs> {
    let first = argv.first().map_or(&[][..], |word| word.as_bytes());
    if base_name(first) == CORE_NAME {
        return None;
    }
    let own = rustix::fs::readlink(c"/proc/self/exe", Vec::new())
        .map(CString::into_bytes)
        .unwrap_or_default();
    if !base_name(&own).starts_with(CORE_NAME) {
        return Some(CalledAs::Over(own));
    }
    // For a `#!` line the kernel passes the script's name there, and this program's own as the
    // first argument.
    let shell = |name: &[u8]| SHELL_NAMES.into_iter().find(|shell| shell.as_bytes() == name);
    let by_path = shell(base_name(rustix::param::linux_execfn().to_bytes()));
    by_path
        .or_else(|| shell(base_name(first.strip_prefix(b"-").unwrap_or(first))))
        .map(CalledAs::By)
}

fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Becomes the shell, or prints why it can not.
pub fn start(called: CalledAs, argv: Vec<CString>) -> i32 {
    let failure = become_shell(called, argv).map_or_else(|failure| failure, |never| match never {});
    stderr::print_error(&failure.to_string(), failure.hint());
    failure.exit_code()
}

enum Never {}

fn become_shell(called: CalledAs, argv: Vec<CString>) -> Result<Never, ShellFailure> {
    let inherited = sys::inherited_environment();
    let intercepted = match rustix::fs::readlink(REAL_SHELLS_LINK, Vec::new()) {
        Ok(link) => Some([b"/dev/", link.as_bytes()].concat()),
        Err(Errno::NOENT) => None,
        // not a link but the directory itself, as others may bind it
        Err(_) => Some(REAL_SHELLS_LINK.to_bytes().to_vec()),
    };
    let (inside, compiled, real, dir) = match (called, intercepted) {
        (CalledAs::Over(own), Some(dir)) => {
            // A process that can write there could choose the plan of the next shell.
            if rustix::fs::access(c"/dev", Access::WRITE_OK).is_ok() {
                return Err(ShellFailure::Writable);
            }
            let compiled = ShellPlanFile::read(&dir)?;
            (compiled.inside(), compiled, [&dir[..], &own].concat(), dir)
        }
        // The program there does the same, with the plan of the run.
        (CalledAs::By(name), Some(_)) => {
            return execute(format!("/bin/{name}").into_bytes(), argv, inherited);
        }
        (CalledAs::By(name), None) => {
            let dir = link_dir();
            let compiled = ShellPlanFile::read(&dir)?;
            let inside = compiled.inside();
            let shells = compiled.shells(&inherited, inside);
            (inside, compiled, [&shells[..], b"/", name.as_bytes()].concat(), dir)
        }
        (CalledAs::Over(_), None) => {
            let (path, what) =
                (REAL_SHELLS_LINK.to_bytes().to_vec(), errno_text(Errno::NOENT).to_string());
            return Err(ShellFailure::Unreadable { path, what });
        }
    };
    check(&real)?;
    if inside {
        return execute(real, argv, inherited);
    }
    match compiled.enter(&dir, &inherited) {
        Ok(environment) => execute(real, argv, environment),
        Err(refusal) if compiled.on_failure == OnFailure::Open && is_login(&argv) => {
            stderr::print_line(
                "paddock",
                &format!("warning: this shell is not sandboxed: {refusal}"),
            );
            execute(real, argv, inherited)
        }
        Err(refusal) => Err(refusal.into()),
    }
}

/// Is this a login shell, as login(1) starts it?
fn is_login(argv: &[CString]) -> bool {
    argv.first().is_some_and(|name| name.as_bytes().starts_with(b"-"))
}

/// The directory of the link that this program was started through.
fn link_dir() -> Vec<u8> {
    let path = rustix::param::linux_execfn().to_bytes();
    let end = path.iter().rposition(|byte| *byte == b'/');
    end.map_or(b".".to_vec(), |end| path[..end].to_vec())
}

/// Checks that the real shell exists and is not this program.
fn check(real: &[u8]) -> Result<(), ShellFailure> {
    let path = CString::new(real).unwrap_or_default();
    let found = rustix::fs::stat(&path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => ShellFailure::Missing(real.to_vec()),
        errno => ShellFailure::NotExecuted(real.to_vec(), errno),
    })?;
    match rustix::fs::stat(c"/proc/self/exe") {
        Ok(own) if Identity::from(&own) != Identity::from(&found) => Ok(()),
        Ok(_) => Err(ShellFailure::Circle(real.to_vec())),
        Err(errno) => Err(ShellFailure::NotExecuted(real.to_vec(), errno)),
    }
}

fn execute(
    real: Vec<u8>,
    argv: Vec<CString>,
    environment: Vec<CString>,
) -> Result<Never, ShellFailure> {
    let path = CString::new(&real[..]).unwrap_or_default();
    match sys::execve(&path, &ExecStrings::new(argv), &ExecStrings::new(environment)) {
        Errno::NOENT => Err(ShellFailure::Missing(real)),
        errno => Err(ShellFailure::NotExecuted(real, errno)),
    }
}

impl ShellPlanFile {
    fn read(dir: &[u8]) -> Result<ShellPlanFile, ShellFailure> {
        let path = [dir, b"/", SHELL_PLAN_FILE.as_bytes()].concat();
        let unreadable = |what: String| ShellFailure::Unreadable { path: path.clone(), what };
        let name = CString::new(&path[..]).unwrap_or_default();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = rustix::fs::open(&name, flags, Mode::empty());
        let read = file.and_then(|file| {
            let size = rustix::fs::fstat(&file)?.st_size;
            let size = usize::try_from(size)
                .ok()
                .filter(|size| *size <= MAX_SHELL_PLAN_BYTES)
                .ok_or(Errno::FBIG)?;
            let mut bytes = vec![0; size];
            let length = rustix::io::pread(&file, &mut bytes[..], 0)?;
            bytes.truncate(length);
            Ok(bytes)
        });
        let bytes = read.map_err(|errno| unreadable(errno_text(errno).to_string()))?;
        reader::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))
    }

    /// The token, as the arguments of `prctl` after the option.
    fn token(&self) -> Option<[u64; 5]> {
        let hex = std::str::from_utf8(self.token.as_bytes())
            .ok()
            .filter(|hex| hex.len() == 64 && hex.is_ascii())?;
        let part = |at: usize| u64::from_str_radix(&hex[16 * at..16 * (at + 1)], 16).ok();
        Some([PRCTL_QUESTION, part(0)?, part(1)?, part(2)?, part(3)?])
    }

    /// Has this process entered this very plan?
    fn inside(&self) -> bool {
        let answer = self.token().map(|arguments| sys::numeric_syscall(libc::SYS_prctl, arguments));
        answer == Some(Err(INSIDE_ERRNO))
    }

    /// Inside, the variable does not count: the caller may have set it.
    fn shells(&self, environment: &[CString], inside: bool) -> Vec<u8> {
        let chosen =
            environment.iter().find_map(|entry| entry.as_bytes().strip_prefix(SHELL_DIR_VARIABLE));
        let chosen = chosen.filter(|dir| !inside && dir.starts_with(b"/"));
        let own = self.shells.as_ref().map_or(DEFAULT_DIR.as_bytes(), |dir| dir.as_bytes());
        chosen.unwrap_or(own).to_vec()
    }

    /// Enters the restrictions of the plan. Returns the environment.
    fn enter(&self, dir: &[u8], inherited: &[CString]) -> Result<Vec<CString>, Refusal> {
        standard_fds::check_descriptors()?;
        let mut plan = Shell::read(&self.plan, rustix::process::getuid().as_raw())?;
        // An outer run that does not intercept shells may do the writes of this one. It allows no
        // inner rules for files.
        let has_scopes_alone = sys::landlock_abi() == Err(Errno::OPNOTSUPP);
        if has_scopes_alone {
            match plan.files.take() {
                Some(files) if !plan.opens_all(&files) => {
                    return Err(GrantError::NoLandlock(Errno::OPNOTSUPP).into());
                }
                _ => {}
            }
        }
        closed_links::close(&mut plan)?;
        standard_fds::check_sockets(&plan)?;
        let number = syscalls::find("prctl").and_then(|call| call.number(Arch::NATIVE));
        let (Some(number), Some(token)) = (number, self.token()) else {
            return Err(Refusal::Usage("the plan for shells has no token"));
        };
        let mark: Vec<Instruction> =
            bpf::answering(Arch::NATIVE, number, &token, INSIDE_ERRNO.raw_os_error())?;
        let mut restrictions = Restrictions::prepare(&plan, &[], Vec::new())?;
        if has_scopes_alone {
            restrictions = restrictions.with_scopes(&plan)?;
        }
        let restrictions = restrictions.marked(mark, pipes());
        FileGrants::anywhere(&plan, restrictions.ruleset())?;
        restrictions.complete(&plan, &[])?;
        if let (Some(ruleset), Some(_)) = (restrictions.ruleset(), &plan.files) {
            shell_rules::allow_real_shells(ruleset, dir)
                .map_err(|errno| Refusal::Shell { what: "cannot grant the real shells", errno })?;
        }
        let environment = match &plan.environment {
            Some(requested) => environment::build(requested, inherited.to_vec(), None, b""),
            None => inherited.to_vec(),
        };
        restrictions.enter(None)?;
        // Without the answering filter each shell would add another layer.
        let unknown =
            Refusal::Shell { what: "the gate cannot identify the shell", errno: Errno::NOSYS };
        if self.inside() { Ok(environment) } else { Err(unknown) }
    }
}

/// Pipes that the caller passes on: `make` and process substitution need them, and they lead only
/// to a process that the caller chose. A process with more rights may have opened the other
/// descriptors.
fn pipes() -> Vec<u32> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()) else {
        return Vec::new();
    };
    let mut buffer = Vec::with_capacity(4096);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut inherited = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let number = proc_text::number(entry.file_name().to_bytes())
            .and_then(|number| u32::try_from(number).ok());
        let Some(number) = number.filter(|number| *number > 2) else { continue };
        let stat = rustix::fs::statat(&dir, entry.file_name(), rustix::fs::AtFlags::empty());
        if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo) {
            inherited.push(number);
        }
    }
    inherited.sort_unstable();
    inherited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(first: &str) -> Vec<CString> {
        vec![CString::new(first).unwrap(), CString::new("-c").unwrap()]
    }

    #[test]
    fn the_name_of_the_core_is_no_shell() {
        for name in ["paddock-core", "/usr/bin/paddock-core", "./paddock-core"] {
            assert_eq!(called(&words(name)), None, "{name}");
        }
    }

    #[test]
    fn the_first_letter_marks_a_login_shell() {
        assert!(is_login(&words("-bash")));
        for other in ["bash", "/bin/-bash", ""] {
            assert!(!is_login(&words(other)), "{other}");
        }
    }

    #[test]
    fn a_process_that_did_not_enter_is_not_inside() {
        let text = |token: &str| {
            format!(
                "{{\"on_failure\":\"closed\",\"plan\":\"x\",\"shells\":null,\"token\":\"{token}\"}}"
            )
        };
        let compiled =
            |token: &str| reader::from_slice::<ShellPlanFile>(text(token).as_bytes()).unwrap();
        for token in ["0123456789abcdef".repeat(4).as_str(), "0".repeat(64).as_str(), "", "xyz"] {
            assert!(!compiled(token).inside(), "{token}");
        }
        let chosen = [CString::new("PADDOCK_SHELL_DIR=/x").unwrap()];
        let relative = [CString::new("PADDOCK_SHELL_DIR=x").unwrap()];
        let none = compiled("");
        assert_eq!(none.shells(&chosen, false), b"/x");
        assert_eq!(none.shells(&chosen, true), DEFAULT_DIR.as_bytes());
        assert_eq!(none.shells(&relative, false), DEFAULT_DIR.as_bytes());
    }

    #[test]
    fn a_process_that_entered_is_inside_with_its_children() {
        let compiled: ShellPlanFile = reader::from_slice(
            format!(
                "{{\"on_failure\":\"closed\",\"plan\":\"x\",\"shells\":null,\"token\":\"{}\"}}",
                "0123456789abcdef".repeat(4)
            )
            .as_bytes(),
        )
        .unwrap();
        let number = syscalls::find("prctl").and_then(|call| call.number(Arch::NATIVE)).unwrap();
        let mark = bpf::answering(
            Arch::NATIVE,
            number,
            &compiled.token().unwrap(),
            INSIDE_ERRNO.raw_os_error(),
        )
        .unwrap();
        // A filter belongs to its thread.
        let thread = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            let before = compiled.inside();
            sys::seccomp_install(&mark).unwrap();
            let mut other = compiled.token().unwrap();
            other[4] ^= 1 << 63;
            let of_another = sys::numeric_syscall(libc::SYS_prctl, other);
            let below = std::thread::spawn(move || compiled.inside()).join().unwrap();
            (before, below, of_another)
        });
        assert_eq!(thread.join().unwrap(), (false, true, Err(Errno::INVAL)));
    }
}
