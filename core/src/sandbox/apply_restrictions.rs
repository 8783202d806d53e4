//! Applies all restrictions to the calling process. Everything is prepared before. To enter only
//! makes system calls, so it works in a process that shares its parent's memory.

use std::cell::{Cell, OnceCell};
use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use ::landlock::Scope;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use rustix::thread::SecureComputingMode;

use super::capabilities::{Privileges, ServiceUser};
use super::error::SandboxError;
use super::init_channel::{self, InitMessage};
use super::landlock::{self, FileGrants};
use super::seccomp::{self, Filter, SentCalls};
use crate::files::writes;
use crate::journal::Journal;
use crate::kernel::resolved_path::Identity;
use crate::kernel::sys::{self, Instruction, SignalMask};
use crate::network::{NetworkError, supervised_connect};
use crate::plan::syscalls::Arch;
use crate::plan::wire::bytes::AbsPath;
use crate::plan::{Plan, Tier};

pub struct Restrictions {
    /// None: an ordinary user has no capability to drop.
    privileges: Option<Privileges>,
    no_new_privs: bool,
    rlimits: Vec<(Resource, u64)>,
    /// Empty until [`landlock::FileGrants`] adds the rules.
    ruleset: Option<OwnedFd>,
    /// The command's own Landlock layer, if init has the rules already: it only keeps the command's
    /// signals from init.
    inner_ruleset: Option<OwnedFd>,
    /// The rules of init, if they differ: they allow reading /proc too. Then the command's own layer
    /// has all rules of the plan.
    init_ruleset: OnceCell<OwnedFd>,
    /// Does init judge the writes of the command?
    judges_writes: bool,
    /// This process has the rules already, and its children inherit them.
    is_confined: Cell<bool>,
    /// The Landlock ABI of this kernel; 0 if the plan does not use it.
    pub actual_abi: i32,
    /// None: the command starts in the working directory of this process.
    workdir: Option<CString>,
    answered: Vec<&'static str>,
    /// Without namespaces the filters depend on the granted paths.
    filters: OnceCell<Filters>,
    /// A filter that tells a process that it is inside, for shells that would enter again.
    mark: Option<Vec<Instruction>>,
    /// Descriptors above 2 that the command gets, in ascending order.
    kept: Vec<u32>,
}

struct Filters {
    /// Sends calls to the supervisor.
    notifying: Option<Vec<Instruction>>,
    filter: Option<Filter>,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnterStep {
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
    ReadProc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .step.what(), crate::kernel::errno_names::errno_text(*.errno))]
pub struct EnterError {
    pub step: EnterStep,
    pub errno: Errno,
}

impl EnterError {
    /// The errno of a system call that builds the sandbox itself.
    pub fn of_a_mechanism(self) -> Option<Errno> {
        use EnterStep::{Landlock, Listener, NoNewPrivs, Seccomp};
        matches!(self.step, NoNewPrivs | Landlock | Listener | Seccomp).then_some(self.errno)
    }

    /// As one number that is not 0, for a process that can report no more than that.
    pub fn code(self) -> i64 {
        (1 + self.step as i64) << 32 | i64::from(self.errno.raw_os_error())
    }

    /// None: the number is no error code of this kind.
    pub fn of_code(code: i64) -> Option<EnterError> {
        let step = *EnterStep::ALL.get(usize::try_from((code >> 32) - 1).ok()?)?;
        Some(EnterError { step, errno: Errno::from_raw_os_error(code as i32) })
    }
}

impl EnterStep {
    const ALL: [EnterStep; 12] = [
        EnterStep::FollowParent,
        EnterStep::Limits,
        EnterStep::Privileges,
        EnterStep::NoNewPrivs,
        EnterStep::Rlimit,
        EnterStep::Landlock,
        EnterStep::Workdir,
        EnterStep::Descriptors,
        EnterStep::Seccomp,
        EnterStep::Listener,
        EnterStep::Confirm,
        EnterStep::ReadProc,
    ];

    fn what(self) -> &'static str {
        match self {
            EnterStep::FollowParent => "cannot tie the command to its supervisor",
            EnterStep::Limits => "cannot apply the limits to the command",
            EnterStep::Privileges => {
                "cannot drop the user, the groups or the capabilities of the namespace"
            }
            EnterStep::NoNewPrivs => "cannot set no_new_privs",
            EnterStep::Rlimit => "cannot set a resource limit",
            EnterStep::Landlock => "cannot enforce the Landlock rules",
            EnterStep::Workdir => "cannot enter the working directory",
            EnterStep::Descriptors => "cannot close open descriptors for the command",
            EnterStep::Seccomp => "cannot install the system call filter",
            EnterStep::Listener => {
                "the supervisor cannot intercept system calls, which exec rules, protected names \
                    and copies of the workspace need"
            }
            EnterStep::Confirm => {
                "the kernel does not confirm no_new_privs and the system call filter"
            }
            EnterStep::ReadProc => {
                "cannot read /proc, which protected names need in the landlock tier"
            }
        }
    }

    pub fn hint(self) -> &'static str {
        match self {
            EnterStep::Listener => {
                "the kernel allows this for one program only: run this command outside the other \
                    sandbox"
            }
            EnterStep::Workdir => {
                "the directory was removed, or you may not enter it: start in another directory"
            }
            EnterStep::ReadProc => "if another sandbox denies it, run this command outside of it",
            _ => "type `paddock doctor` to test every mechanism on this machine",
        }
    }
}

impl Restrictions {
    /// `answered`: calls that the supervisor answers for this plan, besides those on sockets.
    pub fn prepare(
        plan: &Plan,
        limits: &[(Resource, u64)],
        answered: Vec<&'static str>,
    ) -> Result<Restrictions, SandboxError> {
        let (ruleset, actual_abi) = match (&plan.files, &plan.landlock) {
            (Some(_), Some(landlock)) => landlock::create_ruleset(plan, landlock)
                .map(|(ruleset, abi)| (Some(ruleset), abi))?,
            _ => (None, 0),
        };
        let judges_writes = writes::are_judged(plan);
        let inner_ruleset = match &plan.landlock {
            Some(landlock) if judges_writes => {
                landlock::create_inner_ruleset(landlock, actual_abi)?
            }
            _ => None,
        };
        let restrictions = Restrictions {
            inner_ruleset,
            init_ruleset: OnceCell::new(),
            judges_writes,
            is_confined: Cell::new(false),
            privileges: privileges(plan),
            no_new_privs: plan.no_new_privs,
            rlimits: [&plan.rlimits[..], limits].concat(),
            ruleset,
            actual_abi,
            // A new root is entered at its top: the old working directory belongs to the old root.
            workdir: (plan.workdir != plan.cwd || plan.tier == Tier::Full)
                .then(|| plan.workdir.as_c_str().into_owned()),
            answered,
            filters: OnceCell::new(),
            mark: None,
            kept: Vec::new(),
        };
        if plan.tier == Tier::Full {
            restrictions.complete(plan, &[])?;
            if let Some(requested) = plan.landlock.as_ref().filter(|_| judges_writes)
                && !landlock::grants_reading_proc(plan, requested)
            {
                let (ruleset, _) = landlock::create_ruleset(plan, requested)?;
                let _ = restrictions.init_ruleset.set(ruleset);
            }
        }
        Ok(restrictions)
    }

    /// Init reads the state of each caller in /proc. If the rules do not allow that, init gets rules
    /// of its own.
    pub fn let_init_read_proc<'p>(
        &'p self,
        plan: &'p Plan,
        files: &mut FileGrants<'p>,
        journal: Option<&Journal>,
    ) -> Result<(), SandboxError> {
        let Some(requested) = plan.landlock.as_ref().filter(|_| self.judges_writes) else {
            return Ok(());
        };
        if plan.tier == Tier::Full {
            // Init has its own /proc, and adds the rule for it.
            if let Some(ruleset) = self.init_ruleset.get() {
                FileGrants::prepare(plan, Some(ruleset.as_fd()), journal)?;
            }
            return Ok(());
        }
        if files.allow_reading_proc(plan)? {
            return Ok(());
        }
        let (ruleset, _) = landlock::create_ruleset(plan, requested)?;
        let ruleset = self.init_ruleset.get_or_init(|| ruleset);
        FileGrants::prepare(plan, Some(ruleset.as_fd()), journal)?;
        files.add_init_rules(ruleset.as_fd(), requested)?;
        Ok(())
    }

    /// The rules of the plan, if init has more rights.
    pub fn rules_beyond_init(&self) -> Option<BorrowedFd<'_>> {
        self.init_ruleset.get().and(self.ruleset())
    }

    /// Compiles the filters, if that was not done. `sockets`: socket files that grants name.
    pub fn complete(
        &self,
        plan: &Plan,
        sockets: &[(AbsPath, Identity)],
    ) -> Result<(), SandboxError> {
        if self.filters.get().is_some() {
            return Ok(());
        }
        let socket_access = supervised_connect::socket_access(plan, sockets);
        let filter = match &plan.seccomp {
            Some(requested) => {
                let (shared_group, gated) = (!keeps_signals_in(plan), plan.gate.is_some());
                let judged = self.judges_writes;
                Some(Filter::compile(
                    requested,
                    Arch::NATIVE,
                    shared_group,
                    gated,
                    judged,
                    socket_access,
                )?)
            }
            None => None,
        };
        let mut notified = Vec::new();
        notified.extend(supervised_connect::calls(socket_access));
        if !notified.is_empty() {
            supervised_connect::check().map_err(NetworkError::SupervisedConnect)?;
        }
        notified.extend(&self.answered);
        let notifying = match &notified[..] {
            [] => None,
            names => Some(seccomp::notifying(Arch::NATIVE, names, sent_calls(plan))?),
        };
        let _ = self.filters.set(Filters { notifying, filter });
        Ok(())
    }

    /// For a shell: adds the mark that the shell is inside, and keeps these descriptors open.
    pub fn marked(self, mark: Vec<Instruction>, kept: Vec<u32>) -> Restrictions {
        Restrictions { mark: Some(mark), kept, ..self }
    }

    /// For a plan without files: keeps the signals and abstract sockets that the plan names inside.
    pub fn with_scopes(mut self, plan: &Plan) -> Result<Restrictions, SandboxError> {
        if let Some(requested) = &plan.landlock {
            self.ruleset = landlock::create_inner_ruleset(requested, requested.abi)?;
        }
        Ok(self)
    }

    /// For the verb `attempt`: no supervisor answers, and a filter that refuses the call itself
    /// would say nothing about the file.
    pub fn without_answers_to(
        mut self,
        plan: &Plan,
        call: &str,
    ) -> Result<Restrictions, SandboxError> {
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

    /// The rules of the plan, and those of init if they differ.
    pub fn rulesets(&self) -> Vec<BorrowedFd<'_>> {
        self.ruleset.iter().chain(self.init_ruleset.get()).map(|ruleset| ruleset.as_fd()).collect()
    }

    /// In the full tier: lets init read the state of each caller in its /proc.
    pub fn let_init_read(&self, plan: &Plan, proc: BorrowedFd<'_>) -> Result<(), Errno> {
        match (self.init_ruleset.get(), &plan.landlock) {
            (Some(ruleset), Some(requested)) => {
                landlock::allow_reading(ruleset.as_fd(), requested, proc)
            }
            _ => Ok(()),
        }
    }

    /// Does init judge the writes of the command?
    pub fn judges_writes(&self) -> bool {
        self.judges_writes
    }

    /// Does the supervisor answer calls?
    pub fn listens(&self) -> bool {
        self.filters.get().is_some_and(|filters| filters.notifying.is_some())
    }

    /// Does another process answer the exec of the command? That process reads the memory of the
    /// command.
    pub fn has_exec_answered(&self) -> bool {
        self.listens() && self.answered.contains(&"execve")
    }

    /// The number of filters that the command gets.
    pub fn filter_count(&self) -> u64 {
        let count = |filters: &Filters| {
            u64::from(filters.notifying.is_some()) + u64::from(filters.filter.is_some())
        };
        self.filters.get().map_or(0, count)
    }

    /// Limits what the command inherits. Called before a process becomes the command.
    pub fn bound(&self) -> Result<(), EnterError> {
        let bounded = self.privileges.map_or(Ok(()), Privileges::bound);
        bounded.map_err(|errno| EnterError { step: EnterStep::Privileges, errno })
    }

    /// After Ok the process is inside. The order is a security property. The process sends the
    /// listener of intercepted calls to `supervisor`. Without a supervisor there must be no such
    /// calls.
    pub fn enter(&self, supervisor: Option<BorrowedFd<'_>>) -> Result<(), EnterError> {
        let at = |step| move |errno| EnterError { step, errno };
        self.confine()?;
        // Landlock does not judge chdir: the working directory needs no grant.
        if let Some(workdir) = &self.workdir {
            rustix::process::chdir(workdir.as_c_str()).map_err(at(EnterStep::Workdir))?;
        }
        // Inherited and opened descriptors: the journal, the ruleset, leftovers of a caller.
        sys::close_on_exec_but(3, &self.kept).map_err(at(EnterStep::Descriptors))?;
        // The filters come last, because they may refuse any of the calls above. The notifying
        // filter comes before the refusing one, which could refuse to send the listener.
        let unfinished = EnterError { step: EnterStep::Seccomp, errno: Errno::NOSYS };
        let Filters { notifying, filter } = self.filters.get().ok_or(unfinished)?;
        if let Some(program) = notifying {
            let listener = sys::seccomp_listener(program).map_err(at(EnterStep::Listener))?;
            let supervisor = supervisor
                .ok_or(EnterError { step: EnterStep::Listener, errno: Errno::NOTCONN })?;
            init_channel::send(supervisor, &InitMessage::Listening, &[listener.as_fd()])
                .map_err(at(EnterStep::Listener))?;
        }
        if let Some(mark) = &self.mark {
            sys::seccomp_install(mark).map_err(at(EnterStep::Seccomp))?;
        }
        let Some(filter) = filter else { return Ok(()) };
        sys::seccomp_install(&filter.program).map_err(at(EnterStep::Seccomp))?;
        let confirmed = match rustix::thread::secure_computing_mode() {
            Ok(mode) => mode == SecureComputingMode::Filter,
            // The filter refuses the question, so it is installed.
            Err(_) => filter.refuses("prctl"),
        };
        if confirmed {
            Ok(())
        } else {
            Err(EnterError { step: EnterStep::Confirm, errno: Errno::PERM })
        }
    }

    /// Applies all but the filters.
    pub fn confine(&self) -> Result<(), EnterError> {
        let at = |step| move |errno| EnterError { step, errno };
        for (resource, value) in &self.rlimits {
            // At least as tight as requested: an ordinary user can not raise the hard limit.
            let hard = rustix::process::getrlimit(*resource)
                .maximum
                .map_or(*value, |hard| hard.min(*value));
            let limit = Rlimit { current: Some(hard), maximum: Some(hard) };
            rustix::process::setrlimit(*resource, limit).map_err(at(EnterStep::Rlimit))?;
        }
        if let Some(privileges) = self.privileges {
            privileges.shed().map_err(at(EnterStep::Privileges))?;
        }
        // An ordinary user may use Landlock and seccomp only with no_new_privs.
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true).map_err(at(EnterStep::NoNewPrivs))?;
            if rustix::thread::no_new_privs() != Ok(true) {
                return Err(EnterError { step: EnterStep::Confirm, errno: Errno::PERM });
            }
        }
        let is_whole = !self.is_confined.get() || self.init_ruleset.get().is_some();
        let ruleset = if is_whole { &self.ruleset } else { &self.inner_ruleset };
        if let Some(ruleset) = ruleset {
            sys::landlock_restrict_self(ruleset.as_fd()).map_err(at(EnterStep::Landlock))?;
        }
        Ok(())
    }

    /// Applies Landlock rules to init, which writes for the command, and drops its capabilities. The
    /// command inherits both.
    pub fn confine_writer(&self) -> Result<(), EnterError> {
        let at = |step| move |errno| EnterError { step, errno };
        if let Some(privileges) = self.privileges {
            privileges.shed().map_err(at(EnterStep::Privileges))?;
        }
        if self.no_new_privs {
            rustix::thread::set_no_new_privs(true).map_err(at(EnterStep::NoNewPrivs))?;
        }
        if let Some(ruleset) = self.init_ruleset.get().or(self.ruleset.as_ref()) {
            sys::landlock_restrict_self(ruleset.as_fd()).map_err(at(EnterStep::Landlock))?;
        }
        self.is_confined.set(true);
        // An outer sandbox may deny it.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let read = rustix::fs::open(c"/proc/self/status", flags, Mode::empty());
        read.map(drop).map_err(at(EnterStep::ReadProc))
    }
}

/// Are signals kept inside? In the landlock tier a kernel without that scope is refused, or the run
/// prints a warning.
fn keeps_signals_in(plan: &Plan) -> bool {
    let scoped =
        plan.landlock.as_ref().is_some_and(|landlock| landlock.scoped.contains(Scope::Signal));
    scoped || plan.namespaces.is_none()
}

fn sent_calls(plan: &Plan) -> SentCalls {
    // The mounts know neither the layer of an intercepted shell nor an observer.
    let mounts_decide = plan.tier == Tier::Full && plan.shell.is_none() && !plan.observe;
    SentCalls { reading_opens: plan.observe, times_of_open_files: !mounts_decide }
}

fn privileges(plan: &Plan) -> Option<Privileges> {
    match &plan.container {
        Some(container) => {
            let clears_groups = container.clears_groups(plan.user.uid);
            let service = ServiceUser { uid: container.uid, gid: container.gid, clears_groups };
            Some(Privileges { kept: container.capabilities, service: Some(service) })
        }
        None => (plan.tier == Tier::Full).then_some(Privileges::NONE),
    }
}

/// Prepares this process to become the command: ordinary signals, and death with the supervisor.
pub fn become_command(
    supervisor: Option<Pid>,
    mask: Option<&SignalMask>,
) -> Result<(), EnterError> {
    if let Some(supervisor) = supervisor {
        let failed = |errno| EnterError { step: EnterStep::FollowParent, errno };
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
        // The supervisor may have died before the line above.
        if rustix::process::getppid() != Some(supervisor) {
            return Err(failed(Errno::SRCH));
        }
    }
    // The Python parent ignores these two. A command expects their default.
    sys::reset_signal(libc::SIGPIPE);
    sys::reset_signal(libc::SIGXFSZ);
    if let Some(mask) = mask {
        sys::restore_signal_mask(mask);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_its_encoding_as_a_number() {
        for step in EnterStep::ALL {
            let error = EnterError { step, errno: Errno::ACCESS };
            assert_eq!(EnterError::of_code(error.code()), Some(error));
        }
        for other in [0, i64::from(libc::EACCES), 13 << 32, i64::MIN] {
            assert_eq!(EnterError::of_code(other), None, "{other}");
        }
    }
}
