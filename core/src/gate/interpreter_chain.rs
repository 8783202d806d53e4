//! What the kernel brings to run when one file is executed: the file, and the interpreter of each
//! `#!` line.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::DecInt;

use super::decide;
use super::file_format::Program;
use super::rules::File;
use super::trusted_dirs::Places;
use crate::kernel::open_beneath;
use crate::kernel::resolved_path::Identity;
use crate::plan::original_shell;

/// A script may be interpreted by a script, and so on.
const NESTED: usize = 5;

/// A file, held open: its number can not become another's.
#[derive(Debug)]
pub struct Link {
    pub named: Vec<u8>,
    pub real: Vec<u8>,
    /// A real shell, below what was put over it: told by the path it had.
    pub kept: bool,
    /// What a `#!` line gives to it as its first argument.
    pub argument: Option<Vec<u8>>,
    pub file: OwnedFd,
    pub identity: Identity,
    pub state: State,
    /// No other name leads to it.
    only: bool,
}

/// Which file the new program's first instruction has to be in.
#[derive(Debug)]
pub enum Entry {
    /// In the one that was judged: nobody can write the program, and with it the name of another
    /// loader.
    Settled,
    /// The program has no loader.
    Program,
    Loader(Rc<Link>),
}

/// Number, size and times of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State([u64; 7]);

/// Why there is nothing to judge.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// The kernel would answer the same: no such file, no program, too long.
    Fails(Errno),
    /// What can not be seen is not let through.
    Unseen { named: Vec<u8>, why: &'static str },
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Broken {
        Broken::Fails(errno)
    }
}

/// What is known of files that were executed.
#[derive(Default)]
pub struct Known {
    /// By their state: a file that was changed is another one. If one was changed and looks the
    /// same, what it does is not what is expected, and that is seen at the exec stop.
    programs: HashMap<State, Program>,
    /// Loaders start any file under their own name. Those that programs name are known by what they
    /// are.
    loaders: Vec<Loader>,
    /// Our own descriptors in /proc: what is open there has its path.
    descriptors: Option<OwnedFd>,
}

/// What a program names as its loader: the kernel starts that, and no rule is asked.
#[derive(Clone)]
struct Loader {
    link: Rc<Link>,
    flaw: Option<&'static str>,
}

/// How the one that executes opens a path.
pub type Open<'a> = &'a dyn Fn(&[u8]) -> Result<OwnedFd, Errno>;

/// The file that is asked for.
pub struct Start {
    pub named: Vec<u8>,
    pub file: OwnedFd,
    /// By a descriptor it may have no path that an interpreter could open.
    pub by_descriptor: bool,
}

/// Into `chain`: the file that was asked for, then the interpreter of each `#!` line. The last is
/// the one that runs.
pub fn follow(
    start: Start,
    open: Open<'_>,
    places: Option<&Places>,
    known: &mut Known,
    chain: &mut Vec<Link>,
) -> Result<Entry, Broken> {
    let Start { mut named, mut file, by_descriptor } = start;
    let mut argument = None;
    loop {
        let link = Link::of(named, argument, file, known.descriptors()?)?;
        let unseen = |why| Broken::Unseen { named: link.real.clone(), why };
        let program = match known.programs.get(&link.state) {
            Some(program) => program.clone(),
            None => {
                let content = link.content().map_err(|_| unseen("the file cannot be read"))?;
                let program = Program::of(&content)?;
                known.remember(&link, &program);
                program
            }
        };
        if program == Program::Library || known.is_loader(&link) {
            return Err(unseen("it is a loader, which starts any file under its own name"));
        }
        match program {
            Program::Script { .. } if by_descriptor => {
                return Err(unseen("it is a script without a path"));
            }
            Program::Script { .. } if chain.len() == NESTED => return Err(Errno::LOOP.into()),
            Program::Script { interpreter, argument: told } => {
                chain.push(link);
                file = open(&interpreter).map_err(through_descriptor(&interpreter))?;
                (named, argument) = (interpreter, told);
            }
            Program::Cut => return Err(unseen("its first line is longer than the kernel accepts")),
            Program::Binary { loader: Some(named) } => {
                let settled = link.is_settled(places);
                let loader = known.loader(&named, open, places, settled)?;
                if let Some(flaw) = loader.flaw {
                    return Err(unseen(flaw));
                }
                chain.push(link);
                return Ok(if settled { Entry::Settled } else { Entry::Loader(loader.link) });
            }
            Program::Binary { loader: None } | Program::Library => {
                let settled = link.is_settled(places);
                chain.push(link);
                return Ok(if settled { Entry::Settled } else { Entry::Program });
            }
        }
    }
}

/// Either a way through a descriptor, or too many links: both are refused.
pub fn through_descriptor(path: &[u8]) -> impl FnOnce(Errno) -> Broken {
    move |errno| match errno {
        Errno::LOOP => Broken::Unseen {
            named: path.to_vec(),
            why: "its path leads through a descriptor, or in a loop",
        },
        // In a /proc of the command's own, we are nobody, and `self` leads nowhere.
        Errno::NOENT if path.starts_with(b"/proc/") || path.starts_with(b"/dev/fd/") => {
            Broken::Unseen { named: path.to_vec(), why: "its path leads through a descriptor" }
        }
        Errno::STALE => {
            Broken::Unseen { named: path.to_vec(), why: "its working directory has no path" }
        }
        errno => Broken::Fails(errno),
    }
}

impl Known {
    fn descriptors(&mut self) -> Result<&OwnedFd, Errno> {
        const PATH_DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let opened = match self.descriptors.take() {
            Some(opened) => opened,
            None => rustix::fs::open(c"/proc/self/fd", PATH_DIR, Mode::empty())?,
        };
        Ok(self.descriptors.insert(opened))
    }

    fn remember(&mut self, link: &Link, program: &Program) {
        const MOST_PROGRAMS: usize = 1024;
        if self.programs.len() >= MOST_PROGRAMS {
            self.programs.clear();
        }
        self.programs.insert(link.state, program.clone());
    }

    /// With what is wrong with it. What is right stays so: nobody can write it, or turn the way to
    /// it. But the host may put a new one there, and where it will be compared with what the kernel
    /// takes (not `settled`), that has to be seen.
    fn loader(
        &mut self,
        named: &[u8],
        open: Open<'_>,
        places: Option<&Places>,
        settled: bool,
    ) -> Result<Loader, Broken> {
        const MOST_LOADERS: usize = 64;
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
        let link = Link::of(named.to_vec(), None, file, self.descriptors()?)?;
        let is_one = link
            .content()
            .and_then(Program::of)
            .is_ok_and(|program| program == Program::Library || link.is_called_loader());
        let flaw = if !named.starts_with(b"/") {
            Some("the path of its loader is not absolute")
        } else if !is_one {
            Some("its loader is not a program")
        } else if places.is_some_and(|places| !places.load_surely(named, &link.real)) {
            Some("the command can write its loader, or change the path to it")
        } else {
            None
        };
        let loader = Loader { link: Rc::new(link), flaw };
        match known {
            Some(index) => self.loaders[index] = loader.clone(),
            None if self.loaders.len() < MOST_LOADERS => self.loaders.push(loader.clone()),
            None => {}
        }
        Ok(loader)
    }

    fn is_loader(&self, link: &Link) -> bool {
        link.is_called_loader()
            || self.loaders.iter().any(|loader| loader.link.identity == link.identity)
    }
}

impl Link {
    /// `descriptors`: our own in /proc.
    fn of(
        named: Vec<u8>,
        argument: Option<Vec<u8>>,
        file: OwnedFd,
        descriptors: &OwnedFd,
    ) -> Result<Link, Errno> {
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::ACCESS),
        }
        let number = DecInt::from_fd(&file);
        let found =
            rustix::fs::readlinkat(descriptors, number, Vec::with_capacity(256))?.into_bytes();
        let (real, kept) = original_shell(&found)
            .map_or_else(|| (found.clone(), false), |path| (path.to_vec(), true));
        let (identity, state, only) =
            (Identity::from(&stat), State::from(&stat), stat.st_nlink == 1);
        Ok(Link { named, real, kept, argument, identity, state, only, file })
    }

    pub fn as_file(&self) -> File<'_> {
        File { named: &self.named, real: &self.real, argument: self.argument.as_deref() }
    }

    pub fn digest(&self, deadline: Option<Instant>) -> Result<[u8; 32], String> {
        decide::digest(self.content().map_err(|errno| errno.to_string())?, deadline)
    }

    fn is_called_loader(&self) -> bool {
        let name = self.real.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        [&b"ld-"[..], b"ld.so", b"ld64."].iter().any(|start| name.starts_with(start))
            || name == b"libc.so"
    }

    /// No command can write it, by this name or by another.
    fn is_settled(&self, places: Option<&Places>) -> bool {
        self.only && places.is_some_and(|places| places.keep(&self.real))
    }

    /// It is a regular file, so opening it does nothing to it.
    pub fn content(&self) -> Result<OwnedFd, Errno> {
        let mut buffer = [0; 32];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(
            open_beneath::link_to(self.file.as_fd(), &mut buffer),
            flags,
            Mode::empty(),
        )
    }
}

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
