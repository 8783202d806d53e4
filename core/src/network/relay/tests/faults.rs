//! Servers, clients and name servers that are slow, broken or lying.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::world::{PORT, client_hello, in_world, rules};

const ALLOWED: &str = "good.example:8080";

fn request(extra: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: good.example\r\n{extra}\r\n").into_bytes()
}

#[test]
fn what_can_not_be_reached_is_no_denial() {
    in_world(&rules(&[ALLOWED, "nowhere.example:8080", "empty.example:8080"]), |world| {
        world.name("good.example", "93.184.216.34");
        world.name("empty.example", "");
        for (name, reason) in [
            ("good.example", "cannot connect"),
            ("nowhere.example", "the name does not exist"),
            ("empty.example", "the name has no address"),
        ] {
            let mut client = world.dial(name);
            client.write_all(&request("")).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(reason), "{answer}");
            assert!(!answer.contains("--allow-domain"), "{answer}");
            let told = world.told();
            assert_eq!((&told["action"], &told["host"]), (&"fail".into(), &name.into()), "{told}");
        }
    });
}

#[test]
fn a_client_that_sends_byte_by_byte_is_judged_like_any_other() {
    in_world(&rules(&[ALLOWED]), |world| {
        world.name("good.example", "93.184.216.34");
        let received = world.record();
        for message in [request(""), client_hello(Some("good.example"))] {
            let mut client = world.dial("good.example");
            message.iter().for_each(|byte| client.write_all(&[*byte]).unwrap());
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
            assert_eq!(received(), message);
            assert_eq!(world.told()["action"], "allow");
        }
        let evil = client_hello(Some("evil.example"));
        let mut client = world.dial("good.example");
        let sent = evil.iter().try_for_each(|byte| client.write_all(&[*byte]));
        assert!(sent.is_err() || client.read(&mut [0]).is_err());
        assert_eq!(world.told()["action"], "deny");
    });
}

#[test]
fn a_head_without_end_is_refused_and_one_that_just_fits_passes() {
    in_world(&rules(&[ALLOWED]), |world| {
        world.name("good.example", "93.184.216.34");
        let received = world.record();
        let long = |length: usize| request(&format!("X: {}\r\n", "x".repeat(length)));
        let mut client = world.dial("good.example");
        client.write_all(&long(60_000)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(received(), long(60_000));
        assert_eq!(world.told()["action"], "allow");

        let mut client = world.dial("good.example");
        let _ = client.write_all(&long(1_000_000));
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer);
        let told = world.told();
        assert_eq!(
            (&told["action"], &told["layer"]),
            (&"deny".into(), &"request".into()),
            "{told}"
        );
    });
}

#[test]
fn requests_that_end_inside_of_the_next_wait_for_their_answers() {
    in_world(&rules(&[ALLOWED]), |world| {
        world.name("good.example", "93.184.216.34");
        let whole = request("").len();
        world.serve(move |mut stream| {
            let mut one = vec![0; whole];
            while stream.read_exact(&mut one).is_ok() {
                stream.write_all(b"ok").unwrap();
            }
        });
        let mut client = world.dial("good.example");
        let (next, rest) = (request(""), request("").split_off(20));
        client.write_all(&[&request("")[..], &next[..20]].concat()).unwrap();
        let mut answer = [0; 2];
        client.read_exact(&mut answer).unwrap();
        // Nobody is in a hurry from here on: what was begun is no first head.
        client.write_all(&rest).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ok");
    });
}

#[test]
fn each_direction_ends_by_itself() {
    in_world(&rules(&[ALLOWED]), |world| {
        world.name("good.example", "93.184.216.34");
        world.serve(|mut stream| {
            stream.write_all(b"all I have").unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"and this is what I have");
        });
        let mut client = world.dial("good.example");
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "all I have");
        client.write_all(b"and this is what I have").unwrap();
        drop(client);
        let told = world.told();
        assert_eq!((&told["sent"], &told["received"]), (&23.into(), &10.into()), "{told}");
    });
}

#[test]
fn a_name_server_that_lies_is_not_believed() {
    in_world(&rules(&["*.example:8080"]), |world| {
        world.serve(|mut stream| stream.write_all(b"here").unwrap());
        for lie in ["id", "name", "short", "noise"] {
            let name = format!("{lie}.example");
            world.name(&name, &format!("liar:{lie} 93.184.216.35"));
            let mut client = world.dial(&name);
            client.write_all(b"\0").unwrap();
            assert_eq!(
                client.read(&mut [0]).unwrap_err().kind(),
                ErrorKind::ConnectionReset,
                "{lie}"
            );
            let told = world.told();
            assert_eq!(
                (&told["action"], &told["address"]),
                (&"fail".into(), &serde_json::Value::Null),
                "{told}"
            );
        }
        // What is true counts, also behind a lie.
        world.name("first.example", "liar:first 93.184.216.34");
        let mut heard = String::new();
        world.dial("first.example").read_to_string(&mut heard).unwrap();
        assert_eq!((heard.as_str(), &world.told()["address"]), ("here", &"93.184.216.34".into()));
    });
}

#[test]
fn a_name_server_that_is_slow_holds_up_nobody_else() {
    in_world(&rules(&[ALLOWED, "slow.example:8080"]), |world| {
        world.name("good.example", "93.184.216.34");
        world.name("slow.example", "silent 93.184.216.34");
        world.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut slow = world.dial("slow.example");
        let mut heard = String::new();
        world.dial("good.example").read_to_string(&mut heard).unwrap();
        assert_eq!((heard.as_str(), &world.told()["host"]), ("here", &"good.example".into()));
        slow.write_all(b"\0").unwrap();
        assert!(slow.read(&mut [0]).is_err());
        assert_eq!(world.told()["reason"], "no name server answered");
    });
}

#[test]
fn a_server_that_is_slow_holds_up_nobody_else() {
    in_world(&rules(&[ALLOWED]), |world| {
        world.name("good.example", "93.184.216.34");
        let (release, released) = channel();
        let released = Mutex::new(released);
        world.serve(move |mut stream| {
            let mut said = [0; 5];
            stream.read_exact(&mut said).unwrap();
            if said == *b"slow\n" {
                released.lock().unwrap().recv().unwrap();
            }
            b"answer".iter().for_each(|byte| stream.write_all(&[*byte]).unwrap());
        });
        let mut slow = world.dial("good.example");
        slow.write_all(b"slow\n").unwrap();
        let answer = |mut client: TcpStream| {
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            heard
        };
        for _ in 0..20 {
            let mut fast = world.dial("good.example");
            fast.write_all(b"fast\n").unwrap();
            assert_eq!((answer(fast).as_str(), &world.told()["received"]), ("answer", &6.into()));
        }
        release.send(()).unwrap();
        assert_eq!((answer(slow).as_str(), &world.told()["received"]), ("answer", &6.into()));
    });
}

#[test]
fn a_list_of_servers_that_is_replaced_is_read_again() {
    in_world(&rules(&[ALLOWED, "next.example:8080"]), |world| {
        for name in ["good.example", "next.example"] {
            world.name(name, "93.184.216.34");
        }
        world.serve(|mut stream| stream.write_all(b"here").unwrap());
        let mut heard = String::new();
        world.dial("good.example").read_to_string(&mut heard).unwrap();
        assert_eq!((heard.as_str(), &world.told()["action"]), ("here", &"allow".into()));
        // Nobody is there; by another file of that name.
        world.replace_servers("nameserver 127.0.0.77\noptions timeout:1 attempts:1\n");
        let mut client = world.dial("next.example");
        client.write_all(b"\0").unwrap();
        assert!(client.read(&mut [0]).is_err());
        assert_eq!(world.told()["action"], "fail");
        world.replace_servers("nameserver 127.0.0.1\n");
        let mut heard = String::new();
        world.dial("next.example").read_to_string(&mut heard).unwrap();
        assert_eq!((heard.as_str(), &world.told()["action"]), ("here", &"allow".into()));
    });
}

#[test]
fn what_is_refused_or_never_answered_leaves_nothing_behind() {
    in_world(&rules(&["quiet.example:8080"]), |world| {
        world.name("quiet.example", "93.184.216.34");
        world.serve(|mut stream| drop(stream.read(&mut [0])));
        let before = world.relay_descriptors();
        for _ in 0..3 {
            let mut refused: Vec<TcpStream> =
                (0..200).map(|_| world.dial_address("93.184.216.99")).collect();
            for client in &mut refused {
                assert!(client.write_all(b"\0").is_err() || client.read(&mut [0]).is_err());
                assert_eq!(world.told()["port"], PORT);
            }
            let flowing: Vec<TcpStream> = (0..200).map(|_| world.dial("quiet.example")).collect();
            drop(flowing);
        }
        world.wait_for_descriptors(before);
    });
}
