//! Closing the fence around the calling process. Everything is prepared before; entering only makes
//! system calls, so it can happen in a process that shares its parent's memory.

use std::cell::OnceCell;
use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ::landlock::Scope;
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::SecureComputingMode;

use super::capabilities::{Privileges, Service};
use super::error::SandboxError;
use super::init_channel::{self, InitMessage};
use super::landlock;
use super::seccomp::{self, Filter};
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys::{self, Instruction, SignalMask};
use crate::network::{NetworkError, supervised_connect};
use crate::plan::syscalls::Arch;
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{Plan, Tier};

pub struct Fence {
    /// None: as an ordinary user we have nothing to give up.
    privileges: Option<Privileges>,
    no_new_privs: bool,
    rlimits: Vec<(Resource, u64)>,
    /// Empty until what lies where was looked at: [`landlock::Files`] adds the rules.
    ruleset: Option<OwnedFd>,
    /// Of this kernel's Landlock; 0 where it is not asked for.
    pub actual_abi: i32,
    /// None: the command starts where we stand.
    workdir: Option<CString>,
    answered: Vec<&'static str>,
    /// Without namespaces they depend on what lies where.
    filters: OnceCell<Filters>,
    /// Answers whoever asks whether he is inside, for a fence that is closed once more by each
    /// shell.
    mark: Option<Vec<Instruction>>,
    /// Descriptors above 2 that the command gets, in ascending order.
    kept: Vec<u32>,
}

struct Filters {
    /// For calls that the supervisor answers.
    notifying: Option<Vec<Instruction>>,
    filter: Option<Filter>,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    FollowParent,
    Limits,
    Privileges,
    NoNewPrivs,
    Rlimit,
    Landlock,
    Workdir,
    Descriptors,
    Seccomp,
    Listener,
    Confirm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .step.what(), crate::kernel::errno_names::errno_text(*.errno))]
pub struct FenceError {
    pub step: Step,
    pub errno: Errno,
}

impl FenceError {
    /// The answer of a call that the sandbox itself is made of.
    pub fn of_a_mechanism(self) -> Option<Errno> {
        matches!(self.step, Step::NoNewPrivs | Step::Landlock | Step::Seccomp).then_some(self.errno)
    }

    /// As one number that is not 0, for a process that can say no more than that.
    pub fn code(self) -> i64 {
        (1 + self.step as i64) << 32 | i64::from(self.errno.raw_os_error())
    }

    /// None: it is no such number.
    pub fn of_code(code: i64) -> Option<FenceError> {
        let step = *Step::ALL.get(usize::try_from((code >> 32) - 1).ok()?)?;
        Some(FenceError { step, errno: Errno::from_raw_os_error(code as i32) })
    }
}

impl Step {
    const ALL: [Step; 11] = [
        Step::FollowParent,
        Step::Limits,
        Step::Privileges,
        Step::NoNewPrivs,
        Step::Rlimit,
        Step::Landlock,
        Step::Workdir,
        Step::Descriptors,
        Step::Seccomp,
        Step::Listener,
        Step::Confirm,
    ];

    fn what(self) -> &'static str {
        match self {
            Step::FollowParent => "cannot tie the command to its supervisor",
            Step::Limits => "cannot apply the limits to the command",
            Step::Privileges => {
                "cannot drop the user, the groups or the capabilities of the namespace"
            }
            Step::NoNewPrivs => "cannot set no_new_privs",
            Step::Rlimit => "cannot set a resource limit",
            Step::Landlock => "cannot enforce the Landlock rules",
            Step::Workdir => "cannot enter the working directory",
            Step::Descriptors => "cannot close open descriptors for the command",
            Step::Seccomp => "cannot install the system call filter",
            Step::Listener => {
                "the supervisor cannot intercept system calls, which exec rules and copies of the \
                    workspace need"
            }
            Step::Confirm => "the kernel does not confirm no_new_privs and the system call filter",
        }
    }

    pub fn hint(self) -> &'static str {
        match self {
            Step::Listener => {
                "the kernel allows this for one program only: run this command outside the other \
                    sandbox"
            }
            Step::Workdir => {
                "the directory was removed, or you may not enter it: start in another directory"
            }
            _ => "type `paddock doctor` to test every mechanism on this machine",
        }
    }
}

impl Fence {
    /// `answered`: calls that the supervisor answers for this plan, besides those of sockets.
    pub fn prepare(
        plan: &Plan,
        limits: &[(Resource, u64)],
        answered: Vec<&'static str>,
    ) -> Result<Fence, SandboxError> {
        let (ruleset, actual_abi) = match (&plan.files, &plan.landlock) {
            (Some(_), Some(landlock)) => landlock::create_ruleset(plan, landlock)
                .map(|(ruleset, abi)| (Some(ruleset), abi))?,
            _ => (None, 0),
        };
        let fence = Fence {
            privileges: privileges(plan),
            no_new_privs: plan.no_new_privs,
            rlimits: [&plan.rlimits[..], limits].concat(),
            ruleset,
            actual_abi,
            // A new root is entered at its top; the directory we came from belongs to the old one.
            workdir: (plan.workdir != plan.cwd || plan.tier == Tier::Full)
                .then(|| plan.workdir.as_c_str().into_owned()),
            answered,
            filters: OnceCell::new(),
            mark: None,
            kept: Vec::new(),
        };
        if plan.tier == Tier::Full {
            fence.complete(plan, &[])?;
        }
        Ok(fence)
    }

    /// Its filters, if it has none yet. `sockets`: socket files that grants name.
    pub fn complete(
        &self,
        plan: &Plan,
        sockets: &[(AbsPath, Identity)],
    ) -> Result<(), SandboxError> {
        if self.filters.get().is_some() {
            return Ok(());
        }
        let reach = supervised_connect::reach_of(plan, sockets);
        let filter = match &plan.seccomp {
            Some(requested) => {
                let (shared_group, gated) = (!keeps_signals_in(plan), plan.gate.is_some());
                Some(Filter::compile(requested, Arch::NATIVE, shared_group, gated, reach)?)
            }
            None => None,
        };
        let mut notified = Vec::new();
        notified.extend(supervised_connect::calls(reach));
        if !notified.is_empty() {
            supervised_connect::check().map_err(NetworkError::SupervisedConnect)?;
        }
        notified.extend(&self.answered);
        let notifying = match &notified[..] {
            [] => None,
            names => Some(seccomp::notifying(Arch::NATIVE, names)?),
        };
        let _ = self.filters.set(Filters { notifying, filter });
        Ok(())
    }

    /// For a shell: known from inside by its mark, and with these descriptors left open.
    pub fn marked(self, mark: Vec<Instruction>, kept: Vec<u32>) -> Fence {
        Fence { mark: Some(mark), kept, ..self }
    }

    /// For somebody who only tries a call: nobody would answer for it, and a list that refuses the
    /// call itself tells nothing of the file.
    pub fn without_answers_to(mut self, plan: &Plan, call: &str) -> Result<Fence, SandboxError> {
        self.complete(plan, &[])?;
        let filter = self.filters.take().and_then(|filters| filters.filter);
        let filter = filter.filter(|filter| !filter.refuses(call));
        self.filters = OnceCell::from(Filters { notifying: None, filter });
        Ok(self)
    }

    pub fn filter(&self) -> Option<&Filter> {
        self.filters.get()?.filter.as_ref()
    }

    pub fn ruleset(&self) -> Option<BorrowedFd<'_>> {
        self.ruleset.as_ref().map(|ruleset| ruleset.as_fd())
    }

    /// Are there calls that the supervisor answers?
    pub fn listens(&self) -> bool {
        self.filters.get().is_some_and(|filters| filters.notifying.is_some())
    }

    /// Before a process of ours becomes the command: what that one inherits.
    pub fn bound(&self) -> Result<(), FenceError> {
        let bounded = self.privileges.map_or(Ok(()), Privileges::bound);
        bounded.map_err(|errno| FenceError { step: Step::Privileges, errno })
    }

    /// After this returned Ok, the process is inside. The order is the promise. `supervisor` is
    /// told where calls arrive that he answers; without one nothing may be inside that he would
    /// have to answer.
    pub fn enter(&self, supervisor: Option<BorrowedFd<'_>>) -> Result<(), FenceError> {
        let at = |step| move |errno| FenceError { step, errno };
        self.confine()?;
        // Landlock does not judge chdir; the directory needs no grant to be stood in.
        if let Some(workdir) = &self.workdir {
            rustix::process::chdir(workdir.as_c_str()).map_err(at(Step::Workdir))?;
        }
        // Whatever we inherited or opened: the journal, the ruleset, a caller's leftovers.
        sys::close_on_exec_but(3, &self.kept).map_err(at(Step::Descriptors))?;
        // The filters come last, because they may refuse any of the calls above; and the one that
        // asks before the one that refuses, which could keep us from saying whom to ask.
        let unfinished = FenceError { step: Step::Seccomp, errno: Errno::NOSYS };
        let Filters { notifying, filter } = self.filters.get().ok_or(unfinished)?;
        if let Some(program) = notifying {
            let listener = sys::seccomp_listener(program).map_err(at(Step::Listener))?;
            let supervisor =
                supervisor.ok_or(FenceError { step: Step::Listener, errno: Errno::NOTCONN })?;
            init_channel::send(supervisor, &InitMessage::Listening, &[listener.as_fd()])
                .map_err(at(Step::Listener))?;
        }
        if let Some(mark) = &self.mark {
            sys::seccomp_install(mark).map_err(at(Step::Seccomp))?;
        }
        let Some(filter) = filter else { return Ok(()) };
        sys::seccomp_install(&filter.program).map_err(at(Step::Seccomp))?;
        let confirmed = match rustix::thread::secure_computing_mode() {
            Ok(mode) => mode == SecureComputingMode::Filter,
            // The filter refuses the question, which it could not if it were not there.
            Err(_) => filter.refuses("prctl"),
        };
        if confirmed { Ok(()) } else { Err(FenceError { step: Step::Confirm, errno: Errno::PERM }) }
    }

    /// All but the filter: the process may do what the command may, and no more.
    pub fn confine(&self) -> Result<(), FenceError> {
        let at = |step| move |errno| FenceError { step, errno };
        for (resource, value) in &self.rlimits {
            // At least as tight as asked: an ordinary user can not raise the hard limit.
            let hard = rustix::process::getrlimit(*resource)
                .maximum
                .map_or(*value, |hard| hard.min(*value));
            let limit = Rlimit { current: Some(hard), maximum: Some(hard) };
            rustix::process::setrlimit(*resource, limit).map_err(at(Step::Rlimit))?;
        }
        if let Some(privileges) = self.privileges {
            privileges.shed().map_err(at(Step::Privileges))?;
        }
        // An ordinary user may use Landlock and seccomp only after giving up on gaining privileges
        // by exec.
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true).map_err(at(Step::NoNewPrivs))?;
            if rustix::thread::no_new_privs() != Ok(true) {
                return Err(FenceError { step: Step::Confirm, errno: Errno::PERM });
            }
        }
        if let Some(ruleset) = &self.ruleset {
            sys::landlock_restrict_self(ruleset.as_fd()).map_err(at(Step::Landlock))?;
        }
        Ok(())
    }
}

/// In the landlock tier a kernel that does not is refused, or it was said.
fn keeps_signals_in(plan: &Plan) -> bool {
    let scoped =
        plan.landlock.as_ref().is_some_and(|landlock| landlock.scoped.contains(Scope::Signal));
    scoped || plan.namespaces.is_none()
}

fn privileges(plan: &Plan) -> Option<Privileges> {
    match &plan.container {
        Some(container) => {
            let clears_groups = container.clears_groups(plan.user.uid);
            let service = Service { uid: container.uid, gid: container.gid, clears_groups };
            Some(Privileges { kept: container.capabilities, service: Some(service) })
        }
        None => (plan.tier == Tier::Full).then_some(Privileges::NONE),
    }
}

/// What the command inherits from the core besides the fence: ordinary signals, and death with the
/// supervisor.
pub fn become_command(
    supervisor: Option<Pid>,
    mask: Option<&SignalMask>,
) -> Result<(), FenceError> {
    if let Some(supervisor) = supervisor {
        let failed = |errno| FenceError { step: Step::FollowParent, errno };
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
        // It may have died before the line above.
        if rustix::process::getppid() != Some(supervisor) {
            return Err(failed(Errno::SRCH));
        }
    }
    // Python, which started us, ignores these two for itself; a command expects their default.
    sys::reset_signal(libc::SIGPIPE);
    sys::reset_signal(libc::SIGXFSZ);
    if let Some(mask) = mask {
        sys::release_signals(mask);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_number_and_back() {
        for step in Step::ALL {
            let error = FenceError { step, errno: Errno::ACCESS };
            assert_eq!(FenceError::of_code(error.code()), Some(error));
        }
        for other in [0, i64::from(libc::EACCES), 12 << 32, i64::MIN] {
            assert_eq!(FenceError::of_code(other), None, "{other}");
        }
    }
}
