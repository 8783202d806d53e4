//! Questions about hosts, from the relay to a person: the supervisor's side.

use std::time::{Duration, Instant};

use crate::approve::approver_process::{Answer, HostPrompt, Question};
use crate::approve::open_questions::{OpenQuestions, QuestionAnswer};
use crate::network::relay::relay_messages::{SocketProcess, SupervisorReply};
use crate::plan;
use crate::plan::wire::bytes::Text;

/// More open questions than a person can answer.
const MAX_OPEN_QUESTIONS: usize = 2048;
/// Time for a question to leave the screen before the program continues and writes there.
const CLEAR_TIMEOUT: Duration = Duration::from_millis(500);

pub struct HostQuestions {
    timeout_s: u64,
    source: Option<Text>,
    open: Vec<OpenHostQuestion>,
}

struct OpenHostQuestion {
    /// The id of the relay, and the id of the approver's question.
    id: u64,
    question_id: u64,
    since: Instant,
    deadline: Instant,
    /// True once the time is over.
    withdrawn: bool,
}

impl HostQuestions {
    pub fn of(network: &plan::Network) -> HostQuestions {
        HostQuestions {
            timeout_s: network.ask_timeout_s.into(),
            source: network.default_source.clone(),
            open: Vec::new(),
        }
    }

    /// Asks the question. Returns a reply if it can not be asked.
    pub fn ask(
        &mut self,
        id: u64,
        host: &str,
        port: u16,
        process: Option<&SocketProcess>,
        open_questions: Option<&mut OpenQuestions>,
    ) -> Option<SupervisorReply> {
        let process = process.map(|process| (process.pid, &*process.exe));
        let source = self.source.as_ref().map_or(&b""[..], Text::as_bytes);
        let host = HostPrompt { host, port, process, source, timeout_s: self.timeout_s };
        let open = match open_questions {
            Some(open_questions) if self.open.len() < MAX_OPEN_QUESTIONS => {
                open_questions.ask(&Question::Host(host))
            }
            Some(_) => Err("too many questions wait for an answer".to_owned()),
            None => Err("the plan has no approver".to_owned()),
        };
        let now = Instant::now();
        match open {
            Ok(question_id) => {
                let deadline = now + Duration::from_secs(self.timeout_s);
                self.open.push(OpenHostQuestion {
                    id,
                    question_id,
                    since: now,
                    deadline,
                    withdrawn: false,
                });
                None
            }
            Err(why) => Some(unanswered(id, now, format!("no approver is available: {why}"))),
        }
    }

    pub fn withdraw(&mut self, id: u64, open_questions: &mut OpenQuestions) {
        if let Some(index) = self.open.iter().position(|open| open.id == id) {
            open_questions.withdraw(self.open.swap_remove(index).question_id);
        }
    }

    /// Withdraws all questions: the relay is gone.
    pub fn withdraw_all(&mut self, open_questions: &mut OpenQuestions) {
        self.open.drain(..).for_each(|open| open_questions.withdraw(open.question_id));
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.deadline).min()
    }

    /// Replies to answered questions, and to questions that will not be answered.
    pub fn turn(&mut self, open_questions: &mut OpenQuestions) -> Vec<SupervisorReply> {
        let mut replies = Vec::new();
        for QuestionAnswer { id, answer, by } in
            open_questions.take_answers(|id| self.open.iter().any(|open| open.question_id == id))
        {
            let Some(index) = self.open.iter().position(|open| open.question_id == id) else {
                continue;
            };
            let OpenHostQuestion { id, since, .. } = self.open.swap_remove(index);
            replies.push(SupervisorReply::Answer {
                id,
                answer,
                by: Some(by),
                reason: None,
                ms: elapsed_ms(since),
            });
        }
        let now = Instant::now();
        for open in self.open.iter_mut().filter(|open| open.deadline <= now && !open.withdrawn) {
            open_questions.withdraw(open.question_id);
            (open.withdrawn, open.deadline) = (true, now + CLEAR_TIMEOUT);
        }
        let is_approver_gone = open_questions.is_approver_gone();
        let late = format!("no answer within {} s", self.timeout_s);
        let why = if is_approver_gone { "the approver has ended" } else { &late };
        for OpenHostQuestion { id, since, .. } in
            self.open.extract_if(.., |open| is_approver_gone || open.deadline <= now)
        {
            replies.push(unanswered(id, since, why.to_owned()));
        }
        replies
    }
}

fn unanswered(id: u64, since: Instant, reason: String) -> SupervisorReply {
    SupervisorReply::Answer {
        id,
        answer: Answer::Deny,
        by: None,
        reason: Some(reason),
        ms: elapsed_ms(since),
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}
