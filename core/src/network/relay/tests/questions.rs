//! Questions about hosts; the test plays the supervisor.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::two_networks::{PORT, TwoNetworks, in_two_networks, reset, rules};
use crate::plan::{Action, Network};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: new.example\r\n\r\n";

/// A network that asks about every host without a rule.
fn ask_network(allowed: &[&str]) -> Network {
    Network { default: Action::Ask, ..rules(allowed) }
}

fn serve(networks: &TwoNetworks) {
    networks.name("new.example", "93.184.216.34");
    networks.serve(|mut stream| stream.write_all(b"here").unwrap());
}

fn response(client: &mut TcpStream) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    text
}

fn is_refused(client: &mut TcpStream) -> bool {
    client.write_all(b"\0").is_err() || client.read(&mut [0]).is_err()
}

#[test]
fn a_host_is_asked_about_when_dialled_and_before_lookup() {
    in_two_networks(&ask_network(&[]), |networks| {
        serve(networks);
        // A DNS question causes no question.
        assert!(networks.ask("new.example").is_some());
        let mut client = networks.dial("new.example");
        client.write_all(b"hello").unwrap();
        let question = networks.next_message();
        let process = json!({ "pid": std::process::id(), "exe": "/usr/bin/test" });
        let expected = json!({ "id": 1, "host": "new.example", "port": PORT, "process": process });
        assert_eq!(question, json!({ "ask": expected }));
        assert!(networks.looked_up_names().is_empty(), "{:?}", networks.looked_up_names());
        networks.reply(&question, "once");
        assert_eq!(response(&mut client), "here");
        drop(client);
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["by"], &message["asked_ms"]),
            (&"allow".into(), &"terminal".into(), &7.into())
        );
        assert_eq!(
            (&message["pid"], &message["exe"]),
            (&std::process::id().into(), &"/usr/bin/test".into()),
            "{message}"
        );
        // `once` covers no later connection.
        let _client = networks.dial("new.example");
        assert_eq!(networks.next_message()["ask"]["host"], "new.example");
    });
}

#[test]
fn other_connections_continue_during_a_question() {
    in_two_networks(&ask_network(&["good.example:8080"]), |networks| {
        serve(networks);
        networks.name("good.example", "93.184.216.34");
        let _waiting = networks.dial("new.example");
        assert_eq!(networks.next_message()["ask"]["host"], "new.example");
        assert_eq!(response(&mut networks.dial("good.example")), "here");
        assert_eq!(networks.next_message()["host"], "good.example");
    });
}

#[test]
fn connections_to_one_host_and_port_share_a_question() {
    in_two_networks(&ask_network(&[]), |networks| {
        serve(networks);
        let mut clients: Vec<TcpStream> = (0..300).map(|_| networks.dial("new.example")).collect();
        let question = networks.next_message();
        assert_eq!(question["ask"]["id"], 1);
        networks.reply(&question, "session");
        for client in &mut clients {
            assert_eq!(response(client), "here");
        }
        clients.clear();
        // `session` covers later connections, but no other host.
        assert_eq!(response(&mut networks.dial("new.example")), "here");
        let messages: Vec<Value> = (0..301).map(|_| networks.next_message()).collect();
        assert!(messages.iter().all(|message| message["action"] == "allow"));
        let by = |by: &str| messages.iter().filter(|message| message["by"] == by).count();
        assert!(by("session") >= 1 && by("terminal") + by("session") == 301);
        let _client = networks.dial("other.example");
        assert_eq!(networks.next_message()["ask"]["host"], "other.example");
    });
}

#[test]
fn many_questions_do_not_block_the_relay() {
    in_two_networks(&ask_network(&["good.example:8080"]), |networks| {
        serve(networks);
        networks.name("good.example", "93.184.216.34");
        let names: Vec<String> = (0..500).map(|number| format!("n{number}.example")).collect();
        let mut clients: Vec<TcpStream> = names.iter().map(|name| networks.dial(name)).collect();
        let questions: Vec<Value> = (0..500).map(|_| networks.next_message()).collect();
        assert_eq!(response(&mut networks.dial("good.example")), "here");
        assert_eq!(networks.next_message()["host"], "good.example");
        for question in &questions {
            networks.reply(question, "deny");
        }
        assert!(clients.iter_mut().all(is_refused));
    });
}

#[test]
fn a_denied_host_is_refused_without_a_second_question() {
    in_two_networks(&ask_network(&[]), |networks| {
        serve(networks);
        let mut client = networks.dial("new.example");
        client.write_all(REQUEST).unwrap();
        let question = networks.next_message();
        networks.reply(&question, "deny");
        let answer = response(&mut client);
        assert!(
            answer.starts_with("HTTP/1.1 403 ") && answer.contains("the approver denied it"),
            "{answer}"
        );
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["by"], &message["asked_ms"]),
            (&"deny".into(), &"terminal".into(), &7.into())
        );
        let mut again = networks.dial("new.example");
        assert!(is_refused(&mut again));
        assert_eq!(networks.next_message()["action"], "deny");
        assert!(networks.looked_up_names().is_empty(), "{:?}", networks.looked_up_names());
    });
}

#[test]
fn a_question_is_withdrawn_when_its_clients_are_gone() {
    in_two_networks(&ask_network(&[]), |networks| {
        serve(networks);
        let (one, mut other) = (networks.dial("new.example"), networks.dial("new.example"));
        let question = networks.next_message();
        networks.wait_for_callers(2);
        // One client resets, the other closes its sending side and still waits.
        reset(one);
        other.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(networks.is_silent());
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        drop(other);
        assert_eq!(
            networks.next_message(),
            json!({ "withdrawn": { "id": question["ask"]["id"] } })
        );
        // A late answer is ignored.
        networks.reply(&question, "session");
        let _client = networks.dial("new.example");
        assert_eq!(networks.next_message()["ask"]["id"], 2);
    });
}

#[test]
fn hosts_with_rules_cause_no_question() {
    let denied = json!([{ "source": "paddock.toml", "hosts": [["evil.example", null, 1]] }]);
    let approved = json!([{ "source": "approved.toml", "hosts": [["new.example", PORT, 2]] }]);
    let [denied, approved] = [denied, approved].map(|hosts| serde_json::from_value(hosts).unwrap());
    in_two_networks(&Network { denied, approved, ..ask_network(&[]) }, |networks| {
        serve(networks);
        assert_eq!(networks.ask("evil.example"), None);
        assert_eq!(networks.next_message()["action"], "deny");
        assert_eq!(networks.ask("metadata.google.internal"), None);
        assert_eq!(networks.next_message()["action"], "deny");
        // A permanent approval answers the question.
        assert_eq!(response(&mut networks.dial("new.example")), "here");
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["rule"]),
            (&"allow".into(), &"approved.toml:2".into()),
            "{message}"
        );
        // A name with a local address is denied even if a person allows it.
        networks.name("inner.example", "127.0.0.1");
        let mut client = networks.dial("inner.example");
        let question = networks.next_message();
        networks.reply(&question, "once");
        assert!(is_refused(&mut client));
        assert_eq!(networks.next_message()["action"], "deny");
    });
}
