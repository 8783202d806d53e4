//! Hosts that the relay asks about, and a person answers for: the supervisor's side.

use std::time::{Duration, Instant};

use crate::approve::approver_process::{Answer, Host, Question};
use crate::approve::open_questions::{Given, OpenQuestions};
use crate::network::relay::relay_messages::{Process, Reply};
use crate::plan;
use crate::plan::wire::bytes::Text;

/// More questions than a person will answer.
const MOST_ASKED: usize = 2048;
/// So long a question has to leave the screen, before the program goes on and writes there.
const TO_CLEAR: Duration = Duration::from_millis(500);

pub struct Asker {
    timeout_s: u64,
    source: Option<Text>,
    asked: Vec<HostQuestion>,
}

struct HostQuestion {
    /// The relay's number for it, and the desk's.
    id: u64,
    at_desk: u64,
    since: Instant,
    deadline: Instant,
    /// The time is over.
    withdrawn: bool,
}

impl Asker {
    pub fn of(network: &plan::Network) -> Asker {
        Asker {
            timeout_s: network.ask_timeout_s.into(),
            source: network.default_source.clone(),
            asked: Vec::new(),
        }
    }

    /// The reply, if it is no question any more.
    pub fn ask(
        &mut self,
        id: u64,
        host: &str,
        port: u16,
        process: Option<&Process>,
        desk: Option<&mut OpenQuestions>,
    ) -> Option<Reply> {
        let process = process.map(|process| (process.pid, &*process.exe));
        let source = self.source.as_ref().map_or(&b""[..], Text::as_bytes);
        let host = Host { host, port, process, source, timeout_s: self.timeout_s };
        let asked = match desk {
            Some(desk) if self.asked.len() < MOST_ASKED => desk.ask(&Question::Host(host)),
            Some(_) => Err("too many questions wait for an answer".to_owned()),
            None => Err("the plan has no approver".to_owned()),
        };
        let now = Instant::now();
        match asked {
            Ok(at_desk) => {
                let deadline = now + Duration::from_secs(self.timeout_s);
                self.asked.push(HostQuestion {
                    id,
                    at_desk,
                    since: now,
                    deadline,
                    withdrawn: false,
                });
                None
            }
            Err(why) => Some(unanswered(id, now, format!("no approver is available: {why}"))),
        }
    }

    pub fn withdraw(&mut self, id: u64, desk: &mut OpenQuestions) {
        if let Some(index) = self.asked.iter().position(|asked| asked.id == id) {
            desk.withdraw(self.asked.swap_remove(index).at_desk);
        }
    }

    /// Nobody is left to whom an answer could be told.
    pub fn withdraw_all(&mut self, desk: &mut OpenQuestions) {
        self.asked.drain(..).for_each(|asked| desk.withdraw(asked.at_desk));
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.asked.iter().map(|asked| asked.deadline).min()
    }

    /// What was answered, and what will not be.
    pub fn turn(&mut self, desk: &mut OpenQuestions) -> Vec<Reply> {
        let mut replies = Vec::new();
        for Given { id, answer, by } in
            desk.given(|id| self.asked.iter().any(|asked| asked.at_desk == id))
        {
            let Some(index) = self.asked.iter().position(|asked| asked.at_desk == id) else {
                continue;
            };
            let HostQuestion { id, since, .. } = self.asked.swap_remove(index);
            replies.push(Reply::Answer {
                id,
                verdict: answer,
                by: Some(by),
                reason: None,
                ms: elapsed_ms(since),
            });
        }
        let now = Instant::now();
        for asked in self.asked.iter_mut().filter(|asked| asked.deadline <= now && !asked.withdrawn)
        {
            desk.withdraw(asked.at_desk);
            (asked.withdrawn, asked.deadline) = (true, now + TO_CLEAR);
        }
        let is_deserted = desk.is_deserted();
        let late = format!("no answer within {} s", self.timeout_s);
        let why = if is_deserted { "the approver has ended" } else { &late };
        for HostQuestion { id, since, .. } in
            self.asked.extract_if(.., |asked| is_deserted || asked.deadline <= now)
        {
            replies.push(unanswered(id, since, why.to_owned()));
        }
        replies
    }
}

fn unanswered(id: u64, since: Instant, reason: String) -> Reply {
    Reply::Answer {
        id,
        verdict: Answer::Deny,
        by: None,
        reason: Some(reason),
        ms: elapsed_ms(since),
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}
