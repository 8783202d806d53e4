//! Shells that are intercepted are executed twice: the program that lies over one, which is judged,
//! and by that the real one, which is the same exec going on. Nobody else starts a real one.

use super::Decision;
use super::expected_exec::Expected;
use crate::kernel::resolved_path::Identity;
use crate::plan::Plan;

pub const PAST: &str = "only the intercepted shell may start the real shell";
const MOST: usize = 1024;

pub struct Shells {
    /// What lies over shells: this program. None: they are as any other.
    over: Option<Identity>,
    /// Let through so far; the oldest first.
    begun: Vec<Begun>,
}

struct Begun {
    pid: u32,
    shell: Vec<u8>,
    argv: Vec<u8>,
    decision: Decision,
}

impl Shells {
    pub fn of(plan: &Plan) -> Shells {
        let own = plan.shell.as_ref().and_then(|_| rustix::fs::stat(c"/proc/self/exe").ok());
        Shells { over: own.as_ref().map(Identity::from), begun: Vec::new() }
    }

    /// An exec is let through.
    pub fn note(&mut self, expected: &Expected, decision: &Decision) {
        let Some(link) = expected.chain.last().filter(|link| Some(link.identity) == self.over)
        else {
            return;
        };
        self.begun.retain(|begun| begun.pid != expected.pid);
        if self.begun.len() == MOST {
            self.begun.remove(0);
        }
        let (shell, argv) = (link.real.clone(), expected.final_argv().to_vec());
        self.begun.push(Begun { pid: expected.pid, shell, argv, decision: decision.clone() });
    }

    /// Of a real shell: as it was let through to this process before, with the same arguments.
    pub fn continued(&mut self, expected: &Expected) -> Option<Decision> {
        let [real] = &expected.chain[..] else { return None };
        let same = |begun: &Begun| {
            begun.pid == expected.pid
                && begun.shell == real.real
                && begun.argv == expected.final_argv()
        };
        let found = self.begun.iter().position(same)?;
        Some(self.begun.swap_remove(found).decision)
    }
}
