//! What became of an exec.

/// What became of an exec, for the journal and for people.
#[derive(Debug)]
pub struct ExecReport {
    pub process: ExecProcess,
    /// Of what was refused: the child of the run's command that it descends from.
    pub branch: Option<u32>,
    pub exe: Vec<u8>,
    pub argv: Vec<u8>,
    pub cwd: Vec<u8>,
    pub result: ExecResult,
    pub rule: Option<Vec<u8>>,
    pub reason: Option<String>,
    pub by: Option<String>,
    /// How long who was asked took, or had.
    pub asked_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecResult {
    /// It was allowed and runs. Not verified: another program traces it, and the policy lets it.
    Ran {
        verified: bool,
    },
    /// It was allowed, and then the kernel did not start it.
    Failed,
    Denied,
    /// It was allowed, changed what it asked for meanwhile, and was killed.
    Attack(&'static str),
}

/// The caller, by numbers of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecProcess {
    /// Of the whole process, where the caller is one thread of it.
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
}

/// A list of strings with their NULs.
pub fn nul_separated(block: &[u8]) -> Vec<&[u8]> {
    block.strip_suffix(&[0]).map_or(Vec::new(), |block| block.split(|byte| *byte == 0).collect())
}
