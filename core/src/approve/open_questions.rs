//! All open questions to the approver, and terminal calls that wait while a question is shown.
//!
//! Each user of this type takes the answers to its own questions. Changing the terminal while a
//! person is asked could answer the question or show other text. So these calls are intercepted
//! (kernel/seccomp_notify.rs), and wait.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::approver_process::{self, ApproverEvent, ApproverProcess, Question};
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyAnswer, NotifyListener};
use crate::plan::{self, Action, Plan};

/// The intercepted calls that change a terminal.
pub const TERMINAL_CALLS: [&str; 1] = ["ioctl"];

/// Terminal calls that wait for the end of a question. Further calls fail.
const MAX_WAITING_CALLS: usize = 256;
/// Pause between checks whether the command has the terminal again.
const TERMINAL_POLL_PAUSE: Duration = Duration::from_millis(50);

/// True if this plan can cause a question.
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
    /// The approver is gone, and all open questions with it.
    approver_gone: bool,
    waiting_calls: Vec<InterceptedCall>,
}

/// The answer to one question.
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

    /// Readable when the approver sent a message.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.approver.fd()
    }

    pub fn deadline(&self) -> Option<Instant> {
        (!self.waiting_calls.is_empty()).then(|| Instant::now() + TERMINAL_POLL_PAUSE)
    }

    /// True if the command may have been stopped because a person is asked on its terminal.
    pub fn is_asking(&self) -> bool {
        self.approver.causes_stops()
    }

    /// Ends the approver, which restores the terminal first.
    pub fn dismiss_approver(&mut self) {
        self.approver = ApproverProcess::new(None);
    }

    /// Returns the id of the question. Err: the reason why nothing can be asked.
    pub fn ask(&mut self, question: &Question<'_>) -> Result<u64, String> {
        self.last += 1;
        self.approver.ask(self.last, question)?;
        Ok(self.last)
    }

    /// Withdraws a question.
    pub fn withdraw(&mut self, id: u64) {
        self.answers.retain(|answers| answers.id != id);
        self.approver.withdraw(id);
    }

    /// Takes the answers to the caller's own questions, in the order they came.
    pub fn take_answers(&mut self, is_own: impl Fn(u64) -> bool) -> Vec<QuestionAnswer> {
        self.answers.extract_if(.., |answers| is_own(answers.id)).collect()
    }

    /// True: no open question will be answered, and nothing can be asked.
    pub fn is_approver_gone(&self) -> bool {
        self.approver_gone
    }

    /// Handles a call that changes the terminal. While a person is asked there, the call waits,
    /// like a background process.
    pub fn take_terminal_call(&mut self, listener: &NotifyListener, call: InterceptedCall) {
        if !self.approver.has_terminal() {
            listener.answer(&call, NotifyAnswer::Continue);
        } else if self.waiting_calls.len() < MAX_WAITING_CALLS {
            self.waiting_calls.push(call);
        } else {
            listener.answer(&call, NotifyAnswer::Fail(Errno::IO));
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
                    listener.answer(&call, NotifyAnswer::Continue);
                }
            }
        }
    }
}
