//! The exec gate: which programs may start, with which arguments.
//!
//! Every exec inside the sandbox waits here for an answer (`kernel/seccomp_notify.rs`). The gate
//! reads what it is about to do (`gate/expected_exec.rs`) and judges it (`gate/rules.rs`). It may
//! ask a person (`approve/approver_process.rs`). An allowed exec is traced until it is done,
//! because the kernel reads path and arguments again, and they may have changed. Before the new
//! program runs its first instruction, the gate compares it with what was judged
//! (`gate/verify_exec.rs`), and kills it if it differs.
//!
//! Nothing here blocks: an exec that waits for a person stays pending while all others are served.

pub mod argv_hosts;
pub mod argv_text;
pub mod decide_exec;
mod exec_message;
mod exec_questions;
pub mod expected_exec;
mod file_format;
pub mod interpreter_chain;
mod loader;
pub mod program_contents;
pub mod rules;
mod shells;
mod traced_execs;
pub mod trusted_program_dirs;
mod verify_exec;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use self::exec_questions::{ExecQuestion, MAX_DENIALS};
use self::expected_exec::{CallerView, ExpectedExec, NotJudged, ObservedExec};
use self::interpreter_chain::{ChainFile, FileState};
use self::program_contents::ProgramContents;
use self::rules::{
    Cause, ExecDecision, ExecFile, ExecRequest, ExecRules, ParentProcess, RuleError,
};
use self::shells::InterceptedShells;
use self::traced_execs::Admitted;
use self::trusted_program_dirs::TrustedDirs;
use crate::approve::open_questions::OpenQuestions;
use crate::journal::event::exec::{self, ExecProcess, ExecReport, ExecResult};
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyAnswer, NotifyListener};

use crate::kernel::ancestry;
use crate::plan::{self, Action, Plan, original_shell};

pub const CALLS: [&str; 2] = ["execve", "execveat"];

const MAX_DIGESTS: usize = 1024;
/// The interval between two checks whether the waiting processes still exist.
const WAITING_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub struct ExecGate {
    plan: plan::GatePlan,
    rules: ExecRules,
    /// None: the plan does not restrict files.
    trusted_dirs: Option<TrustedDirs>,
    contents: ProgramContents,
    caller_view: CallerView,
    pending: Vec<ExecQuestion>,
    /// Digests of files that no command can write.
    digests: RefCell<HashMap<FileState, [u8; 32]>>,
    /// Allowed, and not yet at the exec stop.
    traced: Vec<Admitted>,
    /// Other threads of processes whose exec is under way.
    queued: Vec<Admitted>,
    /// Execs that a person allowed for the whole run.
    allowed: HashSet<[u8; 32]>,
    /// Execs that a person denied last, with the process. A process that searches PATH comes again
    /// with the same file under another name.
    denied: VecDeque<(u32, [u8; 32])>,
    decided: Vec<ExecReport>,
    shells: InterceptedShells,
    /// The command. One of Paddock's processes started it.
    command: Option<ExecProcess>,
}

/// Why an exec is allowed or denied.
#[derive(Clone, Debug)]
struct DecisionReason {
    /// None: the default or the gate itself decided.
    rule: Option<usize>,
    reason: Option<String>,
    /// The approver that answered.
    by: Option<String>,
    /// How long the answer took.
    asked_ms: Option<u64>,
}

impl ExecGate {
    pub fn of(plan: &Plan) -> Result<Option<ExecGate>, RuleError> {
        let Some(requested) = &plan.gate else { return Ok(None) };
        // In nested namespaces other files can replace a program, or its loader.
        let nested = plan.seccomp.as_ref().is_none_or(|seccomp| seccomp.namespaces)
            || plan.namespaces.as_ref().is_some_and(|namespaces| namespaces.nested);
        if nested {
            return Err(RuleError::Namespaces);
        }
        // Through /proc/PID/mem a command changes another program after the gate has compared it.
        // The filter denies ptrace for the same reason, but does not see this write.
        let files = plan.files.as_ref();
        if !requested.trace
            && let Some(grant) = files.and_then(|files| {
                files.grants.iter().find(|grant| trusted_program_dirs::rewrites(grant))
            })
        {
            return Err(RuleError::Proc(grant.path.clone()));
        }
        let trusted_dirs = TrustedDirs::of(plan);
        let shells = InterceptedShells::of(plan);
        let (plan, rules) = (requested.clone(), ExecRules::compile(requested)?);
        let contents = ProgramContents::of(&rules, trusted_dirs.as_ref());
        // If the plan restricts files, nothing can be mounted or pivoted. If it denies namespaces,
        // chroot is denied too.
        let caller_view = CallerView::new(trusted_dirs.is_some());
        Ok(Some(ExecGate {
            plan,
            rules,
            trusted_dirs,
            contents,
            caller_view,
            pending: Vec::new(),
            digests: RefCell::default(),
            traced: Vec::new(),
            queued: Vec::new(),
            allowed: HashSet::new(),
            denied: VecDeque::with_capacity(MAX_DENIALS),
            decided: Vec::new(),
            shells,
            command: None,
        }))
    }

    /// The command runs. Many questions need many descriptors, so the limit is raised.
    pub fn settle(&self) {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let _ = rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit { current: limit.maximum, ..limit },
        );
    }

    pub fn deadline(&self) -> Option<Instant> {
        let first = self.pending.iter().map(|pending| pending.deadline).min()?;
        Some(first.min(Instant::now() + WAITING_CHECK_INTERVAL))
    }

    /// Is a process traced? SIGCHLD reports its stops.
    pub fn is_tracing(&self) -> bool {
        !self.traced.is_empty()
    }

    /// The same, and no exec waits for a person.
    pub fn only_traces(&self) -> bool {
        self.is_tracing() && self.pending.is_empty()
    }

    /// Serves all traced and pending execs.
    pub fn turn(&mut self, listener: &NotifyListener, questions: &mut OpenQuestions) {
        self.check_traced(listener);
        self.serve_questions(listener, questions);
    }

    pub fn decided(&mut self) -> Vec<ExecReport> {
        std::mem::take(&mut self.decided)
    }

    /// Handles an exec that has arrived.
    pub fn take(
        &mut self,
        listener: &NotifyListener,
        call: InterceptedCall,
        questions: &mut OpenQuestions,
    ) {
        let arrived = Instant::now();
        let closely = self.command.is_none() || self.rules.name_callers();
        let expected =
            ExpectedExec::of(&call, self.trusted_dirs.as_ref(), &mut self.caller_view, closely);
        if !listener.still_waits(&call) {
            return; // the memory that was read may belong to another process
        }
        let mut expected = match expected {
            Ok(expected) => expected,
            Err(NotJudged::Fails(errno)) => {
                return listener.answer(&call, NotifyAnswer::Fail(errno));
            }
            Err(NotJudged::Unseen { call: unseen, why }) => {
                let decision_reason = DecisionReason {
                    rule: None,
                    reason: Some(why.to_owned()),
                    by: None,
                    asked_ms: None,
                };
                self.record_exec(*unseen, ExecResult::Denied, decision_reason);
                return listener.answer(&call, NotifyAnswer::Fail(Errno::ACCESS));
            }
        };
        let command = *self.command.get_or_insert(expected.process());
        if expected.chain.last().is_some_and(|link| link.is_real_shell) {
            return match self.shells.continued(&expected) {
                Some(decision_reason) => self.admit(listener, call, expected, decision_reason),
                None => {
                    expected.complete(call.thread);
                    let reason = Some(shells::REAL_SHELL_REASON.to_owned());
                    self.deny(
                        listener,
                        &call,
                        expected,
                        DecisionReason { rule: None, reason, by: None, asked_ms: None },
                    );
                }
            };
        }
        let timeout = Duration::from_millis(self.plan.timeout_ms.into());
        let (mut decision, approved) = self.judge(&mut expected, command, arrived + timeout);
        if arrived.elapsed() > timeout && decision.action != Action::Deny {
            decision = ExecDecision { action: Action::Deny, cause: Cause::Late, doubted: None };
        }
        let decision_reason = self.reason_for(&decision);
        if decision.action != Action::Allow {
            expected.complete(call.thread);
            if !listener.still_waits(&call) {
                return;
            }
        }
        match decision.action {
            Action::Allow => self.admit(listener, call, expected, decision_reason),
            Action::Deny => self.deny(listener, &call, expected, decision_reason),
            Action::Ask if approved.is_some() => {
                let by = approved
                    .and_then(|rule| self.plan.approved.get(rule))
                    .map(|rule| rule.source.to_string());
                self.admit(listener, call, expected, DecisionReason { by, ..decision_reason });
            }
            Action::Ask if self.allowed.contains(&expected.fingerprint()) => {
                let by = Some("session".to_owned());
                self.admit(listener, call, expected, DecisionReason { by, ..decision_reason });
            }
            Action::Ask if self.denied.contains(&(expected.pid, expected.fingerprint())) => {
                let reason = Some("it was denied just now".to_owned());
                self.deny(listener, &call, expected, DecisionReason { reason, ..decision_reason });
            }
            Action::Ask => self.ask(listener, call, expected, decision, questions),
        }
    }

    /// Judges an exec. Returns also the approval that answers, if the decision is a question.
    fn judge(
        &self,
        expected: &mut ExpectedExec,
        command: ExecProcess,
        deadline: Instant,
    ) -> (ExecDecision, Option<usize>) {
        let digests = RefCell::new(Vec::new());
        let chain: Vec<ExecFile<'_>> = expected.chain.iter().map(ChainFile::as_file).collect();
        let parent = if self.rules.name_parents() {
            self.parent_of(expected.process(), command)
        } else {
            None
        };
        let parent_argv =
            parent.as_ref().map(|(_, argv)| exec::nul_separated(argv)).unwrap_or_default();
        let exec = ExecRequest {
            chain: &chain,
            argv: &expected.arguments(),
            cwd: expected.cwd(),
            uid: expected.process().uid,
            parent: parent.as_ref().map(|(exe, _)| ParentProcess { exe, argv: &parent_argv }),
            granted: self
                .trusted_dirs
                .as_ref()
                .is_none_or(|trusted_dirs| trusted_dirs.hold_all(&expected.chain)),
            digest: &|index| {
                let link = &expected.chain[index];
                let found =
                    digests.borrow().iter().find(|(of, _)| *of == index).map(|(_, digest)| *digest);
                if let Some(digest) =
                    found.or_else(|| self.digests.borrow().get(&link.state).copied())
                {
                    return Ok(digest);
                }
                let digest = link.digest(Some(deadline))?;
                if self
                    .trusted_dirs
                    .as_ref()
                    .is_some_and(|trusted_dirs| trusted_dirs.keep(&link.real))
                {
                    let mut digests = self.digests.borrow_mut();
                    if digests.len() >= MAX_DIGESTS {
                        digests.clear();
                    }
                    digests.insert(link.state, digest);
                } else {
                    digests.borrow_mut().push((index, digest));
                }
                Ok(digest)
            },
        };
        let (decision, approved) = decide_exec::decide(
            &self.rules,
            self.trusted_dirs.as_ref(),
            &self.contents,
            &exec,
            &expected.chain,
        );
        expected.digests = digests.into_inner();
        (decision, approved)
    }

    /// The program and the arguments of the parent process. None: it has ended, or can not be read.
    fn parent_of(&self, process: ExecProcess, command: ExecProcess) -> Option<(Vec<u8>, Vec<u8>)> {
        if process.parent == command.parent && process.pid != command.pid {
            return None; // an orphan, which a process of Paddock has adopted
        }
        let file = |name| format!("/proc/{}/{name}", process.parent);
        let exe = rustix::fs::readlink(file("exe"), Vec::new()).ok()?.into_bytes();
        let exe = original_shell(&exe).map_or(exe.clone(), <[u8]>::to_vec);
        Some((exe, std::fs::read(file("cmdline")).ok()?))
    }

    fn reason_for(&self, decision: &ExecDecision) -> DecisionReason {
        let own = |rule: usize| {
            self.plan.rules.get(rule).and_then(|rule| rule.reason.as_ref()).map(ToString::to_string)
        };
        let (rule, reason) = match &decision.cause {
            Cause::Rule(rule) => (Some(*rule), own(*rule)),
            Cause::Default => (None, None),
            Cause::Unseen(why) => (None, Some((*why).to_owned())),
            Cause::Late => {
                (None, Some(format!("the check took more than {} ms", self.plan.timeout_ms)))
            }
            Cause::Error { rule, why } => {
                (Some(*rule), Some(format!("the program cannot be checked: {why}")))
            }
        };
        DecisionReason { rule, reason, by: None, asked_ms: None }
    }

    fn deny(
        &mut self,
        listener: &NotifyListener,
        call: &InterceptedCall,
        expected: ExpectedExec,
        decision_reason: DecisionReason,
    ) {
        // Recorded before the answer: while the call waits, the pid is still that process.
        self.record(expected, ExecResult::Denied, decision_reason);
        listener.answer(call, NotifyAnswer::Fail(Errno::ACCESS));
    }

    fn record(
        &mut self,
        expected: ExpectedExec,
        result: ExecResult,
        decision_reason: DecisionReason,
    ) {
        self.record_exec(expected.observed(), result, decision_reason);
    }

    fn record_exec(
        &mut self,
        observed: ObservedExec,
        result: ExecResult,
        decision_reason: DecisionReason,
    ) {
        let ObservedExec { exe, interpreter, argv, cwd, process } = observed;
        let DecisionReason { rule, reason, by, asked_ms } = decision_reason;
        let rule =
            rule.and_then(|rule| self.plan.rules.get(rule)).map(|rule| rule.id.as_bytes().to_vec());
        let is_refused = matches!(result, ExecResult::Denied | ExecResult::Attack(_));
        let command = self.command.filter(|_| is_refused);
        let branch = command.and_then(|command| ancestry::branch_of(process.pid, command.pid));
        self.decided.push(ExecReport {
            process,
            branch,
            exe,
            interpreter,
            argv,
            cwd,
            result,
            rule,
            reason,
            by,
            asked_ms,
        });
    }
}
