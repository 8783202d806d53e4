//! Where people are asked: the companion, whatever the questions are about, and the terminal for as
//! long as one is open on it.
//!
//! Whoever asks here looks for the answers to its own questions. A change of the terminal while a
//! person is asked on it could answer, or show something else: so these calls come by here
//! (kernel/seccomp_notify.rs), and wait.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::approver_process::{self, ApproverEvent, ApproverProcess, Question};
use crate::kernel::seccomp_notify::{CallAnswer, InterceptedCall, NotifyListener};
use crate::plan::{self, Action, Plan};

/// Of those that change a terminal.
pub const TERMINAL_CALLS: [&str; 1] = ["ioctl"];

/// Changes of the terminal that wait for the end of a question. More fail.
const MAX_WAITING_CALLS: usize = 256;
/// So soon it is seen that the terminal is the command's again.
const TERMINAL_POLL_PAUSE: Duration = Duration::from_millis(50);

/// May this plan bring a person to be asked?
pub fn is_needed(plan: &Plan) -> bool {
    let gate = plan.gate.as_ref().is_some_and(|gate: &plan::GatePlan| {
        let rules = gate.rules.iter().map(|rule| rule.action);
        rules.chain([gate.default, gate.on_error]).any(|action| action == Action::Ask)
    });
    gate || plan.network.as_ref().is_some_and(|network| network.default == Action::Ask)
}

pub struct OpenQuestions {
    approver: ApproverProcess,
    last: u64,
    answers: Vec<QuestionAnswer>,
    /// Who was asked has gone, with all that was open.
    approver_gone: bool,
    waiting_calls: Vec<InterceptedCall>,
}

/// An answer.
pub struct QuestionAnswer {
    pub id: u64,
    pub answer: approver_process::Answer,
    pub by: String,
}

impl OpenQuestions {
    pub fn new(approver: ApproverProcess) -> OpenQuestions {
        OpenQuestions {
            approver,
            last: 0,
            answers: Vec::new(),
            approver_gone: false,
            waiting_calls: Vec::new(),
        }
    }

    /// Readable when the companion has something to say.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.approver.fd()
    }

    pub fn deadline(&self) -> Option<Instant> {
        (!self.waiting_calls.is_empty()).then(|| Instant::now() + TERMINAL_POLL_PAUSE)
    }

    /// A person is being asked on the command's own terminal.
    pub fn is_asking(&self) -> bool {
        self.approver.has_terminal()
    }

    /// Nobody is left who could ask. A companion gives the terminal back before we go.
    pub fn dismiss_approver(&mut self) {
        self.approver = ApproverProcess::new(None);
    }

    /// The number of the question. Err: nobody can be asked, and why.
    pub fn ask(&mut self, question: &Question<'_>) -> Result<u64, String> {
        self.last += 1;
        self.approver.ask(self.last, question)?;
        Ok(self.last)
    }

    /// The answer is not needed any more.
    pub fn withdraw(&mut self, id: u64) {
        self.answers.retain(|answers| answers.id != id);
        self.approver.withdraw(id);
    }

    /// The answers to questions that are the caller's own, in the order they came.
    pub fn take_answers(&mut self, is_own: impl Fn(u64) -> bool) -> Vec<QuestionAnswer> {
        self.answers.extract_if(.., |answers| is_own(answers.id)).collect()
    }

    /// Nothing that is open will be answered, and nothing can be asked.
    pub fn is_approver_gone(&self) -> bool {
        self.approver_gone
    }

    /// The terminal is to be changed. While a person is asked on it, whoever wants that waits, as
    /// for anything else that is the foreground's.
    pub fn take_terminal_call(&mut self, listener: &NotifyListener, call: InterceptedCall) {
        if !self.approver.has_terminal() {
            listener.answer(&call, CallAnswer::Continue);
        } else if self.waiting_calls.len() < MAX_WAITING_CALLS {
            self.waiting_calls.push(call);
        } else {
            listener.answer(&call, CallAnswer::Fail(Errno::IO));
        }
    }

    pub fn turn(&mut self, listener: &NotifyListener) {
        while let Some(event) = self.approver.next_event() {
            match event {
                ApproverEvent::Answer { id, answer, by } => {
                    self.answers.push(QuestionAnswer { id, answer, by })
                }
                ApproverEvent::Gone => self.approver_gone = true,
            }
        }
        if !self.waiting_calls.is_empty() && !self.approver.has_terminal() {
            for call in std::mem::take(&mut self.waiting_calls) {
                if listener.still_waits(&call) {
                    listener.answer(&call, CallAnswer::Continue);
                }
            }
        }
    }
}
