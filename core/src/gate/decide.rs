//! The verdict on an exec: rules, approvals and trusted directories together.

use std::os::fd::AsFd;
use std::time::Instant;

use sha2::{Digest as _, Sha256};

use super::interpreter_chain::Link;
use super::rules::{Cause, Exec, ExecDecision, Rules};
use super::trusted_dirs::Places;
use crate::plan::Action;

/// The verdict that counts, and the approval that answers where it is a question.
pub fn decide(
    rules: &Rules,
    places: Option<&Places>,
    exec: &Exec<'_>,
    chain: &[Link],
) -> (ExecDecision, Option<usize>) {
    const STRAYS: &str = "its interpreter opens it through a path that the command can change";
    let verdict = rules.judge(exec);
    if verdict.action != Action::Deny
        && places.is_some_and(|places| places.let_stray(chain, exec.cwd))
    {
        return (
            ExecDecision { action: Action::Deny, cause: Cause::Unseen(STRAYS), doubted: None },
            None,
        );
    }
    let approved = if verdict.action == Action::Ask { rules.approves(exec) } else { None };
    (verdict, approved)
}

/// The SHA-256 of a file. With a deadline: however long it is.
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
