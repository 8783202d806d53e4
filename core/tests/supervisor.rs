//! The supervisor: signals, stops, the end of every descendant, the private temporary directory,
//! the journal's last lines.

#![cfg(supported)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions};
use serde_json::{Value, json};
use support::*;

/// A plan with a journal and a private temporary directory.
fn supervised(tree: &TestDir) -> Value {
    let work = tree.dir("work");
    let temp = tree.dir("temp");
    let mut planned = plan(&work, &[grant(&work, "allow")]);
    planned["journal"] = json!({"dir": tree.path("audit"), "file": null, "stderr": false});
    planned["temp"] = json!({"parent": temp, "access": "allow"});
    planned["environment"]["set"] = json!({"TMPDIR": "<tmp>"});
    planned
}

fn events(tree: &TestDir) -> Vec<Value> {
    let files = fs::read_dir(tree.path("audit")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect();
    files.sort();
    let text: String = files.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["event"].as_str().unwrap()).collect()
}

/// Starts a script and waits for its first line.
fn start(plan: &Value, script: &str) -> (Child, String) {
    let mut core = Core::new("run", plan, &["--", "/bin/sh", "-c", script]);
    let mut child = core.command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

/// Waits for another process; the time is a bound, not a pause.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state
        .rsplit(')')
        .next()
        .is_some_and(|rest| rest.split_whitespace().next().is_some_and(|state| state != "Z"))
}

fn state_of(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn the_journal_has_start_and_end_events() {
    let tree = TestDir::new();
    let output = sh(&supervised(&tree), "echo ran; exit 3");
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("ran\n", Some(3)));
    let events = events(&tree);
    assert_eq!(names(&events), ["session.start", "session.end"]);
    assert_eq!(events[0]["command"], json!(["/bin/sh", "-c", "echo ran; exit 3"]));
    assert_eq!(events[0]["cwd"], json!(tree.path("work")));
    assert_eq!(events[0]["actual"]["landlock_abi"], events[0]["requested"]["landlock_abi"]);
    assert!(events[0]["ppid_chain"].as_array().unwrap().len() >= 2);
    assert_eq!((&events[1]["exit_code"], &events[1]["signal"]), (&json!(3), &Value::Null));
    assert_eq!(events[0]["session"], events[1]["session"]);
}

#[test]
fn a_refused_execution_and_a_killing_filter_are_events() {
    let tree = TestDir::new();
    let planned = supervised(&tree);
    assert_eq!(
        Core::new("run", &planned, &["--", "/etc/passwd"]).output().status.code(),
        Some(126)
    );
    assert_eq!(sh(&planned, "kill -SYS $$").status.code(), Some(128 + 31));
    let events = events(&tree);
    assert_eq!(
        names(&events),
        [
            "session.start",
            "exec.denied",
            "session.end",
            "session.start",
            "syscall.killed",
            "session.end"
        ]
    );
    assert_eq!((&events[1]["exe"], &events[1]["errno"]), (&json!("/etc/passwd"), &json!("EACCES")));
    assert_eq!(events[5]["signal"], "SIGSYS");
}

#[test]
fn an_unenforced_rule_is_an_event() {
    let tree = TestDir::new();
    let mut planned = supervised(&tree);
    planned["notices"] = json!([{"level": "unenforced", "text": "no deny by name"},
    {"level": "warning", "text": "w"}]);
    let output = sh(&planned, "true");
    assert_eq!(stderr(&output), "paddock: warning: no deny by name\npaddock: warning: w\n");
    let events = events(&tree);
    assert_eq!(names(&events), ["session.start", "enforcement.partial", "session.end"]);
    assert_eq!(events[1]["text"], "no deny by name");
}

#[test]
fn parallel_sessions_share_one_chain() {
    let tree = TestDir::new();
    let planned = supervised(&tree);
    let mut running: Vec<Core> =
        (0..20).map(|_| Core::new("run", &planned, &["--", "/bin/true"])).collect();
    let children: Vec<Child> =
        running.iter_mut().map(|core| core.command.spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let events = events(&tree);
    assert_eq!(events.len(), 40);
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event["seq"], index as u64 + 1);
    }
}

#[test]
fn signals_reach_the_command() {
    let tree = TestDir::new();
    let planned = supervised(&tree);
    for (signal, name) in
        [(Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1"), (Signal::INT, "INT")]
    {
        let script = format!("trap 'exit 42' {name}; echo ready; while :; do sleep 0.01; done");
        let (mut child, line) = start(&planned, &script);
        assert_eq!(line, "ready");
        rustix::process::kill_process(pid(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(42), "{name}");
    }
    let (mut child, _) = start(&planned, "echo ready; exec sleep 60");
    rustix::process::kill_process(pid(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

#[test]
fn stop_and_continue_are_mirrored() {
    let tree = TestDir::new();
    let (child, inner) = start(&supervised(&tree), "echo $$; kill -STOP $$; exit 5");
    let supervisor = pid(&child);
    let (_, status) =
        rustix::process::waitpid(Some(supervisor), WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    assert_eq!(state_of(inner.parse().unwrap()), "T");
    rustix::process::kill_process(supervisor, Signal::CONT).unwrap();
    let (_, status) =
        rustix::process::waitpid(Some(supervisor), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(5));
}

#[test]
fn all_descendants_end_with_the_command() {
    let tree = TestDir::new();
    let script = "setsid sh -c 'setsid sleep 600 & echo $! > one; sleep 600' & \
                  (sleep 600 & echo $! > two) & while [ ! -s one ] || [ ! -s two ]; do :; done; \
                  exit 0";
    assert_eq!(sh(&supervised(&tree), script).status.code(), Some(0));
    for name in ["work/one", "work/two"] {
        let left = fs::read_to_string(tree.path(name)).unwrap();
        assert!(!is_alive(left.trim()), "{name}");
    }
}

#[test]
fn the_command_does_not_outlive_its_supervisor() {
    let tree = TestDir::new();
    let (mut child, inner) = start(&supervised(&tree), "echo $$; exec sleep 600");
    assert!(is_alive(&inner));
    rustix::process::kill_process(pid(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    eventually("the command dies", || !is_alive(&inner));
}

#[test]
fn the_private_temporary_directory_is_private_and_goes_away() {
    let tree = TestDir::new();
    let script = "echo $TMPDIR; stat -c %a $TMPDIR; mktemp >/dev/null && echo made; ls $TMPDIR/.. \
        || echo no-neighbours";
    let output = sh(&supervised(&tree), script);
    let seen = stdout(&output);
    let lines: Vec<&str> = seen.lines().collect();
    assert!(Path::new(lines[0]).starts_with(tree.path("temp")), "{seen}");
    assert!(lines[0].contains(&format!("/paddock-{}-", uid())));
    assert_eq!(lines[1..], ["700", "made", "no-neighbours"]);
    assert_eq!(fs::read_dir(tree.path("temp")).unwrap().count(), 0);
}

#[test]
fn all_temporary_files_are_removed() {
    let tree = TestDir::new();
    let kept = tree.file("kept");
    let script = format!(
        "cd $TMPDIR; ln -s {} link; ln -s {} dir; mkdir -p a/b locked; echo x > a/b/c; echo x > \
         locked/x; chmod 000 locked; \
         mkfifo pipe; d=deep; i=0; while [ $i -lt 300 ]; do mkdir $d && cd $d || exit 9; \
         i=$((i+1)); done; echo x > x; exit 0",
        kept.display(),
        tree.0.display()
    );
    assert_eq!(sh(&supervised(&tree), &script).status.code(), Some(0));
    assert_eq!(fs::read_dir(tree.path("temp")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
}

#[test]
fn an_unsafe_journal_stops_the_run() {
    use std::os::unix::fs::PermissionsExt;
    let tree = TestDir::new();
    let planned = supervised(&tree);
    let audit = tree.dir("audit");
    fs::set_permissions(&audit, PermissionsExt::from_mode(0o755)).unwrap();
    assert_refused(&sh(&planned, "touch ran"), "mode 0755");
    fs::set_permissions(&audit, PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(sh(&planned, "touch ran").status.code(), Some(0));
    assert!(tree.path("work/ran").exists());
}

#[test]
fn without_journal_and_temp_nothing_stays_resident() {
    let tree = TestDir::new();
    let planned = plan(&tree.0, &[]);
    let mut core = Core::new("run", &planned, &["--", "/bin/sh", "-c", "echo $$"]);
    let child = core.command.stdout(Stdio::piped()).spawn().unwrap();
    let expected = child.id().to_string();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output).trim_end(), expected);
}
