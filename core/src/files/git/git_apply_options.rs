//! The options in `rebase-apply/apply-opt`.
//!
//! `git am` writes there which of its own options it hands to `git apply`, each in quotes, and
//! reads them again when it goes on (builtin/am.c, am_load). `git apply` has further options:
//! `--build-fake-ancestor` writes to any file. So only the options that `git am` takes are
//! harmless.

use super::harmless_settings::{is_blank, trimmed};

const FLAGS: [&[u8]; 3] = [b"--ignore-space-change", b"--ignore-whitespace", b"--reject"];
const WITH_NUMBER: [&[u8]; 2] = [b"-C", b"-p"];
const WITH_VALUE: [&[u8]; 4] = [b"--whitespace=", b"--directory=", b"--exclude=", b"--include="];

pub fn are_harmless(content: &[u8]) -> bool {
    let mut rest = trimmed(content);
    while !rest.is_empty() {
        let Some((option, after)) = quoted(rest) else { return false };
        if !is_harmless(option) {
            return false;
        }
        rest = trimmed(after);
        if !rest.is_empty() && !after.first().is_some_and(|byte| is_blank(*byte)) {
            return false;
        }
    }
    true
}

/// The first option, and the text after it. An option that contains a quote has another spelling,
/// and is not read.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.strip_prefix(b"'")?;
    let end = text.iter().position(|byte| *byte == b'\'')?;
    Some((&text[..end], &text[end + 1..]))
}

fn is_harmless(option: &[u8]) -> bool {
    let number = |prefix: &&[u8]| {
        option
            .strip_prefix(*prefix)
            .is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
    };
    FLAGS.contains(&option)
        || WITH_NUMBER.iter().any(number)
        || WITH_VALUE.iter().any(|prefix| option.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_git_am_are_harmless() {
        for content in [
            "",
            "\n",
            " '--whitespace=fix'\n",
            " '-C3' '-p0' '--directory=a b' '--reject'\n",
            "'--ignore-whitespace' '--exclude=*.c' '--include=x' '--ignore-space-change'",
        ] {
            assert!(are_harmless(content.as_bytes()), "{content}");
        }
    }

    #[test]
    fn other_options_of_git_apply_are_not() {
        for content in [
            " '--build-fake-ancestor=/home/ada/.ssh/authorized_keys'\n",
            "'--build-fake=/x'",
            " '--whitespace=fix' '--unsafe-paths'",
            "'-C3' '/etc/passwd'",
            "'-C'",
            "'-p1x'",
            "-C3",
            "'-C3",
            "'-C3''-p1'",
            "'--reject'\\''x'",
            "'-C3'\0'--unsafe-paths'",
        ] {
            assert!(!are_harmless(content.as_bytes()), "{content}");
        }
    }
}
