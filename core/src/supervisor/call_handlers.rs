//! System calls of the command that wait for our answer, and whoever knows it: the gate for execs,
//! renames in a copy, the pin for sockets; the observer only looks.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::event_loop::Due;
use super::observer::{self, Observer};
use super::rename_handler::{self, Renames};
use crate::approve::open_questions::{self, OpenQuestions};
use crate::gate::{self, Gate};
use crate::kernel::seccomp_notify::{CallAnswer, InterceptedCall, NextCall, NotifyListener};
use crate::kernel::sys;
use crate::network::supervised_connect::SupervisedConnect;
use crate::plan::Plan;

/// So long calls are answered before everything else gets its turn: a path of many links takes long
/// to follow.
const CALLS_TURN: Duration = Duration::from_millis(2);

/// The calls of a plan that wait for our answer, besides those of sockets.
pub fn answered(plan: &Plan) -> Vec<&'static str> {
    let mut calls = Vec::new();
    calls.extend(plan.workspace.iter().flat_map(|_| rename_handler::CALLS));
    calls.extend(plan.gate.iter().flat_map(|_| gate::CALLS));
    calls.extend(
        open_questions::TERMINAL_CALLS.into_iter().filter(|_| open_questions::is_needed(plan)),
    );
    calls.extend(observer::calls(plan.tier).filter(|_| plan.observe));
    calls
}

/// Who has to do with calls from the first program on.
pub struct CallHandlers {
    pub gate: Option<Gate>,
    /// Where people are asked: about execs by the gate, about hosts by whoever hears the relay.
    pub desk: OpenQuestions,
    pub observer: Option<Observer>,
    pub pin: Option<SupervisedConnect>,
    /// Somebody will answer for renaming, who is not there yet; and calls for him.
    renames_come: bool,
    early: Vec<InterceptedCall>,
}

impl CallHandlers {
    pub fn new(
        plan: &Plan,
        gate: Option<Gate>,
        desk: OpenQuestions,
        observer: Option<Observer>,
        pin: Option<SupervisedConnect>,
    ) -> CallHandlers {
        CallHandlers {
            gate,
            desk,
            observer,
            pin,
            renames_come: plan.workspace.is_some(),
            early: Vec::new(),
        }
    }

    /// Answers for the first program, which starts while somebody else waits for that. Until
    /// `other` has something to say.
    pub fn attend(
        &mut self,
        listener: &NotifyListener,
        other: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        let children = sys::child_signal_descriptor()?;
        loop {
            let deadline = self
                .gate
                .as_ref()
                .and_then(Gate::deadline)
                .into_iter()
                .chain(self.desk.deadline())
                .min();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let waited_for =
                [Some(other), Some(listener.fd()), Some(children.as_fd()), self.desk.fd()];
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
        self.desk.turn(listener);
        if let Some(gate) = &mut self.gate {
            gate.turn(listener, &mut self.desk);
        }
    }

    fn take(
        &mut self,
        listener: &NotifyListener,
        call: InterceptedCall,
        renames: Option<&mut Renames<'_>>,
    ) {
        let seen = self.observer.as_mut().map(|observer| observer.look(listener, &call));
        let executes = matches!(i64::from(call.number), libc::SYS_execve | libc::SYS_execveat);
        let is_change = i64::from(call.number) == libc::SYS_ioctl;
        match (&mut self.gate, renames) {
            _ if self.pin.is_some() && SupervisedConnect::handles(&call) => {
                if let Some(pin) = &mut self.pin {
                    pin.take(listener, call);
                }
            }
            (Some(gate), _) if executes => gate.take(listener, call, &mut self.desk),
            _ if is_change => self.desk.take_terminal_call(listener, call),
            (_, Some(renames)) if Renames::knows(&call) => renames.take(listener, call),
            (_, None) if self.renames_come && Renames::knows(&call) => self.early.push(call),
            // Whoever only looks lets everything go on.
            _ if seen.is_some() => listener.answer(&call, CallAnswer::Continue),
            // The filter passes on only what somebody knows an answer to.
            _ => listener.answer(&call, CallAnswer::Fail(Errno::ACCESS)),
        }
        if let (Some(observer), Some(seen)) = (&mut self.observer, seen) {
            observer.note(seen);
        }
    }
}

/// System calls that wait for our answer, and who knows it.
pub struct Calls<'a> {
    listener: NotifyListener,
    pub attendants: CallHandlers,
    pub renames: Option<Renames<'a>>,
    /// Nobody is left who could call.
    over: bool,
}

impl<'a> Calls<'a> {
    pub fn new(
        listener: NotifyListener,
        attendants: CallHandlers,
        renames: Option<Renames<'a>>,
    ) -> Calls<'a> {
        if let Some(gate) = &attendants.gate {
            gate.settle();
        }
        let attendants = CallHandlers { renames_come: false, ..attendants };
        let mut calls = Calls { listener, attendants, renames, over: false };
        for call in std::mem::take(&mut calls.attendants.early) {
            match &mut calls.renames {
                Some(renames) => renames.take(&calls.listener, call),
                None => calls.listener.answer(&call, CallAnswer::Continue),
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
        let listener = (!self.over).then(|| self.listener.fd());
        let CallHandlers { desk, observer, pin, .. } = &self.attendants;
        let (observer, pin) = (
            observer.as_ref().and_then(Observer::fd),
            pin.as_ref().and_then(SupervisedConnect::fd),
        );
        [listener, self.renames.as_ref().and_then(Renames::fd), desk.fd(), observer, pin]
    }

    pub fn deadline(&self) -> Option<Instant> {
        let gate = self.attendants.gate.as_ref().and_then(Gate::deadline);
        let observer = self.attendants.observer.as_ref().and_then(Observer::deadline);
        let pin = self.attendants.pin.as_ref().and_then(SupervisedConnect::deadline);
        [gate, observer, pin, self.attendants.desk.deadline()].into_iter().flatten().min()
    }

    pub fn turn(&mut self, due: Due) -> Result<(), Errno> {
        let started = Instant::now();
        if due == Due::All {
            if let Some(renames) = &mut self.renames {
                renames.turn(&self.listener);
            }
            if let Some(observer) = &mut self.attendants.observer {
                observer.turn();
            }
            if let Some(pin) = &mut self.attendants.pin {
                pin.turn(&self.listener);
            }
        }
        let mut seen = due == Due::Calls;
        while started.elapsed() < CALLS_TURN {
            self.attendants.turn(&self.listener);
            if due == Due::Traced {
                break;
            }
            match self.listener.next(std::mem::take(&mut seen))? {
                NextCall::Call(call) => {
                    self.attendants.take(&self.listener, call, self.renames.as_mut());
                    // What comes next is its exec stop, most likely, and that is heard of
                    // elsewhere.
                    if self.attendants.gate.as_ref().is_some_and(Gate::only_traces) {
                        break;
                    }
                }
                NextCall::Nothing => break,
                NextCall::Closed => {
                    self.over = true;
                    break;
                }
            }
        }
        Ok(())
    }
}
