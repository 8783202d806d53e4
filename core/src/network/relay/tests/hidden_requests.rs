//! Requests for another host that are hidden in other protocols.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use super::two_networks::{in_two_networks, rules};

const ALLOWED: &str = "good.example:8080";
const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: good.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const EVIL: &str = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";

#[test]
fn bytes_after_an_upgrade_wait_for_the_answer() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        // The path chooses the status, which is sent in two parts. Then the server sends back what
        // it read.
        networks.serve(|mut stream| {
            let mut request = [0; UPGRADE.len() + 3];
            stream.read_exact(&mut request).unwrap();
            let status = String::from_utf8(request[5..8].to_vec()).unwrap();
            let answer = format!(
                "HTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 {status} OK\r\n\
                Content-Length: 0\r\n\r\n"
            );
            let (one, other) = answer.split_at(40);
            stream.write_all(one.as_bytes()).unwrap();
            stream.write_all(other.as_bytes()).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            stream.write_all(&rest).unwrap();
        });
        for (status, switches) in [("101", true), ("200", false), ("426", false)] {
            for at_once in [true, false] {
                let upgrade = UPGRADE.replacen("GET /", &format!("GET /{status}"), 1);
                let mut client = networks.dial("good.example");
                let mut response = String::new();
                if at_once {
                    client.write_all([&upgrade, EVIL].concat().as_bytes()).unwrap();
                } else {
                    client.write_all(upgrade.as_bytes()).unwrap();
                    let mut answer = [0; 28];
                    client.read_exact(&mut answer).unwrap();
                    client.write_all(EVIL.as_bytes()).unwrap();
                }
                client.shutdown(Shutdown::Write).unwrap();
                client.read_to_string(&mut response).unwrap();
                assert!(response.contains(&format!("HTTP/1.1 {status} OK")), "{response}");
                // The control: a server that switched protocols gets the bytes.
                assert_eq!(
                    (response.ends_with(EVIL), response.contains("HTTP/1.1 403 ")),
                    (switches, !switches),
                    "{response}"
                );
                if !switches {
                    assert_eq!(networks.next_message()["host"], "evil.example");
                }
                assert_eq!(networks.next_message()["action"], "allow");
            }
        }
        // A second request can not upgrade: the answer could not be recognised.
        let mut client = networks.dial("good.example");
        client
            .write_all(
                ["GET / HTTP/1.1\r\nHost: good.example\r\n\r\n", UPGRADE].concat().as_bytes(),
            )
            .unwrap();
        let mut response = String::new();
        let _ = client.read_to_string(&mut response);
        assert!(response.contains("only the first request"), "{response}");
    });
}

#[test]
fn a_line_that_a_server_reads_as_a_request_is_denied() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let received = networks.record();
        for line in [
            "GET /",
            "get /",
            "GET http://evil.example/",
            "GET / RTSP/1.0",
            "OPTIONS *",
            "\0GET / HTTP/1.1",
            "G@T / HTTP/1.1",
            "\u{1}GET /",
            "GET\u{1c}/\u{1c}HTTP/1.1",
            "\r\n\r\nGET /",
            "<GET / x",
            "G\nT / x",
        ] {
            let request = format!("{line}\r\nHost: evil.example\r\n\r\n");
            for at_once in [request.len(), 1] {
                let mut client = networks.dial("good.example");
                let sent = request
                    .as_bytes()
                    .chunks(at_once)
                    .try_for_each(|piece| client.write_all(piece));
                let mut response = Vec::new();
                let ended = client
                    .shutdown(Shutdown::Write)
                    .and_then(|()| client.read_to_end(&mut response));
                let refused =
                    sent.is_err() || ended.is_err() || response.starts_with(b"HTTP/1.1 403 ");
                assert!(refused, "{line:?} {}", response.escape_ascii());
                // Earlier bytes are reported too.
                while networks.next_message()["action"] != "deny" {}
                drop(client);
            }
        }
        // The control: other protocols pass, and none of the lines above arrived.
        for words in [
            "\0\0\0\x08\u{4}",
            "<?xml version='1.0'?>\n<a/>",
            "003agit-upload-pack /a\0host=b\0",
            "USER a\r\n",
        ] {
            let mut client = networks.dial("good.example");
            client.write_all(words.as_bytes()).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            let response = std::iter::repeat_with(&received).find(|response| {
                response.starts_with(&words.as_bytes()[..1]) && response.len() == words.len()
            });
            assert_eq!(response.unwrap(), words.as_bytes());
        }
    });
}
