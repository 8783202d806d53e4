//! The user and group ids inside a container, and their ids outside. The supervisor writes the maps
//! once, before any process runs inside.
//!
//! Root writes any range. Another user may map only its own id, and only without setgroups(2). The
//! programs newuidmap and newgidmap map more, within the ranges of /etc/subuid and /etc/subgid.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use crate::kernel::sys::{self, ExecStrings, SignalMask};
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{Container, IdRange};

#[derive(Debug, thiserror::Error)]
pub enum IdMapError {
    #[error("cannot write the {kind} of the container: {}", crate::kernel::errno_names::errno_text(*.source))]
    Write { kind: &'static str, source: Errno },
    #[error("cannot start {program}: {}", crate::kernel::errno_names::errno_text(*.source))]
    Start { program: AbsPath, source: Errno },
    #[error("{program} cannot map the ids of the container (status {status})")]
    Mapper { program: AbsPath, status: i32 },
}

impl IdMapError {
    pub fn hint(&self) -> &'static str {
        match self {
            IdMapError::Write { .. } => {
                "type `paddock doctor` to see whether this machine allows user namespaces"
            }
            IdMapError::Start { .. } | IdMapError::Mapper { .. } => {
                "check your lines in /etc/subuid and /etc/subgid, and that newuidmap and newgidmap may change ids"
            }
        }
    }
}

/// Writes the maps of the namespace of `init`. `mask`: the signals as the caller had them.
pub fn map(
    init: Pid,
    container: &Container,
    caller: u32,
    mask: &SignalMask,
) -> Result<(), IdMapError> {
    if let Some(mappers) = &container.mappers {
        run_mapper(&mappers.uid, init, &container.uid_map, mask)?;
        return run_mapper(&mappers.gid, init, &container.gid_map, mask);
    }
    if !container.clears_groups(caller) {
        write(init, "setgroups", "deny")?;
    }
    write(init, "uid_map", &lines(&container.uid_map))?;
    write(init, "gid_map", &lines(&container.gid_map))
}

fn lines(map: &[IdRange]) -> String {
    let mut text = String::new();
    for IdRange { inside, outside, count } in map {
        let _ = writeln!(text, "{inside} {outside} {count}");
    }
    text
}

fn write(init: Pid, kind: &'static str, text: &str) -> Result<(), IdMapError> {
    let failed = |source| IdMapError::Write { kind, source };
    let path = format!("/proc/{}/{kind}", init.as_raw_nonzero());
    let file =
        rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    // The kernel takes a map in one piece or not at all.
    match rustix::io::write(&file, text.as_bytes()) {
        Ok(written) if written == text.len() => Ok(()),
        Ok(_) => Err(failed(Errno::IO)),
        Err(source) => Err(failed(source)),
    }
}

fn run_mapper(
    program: &AbsPath,
    init: Pid,
    map: &[IdRange],
    mask: &SignalMask,
) -> Result<(), IdMapError> {
    let failed = |source| IdMapError::Start { program: program.clone(), source };
    let numbers = map.iter().flat_map(|range| [range.inside, range.outside, range.count]);
    let words = [init.as_raw_nonzero().get().unsigned_abs()].into_iter().chain(numbers);
    let argv = [Ok(program.as_c_str().into_owned())]
        .into_iter()
        .chain(words.map(|word| CString::new(word.to_string())));
    let argv = ExecStrings::new(argv.collect::<Result<_, _>>().map_err(|_| failed(Errno::INVAL))?);
    // The program needs no environment, and is set-user-id.
    let environment = ExecStrings::new(Vec::new());
    let path: &CStr = &program.as_c_str();
    let mut failure = None;
    let child = sys::spawn_sharing_memory(|| {
        sys::restore_signal_mask(mask);
        let _ = sys::close_on_exec_from(3);
        failure = Some(sys::execve(path, &argv, &environment));
        125
    })
    .map_err(failed)?;
    let status = loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Err(Errno::INTR) | Ok(None) => {}
            Ok(Some((_, status))) => break status,
            Err(errno) => return Err(failed(errno)),
        }
    };
    match (failure, status.exit_status()) {
        (Some(errno), _) => Err(failed(errno)),
        (None, Some(0)) => Ok(()),
        (None, status) => {
            Err(IdMapError::Mapper { program: program.clone(), status: status.unwrap_or(-1) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_the_format_of_the_kernel() {
        let map = [
            IdRange { inside: 0, outside: 100_000, count: 5 },
            IdRange { inside: 5, outside: 1000, count: 1 },
        ];
        assert_eq!(lines(&map), "0 100000 5\n5 1000 1\n");
    }
}
