//! The command: its arguments, its environment, and every path where its program may be found.

use std::ffi::{CStr, CString};

use rustix::io::Errno;

use crate::kernel::sys::{self, ExecStrings};

/// The search path of execvp(3) without PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";
const SHELL: &CStr = c"/bin/sh";

pub struct Command {
    candidates: Vec<CString>,
    argv: ExecStrings,
    environment: ExecStrings,
}

impl Command {
    /// `argv` is not empty. A name without a slash is searched in the PATH that the command itself
    /// gets.
    pub fn new(argv: Vec<CString>, environment: Vec<CString>) -> Command {
        let name = argv.first().map_or(&[][..], |name| name.as_bytes());
        let candidates = if name.is_empty() {
            Vec::new()
        } else if name.contains(&b'/') {
            vec![CString::new(name).unwrap_or_default()]
        } else {
            let path = environment.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
            let directories = path.unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
            let join = |directory: &[u8]| match directory {
                b"" => CString::new([b"./", name].concat()),
                _ => CString::new([directory, b"/", name].concat()),
            };
            directories.filter_map(|directory| join(directory).ok()).collect()
        };
        Command {
            candidates,
            argv: ExecStrings::new(argv),
            environment: ExecStrings::new(environment),
        }
    }

    pub fn argv(&self) -> &[CString] {
        self.argv.strings()
    }

    /// Replaces the process, or returns why nothing could be executed. As in execvp(3), a candidate
    /// that is missing or forbidden does not end the search, and a file without a known format is a
    /// shell script.
    pub fn exec(&self) -> Errno {
        let mut failure = Errno::NOENT;
        for candidate in &self.candidates {
            match sys::execve(candidate, &self.argv, &self.environment) {
                Errno::NOENT | Errno::NOTDIR => {}
                Errno::ACCESS if self.is_searched() && is_absent(candidate) => {}
                Errno::ACCESS => failure = Errno::ACCESS,
                Errno::NOEXEC => {
                    let script = [SHELL.to_owned(), candidate.clone()];
                    let argv =
                        script.into_iter().chain(self.argv().iter().skip(1).cloned()).collect();
                    return sys::execve(SHELL, &ExecStrings::new(argv), &self.environment);
                }
                other => return other,
            }
        }
        failure
    }

    /// Does the name have no slash, so that PATH is searched?
    pub fn is_searched(&self) -> bool {
        !self.name().contains(&b'/')
    }

    /// The program as the caller named it.
    pub fn name(&self) -> &[u8] {
        self.argv().first().map_or(&[], |name| name.as_bytes())
    }
}

/// A directory of PATH that can not be searched counts as "not found", not as "denied".
fn is_absent(candidate: &CStr) -> bool {
    matches!(rustix::fs::stat(candidate), Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(name: &str, environment: &[&str]) -> Vec<String> {
        let environment = environment.iter().map(|entry| CString::new(*entry).unwrap()).collect();
        let command = Command::new(vec![CString::new(name).unwrap()], environment);
        command.candidates.into_iter().map(|candidate| candidate.into_string().unwrap()).collect()
    }

    #[test]
    fn names_are_searched_in_the_path_of_the_command() {
        assert_eq!(candidates("ls", &["PATH=/a:/b"]), ["/a/ls", "/b/ls"]);
        assert_eq!(candidates("ls", &["XPATH=/a", "PATH=:/b:"]), ["./ls", "/b/ls", "./ls"]);
        assert_eq!(candidates("ls", &[]), ["/bin/ls", "/usr/bin/ls"]);
        assert_eq!(candidates("./ls", &["PATH=/a"]), ["./ls"]);
        assert!(candidates("", &["PATH=/a"]).is_empty());
    }
}
