//! `judge` and `regexes`: print the gate's decisions before anything runs.

use std::cell::RefCell;
use std::fmt::Write as _;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::error::Refusal;
use crate::gate::argv_text;
use crate::gate::decide_exec::decide;
use crate::gate::interpreter_chain::{
    self, ChainError, ChainFile, EntryPoint, KnownPrograms, RequestedFile,
};
use crate::gate::program_contents::ProgramContents;
use crate::gate::rules::{self, Cause, ExecDecision, ExecFile, ExecRequest, ExecRules};
use crate::gate::trusted_program_dirs::TrustedDirs;
use crate::kernel::calling_process;
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{Action, ExecRule, GatePlan, Plan, PlanError};

/// An exec as JSON. Its parent process is not known beforehand.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecToJudge {
    path: Text,
    argv: Vec<Text>,
    cwd: Text,
}

/// Prints every file that the exec would run, what these files need, and the answer of the kernel
/// or the gate.
///
/// Not inlined into the start of every run: the regex compiler takes pages of stack.
#[inline(never)]
pub fn report(plan: &Plan, question: &[u8]) -> Result<String, Refusal> {
    let question: ExecToJudge = reader::from_slice(question).map_err(PlanError::Json)?;
    let (mut chain, needs) = (Vec::new(), RefCell::new(Vec::new()));
    let trusted_dirs = TrustedDirs::of(plan);
    let followed = follow(&question, trusted_dirs.as_ref(), &mut chain, &needs);
    let last = match &followed {
        Err(ChainError::Unseen { named, .. }) => Some(named.clone()),
        _ => None,
    };
    let (errno, decision) = match (followed, &plan.gate) {
        // An administrator may have registered an interpreter for it; the gate does not allow it.
        (Err(ChainError::Fails(Errno::NOEXEC)), None) => (None, None),
        (Err(ChainError::Fails(errno)), _) => (Some(errno), None),
        (_, None) => (None, None),
        (Err(ChainError::Unseen { why, .. }), Some(gate)) => {
            let decision =
                ExecDecision { action: Action::Deny, cause: Cause::Unseen(why), doubted: None };
            (None, Some((decision, None, gate)))
        }
        (Ok(_), Some(gate)) => {
            let (decision, approved) = judge(plan, gate, trusted_dirs.as_ref(), &question, &chain)?;
            (None, Some((decision, approved, gate)))
        }
    };
    let mut out = String::from("{\"chain\":");
    let files = chain.iter().map(|link| &link.real).chain(&last);
    writer::list(&mut out, files, |out, real| writer::string(out, real, NonUtf8::Surrogate));
    out.push_str(",\"needs\":");
    writer::list(&mut out, needs.into_inner(), |out, named| {
        writer::string(out, &named, NonUtf8::Surrogate)
    });
    out.push_str(",\"errno\":");
    out.push_str(&errno.map_or("null".to_owned(), |errno| errno.raw_os_error().to_string()));
    out.push_str(",\"decision\":");
    match decision {
        Some((decision, approved, gate)) => decision_json(&mut out, &decision, approved, gate),
        None => out.push_str("null"),
    }
    out.push('}');
    Ok(out)
}

/// Follows the chain of interpreters as the kernel would for a process in `cwd`. `needs`:
/// interpreters and loader, as they are named.
fn follow(
    question: &ExecToJudge,
    trusted_dirs: Option<&TrustedDirs>,
    chain: &mut Vec<ChainFile>,
    needs: &RefCell<Vec<Vec<u8>>>,
) -> Result<EntryPoint, ChainError> {
    const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
    let root = rustix::fs::open(c"/", PATH | OFlags::DIRECTORY, Mode::empty())?;
    let open = |path: &[u8]| {
        let whole = if path.starts_with(b"/") {
            path.to_vec()
        } else {
            [question.cwd.as_bytes(), b"/", path].concat()
        };
        calling_process::open_in_root(&root, &whole, PATH, ResolveFlags::IN_ROOT)
    };
    let named = question.path.as_bytes().to_vec();
    if named == b"/proc/self/exe" {
        return Err(ChainError::Unseen {
            named,
            why: "its path depends on the program that opens it",
        });
    }
    let file = open(&named).map_err(interpreter_chain::through_descriptor(&named))?;
    let needed = |path: &[u8]| {
        needs.borrow_mut().push(path.to_vec());
        open(path)
    };
    interpreter_chain::follow(
        RequestedFile { named, file, by_descriptor: false },
        &needed,
        trusted_dirs,
        &mut KnownPrograms::default(),
        chain,
    )
}

fn judge(
    plan: &Plan,
    gate: &GatePlan,
    trusted_dirs: Option<&TrustedDirs>,
    question: &ExecToJudge,
    chain: &[ChainFile],
) -> Result<(ExecDecision, Option<usize>), Refusal> {
    let files: Vec<ExecFile<'_>> = chain.iter().map(ChainFile::as_file).collect();
    let argv: Vec<_> = question.argv.iter().map(Text::as_bytes).collect();
    let exec = ExecRequest {
        chain: &files,
        argv: &argv,
        cwd: question.cwd.as_bytes(),
        uid: plan.user.uid,
        parent: None,
        granted: trusted_dirs.is_none_or(|trusted_dirs| trusted_dirs.hold_all(chain)),
        digest: &|index| chain[index].digest(None),
    };
    let rules = ExecRules::compile(gate)?;
    let contents = ProgramContents::of(&rules, trusted_dirs);
    Ok(decide(&rules, trusted_dirs, &contents, &exec, chain))
}

fn decision_json(
    out: &mut String,
    decision: &ExecDecision,
    approved: Option<usize>,
    gate: &GatePlan,
) {
    let (cause, rule, why) = match &decision.cause {
        Cause::Rule(rule) => ("rule", Some(*rule), None),
        Cause::Default => ("default", None, None),
        Cause::Unseen(why) => ("unseen", None, Some(why.as_bytes())),
        Cause::Late => ("late", None, None),
        Cause::Error { rule, why } => ("error", Some(*rule), Some(why.as_bytes())),
    };
    let _ =
        write!(out, "{{\"action\":\"{}\",\"cause\":\"{cause}\",\"rule\":", decision.action.name());
    rule_or_null(out, rule.and_then(|index| gate.rules.get(index)));
    out.push_str(",\"error\":");
    text_or_null(out, why);
    out.push_str(",\"doubted\":");
    rule_or_null(out, decision.doubted.and_then(|index| gate.rules.get(index)));
    out.push_str(",\"approved\":");
    rule_or_null(out, approved.and_then(|index| gate.approved.get(index)));
    out.push('}');
}

fn rule_or_null(out: &mut String, rule: Option<&ExecRule>) {
    let Some(rule) = rule else { return out.push_str("null") };
    out.push_str("{\"id\":");
    writer::string(out, rule.id.as_bytes(), NonUtf8::Surrogate);
    out.push_str(",\"source\":");
    writer::string(out, rule.source.as_bytes(), NonUtf8::Surrogate);
    out.push_str(",\"reason\":");
    text_or_null(out, rule.reason.as_ref().map(Text::as_bytes));
    out.push('}');
}

fn text_or_null(out: &mut String, text: Option<&[u8]>) {
    match text {
        Some(text) => writer::string(out, text, NonUtf8::Surrogate),
        None => out.push_str("null"),
    }
}

/// Prints the expression that matches one list of arguments and no other.
#[inline(never)]
pub fn exactly(question: &[u8]) -> Result<String, Refusal> {
    let argv: Vec<Text> = reader::from_slice(question).map_err(PlanError::Json)?;
    let mut out = String::new();
    writer::string(
        &mut out,
        argv_text::exactly(argv.iter().map(Text::as_bytes)).as_bytes(),
        NonUtf8::Surrogate,
    );
    Ok(out)
}

/// Prints for each expression of a list its error, or null.
#[inline(never)]
pub fn regexes(question: &[u8]) -> Result<String, Refusal> {
    let question: Vec<Text> = reader::from_slice(question).map_err(PlanError::Json)?;
    let mut out = String::new();
    writer::list(&mut out, question, |out, pattern| {
        text_or_null(out, rules::regex(pattern.as_bytes()).err().as_deref().map(str::as_bytes));
    });
    Ok(out)
}
