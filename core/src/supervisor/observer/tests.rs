//! What the observer reads from a call, what it sends, and that no answer breaks it.

use serde_json::Value;

use crate::supervisor::observer::*;

const GOLDEN: &str = include_str!("../../../../schema/examples/companion.json");

fn golden(kind: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(&GOLDEN.replace("\\udcff", "\\u00ff")).unwrap();
    all[kind].as_array().unwrap().clone()
}

fn pair() -> (Observer, OwnedFd) {
    let (ours, theirs) = socket_pair::pair().unwrap();
    (Observer::new(ours, true), theirs)
}

fn observed(act: FileAct, create: bool, path: &[u8], program: &[u8]) -> Observed {
    Observed { act, create, path: path.to_vec(), program: program.to_vec() }
}

fn say(theirs: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(theirs, bytes, SendFlags::NOSIGNAL).unwrap();
}

fn call(name: &str, arguments: [u64; 6]) -> InterceptedCall {
    let number = syscalls::find(name).and_then(|call| call.number(Arch::NATIVE)).unwrap() as i32;
    let thread = rustix::process::getpid().as_raw_nonzero().get() as u32;
    InterceptedCall::for_test(thread, number, arguments)
}

fn seen(observer: &mut Observer, call: &InterceptedCall) -> Vec<(FileAct, bool, Vec<u8>)> {
    let Ok(index) =
        observer.shapes.binary_search_by_key(&(call.number as u32), |(number, _)| *number)
    else {
        return Vec::new();
    };
    let shape = observer.shapes[index].1;
    let looked = shape.names.iter().filter_map(|named| observer.look_at(call, shape, named));
    looked.map(|Observed { act, create, path, .. }| (act, create, path)).collect()
}

#[test]
fn sent_messages_match_the_examples() {
    let examples = [
        observed(FileAct::Read, false, b"/home/ada/.ssh/id_rsa", b"/usr/bin/cat"),
        observed(FileAct::Update, true, b"/w/caf\xc3\xa9/\xff", b"/usr/bin/python3.11"),
    ];
    let messages = examples.map(|one| {
        serde_json::from_str::<Value>(&one.message().replace("\\udcff", "\\u00ff")).unwrap()
    });
    assert_eq!(messages.to_vec(), golden("to_observer"));
}

#[test]
fn received_messages_match_the_examples() {
    let (mut observer, theirs) = pair();
    for message in golden("from_observer") {
        say(&theirs, message.to_string().as_bytes());
    }
    observer.turn();
    assert_eq!(observer.judged, 2);
    let lines: Vec<String> = observer.refused().iter().map(RefusedFileAccess::line).collect();
    assert_eq!(
        lines,
        [
            "refused: read /home/ada/.ssh/id_rsa by /usr/bin/cat: /home/ada/.ssh is denied, even \
                inside a grant",
            "refused: write /srv/x by /usr/bin/touch: outside every grant; to allow it: --allow '/srv/**'",
        ]
    );
}

#[test]
fn an_observer_with_invalid_messages_is_dropped_and_reported() {
    for wrong in golden("wrong_from_observer")
        .iter()
        .map(Value::to_string)
        .chain(["x".into(), "[".repeat(9000)])
    {
        let (mut observer, theirs) = pair();
        say(&theirs, wrong.as_bytes());
        observer.turn();
        assert!(observer.fd().is_none(), "{wrong}");
        observer.note([Some(observed(FileAct::Read, false, b"/x", b"/y")), None]);
        assert!(observer.finish().is_some_and(|missed| missed.contains("has ended")), "{wrong}");
    }
}

#[test]
fn relative_paths_get_their_base_directory() {
    let (mut observer, _theirs) = pair();
    let here = std::env::current_dir().unwrap().into_os_string().into_encoded_bytes();
    let (old, new) = (c"old", c"/new");
    let (old, new) = (old.as_ptr() as u64, new.as_ptr() as u64);
    let below = |name: &[u8]| [&here[..], b"/", name].concat();
    let cwd = libc::AT_FDCWD as u64;
    let (create, path_only) = ((libc::O_RDWR | libc::O_CREAT) as u64, libc::O_PATH as u64);
    let how = [u64::from(libc::O_WRONLY as u32), 0, 0];
    for (call, expected) in [
        (call("openat", [cwd, old, 0, 0, 0, 0]), vec![(FileAct::Read, false, below(b"old"))]),
        (
            call("openat", [0, new, create, 0, 0, 0]),
            vec![(FileAct::Update, true, b"/new".to_vec())],
        ),
        (call("openat", [cwd, old, path_only, 0, 0, 0]), vec![]),
        (
            call("openat2", [cwd, new, how.as_ptr() as u64, 24, 0, 0]),
            vec![(FileAct::Write, false, b"/new".to_vec())],
        ),
        (call("openat2", [cwd, new, 8, 24, 0, 0]), vec![]),
        (
            call("renameat2", [cwd, old, cwd, new, 0, 0]),
            vec![
                (FileAct::Remove, false, below(b"old")),
                (FileAct::Replace, false, b"/new".to_vec()),
            ],
        ),
        (
            call("mkdirat", [cwd, new, 0o755, 0, 0, 0]),
            vec![(FileAct::Make, false, b"/new".to_vec())],
        ),
        (call("utimensat", [cwd, 0, 0, 0, 0, 0]), vec![]),
        (
            call("fchownat", [cwd, new, 0, 0, 0, 0]),
            vec![(FileAct::Change, false, b"/new".to_vec())],
        ),
        // No such descriptor, no such memory, no such call.
        (call("openat", [9999, old, 0, 0, 0, 0]), vec![]),
        (call("openat", [cwd, 8, 0, 0, 0, 0]), vec![]),
        (call("openat", [cwd, u64::MAX, 0, 0, 0, 0]), vec![]),
        (call("getpid", [0; 6]), vec![]),
    ] {
        assert_eq!(seen(&mut observer, &call), expected, "{call:?}");
    }
}

#[test]
fn calls_that_change_metadata_are_seen_where_they_may_be_refused() {
    for metadata in [true, false] {
        assert_eq!(shapes(metadata).any(|shape| shape.call == "chmod"), metadata);
    }
    assert!(shapes(true).all(|shape| syscalls::find(shape.call).is_some()));
}

#[test]
fn each_act_is_sent_once_up_to_the_limit() {
    let (mut observer, theirs) = pair();
    for _ in 0..3 {
        observer.note([Some(observed(FileAct::Read, false, b"/x", b"/y")), None]);
        observer.note([Some(observed(FileAct::Write, false, b"/x", b"/y")), None]);
    }
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let count = std::iter::from_fn(|| {
        rustix::net::recv(&theirs, &mut buffer[..], RecvFlags::DONTWAIT).ok()
    })
    .count();
    assert_eq!(count, 2);
    for number in 0..2 * MAX_ACTS {
        // As `look` does it, before it reads anything.
        if observer.seen.len() < MAX_ACTS {
            observer.note([
                Some(observed(FileAct::Read, false, number.to_string().as_bytes(), b"/y")),
                None,
            ]);
        } else {
            observer.passed_over += 1;
        }
    }
    assert_eq!(observer.seen.len(), MAX_ACTS);
    assert!(observer.unsent_bytes < MAX_UNSENT_BYTES);
}

#[test]
fn an_end_without_a_last_message_is_reported() {
    for (judged, missed) in [(Some(1), false), (Some(0), true), (None, true)] {
        let (mut observer, theirs) = pair();
        observer.note([Some(observed(FileAct::Read, false, b"/x", b"/y")), None]);
        if let Some(count) = judged {
            say(&theirs, format!("{{\"judged\":{count}}}").as_bytes());
        }
        rustix::net::recv(&theirs, &mut [0; 256][..], RecvFlags::empty()).unwrap();
        drop(theirs);
        assert_eq!(observer.finish().is_some(), missed, "{judged:?}");
    }
}
