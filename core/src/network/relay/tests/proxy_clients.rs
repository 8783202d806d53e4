//! Clients of the proxy.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::ALLOWED;
use super::two_networks::{TwoNetworks, client_hello, in_two_networks, rules};

pub const AUTHORISED: &str =
    "Proxy-Authorization: Basic cGFkZG9jazowMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZg==\r\n";
pub const ESTABLISHED: &str = "HTTP/1.1 200 Connection established\r\n\r\n";
pub const SOCKS: &[u8] = b"\x05\x01\x02\x01\x07paddock\x200123456789abcdef0123456789abcdef";

pub fn proxy(networks: &TwoNetworks) -> TcpStream {
    networks.dial_address("127.255.255.254")
}

/// All bytes until the end or an error.
fn all(client: &mut TcpStream) -> Vec<u8> {
    let mut response = Vec::new();
    let _ = client.read_to_end(&mut response);
    response
}

#[test]
fn bytes_sent_with_a_proxy_greeting_are_judged() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let received = networks.record();
        let connect = format!("CONNECT good.example:8080 HTTP/1.1\r\n{AUTHORISED}\r\n");
        let wish = [SOCKS, b"\x05\x01\x00\x03\x0cgood.example\x1f\x90"].concat();
        for greeting in [connect.as_bytes(), &wish] {
            for (name, passes) in [("evil.example", false), ("good.example", true)] {
                let hello = client_hello(Some(name));
                let mut client = proxy(networks);
                client.write_all(&[greeting, &hello].concat()).unwrap();
                if passes {
                    client.shutdown(Shutdown::Write).unwrap();
                }
                let response = all(&mut client);
                let message = networks.next_message();
                assert_eq!(message["host"], "good.example", "{message}");
                if passes {
                    let welcome = if greeting == wish {
                        &b"\x05\x02\x01\x00\x05\0\0\x01\0\0\0\0\0\0"[..]
                    } else {
                        ESTABLISHED.as_bytes()
                    };
                    assert_eq!(response, welcome, "{}", response.escape_ascii());
                    assert_eq!(received(), hello);
                    assert_eq!(
                        (&message["action"], &message["sent"]),
                        (&"allow".into(), &hello.len().into()),
                        "{message}"
                    );
                } else {
                    assert_eq!(
                        (&message["action"], &message["reason"]),
                        (&"deny".into(), &"its TLS handshake is for evil.example".into())
                    );
                }
            }
        }
    });
}

/// A server that tries to read more than one request.
#[test]
fn a_second_proxy_request_is_not_passed_on() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let received = networks.record();
        let first = format!(
            "POST http://good.example:8080/a HTTP/1.1\r\nContent-Length: 3\r\nHost: \
             good.example:8080\r\n{AUTHORISED}\r\nabc"
        );
        for second in
            [&first[..], "GET http://evil.example/ HTTP/1.1\r\n\r\n", "what is this?\r\n\r\n"]
        {
            let mut client = proxy(networks);
            client.write_all([&first, second].concat().as_bytes()).unwrap();
            assert!(all(&mut client).is_empty());
            let expected = "POST /a HTTP/1.1\r\nContent-Length: 3\r\nHost: good.example:8080\r\n\
                Connection: close\r\n\r\nabc";
            assert_eq!(String::from_utf8(received()).unwrap(), expected);
            assert_eq!(networks.next_message()["action"], "allow");
        }
    });
}

#[test]
fn a_proxy_denial_uses_the_client_protocol_and_no_lookup() {
    in_two_networks(&rules(&[ALLOWED, "gone.example:8080"]), |networks| {
        let names = [("evil.example", "403", 2), ("gone.example", "502", 4)];
        for (name, status, code) in names {
            for line in [
                format!("CONNECT {name}:8080 HTTP/1.1"),
                format!("GET http://{name}:8080/ HTTP/1.0"),
            ] {
                let mut client = proxy(networks);
                client.write_all(format!("{line}\r\n{AUTHORISED}\r\n").as_bytes()).unwrap();
                let response = String::from_utf8(all(&mut client)).unwrap();
                assert!(
                    response.starts_with(&format!("HTTP/1.1 {status} ")) && response.contains(name),
                    "{response}"
                );
                assert_eq!(networks.next_message()["host"], name);
            }
            let mut client = proxy(networks);
            let wish = [SOCKS, b"\x05\x01\x00\x03\x0c", name.as_bytes(), b"\x1f\x90"].concat();
            client.write_all(&wish).unwrap();
            let response = all(&mut client);
            assert_eq!(response[4..6], [5, code], "{}", response.escape_ascii());
            assert_eq!(networks.next_message()["host"], name);
        }
        assert!(
            networks.looked_up_names().iter().all(|name| name == "gone.example"),
            "{:?}",
            networks.looked_up_names()
        );
    });
}

#[test]
fn useless_proxy_clients_leave_no_descriptor() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        let before = networks.relay_descriptors();
        let useless = [
            &b""[..],
            b"\x05",
            b"\x04\x01\0\x50\0\0\0\x01\0\0",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x16\x03\x01",
            b"\r\n\r\n",
        ];
        for bytes in useless.repeat(20) {
            let mut client = proxy(networks);
            client.write_all(bytes).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            all(&mut client);
        }
        // The relay may not have closed the last ones yet.
        let after = networks.relay_descriptors();
        assert!(after < before + 20, "{before} have become {after}");
    });
}
