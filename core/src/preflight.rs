//! Everything that can be prepared, and can fail, before anything is changed: the rules and the filter.

use std::fmt::Write as _;

use landlock::Scope;

use crate::bpf::Instruction;
use crate::event::Enforcement;
use crate::files::{self, Files};
use crate::gate;
use crate::jail::Jail;
use crate::journal::Journal;
use crate::json::{self, Invalid};
use crate::observe;
use crate::plan::{self, Grant, Plan};
use crate::refusal::Refusal;
use crate::rename;
use crate::seccomp::{self, Filter};
use crate::syscalls::Arch;

pub struct Preflight<'p> {
    pub files: Option<Files<'p>>,
    pub filter: Option<Filter>,
    /// Passes calls to the supervisor.
    pub notifying: Option<Vec<Instruction>>,
}

impl<'p> Preflight<'p> {
    /// `journal`: the one that is open already.
    pub fn prepare(plan: &'p Plan, journal: Option<&Journal>) -> Result<Preflight<'p>, Refusal> {
        let files = Files::prepare(plan, journal)?;
        let filter = match &plan.seccomp {
            Some(requested) => {
                Some(Filter::compile(requested, Arch::NATIVE, !keeps_signals_in(plan), plan.gate.is_some())?)
            }
            None => None,
        };
        let mut notified = Vec::new();
        notified.extend(plan.workspace.iter().flat_map(|_| rename::CALLS));
        notified.extend(plan.gate.iter().flat_map(gate::calls));
        notified.extend(observe::calls(plan.tier).filter(|_| plan.observe));
        let notifying = match &notified[..] {
            [] => None,
            names => Some(seccomp::notifying(Arch::NATIVE, names)?),
        };
        Ok(Preflight { files, filter, notifying })
    }

    pub fn requested(&self, plan: &Plan) -> Enforcement {
        let landlock = plan.landlock.as_ref();
        Enforcement {
            landlock_abi: landlock.map_or(0, |landlock| landlock.abi),
            rights: landlock.map_or(0, |landlock| landlock.handled.len()),
            scopes: landlock.map_or(0, |landlock| landlock.scoped.len()),
            paths: plan.files.as_ref().map_or(0, |files| files.grants.len()),
            blocked: self.requested_blocked(plan),
            seccomp: plan.seccomp.is_some(),
            no_new_privs: plan.no_new_privs,
            env_sanitize: plan.environment.is_some(),
        }
    }

    /// Rights and scopes are all or nothing: a kernel that lacks one the plan handles was refused.
    pub fn actual(&self, plan: &Plan) -> Enforcement {
        Enforcement {
            landlock_abi: self.files.as_ref().map_or(0, |files| files.actual_abi),
            paths: self.files.as_ref().map_or(0, |files| files.actual_paths),
            blocked: self.filter.as_ref().map_or(0, |filter| filter.blocked),
            ..self.requested(plan)
        }
    }

    fn requested_blocked(&self, plan: &Plan) -> usize {
        match &plan.seccomp {
            Some(plan::Seccomp { default: plan::Default::Allow, syscalls, .. }) => syscalls.len(),
            _ => self.filter.as_ref().map_or(0, |filter| filter.blocked),
        }
    }

    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.files.iter().flat_map(|files| files.warnings.iter().chain(&files.unenforced))
    }

    pub fn unenforced(&self) -> impl Iterator<Item = &String> {
        self.files.iter().flat_map(|files| &files.unenforced)
    }

    /// JSON for programs: names that are not UTF-8 come back as Python writes them.
    pub fn report(&self) -> String {
        let mut out = String::with_capacity(1024);
        let (rules, skipped, removed, carved) = match &self.files {
            Some(files) => (files.rules, files.skipped.as_slice(), files.removed.as_slice(), files.carved.as_slice()),
            None => (0, &[][..], &[][..], &[][..]),
        };
        let _ = write!(out, "{{\"rules\":{rules},\"skipped\":");
        json::list(&mut out, skipped, |out, grant| {
            grant_fields(out, grant);
            out.push('}');
        });
        out.push_str(",\"removed\":");
        json::list(&mut out, removed, |out, removed| {
            grant_fields(out, removed.grant);
            out.push_str(",\"except\":");
            json::string(out, removed.except.as_bytes(), Invalid::Surrogate);
            out.push('}');
        });
        out.push_str(",\"carved\":");
        json::list(&mut out, carved, |out, carved| {
            grant_fields(out, carved.grant);
            out.push_str(",\"kept_out\":");
            json::strings(out, carved.kept_out.iter().map(|path| path.as_bytes()), Invalid::Surrogate);
            out.push('}');
        });
        let (blocked, absent) = match &self.filter {
            Some(filter) => (filter.blocked, filter.absent.as_slice()),
            None => (0, &[][..]),
        };
        let _ = write!(out, ",\"blocked\":{blocked},\"absent_syscalls\":");
        json::strings(&mut out, absent.iter().map(|name| name.as_bytes()), Invalid::Surrogate);
        out.push_str(",\"warnings\":");
        json::strings(&mut out, self.warnings().map(|warning| warning.as_bytes()), Invalid::Surrogate);
        out.push('}');
        out
    }
}

/// In the landlock tier a kernel that does not is refused, or it was said.
fn keeps_signals_in(plan: &Plan) -> bool {
    let scoped = plan.landlock.as_ref().is_some_and(|landlock| landlock.scoped.contains(Scope::Signal));
    scoped || plan.namespaces.is_none()
}

fn grant_fields(out: &mut String, grant: &Grant) {
    out.push_str("{\"path\":");
    json::string(out, grant.path.as_bytes(), Invalid::Surrogate);
    out.push_str(",\"source\":");
    json::string(out, grant.source().as_bytes(), Invalid::Surrogate);
}

/// The command `preflight`: everything short of running.
pub fn report(plan: &Plan, uid: u32) -> Result<String, Refusal> {
    files::check_journal_way(plan)?;
    let mut preflight = Preflight::prepare(plan, None)?;
    if let (Some(namespaces), Some(container)) = (&plan.namespaces, &plan.container) {
        Jail::prepare(plan, namespaces, container)?;
    }
    if let Some(journal) = &plan.journal
        && Journal::inspect(journal, uid)?
        && let Some(files) = &mut preflight.files
    {
        files.warnings.push(format!("the journal {} lies in memory: a reboot takes it away", journal.dir));
    }
    Ok(preflight.report())
}
