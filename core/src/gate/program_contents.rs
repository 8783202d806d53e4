//! The programs of this machine by their content. A program that the command could have made has a
//! name that the command chose. So it is judged as each program whose content it has: a copy of a
//! denied program is denied.
//!
//! A changed copy is another program, as is a program that the command brings along.

use std::cell::OnceCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::decide_exec;
use super::interpreter_chain::ChainFile;
use super::rules::{Cause, ExecDecision, ExecFile, ExecRequest, ExecRules, acts_by_its_words};
use super::trusted_program_dirs::TrustedDirs;
use crate::plan::Action;

/// Where programs are besides PATH.
const PROGRAM_DIRS: [&str; 9] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/games",
    "/usr/lib/git-core",
    "/usr/libexec/git-core",
];

const UNCOMPARED: &str = "its content cannot be compared with that of denied programs";

#[derive(Debug, Default)]
pub struct ProgramContents {
    /// Named by a rule that denies or asks, in directories that a command can write. They are read
    /// before the command starts.
    writable: Vec<KnownProgram>,
    /// Named by such a rule, elsewhere.
    named: Vec<Vec<u8>>,
    /// All others, by their size. Read when the first program is compared.
    others: OnceCell<HashMap<u64, Vec<KnownProgram>>>,
}

#[derive(Debug)]
struct KnownProgram {
    /// The paths that lead to it: its own, and those of links. A rule can name a link.
    names: Vec<Vec<u8>>,
    real: Vec<u8>,
    size: u64,
    digest: OnceCell<[u8; 32]>,
}

impl ProgramContents {
    pub fn of(rules: &ExecRules, trusted_dirs: Option<&TrustedDirs>) -> ProgramContents {
        let Some(trusted_dirs) = trusted_dirs.filter(|_| rules.allow_by_default()) else {
            return ProgramContents::default();
        };
        let mut contents =
            ProgramContents { named: rules.denied_paths(), ..ProgramContents::default() };
        let listed = program_dirs().into_iter().filter(|dir| !trusted_dirs.keep(dir));
        let paths = listed.flat_map(|dir| files_in(&dir)).chain(contents.named.iter().cloned());
        let own = paths.collect::<BTreeSet<_>>().into_iter().filter(|path| rules.deny_name(path));
        for path in own {
            let Some(program) = KnownProgram::at(&path) else { continue };
            if !trusted_dirs.keep(&program.real) && program.digest().is_some() {
                contents.writable.push(program);
            }
        }
        contents
    }

    /// The first decision that does not allow the exec, as one of the programs with the content of
    /// a file of its chain.
    pub fn denial(
        &self,
        rules: &ExecRules,
        trusted_dirs: &TrustedDirs,
        exec: &ExecRequest<'_>,
        chain: &[ChainFile],
    ) -> Option<ExecDecision> {
        for (index, link) in chain.iter().enumerate() {
            if trusted_dirs.hold(&link.real) {
                continue;
            }
            for program in self.with_size(link.state.size()) {
                match self.judged_as(program, index, rules, exec) {
                    Ok(Some(decision)) if decision.action != Action::Allow => {
                        return Some(decision);
                    }
                    Ok(_) => {}
                    Err(()) => {
                        let cause = Cause::Unseen(UNCOMPARED);
                        return Some(ExecDecision { action: Action::Deny, cause, doubted: None });
                    }
                }
            }
        }
        None
    }

    /// None: the file at this index has another content. Err: it can not be read in time.
    fn judged_as(
        &self,
        program: &KnownProgram,
        index: usize,
        rules: &ExecRules,
        exec: &ExecRequest<'_>,
    ) -> Result<Option<ExecDecision>, ()> {
        let decisions = program.names.iter().filter_map(|name| {
            let mut files = exec.chain.to_vec();
            let file = files.get_mut(index)?;
            *file = ExecFile { named: name, real: &program.real, ..*file };
            Some(rules.judge(&ExecRequest { chain: &files, granted: true, ..*exec }))
        });
        let refusals = decisions.filter(|decision| decision.action != Action::Allow);
        // Without a refusal its content makes no difference. A denial is stricter than a question.
        let Some(decision) = refusals.min_by_key(|decision| decision.action != Action::Deny) else {
            return Ok(None);
        };
        let found = (exec.digest)(index).map_err(|_| ())?;
        Ok((program.digest() == Some(found)).then_some(decision))
    }

    fn with_size(&self, size: u64) -> impl Iterator<Item = &KnownProgram> {
        let others = self.others.get_or_init(|| {
            let mut others: HashMap<u64, Vec<KnownProgram>> = HashMap::new();
            let listed = program_dirs().into_iter().flat_map(|dir| files_in(&dir));
            let paths: BTreeSet<_> = listed.chain(self.named.iter().cloned()).collect();
            let mut by_file: BTreeMap<Vec<u8>, KnownProgram> = BTreeMap::new();
            for program in paths.iter().filter_map(|path| KnownProgram::at(path)) {
                match by_file.entry(program.real.clone()) {
                    Entry::Vacant(free) => drop(free.insert(program)),
                    Entry::Occupied(known) => known.into_mut().names.extend(program.names),
                }
            }
            for program in by_file.into_values() {
                others.entry(program.size).or_default().push(program);
            }
            others
        });
        let writable = self.writable.iter().filter(move |program| program.size == size);
        writable.chain(others.get(&size).into_iter().flatten())
    }
}

impl KnownProgram {
    fn at(path: &[u8]) -> Option<KnownProgram> {
        let path = Path::new(OsStr::from_bytes(path));
        let is_link = std::fs::symlink_metadata(path).ok()?.is_symlink();
        let real = if is_link { path.canonicalize().ok()? } else { path.to_owned() };
        let found = std::fs::metadata(&real).ok()?;
        let real = real.into_os_string().into_vec();
        let mut names = vec![real.clone()];
        if is_link && !acts_by_its_words(&real) {
            names.push(path.as_os_str().as_bytes().to_vec());
        }
        found.is_file().then(|| KnownProgram {
            names,
            real,
            size: found.len(),
            digest: OnceCell::new(),
        })
    }

    /// None: it is gone, or Paddock can not read it. Then the command can not copy it: both are the
    /// same user.
    fn digest(&self) -> Option<[u8; 32]> {
        if let Some(digest) = self.digest.get() {
            return Some(*digest);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = Path::new(OsStr::from_bytes(&self.real));
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let digest = decide_exec::digest(file, None).ok()?;
        Some(*self.digest.get_or_init(|| digest))
    }
}

fn program_dirs() -> BTreeSet<Vec<u8>> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&searched)
        .chain(PROGRAM_DIRS.map(Into::into))
        .filter_map(|dir| dir.canonicalize().ok())
        .map(|dir| dir.into_os_string().into_vec())
        .collect()
}

/// A directory that can not be listed has no programs that PATH finds.
fn files_in(dir: &[u8]) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(Path::new(OsStr::from_bytes(dir)));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.path().into_os_string().into_vec()).collect()
}
