//! `judge` and `regexes`: the gate's own answers for people, before anything runs.

use std::os::fd::AsFd;
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::places::Places;
use super::rules::{self, Cause, Exec, File, Parent, Rules, Verdict};
use super::words;
use crate::json::{self, Invalid};
use crate::plan::{Action, Gate, Plan, PlanError, Rule};
use crate::refusal::Refusal;
use crate::text::Text;

/// One exec, as JSON: what [`Exec`] holds, but for what is found out here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    chain: Vec<AskedFile>,
    argv: Vec<Text>,
    cwd: Text,
    uid: u32,
    parent: Option<AskedParent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedFile {
    named: Text,
    real: Text,
    argument: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedParent {
    exe: Text,
    argv: Vec<Text>,
}

/// Not inlined into the start of every run: what expressions are compiled with takes pages of stack there.
#[inline(never)]
pub fn report(plan: &Plan, asked: &[u8]) -> Result<String, Refusal> {
    let gate = plan.gate.as_ref().ok_or(PlanError::Gate("no gate"))?;
    let rules = Rules::compile(gate)?;
    let asked: Asked = serde_json::from_slice(asked).map_err(PlanError::Json)?;
    if asked.chain.is_empty() {
        return Err(PlanError::Gate("no program to judge").into());
    }
    let chain: Vec<_> = asked
        .chain
        .iter()
        .map(|file| File {
            named: file.named.as_bytes(),
            real: file.real.as_bytes(),
            argument: file.argument.as_ref().map(Text::as_bytes),
        })
        .collect();
    let argv: Vec<_> = asked.argv.iter().map(Text::as_bytes).collect();
    let parent_argv: Vec<_> = asked.parent.iter().flat_map(|parent| parent.argv.iter().map(Text::as_bytes)).collect();
    let granted = Places::of(plan).is_none_or(|places| chain.iter().all(|file| places.hold(file.real)));
    let exec = Exec {
        chain: &chain,
        argv: &argv,
        cwd: asked.cwd.as_bytes(),
        uid: asked.uid,
        parent: asked.parent.as_ref().map(|parent| Parent { exe: parent.exe.as_bytes(), argv: &parent_argv }),
        granted,
        digest: &|index| digest_of(&asked.chain[index].real),
    };
    let verdict = rules.judge(&exec);
    let approved = if verdict.action == Action::Ask { rules.approves(&exec) } else { None };
    Ok(told(&verdict, approved, gate))
}

fn digest_of(path: &Text) -> Result<[u8; 32], String> {
    let unreadable = |why: &dyn std::fmt::Display| format!("{path} can not be read: {why}");
    // A pipe would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path.as_c_str(), flags, Mode::empty()).map_err(|errno| unreadable(&errno))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| unreadable(&errno))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(unreadable(&"it is no file"));
    }
    digest(file, None).map_err(|why| unreadable(&why))
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
            return Err("reading it takes too long".to_owned());
        }
    }
}

fn told(verdict: &Verdict, approved: Option<usize>, gate: &Gate) -> String {
    let (cause, rule, why) = match &verdict.cause {
        Cause::Rule(rule) => ("rule", Some(*rule), None),
        Cause::Default => ("default", None, None),
        Cause::NotGranted => ("not-granted", None, None),
        Cause::Late => ("late", None, None),
        Cause::Error { rule, why } => ("error", Some(*rule), Some(why.as_bytes())),
    };
    let mut out = format!("{{\"action\":\"{}\",\"cause\":\"{cause}\",\"rule\":", verdict.action.name());
    rule_or_null(&mut out, rule.and_then(|index| gate.rules.get(index)));
    out.push_str(",\"error\":");
    text_or_null(&mut out, why);
    out.push_str(",\"doubted\":");
    rule_or_null(&mut out, verdict.doubted.and_then(|index| gate.rules.get(index)));
    out.push_str(",\"approved\":");
    rule_or_null(&mut out, approved.and_then(|index| gate.approved.get(index)));
    out.push('}');
    out
}

fn rule_or_null(out: &mut String, rule: Option<&Rule>) {
    let Some(rule) = rule else { return out.push_str("null") };
    out.push_str("{\"id\":");
    json::string(out, rule.id.as_bytes(), Invalid::Surrogate);
    out.push_str(",\"source\":");
    json::string(out, rule.source.as_bytes(), Invalid::Surrogate);
    out.push_str(",\"reason\":");
    text_or_null(out, rule.reason.as_ref().map(Text::as_bytes));
    out.push('}');
}

fn text_or_null(out: &mut String, text: Option<&[u8]>) {
    match text {
        Some(text) => json::string(out, text, Invalid::Surrogate),
        None => out.push_str("null"),
    }
}

/// The expression for one list of arguments and no other.
#[inline(never)]
pub fn exactly(asked: &[u8]) -> Result<String, Refusal> {
    let argv: Vec<Text> = serde_json::from_slice(asked).map_err(PlanError::Json)?;
    let mut out = String::new();
    json::string(&mut out, words::exactly(argv.iter().map(Text::as_bytes)).as_bytes(), Invalid::Surrogate);
    Ok(out)
}

/// For each of a list of expressions what is wrong with it, or null.
#[inline(never)]
pub fn regexes(asked: &[u8]) -> Result<String, Refusal> {
    let asked: Vec<Text> = serde_json::from_slice(asked).map_err(PlanError::Json)?;
    let mut out = String::new();
    json::list(&mut out, asked, |out, pattern| {
        text_or_null(out, rules::regex(pattern.as_bytes()).err().as_deref().map(str::as_bytes));
    });
    Ok(out)
}
