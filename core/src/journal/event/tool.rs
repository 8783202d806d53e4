//! Events that Python reports: tool calls, which bypass the sandbox, and questions about them.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{MAX_NAME_CHARS, MAX_REASON_CHARS, strings_within};
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{self, present};

const MAX_SUBJECT_CHARS: usize = 1536;

/// An event of a tool call.
#[derive(Debug)]
pub enum ToolRecord {
    Tool(Tool),
    ToolEnd(ToolEnd),
    Approval(Approval),
}

#[derive(Deserialize)]
struct ToolEventName {
    event: ToolEventTag,
}

#[derive(Debug, Deserialize)]
enum ToolEventTag {
    #[serde(rename = "tool")]
    Tool,
    #[serde(rename = "tool.end")]
    ToolEnd,
    #[serde(rename = "approval")]
    Approval,
}

/// A tool call and the decision about it. Written before the call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    #[allow(dead_code, reason = "it was read already")]
    event: ToolEventTag,
    call: u64,
    tool: Text,
    action: plan::Action,
    asked: bool,
    #[serde(deserialize_with = "present")]
    by: Option<Text>,
    rule_id: Text,
    reason: Text,
    /// The command or the paths. None: an allowed command that is not logged.
    #[serde(deserialize_with = "present")]
    subject: Option<Vec<Text>>,
    cwd: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolEnd {
    #[allow(dead_code, reason = "it was read already")]
    event: ToolEventTag,
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
    event: ToolEventTag,
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

impl ToolRecord {
    pub fn read(message: &[u8]) -> Option<ToolRecord> {
        let ToolEventName { event } = reader::from_slice(message).ok()?;
        Some(match event {
            ToolEventTag::Tool => ToolRecord::Tool(reader::from_slice(message).ok()?),
            ToolEventTag::ToolEnd => ToolRecord::ToolEnd(reader::from_slice(message).ok()?),
            ToolEventTag::Approval => ToolRecord::Approval(reader::from_slice(message).ok()?),
        })
    }

    pub fn write(&self, out: &mut String) {
        match self {
            ToolRecord::Tool(Tool {
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
                text(out, "tool", Some(tool), MAX_NAME_CHARS);
                let _ = write!(out, ",\"action\":\"{}\",\"asked\":{asked}", action.name());
                text(out, "by", by.as_ref(), MAX_NAME_CHARS);
                text(out, "rule_id", Some(rule_id), MAX_NAME_CHARS);
                text(out, "reason", Some(reason), MAX_REASON_CHARS);
                out.push_str(",\"subject\":");
                match subject {
                    Some(words) => {
                        strings_within(out, words.iter().map(Text::as_bytes), MAX_SUBJECT_CHARS)
                    }
                    None => out.push_str("null"),
                }
                text(out, "cwd", Some(cwd), MAX_REASON_CHARS);
            }
            ToolRecord::ToolEnd(ToolEnd {
                event: _,
                call,
                tool,
                outcome,
                exit_code,
                bytes,
                ms,
            }) => {
                let _ = write!(out, "\"event\":\"tool.end\",\"call\":{call}");
                text(out, "tool", Some(tool), MAX_NAME_CHARS);
                text(out, "outcome", Some(outcome), MAX_NAME_CHARS);
                for (key, number) in [("exit_code", exit_code.map(u64::from)), ("bytes", *bytes)] {
                    let _ = match number {
                        Some(number) => write!(out, ",\"{key}\":{number}"),
                        None => write!(out, ",\"{key}\":null"),
                    };
                }
                let _ = write!(out, ",\"ms\":{ms}");
            }
            ToolRecord::Approval(Approval { event: _, call, tool, verdict, by, ms }) => {
                let verdict = match verdict {
                    ApprovalAnswer::Once => "once",
                    ApprovalAnswer::Session => "session",
                    ApprovalAnswer::Deny => "deny",
                };
                let _ = write!(out, "\"event\":\"approval\",\"call\":{call}");
                text(out, "tool", Some(tool), MAX_NAME_CHARS);
                let _ = write!(out, ",\"verdict\":\"{verdict}\"");
                text(out, "by", Some(by), MAX_NAME_CHARS);
                let _ = write!(out, ",\"ms\":{ms}");
            }
        }
    }
}

fn text(out: &mut String, key: &str, text: Option<&Text>, room: usize) {
    let _ = write!(out, ",\"{key}\":");
    match text {
        Some(text) => writer::string_within(out, text.as_bytes(), NonUtf8::Text, room),
        None => out.push_str("null"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::event::{Event, MAX_BODY_BYTES};
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

    fn written(record: &ToolRecord) -> Value {
        let body = Event::Record(record).body();
        assert!(body.is_ascii() && body.len() <= MAX_BODY_BYTES, "{}", body.len());
        serde_json::from_str(&format!("{{{body}}}")).unwrap()
    }

    #[test]
    fn a_record_is_written_as_it_was_read() {
        let kinds: BTreeSet<String> =
            golden().iter().map(|event| event["event"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds.len(), KINDS.len());
        for event in golden() {
            let message = message(&event);
            let record = ToolRecord::read(&message).unwrap();
            assert_eq!(written(&record), serde_json::from_slice::<Value>(&message).unwrap());
        }
    }

    #[test]
    fn records_with_other_fields_are_refused() {
        for event in golden() {
            let whole: Value = serde_json::from_slice(&message(&event)).unwrap();
            let fields = whole.as_object().unwrap();
            for key in fields.keys() {
                let mut less = fields.clone();
                less.remove(key);
                assert!(
                    ToolRecord::read(&serde_json::to_vec(&less).unwrap()).is_none(),
                    "without {key}"
                );
                let mut other = fields.clone();
                other.insert(key.clone(), Value::from(vec![Value::from(vec![-1])]));
                assert!(
                    ToolRecord::read(&serde_json::to_vec(&other).unwrap()).is_none(),
                    "{key} is a list"
                );
            }
            let mut more = fields.clone();
            more.insert("seq".to_owned(), Value::from(7));
            assert!(ToolRecord::read(&serde_json::to_vec(&more).unwrap()).is_none());
        }
        for odd in [
            &b""[..],
            b"{}",
            b"[]",
            b"{\"event\":\"session.end\"}",
            b"{\"event\":\"tool\"}",
            b"\xff",
        ] {
            assert!(ToolRecord::read(odd).is_none());
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_is_accepted() {
        for event in golden() {
            let message = String::from_utf8(message(&event)).unwrap();
            let tool = event["tool"].as_str().unwrap();
            let odd = message.replace(&format!("\"tool\":\"{tool}\""), "\"tool\":\"\\udcff\"");
            assert_ne!(odd, message);
            assert!(Event::Record(&ToolRecord::read(odd.as_bytes()).unwrap()).body().is_ascii());
        }
    }

    #[test]
    fn no_record_makes_a_line_too_long() {
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
            written(&ToolRecord::read(&serde_json::to_vec(&whole).unwrap()).unwrap());
        }
    }
}
