//! `unreached`: becomes a command that may do everything but read and execute files that a
//! sandboxed command could have written.
//!
//! A credential's command runs outside of the sandbox. Its arguments do not tell which files it
//! uses: a shell expands variables, a script calls others. So Landlock refuses the files
//! themselves: every tree that the plan lists as reached, and the private temporary directories of
//! runs. A file that is created in a directory above such a tree after this start is refused as
//! well.
//!
//! A link in such a tree is still followed: it can lead to any file that no command could write.

use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use ::landlock::AccessFs;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::Refusal;
use crate::kernel::errno_names::errno_text;
use crate::kernel::resolved_path::{self, ResolvedPath};
use crate::kernel::sys::{self, ExecStrings};
use crate::plan::rights::{self, Rights};
use crate::plan::{self, Plan};
use crate::sandbox::apply_restrictions::{EnterError, EnterStep};
use crate::sandbox::landlock::{self, GrantError};

/// The first ABI with renames between directories. Every ruleset refuses these unless a rule allows
/// them.
const REFER_SINCE: i32 = 2;

#[derive(Debug, thiserror::Error)]
pub enum UnreachedError {
    #[error("cannot locate {path}, where a sandboxed command could write: {}", errno_text(*.source))]
    Locate { path: String, source: Errno },
    #[error(
        "sandboxed commands could write everywhere (/), so no file is left that the credential \
            program may read"
    )]
    Nothing,
    #[error("cannot list the parents of directories that sandboxed commands could write: {}", errno_text(*.0))]
    List(Errno),
    #[error("Landlock rejects a rule: {}", errno_text(*.0))]
    AddRule(Errno),
    #[error("cannot execute {program}: {}", errno_text(*.source))]
    Execute { program: String, source: Errno },
}

impl UnreachedError {
    pub fn hint(&self) -> &'static str {
        match self {
            UnreachedError::Locate { .. } | UnreachedError::List(_) => {
                "make it accessible to you (chmod u+rx), or take the secret from env: or file:"
            }
            UnreachedError::Nothing => {
                "grant commands less than the whole machine, or take the secret from env:"
            }
            UnreachedError::AddRule(_) => {
                "type `paddock doctor` to test every mechanism on this \
                machine"
            }
            UnreachedError::Execute { .. } => {
                "keep the program, and its files, where no sandboxed command can write"
            }
        }
    }
}

pub fn execute(plan: &Plan, argv: Vec<CString>) -> Result<i32, Refusal> {
    let ruleset = ruleset(plan)?;
    let at = |step| move |errno| EnterError { step, errno };
    rustix::thread::set_no_new_privs(true).map_err(at(EnterStep::NoNewPrivs))?;
    sys::landlock_restrict_self(ruleset.as_fd()).map_err(at(EnterStep::Landlock))?;
    sys::close_on_exec_from(3).map_err(at(EnterStep::Descriptors))?;
    let environment = ExecStrings::new(sys::inherited_environment());
    let argv = ExecStrings::new(argv);
    let Some(program) = argv.strings().first() else {
        return Err(Refusal::Usage("no command was given"));
    };
    let source = sys::execve(program, &argv, &environment);
    Err(UnreachedError::Execute { program: program.to_string_lossy().into_owned(), source }.into())
}

fn ruleset(plan: &Plan) -> Result<OwnedFd, Refusal> {
    let abi = sys::landlock_abi().map_err(GrantError::NoLandlock)?;
    let mut handled = Rights::from(AccessFs::Execute | AccessFs::ReadFile);
    if abi >= REFER_SINCE {
        handled |= AccessFs::Refer;
    }
    let ruleset = sys::landlock_create_ruleset(handled.bits(), 0, 0).map_err(GrantError::Create)?;
    let places = places(plan)?;
    let root = rustix::fs::open(c"/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(UnreachedError::List)?;
    let identity = ResolvedPath::of_dir(&root).map_err(UnreachedError::List)?.object;
    if places.iter().any(|place| place.object == identity) {
        return Err(UnreachedError::Nothing.into());
    }
    let mut add = |fd: &OwnedFd, stat: &Stat| {
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let rights = if is_dir { handled } else { rights::for_file(handled) };
        sys::landlock_add_rule(ruleset.as_fd(), rights.bits(), fd.as_fd())
            .map_err(UnreachedError::AddRule)
    };
    let places: Vec<&ResolvedPath> = places.iter().collect();
    landlock::around(root.as_fd(), &places, &UnreachedError::List, &mut add)?;
    Ok(ruleset)
}

/// The places that sandboxed commands could write: by name, and by inode for a directory that was
/// renamed since.
fn places(plan: &Plan) -> Result<Vec<ResolvedPath>, UnreachedError> {
    let mut places = Vec::new();
    for tree in plan.files.iter().flat_map(|files| &files.previously_writable) {
        let locate = |source| UnreachedError::Locate { path: tree.path.to_string(), source };
        // A device keeps nothing that a command wrote.
        let device = rustix::fs::stat(tree.path.as_c_str())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice);
        if !device {
            places.extend(ResolvedPath::all_of(tree.path.as_bytes()).map_err(locate)?);
        }
        places.extend(
            tree.identity
                .map(|identity| ResolvedPath { object: Some(identity.into()), above: Vec::new() }),
        );
    }
    let locate = |source| UnreachedError::Locate { path: plan::TEMP_PARENT.to_owned(), source };
    let parent = resolved_path::follow(plan::TEMP_PARENT.as_bytes()).map_err(locate)?.real;
    let begin = plan::temp_path_prefix(&parent, plan.user.uid);
    let entries = std::fs::read_dir(&parent).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries =
        entries.map_err(|error| locate(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    for entry in entries {
        let path = entry.path();
        if path.as_os_str().as_bytes().starts_with(&begin) {
            places.extend(ResolvedPath::all_of(path.as_os_str().as_bytes()).map_err(locate)?);
        }
    }
    Ok(places)
}
