use crate::network::fuzz_bytes::FuzzBytes;
use crate::network::parse::dns_message::*;

/// The header and the question for `www.Example.com`, A.
const QUERY: &[u8] = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x03www\x07Example\x03com\0\0\x01\0\x01";
const OPTION: &[u8] = b"\0\0\x29\x04\xd0\0\0\0\0\0\0";

fn read(message: &[u8]) -> Query {
    match Query::read(message) {
        DnsQuestion::Query(query) => query,
        other => panic!("{other:?}"),
    }
}

fn refused(message: &[u8]) -> Vec<u8> {
    match Query::read(message) {
        DnsQuestion::Refused(answer) => answer,
        other => panic!("{other:?}"),
    }
}

/// The message with some bytes replaced.
fn changed(message: &[u8], changes: &[(usize, u8)]) -> Vec<u8> {
    let mut message = message.to_vec();
    for (at, byte) in changes {
        message[*at] = *byte;
    }
    message
}

fn host(text: &str) -> HostName {
    HostName::read(text.as_bytes()).unwrap()
}

#[test]
fn a_dns_question_is_read() {
    let query = read(QUERY);
    assert_eq!((query.name.clone(), query.kind), (Some(host("www.example.com")), RecordKind::A));
    assert_eq!(query.asked_name(), "www.Example.com");
    assert_eq!(read(&changed(QUERY, &[(30, 28)])).kind, RecordKind::Aaaa);
    assert_eq!(read(&changed(QUERY, &[(30, 65)])).kind, RecordKind::Other(65));
    assert_eq!(read(b"\0\x01\0\0\0\x01\0\0\0\0\0\0\0\0\x02\0\x01").name, None);
}

#[test]
fn answers_repeat_the_question() {
    let question_bytes = &QUERY[12..];
    let address = "198.18.0.7".parse().unwrap();
    let with_address = [
        b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0",
        question_bytes,
        b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc6\x12\0\x07",
    ]
    .concat();
    assert_eq!(answer(&read(QUERY), DnsAnswer::V4(address)), with_address);
    let six = changed(QUERY, &[(30, 28)]);
    let message = answer(&read(&six), DnsAnswer::V6("fdfa::7".parse().unwrap()));
    assert_eq!(message[..12], *b"\x12\x34\x81\x80\0\x01\0\x01\0\0\0\0");
    assert_eq!(
        message[33..],
        *b"\xc0\x0c\0\x1c\0\x01\0\0\0\x3c\0\x10\xfd\xfa\0\0\0\0\0\0\0\0\0\0\0\0\0\x07"
    );
    for (reply_kind, code) in
        [(DnsAnswer::Nothing, 0), (DnsAnswer::NoName, 3), (DnsAnswer::Failed, 2)]
    {
        let expected =
            [&[0x12, 0x34, 0x81, 0x80 | code, 0, 1, 0, 0, 0, 0, 0, 0], question_bytes].concat();
        assert_eq!(answer(&read(QUERY), reply_kind), expected);
    }
    // Never an address of another type.
    assert_eq!(
        answer(&read(&six), DnsAnswer::V4(address)),
        answer(&read(&six), DnsAnswer::Nothing)
    );
    // The answer repeats the RD flag of the question.
    assert_eq!(answer(&read(&changed(QUERY, &[(2, 0)])), DnsAnswer::Nothing)[2..4], [0x80, 0x80]);
}

#[test]
fn an_opt_record_is_answered_with_one() {
    let query = changed(&[QUERY, OPTION].concat(), &[(11, 1)]);
    let message = answer(&read(&query), DnsAnswer::NoName);
    assert_eq!(message[..12], *b"\x12\x34\x81\x83\0\x01\0\0\0\0\0\x01");
    assert_eq!(message[33..], *OPTION);
    // A cookie is dropped, and other records are ignored.
    let cookie = b"\0\0\x29\x04\xd0\0\0\x80\0\0\x0c\0\x0a\0\x08abcdefgh";
    let query =
        changed(&[QUERY, cookie, b"\xc0\x0c\0\x10\0\x01\0\0\0\0\0\x01x"].concat(), &[(11, 2)]);
    assert_eq!(answer(&read(&query), DnsAnswer::NoName)[33..], *OPTION);
    // Version 1: BADVERS. Its upper bits are in the OPT record.
    let newer = changed(&[QUERY, b"\0\0\x29\x04\xd0\0\x01\0\0\0\0"].concat(), &[(11, 1)]);
    let message = refused(&newer);
    assert_eq!((message[3], &message[33..]), (0x80, &b"\0\0\x29\x04\xd0\x01\0\0\0\0\0"[..]));
}

#[test]
fn the_longest_name_is_answered_in_a_small_datagram() {
    let label = [&[63][..], &[b'a'; 63]].concat();
    let longest = [&label[..], &label, &label, &[61], &[b'a'; 61], &[0]].concat();
    let query = [&QUERY[..11], b"\x01", &longest, b"\0\x1c\0\x01", OPTION].concat();
    let query = read(&query);
    assert_eq!(query.name.as_ref().map(|name| name.as_bytes().len()), Some(253));
    assert!(answer(&query, DnsAnswer::V6(Ipv6Addr::LOCALHOST)).len() <= 512);
    let longer = [&label[..], &label, &label, &[62], &[b'a'; 62], &[0]].concat();
    assert_eq!(refused(&[&QUERY[..12], &longer, b"\0\x1c\0\x01"].concat())[3] & 15, 1);
}

#[test]
fn invalid_questions_are_refused_or_ignored() {
    for message in [&b""[..], b"\0", &QUERY[..11], &changed(QUERY, &[(2, 0x81)])] {
        assert_eq!(Query::read(message), DnsQuestion::Nothing);
    }
    let code = |message: &[u8]| refused(message)[3] & 15;
    let format: [Vec<u8>; 12] = [
        QUERY[..12].to_vec(),
        QUERY[..20].to_vec(),
        QUERY[..32].to_vec(),
        [QUERY, b"\0"].concat(),
        // No question, two questions, an answer, an authority, a missing record.
        changed(QUERY, &[(5, 0)]),
        changed(&[QUERY, &QUERY[12..]].concat(), &[(5, 2)]),
        changed(QUERY, &[(7, 1)]),
        changed(QUERY, &[(9, 1)]),
        changed(QUERY, &[(11, 1)]),
        // Two OPT records; one with a name.
        changed(&[QUERY, OPTION, OPTION].concat(), &[(11, 2)]),
        changed(&[QUERY, b"\x01a", OPTION].concat(), &[(11, 1)]),
        // A label type that does not exist.
        changed(QUERY, &[(12, 0x43)]),
    ];
    for message in format {
        assert_eq!(code(&message), 1, "{message:?}");
    }
    // Pointers to themselves, to each other, into the header, and forward.
    for (first, second) in [
        (b"\xc0\x0c", b"\0\0"),
        (b"\xc0\x0e", b"\xc0\x0c"),
        (b"\xc0\0", b"\0\0"),
        (b"\xc0\x10", b"\0\0"),
    ] {
        assert_eq!(code(&[&QUERY[..12], first, second, b"\0\x01\0\x01"].concat()), 1);
    }
    // Another class; another opcode, which the answer repeats.
    assert_eq!(code(&changed(QUERY, &[(32, 3)])), 5);
    assert_eq!(refused(&changed(QUERY, &[(2, 0x29)])), b"\x12\x34\xa9\x84\0\0\0\0\0\0\0\0");
}

#[test]
fn unusual_names_are_escaped() {
    for (wire_name, shown) in [
        (&b"\x03a b\0"[..], "a b"),
        (b"\x03a.b\x07example\0", r"a\.b.example"),
        (b"\x03a\\b\0", r"a\\b"),
        (b"\x02a\0\0", r"a\x00"),
        (b"\x02\x1b[\0", r"\x1b["),
        (b"\x04a\r\nb\0", r"a\r\nb"),
        (b"\x03127\x010\x010\x011\0", "127.0.0.1"),
        (b"\x02\xc3\xbc\0", r"\xc3\xbc"),
        (b"\0", ""),
    ] {
        let query = read(&[&QUERY[..12], wire_name, b"\0\x01\0\x01"].concat());
        assert_eq!((query.name.clone(), query.asked_name()), (None, shown.to_owned()));
        assert_eq!(answer(&query, DnsAnswer::NoName)[12..12 + wire_name.len()], *wire_name);
    }
}

/// A reply to `question(7, "a.example", kind)`.
fn reply(flags: u16, kind: RecordKind, records: &[&[u8]]) -> Vec<u8> {
    let mut message = question(7, &host("a.example"), kind);
    message[2..4].copy_from_slice(&flags.to_be_bytes());
    message[7] = records.len() as u8;
    message.extend(records.concat());
    message
}

fn replied(message: &[u8]) -> Result<(Vec<String>, u32), ReplyError> {
    let reply = DnsReply::read(message, &host("a.example"), RecordKind::A, 7)?;
    Ok((reply.addresses.iter().map(IpAddr::to_string).collect(), reply.ttl_s))
}

const REPLY_FLAGS: u16 = 0x8180;
const ANSWER_RECORD: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x01\x02\x03\x04";

#[test]
fn questions_have_the_wire_format() {
    let expected = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\x07example\0\0\x1c\0\x01";
    assert_eq!(question(7, &host("a.example"), RecordKind::Aaaa), expected);
    assert_eq!(read(expected).name, Some(host("a.example")));
}

#[test]
fn replies_are_read() {
    let second = b"\x01A\x07EXAMPLE\0\0\x01\0\x01\0\0\0\x0a\0\x04\x05\x06\x07\x08";
    assert_eq!(
        replied(&reply(REPLY_FLAGS, RecordKind::A, &[ANSWER_RECORD])),
        Ok((vec!["1.2.3.4".to_owned()], 60))
    );
    let both = Ok((vec!["1.2.3.4".to_owned(), "5.6.7.8".to_owned()], 10));
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &[ANSWER_RECORD, second])), both);
    // The resolver may change the case of the question.
    let mut louder = reply(REPLY_FLAGS, RecordKind::A, &[ANSWER_RECORD]);
    louder[13] = b'A';
    assert_eq!(replied(&louder), Ok((vec!["1.2.3.4".to_owned()], 60)));
    // A TTL of more than 31 bits.
    let late = b"\xc0\x0c\0\x01\0\x01\xff\0\0\0\0\x04\x01\x02\x03\x04";
    assert_eq!(
        replied(&reply(REPLY_FLAGS, RecordKind::A, &[late])),
        Ok((vec!["1.2.3.4".to_owned()], 0))
    );
    let six = b"\xc0\x0c\0\x1c\0\x01\0\0\0\x3c\0\x10\x26\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\x01";
    let message = reply(REPLY_FLAGS, RecordKind::Aaaa, &[six, ANSWER_RECORD]);
    let read = DnsReply::read(&message, &host("a.example"), RecordKind::Aaaa, 7).unwrap();
    assert_eq!(read.addresses, ["2606::1".parse::<IpAddr>().unwrap()]);
}

#[test]
fn aliases_are_followed_in_any_order() {
    // a.example → b.example → c.example
    let first = b"\xc0\x0c\0\x05\0\x01\0\0\0\x1e\0\x04\x01b\xc0\x0e";
    let second = b"\x01b\xc0\x0e\0\x05\0\x01\0\0\0\x14\0\x04\x01c\xc0\x0e";
    let third = b"\x01c\xc0\x0e\0\x01\0\x01\0\0\0\x3c\0\x04\x09\x09\x09\x09";
    let there = Ok((vec!["9.9.9.9".to_owned()], 20));
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &[first, second, third])), there);
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &[third, second, first])), there);
    // An address of another name is ignored.
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &[first, third])), Ok((vec![], 0)));
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &[third])), Ok((vec![], 0)));
    let back = b"\x01b\xc0\x0e\0\x05\0\x01\0\0\0\x14\0\x02\xc0\x0c";
    assert_eq!(
        replied(&reply(REPLY_FLAGS, RecordKind::A, &[first, back])),
        Err(ReplyError::Malformed)
    );
    let chain = |length: u8| {
        let names: Vec<u8> = [b'a'].into_iter().chain((0..length).map(|n| b'b' + n)).collect();
        let mut records: Vec<Vec<u8>> = Vec::new();
        for pair in names.windows(2) {
            records.push(
                [
                    &[1, pair[0]],
                    &b"\xc0\x0e\0\x05\0\x01\0\0\0\x14\0\x04\x01"[..],
                    &[pair[1]],
                    b"\xc0\x0e",
                ]
                .concat(),
            );
        }
        records.push(
            [
                &[1, *names.last().unwrap()],
                &b"\xc0\x0e\0\x01\0\x01\0\0\0\x3c\0\x04\x09\x09\x09\x09"[..],
            ]
            .concat(),
        );
        replied(&reply(
            REPLY_FLAGS,
            RecordKind::A,
            &records.iter().map(Vec::as_slice).collect::<Vec<_>>(),
        ))
    };
    assert_eq!(chain(16), there);
    assert_eq!(chain(17), Err(ReplyError::Malformed));
}

#[test]
fn replies_to_other_questions_are_ignored() {
    let good = reply(REPLY_FLAGS, RecordKind::A, &[ANSWER_RECORD]);
    let name = host("a.example");
    assert_eq!(DnsReply::read(&good, &name, RecordKind::A, 8), Err(ReplyError::Other));
    assert_eq!(DnsReply::read(&good, &name, RecordKind::Aaaa, 7), Err(ReplyError::Other));
    assert_eq!(DnsReply::read(&good, &host("b.example"), RecordKind::A, 7), Err(ReplyError::Other));
    assert_eq!(replied(&question(7, &name, RecordKind::A)), Err(ReplyError::Other));
    assert_eq!(replied(&changed(&good, &[(5, 2)])), Err(ReplyError::Other));
    assert_eq!(replied(&changed(&good, &[(5, 0)])), Err(ReplyError::Other));
    assert_eq!(replied(&changed(&good, &[(26, 3)])), Err(ReplyError::Other));
    assert_eq!(replied(&good[..11]), Err(ReplyError::Other));
}

#[test]
fn replies_without_an_address_say_why() {
    assert_eq!(replied(&reply(0x8183, RecordKind::A, &[])), Err(ReplyError::NoName));
    assert_eq!(replied(&reply(0x8182, RecordKind::A, &[])), Err(ReplyError::Failed));
    assert_eq!(replied(&reply(0x8185, RecordKind::A, &[ANSWER_RECORD])), Err(ReplyError::Failed));
    assert_eq!(
        replied(&reply(0x8380, RecordKind::A, &[ANSWER_RECORD])),
        Err(ReplyError::Truncated)
    );
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &[])), Ok((vec![], 0)));
    assert_eq!(replied(&reply(0x8100, RecordKind::A, &[])), Err(ReplyError::Failed));
    assert_eq!(replied(b"\0\x07\x81\x81\0\0\0\0\0\0\0\0"), Err(ReplyError::Failed));
}

#[test]
fn malformed_replies_are_refused() {
    for record in [
        &ANSWER_RECORD[..ANSWER_RECORD.len() - 1],
        b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x05\x01\x02\x03\x04\x05",
        b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x03\x01\x02\x03",
        b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x05\x01b\xc0\x0e\0",
        b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x02\xc0\x27",
        b"\xc0\xff\0\x01\0\x01\0\0\0\x3c\0\x04\x01\x02\x03\x04",
        b"\xc0\x1b\0\x01\0\x01\0\0\0\x3c\0\x04\x01\x02\x03\x04",
        b"\x40\0\0\x01\0\x01\0\0\0\x3c\0\x04\x01\x02\x03\x04",
    ] {
        assert_eq!(
            replied(&reply(REPLY_FLAGS, RecordKind::A, &[record])),
            Err(ReplyError::Malformed),
            "{record:?}"
        );
    }
    let many = vec![ANSWER_RECORD; 200];
    assert_eq!(replied(&reply(REPLY_FLAGS, RecordKind::A, &many)).unwrap().0.len(), MAX_ADDRESSES);
}

#[test]
fn random_bytes_cause_no_panic() {
    let mut noise = FuzzBytes::new(1);
    let good = reply(
        REPLY_FLAGS,
        RecordKind::A,
        &[b"\xc0\x0c\0\x05\0\x01\0\0\0\x1e\0\x04\x01b\xc0\x0e", ANSWER_RECORD],
    );
    for _ in 0..5_000 {
        if let DnsQuestion::Query(query) = Query::read(&noise.mutated(QUERY)) {
            let reply_kind = answer(&query, DnsAnswer::V4(Ipv4Addr::LOCALHOST));
            assert!(reply_kind.len() <= 512);
            assert!(query.asked_name().bytes().all(|byte| matches!(byte, b' '..=b'~')));
        }
        if let Ok(reply) =
            DnsReply::read(&noise.mutated(&good), &host("a.example"), RecordKind::A, 7)
        {
            assert!(reply.addresses.len() <= MAX_ADDRESSES);
        }
        let _ = Query::read(&noise.bytes(64));
    }
}
