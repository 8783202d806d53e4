//! What an exec is about to do: its file, its interpreters, and its arguments.
//!
//! All of it is read from memory and names that others can change meanwhile. So it is an
//! expectation, good enough to judge. The exec stop checks whether it came true
//! (`gate/verify_exec.rs`), before the new program runs.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::interpreter_chain::{
    self, ChainError, ChainFile, EntryPoint, KnownPrograms, RequestedFile,
};
use super::trusted_program_dirs::TrustedDirs;
use crate::journal::event::exec::{ExecProcess, nul_separated};
use crate::kernel::calling_process::{CallingProcess, WorkingDirectory, proc_path};
use crate::kernel::process_memory::ProcessMemory;
use crate::kernel::seccomp_notify::{InterceptedCall, MAX_PATH_BYTES};
use crate::kernel::sys;

/// One argument, with its NUL (MAX_ARG_STRLEN).
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;
/// All arguments: the kernel takes at most three quarters of a program's stack.
const MAX_ARGV_BYTES: usize = 6 << 20;
const MAX_ARGUMENTS: usize = MAX_ARGV_BYTES / 8;

const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

#[derive(Debug)]
pub struct ExpectedExec {
    /// The path that the new program gets (AT_EXECFN).
    pub named: Vec<u8>,
    /// The requested file, then the interpreter of each `#!` line. The last one runs.
    pub chain: Vec<ChainFile>,
    pub entry: EntryPoint,
    /// As the caller passed them, each with its NUL.
    pub argv: Vec<u8>,
    /// As the program gets them, if a `#!` line changes them.
    expanded: Option<Vec<u8>>,
    /// The pid of the process; the caller may be one thread of it.
    pub pid: u32,
    /// Its working directory and identity. None: no rule depends on them. Then they are looked up
    /// for the journal while no process waits.
    pub standing: Option<WorkingDirectory>,
    pub process: Option<ExecProcess>,
    /// The digests of files of the chain that a rule asked for and that may change.
    pub digests: Vec<(usize, [u8; 32])>,
}

/// State that is kept from one exec to the next.
pub struct CallerView {
    pub memory: ProcessMemory,
    known: KnownPrograms,
    /// The command can not change its root: the root of the first call is that of every process.
    root_stays: bool,
    root: Option<Rc<OwnedFd>>,
}

/// Why there is nothing to judge.
#[derive(Debug)]
pub enum NotJudged {
    /// The kernel would answer the same: no such file, no program, too long.
    Fails(Errno),
    /// The exec can not be read, so it is denied, with what is known of it.
    Unseen { call: Box<ObservedExec>, why: &'static str },
}

/// What the journal gets of an exec.
#[derive(Debug, Default)]
pub struct ObservedExec {
    pub exe: Vec<u8>,
    pub interpreter: Option<Vec<u8>>,
    /// Each with its NUL.
    pub argv: Vec<u8>,
    pub cwd: Vec<u8>,
    pub process: ExecProcess,
}

/// How the call names its file.
struct ExecCall {
    dir: i32,
    path: u64,
    argv: u64,
    flags: i32,
}

impl ExecCall {
    fn of(call: &InterceptedCall) -> ExecCall {
        let [a, b, c, _, e, _] = call.arguments;
        if i64::from(call.number) == libc::SYS_execveat {
            ExecCall { dir: a as i32, path: b, argv: c, flags: e as i32 }
        } else {
            ExecCall { dir: libc::AT_FDCWD, path: a, argv: b, flags: 0 }
        }
    }
}

impl ExpectedExec {
    /// `closely`: also read the working directory and the identity of the process.
    pub fn of(
        call: &InterceptedCall,
        trusted_dirs: Option<&TrustedDirs>,
        caller_view: &mut CallerView,
        closely: bool,
    ) -> Result<ExpectedExec, NotJudged> {
        let exec_call = ExecCall::of(call);
        let memory = &mut caller_view.memory;
        let mut unseen = ObservedExec {
            process: ExecProcess { pid: call.thread, ..ExecProcess::default() },
            ..ObservedExec::default()
        };
        memory.turn_to(call.thread);
        memory.prefetch_pages(exec_call.path, exec_call.argv);
        let mut path = Vec::with_capacity(256);
        let read = memory.string(exec_call.path, MAX_PATH_BYTES, Errno::NAMETOOLONG, &mut path);
        let argv = read.and_then(|()| arguments(memory, exec_call.argv));
        let argv = argv.map_err(|errno| unseen.caller(&path, errno))?;
        // A thread that execs gets the pid of its process.
        let closely = closely || !sys::is_process(call.thread);
        let mut process = None;
        if closely {
            unseen.process =
                ExecProcess::of(call.thread).map_err(|errno| unseen.caller(&path, errno))?;
            process = Some(unseen.process);
        }
        let caller =
            caller_view.caller(call.thread).map_err(|errno| unseen.caller(&path, errno))?;

        let by_descriptor = exec_call.dir != libc::AT_FDCWD && !path.starts_with(b"/");
        let named = match (by_descriptor, path.is_empty()) {
            (false, _) => path.clone(),
            (true, true) => format!("/dev/fd/{}", exec_call.dir).into_bytes(),
            (true, false) => [format!("/dev/fd/{}/", exec_call.dir).as_bytes(), &path].concat(),
        };
        let mut links = Vec::with_capacity(1);
        let followed = open(&caller, &exec_call, &path).and_then(|file| {
            let start = RequestedFile { named: named.clone(), file, by_descriptor };
            interpreter_chain::follow(
                start,
                &|path| caller.open(libc::AT_FDCWD, path, PATH_FLAGS),
                trusted_dirs,
                &mut caller_view.known,
                &mut links,
            )
        });
        let entry = match followed {
            Ok(entry) => entry,
            Err(ChainError::Fails(errno)) => return Err(NotJudged::Fails(errno)),
            Err(ChainError::Unseen { named, why }) => {
                let process =
                    process.or_else(|| ExecProcess::of(call.thread).ok()).unwrap_or(unseen.process);
                let call = Box::new(ObservedExec {
                    exe: named,
                    interpreter: None,
                    argv,
                    cwd: WorkingDirectory::of(call.thread).path,
                    process,
                });
                return Err(NotJudged::Unseen { call, why });
            }
        };
        let starts_there = links.iter().any(|link| !link.named.starts_with(b"/"));
        let standing = (closely || starts_there).then(|| WorkingDirectory::of(call.thread));
        let (pid, expanded) = (unseen.process.pid, expanded(&links, &argv));
        Ok(ExpectedExec {
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

    /// Reads what no rule needed, for the question and the journal. If the thread has ended, its
    /// number may belong to another process: before a question the caller checks `still_waits`.
    pub fn complete(&mut self, thread: u32) {
        self.process = self.process.or_else(|| ExecProcess::of(thread).ok());
        self.standing.get_or_insert_with(|| WorkingDirectory::of(thread));
    }

    pub fn cwd(&self) -> &[u8] {
        self.standing.as_ref().map_or(b"", |standing| &standing.path)
    }

    /// Has only the pid, if the process ended before more was read.
    pub fn process(&self) -> ExecProcess {
        self.process.unwrap_or(ExecProcess { pid: self.pid, ..ExecProcess::default() })
    }

    /// As the program gets them, each with its NUL.
    pub fn final_argv(&self) -> &[u8] {
        self.expanded.as_ref().unwrap_or(&self.argv)
    }

    /// As the caller passed them.
    pub fn arguments(&self) -> Vec<&[u8]> {
        nul_separated(&self.argv)
    }

    /// A hash of program, arguments and working directory.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let files = self.chain.iter().map(|link| link.real.as_slice());
        for part in files.chain([&self.argv[..], self.cwd()]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }

    /// For the journal.
    pub fn observed(&self) -> ObservedExec {
        ObservedExec {
            exe: self.exe().to_vec(),
            interpreter: self.interpreter().map(<[u8]>::to_vec),
            argv: self.argv.clone(),
            cwd: self.cwd().to_vec(),
            process: self.process(),
        }
    }

    /// The program that runs, if the requested file is a script.
    fn interpreter(&self) -> Option<&[u8]> {
        let (program, scripts) = self.chain.split_last()?;
        (!scripts.is_empty()).then_some(&program.real)
    }

    pub fn exe(&self) -> &[u8] {
        self.chain.first().map_or(&self.named, |link| &link.real)
    }
}

impl ObservedExec {
    /// EPERM and ESRCH are answers to the supervisor, not to the caller: the process can not be
    /// read, or has ended.
    fn caller(&self, named: &[u8], errno: Errno) -> NotJudged {
        match errno {
            Errno::PERM | Errno::ACCESS | Errno::SRCH | Errno::NOENT => {
                let call = ObservedExec {
                    exe: named.to_vec(),
                    process: self.process,
                    ..ObservedExec::default()
                };
                NotJudged::Unseen {
                    call: Box::new(call),
                    why: "the calling process cannot be \
                    examined",
                }
            }
            errno => NotJudged::Fails(errno),
        }
    }
}

/// For each `#!` line: the interpreter, its argument, the script, and the arguments after the
/// first.
fn expanded(chain: &[ChainFile], argv: &[u8]) -> Option<Vec<u8>> {
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

fn arguments(memory: &mut ProcessMemory, address: u64) -> Result<Vec<u8>, Errno> {
    let mut argv = Vec::with_capacity(256);
    if address != 0 {
        for pointer in memory.words(address, MAX_ARGUMENTS)? {
            memory.string(pointer, MAX_ARGUMENT_BYTES, Errno::TOOBIG, &mut argv)?;
            argv.push(0);
            if argv.len() > MAX_ARGV_BYTES {
                return Err(Errno::TOOBIG);
            }
        }
    }
    if argv.is_empty() {
        argv.push(0); // the kernel passes one empty argument
    }
    Ok(argv)
}

fn open(caller: &CallingProcess, exec_call: &ExecCall, path: &[u8]) -> Result<OwnedFd, ChainError> {
    if path.is_empty() {
        // fexecve(3), memfd: the file of the descriptor, if the call asks for it and there is one.
        if exec_call.flags & libc::AT_EMPTY_PATH == 0 {
            return Err(Errno::NOENT.into());
        }
        return caller
            .open_proc_file(&format!("fd/{}", exec_call.dir), PATH_FLAGS)
            .map_err(|_| Errno::BADF.into());
    }
    if path == b"/proc/self/exe" {
        // The one path through a descriptor that many programs use: their own executable.
        return Ok(caller.open_proc_file("exe", PATH_FLAGS)?);
    }
    let flags = if exec_call.flags & libc::AT_SYMLINK_NOFOLLOW == 0 {
        PATH_FLAGS
    } else {
        PATH_FLAGS | OFlags::NOFOLLOW
    };
    caller.open(exec_call.dir, path, flags).map_err(interpreter_chain::through_descriptor(path))
}

fn status(thread: u32) -> Result<Vec<u8>, Errno> {
    let file = rustix::fs::open(
        proc_path(thread, "status"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut text = vec![0; 1024];
    let length = rustix::io::read(&file, &mut text[..])?;
    text.truncate(length);
    Ok(text)
}

/// Does another process trace it?
pub fn is_traced(thread: u32) -> bool {
    let text = status(thread).unwrap_or_default();
    let tracer =
        text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim_ascii() != b"0")
}

impl CallerView {
    pub fn new(root_stays: bool) -> CallerView {
        CallerView {
            memory: ProcessMemory::of(0),
            known: KnownPrograms::default(),
            root_stays,
            root: None,
        }
    }

    fn caller(&mut self, thread: u32) -> Result<CallingProcess, Errno> {
        if let Some(root) = &self.root {
            return Ok(CallingProcess::with_root(thread, root));
        }
        let caller = CallingProcess::of(thread)?;
        if self.root_stays {
            self.root = Some(Rc::clone(caller.root()));
        }
        Ok(caller)
    }
}

impl ExecProcess {
    pub fn of(thread: u32) -> Result<ExecProcess, Errno> {
        match sys::process_info(thread) {
            Ok(info) => Ok(ExecProcess { pid: info.tgid, parent: info.ppid, uid: info.euid }),
            // Older kernels have it only as text, which takes five times as long.
            Err(_) => ExecProcess::parse(&status(thread)?).ok_or(Errno::SRCH),
        }
    }

    fn parse(status: &[u8]) -> Option<ExecProcess> {
        let number = |key: &[u8], index: usize| {
            let line =
                status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key))?;
            std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(index)?.parse().ok()
        };
        Some(ExecProcess {
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
    fn a_caller_is_read_from_its_status() {
        let status = b"Name:\tTgid:\t7\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t42\nNgid:\t0\n\
                       Pid:\t43\nPPid:\t7\nTracerPid:\t0\n\
                       Uid:\t1000\t1001\t1000\t1000\n";
        assert_eq!(ExecProcess::parse(status), Some(ExecProcess { pid: 42, parent: 7, uid: 1001 }));
        assert_eq!(ExecProcess::parse(b"Tgid:\t42\n"), None);
    }

    #[test]
    fn arguments_are_read_whole_or_not_at_all() {
        let mut memory = ProcessMemory::of(rustix::process::getpid().as_raw_nonzero().get() as u32);
        let strings = [&b"git\0"[..], b"\0", b"\xff\n\0"];
        let pointers: Vec<u64> =
            strings.iter().map(|string| string.as_ptr() as u64).chain([0]).collect();
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64).unwrap(), b"git\0\0\xff\n\0");
        assert_eq!(arguments(&mut memory, 0).unwrap(), b"\0");
        assert_eq!(arguments(&mut memory, pointers[3..].as_ptr() as u64).unwrap(), b"\0");
        assert_eq!(arguments(&mut memory, 8), Err(Errno::FAULT));
        let wrong = [strings[0].as_ptr() as u64, 8, 0];
        assert_eq!(arguments(&mut memory, wrong.as_ptr() as u64), Err(Errno::FAULT));
        let long = [vec![b'x'; MAX_ARGUMENT_BYTES], vec![0]].concat();
        let pointers = [long.as_ptr() as u64, 0];
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64), Err(Errno::TOOBIG));
        let pointers: Vec<u64> =
            [long[1..].as_ptr() as u64].into_iter().cycle().take(60).chain([0]).collect();
        assert_eq!(arguments(&mut memory, pointers.as_ptr() as u64), Err(Errno::TOOBIG));
    }

    #[test]
    fn arguments_are_split_at_nul() {
        assert_eq!(nul_separated(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert_eq!(nul_separated(b"\0"), [b""]);
    }
}
