//! Slow, broken and lying servers, clients and name servers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::two_networks::{PORT, client_hello, in_two_networks, rules};

const ALLOWED: &str = "good.example:8080";

fn request(extra: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: good.example\r\n{extra}\r\n").into_bytes()
}

#[test]
fn an_unreachable_host_is_a_failure_not_a_denial() {
    in_two_networks(&rules(&[ALLOWED, "nowhere.example:8080", "empty.example:8080"]), |networks| {
        networks.name("good.example", "93.184.216.34");
        networks.name("empty.example", "");
        for (name, reason) in [
            ("good.example", "cannot connect"),
            ("nowhere.example", "the name does not exist"),
            ("empty.example", "the name has no address"),
        ] {
            let mut client = networks.dial(name);
            client.write_all(&request("")).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(reason), "{answer}");
            assert!(!answer.contains("--allow-domain"), "{answer}");
            let message = networks.next_message();
            assert_eq!(
                (&message["action"], &message["host"]),
                (&"fail".into(), &name.into()),
                "{message}"
            );
        }
    });
}

#[test]
fn single_bytes_are_judged_like_whole_messages() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let received = networks.record();
        for message in [request(""), client_hello(Some("good.example"))] {
            let mut client = networks.dial("good.example");
            message.iter().for_each(|byte| client.write_all(&[*byte]).unwrap());
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            assert_eq!(received(), message);
            assert_eq!(networks.next_message()["action"], "allow");
        }
        let evil = client_hello(Some("evil.example"));
        let mut client = networks.dial("good.example");
        let sent = evil.iter().try_for_each(|byte| client.write_all(&[*byte]));
        assert!(sent.is_err() || client.read(&mut [0]).is_err());
        assert_eq!(networks.next_message()["action"], "deny");
    });
}

#[test]
fn only_a_head_below_the_limit_passes() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let received = networks.record();
        let long = |length: usize| request(&format!("X: {}\r\n", "x".repeat(length)));
        let mut client = networks.dial("good.example");
        client.write_all(&long(60_000)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(received(), long(60_000));
        assert_eq!(networks.next_message()["action"], "allow");

        let mut client = networks.dial("good.example");
        let _ = client.write_all(&long(1_000_000));
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer);
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["layer"]),
            (&"deny".into(), &"request".into()),
            "{message}"
        );
    });
}

#[test]
fn a_started_second_request_has_no_deadline() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let whole = request("").len();
        networks.serve(move |mut stream| {
            let mut one = vec![0; whole];
            while stream.read_exact(&mut one).is_ok() {
                stream.write_all(b"ok").unwrap();
            }
        });
        let mut client = networks.dial("good.example");
        let (next, rest) = (request(""), request("").split_off(20));
        client.write_all(&[&request("")[..], &next[..20]].concat()).unwrap();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).unwrap();
        // The deadline applies to the first head only.
        client.write_all(&rest).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ok");
    });
}

#[test]
fn each_direction_ends_separately() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        networks.serve(|mut stream| {
            stream.write_all(b"all I have").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"and this is what I have");
        });
        let mut client = networks.dial("good.example");
        let mut response = String::new();
        client.read_to_string(&mut response).unwrap();
        assert_eq!(response, "all I have");
        client.write_all(b"and this is what I have").unwrap();
        drop(client);
        let message = networks.next_message();
        assert_eq!((&message["sent"], &message["received"]), (&23.into(), &10.into()), "{message}");
    });
}

#[test]
fn false_dns_replies_are_ignored() {
    in_two_networks(&rules(&["*.example:8080"]), |networks| {
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        for lie in ["id", "name", "short", "noise"] {
            let name = format!("{lie}.example");
            networks.name(&name, &format!("liar:{lie} 93.184.216.35"));
            let mut client = networks.dial(&name);
            client.write_all(b"\0").unwrap();
            assert_eq!(
                client.read(&mut [0]).unwrap_err().kind(),
                ErrorKind::ConnectionReset,
                "{lie}"
            );
            let message = networks.next_message();
            assert_eq!(
                (&message["action"], &message["address"]),
                (&"fail".into(), &serde_json::Value::Null),
                "{message}"
            );
        }
        // A true reply after a false one counts.
        networks.name("first.example", "liar:first 93.184.216.34");
        let mut response = String::new();
        networks.dial("first.example").read_to_string(&mut response).unwrap();
        assert_eq!(
            (response.as_str(), &networks.next_message()["address"]),
            ("here", &"93.184.216.34".into())
        );
    });
}

#[test]
fn a_slow_name_server_delays_no_other_connection() {
    in_two_networks(&rules(&[ALLOWED, "slow.example:8080"]), |networks| {
        networks.name("good.example", "93.184.216.34");
        networks.name("slow.example", "silent 93.184.216.34");
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut slow = networks.dial("slow.example");
        let mut response = String::new();
        networks.dial("good.example").read_to_string(&mut response).unwrap();
        assert_eq!(
            (response.as_str(), &networks.next_message()["host"]),
            ("here", &"good.example".into())
        );
        slow.write_all(b"\0").unwrap();
        assert!(slow.read(&mut [0]).is_err());
        assert_eq!(networks.next_message()["reason"], "no name server answered");
    });
}

#[test]
fn a_slow_server_delays_no_other_connection() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let (release, released) = channel();
        let released = Mutex::new(released);
        networks.serve(move |mut stream| {
            let mut line = [0; 5];
            stream.read_exact(&mut line).unwrap();
            if line == *b"slow\n" {
                released.lock().unwrap().recv().unwrap();
            }
            b"answer".iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
        });
        let mut slow = networks.dial("good.example");
        slow.write_all(b"slow\n").unwrap();
        let answer = |mut client: TcpStream| {
            let mut response = String::new();
            client.read_to_string(&mut response).unwrap();
            response
        };
        for _ in 0..20 {
            let mut fast = networks.dial("good.example");
            fast.write_all(b"fast\n").unwrap();
            assert_eq!(
                (answer(fast).as_str(), &networks.next_message()["received"]),
                ("answer", &6.into())
            );
        }
        release.send(()).unwrap();
        assert_eq!(
            (answer(slow).as_str(), &networks.next_message()["received"]),
            ("answer", &6.into())
        );
    });
}

#[test]
fn a_replaced_resolv_conf_is_read_again() {
    in_two_networks(&rules(&[ALLOWED, "next.example:8080"]), |networks| {
        for name in ["good.example", "next.example"] {
            networks.name(name, "93.184.216.34");
        }
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut response = String::new();
        networks.dial("good.example").read_to_string(&mut response).unwrap();
        assert_eq!(
            (response.as_str(), &networks.next_message()["action"]),
            ("here", &"allow".into())
        );
        // A server without a listener, in a new file of the same name.
        networks.replace_servers("nameserver 127.0.0.77\noptions timeout:1 attempts:1\n");
        let mut client = networks.dial("next.example");
        client.write_all(b"\0").unwrap();
        assert!(client.read(&mut [0]).is_err());
        assert_eq!(networks.next_message()["action"], "fail");
        networks.replace_servers("nameserver 127.0.0.1\n");
        let mut response = String::new();
        networks.dial("next.example").read_to_string(&mut response).unwrap();
        assert_eq!(
            (response.as_str(), &networks.next_message()["action"]),
            ("here", &"allow".into())
        );
    });
}

#[test]
fn ended_connections_leave_no_descriptor() {
    in_two_networks(&rules(&["quiet.example:8080"]), |networks| {
        networks.name("quiet.example", "93.184.216.34");
        networks.serve(|mut stream| drop(stream.read(&mut [0])));
        let before = networks.relay_descriptors();
        for _ in 0..3 {
            let mut refused: Vec<TcpStream> =
                (0..200).map(|_| networks.dial_address("93.184.216.99")).collect();
            for client in &mut refused {
                assert!(client.write_all(b"\0").is_err() || client.read(&mut [0]).is_err());
                assert_eq!(networks.next_message()["port"], PORT);
            }
            let flowing: Vec<TcpStream> =
                (0..200).map(|_| networks.dial("quiet.example")).collect();
            drop(flowing);
        }
        networks.wait_for_descriptors(before);
    });
}
