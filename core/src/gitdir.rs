//! What may appear inside a git directory while a command runs.
//!
//! `git init`, `clone` and `worktree add` create names that are protected, because git trusts them. With what these commands
//! themselves write into them they are harmless and stay; with anything else they do not. Content that was judged once is judged
//! again whenever it is written.

mod config;
pub mod obeyed;

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::beneath;
use crate::ground::Ground;
use crate::place::Identity;
use crate::text::{AbsPath, Text};
use crate::walk::Dir;

/// No configuration that git writes by itself is longer.
const LONGEST: usize = 64 * 1024;

/// What a protected name means to git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Config,
    /// A directory of samples.
    Hooks,
    Hook,
    /// Of a linked work tree.
    CommonDir,
    GitDir,
    /// `.git`, where it is a file.
    GitFile,
    /// Trusted with nothing.
    Note,
}

/// The role that a path has, if it is one that can be harmless.
pub fn role(path: &[u8]) -> Option<Role> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    let git = names.iter().rposition(|name| name.eq_ignore_ascii_case(b".git"))?;
    let inside = match &names[git + 1..] {
        // The repository of a submodule is laid out the same.
        [b"modules", rest @ ..] => {
            let kept = if rest.len() > 1 && rest[rest.len() - 2] == b"hooks" { 2 } else { 1 };
            &rest[rest.len().saturating_sub(kept)..]
        }
        inside => inside,
    };
    match inside {
        [] => Some(Role::GitFile),
        [b"config" | b"config.lock" | b"config.worktree" | b"config.worktree.lock"] => Some(Role::Config),
        [b"worktrees", _, b"config.worktree" | b"config.worktree.lock"] => Some(Role::Config),
        [b"worktrees", _, b"commondir"] => Some(Role::CommonDir),
        [b"worktrees", _, b"gitdir"] => Some(Role::GitDir),
        [b"hooks"] => Some(Role::Hooks),
        [b"hooks", _] => Some(Role::Hook),
        [b"description"] | [b"info", b"exclude" | b"sparse-checkout"] => Some(Role::Note),
        _ => None,
    }
}

/// What a name's content was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Harmless,
    /// The object that is.
    Harmful(Identity),
    /// What had the name is gone. Git renames and removes its lock files while we look; what has the name now makes an event.
    Gone,
    /// It can not be looked at.
    Unknown(Errno),
}

/// Judges what has the name now. Only a plain file under one name is ever harmless: another name could be written unseen.
pub fn judge(role: Role, ground: &Ground, dir: &Dir<'_>, name: &CStr, buffer: &mut Vec<u8>) -> Judgement {
    let opened = beneath::look(dir.fd, name.to_bytes()).and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd)));
    let (stat, object) = match opened {
        Ok(opened) => opened,
        Err(Errno::NOENT) => return Judgement::Gone,
        Err(error) => return Judgement::Unknown(error),
    };
    let harmless = match (role, FileType::from_raw_mode(stat.st_mode)) {
        (Role::Hooks, file_type) => file_type == FileType::Directory,
        (Role::Hook, FileType::RegularFile) => name.to_bytes().ends_with(b".sample") && stat.st_nlink == 1,
        (_, FileType::RegularFile) => match read(object.as_fd(), buffer) {
            Ok(0) => return Judgement::Gone,
            Ok(1) => content_is_harmless(role, ground, dir, buffer),
            Ok(_) | Err(_) => false,
        },
        _ => false,
    };
    if harmless { Judgement::Harmless } else { Judgement::Harmful(Identity::from(&stat)) }
}

fn content_is_harmless(role: Role, ground: &Ground, dir: &Dir<'_>, content: &[u8]) -> bool {
    match role {
        // Not written yet.
        _ if content.is_empty() => true,
        Role::Config => config::is_harmless(content),
        Role::Note => true,
        Role::CommonDir => line(content) == Some(b"../.."),
        Role::GitDir => line(content).is_some_and(|path| path.ends_with(b"/.git")),
        Role::GitFile => leads_to_worktree(ground, dir, content),
        Role::Hooks | Role::Hook => false,
    }
}

/// The only line of a file.
fn line(content: &[u8]) -> Option<&[u8]> {
    let line = content.strip_suffix(b"\n").unwrap_or(content);
    (!line.iter().any(u8::is_ascii_control)).then_some(line)
}

/// `gitdir: …/.git/worktrees/NAME`, where that is a directory in the trees and no link is on the way: what git reads there is
/// judged as well. A submodule's leads elsewhere, and is for the user to make.
fn leads_to_worktree(ground: &Ground, dir: &Dir<'_>, content: &[u8]) -> bool {
    let Some(target) = line(content).and_then(|line| line.strip_prefix(b"gitdir: ")) else { return false };
    let mut names: Vec<&[u8]> = Vec::new();
    let base = [dir.tree.path.as_bytes(), b"/", dir.path].concat();
    if !target.starts_with(b"/") {
        names.extend(base.split(|byte| *byte == b'/').filter(|name| !name.is_empty()));
    }
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            _ => names.push(name),
        }
    }
    let [.., b".git", b"worktrees", _] = names[..] else { return false };
    let path = [b"/", &names.join(&b'/')[..]].concat();
    let Some(path) = Text::from_bytes(path).ok().and_then(|text| AbsPath::new(text).ok()) else { return false };
    let stat = ground.look(&path).and_then(rustix::fs::fstat);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// What the configuration at a name makes git obey.
pub fn obeyed_by(dir: &Dir<'_>, name: &CStr) -> Vec<Vec<u8>> {
    let separator: &[u8] = if dir.path.is_empty() { b"" } else { b"/" };
    let file = [dir.tree.path.as_bytes(), b"/", dir.path, separator, name.to_bytes()].concat();
    let mut content = Vec::new();
    match beneath::look(dir.fd, name.to_bytes()).and_then(|object| read(object.as_fd(), &mut content)) {
        Ok(_) => obeyed::by(&file, &content),
        Err(_) => Vec::new(), // none, or none that git would read
    }
}

/// Reads a plain file that was opened for looking, and tells how many names it has after that.
fn read(object: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<u64, Errno> {
    let mut link = [0; 32];
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(beneath::link_to(object, &mut link), flags, Mode::empty())?;
    buffer.clear();
    buffer.reserve(LONGEST + 1);
    loop {
        let length = buffer.len();
        if length > LONGEST {
            return Err(Errno::FBIG);
        }
        if rustix::io::pread(&file, spare_capacity(buffer), length as u64)? == 0 {
            break;
        }
    }
    Ok(rustix::fs::fstat(&file)?.st_nlink as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_told_by_the_place_in_the_git_directory() {
        for (path, expected) in [
            ("a/.git", Some(Role::GitFile)),
            (".git/config", Some(Role::Config)),
            (".git/config.lock", Some(Role::Config)),
            ("x/.GIT/hooks", Some(Role::Hooks)),
            (".git/hooks/a.sample", Some(Role::Hook)),
            (".git/hooks/a/b", None),
            (".git/modules/a/b/config", Some(Role::Config)),
            (".git/modules/a/hooks/pre-commit", Some(Role::Hook)),
            (".git/modules/a/hooks", Some(Role::Hooks)),
            (".git/modules/a/commondir", None),
            (".git/worktrees/n/commondir", Some(Role::CommonDir)),
            (".git/worktrees/n/gitdir", Some(Role::GitDir)),
            (".git/worktrees/n/config", None),
            (".git/commondir", None),
            (".git/info/attributes", None),
            (".git/info/exclude", Some(Role::Note)),
            (".git/objects/info/alternates", None),
            (".vscode/config", None),
            ("a/.git/x/.git", Some(Role::GitFile)),
        ] {
            assert_eq!(role(path.as_bytes()), expected, "{path}");
        }
    }
}
