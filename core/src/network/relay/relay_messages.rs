//! Requests and replies between relay and supervisor, besides the decisions
//! ([`crate::network::relay::decision_log`], [`crate::network::supervisor::relay_process`]). They
//! share one socket, one datagram per message. A request has an id of its sender. Several decisions
//! can share a message, one per line: JSON text contains no newline.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::approve::approver_process::Answer;
use crate::plan::present;
use crate::plan::wire::writer::{self, NonUtf8};

/// The longest message. A host has 253 characters and a path a thousand, and an escape takes six
/// for one.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// The longest program path; the rest is counted.
const MAX_EXE_CHARS: usize = 512;

/// A process by its pid on the host, and its program.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketProcess {
    pub pid: u32,
    pub exe: String,
}

/// A request of the relay.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum RelayRequest {
    /// Which process has the socket with this inode?
    #[serde(rename = "who")]
    FindOwner { id: u64, socket: u32 },
    /// May this host be connected to?
    Ask {
        id: u64,
        host: String,
        port: u16,
        #[serde(deserialize_with = "present")]
        process: Option<SocketProcess>,
    },
    /// The answer is not needed any more.
    Withdrawn { id: u64 },
}

/// A reply of the supervisor.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum SupervisorReply {
    #[serde(rename = "who")]
    Owner {
        id: u64,
        #[serde(deserialize_with = "present")]
        process: Option<SocketProcess>,
    },
    Answer {
        id: u64,
        #[serde(rename = "verdict")]
        answer: Answer,
        /// None: there was no answer, and `reason` says why.
        #[serde(deserialize_with = "present")]
        by: Option<String>,
        #[serde(deserialize_with = "present")]
        reason: Option<String>,
        /// The time until the answer.
        ms: u64,
    },
}

impl RelayRequest {
    pub fn message(&self) -> String {
        match self {
            RelayRequest::FindOwner { id, socket } => {
                format!("{{\"who\":{{\"id\":{id},\"socket\":{socket}}}}}")
            }
            RelayRequest::Ask { id, host, port, process } => {
                let mut out = format!("{{\"ask\":{{\"id\":{id},\"host\":");
                writer::string(&mut out, host.as_bytes(), NonUtf8::Text);
                let _ = write!(out, ",\"port\":{port},\"process\":");
                SocketProcess::write(process.as_ref(), &mut out);
                out.push_str("}}");
                out
            }
            RelayRequest::Withdrawn { id } => format!("{{\"withdrawn\":{{\"id\":{id}}}}}"),
        }
    }
}

impl SupervisorReply {
    pub fn message(&self) -> String {
        match self {
            SupervisorReply::Owner { id, process } => {
                let mut out = format!("{{\"who\":{{\"id\":{id},\"process\":");
                SocketProcess::write(process.as_ref(), &mut out);
                out.push_str("}}");
                out
            }
            SupervisorReply::Answer { id, answer, by, reason, ms } => {
                let mut out = format!(
                    "{{\"answer\":{{\"id\":{id},\"verdict\":\"{}\",\"ms\":{ms},\"by\":",
                    answer.name()
                );
                text(&mut out, by.as_deref());
                out.push_str(",\"reason\":");
                text(&mut out, reason.as_deref());
                out.push_str("}}");
                out
            }
        }
    }
}

impl SocketProcess {
    fn write(process: Option<&SocketProcess>, out: &mut String) {
        let Some(SocketProcess { pid, exe }) = process else { return out.push_str("null") };
        let _ = write!(out, "{{\"pid\":{pid},\"exe\":");
        writer::string_within(out, exe.as_bytes(), NonUtf8::Text, MAX_EXE_CHARS);
        out.push('}');
    }
}

fn text(out: &mut String, value: Option<&str>) {
    match value {
        Some(value) => writer::string_within(out, value.as_bytes(), NonUtf8::Text, MAX_EXE_CHARS),
        None => out.push_str("null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::reader;

    #[test]
    fn relay_messages_round_trip() {
        let process = || Some(SocketProcess { pid: 7, exe: "/usr/bin/c\u{1b}\"rl".to_owned() });
        let ask =
            |process| RelayRequest::Ask { id: 2, host: "a.example".to_owned(), port: 443, process };
        for request in [
            RelayRequest::FindOwner { id: u64::MAX, socket: 1 },
            ask(process()),
            ask(None),
            RelayRequest::Withdrawn { id: 3 },
        ] {
            assert_eq!(
                reader::from_slice::<RelayRequest>(request.message().as_bytes()).unwrap(),
                request
            );
        }
        let answer = |by: Option<&str>, reason: Option<&str>, choice| {
            let [by, reason] = [by, reason].map(|text| text.map(str::to_owned));
            SupervisorReply::Answer { id: 4, answer: choice, by, reason, ms: 1200 }
        };
        for reply in [
            SupervisorReply::Owner { id: 1, process: process() },
            SupervisorReply::Owner { id: 1, process: None },
            answer(Some("terminal"), None, Answer::Session),
            answer(None, Some("nobody answered within 1 s"), Answer::Deny),
        ] {
            assert_eq!(
                reader::from_slice::<SupervisorReply>(reply.message().as_bytes()).unwrap(),
                reply
            );
        }
        let wrong = "{\"ask\":{\"host\":\"a\",\"id\":1,\"port\":1}}";
        assert!(reader::from_slice::<RelayRequest>(wrong.as_bytes()).is_err());
    }

    #[test]
    fn a_long_path_fits() {
        let process = Some(SocketProcess { pid: 7, exe: "\u{1b}".repeat(4096) });
        assert!(SupervisorReply::Owner { id: 1, process }.message().len() < 1024);
    }
}
