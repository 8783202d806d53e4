//! What the configuration of a repository in the workspace makes git obey: hooks, attributes, includes, programs.
//!
//! The plan knows what the workspace's own repository names. Others lie below it, with values that are meant from their own work
//! trees. Every file that the words of such a value spell counts; a value that git itself writes names nothing.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::OsStringExt as _;

use rustix::fs::{FileType, Mode, OFlags};

use super::config;

/// No command in a configuration has more words that matter.
const MOST_WORDS: usize = 64;

/// Whole paths. `file` is the configuration itself.
pub fn by(file: &[u8], content: &[u8]) -> Vec<Vec<u8>> {
    let mut told = Vec::new();
    let understood = config::each(content, &mut |section, key, value| {
        if let (false, Some(value)) = (config::allowed(section, key, value), value) {
            told.push((section.name.clone(), key.to_vec(), value.to_vec()));
        }
    });
    if understood.is_err() || told.is_empty() {
        return Vec::new(); // git does not read it either
    }
    let own = parent(file);
    let work_tree = told.iter().find(|(section, key, _)| section == b"core" && key == b"worktree");
    let tops = match work_tree {
        Some((_, _, value)) => vec![resolved(own, value)],
        None => tops_of(own),
    };
    let mut paths = Vec::new();
    for (section, key, value) in &told {
        match (&section[..], &key[..]) {
            (b"include" | b"includeif", b"path") => paths.push(resolved(own, value)),
            (b"core", b"hookspath" | b"attributesfile" | b"excludesfile") | (b"init", b"templatedir") => {
                paths.extend(tops.iter().map(|top| resolved(top, value)));
            }
            (b"core", b"worktree") => {}
            _ => paths.extend(tops.iter().flat_map(|top| spelled(top, value))),
        }
    }
    paths
}

/// The work trees that a git directory is for: its own, and those that are linked to it; of a linked one's entry, that one.
fn tops_of(git: &[u8]) -> Vec<Vec<u8>> {
    if name(git) != b".git" {
        let linked = if name(parent(git)) == b"worktrees" { linked_by(git) } else { None };
        return vec![linked.unwrap_or_else(|| git.to_vec())];
    }
    let mut tops = vec![parent(git).to_vec()];
    let entries = [git, b"/worktrees"].concat();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = rustix::fs::open(&entries[..], flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    for entry in listed.into_iter().flatten().flatten().filter(|entry| entry.file_name().to_bytes()[0] != b'.') {
        tops.extend(linked_by(&[&entries[..], b"/", entry.file_name().to_bytes()].concat()));
    }
    tops
}

/// `gitdir` in the entry of a linked work tree is where its `.git` lies.
fn linked_by(entry: &[u8]) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(&[entry, b"/gitdir"].concat()[..], flags, Mode::empty()).ok()?;
    let mut buffer = vec![0; 4096];
    let length = rustix::io::read(&file, &mut buffer[..]).ok()?;
    let written = buffer[..length].split(|byte| *byte == b'\n').next()?;
    Some(parent(&resolved(entry, written)).to_vec())
}

/// The files that the words of a command spell: by a path, also where nothing lies yet, or by a name in a directory among them.
fn spelled(top: &[u8], command: &[u8]) -> Vec<Vec<u8>> {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"_.@+-/".contains(&byte) || byte >= 0x80;
    let home = std::env::var_os("HOME").map(OsString::into_vec).unwrap_or_default();
    let command = at_home(command, &home);
    let mut words: Vec<&[u8]> = command.split(|byte| !letter(*byte)).filter(|word| !word.is_empty()).collect();
    words.truncate(MOST_WORDS);
    // Of a command in a command (sh -c) too.
    let mut with_blanks = words_with_blanks(&command);
    with_blanks.extend(with_blanks.iter().flat_map(|word| words_with_blanks(word)).collect::<Vec<_>>());
    words.extend(with_blanks.iter().map(Vec::as_slice).take(MOST_WORDS));
    let below = |word: &[u8]| resolved(top, word.strip_prefix(b"/").unwrap_or(word));
    let bases: Vec<Vec<u8>> =
        words.iter().map(|word| below(word)).filter(|path| is(path, FileType::Directory)).collect();
    let mut found = Vec::new();
    for word in words {
        for path in [resolved(top, word), below(word)] {
            let by_path = word.contains(&b'/') && !is(&path, FileType::Directory);
            if by_path || is(&path, FileType::RegularFile) {
                found.push(path);
            }
        }
        let in_base = bases.iter().map(|base| resolved(base, word)).filter(|path| is(path, FileType::RegularFile));
        found.extend(in_base);
    }
    found
}

/// With the home directory where a shell would put it.
fn at_home(command: &[u8], home: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(command.len());
    let mut rest = command;
    while let Some((letter, after)) = rest.split_first() {
        let begins = out.last().is_none_or(|before: &u8| !before.is_ascii_alphanumeric() && *before != b'/');
        let found = [&b"$HOME/"[..], b"${HOME}/", b"~/"].into_iter().find(|spelling| rest.starts_with(spelling));
        match found {
            Some(spelling) if begins => {
                out.extend(home);
                rest = &rest[spelling.len() - 1..];
            }
            _ => {
                out.push(*letter);
                rest = after;
            }
        }
    }
    out
}

/// The words of a shell that hold blanks, by quotes or backslashes; others are found without knowing of those.
fn words_with_blanks(command: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None);
    let mut letters = command.iter().copied();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (b'\\', None | Some(b'"')) => word.extend(letters.next()),
            (b'\'' | b'"', None) => quote = Some(letter),
            (_, Some(open)) if letter == open => quote = None,
            (_, None) if letter.is_ascii_whitespace() => words.push(std::mem::take(&mut word)),
            _ => word.push(letter),
        }
    }
    words.push(word);
    words.retain(|word| word.contains(&b' '));
    words
}

fn is(path: &[u8], file_type: FileType) -> bool {
    rustix::fs::lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == file_type)
}

/// By the letters alone.
fn resolved(base: &[u8], written: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    let base = if written.starts_with(b"/") { &b""[..] } else { base };
    for name in base.split(|byte| *byte == b'/').chain(written.split(|byte| *byte == b'/')) {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    [b"/", &names.join(&b'/')[..]].concat()
}

fn parent(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)]
}

fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// The configurations that a directory without a `.git` of its own, which is a repository all the same, is read with.
pub const PARTS: [&CStr; 5] = [c"config", c"config.worktree", c"hooks", c"commondir", c"info/attributes"];

#[cfg(test)]
mod tests {
    use super::*;

    fn obeyed(config: &str) -> Vec<String> {
        by(b"/w/n/.git/config", config.as_bytes()).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn values_are_meant_from_the_work_tree() {
        assert_eq!(obeyed("[core]\nhooksPath = tools/hooks\n"), ["/w/n/tools/hooks"]);
        assert_eq!(
            obeyed("[core]\nhooksPath = /srv/hooks\n[include]\npath = ../.gitconfig\n"),
            ["/srv/hooks", "/w/n/.gitconfig"]
        );
        assert_eq!(obeyed("[core]\nworktree = ../../m\nhooksPath = h\n"), ["/w/m/h"]);
        assert!(obeyed("[filter \"x\"]\nclean = sh tools/clean %f\n").contains(&"/w/n/tools/clean".to_owned()));
        assert!(
            obeyed("[core]\nfsmonitor = \"$(git rev-parse --show-toplevel)/tools/watch\"\n")
                .contains(&"/w/n/tools/watch".to_owned())
        );
    }

    #[test]
    fn words_are_those_of_a_shell() {
        for written in [
            r#""\"my tools/clean\" %f""#,
            r"'my tools/clean' %f",
            r"sh my\\ tools/clean",
            r#"sh -c 'cat | \"my tools/clean\"'"#,
        ] {
            let config = format!("[filter \"x\"]\nclean = {written}\n");
            assert!(obeyed(&config).contains(&"/w/n/my tools/clean".to_owned()), "{written}");
        }
        for (written, read) in [
            (&b"$HOME/w/x -a"[..], &b"/h/w/x -a"[..]),
            (b"sh \"${HOME}/w/x\"", b"sh \"/h/w/x\""),
            (b"a=~/w/x", b"a=/h/w/x"),
            (b"$HOMELY/x a~/x $HOME", b"$HOMELY/x a~/x $HOME"),
        ] {
            assert_eq!(at_home(written, b"/h"), read, "{}", String::from_utf8_lossy(written));
        }
    }

    #[test]
    fn what_git_writes_by_itself_names_nothing() {
        assert!(obeyed("[core]\nbare = false\n[remote \"o\"]\nurl = https://example.org/a/b\n").is_empty());
        assert!(obeyed("[core\nhooksPath = x\n").is_empty());
    }
}
