//! Against a real socket pair: what is said and heard, how much of it, and that nothing a companion
//! says breaks the core.

use serde_json::{Value, json};

use crate::approve::approver_process::*;

const GOLDEN: &str = include_str!("../../../../schema/examples/companion.json");

fn golden(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&GOLDEN.replace("\\udcff", "\\u00ff")).unwrap();
    all[kind].as_array().unwrap().clone()
}

/// (ours, the companion's end)
fn pair() -> (ApproverProcess, OwnedFd) {
    let (ours, theirs) = socket_pair::pair().unwrap();
    (ApproverProcess::new(Some(ours)), theirs)
}

fn question() -> Question<'static> {
    Question::Exec(exec())
}

fn exec() -> Exec<'static> {
    Exec {
        exe: b"/usr/bin/git",
        chain: &[b"/usr/bin/git"],
        argv: &[b"git", b"push"],
        cwd: b"/w",
        pid: 1,
        parent: None,
        rule: None,
        source: b"p.toml:1",
        reason: None,
        timeout_s: 300,
    }
}

fn with<'a>(argv: &'a [&'a [u8]]) -> Question<'a> {
    Question::Exec(Exec { argv, ..exec() })
}

fn say(theirs: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(theirs, bytes, SendFlags::NOSIGNAL).unwrap();
}

fn answer(theirs: &OwnedFd, id: u64, verdict: &str) {
    say(theirs, json!({"answer": id, "verdict": verdict, "by": "terminal"}).to_string().as_bytes());
}

/// What the companion was told and has not read yet.
fn told(theirs: &OwnedFd) -> Vec<Value> {
    let mut buffer = vec![0; LONGEST + 1];
    std::iter::from_fn(|| match rustix::net::recv(theirs, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) | Err(_) => None,
        Ok((_, length)) => Some(serde_json::from_slice(&buffer[..length]).unwrap()),
    })
    .collect()
}

fn is_ready(companion: &ApproverProcess) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(companion.fd().unwrap(), PollFlags::IN)];
    rustix::event::poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn questions_are_said_as_the_examples_have_them() {
    let asked = golden("to_companion");
    let (mut companion, theirs) = pair();
    let argv: [&[u8]; 6] = [b"git", b"push", b"a b", b"\x1b[2J", "café".as_bytes(), b"\xff"];
    let first = Exec {
        argv: &argv,
        cwd: b"/home/ada/project",
        pid: 123,
        parent: Some((b"/usr/bin/bash", &[b"bash", b"-c", b"git push"])),
        rule: Some(b"push-asks"),
        source: b"paddock.toml:14",
        reason: Some(b"leaves the machine"),
        ..exec()
    };
    let second = Exec {
        exe: b"/home/ada/project/run",
        chain: &[b"/home/ada/project/run", b"/usr/bin/dash"],
        argv: &[],
        cwd: b"/",
        source: b"paddock.toml:3",
        timeout_s: 1,
        ..exec()
    };
    assert!(first.message(7).is_ascii() && first.message(7).contains("\\udcff"));
    assert_eq!(
        serde_json::from_str::<Value>(&first.message(7).replace("\\udcff", "\\u00ff")).unwrap(),
        asked[0]
    );
    companion.ask(7, &question()).unwrap();
    companion.ask(8, &Question::Exec(second)).unwrap();
    let process = Some((4711, "/usr/bin/curl"));
    let host =
        Host { host: "example.com", port: 443, process, source: b"paddock.toml:3", timeout_s: 300 };
    companion.ask(9, &Question::Host(host)).unwrap();
    let host = Host { host: "a.example", port: 22, process: None, source: b"", timeout_s: 1 };
    companion.ask(10, &Question::Host(host)).unwrap();
    companion.withdraw(7);
    assert_eq!(told(&theirs)[1..], asked[1..]);
}

#[test]
fn answers_are_heard_as_the_examples_have_them() {
    let (mut companion, theirs) = pair();
    assert!(companion.hear().is_none() && !is_ready(&companion));
    for message in golden("to_core") {
        let id = message["answer"].as_u64().unwrap();
        companion.ask(id, &question()).unwrap();
        say(&theirs, message.to_string().as_bytes());
        assert!(is_ready(&companion));
        let Some(Heard::Answer { id: heard, answer, by }) = companion.hear() else {
            panic!("{message}")
        };
        assert_eq!((heard, &*by), (id, message["by"].as_str().unwrap()));
        let expected = match message["verdict"].as_str().unwrap() {
            "once" => Answer::Once,
            "session" => Answer::Session,
            _ => Answer::Deny,
        };
        assert_eq!(answer, expected);
    }
    assert!(companion.hear().is_none() && !is_ready(&companion));
}

#[test]
fn who_does_not_speak_the_language_is_gone() {
    let wrong = golden("wrong_to_core").into_iter().map(|message| message.to_string().into_bytes());
    let raw = [b"x".to_vec(), b"{".to_vec(), vec![0], vec![b' '; LONGEST + 1], vec![0xff; 9]];
    for message in wrong.chain(raw) {
        let (mut companion, theirs) = pair();
        companion.ask(7, &question()).unwrap();
        say(&theirs, &message);
        assert_eq!(companion.hear(), Some(Heard::Gone), "{:?}", message.escape_ascii().to_string());
        assert_eq!(companion.hear(), None);
        assert!(companion.fd().is_none() && !companion.has_terminal());
        assert_eq!(companion.ask(8, &question()), Err("the approver has ended".to_owned()));
    }
}

#[test]
fn who_went_is_gone_whatever_waits() {
    let (mut companion, theirs) = pair();
    companion.ask(1, &question()).unwrap();
    drop(theirs);
    assert!(is_ready(&companion));
    assert_eq!(companion.hear(), Some(Heard::Gone));
    // Found out by asking: it is heard of all the same.
    let (mut companion, theirs) = pair();
    companion.ask(1, &question()).unwrap();
    drop(theirs);
    companion.ask(2, &question()).unwrap();
    assert!(is_ready(&companion));
    assert_eq!(companion.hear(), Some(Heard::Gone));
}

#[test]
fn an_answer_counts_once_and_only_for_an_open_question() {
    let (mut companion, theirs) = pair();
    (1..=2).for_each(|id| companion.ask(id, &question()).unwrap());
    companion.withdraw(1);
    answer(&theirs, 1, "once");
    answer(&theirs, 99, "session");
    answer(&theirs, 2, "deny");
    answer(&theirs, 2, "once");
    assert_eq!(
        companion.hear(),
        Some(Heard::Answer { id: 2, answer: Answer::Deny, by: "terminal".to_owned() })
    );
    assert_eq!(companion.hear(), None);
    assert!(companion.open.lengths.is_empty());
    companion.withdraw(2);
    assert_eq!(
        told(&theirs).last(),
        Some(&json!({"withdrawn": 1})),
        "an answered question is not withdrawn"
    );
}

#[test]
fn what_the_socket_does_not_take_waits_and_nobody_blocks() {
    let (mut companion, theirs) = pair();
    let long = vec![b'x'; 40_000];
    let argv = [long.as_slice()];
    let asked = 100;
    (0..asked).for_each(|id| companion.ask(id, &with(&argv)).unwrap());
    let State::Running(link) = &companion.state else { panic!() };
    let unsent: Vec<u64> = link.unsent.iter().filter_map(|(id, _)| *id).collect();
    assert!(unsent.len() > 10, "{}", unsent.len());
    assert!(!is_ready(&companion), "a full socket is no reason to wake");
    // Neither that it was asked nor that it needs not answer reaches the companion.
    companion.withdraw(asked - 1);
    let mut seen = Vec::new();
    while seen.len() < asked as usize - 1 {
        seen.extend(told(&theirs).iter().map(|message| message["ask"].as_u64().unwrap()));
        assert!(is_ready(&companion) || seen.len() == asked as usize - 1, "there is room again");
        assert_eq!(companion.hear(), None);
    }
    assert_eq!(seen, (0..asked - 1).collect::<Vec<_>>());
    assert!(!is_ready(&companion));
}

#[test]
fn what_can_not_be_shown_is_not_asked() {
    let (mut companion, theirs) = pair();
    let long = vec![b'x'; LONGEST];
    let argv = [long.as_slice()];
    assert_eq!(companion.ask(1, &with(&argv)), Err("the question is too long to show".to_owned()));
    assert!(told(&theirs).is_empty());
    let argv = [&long[..LONGEST - 1000]];
    let most = (0..).find(|id| companion.ask(*id, &with(&argv)).is_err()).unwrap();
    assert!((200..300).contains(&most), "{most}");
    assert_eq!(companion.ask(most, &with(&argv)), Err("too many questions are open".to_owned()));
    companion.withdraw(0);
    companion.ask(most, &with(&argv)).unwrap();
}

/// A person's answers among thousands of questions.
#[test]
fn hundreds_are_asked_at_once() {
    let (mut companion, theirs) = pair();
    (0..2000).for_each(|id| companion.ask(id, &question()).unwrap());
    let mut answered = 0;
    while answered < 2000 {
        for message in told(&theirs) {
            answer(&theirs, message["ask"].as_u64().unwrap(), "once");
            if let Some(Heard::Answer { id, .. }) = companion.hear() {
                assert_eq!(id, answered);
                answered += 1;
            }
        }
        while let Some(Heard::Answer { .. }) = companion.hear() {
            answered += 1;
        }
    }
}

#[test]
fn nothing_that_is_said_breaks_the_core() {
    let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let seeds: Vec<Vec<u8>> = ["to_core", "wrong_to_core", "to_companion"]
        .iter()
        .flat_map(|kind| golden(kind))
        .map(|one| one.to_string().into())
        .collect();
    let (mut companion, mut theirs) = pair();
    for round in 0..50_000 {
        let mut bytes = seeds[next(seeds.len())].clone();
        for _ in 0..next(6) {
            let at = next(bytes.len());
            match next(4) {
                0 => bytes[at] = next(256) as u8,
                1 => bytes.insert(at, b"{}[]\",:\\\0-9e"[next(12)]),
                2 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        companion.ask(7, &question()).unwrap();
        say(&theirs, &bytes);
        match companion.hear() {
            Some(Heard::Gone) => (companion, theirs) = pair(),
            Some(Heard::Answer { id, .. }) => assert_eq!(id, 7),
            None => companion.withdraw(7),
        }
        if round % 16 == 0 {
            told(&theirs);
        }
    }
}
