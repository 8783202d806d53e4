//! The body of one journal line. The journal adds sequence number, chain and time.

pub mod exec;
pub mod files;
pub mod limits;
pub mod network;
pub mod tool;

use std::ffi::CString;
use std::fmt::Write as _;

use rustix::io::Errno;

use self::exec::{ExecReport, ExecResult};
use self::files::RefusedFileAccess;
use self::limits::ExceededLimit;
use self::network::NetworkDecision;
use self::tool::ToolRecord;
use super::redact;
use crate::kernel::errno_names;
use crate::plan::NetworkMode;
use crate::plan::wire::writer::{self, NonUtf8};

/// The part of a 4096-byte line that an event may use. The rest belongs to the journal's own
/// fields.
pub const MAX_BODY_BYTES: usize = 3840;

pub const MAX_NAME_CHARS: usize = 128;
const MAX_PATH_CHARS: usize = 1024;
/// A `#!` line has at most 255 bytes.
const MAX_INTERPRETER_CHARS: usize = 255;
const MAX_CWD_CHARS: usize = 512;
const MAX_ARGUMENTS_CHARS: usize = 1024;
pub const MAX_REASON_CHARS: usize = 512;
const MAX_SENTENCE_CHARS: usize = 2048;
/// Each of four fields.
const MAX_REFUSED_FIELD_CHARS: usize = 880;
const MAX_ANCESTRY_CHARS: usize = 768;

/// The protection that was requested, or that is active.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    pub landlock_abi: i32,
    pub rights: usize,
    pub scopes: usize,
    pub paths: usize,
    pub blocked: usize,
    pub seccomp: bool,
    pub no_new_privs: bool,
    pub env_sanitize: bool,
    /// None: the network is not restricted.
    pub network: Option<NetworkMode>,
}

/// The mechanism that enforces the network rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMechanism {
    /// The network is not restricted.
    None,
    /// A network namespace without a connection to other machines.
    Namespace,
    /// The filter denies every socket that reaches a host.
    Seccomp,
    /// The filter denies other sockets, and the supervisor connects for the command.
    SupervisedConnect,
}

impl NetworkMechanism {
    fn name(self) -> &'static str {
        match self {
            NetworkMechanism::None => "none",
            NetworkMechanism::Namespace => "namespace",
            NetworkMechanism::Seccomp => "seccomp",
            NetworkMechanism::SupervisedConnect => "supervised connect",
        }
    }
}

pub struct SessionStart<'a> {
    pub user: &'a [u8],
    pub uid: u32,
    pub pid: i32,
    pub ppid_chain: &'a [Vec<u8>],
    pub cwd: &'a [u8],
    pub tty: Option<&'a [u8]>,
    pub command: &'a [CString],
    pub profile: &'a [u8],
    pub plan: &'a str,
    pub network_by: NetworkMechanism,
    pub requested: Enforcement,
    pub actual: Enforcement,
}

pub enum Event<'a> {
    Start(SessionStart<'a>),
    End {
        exit_code: i32,
        signal: Option<i32>,
        duration_ms: u128,
    },
    ExecDenied {
        exe: &'a [u8],
        errno: Errno,
    },
    SyscallKilled,
    LimitExceeded(ExceededLimit),
    Refused {
        error: &'a str,
    },
    Partial {
        text: &'a [u8],
    },
    /// A decision of the exec gate, and its result.
    Exec(&'a ExecReport),
    /// A decision of the relay.
    Network(&'a NetworkDecision),
    /// The relay ended early: no host is reachable from here on.
    NetworkLost {
        reason: &'a str,
    },
    /// Before this line, `count` events of the session could not be written.
    JournalLost {
        count: u64,
        reason: &'a str,
    },
    /// An event that Python reports.
    Record(&'a ToolRecord),
    /// A refused file access, as the observer saw it.
    FileRefused(&'a RefusedFileAccess),
    /// A name that is executed outside of the sandbox later was created or changed during the run.
    NameFlagged {
        path: &'a [u8],
    },
    /// A denied or locked name appeared or was replaced; `window_us` is how long it was accessible.
    NameMasked {
        path: &'a [u8],
        window_us: u128,
    },
}

impl Event<'_> {
    /// `"event":"…",…`, at most [`MAX_BODY_BYTES`] ASCII characters.
    pub fn body(&self) -> String {
        let mut out = String::with_capacity(512);
        match self {
            Event::Start(start) => start.write(&mut out),
            Event::End { exit_code, signal, duration_ms } => {
                let _ =
                    write!(out, "\"event\":\"session.end\",\"exit_code\":{exit_code},\"signal\":");
                match signal {
                    Some(signal) => {
                        let _ = write!(out, "\"{}\"", errno_names::signal(*signal));
                    }
                    None => out.push_str("null"),
                }
                let _ = write!(out, ",\"duration_ms\":{duration_ms}");
            }
            Event::ExecDenied { exe, errno } => {
                out.push_str("\"event\":\"exec.denied\",\"exe\":");
                writer::string_within(&mut out, exe, NonUtf8::Text, MAX_PATH_CHARS);
                let _ = write!(out, ",\"errno\":\"{}\"", errno_names::errno(*errno));
            }
            Event::Exec(report) => exec_fields(&mut out, report),
            Event::FileRefused(RefusedFileAccess { op, path, program, reason, allow }) => {
                out.push_str("\"event\":\"file.refused\",\"op\":");
                writer::string_within(&mut out, op.as_bytes(), NonUtf8::Text, MAX_NAME_CHARS);
                for (key, text) in [
                    ("path", Some(path)),
                    ("program", Some(program)),
                    ("reason", Some(reason)),
                    ("allow", allow.as_ref()),
                ] {
                    let _ = write!(out, ",\"{key}\":");
                    match text {
                        Some(text) => writer::string_within(
                            &mut out,
                            text.as_bytes(),
                            NonUtf8::Text,
                            MAX_REFUSED_FIELD_CHARS,
                        ),
                        None => out.push_str("null"),
                    }
                }
            }
            Event::Network(decision) => network_fields(&mut out, decision),
            Event::Record(record) => record.write(&mut out),
            Event::NetworkLost { reason } => {
                out.push_str("\"event\":\"network.lost\",\"reason\":");
                writer::string_within(&mut out, reason.as_bytes(), NonUtf8::Text, MAX_REASON_CHARS);
            }
            Event::JournalLost { count, reason } => {
                let _ = write!(out, "\"event\":\"journal.lost\",\"count\":{count},\"reason\":");
                writer::string_within(&mut out, reason.as_bytes(), NonUtf8::Text, MAX_REASON_CHARS);
            }
            Event::SyscallKilled => out.push_str("\"event\":\"syscall.killed\""),
            Event::LimitExceeded(ExceededLimit { limit, value, means, ended, unwatched }) => {
                let _ = write!(
                    out,
                    "\"event\":\"limit.exceeded\",\"limit\":\"{}\",\"value\":{value},\
                     \"means\":\"{}\",\"ended\":{ended},\
                     \"unwatched\":{unwatched}",
                    limit.name(),
                    means.name(),
                );
            }
            Event::Refused { error } => {
                out.push_str("\"event\":\"session.refused\",\"error\":");
                writer::string_within(
                    &mut out,
                    error.as_bytes(),
                    NonUtf8::Text,
                    MAX_SENTENCE_CHARS,
                );
            }
            Event::Partial { text } => {
                out.push_str("\"event\":\"enforcement.partial\",\"text\":");
                writer::string_within(&mut out, text, NonUtf8::Text, MAX_SENTENCE_CHARS);
            }
            Event::NameFlagged { path } => {
                out.push_str("\"event\":\"name.flagged\",\"path\":");
                writer::string_within(&mut out, path, NonUtf8::Text, MAX_PATH_CHARS);
            }
            Event::NameMasked { path, window_us } => {
                out.push_str("\"event\":\"name.masked\",\"path\":");
                writer::string_within(&mut out, path, NonUtf8::Text, MAX_PATH_CHARS);
                let _ = write!(out, ",\"window_us\":{window_us}");
            }
        }
        out
    }
}

impl SessionStart<'_> {
    fn write(&self, out: &mut String) {
        out.push_str("\"event\":\"session.start\",\"user\":");
        writer::string_within(out, self.user, NonUtf8::Text, MAX_NAME_CHARS);
        let _ = write!(out, ",\"uid\":{},\"pid\":{},\"ppid_chain\":", self.uid, self.pid);
        strings_within(out, self.ppid_chain.iter().map(Vec::as_slice), MAX_ANCESTRY_CHARS);
        out.push_str(",\"cwd\":");
        writer::string_within(out, self.cwd, NonUtf8::Text, MAX_PATH_CHARS);
        out.push_str(",\"tty\":");
        match self.tty {
            Some(tty) => writer::string_within(out, tty, NonUtf8::Text, MAX_NAME_CHARS),
            None => out.push_str("null"),
        }
        let mut tail = String::with_capacity(512);
        tail.push_str(",\"profile\":");
        writer::string_within(&mut tail, self.profile, NonUtf8::Text, MAX_NAME_CHARS);
        let _ = write!(
            tail,
            ",\"plan\":\"{}\",\"network_by\":\"{}\",\"requested\":",
            self.plan,
            self.network_by.name()
        );
        self.requested.write(&mut tail);
        tail.push_str(",\"actual\":");
        self.actual.write(&mut tail);

        out.push_str(",\"command\":");
        // The command uses all characters that the other fields leave.
        let room = MAX_BODY_BYTES.saturating_sub(out.len() + tail.len());
        strings_within(
            out,
            redact::words(self.command.iter().map(|argument| argument.as_bytes())),
            room,
        );
        out.push_str(&tail);
    }
}

impl Enforcement {
    fn write(&self, out: &mut String) {
        let Enforcement {
            landlock_abi,
            rights,
            scopes,
            paths,
            blocked,
            seccomp,
            no_new_privs,
            env_sanitize,
            network,
        } = self;
        let _ = write!(
            out,
            "{{\"landlock_abi\":{landlock_abi},\"rights\":{rights},\"scopes\":{scopes},\
             \"paths\":{paths},\
             \"blocked\":{blocked},\"seccomp\":{seccomp},\"no_new_privs\":{no_new_privs},\
             \"env_sanitize\":{env_sanitize},\"network\":"
        );
        out.push_str(match network {
            None => "null}",
            Some(NetworkMode::None) => "\"none\"}",
            Some(NetworkMode::Filtered) => "\"filtered\"}",
        });
    }
}

fn network_fields(out: &mut String, decision: &NetworkDecision) {
    let text = |out: &mut String, key: &str, text: &Option<String>| {
        let _ = write!(out, ",\"{key}\":");
        match text {
            Some(text) => {
                writer::string_within(out, text.as_bytes(), NonUtf8::Text, MAX_REASON_CHARS)
            }
            None => out.push_str("null"),
        }
    };
    let number = |out: &mut String, key: &str, number: Option<u64>| {
        let _ = match number {
            Some(number) => write!(out, ",\"{key}\":{number}"),
            None => write!(out, ",\"{key}\":null"),
        };
    };
    let (layer, action) = (decision.layer.name(), decision.action.name());
    let _ = write!(out, "\"event\":\"network\",\"layer\":\"{layer}\",\"action\":\"{action}\"");
    text(out, "host", &decision.host);
    number(out, "port", decision.port.map(u64::from));
    text(out, "address", &decision.address);
    text(out, "rule", &decision.rule);
    text(out, "reason", &decision.reason);
    number(out, "sent", decision.sent);
    number(out, "received", decision.received);
    number(out, "ms", decision.ms);
    number(out, "pid", decision.pid.map(u64::from));
    text(out, "exe", &decision.exe);
    text(out, "by", &decision.by);
    number(out, "asked_ms", decision.asked_ms);
    if let Some(request) = &decision.request {
        text(out, "method", &request.method);
        // The path can contain a token.
        let shown =
            |path: &String| String::from_utf8_lossy(&redact::text(path.as_bytes())).into_owned();
        text(out, "path", &request.path.as_ref().map(shown));
        number(out, "status", request.status.map(u64::from));
        text(out, "route", &request.route);
    }
}

fn exec_fields(out: &mut String, report: &ExecReport) {
    let ExecReport {
        process,
        exe,
        interpreter,
        argv,
        cwd,
        result,
        rule,
        reason,
        by,
        asked_ms,
        branch: _,
    } = report;
    let (action, ran) = match result {
        ExecResult::Ran { .. } => ("allow", true),
        ExecResult::Failed => ("allow", false),
        ExecResult::Denied | ExecResult::Attack(_) => ("deny", false),
    };
    let kind = if matches!(result, ExecResult::Attack(_)) { "exec.attack" } else { "exec" };
    let _ = write!(
        out,
        "\"event\":\"{kind}\",\"pid\":{},\"ppid\":{},\"exe\":",
        process.pid, process.parent
    );
    writer::string_within(out, exe, NonUtf8::Text, MAX_PATH_CHARS);
    out.push_str(",\"interpreter\":");
    match interpreter {
        Some(interpreter) => {
            writer::string_within(out, interpreter, NonUtf8::Text, MAX_INTERPRETER_CHARS)
        }
        None => out.push_str("null"),
    }
    out.push_str(",\"argv\":");
    strings_within(out, redact::words(exec::nul_separated(argv).into_iter()), MAX_ARGUMENTS_CHARS);
    out.push_str(",\"cwd\":");
    writer::string_within(out, cwd, NonUtf8::Text, MAX_CWD_CHARS);
    let _ = write!(
        out,
        ",\"action\":\"{action}\",\"ran\":{ran},\"verified\":{}",
        matches!(result, ExecResult::Ran { verified: true })
    );
    out.push_str(",\"rule_id\":");
    writer::string_within(
        out,
        rule.as_deref().unwrap_or(b"default"),
        NonUtf8::Text,
        MAX_NAME_CHARS,
    );
    out.push_str(",\"reason\":");
    let changed = match result {
        ExecResult::Attack(what) => Some(format!("{what} changed after the check")),
        _ => None,
    };
    match changed.as_ref().or(reason.as_ref()) {
        Some(reason) => {
            writer::string_within(out, reason.as_bytes(), NonUtf8::Text, MAX_REASON_CHARS)
        }
        None => out.push_str("null"),
    }
    out.push_str(",\"by\":");
    match by {
        Some(by) => writer::string_within(out, by.as_bytes(), NonUtf8::Text, MAX_NAME_CHARS),
        None => out.push_str("null"),
    }
    match asked_ms {
        Some(asked_ms) => drop(write!(out, ",\"asked_ms\":{asked_ms}")),
        None => out.push_str(",\"asked_ms\":null"),
    }
}

/// Writes a list in at most `room` characters. The item that does not fit is cut, and the items
/// after it are counted.
pub fn strings_within<T: AsRef<[u8]>>(
    out: &mut String,
    items: impl ExactSizeIterator<Item = T>,
    room: usize,
) {
    // `,"…+N more"]` for the remaining items.
    const LIST_END_CHARS: usize = 40;
    /// A shorter item would consist of its mark only.
    const MIN_ITEM_CHARS: usize = 48;
    let start = out.len();
    let total = items.len();
    out.push('[');
    for (index, item) in items.enumerate() {
        let left = room.saturating_sub(out.len() - start + LIST_END_CHARS);
        if index > 0 {
            out.push(',');
        }
        if left < MIN_ITEM_CHARS {
            let _ = write!(out, "\"\\u2026+{} more\"", total - index);
            break;
        }
        writer::string_within(out, item.as_ref(), NonUtf8::Text, left - 3);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::bytes::Text;
    use crate::plan::wire::reader;
    use serde_json::Value;
    use std::collections::BTreeSet;

    const GOLDEN: &str = include_str!("../../../../schema/examples/events.jsonl");

    fn start<'a>(command: &'a [CString], cwd: &'a [u8], chain: &'a [Vec<u8>]) -> Event<'a> {
        Event::Start(SessionStart {
            user: b"ada",
            uid: 1000,
            pid: 42,
            ppid_chain: chain,
            cwd,
            tty: None,
            command,
            profile: b"ai-agent",
            plan: "00",
            network_by: NetworkMechanism::None,
            requested: Enforcement::default(),
            actual: Enforcement { seccomp: true, ..Enforcement::default() },
        })
    }

    fn report(result: ExecResult) -> ExecReport {
        ExecReport {
            process: exec::ExecProcess { pid: 43, parent: 42, uid: 1000 },
            branch: None,
            exe: b"/usr/bin/git".to_vec(),
            interpreter: None,
            argv: b"git\0push\0".to_vec(),
            cwd: b"/w".to_vec(),
            result,
            rule: Some(b"no-push".to_vec()),
            reason: None,
            by: None,
            asked_ms: None,
        }
    }

    fn parsed(event: &Event<'_>) -> Value {
        let body = event.body();
        assert!(body.is_ascii() && body.len() <= MAX_BODY_BYTES, "{}", body.len());
        serde_json::from_str(&format!("{{{body}}}")).unwrap()
    }

    fn keys(value: &Value) -> BTreeSet<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn events_have_the_fields_of_the_golden_examples() {
        let chain = [b"bash:1".to_vec()];
        let command = [c"true".to_owned()];
        let end = Event::End { exit_code: 0, signal: None, duration_ms: 100 };
        let masked = Event::NameMasked { path: b"/w/.env", window_us: 900 };
        let flagged = Event::NameFlagged { path: b"/w/Makefile" };
        let (ran, attack) = (
            report(ExecResult::Ran { verified: true }),
            report(ExecResult::Attack("the arguments")),
        );
        let (exec, attack) = (Event::Exec(&ran), Event::Exec(&attack));
        let text = |text: &str| Text::from_bytes(text.as_bytes().to_vec()).unwrap();
        let [op, path, program, reason] =
            ["read", "/w/.env", "/usr/bin/cat", "outside every grant"].map(text);
        let refused = RefusedFileAccess { op, path, program, reason, allow: None };
        let refused = Event::FileRefused(&refused);
        let decision = reader::from_slice(
            b"{\"action\":\"deny\",\"address\":null,\"event\":\"network\",\"host\":\"example.com\",\
             \"layer\":\"name\",\"ms\":null,\
              \"port\":null,\"reason\":null,\"received\":null,\"rule\":\"paddock.toml:12\",\
              \"sent\":null,\"pid\":null,\"exe\":null,\
              \"by\":null,\"asked_ms\":null}",
        );
        let (decision, lost) =
            (decision.unwrap(), Event::NetworkLost { reason: "it was killed by SIGKILL" });
        let network = Event::Network(&decision);
        let missing = Event::JournalLost { count: 12, reason: "ENOSPC" };
        let events = [start(&command, b"/", &chain), end, masked, flagged];
        for event in events.into_iter().chain([exec, attack, refused, network, lost, missing]) {
            let ours = parsed(&event);
            let golden: Vec<Value> =
                GOLDEN.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let golden = golden.iter().find(|golden| golden["event"] == ours["event"]).unwrap();
            let added_by_the_journal = ["seq", "prev", "ts", "session"];
            let mut expected = keys(golden);
            assert!(added_by_the_journal.iter().all(|key| expected.remove(key)));
            assert_eq!(keys(&ours), expected);
            for part in ["requested", "actual"] {
                if ours.get(part).is_some() {
                    assert_eq!(keys(&ours[part]), keys(&golden[part]));
                }
            }
        }
    }

    #[test]
    fn a_megabyte_of_arguments_is_cut_and_counted() {
        let many: Vec<CString> = (0..50_000).map(|_| c"twenty bytes of text".to_owned()).collect();
        let command = parsed(&start(&many, b"/", &[]))["command"].clone();
        let command = command.as_array().unwrap();
        let mark = command.last().unwrap().as_str().unwrap();
        assert_eq!(mark, format!("…+{} more", 50_000 - (command.len() - 1)));

        let one = [CString::new(vec![b'x'; 1 << 20]).unwrap()];
        let command = parsed(&start(&one, b"/", &[]))["command"].clone();
        let text = command[0].as_str().unwrap();
        let kept = text.chars().take_while(|character| *character == 'x').count();
        assert_eq!(text, format!("{}…+{} more", "x".repeat(kept), (1 << 20) - kept));
    }

    #[test]
    fn no_input_makes_a_line_too_long() {
        let nasty: Vec<CString> = (0..400).map(|_| CString::new(vec![1; 300]).unwrap()).collect();
        let chain: Vec<Vec<u8>> = (0..64).map(|_| vec![0xFF; 22]).collect();
        parsed(&start(&nasty, &[0xE2; 4095], &chain));
        parsed(&Event::Refused { error: &"\u{1}".repeat(5000) });
        parsed(&Event::Partial { text: &[0xFF; 5000] });
        parsed(&Event::ExecDenied { exe: &[0xFF; 5000], errno: Errno::ACCESS });
        parsed(&Event::NameMasked { path: &[0xFF; 5000], window_us: u128::from(u64::MAX) });
        parsed(&Event::NameFlagged { path: &[0xFF; 5000] });
        parsed(&Event::JournalLost { count: u64::MAX, reason: &"\u{1}".repeat(5000) });
        let (long, reason) = (vec![0xFF; 5000], Some("\u{1}".repeat(5000)));
        let (exe, cwd, rule, by) = (long.clone(), long.clone(), Some(long.clone()), reason.clone());
        let argv = [&long[..], &[0]].concat().repeat(40);
        parsed(&Event::Exec(&ExecReport {
            exe,
            interpreter: Some(long),
            argv,
            cwd,
            rule,
            reason,
            by,
            ..report(ExecResult::Denied)
        }));
    }

    #[test]
    fn secrets_of_a_command_line_are_not_written() {
        let secret = "ghp_a1B2a1B2a1B2a1B2a1B2a1B2";
        let argv =
            format!("git\0clone\0https://ada:{secret}@host/x\0--token\0{secret}\0").into_bytes();
        let command = [CString::new(format!("TOKEN={secret}")).unwrap()];
        let exec = ExecReport { argv, ..report(ExecResult::Denied) };
        for event in [Event::Exec(&exec), start(&command, b"/", &[])] {
            let body = event.body();
            assert!(!body.contains(secret) && body.contains("[redacted]"), "{body}");
        }
    }

    #[test]
    fn secrets_of_a_request_are_not_written() {
        let secret = "ghp_a1B2a1B2a1B2a1B2a1B2a1B2";
        let decision = format!(
            "{{\"action\":\"allow\",\"address\":null,\"event\":\"network\",\"host\":\"a.example\",\
             \"layer\":\"request\",\"ms\":null,\
             \"port\":443,\"reason\":null,\"received\":null,\"rule\":null,\"sent\":null,\
             \"pid\":null,\"exe\":null,\"by\":null,\"asked_ms\":null,\
             \"request\":{{\"hint\":null,\"method\":\"GET\",\"path\":\"/x/{secret}\",\
             \"route\":null,\"status\":200}}}}"
        );
        let decision = reader::from_slice(decision.as_bytes()).unwrap();
        let body = Event::Network(&decision).body();
        assert!(!body.contains(secret) && body.contains("/x/[redacted]"), "{body}");
    }

    #[test]
    fn a_newline_in_a_value_is_escaped() {
        let cwd = b"/a\n{\"event\":\"session.end\"}";
        let body = start(&[c"true".to_owned()], cwd, &[]).body();
        assert!(!body.contains('\n'));
        assert_eq!(parsed(&start(&[], cwd, &[]))["cwd"].as_str().unwrap().as_bytes(), cwd);
    }
}
