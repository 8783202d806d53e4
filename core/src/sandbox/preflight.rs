//! What became of the plan on this machine: what lies where, and what the fence holds. Nothing is
//! changed by it.

use std::fmt::Write as _;

use super::container::Jail;
use super::enter::Fence;
use super::error::SandboxError;
use super::landlock::{self, Files};
use crate::journal::Journal;
use crate::journal::event::Enforcement;
use crate::network::supervisor::prepare::Outside;
use crate::plan::wire::writer::{self, Invalid};
use crate::plan::{self, Grant, Level, Plan};

pub struct Preflight<'p> {
    pub files: Option<Files<'p>>,
    fence: &'p Fence,
}

impl<'p> Preflight<'p> {
    /// Adds the rules to the fence, and its filters where they wait for what lies where. `journal`:
    /// the one that is open already.
    pub fn prepare(
        plan: &'p Plan,
        fence: &'p Fence,
        journal: Option<&Journal>,
    ) -> Result<Preflight<'p>, SandboxError> {
        let files = Files::prepare(plan, fence.ruleset(), journal)?;
        fence.complete(plan, &files.as_ref().map_or_else(Vec::new, Files::sockets))?;
        Ok(Preflight { files, fence })
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
            network: plan.network.as_ref().map(|network| network.mode),
        }
    }

    /// Rights and scopes are all or nothing: a kernel that lacks one the plan handles was refused.
    pub fn actual(&self, plan: &Plan) -> Enforcement {
        Enforcement {
            landlock_abi: self.fence.actual_abi,
            paths: self.files.as_ref().map_or(0, |files| files.actual_paths),
            blocked: self.fence.filter().map_or(0, |filter| filter.blocked),
            ..self.requested(plan)
        }
    }

    fn requested_blocked(&self, plan: &Plan) -> usize {
        match &plan.seccomp {
            Some(plan::Seccomp { default: plan::Default::Allow, syscalls, .. }) => syscalls.len(),
            _ => self.fence.filter().map_or(0, |filter| filter.blocked),
        }
    }

    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.files.iter().flat_map(|files| files.warnings.iter().chain(&files.unenforced))
    }

    pub fn unenforced(&self) -> impl Iterator<Item = &String> {
        self.files.iter().flat_map(|files| &files.unenforced)
    }

    /// Whether this very run keeps its command from writing what the plan does not grant. Anything
    /// that the plan asks for and this machine lacks makes the answer no: a missing right
    /// (truncate) or filter can be enough to write outside.
    pub fn confines_writes(&self, plan: &Plan) -> bool {
        let mounts = plan.namespaces.is_some() && plan.files.is_some();
        let whole = plan.notices.iter().all(|notice| notice.level != Level::Unenforced);
        (mounts || self.fence.ruleset().is_some()) && whole && self.unenforced().next().is_none()
    }

    /// JSON for programs: names that are not UTF-8 come back as Python writes them.
    pub fn report(&self) -> String {
        let mut out = String::with_capacity(1024);
        let (rules, skipped, removed, carved) = match &self.files {
            Some(files) => (
                files.rules,
                files.skipped.as_slice(),
                files.removed.as_slice(),
                files.carved.as_slice(),
            ),
            None => (0, &[][..], &[][..], &[][..]),
        };
        let _ = write!(out, "{{\"rules\":{rules},\"skipped\":");
        writer::list(&mut out, skipped, |out, grant| {
            grant_fields(out, grant);
            out.push('}');
        });
        out.push_str(",\"removed\":");
        writer::list(&mut out, removed, |out, removed| {
            grant_fields(out, removed.grant);
            out.push_str(",\"except\":");
            writer::string(out, removed.except.as_bytes(), Invalid::Surrogate);
            out.push('}');
        });
        out.push_str(",\"carved\":");
        writer::list(&mut out, carved, |out, carved| {
            grant_fields(out, carved.grant);
            out.push_str(",\"kept_out\":");
            writer::strings(
                out,
                carved.kept_out.iter().map(|path| path.as_bytes()),
                Invalid::Surrogate,
            );
            out.push('}');
        });
        let (blocked, absent) = match self.fence.filter() {
            Some(filter) => (filter.blocked, filter.absent.as_slice()),
            None => (0, &[][..]),
        };
        let _ = write!(out, ",\"blocked\":{blocked},\"absent_syscalls\":");
        writer::strings(&mut out, absent.iter().map(|name| name.as_bytes()), Invalid::Surrogate);
        out.push_str(",\"warnings\":");
        writer::strings(
            &mut out,
            self.warnings().map(|warning| warning.as_bytes()),
            Invalid::Surrogate,
        );
        out.push('}');
        out
    }
}

fn grant_fields(out: &mut String, grant: &Grant) {
    out.push_str("{\"path\":");
    writer::string(out, grant.path.as_bytes(), Invalid::Surrogate);
    out.push_str(",\"source\":");
    writer::string(out, grant.source().as_bytes(), Invalid::Surrogate);
}

/// The command `preflight`: everything short of running.
pub fn report(plan: &Plan, uid: u32) -> Result<String, SandboxError> {
    landlock::check_journal_way(plan)?;
    let fence = Fence::prepare(plan, &[], Vec::new())?;
    let mut preflight = Preflight::prepare(plan, &fence, None)?;
    if let (Some(namespaces), Some(container)) = (&plan.namespaces, &plan.container) {
        Jail::prepare(plan, namespaces, container)?;
    }
    Outside::prepare(plan.network.as_ref(), plan.tier, None)?;
    if let Some(journal) = &plan.journal
        && Journal::inspect(journal, uid)?
        && let Some(files) = &mut preflight.files
    {
        files
            .warnings
            .push(format!("the journal {} is in memory: a reboot removes it", journal.dir));
    }
    Ok(preflight.report())
}
