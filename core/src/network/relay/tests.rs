//! The relay between two test networks: one in which every address is local, like the command's,
//! and one with servers and a name server. Everything is real except the distance.

mod faults;
mod handover;
mod hidden_requests;
mod proxy_clients;
mod questions;
mod two_networks;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use self::two_networks::{PORT, client_hello, in_two_networks, rules};

const ALLOWED: &str = "good.example:8080";

#[test]
fn an_allowed_name_is_reached_in_both_directions() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        networks.serve(|mut stream| {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            all.reverse();
            stream.write_all(&all).unwrap();
        });
        // More than fits into any buffer, and enough for pipes.
        let sent: Vec<u8> = (0..12_000_000_u32).map(|index| (index % 251) as u8).collect();
        let mut client = networks.dial("good.example");
        let mut writer = client.try_clone().unwrap();
        let copy = sent.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&copy).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        received.reverse();
        assert!(received == sent, "{} bytes", received.len());
        drop(client);
        let message = networks.next_message();
        assert_eq!(
            (&message["layer"], &message["action"]),
            (&"connect".into(), &"allow".into()),
            "{message}"
        );
        assert_eq!((&message["host"], &message["port"]), (&"good.example".into(), &PORT.into()));
        assert_eq!(
            (&message["address"], &message["rule"]),
            (&"93.184.216.34".into(), &"paddock.toml:1".into())
        );
        assert_eq!(
            (&message["sent"], &message["received"]),
            (&sent.len().into(), &sent.len().into())
        );
    });
}

#[test]
fn a_denied_name_does_not_exist_and_is_not_looked_up() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("evil.example", "93.184.216.35");
        networks.name("good.example", "93.184.216.34");
        assert_eq!(networks.ask("evil.example"), None);
        assert_eq!(networks.ask("evil.example"), None);
        let message = networks.next_message();
        assert_eq!(
            (&message["layer"], &message["action"], &message["host"]),
            (&"name".into(), &"deny".into(), &"evil.example".into())
        );
        // The control: an allowed name has an address at once, and is looked up when it is dialled.
        assert!(networks.ask("good.example").is_some());
        assert!(networks.looked_up_names().is_empty(), "{:?}", networks.looked_up_names());
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut response = String::new();
        networks.dial("good.example").read_to_string(&mut response).unwrap();
        assert_eq!(response, "here");
        assert!(
            networks.looked_up_names().iter().all(|name| name == "good.example")
                && !networks.looked_up_names().is_empty()
        );
        // The denied name was reported only once.
        assert_eq!(networks.next_message()["action"], "allow");
    });
}

#[test]
fn names_are_answered_over_ipv6_and_tcp() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        let question = two_networks::question("good.example", 28);
        let socket = networks.inside(|| {
            let socket = UdpSocket::bind("[::]:0").unwrap();
            socket.connect("[2620:fe::9]:53").unwrap();
            socket
        });
        socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        socket.send(&question).unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).unwrap();
        let address: [u8; 16] = answer[..length]
            .windows(16)
            .rev()
            .find(|last| last[..2] == [0xfd, 0xfa])
            .unwrap()
            .try_into()
            .unwrap();

        let mut stream = networks.inside(|| TcpStream::connect("[2620:fe::9]:53").unwrap());
        for _ in 0..2 {
            let message = [&(question.len() as u16).to_be_bytes()[..], &question].concat();
            // Byte by byte.
            message.iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut answer = vec![0; u16::from_be_bytes(length).into()];
            stream.read_exact(&mut answer).unwrap();
            assert!(
                answer.windows(16).any(|window| window == address),
                "{answer:?} {}",
                Ipv6Addr::from(address)
            );
        }
    });
}

#[test]
fn a_server_that_sends_first_is_passed_on_at_once() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        networks.serve(|mut stream| {
            stream.write_all(b"220 ready\r\n").unwrap();
            let mut line = [0; 6];
            stream.read_exact(&mut line).unwrap();
            stream.write_all(&line).unwrap();
        });
        let mut client = networks.dial("good.example");
        let mut greeting = [0; 11];
        client.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"220 ready\r\n");
        client.write_all(b"QUIT\r\n").unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"QUIT\r\n");
    });
}

#[test]
fn tls_for_another_name_is_refused() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let received = networks.record();
        for hello in [client_hello(Some("evil.example")), client_hello(None)] {
            let mut client = networks.dial("good.example");
            client.write_all(&hello).unwrap();
            assert!(client.read(&mut [0]).is_err());
            let message = networks.next_message();
            assert_eq!(
                (&message["action"], &message["host"]),
                (&"deny".into(), &"good.example".into()),
                "{message}"
            );
        }
        // The control: a good hello in two parts.
        let hello = client_hello(Some("good.example"));
        let mut client = networks.dial("good.example");
        client.write_all(&hello[..20]).unwrap();
        client.write_all(&hello[20..]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(received(), hello);
    });
}

#[test]
fn a_request_for_another_host_is_denied() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let first = "POST /a HTTP/1.1\r\nHost: Good.Example:8080\r\nContent-Length: 3\r\n\r\nabc";
        networks.serve(move |mut stream| {
            let mut request = vec![0; first.len()];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            // The second request never arrives.
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            stream.write_all(&rest).unwrap();
        });
        let second = "GET /b HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        let mut client = networks.dial("good.example");
        client.write_all([first, second].concat().as_bytes()).unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).unwrap();
        assert!(
            answers.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 403 "),
            "{answers}"
        );
        assert!(answers.contains("evil.example") && !answers.contains("GET"), "{answers}");
        let message = networks.next_message();
        assert_eq!(
            (&message["layer"], &message["host"]),
            (&"request".into(), &"evil.example".into()),
            "{message}"
        );

        // The same request as the first one of a connection.
        let mut client = networks.dial("good.example");
        client.write_all(second.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    });
}

#[test]
fn an_address_is_reached_only_if_it_is_listed() {
    in_two_networks(&rules(&["93.184.216.0/28:8080"]), |networks| {
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut response = String::new();
        networks.dial_address("93.184.216.5").read_to_string(&mut response).unwrap();
        assert_eq!(response, "here");
        assert_eq!(networks.next_message()["action"], "allow");

        // A neighbour, metadata, a synthetic address without a name, the namespace's own address.
        for address in
            ["93.184.216.34", "169.254.169.254", "198.18.77.77", "10.255.255.1", "127.0.0.1"]
        {
            let mut client = networks.dial_address(address);
            client.write_all(b"\0").unwrap();
            assert!(client.read(&mut [0]).is_err(), "{address}");
            let message = networks.next_message();
            assert_eq!(
                (&message["action"], &message["address"]),
                (&"deny".into(), &address.into()),
                "{message}"
            );
        }
        let mut client = networks.dial_address("93.184.216.34");
        client.write_all(b"GET / HTTP/1.1\r\nHost: 93.184.216.34\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("93.184.216.34:8080"),
            "{answer}"
        );
    });
}

#[test]
fn a_name_with_a_local_address_is_denied_unless_listed() {
    let listed = ["good.example:8080", "inner.example:8080", "*.far.example:8080", "127.0.0.9"];
    in_two_networks(&rules(&listed), |networks| {
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        // Loopback, private, metadata, and a public address of this host.
        for address in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "93.184.217.1"] {
            let name = format!("a{}.far.example", address.replace('.', "-"));
            networks.name(&name, address);
            let mut client = networks.dial(&name);
            client.write_all(b"\0").unwrap();
            assert!(client.read(&mut [0]).is_err(), "{address}");
            let message = networks.next_message();
            assert_eq!(
                (&message["action"], &message["address"]),
                (&"deny".into(), &address.into()),
                "{message}"
            );
        }
        // The controls: a listed address, a public address, and the allowed one of several.
        for (name, address) in [("inner.example", "127.0.0.9"), ("good.example", "93.184.216.34")] {
            networks.name(name, address);
            let mut response = String::new();
            networks.dial(name).read_to_string(&mut response).unwrap();
            assert_eq!(response, "here");
            assert_eq!(networks.next_message()["address"], address);
        }
        networks.name("both.far.example", "127.0.0.1 93.184.216.34");
        let mut response = String::new();
        networks.dial("both.far.example").read_to_string(&mut response).unwrap();
        assert_eq!(
            (response.as_str(), &networks.next_message()["address"]),
            ("here", &"93.184.216.34".into())
        );
    });
}

#[test]
fn a_missing_name_server_is_reported() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.stop_name_server();
        let mut client = networks.dial("good.example");
        client.write_all(b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 502 ") && answer.contains("no name server answered"),
            "{answer}"
        );
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["reason"]),
            (&"fail".into(), &"no name server answered".into()),
            "{message}"
        );

        let mut client = networks.dial("good.example");
        client.write_all(b"\0").unwrap();
        assert!(client.read(&mut [0]).is_err());
    });
}

#[test]
fn a_truncated_reply_is_requested_again_by_tcp() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "truncated 93.184.216.34");
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut response = String::new();
        networks.dial("good.example").read_to_string(&mut response).unwrap();
        assert_eq!(response, "here");
        assert!(
            networks.looked_up_names().contains(&"tcp good.example".to_owned()),
            "{:?}",
            networks.looked_up_names()
        );
    });
}

#[test]
fn a_missing_server_is_reported() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let mut client = networks.dial("good.example");
        client.write_all(b"\0").unwrap();
        assert!(client.read(&mut [0]).is_err());
        let message = networks.next_message();
        let reason = message["reason"].as_str().unwrap();
        assert!(reason.contains("refused"), "{message}");
    });
}

#[test]
fn a_reset_is_passed_on() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let (send, reset) = std::sync::mpsc::channel();
        let send = std::sync::Mutex::new(send);
        networks.serve(move |mut stream| {
            stream.write_all(b"!").unwrap();
            let mut word = [0];
            match stream.read(&mut word) {
                Ok(1) => two_networks::reset(stream),
                response => {
                    send.lock().unwrap().send(response.map_err(|error| error.kind())).unwrap()
                }
            }
        });
        let mut client = networks.dial("good.example");
        client.read_exact(&mut [0]).unwrap();
        client.write_all(&[0]).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);

        let mut client = networks.dial("good.example");
        client.read_exact(&mut [0]).unwrap();
        two_networks::reset(client);
        assert_eq!(reset.recv().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn a_thousand_connections_at_once_are_kept_apart() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        networks.serve(|mut stream| {
            let mut number = [0; 4];
            while stream.read_exact(&mut number).is_ok() {
                stream.write_all(&number).unwrap();
            }
        });
        let mut clients: Vec<TcpStream> =
            (0..1000).map(|_| networks.dial("good.example")).collect();
        for round in 0..3_u32 {
            for (index, client) in clients.iter_mut().enumerate() {
                client.write_all(&(index as u32 * 256 + round).to_be_bytes()).unwrap();
            }
            for (index, client) in clients.iter_mut().enumerate() {
                let mut number = [0; 4];
                client.read_exact(&mut number).unwrap();
                assert_eq!(u32::from_be_bytes(number), index as u32 * 256 + round);
            }
        }
        clients.clear();
        for _ in 0..1000 {
            assert_eq!(networks.next_message()["sent"], 12);
        }
        // Their descriptors were closed.
        let before = networks.relay_descriptors();
        assert!(before < 100, "{before}");
    });
}

#[test]
fn a_client_that_does_not_read_stops_the_server() {
    in_two_networks(&rules(&[ALLOWED]), |networks| {
        networks.name("good.example", "93.184.216.34");
        let (send, wrote) = std::sync::mpsc::channel();
        let send = std::sync::Mutex::new(send);
        networks.serve(move |mut stream| {
            stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            let mut wrote = 0_usize;
            while let Ok(length) = stream.write(&[7; 65536]) {
                wrote += length;
            }
            send.lock().unwrap().send(wrote).unwrap();
        });
        let mut client = networks.dial("good.example");
        // The buffers of two sockets on each side and a pipe, not all that the server wants to
        // send.
        let wrote = wrote.recv().unwrap();
        assert!(wrote < 64 << 20, "{wrote}");
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), wrote);
    });
}

#[test]
fn a_local_port_reaches_the_host() {
    let mut plan = rules(&[]);
    plan.local_ports = vec![5432];
    in_two_networks(&plan, |networks| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 5432)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                stream.unwrap().write_all(b"database").unwrap();
            }
        });
        let mut response = String::new();
        networks
            .inside(|| TcpStream::connect("127.0.0.1:5432").unwrap())
            .read_to_string(&mut response)
            .unwrap();
        assert_eq!(response, "database");
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["host"], &message["port"]),
            (&"allow".into(), &serde_json::Value::Null, &5432.into())
        );
        assert_eq!(
            (&message["rule"], &message["address"]),
            (&"local port 5432".into(), &"127.0.0.1".into()),
            "{message}"
        );
    });
}
