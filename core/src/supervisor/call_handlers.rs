//! Intercepted system calls, and the handler of each: the gate for execs, the rename handler for
//! renames in a copy, supervised connect for sockets. The observer only reads.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::event_loop::Due;
use super::observer::{self, Observer};
use super::rename_handler::{self, RenameHandler};
use crate::approve::open_questions::{self, OpenQuestions};
use crate::files::writes::{self, ChangedName, RefusedWrite};
use crate::gate::{self, ExecGate};
use crate::kernel::seccomp_notify::{InterceptedCall, NextCall, NotifyAnswer, NotifyListener};
use crate::kernel::sys;
use crate::network::supervised_connect::SupervisedConnect;
use crate::plan::Plan;

/// The supervisor answers calls for at most this time before it serves its other tasks. A path of
/// many links takes long to follow.
const CALLS_TURN_TIMEOUT: Duration = Duration::from_millis(2);

/// The calls that the supervisor answers for a plan, besides those on sockets.
pub fn answered(plan: &Plan) -> Vec<&'static str> {
    let mut calls = Vec::new();
    calls.extend(plan.workspace.iter().flat_map(|_| rename_handler::CALLS));
    calls.extend(plan.gate.iter().flat_map(|_| gate::CALLS));
    if writes::are_judged(plan) {
        calls.extend(writes::calls(plan));
    }
    calls.extend(
        open_questions::TERMINAL_CALLS.into_iter().filter(|_| open_questions::is_needed(plan)),
    );
    calls.extend(observer::calls(plan).filter(|_| plan.observe));
    calls
}

/// The handlers that serve calls from the first program on.
pub struct CallHandlers {
    pub gate: Option<ExecGate>,
    /// Questions to a person: about execs from the gate, about hosts from the relay.
    pub questions: OpenQuestions,
    pub observer: Option<Observer>,
    pub supervised_connect: Option<SupervisedConnect>,
    /// Init judges writes. It reads the listener only after the start: until then writes are kept
    /// here. Later only those come here that the observer has to see first.
    judges_writes: bool,
    early_writes: Vec<InterceptedCall>,
    /// Writes that init has refused.
    pub refused_writes: Vec<RefusedWrite>,
    /// Flagged names that the command has changed. Init sends each once, and a limited number.
    pub changed_names: Vec<ChangedName>,
    /// The rename handler exists only after the start. Until then renames are kept here.
    awaits_renames: bool,
    early_renames: Vec<InterceptedCall>,
}

impl CallHandlers {
    pub fn new(
        plan: &Plan,
        gate: Option<ExecGate>,
        questions: OpenQuestions,
        observer: Option<Observer>,
        supervised_connect: Option<SupervisedConnect>,
    ) -> CallHandlers {
        CallHandlers {
            gate,
            questions,
            observer,
            supervised_connect,
            judges_writes: writes::are_judged(plan),
            early_writes: Vec::new(),
            refused_writes: Vec::new(),
            changed_names: Vec::new(),
            awaits_renames: plan.workspace.is_some(),
            early_renames: Vec::new(),
        }
    }

    /// Answers calls of the first program, until `other` is readable. Another process waits for
    /// that program to start.
    pub fn answer_until_readable(
        &mut self,
        listener: &NotifyListener,
        other: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let children = sys::child_signal_descriptor()?;
        loop {
            let deadline = self
                .gate
                .as_ref()
                .and_then(ExecGate::deadline)
                .into_iter()
                .chain(self.questions.deadline())
                .min();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let waited_for =
                [Some(other), Some(listener.fd()), Some(children.as_fd()), self.questions.fd()];
            let mut ready: Vec<PollFd<'_>> = waited_for
                .into_iter()
                .flatten()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            match rustix::event::poll(&mut ready, left.as_ref()) {
                Err(Errno::INTR) => continue,
                polled => polled?,
            };
            if !ready[0].revents().is_empty() {
                return Ok(());
            }
            sys::discard_child_signals();
            self.turn(listener);
            if let NextCall::Call(call) = listener.next(false)? {
                self.take(listener, call, None);
            }
        }
    }

    fn turn(&mut self, listener: &NotifyListener) {
        self.questions.turn(listener);
        if let Some(gate) = &mut self.gate {
            gate.turn(listener, &mut self.questions);
        }
    }

    fn take(
        &mut self,
        listener: &NotifyListener,
        call: InterceptedCall,
        renames: Option<&mut RenameHandler<'_>>,
    ) {
        let seen = self.observer.as_mut().map(|observer| observer.look(listener, &call));
        if self.judges_writes && writes::call::is_write_call(&call) {
            if let (Some(observer), Some(seen)) = (&mut self.observer, seen) {
                observer.note(seen);
            }
            return self.early_writes.push(call);
        }
        let executes = matches!(i64::from(call.number), libc::SYS_execve | libc::SYS_execveat);
        let is_change = i64::from(call.number) == libc::SYS_ioctl;
        match (&mut self.gate, renames) {
            _ if self.supervised_connect.is_some() && SupervisedConnect::handles(&call) => {
                if let Some(supervised_connect) = &mut self.supervised_connect {
                    supervised_connect.take(listener, call);
                }
            }
            (Some(gate), _) if executes => gate.take(listener, call, &mut self.questions),
            _ if is_change => self.questions.take_terminal_call(listener, call),
            (_, Some(renames)) if RenameHandler::knows(&call) => renames.take(listener, call),
            (_, None) if self.awaits_renames && RenameHandler::knows(&call) => {
                self.early_renames.push(call)
            }
            // With the observer alone every call continues.
            _ if seen.is_some() => listener.answer(&call, NotifyAnswer::Continue),
            // The filter sends only calls that have a handler.
            _ => listener.answer(&call, NotifyAnswer::Fail(Errno::ACCESS)),
        }
        if let (Some(observer), Some(seen)) = (&mut self.observer, seen) {
            observer.note(seen);
        }
    }
}

/// The listener, and the handlers of its calls.
pub struct Calls<'a> {
    listener: NotifyListener,
    pub handlers: CallHandlers,
    pub renames: Option<RenameHandler<'a>>,
    /// No process is left that could make a call.
    is_over: bool,
}

impl<'a> Calls<'a> {
    pub fn new(
        listener: NotifyListener,
        handlers: CallHandlers,
        renames: Option<RenameHandler<'a>>,
    ) -> Calls<'a> {
        if let Some(gate) = &handlers.gate {
            gate.settle();
        }
        let handlers = CallHandlers { awaits_renames: false, ..handlers };
        let mut calls = Calls { listener, handlers, renames, is_over: false };
        calls.hand_over_writes();
        for call in std::mem::take(&mut calls.handlers.early_renames) {
            match &mut calls.renames {
                Some(renames) => renames.take(&calls.listener, call),
                None => calls.listener.answer(&call, NotifyAnswer::Continue),
            }
        }
        calls
    }

    pub fn are_due(&self) -> bool {
        let wait = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut waiting: Vec<PollFd<'_>> =
            self.descriptors().into_iter().flatten().map(wait).collect();
        rustix::event::poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
            .is_ok_and(|ready| ready > 0)
            || self.deadline().is_some_and(|deadline| deadline <= Instant::now())
    }

    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 5] {
        let listener = (!self.is_over).then(|| self.listener.fd());
        let CallHandlers { questions, observer, supervised_connect, .. } = &self.handlers;
        let (observer, supervised_connect) = (
            observer.as_ref().and_then(Observer::fd),
            supervised_connect.as_ref().and_then(SupervisedConnect::fd),
        );
        [
            listener,
            self.renames.as_ref().and_then(RenameHandler::fd),
            questions.fd(),
            observer,
            supervised_connect,
        ]
    }

    pub fn deadline(&self) -> Option<Instant> {
        let gate = self.handlers.gate.as_ref().and_then(ExecGate::deadline);
        let observer = self.handlers.observer.as_ref().and_then(Observer::deadline);
        let supervised_connect =
            self.handlers.supervised_connect.as_ref().and_then(SupervisedConnect::deadline);
        [gate, observer, supervised_connect, self.handlers.questions.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    pub fn turn(&mut self, due: Due) -> Result<(), Errno> {
        let started = Instant::now();
        if due == Due::All {
            if let Some(renames) = &mut self.renames {
                renames.turn(&self.listener);
            }
            if let Some(observer) = &mut self.handlers.observer {
                observer.turn();
            }
            if let Some(supervised_connect) = &mut self.handlers.supervised_connect {
                supervised_connect.turn(&self.listener);
            }
        }
        let mut seen = due == Due::Calls;
        while started.elapsed() < CALLS_TURN_TIMEOUT {
            self.handlers.turn(&self.listener);
            if due == Due::Traced
                || self.handlers.supervised_connect.as_ref().is_some_and(SupervisedConnect::is_full)
            {
                break;
            }
            match self.listener.next(std::mem::take(&mut seen))? {
                NextCall::Call(call) => {
                    self.handlers.take(&self.listener, call, self.renames.as_mut());
                    self.hand_over_writes();
                    // The next event is most likely the exec stop, which arrives as SIGCHLD.
                    if self.handlers.gate.as_ref().is_some_and(ExecGate::only_traces) {
                        break;
                    }
                }
                NextCall::RenameInCopy(call) => match &mut self.renames {
                    Some(renames) => renames.take(&self.listener, call),
                    None => self.listener.answer(&call, NotifyAnswer::Fail(Errno::XDEV)),
                },
                NextCall::Message(message) => self.receive(&message),
                NextCall::Nothing => break,
                NextCall::Closed => {
                    self.is_over = true;
                    break;
                }
            }
        }
        Ok(())
    }

    /// A message of init about a write.
    fn receive(&mut self, message: &[u8]) {
        if let Some(refused) = RefusedWrite::parse(message) {
            let thread = self.listener.thread_here(refused.thread).unwrap_or(0);
            self.handlers.refused_writes.push(RefusedWrite { thread, ..refused });
        }
        self.handlers.changed_names.extend(ChangedName::parse(message));
    }

    /// Reads the last messages of init. Called when every process has ended.
    pub fn finish(&mut self) {
        while self.handlers.judges_writes {
            match self.listener.next(false) {
                Ok(NextCall::Message(message)) => self.receive(&message),
                // No process waits for an answer.
                Ok(NextCall::Call(_) | NextCall::RenameInCopy(_)) => {}
                Ok(NextCall::Nothing | NextCall::Closed) | Err(_) => break,
            }
        }
    }

    /// Sends writes to init: those from before the start, and those that the observer has seen.
    fn hand_over_writes(&mut self) {
        for call in std::mem::take(&mut self.handlers.early_writes) {
            // The thread may have ended, or its id could not be read. A waiting caller gets an answer.
            if self.listener.hand_over(&call).is_err() {
                self.listener.answer(&call, NotifyAnswer::Fail(Errno::ACCESS));
            }
        }
    }
}
