//! Finds the Python program beside the native one and its interpreter. The options below keep
//! foreign code out of it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const SCRIPT: &str = "paddock-python";

/// -E, -P, -s: no variable, no directory of the caller and no start-up file in the home directory
/// decides what Python runs. An agent can write all of these. The script itself finds a package
/// that was installed for one user.
pub const ISOLATION_OPTIONS: [&str; 3] = ["-E", "-P", "-s"];

/// The interpreter of the script, as the installer wrote it. It is on the first line. If its path
/// is too long for the kernel or has a space, it is in a line that a shell runs (pip's distlib):
///
/// | ```text
/// | #!/bin/sh
/// | '''exec' "/a long path/bin/python3" "$0" "$@"
/// | ```
///
/// Another interpreter than Python does not know the options that shut out the caller's variables.
pub fn interpreter_of(script: &Path) -> Option<PathBuf> {
    let text = fs::read(script).ok()?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let mut words = lines.next()?.strip_prefix(b"#!")?.trim_ascii();
    if words == b"/bin/sh" {
        let quoted = lines.next()?.strip_prefix(b"'''exec' ")?.strip_suffix(b" \"$0\" \"$@\"")?;
        words =
            quoted.strip_prefix(b"\"").and_then(|path| path.strip_suffix(b"\"")).unwrap_or(quoted);
        (!words.iter().any(|byte| b"\"'\\$`".contains(byte))).then_some(())?;
    } else {
        words = words.split(u8::is_ascii_whitespace).next()?;
    }
    let path = PathBuf::from(OsStr::from_bytes(words));
    let name = path.file_name()?.as_bytes();
    let python = [&b"python"[..], b"pypy", b"graalpy"].iter().any(|kind| name.starts_with(kind));
    (path.is_absolute() && python).then_some(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_a_python_is_started() {
        let script =
            std::env::temp_dir().join(format!("paddock-first-line-{}", std::process::id()));
        for (text, interpreter) in [
            ("#!/opt/venv/bin/python\nimport sys\n", Some("/opt/venv/bin/python")),
            ("#!/usr/bin/python3.13t -sP\nimport sys\n", Some("/usr/bin/python3.13t")),
            (
                "#!/bin/sh\n'''exec' \"/a b/bin/python3\" \"$0\" \"$@\"\n' '''\n",
                Some("/a b/bin/python3"),
            ),
            (
                "#!/bin/sh\n'''exec' /long/bin/python3 \"$0\" \"$@\"\n' '''\n",
                Some("/long/bin/python3"),
            ),
            ("#!/bin/sh\n'''exec' \"$(evil)/python3\" \"$0\" \"$@\"\n' '''\n", None),
            ("#!/bin/sh\n'''exec' \"/bin/sh\" \"$0\" \"$@\"\n' '''\n", None),
            ("#!/bin/sh\nexec python3 \"$0\"\n", None),
            ("#!/bin/bash\n", None),
            ("#!/usr/bin/env python3\n", None),
            ("#!python\n", None),
            ("import sys\n", None),
            ("", None),
        ] {
            fs::write(&script, text).unwrap();
            assert_eq!(interpreter_of(&script).as_deref(), interpreter.map(Path::new), "{text}");
        }
        fs::remove_file(&script).unwrap();
    }
}
