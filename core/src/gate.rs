//! The exec gate: which programs may be started, with which arguments.
//!
//! Every exec of the command and of all it starts waits here for an answer (notify.rs). What it is about to do is worked out (expect.rs) and
//! judged (rules.rs); a person may be asked (companion.rs). What is let through is traced for as long as the exec takes, because the
//! kernel reads path and arguments once more, and they may have been changed: before the new program runs its first instruction it is
//! compared with what was judged (verify.rs), and killed if it differs.
//!
//! Nothing here waits: whoever is asked about stays parked while all others are served.

mod chain;
mod decided;
pub mod expect;
pub mod hosts;
pub mod judge;
pub mod places;
mod program;
pub mod rules;
mod verify;
mod words;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use sha2::{Digest as _, Sha256};

use self::chain::{Known, Link, State};
pub use self::decided::{Decided, Outcome};
use self::expect::{Expected, Process, Unexpected, Unseen};
use self::places::Places;
use self::rules::{Cause, Exec, File, Parent, RuleError, Rules, Verdict};
use crate::companion::{self, Companion, Heard, Question};
use crate::memory::Memory;
use crate::notify::{Answer, Call, Listener};
use crate::plan::{self, Action, Plan};
use crate::sys::{trace, trace::Traced};

/// Where a person may be asked, also those that change the terminal on which that happens.
pub fn calls(plan: &plan::Gate) -> impl Iterator<Item = &'static str> {
    let asks = plan.default == Action::Ask
        || plan.on_error == Action::Ask
        || plan.rules.iter().any(|rule| rule.action == Action::Ask);
    ["execve", "execveat"].into_iter().chain(asks.then_some("ioctl"))
}

/// Changes of the terminal that wait for the end of a question. More fail.
const MOST_HELD: usize = 256;
/// So soon it is seen that the terminal is the command's again.
const HELD: Duration = Duration::from_millis(50);

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
    known: Known,
    memory: Memory,
    companion: Companion,
    asked: Vec<Asked>,
    last_question: u64,
    /// What is in files that no command can write.
    kept: RefCell<HashMap<State, [u8; 32]>>,
    /// Changes of the terminal while a person is asked on it: they could answer, or show something else.
    held: Vec<Call>,
    /// Let through, and not yet seen at the exec stop.
    traced: Vec<Admitted>,
    /// Other threads of processes that have one under way.
    queued: Vec<Admitted>,
    /// What a person allowed for the whole run.
    allowed: HashSet<[u8; 32]>,
    /// What a person denied last, and to which process. One that searches PATH comes again with the same file by another name.
    denied: VecDeque<(u32, [u8; 32])>,
    decided: Vec<Decided>,
    /// The command, and who started it: one of us.
    command: Option<Process>,
}

/// An exec that a person is asked about.
struct Asked {
    id: u64,
    call: Call,
    expected: Expected,
    verdict: Verdict,
    deadline: Instant,
    /// The time is over, and the question leaves the screen before the process goes on and writes there.
    withdrawn: bool,
}

/// An exec that was allowed.
struct Admitted {
    call: Call,
    expected: Expected,
    decision: Decision,
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
}

impl Gate {
    pub fn of(plan: &Plan, companion: Companion) -> Result<Option<Gate>, RuleError> {
        let Some(requested) = &plan.gate else { return Ok(None) };
        // There other files can stand in a program's place: its loader, for one.
        let nested = plan.seccomp.as_ref().is_none_or(|seccomp| seccomp.namespaces)
            || plan.namespaces.as_ref().is_some_and(|namespaces| namespaces.nested);
        if nested {
            return Err(RuleError::Namespaces);
        }
        let places = Places::of(plan);
        let (plan, rules) = (requested.clone(), Rules::compile(requested)?);
        Ok(Some(Gate {
            plan,
            rules,
            places,
            known: Known::default(),
            memory: Memory::of(0),
            companion,
            asked: Vec::new(),
            last_question: 0,
            kept: RefCell::default(),
            held: Vec::new(),
            traced: Vec::new(),
            queued: Vec::new(),
            allowed: HashSet::new(),
            denied: VecDeque::with_capacity(MOST_DENIED),
            decided: Vec::new(),
            command: None,
        }))
    }

    /// The command runs. Many questions need many descriptors.
    pub fn settle(&self) {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }

    /// Readable when the companion has something to say.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.companion.fd()
    }

    pub fn deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let first = self.asked.iter().map(|asked| asked.deadline.min(now + ROLL_CALL)).min();
        let held = (!self.held.is_empty()).then(|| now + HELD);
        first.into_iter().chain(held).min()
    }

    /// A person is being asked on the command's own terminal.
    pub fn is_asking(&self) -> bool {
        self.companion.has_terminal()
    }

    /// Nobody is left who could ask. A companion gives the terminal back before we go.
    pub fn dismiss_companion(&mut self) {
        self.companion = Companion::new(None);
    }

    /// Somebody is on his way through, and we are told of it by SIGCHLD.
    pub fn is_tracing(&self) -> bool {
        !self.traced.is_empty()
    }

    pub fn decided(&mut self) -> Vec<Decided> {
        std::mem::take(&mut self.decided)
    }

    /// The terminal is to be changed. While a person is asked on it, whoever wants that waits, as for anything else that is the foreground's.
    pub fn take_change(&mut self, listener: &Listener, call: Call) {
        if !self.companion.has_terminal() {
            listener.answer(&call, Answer::Continue);
        } else if self.held.len() < MOST_HELD {
            self.held.push(call);
        } else {
            listener.answer(&call, Answer::Fail(Errno::IO));
        }
    }

    /// An exec arrived.
    pub fn take(&mut self, listener: &Listener, call: Call) {
        let arrived = Instant::now();
        let expected = Expected::of(&call, self.places.as_ref(), &mut self.known, &mut self.memory);
        if !listener.still_waits(&call) {
            return; // whatever was read may have been another's
        }
        let mut expected = match expected {
            Ok(expected) => expected,
            Err(Unexpected::Fails(errno)) => return listener.answer(&call, Answer::Fail(errno)),
            Err(Unexpected::Unseen { call: unseen, why }) => {
                listener.answer(&call, Answer::Fail(Errno::ACCESS));
                let decision = Decision { rule: None, reason: Some(why.to_owned()), by: None };
                let Unseen { exe, argv, cwd, process } = *unseen;
                return self.tell(process, exe, argv, cwd, Outcome::Denied, decision);
            }
        };
        let command = *self.command.get_or_insert(expected.process);
        let timeout = Duration::from_millis(self.plan.timeout_ms.into());
        let (mut verdict, approved) = self.judge(&mut expected, command, arrived + timeout);
        if arrived.elapsed() > timeout && verdict.action != Action::Deny {
            verdict = Verdict { action: Action::Deny, cause: Cause::Late, doubted: None };
        }
        let decision = self.decision(&verdict);
        match verdict.action {
            Action::Allow => self.admit(listener, call, expected, decision),
            Action::Deny => self.deny(listener, &call, expected, decision),
            Action::Ask if approved.is_some() => {
                let by = approved.and_then(|rule| self.plan.approved.get(rule)).map(|rule| rule.source.to_string());
                self.admit(listener, call, expected, Decision { by, ..decision });
            }
            Action::Ask if self.allowed.contains(&fingerprint(&expected)) => {
                let by = Some("session".to_owned());
                self.admit(listener, call, expected, Decision { by, ..decision });
            }
            Action::Ask if self.denied.contains(&(expected.process.pid, fingerprint(&expected))) => {
                let reason = Some("it was denied just now".to_owned());
                self.deny(listener, &call, expected, Decision { reason, ..decision });
            }
            Action::Ask => self.ask(listener, call, expected, verdict),
        }
    }

    /// With the approval that answers, where it is a question.
    fn judge(&self, expected: &mut Expected, command: Process, deadline: Instant) -> (Verdict, Option<usize>) {
        let digests = RefCell::new(Vec::new());
        let chain: Vec<File<'_>> = expected.chain.iter().map(Link::as_file).collect();
        let parent = if self.rules.name_parents() { self.parent_of(expected.process, command) } else { None };
        let parent_argv = parent.as_ref().map(|(_, argv)| expect::words(argv)).unwrap_or_default();
        let exec = Exec {
            chain: &chain,
            argv: &expected.arguments(),
            cwd: &expected.cwd,
            uid: expected.process.uid,
            parent: parent.as_ref().map(|(exe, _)| Parent { exe, argv: &parent_argv }),
            granted: self.places.as_ref().is_none_or(|places| places.hold_all(&expected.chain)),
            digest: &|index| {
                let link = &expected.chain[index];
                let found = digests.borrow().iter().find(|(of, _)| *of == index).map(|(_, digest)| *digest);
                if let Some(digest) = found.or_else(|| self.kept.borrow().get(&link.state).copied()) {
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
        let (verdict, approved) = judge::decide(&self.rules, self.places.as_ref(), &exec, &expected.chain);
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
        Some((exe, std::fs::read(file("cmdline")).ok()?))
    }

    fn decision(&self, verdict: &Verdict) -> Decision {
        let own =
            |rule: usize| self.plan.rules.get(rule).and_then(|rule| rule.reason.as_ref()).map(ToString::to_string);
        let (rule, reason) = match &verdict.cause {
            Cause::Rule(rule) => (Some(*rule), own(*rule)),
            Cause::Default => (None, None),
            Cause::NotGranted => {
                (None, Some("it does not lie in a granted place: the command could have made it".to_owned()))
            }
            Cause::Unseen(why) => (None, Some((*why).to_owned())),
            Cause::Late => (None, Some(format!("it was not judged within {} ms", self.plan.timeout_ms))),
            Cause::Error { rule, why } => (Some(*rule), Some(format!("it can not be judged: {why}"))),
        };
        Decision { rule, reason, by: None }
    }

    fn deny(&mut self, listener: &Listener, call: &Call, expected: Expected, decision: Decision) {
        listener.answer(call, Answer::Fail(Errno::ACCESS));
        self.told(expected, Outcome::Denied, decision);
    }

    /// The call was seen to wait still.
    fn admit(&mut self, listener: &Listener, call: Call, expected: Expected, decision: Decision) {
        let admitted = Admitted { call, expected, decision, killed: false };
        // One at a time of each process. A thread that executes holds a lock that attaching to its siblings needs, and waits until they
        // are buried, by us.
        let process = admitted.expected.process.pid;
        if self.traced.iter().any(|other| other.expected.process.pid == process) {
            return self.queued.push(admitted);
        }
        match trace::seize(call.thread) {
            Ok(()) => {
                // It stays in its call, as the filter asked for; this takes hold when it comes back from there to the old program.
                let _ = trace::interrupt(call.thread);
                self.traced.push(admitted);
                listener.answer(&call, Answer::Continue);
            }
            Err(_) if self.plan.trace => {
                listener.answer(&call, Answer::Continue);
                let Admitted { expected, decision, .. } = admitted;
                self.told(expected, Outcome::Ran { verified: false }, decision);
            }
            Err(_) => {
                let why = match expect::is_traced(call.thread) {
                    false => "the kernel does not let us look at it (kernel.yama.ptrace_scope?)",
                    true => "another program traces it",
                };
                let reason = Some(format!("what runs could not be checked: {why}"));
                self.deny(listener, &call, admitted.expected, Decision { reason, ..admitted.decision });
            }
        }
    }

    fn ask(&mut self, listener: &Listener, call: Call, expected: Expected, verdict: Verdict) {
        self.last_question += 1;
        let id = self.last_question;
        let asked = if self.asked.len() < MOST_ASKED {
            self.question(id, &expected, &verdict)
        } else {
            Err("too many questions wait for an answer".to_owned())
        };
        match asked {
            Ok(()) => {
                let deadline = Instant::now() + Duration::from_secs(self.plan.ask_timeout_s.into());
                self.asked.push(Asked { id, call, expected, verdict, deadline, withdrawn: false });
            }
            Err(why) => {
                let decision = self.decision(&verdict);
                let reason = Some(format!("nobody could be asked: {why}"));
                self.deny(listener, &call, expected, Decision { reason, ..decision });
            }
        }
    }

    fn question(&mut self, id: u64, expected: &Expected, verdict: &Verdict) -> Result<(), String> {
        let command = self.command.unwrap_or_default();
        let parent = self.parent_of(expected.process, command);
        let parent_argv = parent.as_ref().map(|(_, argv)| expect::words(argv)).unwrap_or_default();
        let rule = match verdict.cause {
            Cause::Rule(rule) | Cause::Error { rule, .. } => self.plan.rules.get(rule),
            _ => None,
        };
        let decision = self.decision(verdict);
        self.companion.ask(&Question {
            id,
            exe: expected.exe(),
            chain: &expected.chain.iter().map(|link| link.real.as_slice()).collect::<Vec<_>>(),
            argv: &expected.arguments(),
            cwd: &expected.cwd,
            pid: expected.process.pid,
            parent: parent.as_ref().map(|(exe, _)| (exe.as_slice(), parent_argv.as_slice())),
            rule: rule.map(|rule| rule.id.as_bytes()),
            source: rule.map_or(b"", |rule| rule.source.as_bytes()),
            reason: decision.reason.as_deref().map(str::as_bytes),
            timeout_s: self.plan.ask_timeout_s.into(),
        })
    }

    /// Looks after everybody who is on his way or waits.
    pub fn turn(&mut self, listener: &Listener) {
        self.look_at_traced(listener);
        while let Some(heard) = self.companion.hear() {
            match heard {
                Heard::Answer { id, answer, by } => self.answered(listener, id, answer, by),
                Heard::Gone => self.dismiss(listener, |_| true, "whoever was asked is gone"),
            }
        }
        if !self.held.is_empty() && !self.companion.has_terminal() {
            for call in std::mem::take(&mut self.held) {
                if listener.still_waits(&call) {
                    listener.answer(&call, Answer::Continue);
                }
            }
        }
        if self.asked.is_empty() {
            return;
        }
        let now = Instant::now();
        let gone: Vec<u64> =
            self.asked.iter().filter(|asked| !listener.still_waits(&asked.call)).map(|asked| asked.id).collect();
        gone.iter().for_each(|id| self.companion.withdraw(*id));
        self.asked.retain(|asked| !gone.contains(&asked.id));
        let late = format!("nobody answered within {} s", self.plan.ask_timeout_s);
        for asked in self.asked.iter_mut().filter(|asked| asked.deadline <= now && !asked.withdrawn) {
            self.companion.withdraw(asked.id);
            (asked.withdrawn, asked.deadline) = (true, now + TO_CLEAR);
        }
        self.dismiss(listener, |asked| asked.deadline <= now, &late);
    }

    fn answered(&mut self, listener: &Listener, id: u64, answer: companion::Answer, by: String) {
        let Some(index) = self.asked.iter().position(|asked| asked.id == id) else { return };
        let Asked { call, expected, verdict, .. } = self.asked.swap_remove(index);
        if !listener.still_waits(&call) {
            return;
        }
        let decision = Decision { by: Some(by), ..self.decision(&verdict) };
        if answer == companion::Answer::Session {
            self.allowed.insert(fingerprint(&expected));
        }
        match answer {
            companion::Answer::Once | companion::Answer::Session => self.admit(listener, call, expected, decision),
            companion::Answer::Deny => {
                self.denied.truncate(MOST_DENIED - 1);
                self.denied.push_front((expected.process.pid, fingerprint(&expected)));
                self.deny(listener, &call, expected, decision);
            }
        }
    }

    fn dismiss(&mut self, listener: &Listener, which: impl Fn(&Asked) -> bool, why: &str) {
        let (dismissed, kept) = std::mem::take(&mut self.asked).into_iter().partition(which);
        self.asked = kept;
        let dismissed: Vec<Asked> = dismissed;
        for Asked { id, call, expected, verdict, .. } in dismissed {
            self.companion.withdraw(id);
            let decision = Decision { reason: Some(why.to_owned()), ..self.decision(&verdict) };
            self.deny(listener, &call, expected, decision);
        }
    }

    fn look_at_traced(&mut self, listener: &Listener) {
        let numbers: Vec<(u32, u32)> =
            self.traced.iter().map(|traced| (traced.call.thread, traced.expected.process.pid)).collect();
        for (thread, process) in numbers {
            let found = trace::look(thread);
            let is_there = found.is_ok();
            // A thread that executes a program takes over the number of the process, which is none of ours until then.
            let (pid, found) = match found {
                Ok(None) | Err(Errno::CHILD) if process != thread => (process, trace::look(process)),
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
                let Some(index) = self.traced.iter().position(|admitted| admitted.call.thread == former) else {
                    return kill(pid); // nobody let it through
                };
                let deadline = Instant::now() + Duration::from_millis(self.plan.timeout_ms.into());
                match verify::difference(&self.traced[index].expected, pid, &mut self.memory, deadline) {
                    None => {
                        let _ = trace::detach(pid);
                        self.leave(listener, index, Outcome::Ran { verified: true });
                    }
                    Some(what) => {
                        kill(pid);
                        let admitted = &mut self.traced[index];
                        admitted.killed = true;
                        // From now on it is known by the number it died with.
                        admitted.call.thread = pid;
                        let Expected { process, argv, cwd, .. } = &admitted.expected;
                        let (process, argv, cwd) = (*process, argv.clone(), cwd.clone());
                        let (exe, decision) = (admitted.expected.exe().to_vec(), admitted.decision.clone());
                        self.tell(process, exe, argv, cwd, Outcome::Attack(what), decision);
                    }
                }
            }
            Traced::Interrupted => {
                let _ = trace::detach(pid);
                if let Some(index) = self.traced.iter().position(|admitted| admitted.call.thread == pid) {
                    self.leave(listener, index, Outcome::Failed);
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
        let is_it = |admitted: &Admitted| admitted.call.thread == pid || admitted.expected.process.pid == pid;
        if let Some(index) = self.traced.iter().position(is_it) {
            self.leave(listener, index, Outcome::Failed);
        }
    }

    /// It is through, or will never be; the next one of its process has its turn.
    fn leave(&mut self, listener: &Listener, index: usize, outcome: Outcome) {
        let Admitted { expected, decision, killed, .. } = self.traced.swap_remove(index);
        let process = expected.process.pid;
        if !killed {
            self.told(expected, outcome, decision);
        }
        while !self.traced.iter().any(|traced| traced.expected.process.pid == process)
            && let Some(index) = self.queued.iter().position(|queued| queued.expected.process.pid == process)
        {
            let Admitted { call, expected, decision, .. } = self.queued.remove(index);
            if listener.still_waits(&call) {
                self.admit(listener, call, expected, decision);
            }
        }
    }

    fn told(&mut self, expected: Expected, outcome: Outcome, decision: Decision) {
        let exe = expected.exe().to_vec();
        let Expected { process, argv, cwd, .. } = expected;
        self.tell(process, exe, argv, cwd, outcome, decision);
    }

    fn tell(
        &mut self,
        process: Process,
        exe: Vec<u8>,
        argv: Vec<u8>,
        cwd: Vec<u8>,
        outcome: Outcome,
        decision: Decision,
    ) {
        let Decision { rule, reason, by } = decision;
        let rule = rule.and_then(|rule| self.plan.rules.get(rule)).map(|rule| rule.id.as_bytes().to_vec());
        self.decided.push(Decided { process, exe, argv, cwd, outcome, rule, reason, by });
    }
}

fn kill(pid: u32) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// The same program with the same arguments in the same place.
fn fingerprint(expected: &Expected) -> [u8; 32] {
    let mut hash = Sha256::new();
    let files = expected.chain.iter().map(|link| link.real.as_slice());
    for part in files.chain([&expected.argv[..], &expected.cwd]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
