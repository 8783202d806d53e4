//! What an exec is about to do, worked out before it does it: which file, by which interpreters, with which arguments.
//!
//! All of it is read from memory and names that others can change meanwhile. So this is an expectation, good for judging; whether it came
//! true is seen at the exec stop (verify.rs), before the new program runs.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::judge;
use super::program::Program;
use super::rules::File;
use crate::beneath;
use crate::caller::{Caller, in_proc};
use crate::memory::Memory;
use crate::notify::{Call, LONGEST_PATH};
use crate::place::Identity;
use crate::sys;

/// One argument, with its NUL (MAX_ARG_STRLEN).
const LONGEST_ARGUMENT: usize = 128 * 1024;
/// All of them: more than three quarters of the stack that a program gets the kernel does not take.
const MOST_BYTES: usize = 6 << 20;
const MOST_ARGUMENTS: usize = MOST_BYTES / 8;
/// A script may be interpreted by a script, and so on.
const NESTED: usize = 5;

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

#[derive(Debug)]
pub struct Expected {
    /// The path as the new program is told it (AT_EXECFN).
    pub named: Vec<u8>,
    /// The file that was asked for, then the interpreter of each `#!` line. The last is the one that runs.
    pub chain: Vec<Link>,
    /// As the caller gave them, each with its NUL.
    pub argv: Vec<u8>,
    /// As the program gets them, if a `#!` line changes them.
    expanded: Option<Vec<u8>>,
    pub cwd: Vec<u8>,
    /// The directory itself; None: it can not be seen.
    pub place: Option<Identity>,
    pub process: Process,
    /// What was found to be in files of the chain, where that was asked and may change.
    pub digests: Vec<(usize, [u8; 32])>,
}

/// A file, held open: its number can not become another's.
#[derive(Debug)]
pub struct Link {
    pub named: Vec<u8>,
    pub real: Vec<u8>,
    /// What a `#!` line gives to it as its first argument.
    pub argument: Option<Vec<u8>>,
    pub file: OwnedFd,
    pub identity: Identity,
    pub state: State,
}

/// The caller, by numbers of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Of the whole process, where the caller is one thread of it.
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
}

/// Why there is nothing to judge.
#[derive(Debug)]
pub enum Unexpected {
    /// The kernel would answer the same: no such file, no program, too long.
    Fails(Errno),
    /// What can not be seen is not let through.
    Unseen { named: Vec<u8>, why: &'static str },
}

impl From<Errno> for Unexpected {
    fn from(errno: Errno) -> Unexpected {
        Unexpected::Fails(errno)
    }
}

/// What is known of files that were executed.
#[derive(Default)]
pub struct Known {
    /// By their state: a file that was changed is another one. If one was changed and looks the same, what it does is not what is
    /// expected, and that is seen at the exec stop.
    programs: HashMap<State, Program>,
    /// Loaders start any file under their own name. Those that programs name are known by what they are.
    loaders: Vec<(Vec<u8>, Option<Identity>)>,
}

/// Number, size and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State([u64; 7]);

impl From<&Stat> for State {
    fn from(stat: &Stat) -> State {
        State([
            stat.st_dev,
            stat.st_ino,
            stat.st_size as u64,
            stat.st_mtime as u64,
            stat.st_mtime_nsec,
            stat.st_ctime as u64,
            stat.st_ctime_nsec,
        ])
    }
}

impl Known {
    fn remember(&mut self, link: &Link, program: &Program, caller: &Caller) {
        const MOST_PROGRAMS: usize = 1024;
        const MOST_LOADERS: usize = 64;
        if self.programs.len() >= MOST_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(link.state, program.clone());
        if let Program::Binary { loader: Some(path) } = program
            && self.loaders.len() < MOST_LOADERS
            && !self.loaders.iter().any(|(known, _)| known == path)
        {
            let file = caller.open(libc::AT_FDCWD, path, PATH);
            let identity = file.and_then(rustix::fs::fstat).ok().map(|stat| Identity::from(&stat));
            self.loaders.push((path.clone(), identity));
        }
    }

    fn is_loader(&self, link: &Link) -> bool {
        let name = link.real.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let called =
            [&b"ld-"[..], b"ld.so", b"ld64."].iter().any(|start| name.starts_with(start)) || name == b"libc.so";
        called || self.loaders.iter().any(|(_, identity)| *identity == Some(link.identity))
    }
}

/// How the call asks for its file.
struct Asked {
    dir: i32,
    path: u64,
    argv: u64,
    flags: i32,
}

impl Asked {
    fn of(call: &Call) -> Asked {
        let [a, b, c, _, e, _] = call.arguments;
        if i64::from(call.number) == libc::SYS_execveat {
            Asked { dir: a as i32, path: b, argv: c, flags: e as i32 }
        } else {
            Asked { dir: libc::AT_FDCWD, path: a, argv: b, flags: 0 }
        }
    }
}

impl Expected {
    pub fn of(call: &Call, known: &mut Known, memory: &mut Memory) -> Result<Expected, Unexpected> {
        let asked = Asked::of(call);
        memory.turn_to(call.thread);
        let mut path = Vec::with_capacity(256);
        let read = memory.string(asked.path, LONGEST_PATH, Errno::NAMETOOLONG, &mut path);
        seen(read, &[])?;
        let argv = seen(arguments(memory, asked.argv), &path)?;
        let process = seen(Process::of(call), &path)?;
        let caller = seen(Caller::of(call.thread), &path)?;
        let (cwd, place) = caller.cwd();

        let by_descriptor = asked.dir != libc::AT_FDCWD && !path.starts_with(b"/");
        let named = match (by_descriptor, path.is_empty()) {
            (false, _) => path.clone(),
            (true, true) => format!("/dev/fd/{}", asked.dir).into_bytes(),
            (true, false) => [format!("/dev/fd/{}/", asked.dir).as_bytes(), &path].concat(),
        };
        let (chain, digests) = (Vec::with_capacity(1), Vec::new());
        let mut expected = Expected { named, chain, argv, expanded: None, cwd, place, process, digests };
        let mut file = open(&caller, &asked, &path)?;
        let mut link_name = expected.named.clone();
        let mut link_argument = None;
        loop {
            let link = Link::of(link_name, link_argument, file)?;
            let unseen = |why| Unexpected::Unseen { named: link.real.clone(), why };
            let program = match known.programs.get(&link.state) {
                Some(program) => program.clone(),
                None => {
                    let content = link.content().map_err(|_| unseen("it can not be read"))?;
                    let program = Program::of(&content)?;
                    known.remember(&link, &program, &caller);
                    program
                }
            };
            if program == Program::Library || known.is_loader(&link) {
                return Err(unseen("it is a loader, which starts any file under its own name"));
            }
            match program {
                Program::Script { .. } if by_descriptor => return Err(unseen("it is a script without a path")),
                Program::Script { .. } if expected.chain.len() == NESTED => return Err(Errno::LOOP.into()),
                Program::Script { interpreter, argument } => {
                    expected.interpret(&interpreter, argument.as_deref(), &link.named);
                    file = caller.open(libc::AT_FDCWD, &interpreter, PATH).map_err(through_descriptor(&interpreter))?;
                    expected.chain.push(link);
                    (link_name, link_argument) = (interpreter, argument);
                }
                Program::Binary { .. } | Program::Library => {
                    expected.chain.push(link);
                    return Ok(expected);
                }
            }
        }
    }

    /// interpreter, its argument, the script, and what followed the first argument.
    fn interpret(&mut self, interpreter: &[u8], argument: Option<&[u8]>, script: &[u8]) {
        let before = self.expanded.as_ref().unwrap_or(&self.argv);
        let rest = before.iter().position(|byte| *byte == 0).map_or(&[][..], |end| &before[end + 1..]);
        let mut argv = Vec::with_capacity(interpreter.len() + script.len() + rest.len() + 64);
        for word in [Some(interpreter), argument, Some(script)].into_iter().flatten() {
            argv.extend_from_slice(word);
            argv.push(0);
        }
        argv.extend_from_slice(rest);
        self.expanded = Some(argv);
    }

    /// As the program gets them, each with its NUL.
    pub fn final_argv(&self) -> &[u8] {
        self.expanded.as_ref().unwrap_or(&self.argv)
    }

    /// As the caller gave them.
    pub fn arguments(&self) -> Vec<&[u8]> {
        words(&self.argv)
    }

    pub fn exe(&self) -> &[u8] {
        self.chain.first().map_or(&self.named, |link| &link.real)
    }
}

/// A list of strings with their NULs.
pub fn words(block: &[u8]) -> Vec<&[u8]> {
    block.strip_suffix(&[0]).map_or(Vec::new(), |block| block.split(|byte| *byte == 0).collect())
}

/// EPERM and ESRCH are answers to us, and not the kernel's to the caller: it keeps others from looking, or is gone.
fn seen<T>(result: Result<T, Errno>, named: &[u8]) -> Result<T, Unexpected> {
    result.map_err(|errno| match errno {
        Errno::PERM | Errno::ACCESS | Errno::SRCH | Errno::NOENT => {
            Unexpected::Unseen { named: named.to_vec(), why: "its caller can not be seen" }
        }
        errno => Unexpected::Fails(errno),
    })
}

fn arguments(memory: &mut Memory, address: u64) -> Result<Vec<u8>, Errno> {
    let mut argv = Vec::with_capacity(256);
    if address != 0 {
        for pointer in memory.words(address, MOST_ARGUMENTS)? {
            memory.string(pointer, LONGEST_ARGUMENT, Errno::TOOBIG, &mut argv)?;
            argv.push(0);
            if argv.len() > MOST_BYTES {
                return Err(Errno::TOOBIG);
            }
        }
    }
    if argv.is_empty() {
        argv.push(0); // the kernel gives one, empty
    }
    Ok(argv)
}

fn open(caller: &Caller, asked: &Asked, path: &[u8]) -> Result<OwnedFd, Unexpected> {
    if path.is_empty() {
        // fexecve(3), memfd: what the descriptor is, if that is asked for and it is one.
        if asked.flags & libc::AT_EMPTY_PATH == 0 {
            return Err(Errno::NOENT.into());
        }
        return caller.own(&format!("fd/{}", asked.dir), PATH).map_err(|_| Errno::BADF.into());
    }
    if path == b"/proc/self/exe" {
        // The one way through a descriptor that many programs take: themselves.
        return Ok(caller.own("exe", PATH)?);
    }
    let flags = if asked.flags & libc::AT_SYMLINK_NOFOLLOW == 0 { PATH } else { PATH | OFlags::NOFOLLOW };
    caller.open(asked.dir, path, flags).map_err(through_descriptor(path))
}

/// Either a way through a descriptor, or too many links: both are refused.
fn through_descriptor(path: &[u8]) -> impl FnOnce(Errno) -> Unexpected {
    move |errno| match errno {
        Errno::LOOP => Unexpected::Unseen { named: path.to_vec(), why: "the way to it leads through a descriptor" },
        // In a /proc of the command's own, we are nobody, and `self` leads nowhere.
        Errno::NOENT if path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/") => {
            Unexpected::Unseen { named: path.to_vec(), why: "the way to it leads through a descriptor" }
        }
        Errno::STALE => Unexpected::Unseen { named: path.to_vec(), why: "the directory it begins in has no path" },
        errno => Unexpected::Fails(errno),
    }
}

impl Link {
    fn of(named: Vec<u8>, argument: Option<Vec<u8>>, file: OwnedFd) -> Result<Link, Errno> {
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::ACCESS),
        }
        let mut buffer = [0; 32];
        let real = rustix::fs::readlink(beneath::link_to(&file, &mut buffer), Vec::with_capacity(256))?.into_bytes();
        Ok(Link { named, real, argument, identity: Identity::from(&stat), state: State::from(&stat), file })
    }

    pub fn as_file(&self) -> File<'_> {
        File { named: &self.named, real: &self.real, argument: self.argument.as_deref() }
    }

    pub fn digest(&self, deadline: Instant) -> Result<[u8; 32], String> {
        judge::digest(self.content().map_err(|errno| errno.to_string())?, Some(deadline))
    }

    /// It is a regular file, so opening it does nothing to it.
    fn content(&self) -> Result<OwnedFd, Errno> {
        let mut buffer = [0; 32];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(beneath::link_to(self.file.as_fd(), &mut buffer), flags, Mode::empty())
    }
}

fn status(thread: u32) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(in_proc(thread, "status"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = vec![0; 1024];
    let length = rustix::io::read(&file, &mut text[..])?;
    text.truncate(length);
    Ok(text)
}

/// Does another program trace it?
pub fn is_traced(thread: u32) -> bool {
    let text = status(thread).unwrap_or_default();
    let tracer = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim_ascii() != b"0")
}

impl Process {
    fn of(call: &Call) -> Result<Process, Errno> {
        match sys::process_info(call.thread) {
            Ok(info) => Ok(Process { pid: info.tgid, parent: info.ppid, uid: info.euid }),
            // Older kernels tell it in words, which takes five times as long.
            Err(_) => Process::parse(&status(call.thread)?).ok_or(Errno::SRCH),
        }
    }

    fn parse(status: &[u8]) -> Option<Process> {
        let number = |key: &[u8], index: usize| {
            let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
            std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(index)?.parse().ok()
        };
        Some(Process { pid: number(b"Tgid:", 0)?, parent: number(b"PPid:", 0)?, uid: number(b"Uid:", 1)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_told_by_its_status() {
        let status = b"Name:\tTgid:\t7\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t42\nNgid:\t0\nPid:\t43\nPPid:\t7\nTracerPid:\t0\n\
                       Uid:\t1000\t1001\t1000\t1000\n";
        assert_eq!(Process::parse(status), Some(Process { pid: 42, parent: 7, uid: 1001 }));
        assert_eq!(Process::parse(b"Tgid:\t42\n"), None);
    }

    #[test]
    fn arguments_are_read_whole_or_not_at_all() {
        let mut memory = Memory::of(rustix::process::getpid().as_raw_nonzero().get() as u32);
        let strings = [&b"git\0"[..], b"\0", b"\xff\n\0"];
        let pointers: Vec<u64> = strings.iter().map(|string| string.as_ptr() as u64).chain([0]).collect();
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64).unwrap(), b"git\0\0\xff\n\0");
        assert_eq!(arguments(&mut memory, 0).unwrap(), b"\0");
        assert_eq!(arguments(&mut memory, pointers[3..].as_ptr() as u64).unwrap(), b"\0");
        assert_eq!(arguments(&mut memory, 8), Err(Errno::FAULT));
        let wrong = [strings[0].as_ptr() as u64, 8, 0];
        assert_eq!(arguments(&mut memory, wrong.as_ptr() as u64), Err(Errno::FAULT));
        let long = [vec![b'x'; LONGEST_ARGUMENT], vec![0]].concat();
        let pointers = [long.as_ptr() as u64, 0];
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64), Err(Errno::TOOBIG));
        let pointers: Vec<u64> = [long[1..].as_ptr() as u64].into_iter().cycle().take(60).chain([0]).collect();
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64), Err(Errno::TOOBIG));
    }

    #[test]
    fn words_are_split_at_their_nuls() {
        assert_eq!(words(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert_eq!(words(b"\0"), [b""]);
    }
}
