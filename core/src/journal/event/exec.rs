//! The result of an exec.

/// The result of an exec, for the journal and for messages.
#[derive(Debug)]
pub struct ExecReport {
    pub process: ExecProcess,
    /// For a denied exec: the child of the run's command that the process descends from.
    pub branch: Option<u32>,
    pub exe: Vec<u8>,
    /// The program that runs, if `exe` is a script.
    pub interpreter: Option<Vec<u8>>,
    pub argv: Vec<u8>,
    pub cwd: Vec<u8>,
    pub result: ExecResult,
    pub rule: Option<Vec<u8>>,
    pub reason: Option<String>,
    pub by: Option<String>,
    /// How long the approver took, or had.
    pub asked_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecResult {
    /// Allowed and running. Not verified: another program traces it, and the policy permits that.
    Ran {
        verified: bool,
    },
    /// Allowed, but the kernel did not start it.
    Failed,
    Denied,
    /// Allowed, but the request changed after the decision, and the process was killed.
    Attack(&'static str),
}

/// The calling process, by its ids in the supervisor's pid namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecProcess {
    /// Id of the process, even if a thread made the call.
    pub pid: u32,
    pub parent: u32,
    pub uid: u32,
}

/// Splits a block of NUL-terminated strings.
pub fn nul_separated(block: &[u8]) -> Vec<&[u8]> {
    block.strip_suffix(&[0]).map_or(Vec::new(), |block| block.split(|byte| *byte == 0).collect())
}
