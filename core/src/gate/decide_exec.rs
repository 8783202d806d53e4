//! The decision on an exec: rules, approvals and trusted directories together.

use std::os::fd::AsFd;
use std::time::Instant;

use sha2::{Digest as _, Sha256};

use super::interpreter_chain::ChainFile;
use super::program_contents::ProgramContents;
use super::rules::{Cause, ExecDecision, ExecRequest, ExecRules};
use super::trusted_program_dirs::TrustedDirs;
use crate::plan::Action;

/// The final decision, and the approval that answers it if it is a question.
pub fn decide(
    rules: &ExecRules,
    trusted_dirs: Option<&TrustedDirs>,
    contents: &ProgramContents,
    exec: &ExecRequest<'_>,
    chain: &[ChainFile],
) -> (ExecDecision, Option<usize>) {
    const STRAYS_REASON: &str =
        "its interpreter opens it through a path that the command can change";
    let mut decision = rules.judge(exec);
    if rules.allow_own(&decision, exec)
        && let Some(trusted_dirs) = trusted_dirs
        && let Some(denial) = contents.denial(rules, trusted_dirs, exec, chain)
    {
        decision = denial;
    }
    if decision.action != Action::Deny
        && trusted_dirs.is_some_and(|trusted_dirs| trusted_dirs.let_stray(chain, exec.cwd))
    {
        return (
            ExecDecision {
                action: Action::Deny,
                cause: Cause::Unseen(STRAYS_REASON),
                doubted: None,
            },
            None,
        );
    }
    let approved = if decision.action == Action::Ask { rules.approves(exec) } else { None };
    (decision, approved)
}

/// The SHA-256 of a file. The deadline bounds the time for a file of any length.
pub fn digest(file: impl AsFd, deadline: Option<Instant>) -> Result<[u8; 32], String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match rustix::io::read(&file, &mut buffer[..]).map_err(|errno| errno.to_string())? {
            0 => return Ok(hash.finalize().into()),
            count => hash.update(&buffer[..count]),
        }
        if deadline.is_some_and(|deadline| Instant::now() > deadline) {
            return Err("reading the file takes too long".to_owned());
        }
    }
}
