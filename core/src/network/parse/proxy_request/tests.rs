use crate::network::fuzz_bytes::FuzzBytes;
use crate::network::parse::proxy_request::*;

fn token() -> ProxyToken {
    ProxyToken::known()
}

fn authorised() -> String {
    "Proxy-Authorization: Basic cGFkZG9jazowMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZg==\r\n"
        .to_owned()
}

/// Sends the bytes at once and one by one; both give the same result. Also returns the replies.
fn read_greeting(bytes: &[u8]) -> (Vec<u8>, GreetingStep) {
    let read_greeting = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let (mut greeting, mut pending, mut sent) =
            (ProxyGreeting::default(), Vec::new(), Vec::new());
        for piece in pieces {
            pending.extend_from_slice(piece);
            loop {
                match greeting.next(&pending, &token()) {
                    GreetingStep::More => break,
                    GreetingStep::Reply(consumed, words) => {
                        pending.drain(..consumed);
                        sent.extend_from_slice(words);
                    }
                    step => return (sent, step),
                }
            }
        }
        (sent, GreetingStep::More)
    };
    let whole = read_greeting(&mut [bytes].into_iter());
    let pieces = read_greeting(&mut bytes.chunks(1));
    assert_eq!(whole, pieces, "{}", bytes.escape_ascii());
    whole
}

fn requested(bytes: &[u8]) -> ProxyRequest {
    match read_greeting(bytes) {
        (_, GreetingStep::Request(requested)) => requested,
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

fn status(bytes: &[u8]) -> String {
    match read_greeting(bytes) {
        (_, GreetingStep::Refused(words, _)) => {
            String::from_utf8_lossy(&words).chars().skip(9).take(3).collect()
        }
        other => panic!("{}: {other:?}", bytes.escape_ascii()),
    }
}

fn request(line: &str, fields: &str) -> Vec<u8> {
    format!("{line}\r\n{fields}{}\r\n", authorised()).into_bytes()
}

#[test]
fn a_connect_names_host_and_port() {
    for (target, host, port) in [
        ("Good.Example.:443", "good.example", 443),
        ("192.0.2.1:22", "192.0.2.1", 22),
        ("[2001:db8::1]:443", "2001:db8::1", 443),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1", 80),
    ] {
        let head = request(&format!("CONNECT {target} HTTP/1.1"), "Host: whatever\r\n");
        let found = requested(&[&head[..], b"\x16\x03"].concat());
        assert_eq!(
            (found.host.to_string().as_str(), found.port, found.protocol),
            (host, port, ProxyProtocol::Connect)
        );
        assert_eq!((found.consumed, &found.head[..]), (head.len(), &b""[..]));
    }
}

#[test]
fn unusual_targets_are_refused() {
    for target in [
        "good.example",
        ":443",
        "good.example:",
        "good.example:0",
        "good.example:65536",
        "good.example:0443",
        "2130706433:80",
        "0x7f.1:80",
        "::1:443",
        "[::1%lo]:443",
        "a b:443",
        "user@good.example:443",
        "good..example:443",
        "good.example:443/",
        "\u{1}:443",
        "%67ood.example:443",
    ] {
        assert_eq!(
            status(&request(&format!("CONNECT {target} HTTP/1.1"), "")),
            "400",
            "{target:?}"
        );
    }
    for line in [
        "GET / HTTP/1.1",
        "GET * HTTP/1.1",
        "GET https://good.example/ HTTP/1.1",
        "GET ftp://good.example/ HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET http://user@good.example/ HTTP/1.1",
        "GET http://good.example/ HTTP/2.0",
        "GET http://good.example/ HTTP/1.1 x",
        "GET  http://good.example/ HTTP/1.1",
        "CONNECT good.example:443 HTTP/3",
        "CONNECT good.example:443",
        "GET http://good.example#x HTTP/1.1",
    ] {
        assert_eq!(status(&request(line, "Host: good.example\r\n")), "400", "{line:?}");
    }
}

#[test]
fn a_proxy_request_is_passed_on_in_origin_form() {
    let fields = "Host: good.example:8080\r\nProxy-Connection: keep-alive\r\nConnection: X-Hop, \
        Host, keep-alive\r\nX-Hop: 1\r\n\
                  Upgrade: h3\r\nTE: trailers\r\nContent-Length: 3\r\nX-Stays:  a b \r\n";
    let head = request("POST http://good.example:8080?q=http://other/ HTTP/1.1", fields);
    let found = requested(&[&head[..], b"abc"].concat());
    assert_eq!(
        (found.host.to_string(), found.port, found.consumed),
        ("good.example".to_owned(), 8080, head.len())
    );
    let expected = "POST /?q=http://other/ HTTP/1.1\r\nHost: good.example:8080\r\nContent-Length: \
        3\r\nX-Stays: a b\r\n\
                    Connection: close\r\n\r\n";
    assert_eq!(String::from_utf8(found.head).unwrap(), expected);
    let older = requested(&request("GET http://192.0.2.1/x HTTP/1.0", ""));
    assert_eq!((older.host.to_string().as_str(), older.port), ("192.0.2.1", 80));
    assert_eq!(older.head, b"GET /x HTTP/1.0\r\nHost: 192.0.2.1\r\nConnection: close\r\n\r\n");
}

#[test]
fn ambiguous_proxy_requests_are_refused() {
    for fields in [
        "Host: other.example\r\n",
        "Host: good.example:81\r\n",
        "Host: good.example\r\nHost: good.example\r\n",
        "Host: good.example\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "Host: good.example\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
        "Host: good.example\r\nUpgrade: h2c\r\nConnection: upgrade\r\n",
        "Host: good.example\r\nX: 1\n\r\n",
        "Host: good.example\r\n folded\r\n",
        "Host : good.example\r\n",
        "Host: good.example\r\nX: a\0b\r\n",
    ] {
        assert_eq!(
            status(&request("GET http://good.example/ HTTP/1.1", fields)),
            "400",
            "{fields:?}"
        );
    }
}

#[test]
fn missing_and_wrong_passwords_are_refused() {
    let bare = b"CONNECT good.example:443 HTTP/1.1\r\nHost: good.example\r\n\r\n";
    let (_, GreetingStep::Refused(words, None)) = read_greeting(bare) else {
        panic!("not the silent kind")
    };
    let text = String::from_utf8(words).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 407 ") && text.contains("Proxy-Authenticate: Basic realm="),
        "{text}"
    );
    for header in [
        "Proxy-Authorization: Basic cGFkZG9jazpmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZmZm\r\n"
            .to_owned(),
        "Proxy-Authorization: Bearer x\r\n".to_owned(),
        authorised() + &authorised(),
        "Proxy-Authorization:\r\n".to_owned(),
    ] {
        for line in
            ["CONNECT good.example:443 HTTP/1.1", "GET http://good.example/ HTTP/1.1", "nonsense"]
        {
            let bytes = format!("{line}\r\n{header}\r\n");
            let (_, GreetingStep::Refused(words, Some(WRONG_TOKEN))) =
                read_greeting(bytes.as_bytes())
            else {
                panic!("{bytes}")
            };
            assert!(words.starts_with(b"HTTP/1.1 407 "));
        }
    }
    // Another header with credentials does not count.
    let other = format!("CONNECT a:1 HTTP/1.1\r\n{}\r\n", authorised().replace("Proxy-", ""));
    assert!(matches!(read_greeting(other.as_bytes()), (_, GreetingStep::Refused(_, None))));
}

fn socks(socks_request: &[u8]) -> Vec<u8> {
    let password = b"0123456789abcdef0123456789abcdef";
    [&[5, 2, 0, 2, 1, 7][..], b"paddock", &[32], password, socks_request].concat()
}

#[test]
fn socks_requests_name_a_host_or_an_address() {
    for (socks_request, host, port) in [
        (&b"\x05\x01\x00\x03\x0cgood.example\x01\xbb"[..], "good.example", 443),
        (b"\x05\x01\x00\x03\x09192.0.2.1\x00\x50", "192.0.2.1", 80),
        (b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x16", "192.0.2.1", 22),
        (b"\x05\x01\x00\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\x01\xbb", "2001:db8::1", 443),
        (b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01\x01\xbb", "127.0.0.1", 443),
    ] {
        let (sent, GreetingStep::Request(found)) =
            read_greeting(&[&socks(socks_request)[..], b"rest"].concat())
        else {
            panic!("{host}")
        };
        assert_eq!(sent, [5, 2, 1, 0]);
        assert_eq!(
            (found.host.to_string().as_str(), found.port, found.protocol),
            (host, port, ProxyProtocol::Socks)
        );
        assert_eq!((found.consumed, &found.head[..]), (socks_request.len(), &b""[..]));
    }
}

#[test]
fn a_socks_denial_is_a_socks_reply() {
    for (bytes, words) in [
        (&b"\x05\x01\x00"[..], &[5, 0xff][..]),
        (b"\x05\x00", &[5, 0xff]),
        (b"\x05\x01\x02\x01\x07paddock\x03bad", &[1, 1]),
        (b"\x05\x01\x02\x01\x00\x00", &[1, 1]),
    ] {
        let (_, GreetingStep::Refused(found, Some(_))) = read_greeting(bytes) else {
            panic!("{}", bytes.escape_ascii())
        };
        assert_eq!(found, words, "{}", bytes.escape_ascii());
    }
    for (socks_request, code) in [
        (&b"\x05\x02\x00\x01\0\0\0\0\0\0"[..], NO_COMMAND),
        (b"\x05\x03\x00\x01\0\0\0\0\0\0", NO_COMMAND),
        (b"\x05\x01\x00\x02\0\0\0\0\0\0", NO_ADDRESS),
        (b"\x04\x01\x00\x01\0\0\0\0\0\0", FAILURE),
        (b"\x05\x01\x01\x01\0\0\0\0\0\0", FAILURE),
        (b"\x05\x01\x00\x03\x00\x01\xbb", NOT_ALLOWED),
        (b"\x05\x01\x00\x03\x03a\0b\x01\xbb", NOT_ALLOWED),
        (b"\x05\x01\x00\x03\x0a2130706433\x01\xbb", NOT_ALLOWED),
        (b"\x05\x01\x00\x03\x0cgood.example\x00\x00", NOT_ALLOWED),
    ] {
        let (_, GreetingStep::Refused(found, Some(_))) = read_greeting(&socks(socks_request))
        else {
            panic!("{}", socks_request.escape_ascii())
        };
        assert_eq!(found, reply(code), "{}", socks_request.escape_ascii());
    }
    assert_eq!(
        ProxyProtocol::Socks.denial_reply(Vec::new(), refusal_response::DENIED_STATUS),
        reply(NOT_ALLOWED)
    );
    assert_eq!(
        ProxyProtocol::Socks.denial_reply(Vec::new(), refusal_response::UNREACHABLE_STATUS),
        reply(UNREACHABLE)
    );
}

#[test]
fn an_endless_greeting_is_refused() {
    let endless =
        [b"GET http://good.example/ HTTP/1.1\r\nX: ", &[b'x'; MAX_HEAD_BYTES][..]].concat();
    let mut greeting = ProxyGreeting::default();
    assert!(matches!(greeting.next(&endless, &token()), GreetingStep::Refused(..)));
    assert_eq!(read_greeting(b"\x05\xff").1, GreetingStep::More);
}

#[test]
fn random_bytes_never_name_another_host() {
    let mut noise = FuzzBytes::new(17);
    let meant = [
        request("CONNECT good.example:443 HTTP/1.1", ""),
        request("GET http://good.example/x HTTP/1.1", "Host: good.example\r\n"),
        socks(b"\x05\x01\x00\x03\x0cgood.example\x01\xbb"),
    ];
    for round in 0..2_000 {
        let bytes = match round % 4 {
            3 => noise.bytes(300),
            kind => noise.mutated(&meant[kind]),
        };
        if let (_, GreetingStep::Request(found)) = read_greeting(&bytes) {
            assert!(found.consumed <= bytes.len() && found.port != 0);
            // The output is one request without hop-by-hop headers.
            let head = String::from_utf8_lossy(&found.head).to_ascii_lowercase();
            assert!(found.protocol == ProxyProtocol::Request || head.is_empty());
            assert!(!head.contains("proxy-authorization:"), "{head}");
        }
    }
}
