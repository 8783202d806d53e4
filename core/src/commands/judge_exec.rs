//! `judge` and `regexes`: the gate's own answers for people, before anything runs.

use std::cell::RefCell;
use std::fmt::Write as _;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::Deserialize;

use super::error::Refusal;
use crate::gate::argv_text;
use crate::gate::decide::decide;
use crate::gate::interpreter_chain::{self, Broken, Entry, Known, Link, Start};
use crate::gate::rules::{self, Cause, Exec, ExecDecision, File, Rules};
use crate::gate::trusted_dirs::Places;
use crate::kernel::calling_process;
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, Invalid};
use crate::plan::{Action, Gate, Plan, PlanError, Rule};

/// What a process would ask the kernel for, as JSON. Its parent is not known beforehand.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecToJudge {
    path: Text,
    argv: Vec<Text>,
    cwd: Text,
}

/// Every file that it would bring to run, what those need, and what the kernel or the gate would
/// answer.
///
/// Not inlined into the start of every run: what expressions are compiled with takes pages of stack
/// there.
#[inline(never)]
pub fn report(plan: &Plan, asked: &[u8]) -> Result<String, Refusal> {
    let asked: ExecToJudge = reader::from_slice(asked).map_err(PlanError::Json)?;
    let (mut chain, needs) = (Vec::new(), RefCell::new(Vec::new()));
    let places = Places::of(plan);
    let followed = follow(&asked, places.as_ref(), &mut chain, &needs);
    let last = match &followed {
        Err(Broken::Unseen { named, .. }) => Some(named.clone()),
        _ => None,
    };
    let (errno, verdict) = match (followed, &plan.gate) {
        // An administrator may have registered something for it, which a gate does not let run.
        (Err(Broken::Fails(Errno::NOEXEC)), None) => (None, None),
        (Err(Broken::Fails(errno)), _) => (Some(errno), None),
        (_, None) => (None, None),
        (Err(Broken::Unseen { why, .. }), Some(gate)) => {
            let verdict =
                ExecDecision { action: Action::Deny, cause: Cause::Unseen(why), doubted: None };
            (None, Some((verdict, None, gate)))
        }
        (Ok(_), Some(gate)) => {
            let (verdict, approved) = judge(plan, gate, places.as_ref(), &asked, &chain)?;
            (None, Some((verdict, approved, gate)))
        }
    };
    let mut out = String::from("{\"chain\":");
    let files = chain.iter().map(|link| &link.real).chain(&last);
    writer::list(&mut out, files, |out, real| writer::string(out, real, Invalid::Surrogate));
    out.push_str(",\"needs\":");
    writer::list(&mut out, needs.into_inner(), |out, named| {
        writer::string(out, &named, Invalid::Surrogate)
    });
    out.push_str(",\"errno\":");
    out.push_str(&errno.map_or("null".to_owned(), |errno| errno.raw_os_error().to_string()));
    out.push_str(",\"decision\":");
    match verdict {
        Some((verdict, approved, gate)) => told(&mut out, &verdict, approved, gate),
        None => out.push_str("null"),
    }
    out.push('}');
    Ok(out)
}

/// As a process that stands in `cwd` would have the kernel do it. `needs`: interpreters and loader,
/// as they are named.
fn follow(
    asked: &ExecToJudge,
    places: Option<&Places>,
    chain: &mut Vec<Link>,
    needs: &RefCell<Vec<Vec<u8>>>,
) -> Result<Entry, Broken> {
    const PATH: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
    let root = rustix::fs::open(c"/", PATH | OFlags::DIRECTORY, Mode::empty())?;
    let open = |path: &[u8]| {
        let whole = if path.starts_with(b"/") {
            path.to_vec()
        } else {
            [asked.cwd.as_bytes(), b"/", path].concat()
        };
        calling_process::open_in(&root, &whole, PATH, ResolveFlags::IN_ROOT)
    };
    let named = asked.path.as_bytes().to_vec();
    if named == b"/proc/self/exe" {
        return Err(Broken::Unseen { named, why: "its path depends on the program that opens it" });
    }
    let file = open(&named).map_err(interpreter_chain::through_descriptor(&named))?;
    let needed = |path: &[u8]| {
        needs.borrow_mut().push(path.to_vec());
        open(path)
    };
    interpreter_chain::follow(
        Start { named, file, by_descriptor: false },
        &needed,
        places,
        &mut Known::default(),
        chain,
    )
}

fn judge(
    plan: &Plan,
    gate: &Gate,
    places: Option<&Places>,
    asked: &ExecToJudge,
    chain: &[Link],
) -> Result<(ExecDecision, Option<usize>), Refusal> {
    let files: Vec<File<'_>> = chain.iter().map(Link::as_file).collect();
    let argv: Vec<_> = asked.argv.iter().map(Text::as_bytes).collect();
    let exec = Exec {
        chain: &files,
        argv: &argv,
        cwd: asked.cwd.as_bytes(),
        uid: plan.user.uid,
        parent: None,
        granted: places.is_none_or(|places| places.hold_all(chain)),
        digest: &|index| chain[index].digest(None),
    };
    Ok(decide(&Rules::compile(gate)?, places, &exec, chain))
}

fn told(out: &mut String, verdict: &ExecDecision, approved: Option<usize>, gate: &Gate) {
    let (cause, rule, why) = match &verdict.cause {
        Cause::Rule(rule) => ("rule", Some(*rule), None),
        Cause::Default => ("default", None, None),
        Cause::NotGranted => ("not-granted", None, None),
        Cause::Unseen(why) => ("unseen", None, Some(why.as_bytes())),
        Cause::Late => ("late", None, None),
        Cause::Error { rule, why } => ("error", Some(*rule), Some(why.as_bytes())),
    };
    let _ =
        write!(out, "{{\"action\":\"{}\",\"cause\":\"{cause}\",\"rule\":", verdict.action.name());
    rule_or_null(out, rule.and_then(|index| gate.rules.get(index)));
    out.push_str(",\"error\":");
    text_or_null(out, why);
    out.push_str(",\"doubted\":");
    rule_or_null(out, verdict.doubted.and_then(|index| gate.rules.get(index)));
    out.push_str(",\"approved\":");
    rule_or_null(out, approved.and_then(|index| gate.approved.get(index)));
    out.push('}');
}

fn rule_or_null(out: &mut String, rule: Option<&Rule>) {
    let Some(rule) = rule else { return out.push_str("null") };
    out.push_str("{\"id\":");
    writer::string(out, rule.id.as_bytes(), Invalid::Surrogate);
    out.push_str(",\"source\":");
    writer::string(out, rule.source.as_bytes(), Invalid::Surrogate);
    out.push_str(",\"reason\":");
    text_or_null(out, rule.reason.as_ref().map(Text::as_bytes));
    out.push('}');
}

fn text_or_null(out: &mut String, text: Option<&[u8]>) {
    match text {
        Some(text) => writer::string(out, text, Invalid::Surrogate),
        None => out.push_str("null"),
    }
}

/// The expression for one list of arguments and no other.
#[inline(never)]
pub fn exactly(asked: &[u8]) -> Result<String, Refusal> {
    let argv: Vec<Text> = reader::from_slice(asked).map_err(PlanError::Json)?;
    let mut out = String::new();
    writer::string(
        &mut out,
        argv_text::exactly(argv.iter().map(Text::as_bytes)).as_bytes(),
        Invalid::Surrogate,
    );
    Ok(out)
}

/// For each of a list of expressions what is wrong with it, or null.
#[inline(never)]
pub fn regexes(asked: &[u8]) -> Result<String, Refusal> {
    let asked: Vec<Text> = reader::from_slice(asked).map_err(PlanError::Json)?;
    let mut out = String::new();
    writer::list(&mut out, asked, |out, pattern| {
        text_or_null(out, rules::regex(pattern.as_bytes()).err().as_deref().map(str::as_bytes));
    });
    Ok(out)
}
