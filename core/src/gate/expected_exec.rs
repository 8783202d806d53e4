//! What an exec is about to do, worked out before it does it: which file, by which interpreters,
//! with which arguments.
//!
//! All of it is read from memory and names that others can change meanwhile. So this is an
//! expectation, good for judging; whether it came true is seen at the exec stop (gate/verify.rs),
//! before the new program runs.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::interpreter_chain::{self, Broken, Entry, Known, Link, Start};
use super::trusted_dirs::Places;
use crate::journal::event::exec::{Process, words};
use crate::kernel::calling_process::{Caller, Standing, in_proc};
use crate::kernel::process_memory::Memory;
use crate::kernel::seccomp_notify::{Call, LONGEST_PATH};
use crate::kernel::sys;

/// One argument, with its NUL (MAX_ARG_STRLEN).
const LONGEST_ARGUMENT: usize = 128 * 1024;
/// All of them: more than three quarters of the stack that a program gets the kernel does not take.
const MOST_BYTES: usize = 6 << 20;
const MOST_ARGUMENTS: usize = MOST_BYTES / 8;

const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

#[derive(Debug)]
pub struct Expected {
    /// The path as the new program is told it (AT_EXECFN).
    pub named: Vec<u8>,
    /// The file that was asked for, then the interpreter of each `#!` line. The last is the one
    /// that runs.
    pub chain: Vec<Link>,
    pub entry: Entry,
    /// As the caller gave them, each with its NUL.
    pub argv: Vec<u8>,
    /// As the program gets them, if a `#!` line changes them.
    expanded: Option<Vec<u8>>,
    /// Of the whole process, where the caller is one thread of it.
    pub pid: u32,
    /// Where it stands, and who it is. None: nothing depends on it. For the journal that is looked
    /// up while nobody waits for us.
    pub standing: Option<Standing>,
    pub process: Option<Process>,
    /// What was found to be in files of the chain, where that was asked and may change.
    pub digests: Vec<(usize, [u8; 32])>,
}

/// What is kept from one look to the next.
pub struct CallerView {
    pub memory: Memory,
    known: Known,
    /// The command can not change its root: that of the first call is everybody's.
    root_stays: bool,
    root: Option<Rc<OwnedFd>>,
}

/// Why there is nothing to judge.
#[derive(Debug)]
pub enum Unexpected {
    /// The kernel would answer the same: no such file, no program, too long.
    Fails(Errno),
    /// What can not be seen is not let through; with what is known of it.
    Unseen { call: Box<Unseen>, why: &'static str },
}

#[derive(Debug, Default)]
pub struct Unseen {
    pub exe: Vec<u8>,
    /// Each with its NUL.
    pub argv: Vec<u8>,
    pub cwd: Vec<u8>,
    pub process: Process,
}

/// How the call asks for its file.
struct ExecCall {
    dir: i32,
    path: u64,
    argv: u64,
    flags: i32,
}

impl ExecCall {
    fn of(call: &Call) -> ExecCall {
        let [a, b, c, _, e, _] = call.arguments;
        if i64::from(call.number) == libc::SYS_execveat {
            ExecCall { dir: a as i32, path: b, argv: c, flags: e as i32 }
        } else {
            ExecCall { dir: libc::AT_FDCWD, path: a, argv: b, flags: 0 }
        }
    }
}

impl Expected {
    /// `closely`: also where the process stands and who it is.
    pub fn of(
        call: &Call,
        places: Option<&Places>,
        sight: &mut CallerView,
        closely: bool,
    ) -> Result<Expected, Unexpected> {
        let asked = ExecCall::of(call);
        let memory = &mut sight.memory;
        let mut unseen = Unseen {
            process: Process { pid: call.thread, ..Process::default() },
            ..Unseen::default()
        };
        memory.turn_to(call.thread);
        memory.look_at_both(asked.path, asked.argv);
        let mut path = Vec::with_capacity(256);
        let read = memory.string(asked.path, LONGEST_PATH, Errno::NAMETOOLONG, &mut path);
        let argv = read.and_then(|()| arguments(memory, asked.argv));
        let argv = argv.map_err(|errno| unseen.caller(&path, errno))?;
        // A thread that executes gets the number of its process.
        let closely = closely || !sys::is_process(call.thread);
        let mut process = None;
        if closely {
            unseen.process =
                Process::of(call.thread).map_err(|errno| unseen.caller(&path, errno))?;
            process = Some(unseen.process);
        }
        let caller = sight.caller(call.thread).map_err(|errno| unseen.caller(&path, errno))?;

        let by_descriptor = asked.dir != libc::AT_FDCWD && !path.starts_with(b"/");
        let named = match (by_descriptor, path.is_empty()) {
            (false, _) => path.clone(),
            (true, true) => format!("/dev/fd/{}", asked.dir).into_bytes(),
            (true, false) => [format!("/dev/fd/{}/", asked.dir).as_bytes(), &path].concat(),
        };
        let mut links = Vec::with_capacity(1);
        let followed = open(&caller, &asked, &path).and_then(|file| {
            let start = Start { named: named.clone(), file, by_descriptor };
            interpreter_chain::follow(
                start,
                &|path| caller.open(libc::AT_FDCWD, path, PATH),
                places,
                &mut sight.known,
                &mut links,
            )
        });
        let entry = match followed {
            Ok(entry) => entry,
            Err(Broken::Fails(errno)) => return Err(Unexpected::Fails(errno)),
            Err(Broken::Unseen { named, why }) => {
                let process =
                    process.or_else(|| Process::of(call.thread).ok()).unwrap_or(unseen.process);
                let call = Box::new(Unseen {
                    exe: named,
                    argv,
                    cwd: Standing::of(call.thread).path,
                    process,
                });
                return Err(Unexpected::Unseen { call, why });
            }
        };
        let starts_there = links.iter().any(|link| !link.named.starts_with(b"/"));
        let standing = (closely || starts_there).then(|| Standing::of(call.thread));
        let (pid, expanded) = (unseen.process.pid, expanded(&links, &argv));
        Ok(Expected {
            named,
            chain: links,
            entry,
            argv,
            expanded,
            pid,
            standing,
            process,
            digests: Vec::new(),
        })
    }

    /// What nothing depended on so far, and a person's answer will. Its number may come to mean
    /// another, as ever.
    pub fn complete(&mut self, thread: u32) {
        self.process = self.process.or_else(|| Process::of(thread).ok());
        self.standing.get_or_insert_with(|| Standing::of(thread));
    }

    pub fn cwd(&self) -> &[u8] {
        self.standing.as_ref().map_or(b"", |standing| &standing.path)
    }

    /// By its number alone, if it ended before more could be seen of it.
    pub fn process(&self) -> Process {
        self.process.unwrap_or(Process { pid: self.pid, ..Process::default() })
    }

    /// As the program gets them, each with its NUL.
    pub fn final_argv(&self) -> &[u8] {
        self.expanded.as_ref().unwrap_or(&self.argv)
    }

    /// As the caller gave them.
    pub fn arguments(&self) -> Vec<&[u8]> {
        words(&self.argv)
    }

    /// The same program with the same arguments in the same place.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let files = self.chain.iter().map(|link| link.real.as_slice());
        for part in files.chain([&self.argv[..], self.cwd()]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    pub fn exe(&self) -> &[u8] {
        self.chain.first().map_or(&self.named, |link| &link.real)
    }
}

impl Unseen {
    /// EPERM and ESRCH are answers to us, and not the kernel's to the caller: it keeps others from
    /// looking, or is gone.
    fn caller(&self, named: &[u8], errno: Errno) -> Unexpected {
        match errno {
            Errno::PERM | Errno::ACCESS | Errno::SRCH | Errno::NOENT => {
                let call =
                    Unseen { exe: named.to_vec(), process: self.process, ..Unseen::default() };
                Unexpected::Unseen {
                    call: Box::new(call),
                    why: "the calling process cannot be \
                    examined",
                }
            }
            errno => Unexpected::Fails(errno),
        }
    }
}

/// For each `#!` line: the interpreter, its argument, the script, and what followed the first
/// argument.
fn expanded(chain: &[Link], argv: &[u8]) -> Option<Vec<u8>> {
    let mut expanded: Option<Vec<u8>> = None;
    for (script, interpreter) in chain.iter().zip(chain.iter().skip(1)) {
        let before = expanded.as_deref().unwrap_or(argv);
        let rest =
            before.iter().position(|byte| *byte == 0).map_or(&[][..], |end| &before[end + 1..]);
        let mut after =
            Vec::with_capacity(interpreter.named.len() + script.named.len() + rest.len() + 64);
        for word in [Some(&interpreter.named), interpreter.argument.as_ref(), Some(&script.named)]
            .into_iter()
            .flatten()
        {
            after.extend_from_slice(word);
            after.push(0);
        }
        after.extend_from_slice(rest);
        expanded = Some(after);
    }
    expanded
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

fn open(caller: &Caller, asked: &ExecCall, path: &[u8]) -> Result<OwnedFd, Broken> {
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
    let flags =
        if asked.flags & libc::AT_SYMLINK_NOFOLLOW == 0 { PATH } else { PATH | OFlags::NOFOLLOW };
    caller.open(asked.dir, path, flags).map_err(interpreter_chain::through_descriptor(path))
}

fn status(thread: u32) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(
        in_proc(thread, "status"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut text = vec![0; 1024];
    let length = rustix::io::read(&file, &mut text[..])?;
    text.truncate(length);
    Ok(text)
}

/// Does another program trace it?
pub fn is_traced(thread: u32) -> bool {
    let text = status(thread).unwrap_or_default();
    let tracer =
        text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim_ascii() != b"0")
}

impl CallerView {
    pub fn new(root_stays: bool) -> CallerView {
        CallerView { memory: Memory::of(0), known: Known::default(), root_stays, root: None }
    }

    fn caller(&mut self, thread: u32) -> Result<Caller, Errno> {
        if let Some(root) = &self.root {
            return Ok(Caller::below(thread, root));
        }
        let caller = Caller::of(thread)?;
        if self.root_stays {
            self.root = Some(Rc::clone(caller.root()));
        }
        Ok(caller)
    }
}

impl Process {
    pub fn of(thread: u32) -> Result<Process, Errno> {
        match sys::process_info(thread) {
            Ok(info) => Ok(Process { pid: info.tgid, parent: info.ppid, uid: info.euid }),
            // Older kernels tell it in words, which takes five times as long.
            Err(_) => Process::parse(&status(thread)?).ok_or(Errno::SRCH),
        }
    }

    fn parse(status: &[u8]) -> Option<Process> {
        let number = |key: &[u8], index: usize| {
            let line =
                status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
            std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(index)?.parse().ok()
        };
        Some(Process {
            pid: number(b"Tgid:", 0)?,
            parent: number(b"PPid:", 0)?,
            uid: number(b"Uid:", 1)?,
        })
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
        let pointers: Vec<u64> =
            strings.iter().map(|string| string.as_ptr() as u64).chain([0]).collect();
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64).unwrap(), b"git\0\0\xff\n\0");
        assert_eq!(arguments(&mut memory, 0).unwrap(), b"\0");
        assert_eq!(arguments(&mut memory, pointers[3..].as_ptr() as u64).unwrap(), b"\0");
        assert_eq!(arguments(&mut memory, 8), Err(Errno::FAULT));
        let wrong = [strings[0].as_ptr() as u64, 8, 0];
        assert_eq!(arguments(&mut memory, wrong.as_ptr() as u64), Err(Errno::FAULT));
        let long = [vec![b'x'; LONGEST_ARGUMENT], vec![0]].concat();
        let pointers = [long.as_ptr() as u64, 0];
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64), Err(Errno::TOOBIG));
        let pointers: Vec<u64> =
            [long[1..].as_ptr() as u64].into_iter().cycle().take(60).chain([0]).collect();
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64), Err(Errno::TOOBIG));
    }

    #[test]
    fn words_are_split_at_their_nuls() {
        assert_eq!(words(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert_eq!(words(b"\0"), [b""]);
    }
}
