//! The further restrictions of shells, inside the sandbox of the run.

use serde::Deserialize;

use super::wire::bytes::Text;
use super::{NetworkMode, Plan, PlanError, Tier};

/// The file name of this program.
pub const CORE_NAME: &[u8] = b"paddock-core";

/// The directory of the real shells of a run: this prefix in `/dev`, then twelve digits.
pub const REAL_SHELLS_PREFIX: &[u8] = b"/dev/.shells_";
pub const REAL_SHELLS_DIGITS: usize = 12;

/// The original path of a real shell, if `path` lies in that directory. Neither the command nor an
/// ordinary user outside can create a name in /dev.
pub fn original_shell(path: &[u8]) -> Option<&[u8]> {
    let (digits, rest) =
        path.strip_prefix(REAL_SHELLS_PREFIX)?.split_at_checked(REAL_SHELLS_DIGITS)?;
    (digits.iter().all(u8::is_ascii_hexdigit) && rest.starts_with(b"/")).then_some(rest)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shell {
    pub on_failure: OnFailure,
    /// A complete plan, as text. If it can not be read, `on_failure` must still be known.
    pub plan: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    Closed,
    /// A login shell starts without the restrictions.
    Open,
}

impl OnFailure {
    pub fn name(self) -> &'static str {
        match self {
            OnFailure::Closed => "closed",
            OnFailure::Open => "open",
        }
    }
}

impl Shell {
    pub fn check_in(&self, whole: &Plan) -> Result<(), PlanError> {
        if whole.tier != Tier::Full || whole.container.is_some() {
            return Err(PlanError::Shell("no namespaces, which intercepted shells need"));
        }
        Shell::read(&self.plan, whole.user.uid).map(drop)
    }

    /// Reads the plan of the shells. It may only contain what a process can apply to itself without
    /// a supervisor.
    pub fn read(text: &Text, uid: u32) -> Result<Box<Plan>, PlanError> {
        let plan = Plan::parse(text.as_bytes(), uid)
            .map_err(|error| PlanError::ShellPlan(Box::new(error)))?;
        let supervised =
            plan.journal.is_some() || plan.temp.is_some() || plan.gate.is_some() || plan.observe;
        let elsewhere =
            plan.namespaces.is_some() || plan.workspace.is_some() || plan.container.is_some();
        let connected =
            plan.network.as_ref().is_some_and(|network| network.mode != NetworkMode::None);
        match () {
            () if plan.tier != Tier::Landlock || elsewhere => {
                Err(PlanError::Shell("namespaces of their own"))
            }
            () if supervised || connected => {
                Err(PlanError::Shell("a part that needs a supervisor"))
            }
            () if plan.landlock.is_none() || plan.seccomp.is_none() => {
                Err(PlanError::Shell("a layer missing"))
            }
            () if plan.shell.is_some() => Err(PlanError::Shell("shells of their own")),
            () => Ok(plan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_shell_is_recognised_by_its_path() {
        assert_eq!(
            original_shell(b"/dev/.shells_0123456789ab/usr/bin/bash"),
            Some(&b"/usr/bin/bash"[..])
        );
        for other in [
            &b"/dev/.shells_0123456789ab"[..],
            b"/dev/.shells_0123456789abc/bin/sh",
            b"/dev/.shells_0123456789xy/bin/sh",
            b"/dev/.shells_",
            b"/tmp/dev/.shells_0123456789ab/bin/sh",
            b"/usr/bin/bash",
        ] {
            assert_eq!(original_shell(other), None, "{}", String::from_utf8_lossy(other));
        }
    }
}
