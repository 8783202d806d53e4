//! The files that the kernel runs for one exec: the file itself, and the interpreter of each `#!`
//! line.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::decide_exec;
use super::file_format::ProgramFormat;
use super::rules::ExecFile;
use super::trusted_program_dirs::TrustedDirs;
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::Identity;
use crate::plan::original_shell;

/// The interpreter of a script may be a script. The kernel's limit.
const MAX_INTERPRETERS: usize = 5;

/// An open file: its inode number can not be reused meanwhile.
#[derive(Debug)]
pub struct ChainFile {
    pub named: Vec<u8>,
    pub real: Vec<u8>,
    /// A real shell, below the program that is mounted over it. It is named by its former path.
    pub is_real_shell: bool,
    /// The argument of its `#!` line.
    pub argument: Option<Vec<u8>>,
    pub file: OwnedFd,
    pub identity: Identity,
    pub state: FileState,
    /// The file has only one hard link.
    only: bool,
}

/// The file that must contain the first instruction of the new program.
#[derive(Debug)]
pub enum EntryPoint {
    /// Not compared: no command can write the program, so it still names the loader that was
    /// judged.
    Settled,
    /// The program has no loader.
    Program,
    Loader(Rc<ChainFile>),
}

/// Inode number, size and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileState([u64; 7]);

/// Why there is nothing to judge.
#[derive(Debug, PartialEq, Eq)]
pub enum ChainError {
    /// The kernel would answer the same: no such file, no program, too long.
    Fails(Errno),
    /// The file can not be read, so the exec is denied.
    Unseen { named: Vec<u8>, why: &'static str },
}

impl From<Errno> for ChainError {
    fn from(errno: Errno) -> ChainError {
        ChainError::Fails(errno)
    }
}

/// Facts about files that were executed.
#[derive(Default)]
pub struct KnownPrograms {
    /// By their state: a changed file has another state. If a changed file has the same state, the
    /// exec stop finds the difference.
    programs: HashMap<FileState, ProgramFormat>,
    /// A loader starts any file under its own name. Loaders that programs name are known by their
    /// inode.
    loaders: Vec<KnownLoader>,
    /// The supervisor's own descriptors in /proc: their links are the paths of open files.
    descriptors: Option<OwnedFd>,
}

/// A loader that a program names: the kernel starts it, and no rule applies to it.
#[derive(Clone)]
struct KnownLoader {
    link: Rc<ChainFile>,
    flaw: Option<&'static str>,
}

/// Opens a path as the caller would.
pub type OpenPath<'a> = &'a dyn Fn(&[u8]) -> Result<OwnedFd, Errno>;

/// The requested file.
pub struct RequestedFile {
    pub named: Vec<u8>,
    pub file: OwnedFd,
    /// The file of a descriptor may have no path that an interpreter could open.
    pub by_descriptor: bool,
}

/// Adds to `chain`: the requested file, then the interpreter of each `#!` line. The last one runs.
pub fn follow(
    start: RequestedFile,
    open: OpenPath<'_>,
    trusted_dirs: Option<&TrustedDirs>,
    known: &mut KnownPrograms,
    chain: &mut Vec<ChainFile>,
) -> Result<EntryPoint, ChainError> {
    let RequestedFile { mut named, mut file, by_descriptor } = start;
    let mut argument = None;
    loop {
        let link = ChainFile::of(named, argument, file, known.descriptors()?)?;
        let unseen = |why| ChainError::Unseen { named: link.real.clone(), why };
        let program = match known.programs.get(&link.state) {
            Some(program) => program.clone(),
            None => {
                let content = link.content().map_err(|_| unseen("the file cannot be read"))?;
                let program = ProgramFormat::of(&content)?;
                known.remember(&link, &program);
                program
            }
        };
        if program == ProgramFormat::Library || known.is_loader(&link) {
            return Err(unseen("it is a loader, which starts any file under its own name"));
        }
        match program {
            ProgramFormat::Script { .. } if by_descriptor => {
                return Err(unseen("it is a script without a path"));
            }
            ProgramFormat::Script { .. } if chain.len() == MAX_INTERPRETERS => {
                return Err(Errno::LOOP.into());
            }
            ProgramFormat::Script { interpreter, argument: script_argument } => {
                chain.push(link);
                file = open(&interpreter).map_err(through_descriptor(&interpreter))?;
                (named, argument) = (interpreter, script_argument);
            }
            ProgramFormat::Cut => {
                return Err(unseen("its first line is longer than the kernel accepts"));
            }
            ProgramFormat::Binary { loader: Some(named) } => {
                let settled = link.is_settled(trusted_dirs);
                let loader = known.loader(&named, open, trusted_dirs, settled)?;
                if let Some(flaw) = loader.flaw {
                    return Err(unseen(flaw));
                }
                chain.push(link);
                return Ok(if settled {
                    EntryPoint::Settled
                } else {
                    EntryPoint::Loader(loader.link)
                });
            }
            ProgramFormat::Binary { loader: None } | ProgramFormat::Library => {
                let settled = link.is_settled(trusted_dirs);
                chain.push(link);
                return Ok(if settled { EntryPoint::Settled } else { EntryPoint::Program });
            }
        }
    }
}

/// Either a path through a descriptor, or too many links: both are denied.
pub fn through_descriptor(path: &[u8]) -> impl FnOnce(Errno) -> ChainError {
    move |errno| match errno {
        Errno::LOOP => ChainError::Unseen {
            named: path.to_vec(),
            why: "its path leads through a descriptor, or in a loop",
        },
        // In the sandbox's own /proc the supervisor has no pid, and `self` leads nowhere.
        Errno::NOENT if path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/") => {
            ChainError::Unseen { named: path.to_vec(), why: "its path leads through a descriptor" }
        }
        Errno::STALE => {
            ChainError::Unseen { named: path.to_vec(), why: "its working directory has no path" }
        }
        errno => ChainError::Fails(errno),
    }
}

impl KnownPrograms {
    fn descriptors(&mut self) -> Result<&OwnedFd, Errno> {
        const PATH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let opened = match self.descriptors.take() {
            Some(opened) => opened,
            None => rustix::fs::open(c"/proc/self/fd", PATH_DIR, Mode::empty())?,
        };
        Ok(self.descriptors.insert(opened))
    }

    fn remember(&mut self, link: &ChainFile, program: &ProgramFormat) {
        const MAX_PROGRAMS: usize = 1024;
        if self.programs.len() >= MAX_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(link.state, program.clone());
    }

    /// Looks up a loader, with its error. A trusted loader stays trusted: no command can write it
    /// or change its path. But the host may replace it. If the exec stop compares the loader (not
    /// `settled`), it is looked up again.
    fn loader(
        &mut self,
        named: &[u8],
        open: OpenPath<'_>,
        trusted_dirs: Option<&TrustedDirs>,
        settled: bool,
    ) -> Result<KnownLoader, ChainError> {
        const MAX_LOADERS: usize = 64;
        let known = self.loaders.iter().position(|loader| loader.link.named == named);
        if let Some(index) = known
            && settled
        {
            return Ok(self.loaders[index].clone());
        }
        let file = open(named).map_err(through_descriptor(named))?;
        if let Some(index) = known
            && self.loaders[index].link.identity == Identity::from(&rustix::fs::fstat(&file)?)
        {
            return Ok(self.loaders[index].clone());
        }
        let link = ChainFile::of(named.to_vec(), None, file, self.descriptors()?)?;
        let is_one = link
            .content()
            .and_then(ProgramFormat::of)
            .is_ok_and(|program| program == ProgramFormat::Library || link.is_called_loader());
        let flaw = if !named.starts_with(b"/") {
            Some("the path of its loader is not absolute")
        } else if !is_one {
            Some("its loader is not a program")
        } else if trusted_dirs
            .is_some_and(|trusted_dirs| !trusted_dirs.load_surely(named, &link.real))
        {
            Some("the command can write its loader, or change the path to it")
        } else {
            None
        };
        let loader = KnownLoader { link: Rc::new(link), flaw };
        match known {
            Some(index) => self.loaders[index] = loader.clone(),
            None if self.loaders.len() < MAX_LOADERS => self.loaders.push(loader.clone()),
            None => {}
        }
        Ok(loader)
    }

    fn is_loader(&self, link: &ChainFile) -> bool {
        link.is_called_loader()
            || self.loaders.iter().any(|loader| loader.link.identity == link.identity)
    }
}

impl ChainFile {
    /// `descriptors`: the supervisor's own, in /proc.
    fn of(
        named: Vec<u8>,
        argument: Option<Vec<u8>>,
        file: OwnedFd,
        descriptors: &OwnedFd,
    ) -> Result<ChainFile, Errno> {
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::ACCESS),
        }
        let number = DecInt::from_fd(&file);
        let found =
            rustix::fs::readlinkat(descriptors, number, Vec::with_capacity(256))?.into_bytes();
        let (real, is_real_shell) = original_shell(&found)
            .map_or_else(|| (found.clone(), false), |path| (path.to_vec(), true));
        let (identity, state, only) =
            (Identity::from(&stat), FileState::from(&stat), stat.st_nlink == 1);
        Ok(ChainFile { named, real, is_real_shell, argument, identity, state, only, file })
    }

    pub fn as_file(&self) -> ExecFile<'_> {
        ExecFile { named: &self.named, real: &self.real, argument: self.argument.as_deref() }
    }

    pub fn digest(&self, deadline: Option<Instant>) -> Result<[u8; 32], String> {
        decide_exec::digest(self.content().map_err(|errno| errno.to_string())?, deadline)
    }

    fn is_called_loader(&self) -> bool {
        let name = self.real.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        [&b"ld-"[..], b"ld.so", b"ld64."].iter().any(|start| name.starts_with(start))
            || name == b"libc.so"
    }

    /// Can no command write the file, under any of its names?
    fn is_settled(&self, trusted_dirs: Option<&TrustedDirs>) -> bool {
        self.only && trusted_dirs.is_some_and(|trusted_dirs| trusted_dirs.keep(&self.real))
    }

    /// Opens the file for reading. It is a regular file, so this has no side effect.
    pub fn content(&self) -> Result<OwnedFd, Errno> {
        let mut buffer = [0; 32];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(
            open_beneath::proc_fd_path(self.file.as_fd(), &mut buffer),
            flags,
            Mode::empty(),
        )
    }
}

impl FileState {
    pub fn size(&self) -> u64 {
        self.0[2]
    }
}

impl From<&Stat> for FileState {
    fn from(stat: &Stat) -> FileState {
        FileState([
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
