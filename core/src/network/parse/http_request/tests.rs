use crate::network::fuzz_bytes::FuzzBytes;
use crate::network::parse::http_request::*;

/// The steps of a connection, each in a few letters. Bytes arrive in pieces of `at_once`.
fn transcript(bytes: &[u8], at_once: usize) -> String {
    let mut requests = HttpRequests::default();
    let (mut steps, mut pending, mut passing) = (Vec::new(), Vec::new(), 0_u64);
    for part in bytes.chunks(at_once) {
        pending.extend(part);
        loop {
            let passed = (pending.len() as u64).min(passing);
            pending.drain(..passed as usize);
            passing -= passed;
            if passing > 0 {
                break;
            }
            match requests.next(&pending) {
                Ok(RequestStep::More) => break,
                Ok(RequestStep::Head(head)) => {
                    let host = head.host.map_or("-".to_owned(), |host| host.to_string());
                    steps.push(head.port.map_or(host.clone(), |port| format!("{host}:{port}")));
                    passing = head.length as u64;
                }
                Ok(RequestStep::Pass(length)) => {
                    steps.push(format!("+{length}"));
                    passing = length;
                }
                Ok(RequestStep::Open) => {
                    steps.push("open".to_owned());
                    return steps.join(" ");
                }
                Err(error) => {
                    steps.push(format!("{error:?}"));
                    return steps.join(" ");
                }
            }
        }
    }
    if requests.awaits_answer() {
        steps.push("?".to_owned());
    }
    if !pending.is_empty() || passing > 0 {
        steps.push("…".to_owned());
    }
    steps.join(" ")
}

fn transcript_of(request: &str) -> String {
    let whole = transcript(request.as_bytes(), usize::MAX);
    for at_once in [1, 2, 7] {
        assert_eq!(transcript(request.as_bytes(), at_once), whole, "{request}");
    }
    whole
}

/// A request with a Host and these headers.
fn with(headers: &str) -> String {
    transcript_of(&format!("GET / HTTP/1.1\r\nHost: a.example\r\n{headers}\r\n"))
}

#[test]
fn each_request_names_its_host() {
    assert_eq!(transcript_of("GET / HTTP/1.1\r\nHost: A.Example\r\n\r\n"), "a.example");
    assert_eq!(
        transcript_of("GET /?q=\u{fc} HTTP/1.1\r\nhOST:\ta.example:8080 \r\nAccept: */*\r\n\r\n"),
        "a.example:8080"
    );
    assert_eq!(transcript_of("GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n"), "10.0.0.1");
    assert_eq!(transcript_of("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"), "::1:80");
    assert_eq!(transcript_of("GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n"), "::1");
    assert_eq!(transcript_of("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n"), "a.example");
    assert_eq!(transcript_of("GET / HTTP/1.0\r\n\r\n"), "-");
    assert_eq!(transcript_of("GET / HTTP/1.0\r\nHost: a.example\r\n\r\n"), "a.example");
    let two =
        "GET / HTTP/1.1\r\nHost: a.example\r\n\r\nHEAD /b HTTP/1.1\r\nHost: b.example\r\n\r\n";
    assert_eq!(transcript_of(two), "a.example b.example");
    assert_eq!(
        transcript_of("\r\n\r\nGET / HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        "+2 +2 a.example"
    );
    assert_eq!(transcript_of("GET / HTTP/1.1\r\nHost: a.example\r\n"), "…");
}

#[test]
fn bodies_are_passed_on_unread() {
    let next = "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let fixed = |body: &str| {
        format!(
            "PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{body}{next}",
            body.len()
        )
    };
    assert_eq!(transcript_of(&fixed("")), "a.example b.example");
    assert_eq!(transcript_of(&fixed("hello")), "a.example +5 b.example");
    assert_eq!(transcript_of(&fixed(next)), format!("a.example +{} b.example", next.len()));
    assert_eq!(
        transcript_of("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000000\r\n\r\nx"),
        "a +9000000000 …"
    );
    let chunked = |body: &str| {
        transcript_of(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n{body}{next}"
        ))
    };
    assert_eq!(chunked("0\r\n\r\n"), "a +3 +2 b.example");
    assert_eq!(chunked("5\r\nhello\r\n0\r\n\r\n"), "a +8 +2 +3 +2 b.example");
    assert_eq!(chunked("5;a=b;c=\"d\"\r\nhello\r\n00\r\n\r\n"), "a +18 +2 +4 +2 b.example");
    assert_eq!(
        chunked(&format!("{:x}\r\n{next}\r\n0\r\n\r\n", next.len())),
        format!("a +{} +2 +3 +2 b.example", next.len() + 4)
    );
    assert_eq!(chunked("0\r\nA: b\r\nC: d\r\n\r\n"), "a +3 +14 b.example");
}

#[test]
fn ambiguous_chunks_are_refused() {
    let chunked = |body: &str| {
        transcript_of(&format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        ))
    };
    for size in [
        "",
        "x",
        "g",
        "+5",
        "-5",
        "0x5",
        " 5",
        "5 ",
        "5 ;a",
        "\t5",
        "5\t",
        "5,5",
        "1_0",
        "5\r",
        "5;\u{1}",
        "1000000000000000",
        "5;\0",
        "fffffffffffffffff",
    ] {
        assert_eq!(chunked(&format!("{size}\r\nhello\r\n0\r\n\r\n")), "a Malformed", "{size:?}");
    }
    assert_eq!(chunked("5\nhello\r\n0\r\n\r\n"), "a Malformed");
    assert_eq!(chunked("5\r\nhello!\r\n0\r\n\r\n"), "a +8 Malformed");
    assert_eq!(chunked("5\r\nhello\n0\r\n\r\n"), "a +8 Malformed");
    assert_eq!(chunked("5\r\nhello0\r\n\r\n"), "a +8 Malformed");
    assert_eq!(chunked("0\r\n\n"), "a +3 Malformed");
    assert_eq!(chunked("0\r\nnothing\r\n\r\n"), "a +3 Malformed");
    assert_eq!(chunked("0\r\nA: b\r\n c\r\n\r\n"), "a +3 Malformed");
    for trailer in ["Host: b.example", "content-length: 5", "Transfer-Encoding: chunked"] {
        assert_eq!(chunked(&format!("0\r\nA: b\r\n{trailer}\r\n\r\n")), "a +3 Malformed");
    }
    assert_eq!(chunked(&format!("5;{}", "a".repeat(MAX_CHUNK_LINE_BYTES))), "a Malformed");
    assert_eq!(
        chunked(&format!("0\r\n{}", "A: b\r\n".repeat(MAX_TRAILER_BYTES / 6 + 1))),
        "a +3 Long"
    );
    assert_eq!(chunked("fffffffffffffff\r\n"), format!("a +{} …", 0xfff_ffff_ffff_ffff_u64 + 17));
}

#[test]
fn an_ambiguous_length_is_refused() {
    for headers in [
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding:\r\n",
        "Content-Length:\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: 010\r\n",
        "Content-Length: 5.0\r\n",
        "Content-Length: 9223372036854775808\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer_Encoding: chunked\r\n",
        "Content_Length: 5\r\n",
    ] {
        assert_eq!(with(headers), "Length", "{headers:?}");
    }
    assert_eq!(
        transcript_of("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
        "Length"
    );
}

#[test]
fn ambiguous_heads_are_refused() {
    for headers in [
        "A : b\r\n",
        "A\t: b\r\n",
        " A: b\r\n",
        "A: b\r\n c\r\n",
        "A: b\r\n\tc: d\r\n",
        "A\r\n",
        ": b\r\n",
        "A b: c\r\n",
        "A: b\rC: d\r\n",
        "A: b\nC: d\r\n",
        "A: b\0\r\n",
        "A: \u{1b}\r\n",
        "A: b\r\r\n",
        "A\0: b\r\n",
        "A: b\u{7f}\r\n",
        "\u{fc}: b\r\n",
        "\"A\": b\r\n",
        "Host : b.example\r\n",
        "\u{b}Host: b.example\r\n",
        "A: b\n\r\n",
    ] {
        assert_eq!(with(headers), "Malformed", "{headers:?}");
    }
    for line in [
        "GET  / HTTP/1.1",
        "GET /",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET / /b HTTP/1.1",
        "G\0T / HTTP/1.1",
        "GET /\0 HTTP/1.1",
        "GET /\ta HTTP/1.1",
        "GET a.example HTTP/1.1",
        "GET https://a.example/ HTTP/1.1",
        "GET ftp://a.example/ HTTP/1.1",
        "GET http:/a.example/ HTTP/1.1",
        "GET http:a.example HTTP/1.1",
        "GET * HTTP/1.1",
        "GET \\ HTTP/1.1",
        "(GET) / HTTP/1.1",
    ] {
        assert_eq!(
            transcript_of(&format!("{line}\r\nHost: a.example\r\n\r\n")),
            "Malformed",
            "{line:?}"
        );
    }
    for version in [
        "HTTP/1.2",
        "HTTP/0.9",
        "HTTP/3.0",
        "http/1.1",
        "HTTP/1.10",
        "HTTP/11",
        "HTTPS/1.1",
        "HTTP/1.1x",
        "HTTP/2",
    ] {
        assert_eq!(
            transcript_of(&format!("GET / {version}\r\nHost: a.example\r\n\r\n")),
            "Version",
            "{version}"
        );
    }
    for request in [
        "GET / HTTP/1.1\nHost: a.example\n\n",
        "\nGET / HTTP/1.1\r\n\r\n",
        "\r\rGET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\n\n",
    ] {
        assert_eq!(transcript_of(request), "Malformed", "{request:?}");
    }
}

#[test]
fn a_request_has_exactly_one_host() {
    for host in [
        "",
        "Host:\r\n",
        "Host: a.example\r\nHost: a.example\r\n",
        "Host: a.example\r\nhost: b.example\r\n",
        "Host: a.example, b.example\r\n",
        "Host: a.example b.example\r\n",
        "Host: a.example:\r\n",
        "Host: a.example:0\r\n",
        "Host: a.example:080\r\n",
        "Host: a.example:65536\r\n",
        "Host: a.example:80:80\r\n",
        "Host: a.example:+80\r\n",
        "Host: a@b.example\r\n",
        "Host: http://a.example\r\n",
        "Host: a.example/\r\n",
        "Host: a..example\r\n",
        "Host: 127.1\r\n",
        "Host: 0x7f000001\r\n",
        "Host: ::1\r\n",
        "Host: [::1\r\n",
        "Host: [::1]a\r\n",
        "Host: [::1]]:80\r\n",
        "Host: a.example%00\r\n",
        "Host: a]:80\r\n",
        "Host: :80\r\n",
        "Host: b\u{fc}cher.example\r\n",
    ] {
        assert_eq!(transcript_of(&format!("GET / HTTP/1.1\r\n{host}\r\n")), "Host", "{host:?}");
    }
}

#[test]
fn target_and_host_header_must_agree() {
    let get = |target: &str, host: &str| {
        transcript_of(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
    };
    assert_eq!(get("http://a.example/b", "A.example"), "a.example");
    assert_eq!(get("HTTP://A.example", "a.example"), "a.example");
    assert_eq!(get("http://a.example:80?b", "a.example"), "a.example");
    assert_eq!(get("http://a.example/http://b.example/", "a.example"), "a.example");
    for target in [
        "http://b.example/",
        "http://b.example",
        "http://b.example?/a.example",
        "http://a.example:81/",
        "http://a.example@b.example/",
        "http:///",
        "http://b.example#a.example",
        "http://a.example\\b.example/",
        "http://b.example%2fa.example/",
        "http://a.example:/",
    ] {
        assert_eq!(get(target, "a.example"), "Host", "{target}");
    }
    assert_eq!(transcript_of("GET http://a.example/ HTTP/1.0\r\n\r\n"), "a.example");
    assert_eq!(transcript_of("GET http://a.example/ HTTP/1.1\r\n\r\n"), "a.example");
}

#[test]
fn upgrades_wait_for_an_answer_or_are_refused() {
    assert_eq!(with("Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"), "a.example ?");
    assert_eq!(
        with("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n"),
        "a.example ?"
    );
    let upgrade =
        "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    assert_eq!(
        transcript_of(&format!("{upgrade}GET / HTTP/1.1\r\nHost: b.example\r\n\r\n")),
        "a.example ? …"
    );
    assert_eq!(
        transcript_of(&format!("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n{upgrade}")),
        "a.example Late"
    );
    // No server reads these as a protocol change.
    assert_eq!(with("Upgrade: websocket\r\n"), "a.example");
    assert_eq!(with("Connection: upgrade\r\n"), "a.example");
    assert_eq!(with("Upgrade: websocket\r\nConnection: x-upgrade\r\n"), "a.example");
    assert_eq!(
        transcript_of(
            "GET / HTTP/1.0\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
        ),
        "a"
    );
    // The request after a body is still read.
    let late = "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
        Content-Length: 3\r\n\r\n{}\n";
    assert_eq!(transcript_of(&format!("{late}x")), "a.example +3 …");
    for headers in [
        "Upgrade: h2c\r\nConnection: upgrade\r\n",
        "Upgrade: websocket, H2C\r\n",
        "Upgrade: h2c-14\r\n",
        "Upgrade: h2\r\n",
    ] {
        assert_eq!(with(headers), "Http2", "{headers}");
    }
    assert_eq!(transcript_of("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "Http2");
    assert_eq!(
        transcript_of("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        "Connect"
    );
    assert_eq!(transcript_of("connect / HTTP/1.1\r\nHost: a.example\r\n\r\n"), "Connect");
}

#[test]
fn bytes_pass_only_after_an_accepted_upgrade() {
    let upgrade =
        b"GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    let other = b"GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    for agreed in [true, false] {
        let mut requests = HttpRequests::default();
        assert!(
            matches!(requests.next(upgrade), Ok(RequestStep::Head(_))) && requests.awaits_answer()
        );
        assert_eq!(requests.next(other), Ok(RequestStep::More));
        requests.answered(agreed);
        match requests.next(other) {
            Ok(RequestStep::Open) => assert!(agreed),
            Ok(RequestStep::Head(head)) => {
                assert_eq!((agreed, head.host.unwrap().to_string()), (false, "b.example".into()))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_head_has_a_maximum_length() {
    let start = "GET / HTTP/1.1\r\nHost: a.example\r\nA: ";
    let long = |length: usize| format!("{start}{}\r\n\r\n", "a".repeat(length - start.len() - 4));
    let at_once = |request: &str| transcript(request.as_bytes(), 4096);
    assert_eq!(at_once(&long(MAX_HEAD_BYTES)), "a.example");
    assert_eq!(at_once(&long(MAX_HEAD_BYTES + 1)), "Long");
    assert_eq!(transcript(long(MAX_HEAD_BYTES + 1).as_bytes(), usize::MAX), "Long");
    assert_eq!(
        HttpRequests::default().next(&long(MAX_HEAD_BYTES + 1).as_bytes()[..MAX_HEAD_BYTES - 1]),
        Ok(RequestStep::More)
    );
    assert_eq!(
        HttpRequests::default().next(&long(MAX_HEAD_BYTES + 1).as_bytes()[..MAX_HEAD_BYTES]),
        Err(RequestError::Long)
    );
}

#[test]
fn first_bytes_are_classified() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"GET / HTTP/1.1\n",
        b"get / http/1.1\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\n",
        b" GET / HTTP/1.1\r\n",
        b"GET\t/\tHTTP/1.1\r\n",
        b"GET\x0b/\x0cHTTP/1.1\r\n",
        b"GET  /  HTTP/1.1  \r\n",
        b"GET /\0 HTTP/1.1\r\n",
        b"X-Y / HTTP/9\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n",
        b"GET /\r\n",
        b"GET / \r\n",
        b"GET / RTSP/1.0\r\n",
        b"DESCRIBE rtsp://a.example/ RTSP/1.0\r\n",
        b"GET /http/1.1\r\n",
        b"get /\n",
        b"OPTIONS *\r\n",
        b"GET http://b.example/\r\n",
        b"GET\x1c/\x1cHTTP/1.1\r\n",
        b"\xa0GET\x85/\r\n",
        b"\0GET / HTTP/1.1\r\n",
        b"G@T / HTTP/1.1\r\n",
        b"\x80 / x\r\n",
        b"\x1f\x0bGET / HTTP/1.1\r\n",
        b"get / \0\r\n",
        b"\x01 /a x\r\n",
        b"a\x0bb /c x\r\n",
        b"G\nT /c x\r\n",
        b"GET /\0\r\n",
    ] {
        assert_eq!(classify_first_bytes(bytes), FirstBytes::Request, "{}", bytes.escape_ascii());
    }
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.6\r\n"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"PING\r\n",
        b"EHLO a.example\r\n",
        b"get key\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"USER a 0 * :http\r\n",
        b":a\r\n",
    ] {
        assert_eq!(classify_first_bytes(bytes), FirstBytes::Other, "{}", bytes.escape_ascii());
    }
    for bytes in [
        &b"\0\0\0\x08\x04\xd2\x16\x2f"[..],
        b"<?xml version='1.0'?>",
        b"{\"a\": 1}",
        b"@RSYNCD: 31.0 sha512\n",
        b"\x16\x03\x01",
        b"\x80\x01",
        b"0032git-upload-pack /a\0host=b\0",
        b"\0GET / HTTP/1.1\r",
        b"G@T / HTTP/1.1",
    ] {
        assert_eq!(classify_first_bytes(bytes), FirstBytes::Unended, "{}", bytes.escape_ascii());
    }
    for bytes in [
        &b""[..],
        b"\r\n",
        b"G",
        b"GET",
        b"GET ",
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1\r",
        b"SSH-2.0",
        b"GET /\0",
    ] {
        assert_eq!(classify_first_bytes(bytes), FirstBytes::More, "{}", bytes.escape_ascii());
    }
    let long = [&b"GET /"[..], &[b'a'; MAX_HEAD_BYTES]].concat();
    assert_eq!(classify_first_bytes(&long[..MAX_HEAD_BYTES - 1]), FirstBytes::More);
    assert_eq!(classify_first_bytes(&long[..MAX_HEAD_BYTES]), FirstBytes::Request);
}

#[test]
fn random_bytes_cause_no_panic() {
    let mut noise = FuzzBytes::new(3);
    let good: &[&[u8]] = &[
        b"GET / HTTP/1.1\r\nHost: a.example\r\nAccept: */*\r\n\r\nGET / HTTP/1.1\r\nHost: \
         a.example\r\n\r\n",
        b"PUT http://a.example/ HTTP/1.1\r\nHost: a.example:80\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\nhello\r\n\
         0\r\nA: b\r\n\r\n",
    ];
    for round in 0..2_000 {
        let bytes = noise.mutated(good[round % good.len()]);
        // The steps do not depend on the sizes of the pieces.
        assert_eq!(
            transcript(&bytes, 3),
            transcript(&bytes, usize::MAX),
            "{}",
            bytes.escape_ascii()
        );
        let _ = classify_first_bytes(&bytes);
        // The start check sees a request wherever the parser does.
        let whole = HttpRequests::default().next(&bytes);
        if matches!(whole, Ok(RequestStep::Head(_))) {
            assert_eq!(
                classify_first_bytes(&bytes),
                FirstBytes::Request,
                "{}",
                bytes.escape_ascii()
            );
        }
    }
}

#[test]
fn an_unexpected_body_must_not_start_with_a_request() {
    let steps_of = |method: &str, body: &str| {
        transcript_of(&format!(
            "{method} / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    let hidden = "GET /private HTTP/1.1\r\nHost: b.example\r\n\r\n";
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "delete"] {
        for body in [
            hidden,
            &format!("\r\n\n \t{hidden}"),
            "get /private",
            "DELETE\u{b}/private\n",
            "PUT http://b.example/",
            "X * HTTP/1.0",
            "GET / x HTTP/1.1\r\nHost: b.example\r\n",
        ] {
            assert_eq!(steps_of(method, body), "a.example Body", "{method} {body:?}");
        }
        for body in [
            "{\"query\": {\"match\": \"GET /a HTTP/1.1\"}}\n",
            "a=b&c=d",
            "<a/>",
            "word",
            "--x\r\nA: b\r\n",
            "\r\n",
            "two words",
        ] {
            assert_eq!(
                steps_of(method, body),
                format!("a.example +{}", body.len()),
                "{method} {body:?}"
            );
        }
    }
    for method in ["POST", "PUT", "PATCH", "PROPFIND"] {
        assert_eq!(steps_of(method, hidden), format!("a.example +{}", hidden.len()), "{method}");
    }
    let long = "GET ".repeat(MAX_HEAD_BYTES);
    assert_eq!(
        transcript(
            format!("GET / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 999999\r\n\r\n{long}")
                .as_bytes(),
            4096
        ),
        "a.example Body"
    );
}

#[test]
fn an_unexpected_chunked_body_starts_with_a_plain_size() {
    let steps_of = |method: &str, line: &str| {
        transcript_of(&format!(
            "{method} / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n{line}\r\n\
             ab\r\n0\r\n\r\n"
        ))
    };
    assert_eq!(steps_of("GET", "2;x GET / HTTP/1.1"), "a.example Body");
    assert_eq!(steps_of("GET", "2"), "a.example +5 +2 +3 +2");
    assert_eq!(steps_of("POST", "2;x GET / HTTP/1.1"), "a.example +22 +2 +3 +2");
}
