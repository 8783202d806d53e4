//! The paths that the configuration of a repository in the workspace makes git trust: hooks,
//! attributes, includes, programs.
//!
//! The plan knows those of the workspace's own repository. Other repositories lie below it, with
//! values that are relative to their own work trees. Included files are read as well, whatever the
//! condition is. Every file that the words of a value name counts. A value that git itself writes
//! names nothing.

use std::ffi::OsString;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::git_table::{self, ConfigKeyKind};
use super::harmless_settings;
use super::recognise_git_dirs::{last, parent};

/// No command in a configuration has more words that matter.
const MAX_COMMAND_WORDS: usize = 64;
/// Files that one configuration includes, directly and indirectly.
const MAX_INCLUDED_FILES: usize = 100;
/// Git has no limit. No usual configuration is longer.
pub const MAX_CONFIG_BYTES: usize = 1024 * 1024;

/// A git file that can not be read: the paths that it makes git trust are not known.
#[derive(Debug)]
pub struct UnreadableGitFile {
    pub path: Vec<u8>,
    pub source: Errno,
}

/// One line of a configuration that git itself would not write.
struct ConfigLine {
    file: Vec<u8>,
    key: ConfigKeyKind,
    value: Vec<u8>,
}

/// The absolute paths that a configuration makes git trust.
#[derive(Debug, Default)]
pub struct TrustedPaths {
    pub paths: Vec<Vec<u8>>,
    /// The directories that relative values are resolved from. From another directory the same
    /// values mean other files.
    pub bases: Vec<Vec<u8>>,
    /// Repositories that git goes to: the entry of a linked work tree, a remote on this machine.
    pub named: Vec<Vec<u8>>,
}

impl TrustedPaths {
    pub fn extend(&mut self, other: TrustedPaths) {
        self.paths.extend(other.paths);
        self.bases.extend(other.bases);
        self.named.extend(other.named);
    }

    /// Adds the paths of one value, resolved from a directory.
    fn add(&mut self, base: &[u8], value: &[u8], paths: Vec<Vec<u8>>) {
        let is_spelled = |path: &Vec<u8>| value.windows(path.len()).any(|part| part == path);
        if !paths.iter().all(is_spelled) {
            self.bases.push(base.to_vec());
        }
        self.paths.extend(paths);
    }
}

/// `file` is the configuration itself. `top` is the work tree that its values are resolved from;
/// without it, every work tree of the repository.
pub fn by(
    file: &[u8],
    content: &[u8],
    top: Option<&[u8]>,
) -> Result<TrustedPaths, UnreadableGitFile> {
    let home = std::env::var_os("HOME").map(OsString::into_vec).unwrap_or_default();
    let mut lines = Vec::new();
    let mut files = vec![file.to_vec()];
    note(file, content, &mut lines);
    let (mut trusted, mut next) = (TrustedPaths::default(), 0);
    let remotes = harmless_settings::local_remotes(content);
    if !remotes.is_empty() {
        let tops = top.map_or_else(|| tops_of(parent(file)), |top| Ok(vec![top.to_vec()]))?;
        let named =
            |top: &Vec<u8>| remotes.iter().map(|path| resolved(top, path)).collect::<Vec<_>>();
        trusted.named = tops.iter().flat_map(named).collect();
    }
    // The list grows while included files are read.
    while next < lines.len() {
        let ConfigLine { file: own, key, value } = &lines[next];
        next += 1;
        if *key != ConfigKeyKind::Include {
            continue;
        }
        let value = at_home(value, &home);
        let included = resolved(parent(own), &value);
        trusted.add(parent(own), &value, vec![included.clone()]);
        if files.contains(&included) {
            continue;
        }
        let mut content = Vec::new();
        match read_file(&included, &mut content) {
            Ok(()) if files.len() < MAX_INCLUDED_FILES => note(&included, &content, &mut lines),
            Ok(()) => return Err(UnreadableGitFile { path: included, source: Errno::MFILE }),
            // The file does not exist, or git does not read it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(source) => return Err(UnreadableGitFile { path: included, source }),
        }
        files.push(included);
    }
    if lines.is_empty() {
        return Ok(trusted);
    }
    let own = parent(file);
    let tops = match top {
        Some(top) => vec![top.to_vec()],
        // Git uses the last configured work tree for the repository itself, and linked work trees
        // as they are.
        None => {
            let lines = lines.iter().filter(|line| line.key == ConfigKeyKind::Worktree);
            lines.map(|line| resolved(own, &line.value)).chain(tops_of(own)?).collect()
        }
    };
    let common = if last(parent(own)) == b"worktrees" { parent(parent(own)) } else { own };
    let git_dirs = [vec![common.to_vec()], entries_of(common)?].concat();
    for ConfigLine { key, value, .. } in &lines {
        let value = at_home(value, &home);
        for top in &tops {
            let paths = match key {
                ConfigKeyKind::Include | ConfigKeyKind::Worktree | ConfigKeyKind::None => {
                    Vec::new()
                }
                ConfigKeyKind::Path => vec![resolved(top, &value)],
                ConfigKeyKind::Alias if !value.starts_with(b"!") => Vec::new(),
                ConfigKeyKind::Alias | ConfigKeyKind::Program => spelled(top, &value)?,
            };
            trusted.add(top, &value, paths);
        }
        // `$(git rev-parse --git-common-dir)/clean.sh`
        if matches!(key, ConfigKeyKind::Program | ConfigKeyKind::Alias) && expands(&value) {
            for dir in &git_dirs {
                trusted.paths.extend(spelled(dir, &value)?);
            }
        }
    }
    if trusted.bases.iter().any(|base| tops.contains(base)) {
        // The paths of work trees are relative to this directory.
        trusted.bases.push(own.to_vec());
    }
    Ok(trusted)
}

/// The paths that the configurations of a repository and of one of its work trees make git trust in
/// a work tree at `top`.
pub fn by_all(
    common: &[u8],
    git_dir: &[u8],
    top: &[u8],
) -> Result<TrustedPaths, UnreadableGitFile> {
    let mut trusted = TrustedPaths::default();
    for file in [[common, b"/config"].concat(), [git_dir, b"/config.worktree"].concat()] {
        let mut content = Vec::new();
        match read_file(&file, &mut content) {
            Ok(()) => trusted.extend(by(&file, &content, Some(top))?),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(source) => return Err(UnreadableGitFile { path: file, source }),
        }
    }
    Ok(trusted)
}

/// The first line of a file. None: git reads no such file there.
pub fn first_line(path: Vec<u8>) -> Result<Option<Vec<u8>>, UnreadableGitFile> {
    let mut content = Vec::new();
    match read_file(&path, &mut content) {
        Ok(()) => {
            Ok(Some(content.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec()))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR) => Ok(None),
        Err(source) => Err(UnreadableGitFile { path, source }),
    }
}

/// Git stops at a syntax error, and may have used the lines before it.
fn note(file: &[u8], content: &[u8], lines: &mut Vec<ConfigLine>) {
    let _ = harmless_settings::each(content, &mut |section, key, value| {
        if let (false, Some(value)) = (harmless_settings::allowed(section, key, value), value) {
            let key = git_table::key_kind(&section.name, key);
            lines.push(ConfigLine { file: file.to_vec(), key, value: value.to_vec() });
        }
    });
}

/// Follows links, as git does.
pub fn read_file(path: &[u8], content: &mut Vec<u8>) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => super::read_open(file.as_fd(), MAX_CONFIG_BYTES, content),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

/// The work trees of a git directory: its own, and the linked ones. For the entry of a linked work
/// tree, that one.
fn tops_of(git: &[u8]) -> Result<Vec<Vec<u8>>, UnreadableGitFile> {
    if last(parent(git)) == b"worktrees" {
        return Ok(vec![linked_by(git)?.unwrap_or_else(|| git.to_vec())]);
    }
    let mut tops = vec![if last(git) == b".git" { parent(git).to_vec() } else { git.to_vec() }];
    for entry in entries_of(git)? {
        tops.extend(linked_by(&entry)?);
    }
    Ok(tops)
}

/// The entries of the linked work trees of a git directory.
pub fn entries_of(git: &[u8]) -> Result<Vec<Vec<u8>>, UnreadableGitFile> {
    let entries = [git, b"/worktrees"].concat();
    let failed = |source| UnreadableGitFile { path: entries.clone(), source };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let listed = match rustix::fs::open(&entries[..], flags, Mode::empty()) {
        Ok(dir) => rustix::fs::Dir::new(dir).map_err(failed)?,
        // Git does not use it as a directory of entries either.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry.map_err(failed)?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push([&entries[..], b"/", entry.file_name().to_bytes()].concat());
        }
    }
    Ok(found)
}

/// `gitdir` in the entry of a linked work tree is the path of its `.git`.
fn linked_by(entry: &[u8]) -> Result<Option<Vec<u8>>, UnreadableGitFile> {
    let written = first_line([entry, b"/gitdir"].concat())?;
    Ok(written.map(|written| parent(&resolved(entry, &written)).to_vec()))
}

/// Does a shell put other text into the command?
fn expands(command: &[u8]) -> bool {
    command.iter().any(|byte| b"$`".contains(byte))
}

/// The files that the words of a command name: by a path, also a missing one, or by a name in a
/// directory of the list.
fn spelled(top: &[u8], command: &[u8]) -> Result<Vec<Vec<u8>>, UnreadableGitFile> {
    let letter =
        |byte: u8| byte.is_ascii_alphanumeric() || b"_.@+-/".contains(&byte) || byte >= 0x80;
    let mut words: Vec<&[u8]> =
        command.split(|byte| !letter(*byte)).filter(|word| !word.is_empty()).collect();
    words.truncate(MAX_COMMAND_WORDS);
    // Also for a command inside a command (sh -c).
    let mut with_blanks = words_with_blanks(command);
    with_blanks
        .extend(with_blanks.iter().flat_map(|word| words_with_blanks(word)).collect::<Vec<_>>());
    words.extend(with_blanks.iter().map(Vec::as_slice).take(MAX_COMMAND_WORDS));
    // `$(git rev-parse --show-toplevel)/tools/watch`: the text before the slash may be the work
    // tree.
    let expands = expands(command);
    let below = |word: &[u8]| {
        resolved(top, if expands { word.strip_prefix(b"/").unwrap_or(word) } else { word })
    };
    let mut bases = Vec::new();
    for word in &words {
        let base = below(word);
        if is(&base, FileType::Directory)? {
            bases.push(base);
        }
    }
    let mut found = Vec::new();
    for word in words {
        for path in [resolved(top, word), below(word)] {
            let by_path = word.contains(&b'/') && !is(&path, FileType::Directory)?;
            if by_path || is(&path, FileType::RegularFile)? {
                found.push(path);
            }
        }
        for path in bases.iter().map(|base| resolved(base, word)) {
            if is(&path, FileType::RegularFile)? {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// Inserts the home directory as a shell does.
fn at_home(command: &[u8], home: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(command.len());
    let mut rest = command;
    while let Some((letter, after)) = rest.split_first() {
        let begins =
            out.last().is_none_or(|before: &u8| !before.is_ascii_alphanumeric() && *before != b'/');
        let found = [&b"$HOME/"[..], b"${HOME}/", b"~/"]
            .into_iter()
            .find(|spelling| rest.starts_with(spelling));
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

/// The shell words that contain blanks, by quotes or backslashes. Other words are found without
/// parsing quotes.
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

fn is(path: &[u8], file_type: FileType) -> Result<bool, UnreadableGitFile> {
    match rustix::fs::lstat(path) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == file_type),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        // A word need not be a path.
        Err(Errno::NAMETOOLONG) if is_too_long(path) => Ok(false),
        // A path in a shut directory, or behind a link that leads nowhere, may become readable
        // again. It counts as a file.
        Err(Errno::ACCESS | Errno::LOOP) => Ok(file_type == FileType::RegularFile),
        Err(source) => Err(UnreadableGitFile { path: path.to_vec(), source }),
    }
}

/// PATH_MAX with its NUL, and NAME_MAX.
fn is_too_long(path: &[u8]) -> bool {
    path.len() >= 4096 || path.split(|byte| *byte == b'/').any(|name| name.len() > 255)
}

/// Resolved by text, without following links.
pub fn resolved(base: &[u8], written: &[u8]) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted(config: &str) -> Vec<String> {
        by(b"/w/n/.git/config", config.as_bytes(), None)
            .unwrap()
            .paths
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap())
            .collect()
    }

    #[test]
    fn values_are_resolved_from_the_work_tree() {
        assert_eq!(trusted("[core]\nhooksPath = tools/hooks\n"), ["/w/n/tools/hooks"]);
        assert_eq!(
            trusted("[core]\nhooksPath = /srv/hooks\n[include]\npath = ../.gitconfig\n"),
            ["/w/n/.gitconfig", "/srv/hooks"]
        );
        assert_eq!(trusted("[core]\nworktree = ../../m\nhooksPath = h\n"), ["/w/m/h", "/w/n/h"]);
        assert!(
            trusted("[filter \"x\"]\nclean = sh tools/clean %f\n")
                .contains(&"/w/n/tools/clean".to_owned())
        );
        assert!(
            trusted("[core]\nfsmonitor = \"$(git rev-parse --show-toplevel)/tools/watch\"\n")
                .contains(&"/w/n/tools/watch".to_owned())
        );
    }

    #[test]
    fn relative_values_store_their_base_directory() {
        for (config, expected) in [
            ("[core]\nhooksPath = ../hooks\n", &["/w/n", "/w/n/.git"][..]),
            ("[core]\nfsmonitor = sh tools/watch\n", &["/w/n", "/w/n/.git"]),
            ("[include]\npath = ../../x\n", &["/w/n/.git"]),
            (
                "[core]\nhooksPath = /srv/hooks\nsshCommand = /usr/bin/ssh -v\n[include]\n\
                 path = /srv/x\n",
                &[],
            ),
        ] {
            let bases = by(b"/w/n/.git/config", config.as_bytes(), None).unwrap().bases;
            let bases: Vec<_> =
                bases.iter().map(|base| std::str::from_utf8(base).unwrap()).collect();
            assert_eq!(bases, expected, "{config}");
        }
        let elsewhere =
            by(b"/w/n/.git/config", b"[core]\nhooksPath = h\n", Some(b"/w/new")).unwrap();
        assert_eq!(elsewhere.paths, [b"/w/new/h"]);
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        for written in [
            r#""\"my tools/clean\" %f""#,
            r"'my tools/clean' %f",
            r"sh my\\ tools/clean",
            r#"sh -c 'cat | \"my tools/clean\"'"#,
        ] {
            let config = format!("[filter \"x\"]\nclean = {written}\n");
            assert!(trusted(&config).contains(&"/w/n/my tools/clean".to_owned()), "{written}");
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
    fn a_command_names_a_file_of_the_git_directory() {
        for written in
            ["$(git rev-parse --git-common-dir)/x.sh", "sh `git rev-parse --git-dir`/x.sh"]
        {
            let config = format!("[filter \"x\"]\nclean = {written}\n");
            assert!(trusted(&config).contains(&"/w/n/.git/x.sh".to_owned()), "{written}");
        }
    }

    #[test]
    fn settings_that_git_writes_name_no_path() {
        assert!(
            trusted("[core]\nbare = false\n[remote \"o\"]\nurl = https://example.org/a/b\n")
                .is_empty()
        );
        assert!(trusted("[core\nhooksPath = x\n").is_empty());
    }
}
