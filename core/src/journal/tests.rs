use super::chain_head::FIRST_HASH;
use crate::journal::*;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// A directory that is removed after the test.
struct JournalDir(PathBuf);

impl JournalDir {
    fn new() -> JournalDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("paddock-journal-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        JournalDir(path)
    }
}

impl Drop for JournalDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn text(path: impl Into<PathBuf>) -> Text {
    Text::from_bytes(path.into().into_os_string().into_vec()).unwrap()
}

fn requested(dir: &Path, file: Option<&str>) -> plan::JournalPlan {
    plan::JournalPlan { dir: AbsPath::new(text(dir)).unwrap(), file: file.map(text), stderr: false }
}

const SESSION: &str = "0123456789abcdef";

fn open(dir: &Path, file: Option<&str>) -> Result<Journal, JournalError> {
    Journal::open(&requested(dir, file), uid(), SESSION.to_owned())
}

fn end(code: i32) -> Event<'static> {
    Event::End { exit_code: code, signal: None, duration_ms: 1 }
}

fn today(dir: &Path) -> PathBuf {
    dir.join(format!("{}.jsonl", Utc::now().date()))
}

/// Asserts that the lines of a file form a chain, and returns them.
fn checked_events(path: &Path) -> Vec<Value> {
    let mut prev = FIRST_HASH.to_owned();
    let mut events = Vec::new();
    for (index, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["seq"], index as u64 + 1);
        assert_eq!(value["prev"], prev.as_str());
        assert!(line.len() < MAX_LINE_BYTES);
        prev = hash(line.as_bytes());
        events.push(value);
    }
    events
}

/// The exit codes of a file that has only end events.
fn exit_codes(path: &Path) -> Vec<i64> {
    checked_events(path).iter().map(|event| event["exit_code"].as_i64().unwrap()).collect()
}

/// Exit codes; for lost events: the count, the session and the reason.
fn summaries(path: &Path) -> Vec<String> {
    let one = |event: &Value| match event["event"].as_str().unwrap() {
        "journal.lost" => {
            format!(
                "{} of {}: {}",
                event["count"],
                event["session"].as_str().unwrap(),
                event["reason"]
            )
        }
        _ => event["exit_code"].to_string(),
    };
    checked_events(path).iter().map(one).collect()
}

fn head_lines(dir: &Path) -> Vec<String> {
    fs::read_to_string(dir.join("head"))
        .unwrap()
        .lines()
        .map(|line| line.replace('\0', ""))
        .collect()
}

/// Makes the journal file unwritable, as on a full disk. Returns the writable descriptor.
fn fill_disk(journal: &Journal) -> OwnedFd {
    let mut written = journal.file.borrow_mut();
    let written = written.as_mut().unwrap();
    let name = journal.dir_path.to_string() + "/" + written.name.to_str().unwrap();
    std::mem::replace(&mut written.file, fs::File::open(name).unwrap().into())
}

fn free_disk(journal: &Journal, file: OwnedFd) {
    journal.file.borrow_mut().as_mut().unwrap().file = file;
}

#[test]
fn sessions_continue_the_chain() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    for code in 0..5 {
        open(&dir, None).unwrap().append(&end(code)).unwrap();
    }
    assert_eq!(exit_codes(&today(&dir)), [0, 1, 2, 3, 4]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&today(&dir)), mode(&dir.join("head"))), (0o700, 0o600, 0o600));
    let head = fs::read_to_string(dir.join("head")).unwrap();
    let last = fs::read_to_string(today(&dir)).unwrap();
    let expected = hash(last.lines().last().unwrap().as_bytes());
    let name = today(&dir).file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(head, format!("5 {expected} {name} {}\n", last.len()));
}

#[test]
fn events_of_one_call_form_a_chain() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append_all(&[]).unwrap();
    assert!(!today(&dir).exists());
    journal.append_all(&[end(0), end(1), end(2)]).unwrap();
    journal.append(&end(3)).unwrap();
    open(&dir, None).unwrap().append_all(&[end(4), end(5)]).unwrap();
    assert_eq!(exit_codes(&today(&dir)), [0, 1, 2, 3, 4, 5]);
    let lines = fs::read_to_string(today(&dir)).unwrap();
    let opening = |line: &str| line.contains("\"opens\":true");
    assert!(lines.lines().next().is_some_and(opening) && !lines.lines().skip(1).any(opening));
}

#[test]
fn the_first_line_has_the_fields_of_the_golden_example() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    open(&dir, None).unwrap().append(&end(0)).unwrap();
    let ours: Value =
        serde_json::from_str(fs::read_to_string(today(&dir)).unwrap().trim_end()).unwrap();
    let golden = include_str!("../../../schema/examples/events.jsonl");
    let golden: Value = serde_json::from_str(golden.lines().nth(1).unwrap()).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(ours["opens"], true);
    let keys_but_opens = keys(&ours).into_iter().filter(|key| key != "opens").collect::<Vec<_>>();
    assert_eq!(keys_but_opens, keys(&golden));
    assert_eq!(ours["ts"].as_str().unwrap().len(), golden["ts"].as_str().unwrap().len());
}

#[test]
fn a_line_whose_head_was_not_written_is_adopted() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let stale = fs::read(dir.join("head")).unwrap();
    journal.append(&end(1)).unwrap();
    journal.append(&end(2)).unwrap();
    fs::write(dir.join("head"), stale).unwrap();
    journal.append(&end(3)).unwrap();
    assert_eq!(exit_codes(&today(&dir)), [0, 1, 2, 3]);
}

#[test]
fn a_torn_line_is_cut_off() {
    for torn in [&b"{\"seq\":2,\"prev\":\"1"[..], b"x", b"\0\0\0"] {
        let temp = JournalDir::new();
        let dir = temp.0.join("audit");
        let journal = open(&dir, None).unwrap();
        journal.append(&end(0)).unwrap();
        let whole = fs::read(today(&dir)).unwrap();
        fs::write(today(&dir), [&whole, torn].concat()).unwrap();
        journal.append(&end(1)).unwrap();
        assert_eq!(exit_codes(&today(&dir)), [0, 1]);
    }
}

#[test]
fn foreign_lines_stop_the_journal() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let whole = fs::read(today(&dir)).unwrap();
    fs::write(today(&dir), [&whole[..], b"{\"seq\":2,\"prev\":\"forged\"}\n"].concat()).unwrap();
    assert!(matches!(journal.append(&end(1)), Err(JournalError::Foreign { .. })));
    fs::write(dir.join("head"), "not a head\n").unwrap();
    assert!(matches!(journal.append(&end(1)), Err(JournalError::Head { .. })));
}

#[test]
fn removed_lines_leave_a_visible_gap() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    fs::write(today(&dir), "").unwrap();
    journal.append(&end(1)).unwrap();
    let line: Value =
        serde_json::from_str(fs::read_to_string(today(&dir)).unwrap().trim_end()).unwrap();
    assert_eq!(line["seq"], 2);
    assert_ne!(line["prev"], FIRST_HASH);
    assert_eq!(line.get("opens"), None);
}

#[test]
fn lost_events_are_reported_before_the_next_event() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let file = fill_disk(&journal);
    journal.append_all(&[end(1), end(2)]).unwrap_err();
    journal.append(&end(3)).unwrap_err();
    assert_eq!(head_lines(&dir)[1..], [format!("{SESSION} 3 EBADF")]);
    free_disk(&journal, file);
    journal.append_all(&[end(4), end(5)]).unwrap();
    journal.append(&end(6)).unwrap();
    assert_eq!(
        summaries(&today(&dir)),
        ["0", &format!("3 of {SESSION}: \"EBADF\""), "4", "5", "6"]
    );
    assert_eq!(head_lines(&dir).len(), 1);
}

#[test]
fn the_next_session_reports_lost_events() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let (first, second) = (open(&dir, None).unwrap(), open(&dir, None).unwrap());
    let second = Journal { session: "22".to_owned(), ..second };
    for (code, journal) in [&first, &second].into_iter().enumerate() {
        journal.append(&end(code as i32)).unwrap();
    }
    for journal in [&first, &second, &first] {
        let _full = fill_disk(journal);
        journal.append(&end(9)).unwrap_err();
    }
    drop((first, second));
    let next = Journal { session: "33".to_owned(), ..open(&dir, None).unwrap() };
    next.append(&end(2)).unwrap();
    let losses = [format!("2 of {SESSION}: \"EBADF\""), "1 of 22: \"EBADF\"".to_owned()];
    assert_eq!(summaries(&today(&dir)), ["0", "1", &losses[0], &losses[1], "2"]);
    assert_eq!(checked_events(&today(&dir)).last().unwrap()["session"], "33");
}

#[test]
fn events_without_a_written_head_are_removed_and_counted() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let mut journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let read_only = fs::File::open(dir.join("head")).unwrap().into();
    let head = std::mem::replace(&mut journal.head, read_only);
    journal.append(&end(1)).unwrap_err();
    journal.append(&end(2)).unwrap_err();
    assert_eq!(exit_codes(&today(&dir)), [0]);
    assert_eq!(head_lines(&dir).len(), 1);
    journal.head = head;
    journal.append(&end(3)).unwrap();
    journal.append(&end(4)).unwrap();
    assert_eq!(summaries(&today(&dir)), ["0", &format!("2 of {SESSION}: \"EBADF\""), "3", "4"]);
}

#[test]
fn a_session_without_a_written_event_loses_nothing() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    open(&dir, None).unwrap().append(&end(0)).unwrap();
    let head = fs::read(dir.join("head")).unwrap();
    let refused = open(&dir, None).unwrap();
    let whole = fs::read(today(&dir)).unwrap();
    fs::write(today(&dir), [&whole[..], b"foreign\n"].concat()).unwrap();
    refused.append(&end(1)).unwrap_err();
    fs::write(today(&dir), whole).unwrap();
    assert_eq!(fs::read(dir.join("head")).unwrap(), head);
    refused.append(&end(2)).unwrap();
    assert_eq!(exit_codes(&today(&dir)), [0, 2]);
}

#[test]
fn a_changed_mode_does_not_stop_the_loss_report() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let whole = fs::read(today(&dir)).unwrap();
    fs::write(today(&dir), [&whole[..], b"foreign\n"].concat()).unwrap();
    journal.append(&end(1)).unwrap_err();
    fs::write(today(&dir), whole).unwrap();
    fs::set_permissions(today(&dir), PermissionsExt::from_mode(0o644)).unwrap();
    journal.append(&end(2)).unwrap();
    assert_eq!(
        summaries(&today(&dir))[1..],
        [format!("1 of {SESSION}: \"its chain could not be continued\""), "2".to_owned()]
    );
}

#[test]
fn a_head_stores_losses_and_refuses_other_text() {
    let first = format!("7 {FIRST_HASH} my\nrun.jsonl 900\n");
    let stored = format!("{first}\x0000ff 3 ENOSPC\n\0ab 1 other users could access it\n\0\0");
    let head = JournalHead::parse(stored.as_bytes()).unwrap();
    let known: Vec<_> =
        head.losses.iter().map(|loss| (&*loss.session, loss.count, &*loss.reason)).collect();
    assert_eq!(known, [("00ff", 3, "ENOSPC"), ("ab", 1, "other users could access it")]);
    assert_eq!(head.file.to_bytes(), b"my\nrun.jsonl");
    assert_eq!(JournalHead::parse(&head.text()).unwrap(), head);
    for odd in ["x 3 ENOSPC\n", "00 ENOSPC\n", "00 3\n", "00 -1 x\n", "00 3 ENOSPC", "\"00 3 x\n"] {
        assert_eq!(JournalHead::parse(format!("{first}\0{odd}").as_bytes()), None, "{odd}");
    }
}

#[test]
fn a_journal_without_its_head_is_not_continued() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    open(&dir, None).unwrap().append(&end(0)).unwrap();
    fs::remove_file(dir.join("head")).unwrap();
    let lost = open(&dir, None).unwrap().append(&end(1));
    assert!(matches!(lost, Err(JournalError::Headless { .. })), "{lost:?}");
}

#[test]
fn the_end_event_is_written_after_a_mode_change() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    fs::set_permissions(today(&dir), PermissionsExt::from_mode(0o000)).unwrap();
    journal.append(&end(1)).unwrap();
    fs::set_permissions(today(&dir), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(exit_codes(&today(&dir)), [0, 1]);
}

#[test]
fn the_chain_continues_after_midnight() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    journal.append(&end(1)).unwrap();
    // Simulates that both lines are from yesterday and that `head` misses the second.
    let lines = fs::read_to_string(today(&dir)).unwrap();
    let first = lines.lines().next().unwrap();
    fs::rename(today(&dir), dir.join("2000-01-01.jsonl")).unwrap();
    fs::write(
        dir.join("head"),
        format!("1 {} 2000-01-01.jsonl {}\n", hash(first.as_bytes()), first.len() + 1),
    )
    .unwrap();
    let journal = open(&dir, None).unwrap();
    journal.append(&end(2)).unwrap();
    let line: Value =
        serde_json::from_str(fs::read_to_string(today(&dir)).unwrap().trim_end()).unwrap();
    assert_eq!(line["seq"], 3);
    assert_eq!(line["prev"], hash(lines.lines().nth(1).unwrap().as_bytes()).as_str());
    assert_eq!(line["opens"], true);
}

#[test]
fn a_fixed_file_has_its_own_head() {
    let temp = JournalDir::new();
    fs::set_permissions(&temp.0, PermissionsExt::from_mode(0o755)).unwrap();
    let name = "my run.jsonl";
    for code in 0..2 {
        open(&temp.0, Some(name)).unwrap().append(&end(code)).unwrap();
    }
    assert_eq!(exit_codes(&temp.0.join(name)), [0, 1]);
    assert!(temp.0.join("my run.jsonl.head").exists());
    fs::set_permissions(&temp.0, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(open(&temp.0, Some(name)), Err(JournalError::WrongMode { .. })));
}

#[test]
fn a_shared_directory_is_refused() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    fs::create_dir(&dir).unwrap();
    for mode in [0o755, 0o770, 0o777, 0o600] {
        fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
        assert!(matches!(open(&dir, None), Err(JournalError::WrongMode { .. })), "{mode:o}");
        assert!(Journal::inspect(&requested(&dir, None), uid()).is_err());
    }
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let other = Journal::open(&requested(&dir, None), uid() + 1, String::new());
    assert!(matches!(other, Err(JournalError::Owner { .. })));
    symlink(&dir, temp.0.join("link")).unwrap();
    assert!(matches!(open(&temp.0.join("link"), None), Err(JournalError::OpenDir { .. })));
    fs::write(temp.0.join("file"), "").unwrap();
    assert!(matches!(open(&temp.0.join("file"), None), Err(JournalError::OpenDir { .. })));
    assert!(matches!(open(&temp.0.join("a/b"), None), Err(JournalError::Create { .. })));
    assert!(open(&dir, None).is_ok());
}

#[test]
fn shared_files_are_refused() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    let journal = open(&dir, None).unwrap();
    let file = today(&dir);

    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(journal.append(&end(0)), Err(JournalError::WrongMode { .. })));
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    fs::hard_link(&file, temp.0.join("second")).unwrap();
    assert!(matches!(journal.append(&end(0)), Err(JournalError::Linked { links: 2, .. })));
    fs::remove_file(&file).unwrap();
    symlink(temp.0.join("second"), &file).unwrap();
    assert!(matches!(journal.append(&end(0)), Err(JournalError::WrongType { .. })));
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(journal.append(&end(0)).is_err());
    fs::remove_dir(&file).unwrap();
    assert!(journal.append(&end(0)).is_ok());

    fs::set_permissions(dir.join("head"), PermissionsExt::from_mode(0o640)).unwrap();
    assert!(matches!(open(&dir, None), Err(JournalError::WrongMode { .. })));
}

#[test]
fn inspecting_creates_nothing() {
    let temp = JournalDir::new();
    let dir = temp.0.join("audit");
    Journal::inspect(&requested(&dir, None), uid()).unwrap();
    assert!(!dir.exists());
}
