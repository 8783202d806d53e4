//! Connections that are handed over; the test plays the HTTP helper.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::proxy_clients::{AUTHORISED, ESTABLISHED, SOCKS, proxy};
use super::two_networks::{PORT, in_two_networks, rules};
use crate::plan::{Action, Network};

const ROUTE: &str = "api.paddock.internal";

fn plan(default: Action, http: Value) -> Network {
    Network { default, http: Some(serde_json::from_value(http).unwrap()), ..rules(&[]) }
}

fn with_a_route() -> Network {
    let upstream = json!({ "scheme": "http", "host": "new.example", "port": PORT, "base": "" });
    let route = json!({
        "name": "api", "upstream": upstream, "credential": null, "inject_mode": null,
        "inject_name": null, "endpoints": [],
        "inspect": false, "body_methods": [], "upstream_addresses": [], "shared_addresses": false,
        "source": "paddock.toml:3",
    });
    plan(Action::Deny, json!({ "routes": [route], "inspect": [] }))
}

fn all(client: &mut TcpStream) -> String {
    let mut response = Vec::new();
    client.read_to_end(&mut response).unwrap();
    response.escape_ascii().to_string()
}

#[test]
fn every_kind_of_client_is_handed_over_with_its_bytes() {
    in_two_networks(&with_a_route(), |networks| {
        let request =
            format!("POST /a HTTP/1.1\r\nHost: {ROUTE}:8080\r\nContent-Length: 3\r\n\r\nabc");
        let connect = format!("CONNECT {ROUTE}:8080 HTTP/1.1\r\n{AUTHORISED}\r\n{request}");
        let whole = format!(
            "POST http://{ROUTE}:8080/a HTTP/1.1\r\nHost: {ROUTE}:8080\r\n\
             {AUTHORISED}Content-Length: 3\r\n\r\nabc"
        );
        let anew = request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let wish =
            [SOCKS, b"\x05\x01\x00\x03\x14", ROUTE.as_bytes(), b"\x1f\x90", request.as_bytes()]
                .concat();
        let greeted = &b"\x05\x02\x01\x00\x05\0\0\x01\0\0\0\0\0\0"[..];
        for (by_proxy, sent, welcome, expected) in [
            (false, request.as_bytes(), &b""[..], &request),
            (true, connect.as_bytes(), ESTABLISHED.as_bytes(), &request),
            (true, whole.as_bytes(), b"", &anew),
            (true, &wish, greeted, &request),
        ] {
            let mut client = if by_proxy { proxy(networks) } else { networks.dial(ROUTE) };
            client.write_all(sent).unwrap();
            let (message, mut sent_bytes, connection) = networks.next_handover();
            assert_eq!(message, json!({ "host": ROUTE, "kind": "route", "port": PORT }));
            let mut connection = connection.unwrap();
            let begun = sent_bytes.len();
            sent_bytes.resize(expected.len(), 0);
            connection.read_exact(&mut sent_bytes[begun..]).unwrap();
            assert_eq!(
                sent_bytes.escape_ascii().to_string(),
                expected.as_bytes().escape_ascii().to_string()
            );
            connection.write_all(b"here").unwrap();
            drop(connection);
            assert_eq!(all(&mut client), [welcome, b"here"].concat().escape_ascii().to_string());
        }
        // The HTTP helper reports these connections.
        assert!(networks.is_silent());
        let mut around = proxy(networks);
        around
            .write_all(format!("CONNECT new.example:8080 HTTP/1.1\r\n{AUTHORISED}\r\n").as_bytes())
            .unwrap();
        assert!(all(&mut around).starts_with("HTTP/1.1 403 "));
    });
}

#[test]
fn an_inspected_host_is_dialled_after_a_person_allowed_it() {
    let inspected =
        json!({ "routes": [], "inspect": [{ "host": "new.example", "source": "paddock.toml:2" }] });
    in_two_networks(&plan(Action::Ask, inspected), |networks| {
        networks.name("new.example", "93.184.216.34");
        networks.serve(|mut stream| stream.write_all(b"here").unwrap());
        networks.ask_to_dial(1, "new.example");
        let (message, _, connection) = networks.next_handover();
        assert_eq!(
            (&message["id"], &message["denied"], connection.is_none()),
            (&1.into(), &true.into(), true)
        );
        let _client = networks.dial("new.example");
        let question = networks.next_message();
        assert_eq!(question["ask"]["host"], "new.example");
        assert!(networks.looked_up_names().is_empty(), "{:?}", networks.looked_up_names());
        networks.reply(&question, "once");
        let (message, sent_bytes, connection) = networks.next_handover();
        assert_eq!(message, json!({ "host": "new.example", "kind": "inspect", "port": PORT }));
        assert!(sent_bytes.is_empty() && connection.is_some());
        let message = networks.next_message();
        assert_eq!(
            (&message["action"], &message["by"], &message["asked_ms"]),
            (&"allow".into(), &"terminal".into(), &7.into())
        );
        networks.ask_to_dial(2, "new.example");
        let (message, _, server) = networks.next_handover();
        assert_eq!(message, json!({ "address": "93.184.216.34", "id": 2 }));
        assert_eq!(all(&mut server.unwrap()), "here");
    });
}

#[test]
fn a_missing_http_helper_is_reported() {
    in_two_networks(&with_a_route(), |networks| {
        networks.end_http_helper();
        let mut client = networks.dial(ROUTE);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut tunnel = proxy(networks);
        tunnel
            .write_all(format!("CONNECT {ROUTE}:8080 HTTP/1.1\r\n{AUTHORISED}\r\n").as_bytes())
            .unwrap();
        for client in [&mut client, &mut tunnel] {
            let response = all(client);
            assert!(
                response.starts_with("HTTP/1.1 502 ")
                    && response.contains("the HTTP helper has ended"),
                "{response}"
            );
            assert_eq!(networks.next_message()["action"], "fail");
        }
    });
}
