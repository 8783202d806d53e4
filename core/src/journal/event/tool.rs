//! What the Python half tells: tool calls, which never meet the fence, and questions about them.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{NAME_ROOM, REASON_ROOM, strings_within};
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, Invalid};
use crate::plan::{self, present};

const SUBJECT_ROOM: usize = 1536;

/// What can be told.
#[derive(Debug)]
pub enum Record {
    Tool(Tool),
    ToolEnd(ToolEnd),
    Approval(Approval),
}

#[derive(Deserialize)]
struct Named {
    event: Kind,
}

#[derive(Debug, Deserialize)]
enum Kind {
    #[serde(rename = "tool")]
    Tool,
    #[serde(rename = "tool.end")]
    ToolEnd,
    #[serde(rename = "approval")]
    Approval,
}

/// A tool call, and what became of the question whether it may be made. Written before it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    #[allow(dead_code, reason = "it was read already")]
    event: Kind,
    call: u64,
    tool: Text,
    action: plan::Action,
    asked: bool,
    #[serde(deserialize_with = "present")]
    by: Option<Text>,
    rule_id: Text,
    reason: Text,
    /// The command or the paths; None: an allowed command, of which no log is kept.
    #[serde(deserialize_with = "present")]
    subject: Option<Vec<Text>>,
    cwd: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolEnd {
    #[allow(dead_code, reason = "it was read already")]
    event: Kind,
    call: u64,
    tool: Text,
    outcome: Text,
    #[serde(deserialize_with = "present")]
    exit_code: Option<u32>,
    #[serde(deserialize_with = "present")]
    bytes: Option<u64>,
    ms: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approval {
    #[allow(dead_code, reason = "it was read already")]
    event: Kind,
    call: u64,
    tool: Text,
    verdict: ApprovalAnswer,
    by: Text,
    ms: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ApprovalAnswer {
    Once,
    Session,
    Deny,
}

impl Record {
    pub fn read(message: &[u8]) -> Option<Record> {
        let Named { event } = reader::from_slice(message).ok()?;
        Some(match event {
            Kind::Tool => Record::Tool(reader::from_slice(message).ok()?),
            Kind::ToolEnd => Record::ToolEnd(reader::from_slice(message).ok()?),
            Kind::Approval => Record::Approval(reader::from_slice(message).ok()?),
        })
    }

    pub fn write(&self, out: &mut String) {
        match self {
            Record::Tool(Tool {
                event: _,
                call,
                tool,
                action,
                asked,
                by,
                rule_id,
                reason,
                subject,
                cwd,
            }) => {
                let _ = write!(out, "\"event\":\"tool\",\"call\":{call}");
                text(out, "tool", Some(tool), NAME_ROOM);
                let _ = write!(out, ",\"action\":\"{}\",\"asked\":{asked}", action.name());
                text(out, "by", by.as_ref(), NAME_ROOM);
                text(out, "rule_id", Some(rule_id), NAME_ROOM);
                text(out, "reason", Some(reason), REASON_ROOM);
                out.push_str(",\"subject\":");
                match subject {
                    Some(words) => {
                        strings_within(out, words.iter().map(Text::as_bytes), SUBJECT_ROOM)
                    }
                    None => out.push_str("null"),
                }
                text(out, "cwd", Some(cwd), REASON_ROOM);
            }
            Record::ToolEnd(ToolEnd { event: _, call, tool, outcome, exit_code, bytes, ms }) => {
                let _ = write!(out, "\"event\":\"tool.end\",\"call\":{call}");
                text(out, "tool", Some(tool), NAME_ROOM);
                text(out, "outcome", Some(outcome), NAME_ROOM);
                for (key, number) in [("exit_code", exit_code.map(u64::from)), ("bytes", *bytes)] {
                    let _ = match number {
                        Some(number) => write!(out, ",\"{key}\":{number}"),
                        None => write!(out, ",\"{key}\":null"),
                    };
                }
                let _ = write!(out, ",\"ms\":{ms}");
            }
            Record::Approval(Approval { event: _, call, tool, verdict, by, ms }) => {
                let verdict = match verdict {
                    ApprovalAnswer::Once => "once",
                    ApprovalAnswer::Session => "session",
                    ApprovalAnswer::Deny => "deny",
                };
                let _ = write!(out, "\"event\":\"approval\",\"call\":{call}");
                text(out, "tool", Some(tool), NAME_ROOM);
                let _ = write!(out, ",\"verdict\":\"{verdict}\"");
                text(out, "by", Some(by), NAME_ROOM);
                let _ = write!(out, ",\"ms\":{ms}");
            }
        }
    }
}

fn text(out: &mut String, key: &str, text: Option<&Text>, room: usize) {
    let _ = write!(out, ",\"{key}\":");
    match text {
        Some(text) => writer::string_within(out, text.as_bytes(), Invalid::Text, room),
        None => out.push_str("null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::event::{BODY_LIMIT, Event};
    use serde_json::Value;
    use std::collections::BTreeSet;

    const GOLDEN: &str = include_str!("../../../../schema/examples/events.jsonl");
    const KINDS: [&str; 3] = ["tool", "tool.end", "approval"];

    fn golden() -> Vec<Value> {
        let lines = GOLDEN.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter(|event| KINDS.contains(&event["event"].as_str().unwrap())).collect()
    }

    fn message(event: &Value) -> Vec<u8> {
        let mut event = event.as_object().unwrap().clone();
        ["seq", "prev", "ts", "session"].iter().for_each(|key| drop(event.remove(*key)));
        serde_json::to_vec(&event).unwrap()
    }

    fn written(record: &Record) -> Value {
        let body = Event::Record(record).body();
        assert!(body.is_ascii() && body.len() <= BODY_LIMIT, "{}", body.len());
        serde_json::from_str(&format!("{{{body}}}")).unwrap()
    }

    #[test]
    fn what_is_told_is_what_is_written() {
        let kinds: BTreeSet<String> =
            golden().iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds.len(), KINDS.len());
        for event in golden() {
            let message = message(&event);
            let record = Record::read(&message).unwrap();
            assert_eq!(written(&record), serde_json::from_slice::<Value>(&message).unwrap());
        }
    }

    #[test]
    fn what_has_another_shape_is_not_understood() {
        for event in golden() {
            let whole: Value = serde_json::from_slice(&message(&event)).unwrap();
            let fields = whole.as_object().unwrap();
            for key in fields.keys() {
                let mut less = fields.clone();
                less.remove(key);
                assert!(
                    Record::read(&serde_json::to_vec(&less).unwrap()).is_none(),
                    "without {key}"
                );
                let mut other = fields.clone();
                other.insert(key.clone(), Value::from(vec![Value::from(vec![-1])]));
                assert!(
                    Record::read(&serde_json::to_vec(&other).unwrap()).is_none(),
                    "{key} is a list"
                );
            }
            let mut more = fields.clone();
            more.insert("seq".to_owned(), Value::from(7));
            assert!(Record::read(&serde_json::to_vec(&more).unwrap()).is_none());
        }
        for odd in [
            &b""[..],
            b"{}",
            b"[]",
            b"{\"event\":\"session.end\"}",
            b"{\"event\":\"tool\"}",
            b"\xff",
        ] {
            assert!(Record::read(odd).is_none());
        }
    }

    #[test]
    fn a_name_that_is_no_text_is_understood_wherever_it_stands() {
        for event in golden() {
            let message = String::from_utf8(message(&event)).unwrap();
            let tool = event["tool"].as_str().unwrap();
            let odd = message.replace(&format!("\"tool\":\"{tool}\""), "\"tool\":\"\\udcff\"");
            assert_ne!(odd, message);
            assert!(Event::Record(&Record::read(odd.as_bytes()).unwrap()).body().is_ascii());
        }
    }

    #[test]
    fn no_text_makes_a_line_too_long() {
        let long = "\u{1}".repeat(2000);
        for event in golden() {
            let mut whole: Value = serde_json::from_slice(&message(&event)).unwrap();
            for (key, value) in whole.as_object_mut().unwrap() {
                let closed = ["event", "action", "verdict"].contains(&key.as_str());
                match value {
                    Value::String(text) if !closed => *text = long.clone(),
                    Value::Array(words) => *words = vec![Value::from(long.clone()); 5],
                    _ => {}
                }
            }
            written(&Record::read(&serde_json::to_vec(&whole).unwrap()).unwrap());
        }
    }
}
