use super::*;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

/// A directory that goes away with the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("paddock-journal-{}-{count}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Place(path)
    }
}

impl Drop for Place {
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

fn requested(dir: &Path, file: Option<&str>) -> plan::Journal {
    plan::Journal { dir: AbsPath::new(text(dir)).unwrap(), file: file.map(text), stderr: false }
}

fn open(dir: &Path, file: Option<&str>) -> Result<Journal, JournalError> {
    Journal::open(&requested(dir, file), uid(), "0123456789abcdef".to_owned())
}

fn end(code: i32) -> Event<'static> {
    Event::End { exit_code: code, signal: None, duration_ms: 1 }
}

fn today(dir: &Path) -> PathBuf {
    dir.join(format!("{}.jsonl", Utc::now().date()))
}

/// Asserts that the lines of a file chain on, and returns their exit codes.
fn verified(path: &Path) -> Vec<i64> {
    let mut prev = FIRST_HASH.to_owned();
    let mut codes = Vec::new();
    for (index, line) in fs::read_to_string(path).unwrap().lines().enumerate() {
        let value: Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["seq"], index as u64 + 1);
        assert_eq!(value["prev"], prev.as_str());
        assert!(line.len() < LINE_LIMIT);
        prev = hash(line.as_bytes());
        codes.push(value["exit_code"].as_i64().unwrap());
    }
    codes
}

#[test]
fn lines_chain_over_sessions() {
    let place = Place::new();
    let dir = place.0.join("audit");
    for code in 0..5 {
        open(&dir, None).unwrap().append(&end(code)).unwrap();
    }
    assert_eq!(verified(&today(&dir)), [0, 1, 2, 3, 4]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&today(&dir)), mode(&dir.join("head"))), (0o700, 0o600, 0o600));
    let head = fs::read_to_string(dir.join("head")).unwrap();
    let last = fs::read_to_string(today(&dir)).unwrap();
    let expected = hash(last.lines().last().unwrap().as_bytes());
    let name = today(&dir).file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(head, format!("5 {expected} {name} {}\n", last.len()));
}

#[test]
fn lines_that_come_together_chain_like_others() {
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append_all(&[]).unwrap();
    assert!(!today(&dir).exists());
    journal.append_all(&[end(0), end(1), end(2)]).unwrap();
    journal.append(&end(3)).unwrap();
    open(&dir, None).unwrap().append_all(&[end(4), end(5)]).unwrap();
    assert_eq!(verified(&today(&dir)), [0, 1, 2, 3, 4, 5]);
    let lines = fs::read_to_string(today(&dir)).unwrap();
    let opening = |line: &str| line.contains("\"opens\":true");
    assert!(lines.lines().next().is_some_and(opening) && !lines.lines().skip(1).any(opening));
}

#[test]
fn the_first_line_has_the_fields_of_the_golden_example() {
    let place = Place::new();
    let dir = place.0.join("audit");
    open(&dir, None).unwrap().append(&end(0)).unwrap();
    let ours: Value = serde_json::from_str(fs::read_to_string(today(&dir)).unwrap().trim_end()).unwrap();
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
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let stale = fs::read(dir.join("head")).unwrap();
    journal.append(&end(1)).unwrap();
    journal.append(&end(2)).unwrap();
    fs::write(dir.join("head"), stale).unwrap();
    journal.append(&end(3)).unwrap();
    assert_eq!(verified(&today(&dir)), [0, 1, 2, 3]);
}

#[test]
fn a_torn_line_is_cut_off() {
    for torn in [&b"{\"seq\":2,\"prev\":\"1"[..], b"x", b"\0\0\0"] {
        let place = Place::new();
        let dir = place.0.join("audit");
        let journal = open(&dir, None).unwrap();
        journal.append(&end(0)).unwrap();
        let whole = fs::read(today(&dir)).unwrap();
        fs::write(today(&dir), [&whole, torn].concat()).unwrap();
        journal.append(&end(1)).unwrap();
        assert_eq!(verified(&today(&dir)), [0, 1]);
    }
}

#[test]
fn lines_that_do_not_chain_stop_everything() {
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    let whole = fs::read(today(&dir)).unwrap();
    fs::write(today(&dir), [&whole[..], b"{\"seq\":2,\"prev\":\"forged\"}\n"].concat()).unwrap();
    assert!(matches!(journal.append(&end(1)), Err(JournalError::Foreign { .. })));
    fs::write(dir.join("head"), "not a head\n").unwrap();
    assert!(matches!(journal.append(&end(1)), Err(JournalError::Head { .. })));
}

#[test]
fn lines_taken_away_leave_a_gap_that_shows() {
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    fs::write(today(&dir), "").unwrap();
    journal.append(&end(1)).unwrap();
    let line: Value = serde_json::from_str(fs::read_to_string(today(&dir)).unwrap().trim_end()).unwrap();
    assert_eq!(line["seq"], 2);
    assert_ne!(line["prev"], FIRST_HASH);
    assert_eq!(line.get("opens"), None);
}

#[test]
fn a_journal_that_lost_its_head_is_not_continued() {
    let place = Place::new();
    let dir = place.0.join("audit");
    open(&dir, None).unwrap().append(&end(0)).unwrap();
    fs::remove_file(dir.join("head")).unwrap();
    let lost = open(&dir, None).unwrap().append(&end(1));
    assert!(matches!(lost, Err(JournalError::Headless { .. })), "{lost:?}");
}

#[test]
fn the_end_is_written_although_the_mode_was_changed_meanwhile() {
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    fs::set_permissions(today(&dir), PermissionsExt::from_mode(0o000)).unwrap();
    journal.append(&end(1)).unwrap();
    fs::set_permissions(today(&dir), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(verified(&today(&dir)), [0, 1]);
}

#[test]
fn the_chain_goes_on_over_midnight() {
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    journal.append(&end(0)).unwrap();
    journal.append(&end(1)).unwrap();
    // As if both lines were yesterday's, and the second had not reached the head.
    let lines = fs::read_to_string(today(&dir)).unwrap();
    let first = lines.lines().next().unwrap();
    fs::rename(today(&dir), dir.join("2000-01-01.jsonl")).unwrap();
    fs::write(dir.join("head"), format!("1 {} 2000-01-01.jsonl {}\n", hash(first.as_bytes()), first.len() + 1))
        .unwrap();
    let journal = open(&dir, None).unwrap();
    journal.append(&end(2)).unwrap();
    let line: Value = serde_json::from_str(fs::read_to_string(today(&dir)).unwrap().trim_end()).unwrap();
    assert_eq!(line["seq"], 3);
    assert_eq!(line["prev"], hash(lines.lines().nth(1).unwrap().as_bytes()).as_str());
    assert_eq!(line["opens"], true);
}

#[test]
fn a_fixed_file_has_its_own_head() {
    let place = Place::new();
    fs::set_permissions(&place.0, PermissionsExt::from_mode(0o755)).unwrap();
    let name = "my run.jsonl";
    for code in 0..2 {
        open(&place.0, Some(name)).unwrap().append(&end(code)).unwrap();
    }
    assert_eq!(verified(&place.0.join(name)), [0, 1]);
    assert!(place.0.join("my run.jsonl.head").exists());
    fs::set_permissions(&place.0, PermissionsExt::from_mode(0o777)).unwrap();
    assert!(matches!(open(&place.0, Some(name)), Err(JournalError::WrongMode { .. })));
}

#[test]
fn a_directory_that_is_not_ours_alone_is_refused() {
    let place = Place::new();
    let dir = place.0.join("audit");
    fs::create_dir(&dir).unwrap();
    for mode in [0o755, 0o770, 0o777, 0o600] {
        fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).unwrap();
        assert!(matches!(open(&dir, None), Err(JournalError::WrongMode { .. })), "{mode:o}");
        assert!(Journal::inspect(&requested(&dir, None), uid()).is_err());
    }
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let other = Journal::open(&requested(&dir, None), uid() + 1, String::new());
    assert!(matches!(other, Err(JournalError::Owner { .. })));
    symlink(&dir, place.0.join("link")).unwrap();
    assert!(matches!(open(&place.0.join("link"), None), Err(JournalError::OpenDir { .. })));
    fs::write(place.0.join("file"), "").unwrap();
    assert!(matches!(open(&place.0.join("file"), None), Err(JournalError::OpenDir { .. })));
    assert!(matches!(open(&place.0.join("a/b"), None), Err(JournalError::Create { .. })));
    assert!(open(&dir, None).is_ok());
}

#[test]
fn files_that_are_not_ours_alone_are_refused() {
    let place = Place::new();
    let dir = place.0.join("audit");
    let journal = open(&dir, None).unwrap();
    let file = today(&dir);

    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(matches!(journal.append(&end(0)), Err(JournalError::WrongMode { .. })));
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    fs::hard_link(&file, place.0.join("second")).unwrap();
    assert!(matches!(journal.append(&end(0)), Err(JournalError::Linked { links: 2, .. })));
    fs::remove_file(&file).unwrap();
    symlink(place.0.join("second"), &file).unwrap();
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
fn looking_creates_nothing() {
    let place = Place::new();
    let dir = place.0.join("audit");
    Journal::inspect(&requested(&dir, None), uid()).unwrap();
    assert!(!dir.exists());
}
