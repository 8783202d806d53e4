//! Intercepted shells are executed twice. The program that is mounted over a shell is judged. That
//! program then executes the real shell, which is the same exec going on. No other program may
//! start a real shell.

use super::DecisionReason;
use super::expected_exec::ExpectedExec;
use crate::kernel::resolved_path::Identity;
use crate::plan::Plan;

pub const REAL_SHELL_REASON: &str = "only the intercepted shell may start the real shell";
const MAX_STARTED_SHELLS: usize = 1024;

pub struct InterceptedShells {
    /// The program that is mounted over shells: paddock-core. None: shells are not intercepted.
    over: Option<Identity>,
    /// Allowed so far, the oldest first.
    begun: Vec<StartedShell>,
}

struct StartedShell {
    pid: u32,
    shell: Vec<u8>,
    argv: Vec<u8>,
    decision_reason: DecisionReason,
}

impl InterceptedShells {
    pub fn of(plan: &Plan) -> InterceptedShells {
        let own = plan.shell.as_ref().and_then(|_| rustix::fs::stat(c"/proc/self/exe").ok());
        InterceptedShells { over: own.as_ref().map(Identity::from), begun: Vec::new() }
    }

    /// Notes an allowed exec.
    pub fn note(&mut self, expected: &ExpectedExec, decision_reason: &DecisionReason) {
        let Some(link) = expected.chain.last().filter(|link| Some(link.identity) == self.over)
        else {
            return;
        };
        self.begun.retain(|begun| begun.pid != expected.pid);
        if self.begun.len() == MAX_STARTED_SHELLS {
            self.begun.remove(0);
        }
        let (shell, argv) = (link.real.clone(), expected.final_argv().to_vec());
        self.begun.push(StartedShell {
            pid: expected.pid,
            shell,
            argv,
            decision_reason: decision_reason.clone(),
        });
    }

    /// The earlier decision for a real shell: the same process with the same arguments.
    pub fn continued(&mut self, expected: &ExpectedExec) -> Option<DecisionReason> {
        let [real] = &expected.chain[..] else { return None };
        let same = |begun: &StartedShell| {
            begun.pid == expected.pid
                && begun.shell == real.real
                && begun.argv == expected.final_argv()
        };
        let found = self.begun.iter().position(same)?;
        Some(self.begun.swap_remove(found).decision_reason)
    }
}
