//! Where people are asked: the companion, whatever the questions are about, and the terminal for as
//! long as one is open on it.
//!
//! Whoever asks here looks for the answers to its own questions. A change of the terminal while a
//! person is asked on it could answer, or show something else: so these calls come by here
//! (kernel/seccomp_notify.rs), and wait.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::approver_process::{self, ApproverProcess, Heard, Question};
use crate::kernel::seccomp_notify::{Answer, Call, Listener};
use crate::plan::{self, Action, Plan};

/// Of those that change a terminal.
pub const CALLS: [&str; 1] = ["ioctl"];

/// Changes of the terminal that wait for the end of a question. More fail.
const MOST_HELD: usize = 256;
/// So soon it is seen that the terminal is the command's again.
const HELD: Duration = Duration::from_millis(50);

/// May this plan bring a person to be asked?
pub fn is_needed(plan: &Plan) -> bool {
    let gate = plan.gate.as_ref().is_some_and(|gate: &plan::Gate| {
        let rules = gate.rules.iter().map(|rule| rule.action);
        rules.chain([gate.default, gate.on_error]).any(|action| action == Action::Ask)
    });
    gate || plan.network.as_ref().is_some_and(|network| network.default == Action::Ask)
}

pub struct OpenQuestions {
    companion: ApproverProcess,
    last: u64,
    given: Vec<Given>,
    /// Who was asked has gone, with all that was open.
    deserted: bool,
    held: Vec<Call>,
}

/// An answer.
pub struct Given {
    pub id: u64,
    pub answer: approver_process::Answer,
    pub by: String,
}

impl OpenQuestions {
    pub fn new(companion: ApproverProcess) -> OpenQuestions {
        OpenQuestions { companion, last: 0, given: Vec::new(), deserted: false, held: Vec::new() }
    }

    /// Readable when the companion has something to say.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.companion.fd()
    }

    pub fn deadline(&self) -> Option<Instant> {
        (!self.held.is_empty()).then(|| Instant::now() + HELD)
    }

    /// A person is being asked on the command's own terminal.
    pub fn is_asking(&self) -> bool {
        self.companion.has_terminal()
    }

    /// Nobody is left who could ask. A companion gives the terminal back before we go.
    pub fn dismiss_companion(&mut self) {
        self.companion = ApproverProcess::new(None);
    }

    /// The number of the question. Err: nobody can be asked, and why.
    pub fn ask(&mut self, question: &Question<'_>) -> Result<u64, String> {
        self.last += 1;
        self.companion.ask(self.last, question)?;
        Ok(self.last)
    }

    /// The answer is not needed any more.
    pub fn withdraw(&mut self, id: u64) {
        self.given.retain(|given| given.id != id);
        self.companion.withdraw(id);
    }

    /// The answers to questions that are the caller's own, in the order they came.
    pub fn given(&mut self, is_own: impl Fn(u64) -> bool) -> Vec<Given> {
        self.given.extract_if(.., |given| is_own(given.id)).collect()
    }

    /// Nothing that is open will be answered, and nothing can be asked.
    pub fn is_deserted(&self) -> bool {
        self.deserted
    }

    /// The terminal is to be changed. While a person is asked on it, whoever wants that waits, as
    /// for anything else that is the foreground's.
    pub fn take_change(&mut self, listener: &Listener, call: Call) {
        if !self.companion.has_terminal() {
            listener.answer(&call, Answer::Continue);
        } else if self.held.len() < MOST_HELD {
            self.held.push(call);
        } else {
            listener.answer(&call, Answer::Fail(Errno::IO));
        }
    }

    pub fn turn(&mut self, listener: &Listener) {
        while let Some(heard) = self.companion.hear() {
            match heard {
                Heard::Answer { id, answer, by } => self.given.push(Given { id, answer, by }),
                Heard::Gone => self.deserted = true,
            }
        }
        if !self.held.is_empty() && !self.companion.has_terminal() {
            for call in std::mem::take(&mut self.held) {
                if listener.still_waits(&call) {
                    listener.answer(&call, Answer::Continue);
                }
            }
        }
    }
}
