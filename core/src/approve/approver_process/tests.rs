//! Tests over a real socket pair: messages in both directions, their limits, and that no message
//! breaks the core.

use serde_json::{Value, json};

use crate::approve::approver_process::*;

const GOLDEN: &str = include_str!("../../../../schema/examples/companion.json");

fn golden(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&GOLDEN.replace("\\udcff", "\\u00ff")).unwrap();
    all[kind].as_array().unwrap().clone()
}

/// The core's end and the approver's end.
fn pair() -> (ApproverProcess, OwnedFd) {
    let (ours, theirs) = socket_pair::pair().unwrap();
    (ApproverProcess::new(Some(ours)), theirs)
}

fn question() -> Question<'static> {
    Question::Exec(exec())
}

fn exec() -> ExecPrompt<'static> {
    ExecPrompt {
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
    Question::Exec(ExecPrompt { argv, ..exec() })
}

fn send(theirs: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(theirs, bytes, SendFlags::NOSIGNAL).unwrap();
}

fn answer(theirs: &OwnedFd, id: u64, verdict: &str) {
    send(
        theirs,
        json!({"answer": id, "verdict": verdict, "by": "terminal"}).to_string().as_bytes(),
    );
}

/// Messages that the approver has not read yet.
fn sent_messages(theirs: &OwnedFd) -> Vec<Value> {
    let mut buffer = vec![0; MAX_MESSAGE_BYTES + 1];
    std::iter::from_fn(|| match rustix::net::recv(theirs, &mut buffer, RecvFlags::DONTWAIT) {
        Ok((_, 0)) | Err(_) => None,
        Ok((_, length)) => Some(serde_json::from_slice(&buffer[..length]).unwrap()),
    })
    .collect()
}

fn is_ready(approver: &ApproverProcess) -> bool {
    let mut waiting = [PollFd::from_borrowed_fd(approver.fd().unwrap(), PollFlags::IN)];
    rustix::event::poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

#[test]
fn questions_match_the_examples() {
    let questions = golden("to_companion");
    let (mut approver, theirs) = pair();
    let argv: [&[u8]; 6] = [b"git", b"push", b"a b", b"\x1b[2J", "café".as_bytes(), b"\xff"];
    let first = ExecPrompt {
        argv: &argv,
        cwd: b"/home/ada/project",
        pid: 123,
        parent: Some((b"/usr/bin/bash", &[b"bash", b"-c", b"git push"])),
        rule: Some(b"push-asks"),
        source: b"paddock.toml:14",
        reason: Some(b"leaves the machine"),
        ..exec()
    };
    let second = ExecPrompt {
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
        questions[0]
    );
    approver.ask(7, &question()).unwrap();
    approver.ask(8, &Question::Exec(second)).unwrap();
    let process = Some((4711, "/usr/bin/curl"));
    let host = HostPrompt {
        host: "example.com",
        port: 443,
        process,
        source: b"paddock.toml:3",
        timeout_s: 300,
    };
    approver.ask(9, &Question::Host(host)).unwrap();
    let host = HostPrompt { host: "a.example", port: 22, process: None, source: b"", timeout_s: 1 };
    approver.ask(10, &Question::Host(host)).unwrap();
    approver.withdraw(7);
    assert_eq!(sent_messages(&theirs)[1..], questions[1..]);
}

#[test]
fn answers_match_the_examples() {
    let (mut approver, theirs) = pair();
    assert!(approver.next_event().is_none() && !is_ready(&approver));
    for message in golden("to_core") {
        let id = message["answer"].as_u64().unwrap();
        approver.ask(id, &question()).unwrap();
        send(&theirs, message.to_string().as_bytes());
        assert!(is_ready(&approver));
        let Some(ApproverEvent::Answer { id: event, answer, by }) = approver.next_event() else {
            panic!("{message}")
        };
        assert_eq!((event, &*by), (id, message["by"].as_str().unwrap()));
        let expected = match message["verdict"].as_str().unwrap() {
            "once" => Answer::Once,
            "session" => Answer::Session,
            _ => Answer::Deny,
        };
        assert_eq!(answer, expected);
    }
    assert!(approver.next_event().is_none() && !is_ready(&approver));
}

#[test]
fn an_invalid_message_ends_the_approver() {
    let wrong = golden("wrong_to_core").into_iter().map(|message| message.to_string().into_bytes());
    let raw =
        [b"x".to_vec(), b"{".to_vec(), vec![0], vec![b' '; MAX_MESSAGE_BYTES + 1], vec![0xff; 9]];
    for message in wrong.chain(raw) {
        let (mut approver, theirs) = pair();
        approver.ask(7, &question()).unwrap();
        send(&theirs, &message);
        assert_eq!(
            approver.next_event(),
            Some(ApproverEvent::Gone),
            "{:?}",
            message.escape_ascii().to_string()
        );
        assert_eq!(approver.next_event(), None);
        assert!(approver.fd().is_none() && !approver.has_terminal());
        assert_eq!(approver.ask(8, &question()), Err("the approver has ended".to_owned()));
    }
}

#[test]
fn a_closed_socket_ends_the_approver() {
    let (mut approver, theirs) = pair();
    approver.ask(1, &question()).unwrap();
    drop(theirs);
    assert!(is_ready(&approver));
    assert_eq!(approver.next_event(), Some(ApproverEvent::Gone));
    // If sending finds the closed socket, the event comes as well.
    let (mut approver, theirs) = pair();
    approver.ask(1, &question()).unwrap();
    drop(theirs);
    approver.ask(2, &question()).unwrap();
    assert!(is_ready(&approver));
    assert_eq!(approver.next_event(), Some(ApproverEvent::Gone));
}

#[test]
fn an_answer_counts_once_and_only_for_an_open_question() {
    let (mut approver, theirs) = pair();
    (1..=2).for_each(|id| approver.ask(id, &question()).unwrap());
    approver.withdraw(1);
    answer(&theirs, 1, "once");
    answer(&theirs, 99, "session");
    answer(&theirs, 2, "deny");
    answer(&theirs, 2, "once");
    assert_eq!(
        approver.next_event(),
        Some(ApproverEvent::Answer { id: 2, answer: Answer::Deny, by: "terminal".to_owned() })
    );
    assert_eq!(approver.next_event(), None);
    assert!(approver.open.lengths.is_empty());
    approver.withdraw(2);
    assert_eq!(
        sent_messages(&theirs).last(),
        Some(&json!({"withdrawn": 1})),
        "an answered question is not withdrawn"
    );
}

#[test]
fn unsent_questions_wait_without_blocking() {
    let (mut approver, theirs) = pair();
    let long = vec![b'x'; 40_000];
    let argv = [long.as_slice()];
    let questions = 100;
    (0..questions).for_each(|id| approver.ask(id, &with(&argv)).unwrap());
    let ApproverState::Running(link) = &approver.state else { panic!() };
    let unsent: Vec<u64> = link.unsent.iter().filter_map(|(id, _)| *id).collect();
    assert!(unsent.len() > 10, "{}", unsent.len());
    assert!(!is_ready(&approver), "a full socket is no reason to wake");
    // Neither the question nor its withdrawal reaches the approver.
    approver.withdraw(questions - 1);
    let mut seen = Vec::new();
    while seen.len() < questions as usize - 1 {
        seen.extend(sent_messages(&theirs).iter().map(|message| message["ask"].as_u64().unwrap()));
        assert!(is_ready(&approver) || seen.len() == questions as usize - 1, "there is room again");
        assert_eq!(approver.next_event(), None);
    }
    assert_eq!(seen, (0..questions - 1).collect::<Vec<_>>());
    assert!(!is_ready(&approver));
}

#[test]
fn a_question_that_is_too_long_is_not_asked() {
    let (mut approver, theirs) = pair();
    let long = vec![b'x'; MAX_MESSAGE_BYTES];
    let argv = [long.as_slice()];
    assert_eq!(approver.ask(1, &with(&argv)), Err("the question is too long to show".to_owned()));
    assert!(sent_messages(&theirs).is_empty());
    let argv = [&long[..MAX_MESSAGE_BYTES - 1000]];
    let most = (0..).find(|id| approver.ask(*id, &with(&argv)).is_err()).unwrap();
    assert!((200..300).contains(&most), "{most}");
    assert_eq!(approver.ask(most, &with(&argv)), Err("too many questions are open".to_owned()));
    approver.withdraw(0);
    approver.ask(most, &with(&argv)).unwrap();
}

/// Answers to thousands of questions.
#[test]
fn thousands_of_questions_can_be_open() {
    let (mut approver, theirs) = pair();
    (0..2000).for_each(|id| approver.ask(id, &question()).unwrap());
    let mut answered = 0;
    while answered < 2000 {
        for message in sent_messages(&theirs) {
            answer(&theirs, message["ask"].as_u64().unwrap(), "once");
            if let Some(ApproverEvent::Answer { id, .. }) = approver.next_event() {
                assert_eq!(id, answered);
                answered += 1;
            }
        }
        while let Some(ApproverEvent::Answer { .. }) = approver.next_event() {
            answered += 1;
        }
    }
}

#[test]
fn no_message_breaks_the_core() {
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
    let (mut approver, mut theirs) = pair();
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
        approver.ask(7, &question()).unwrap();
        send(&theirs, &bytes);
        match approver.next_event() {
            Some(ApproverEvent::Gone) => (approver, theirs) = pair(),
            Some(ApproverEvent::Answer { id, .. }) => assert_eq!(id, 7),
            None => approver.withdraw(7),
        }
        if round % 16 == 0 {
            sent_messages(&theirs);
        }
    }
}
