//! Execs that a person is asked about. Each stays pending until the answer, the end of its time, or
//! the end of its process.

use std::time::{Duration, Instant};

use super::expected_exec::ExpectedExec;
use super::rules::{Cause, ExecDecision};
use super::{DecisionReason, ExecGate};
use crate::approve::approver_process;
use crate::approve::open_questions::{OpenQuestions, QuestionAnswer};
use crate::journal::event::exec;
use crate::kernel::seccomp_notify::{InterceptedCall, NotifyListener};

/// More than a person will answer. Each question keeps its files open.
const MAX_OPEN_QUESTIONS: usize = 2048;
/// Time for a withdrawn question to leave the screen.
const WITHDRAW_TIMEOUT: Duration = Duration::from_millis(500);
/// Denials that are kept for the process that met them.
pub(super) const MAX_DENIALS: usize = 64;

/// An exec that a person is asked about.
pub(super) struct ExecQuestion {
    id: u64,
    call: InterceptedCall,
    expected: ExpectedExec,
    decision: ExecDecision,
    since: Instant,
    pub deadline: Instant,
    /// The time is over. The question has to leave the screen before the process goes on and writes
    /// there.
    withdrawn: bool,
}

impl ExecGate {
    pub(super) fn ask(
        &mut self,
        listener: &NotifyListener,
        call: InterceptedCall,
        expected: ExpectedExec,
        decision: ExecDecision,
        questions: &mut OpenQuestions,
    ) {
        let pending = if self.pending.len() < MAX_OPEN_QUESTIONS {
            self.question(&expected, &decision, questions)
        } else {
            Err("too many questions wait for an answer".to_owned())
        };
        match pending {
            Ok(id) => {
                let since = Instant::now();
                let deadline = since + Duration::from_secs(self.plan.ask_timeout_s.into());
                self.pending.push(ExecQuestion {
                    id,
                    call,
                    expected,
                    decision,
                    since,
                    deadline,
                    withdrawn: false,
                });
            }
            Err(why) => {
                let decision_reason = self.reason_for(&decision);
                let reason = Some(format!("no approver is available: {why}"));
                self.deny(listener, &call, expected, DecisionReason { reason, ..decision_reason });
            }
        }
    }

    fn question(
        &mut self,
        expected: &ExpectedExec,
        decision: &ExecDecision,
        questions: &mut OpenQuestions,
    ) -> Result<u64, String> {
        let command = self.command.unwrap_or_default();
        let parent = self.parent_of(expected.process(), command);
        let parent_argv =
            parent.as_ref().map(|(_, argv)| exec::nul_separated(argv)).unwrap_or_default();
        let rule = match decision.cause {
            Cause::Rule(rule) | Cause::Error { rule, .. } => self.plan.rules.get(rule),
            _ => None,
        };
        let decision_reason = self.reason_for(decision);
        questions.ask(&approver_process::Question::Exec(approver_process::ExecPrompt {
            exe: expected.exe(),
            chain: &expected.chain.iter().map(|link| link.real.as_slice()).collect::<Vec<_>>(),
            argv: &expected.arguments(),
            cwd: expected.cwd(),
            pid: expected.pid,
            parent: parent.as_ref().map(|(exe, _)| (exe.as_slice(), parent_argv.as_slice())),
            rule: rule.map(|rule| rule.id.as_bytes()),
            source: rule.map_or(b"", |rule| rule.source.as_bytes()),
            reason: decision_reason.reason.as_deref().map(str::as_bytes),
            timeout_s: self.plan.ask_timeout_s.into(),
        }))
    }

    /// Takes answers, and ends questions whose time, process or approver is gone.
    pub(super) fn serve_questions(
        &mut self,
        listener: &NotifyListener,
        questions: &mut OpenQuestions,
    ) {
        if self.pending.is_empty() {
            return;
        }
        for QuestionAnswer { id, answer, by } in
            questions.take_answers(|id| self.pending.iter().any(|pending| pending.id == id))
        {
            self.answered(listener, id, answer, by);
        }
        if questions.is_approver_gone() {
            self.dismiss(listener, |_| true, "the approver has ended", questions);
        }
        let now = Instant::now();
        let gone: Vec<u64> = self
            .pending
            .iter()
            .filter(|pending| !listener.still_waits(&pending.call))
            .map(|pending| pending.id)
            .collect();
        gone.iter().for_each(|id| questions.withdraw(*id));
        self.pending.retain(|pending| !gone.contains(&pending.id));
        let late = format!("no answer within {} s", self.plan.ask_timeout_s);
        for pending in
            self.pending.iter_mut().filter(|pending| pending.deadline <= now && !pending.withdrawn)
        {
            questions.withdraw(pending.id);
            (pending.withdrawn, pending.deadline) = (true, now + WITHDRAW_TIMEOUT);
        }
        self.dismiss(listener, |pending| pending.deadline <= now, &late, questions);
    }

    fn answered(
        &mut self,
        listener: &NotifyListener,
        id: u64,
        answer: approver_process::Answer,
        by: String,
    ) {
        let Some(index) = self.pending.iter().position(|pending| pending.id == id) else { return };
        let ExecQuestion { call, expected, decision, since, .. } = self.pending.swap_remove(index);
        if !listener.still_waits(&call) {
            return;
        }
        let decision_reason = DecisionReason {
            by: Some(by),
            asked_ms: Some(elapsed_ms(since)),
            ..self.reason_for(&decision)
        };
        if answer == approver_process::Answer::Session {
            self.allowed.insert(expected.fingerprint());
        }
        match answer {
            approver_process::Answer::Once | approver_process::Answer::Session => {
                self.admit(listener, call, expected, decision_reason)
            }
            approver_process::Answer::Deny => {
                self.denied.truncate(MAX_DENIALS - 1);
                self.denied.push_front((expected.pid, expected.fingerprint()));
                self.deny(listener, &call, expected, decision_reason);
            }
        }
    }

    fn dismiss(
        &mut self,
        listener: &NotifyListener,
        which: impl Fn(&ExecQuestion) -> bool,
        why: &str,
        questions: &mut OpenQuestions,
    ) {
        let (dismissed, still_pending) =
            std::mem::take(&mut self.pending).into_iter().partition(which);
        self.pending = still_pending;
        let dismissed: Vec<ExecQuestion> = dismissed;
        for ExecQuestion { id, call, expected, decision, since, .. } in dismissed {
            questions.withdraw(id);
            let (reason, asked_ms) = (Some(why.to_owned()), Some(elapsed_ms(since)));
            let decision_reason = DecisionReason { reason, asked_ms, ..self.reason_for(&decision) };
            self.deny(listener, &call, expected, decision_reason);
        }
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
