//! The exec gate: which programs may be started, with which arguments.
//!
//! Every exec of the command and of all it starts waits here for an answer
//! (kernel/seccomp_notify.rs). What it is about to do is worked out (gate/expected_exec.rs) and
//! judged (gate/rules.rs); a person may be asked (approve/approver_process.rs). What is let through
//! is traced for as long as the exec takes, because the kernel reads path and arguments once more,
//! and they may have been changed: before the new program runs its first instruction it is compared
//! with what was judged (gate/verify.rs), and killed if it differs.
//!
//! Nothing here waits: whoever is asked about stays parked while all others are served.

pub mod argv_hosts;
pub mod argv_text;
pub mod decide;
mod exec_message;
pub mod expected_exec;
mod file_format;
pub mod interpreter_chain;
mod loader;
pub mod rules;
mod shells;
pub mod trusted_dirs;
mod verify;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal};

use self::expected_exec::{CallerView, Expected, Unexpected, Unseen};
use self::interpreter_chain::{Link, State};
use self::rules::{Cause, Exec, ExecDecision, File, Parent, RuleError, Rules};
use self::shells::Shells;
use self::trusted_dirs::Places;
use crate::approve::approver_process;
use crate::approve::open_questions::{Given, OpenQuestions};
use crate::journal::event::exec::{self, ExecOutcome, ExecResult, Process};
use crate::kernel::seccomp_notify::{Answer, Call, Listener};
use crate::kernel::sys::trace::{self, Traced};
use crate::kernel::{ancestry, calling_process};
use crate::plan::{self, Action, Plan, original_shell};

pub const CALLS: [&str; 2] = ["execve", "execveat"];

/// More questions than a person will answer; the files of each are held open.
const MOST_ASKED: usize = 2048;
const MOST_KEPT: usize = 1024;
/// So long a question has to leave the screen.
const TO_CLEAR: Duration = Duration::from_millis(500);
/// Denials that are remembered for the process that met them.
const MOST_DENIED: usize = 64;
/// So often it is looked whether those who wait for a person are still there.
const ROLL_CALL: Duration = Duration::from_secs(1);

pub struct Gate {
    plan: plan::Gate,
    rules: Rules,
    /// None: files are not fenced.
    places: Option<Places>,
    sight: CallerView,
    asked: Vec<ExecQuestion>,
    /// What is in files that no command can write.
    kept: RefCell<HashMap<State, [u8; 32]>>,
    /// Let through, and not yet seen at the exec stop.
    traced: Vec<Admitted>,
    /// Other threads of processes that have one under way.
    queued: Vec<Admitted>,
    /// What a person allowed for the whole run.
    allowed: HashSet<[u8; 32]>,
    /// What a person denied last, and to which process. One that searches PATH comes again with the
    /// same file by another name.
    denied: VecDeque<(u32, [u8; 32])>,
    decided: Vec<ExecOutcome>,
    shells: Shells,
    /// The command, and who started it: one of us.
    command: Option<Process>,
}

/// An exec that a person is asked about.
struct ExecQuestion {
    id: u64,
    call: Call,
    expected: Expected,
    verdict: ExecDecision,
    since: Instant,
    deadline: Instant,
    /// The time is over, and the question leaves the screen before the process goes on and writes
    /// there.
    withdrawn: bool,
}

/// An exec that was allowed.
struct Admitted {
    call: Call,
    expected: Expected,
    decision: Decision,
    /// Its directory in /proc, looked for while the kernel works. None: it has ended.
    own: Option<OwnedFd>,
    /// It was not what was judged, and is about to be dead.
    killed: bool,
}

/// Why it is allowed or denied.
#[derive(Clone, Debug)]
struct Decision {
    /// None: no rule, but the default or the gate itself.
    rule: Option<usize>,
    reason: Option<String>,
    /// Who was asked.
    by: Option<String>,
    /// How long that took.
    asked_ms: Option<u64>,
}

impl Gate {
    pub fn of(plan: &Plan) -> Result<Option<Gate>, RuleError> {
        let Some(requested) = &plan.gate else { return Ok(None) };
        // There other files can stand in a program's place: its loader, for one.
        let nested = plan.seccomp.as_ref().is_none_or(|seccomp| seccomp.namespaces)
            || plan.namespaces.as_ref().is_some_and(|namespaces| namespaces.nested);
        if nested {
            return Err(RuleError::Namespaces);
        }
        // By /proc/PID/mem, where ptrace is not asked.
        let files = plan.files.as_ref();
        if !requested.trace
            && let Some(grant) = files
                .and_then(|files| files.grants.iter().find(|grant| trusted_dirs::rewrites(grant)))
        {
            return Err(RuleError::Proc(grant.path.clone()));
        }
        let places = Places::of(plan);
        let shells = Shells::of(plan);
        let (plan, rules) = (requested.clone(), Rules::compile(requested)?);
        // Where files are fenced nothing is mounted or pivoted, and where namespaces are denied
        // chroot is too.
        let sight = CallerView::new(places.is_some());
        Ok(Some(Gate {
            plan,
            rules,
            places,
            sight,
            asked: Vec::new(),
            kept: RefCell::default(),
            traced: Vec::new(),
            queued: Vec::new(),
            allowed: HashSet::new(),
            denied: VecDeque::with_capacity(MOST_DENIED),
            decided: Vec::new(),
            shells,
            command: None,
        }))
    }

    /// The command runs. Many questions need many descriptors.
    pub fn settle(&self) {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let _ = rustix::process::setrlimit(
            Resource::Nofile,
            Rlimit { current: limit.maximum, ..limit },
        );
    }

    pub fn deadline(&self) -> Option<Instant> {
        let first = self.asked.iter().map(|asked| asked.deadline).min()?;
        Some(first.min(Instant::now() + ROLL_CALL))
    }

    /// Somebody is on his way through, and we are told of it by SIGCHLD.
    pub fn is_tracing(&self) -> bool {
        !self.traced.is_empty()
    }

    /// The same, and nobody waits for a person.
    pub fn only_traces(&self) -> bool {
        self.is_tracing() && self.asked.is_empty()
    }

    pub fn decided(&mut self) -> Vec<ExecOutcome> {
        std::mem::take(&mut self.decided)
    }

    /// An exec arrived.
    pub fn take(&mut self, listener: &Listener, call: Call, desk: &mut OpenQuestions) {
        let arrived = Instant::now();
        let closely = self.command.is_none() || self.rules.name_callers();
        let expected = Expected::of(&call, self.places.as_ref(), &mut self.sight, closely);
        if !listener.still_waits(&call) {
            return; // whatever was read may have been another's
        }
        let mut expected = match expected {
            Ok(expected) => expected,
            Err(Unexpected::Fails(errno)) => return listener.answer(&call, Answer::Fail(errno)),
            Err(Unexpected::Unseen { call: unseen, why }) => {
                let decision =
                    Decision { rule: None, reason: Some(why.to_owned()), by: None, asked_ms: None };
                let Unseen { exe, argv, cwd, process } = *unseen;
                self.tell(process, exe, argv, cwd, ExecResult::Denied, decision);
                return listener.answer(&call, Answer::Fail(Errno::ACCESS));
            }
        };
        let command = *self.command.get_or_insert(expected.process());
        if expected.chain.last().is_some_and(|link| link.kept) {
            return match self.shells.continued(&expected) {
                Some(decision) => self.admit(listener, call, expected, decision),
                None => {
                    expected.complete(call.thread);
                    let reason = Some(shells::PAST.to_owned());
                    self.deny(
                        listener,
                        &call,
                        expected,
                        Decision { rule: None, reason, by: None, asked_ms: None },
                    );
                }
            };
        }
        let timeout = Duration::from_millis(self.plan.timeout_ms.into());
        let (mut verdict, approved) = self.judge(&mut expected, command, arrived + timeout);
        if arrived.elapsed() > timeout && verdict.action != Action::Deny {
            verdict = ExecDecision { action: Action::Deny, cause: Cause::Late, doubted: None };
        }
        let decision = self.decision(&verdict);
        if verdict.action != Action::Allow {
            expected.complete(call.thread);
            if !listener.still_waits(&call) {
                return;
            }
        }
        match verdict.action {
            Action::Allow => self.admit(listener, call, expected, decision),
            Action::Deny => self.deny(listener, &call, expected, decision),
            Action::Ask if approved.is_some() => {
                let by = approved
                    .and_then(|rule| self.plan.approved.get(rule))
                    .map(|rule| rule.source.to_string());
                self.admit(listener, call, expected, Decision { by, ..decision });
            }
            Action::Ask if self.allowed.contains(&expected.fingerprint()) => {
                let by = Some("session".to_owned());
                self.admit(listener, call, expected, Decision { by, ..decision });
            }
            Action::Ask if self.denied.contains(&(expected.pid, expected.fingerprint())) => {
                let reason = Some("it was denied just now".to_owned());
                self.deny(listener, &call, expected, Decision { reason, ..decision });
            }
            Action::Ask => self.ask(listener, call, expected, verdict, desk),
        }
    }

    /// With the approval that answers, where it is a question.
    fn judge(
        &self,
        expected: &mut Expected,
        command: Process,
        deadline: Instant,
    ) -> (ExecDecision, Option<usize>) {
        let digests = RefCell::new(Vec::new());
        let chain: Vec<File<'_>> = expected.chain.iter().map(Link::as_file).collect();
        let parent = if self.rules.name_parents() {
            self.parent_of(expected.process(), command)
        } else {
            None
        };
        let parent_argv = parent.as_ref().map(|(_, argv)| exec::words(argv)).unwrap_or_default();
        let exec = Exec {
            chain: &chain,
            argv: &expected.arguments(),
            cwd: expected.cwd(),
            uid: expected.process().uid,
            parent: parent.as_ref().map(|(exe, _)| Parent { exe, argv: &parent_argv }),
            granted: self.places.as_ref().is_none_or(|places| places.hold_all(&expected.chain)),
            digest: &|index| {
                let link = &expected.chain[index];
                let found =
                    digests.borrow().iter().find(|(of, _)| *of == index).map(|(_, digest)| *digest);
                if let Some(digest) = found.or_else(|| self.kept.borrow().get(&link.state).copied())
                {
                    return Ok(digest);
                }
                let digest = link.digest(Some(deadline))?;
                if self.places.as_ref().is_some_and(|places| places.keep(&link.real)) {
                    let mut kept = self.kept.borrow_mut();
                    if kept.len() >= MOST_KEPT {
                        kept.clear();
                    }
                    kept.insert(link.state, digest);
                } else {
                    digests.borrow_mut().push((index, digest));
                }
                Ok(digest)
            },
        };
        let (verdict, approved) =
            decide::decide(&self.rules, self.places.as_ref(), &exec, &expected.chain);
        expected.digests = digests.into_inner();
        (verdict, approved)
    }

    /// The program and the arguments of whoever started it. None: it has ended, or can not be seen.
    fn parent_of(&self, process: Process, command: Process) -> Option<(Vec<u8>, Vec<u8>)> {
        if process.parent == command.parent && process.pid != command.pid {
            return None; // an orphan, which one of us took in
        }
        let file = |name| format!("/proc/{}/{name}", process.parent);
        let exe = rustix::fs::readlink(file("exe"), Vec::new()).ok()?.into_bytes();
        let exe = original_shell(&exe).map_or(exe.clone(), <[u8]>::to_vec);
        Some((exe, std::fs::read(file("cmdline")).ok()?))
    }

    fn decision(&self, verdict: &ExecDecision) -> Decision {
        let own = |rule: usize| {
            self.plan.rules.get(rule).and_then(|rule| rule.reason.as_ref()).map(ToString::to_string)
        };
        let (rule, reason) = match &verdict.cause {
            Cause::Rule(rule) => (Some(*rule), own(*rule)),
            Cause::Default => (None, None),
            Cause::NotGranted => (
                None,
                Some(
                    "no grant in exec_globs covers it, so the command could have created it"
                        .to_owned(),
                ),
            ),
            Cause::Unseen(why) => (None, Some((*why).to_owned())),
            Cause::Late => {
                (None, Some(format!("the check took more than {} ms", self.plan.timeout_ms)))
            }
            Cause::Error { rule, why } => {
                (Some(*rule), Some(format!("the program cannot be checked: {why}")))
            }
        };
        Decision { rule, reason, by: None, asked_ms: None }
    }

    fn deny(&mut self, listener: &Listener, call: &Call, expected: Expected, decision: Decision) {
        // While it waits, it is who it is.
        self.told(expected, ExecResult::Denied, decision);
        listener.answer(call, Answer::Fail(Errno::ACCESS));
    }

    /// The call was seen to wait still.
    fn admit(&mut self, listener: &Listener, call: Call, expected: Expected, decision: Decision) {
        self.shells.note(&expected, &decision);
        let mut admitted = Admitted { call, expected, decision, own: None, killed: false };
        // One at a time of each process. A thread that executes holds a lock that attaching to its
        // siblings needs, and waits until they are buried, by us.
        let process = admitted.expected.pid;
        if self.traced.iter().any(|other| other.expected.pid == process) {
            return self.queued.push(admitted);
        }
        match trace::seize(call.thread) {
            Ok(()) => {
                // It stays in its call, as the filter asked for; this takes hold when it comes back
                // from there to the old program.
                let _ = trace::interrupt(call.thread);
                listener.answer(&call, Answer::Continue);
                // While the kernel works. It is ours: its number stays its own.
                admitted.own = calling_process::directory_of(process).ok();
                admitted.expected.process =
                    admitted.expected.process.or_else(|| Process::of(process).ok());
                self.traced.push(admitted);
            }
            Err(_) if self.plan.trace => {
                admitted.expected.complete(call.thread);
                listener.answer(&call, Answer::Continue);
                let Admitted { expected, decision, .. } = admitted;
                self.told(expected, ExecResult::Ran { verified: false }, decision);
            }
            Err(_) if !listener.still_waits(&call) => {} // it was killed
            Err(_) => {
                let why = match expected_exec::is_traced(call.thread) {
                    false => {
                        "the kernel denies access to the process (check \
                        kernel.yama.ptrace_scope)"
                    }
                    true => "another program traces it",
                };
                let reason = Some(format!("the started program could not be checked: {why}"));
                admitted.expected.complete(call.thread);
                self.deny(
                    listener,
                    &call,
                    admitted.expected,
                    Decision { reason, ..admitted.decision },
                );
            }
        }
    }

    fn ask(
        &mut self,
        listener: &Listener,
        call: Call,
        expected: Expected,
        verdict: ExecDecision,
        desk: &mut OpenQuestions,
    ) {
        let asked = if self.asked.len() < MOST_ASKED {
            self.question(&expected, &verdict, desk)
        } else {
            Err("too many questions wait for an answer".to_owned())
        };
        match asked {
            Ok(id) => {
                let since = Instant::now();
                let deadline = since + Duration::from_secs(self.plan.ask_timeout_s.into());
                self.asked.push(ExecQuestion {
                    id,
                    call,
                    expected,
                    verdict,
                    since,
                    deadline,
                    withdrawn: false,
                });
            }
            Err(why) => {
                let decision = self.decision(&verdict);
                let reason = Some(format!("no approver is available: {why}"));
                self.deny(listener, &call, expected, Decision { reason, ..decision });
            }
        }
    }

    fn question(
        &mut self,
        expected: &Expected,
        verdict: &ExecDecision,
        desk: &mut OpenQuestions,
    ) -> Result<u64, String> {
        let command = self.command.unwrap_or_default();
        let parent = self.parent_of(expected.process(), command);
        let parent_argv = parent.as_ref().map(|(_, argv)| exec::words(argv)).unwrap_or_default();
        let rule = match verdict.cause {
            Cause::Rule(rule) | Cause::Error { rule, .. } => self.plan.rules.get(rule),
            _ => None,
        };
        let decision = self.decision(verdict);
        desk.ask(&approver_process::Question::Exec(approver_process::Exec {
            exe: expected.exe(),
            chain: &expected.chain.iter().map(|link| link.real.as_slice()).collect::<Vec<_>>(),
            argv: &expected.arguments(),
            cwd: expected.cwd(),
            pid: expected.pid,
            parent: parent.as_ref().map(|(exe, _)| (exe.as_slice(), parent_argv.as_slice())),
            rule: rule.map(|rule| rule.id.as_bytes()),
            source: rule.map_or(b"", |rule| rule.source.as_bytes()),
            reason: decision.reason.as_deref().map(str::as_bytes),
            timeout_s: self.plan.ask_timeout_s.into(),
        }))
    }

    /// Looks after everybody who is on his way or waits.
    pub fn turn(&mut self, listener: &Listener, desk: &mut OpenQuestions) {
        self.look_at_traced(listener);
        if self.asked.is_empty() {
            return;
        }
        for Given { id, answer, by } in
            desk.given(|id| self.asked.iter().any(|asked| asked.id == id))
        {
            self.answered(listener, id, answer, by);
        }
        if desk.is_deserted() {
            self.dismiss(listener, |_| true, "the approver has ended", desk);
        }
        let now = Instant::now();
        let gone: Vec<u64> = self
            .asked
            .iter()
            .filter(|asked| !listener.still_waits(&asked.call))
            .map(|asked| asked.id)
            .collect();
        gone.iter().for_each(|id| desk.withdraw(*id));
        self.asked.retain(|asked| !gone.contains(&asked.id));
        let late = format!("no answer within {} s", self.plan.ask_timeout_s);
        for asked in self.asked.iter_mut().filter(|asked| asked.deadline <= now && !asked.withdrawn)
        {
            desk.withdraw(asked.id);
            (asked.withdrawn, asked.deadline) = (true, now + TO_CLEAR);
        }
        self.dismiss(listener, |asked| asked.deadline <= now, &late, desk);
    }

    fn answered(
        &mut self,
        listener: &Listener,
        id: u64,
        answer: approver_process::Answer,
        by: String,
    ) {
        let Some(index) = self.asked.iter().position(|asked| asked.id == id) else { return };
        let ExecQuestion { call, expected, verdict, since, .. } = self.asked.swap_remove(index);
        if !listener.still_waits(&call) {
            return;
        }
        let decision =
            Decision { by: Some(by), asked_ms: Some(elapsed_ms(since)), ..self.decision(&verdict) };
        if answer == approver_process::Answer::Session {
            self.allowed.insert(expected.fingerprint());
        }
        match answer {
            approver_process::Answer::Once | approver_process::Answer::Session => {
                self.admit(listener, call, expected, decision)
            }
            approver_process::Answer::Deny => {
                self.denied.truncate(MOST_DENIED - 1);
                self.denied.push_front((expected.pid, expected.fingerprint()));
                self.deny(listener, &call, expected, decision);
            }
        }
    }

    fn dismiss(
        &mut self,
        listener: &Listener,
        which: impl Fn(&ExecQuestion) -> bool,
        why: &str,
        desk: &mut OpenQuestions,
    ) {
        let (dismissed, kept) = std::mem::take(&mut self.asked).into_iter().partition(which);
        self.asked = kept;
        let dismissed: Vec<ExecQuestion> = dismissed;
        for ExecQuestion { id, call, expected, verdict, since, .. } in dismissed {
            desk.withdraw(id);
            let (reason, asked_ms) = (Some(why.to_owned()), Some(elapsed_ms(since)));
            let decision = Decision { reason, asked_ms, ..self.decision(&verdict) };
            self.deny(listener, &call, expected, decision);
        }
    }

    fn look_at_traced(&mut self, listener: &Listener) {
        let numbers: Vec<(u32, u32)> =
            self.traced.iter().map(|traced| (traced.call.thread, traced.expected.pid)).collect();
        for (thread, process) in numbers {
            let found = trace::look(thread);
            let is_there = found.is_ok();
            // A thread that executes a program takes over the number of the process, which is none
            // of ours until then.
            let (pid, found) = match found {
                Ok(None) | Err(Errno::CHILD) if process != thread => {
                    (process, trace::look(process))
                }
                found => (thread, found),
            };
            match found {
                Ok(Some(traced)) => self.heard_of(listener, pid, traced),
                Ok(None) => {}
                Err(_) if is_there => {}
                Err(_) => self.ended(listener, thread),
            }
        }
    }

    fn heard_of(&mut self, listener: &Listener, pid: u32, traced: Traced) {
        match traced {
            Traced::Executed { former } => {
                let Some(index) =
                    self.traced.iter().position(|admitted| admitted.call.thread == former)
                else {
                    return kill(pid); // nobody let it through
                };
                let deadline = Instant::now() + Duration::from_millis(self.plan.timeout_ms.into());
                let Admitted { expected, own, .. } = &mut self.traced[index];
                let difference = verify::difference(
                    expected,
                    pid,
                    own.as_ref(),
                    &mut self.sight.memory,
                    deadline,
                );
                match difference {
                    None if trace::detach(pid).is_ok() => {
                        self.leave(listener, index, ExecResult::Ran { verified: true })
                    }
                    // From now on it is known by the number it dies with.
                    _ if !trace::is_stopped(pid) => self.traced[index].call.thread = pid,
                    None => {
                        kill(pid);
                        self.traced[index].call.thread = pid;
                    }
                    Some(what) => {
                        let admitted = &mut self.traced[index];
                        admitted.expected.complete(pid);
                        kill(pid);
                        admitted.killed = true;
                        admitted.call.thread = pid;
                        let (process, cwd) =
                            (admitted.expected.process(), admitted.expected.cwd().to_vec());
                        let argv = admitted.expected.argv.clone();
                        let (exe, decision) =
                            (admitted.expected.exe().to_vec(), admitted.decision.clone());
                        self.tell(process, exe, argv, cwd, ExecResult::Attack(what), decision);
                    }
                }
            }
            Traced::Interrupted => {
                let index = self.traced.iter().position(|admitted| admitted.call.thread == pid);
                if let Some(index) = index {
                    self.traced[index].expected.complete(pid);
                }
                // One that was killed meanwhile is ours until it is buried.
                if trace::detach(pid).is_ok()
                    && let Some(index) = index
                {
                    self.leave(listener, index, ExecResult::Failed);
                }
            }
            Traced::Signalled(signal) => {
                let _ = trace::go_on(pid, signal);
            }
            Traced::Ended => self.ended(listener, pid),
        }
    }

    /// A traced one is dead and buried.
    fn ended(&mut self, listener: &Listener, pid: u32) {
        let is_it =
            |admitted: &Admitted| admitted.call.thread == pid || admitted.expected.pid == pid;
        if let Some(index) = self.traced.iter().position(is_it) {
            self.leave(listener, index, ExecResult::Failed);
        }
    }

    /// It is through, or will never be; the next one of its process has its turn.
    fn leave(&mut self, listener: &Listener, index: usize, outcome: ExecResult) {
        let Admitted { expected, decision, killed, .. } = self.traced.swap_remove(index);
        let process = expected.pid;
        if !killed {
            self.told(expected, outcome, decision);
        }
        while !self.traced.iter().any(|traced| traced.expected.pid == process)
            && let Some(index) =
                self.queued.iter().position(|queued| queued.expected.pid == process)
        {
            let Admitted { call, expected, decision, .. } = self.queued.remove(index);
            if listener.still_waits(&call) {
                self.admit(listener, call, expected, decision);
            }
        }
    }

    fn told(&mut self, expected: Expected, outcome: ExecResult, decision: Decision) {
        let (exe, process, cwd) =
            (expected.exe().to_vec(), expected.process(), expected.cwd().to_vec());
        let Expected { argv, .. } = expected;
        self.tell(process, exe, argv, cwd, outcome, decision);
    }

    fn tell(
        &mut self,
        process: Process,
        exe: Vec<u8>,
        argv: Vec<u8>,
        cwd: Vec<u8>,
        outcome: ExecResult,
        decision: Decision,
    ) {
        let Decision { rule, reason, by, asked_ms } = decision;
        let rule =
            rule.and_then(|rule| self.plan.rules.get(rule)).map(|rule| rule.id.as_bytes().to_vec());
        let is_refused = matches!(outcome, ExecResult::Denied | ExecResult::Attack(_));
        let command = self.command.filter(|_| is_refused);
        let branch = command.and_then(|command| ancestry::branch_of(process.pid, command.pid));
        self.decided.push(ExecOutcome {
            process,
            branch,
            exe,
            argv,
            cwd,
            outcome,
            rule,
            reason,
            by,
            asked_ms,
        });
    }
}

fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
