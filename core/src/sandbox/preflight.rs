//! What the plan becomes on this machine: the locations of grants, and what the restrictions
//! enforce. It changes nothing.

use std::fmt::Write as _;

use super::apply_restrictions::Restrictions;
use super::container::ContainerSandbox;
use super::error::SandboxError;
use super::landlock::{self, FileGrants};
use crate::journal::Journal;
use crate::journal::event::{Enforcement, NetworkMechanism};
use crate::network::supervisor::prepare::NetworkSetup;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{self, Grant, NetworkMode, NoticeLevel, Plan, Tier};

pub struct Preflight<'p> {
    pub files: Option<FileGrants<'p>>,
    restrictions: &'p Restrictions,
}

impl<'p> Preflight<'p> {
    /// Adds the rules to the restrictions, and compiles the filters if they depend on the granted
    /// paths. `journal` is the open journal.
    pub fn prepare(
        plan: &'p Plan,
        restrictions: &'p Restrictions,
        journal: Option<&Journal>,
    ) -> Result<Preflight<'p>, SandboxError> {
        let mut files = FileGrants::prepare(plan, restrictions.ruleset(), journal)?;
        if let Some(files) = &mut files {
            restrictions.let_init_read_proc(plan, files, journal)?;
        }
        restrictions.complete(plan, &files.as_ref().map_or_else(Vec::new, FileGrants::sockets))?;
        Ok(Preflight { files, restrictions })
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

    /// Rights and scopes are all or nothing: a kernel without one of them was refused.
    pub fn actual(&self, plan: &Plan) -> Enforcement {
        Enforcement {
            landlock_abi: self.restrictions.actual_abi,
            paths: self.files.as_ref().map_or(0, |files| files.actual_paths),
            blocked: self.restrictions.filter().map_or(0, |filter| filter.blocked),
            ..self.requested(plan)
        }
    }

    pub fn network_by(&self, plan: &Plan) -> NetworkMechanism {
        match (&plan.network, plan.tier) {
            _ if plan.container.is_some() => NetworkMechanism::Namespace,
            (None, _) => NetworkMechanism::None,
            (Some(_), Tier::Full) => NetworkMechanism::Namespace,
            (Some(network), Tier::Landlock) => match network.mode {
                NetworkMode::None => NetworkMechanism::Seccomp,
                NetworkMode::Filtered => NetworkMechanism::SupervisedConnect,
            },
        }
    }

    fn requested_blocked(&self, plan: &Plan) -> usize {
        match &plan.seccomp {
            Some(plan::Seccomp { default: plan::SeccompDefault::Allow, syscalls, .. }) => {
                syscalls.len()
            }
            _ => self.restrictions.filter().map_or(0, |filter| filter.blocked),
        }
    }

    pub fn warnings(&self) -> impl Iterator<Item = &String> {
        self.files.iter().flat_map(|files| files.warnings.iter().chain(&files.unenforced))
    }

    pub fn unenforced(&self) -> impl Iterator<Item = &String> {
        self.files.iter().flat_map(|files| &files.unenforced)
    }

    /// Does this run keep its command from writing outside of its grants? If this machine lacks any
    /// part of the plan, the answer is no: a missing right (truncate) or filter can be enough to
    /// write outside.
    pub fn confines_writes(&self, plan: &Plan) -> bool {
        let mounts = plan.namespaces.is_some() && plan.files.is_some();
        let whole = plan.notices.iter().all(|notice| notice.level != NoticeLevel::Unenforced);
        (mounts || self.restrictions.ruleset().is_some())
            && whole
            && self.unenforced().next().is_none()
    }

    /// As JSON for programs. Names that are not UTF-8 have the form that Python uses.
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
            writer::string(out, removed.except.as_bytes(), NonUtf8::Surrogate);
            out.push('}');
        });
        out.push_str(",\"carved\":");
        writer::list(&mut out, carved, |out, carved| {
            grant_fields(out, carved.grant);
            out.push_str(",\"kept_out\":");
            writer::strings(
                out,
                carved.kept_out.iter().map(|path| path.as_bytes()),
                NonUtf8::Surrogate,
            );
            out.push('}');
        });
        let (blocked, absent) = match self.restrictions.filter() {
            Some(filter) => (filter.blocked, filter.absent.as_slice()),
            None => (0, &[][..]),
        };
        let _ = write!(out, ",\"blocked\":{blocked},\"absent_syscalls\":");
        writer::strings(&mut out, absent.iter().map(|name| name.as_bytes()), NonUtf8::Surrogate);
        out.push_str(",\"warnings\":");
        writer::strings(
            &mut out,
            self.warnings().map(|warning| warning.as_bytes()),
            NonUtf8::Surrogate,
        );
        out.push('}');
        out
    }
}

fn grant_fields(out: &mut String, grant: &Grant) {
    out.push_str("{\"path\":");
    writer::string(out, grant.path.as_bytes(), NonUtf8::Surrogate);
    out.push_str(",\"source\":");
    writer::string(out, grant.source().as_bytes(), NonUtf8::Surrogate);
}

/// The verb `preflight`: everything short of running.
pub fn report(plan: &Plan, uid: u32) -> Result<String, SandboxError> {
    landlock::check_journal_path(plan)?;
    let restrictions = Restrictions::prepare(plan, &[], Vec::new())?;
    let mut preflight = Preflight::prepare(plan, &restrictions, None)?;
    if let (Some(namespaces), Some(container)) = (&plan.namespaces, &plan.container) {
        ContainerSandbox::prepare(plan, namespaces, container)?;
    }
    NetworkSetup::prepare(plan.network.as_ref(), plan.tier, None)?;
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
