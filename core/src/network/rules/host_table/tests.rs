use serde_json::{Value, json};

use crate::network::rules::host_table::*;

fn table(default: &str, denied: Value, allowed: Value) -> Result<HostTable, TableError> {
    let group = |hosts: Value, source: &str| json!([{ "source": source, "hosts": hosts }]);
    let network = json!({
        "mode": "filtered",
        "default": default,
        "ask_timeout_s": 60,
        "denied": group(denied, "no.toml"),
        "allowed": group(allowed, "yes.toml"),
        "local_ports": [],
        "published": [],
        "default_source": null,
        "approved": [],
        "http": null,
    });
    HostTable::compile(&serde_json::from_str(&network.to_string()).unwrap())
}

/// Action, place of the rule, reason.
fn summary(decision: HostDecision<'_>) -> (&'static str, Option<String>, Option<&'static str>) {
    (decision.action.name(), decision.rule.map(|rule| rule.to_string()), decision.reason)
}

fn of_name(
    table: &HostTable,
    name: &str,
    port: Option<u16>,
) -> (&'static str, Option<String>, Option<&'static str>) {
    summary(table.judge_name(&HostName::read(name.as_bytes()).unwrap(), port))
}

fn of_address(
    table: &HostTable,
    address: &str,
    port: u16,
) -> (&'static str, Option<String>, Option<&'static str>) {
    summary(table.judge_address(address.parse().unwrap(), port))
}

fn rule(location: &str) -> Option<String> {
    Some(location.to_owned())
}

fn dials(table: &HostTable, address: &str, port: u16) -> bool {
    table.may_dial(address.parse().unwrap(), port, false).is_ok()
}

#[test]
fn names_match_exactly_and_patterns_match_subdomains() {
    let allowed =
        json!([["example.com", null, 1], ["*.example.org", null, 2], ["a.example.org", 22, 3]]);
    let table = table("deny", json!([]), allowed).unwrap();
    let no = ("deny", None, Some(NOT_ALLOWED));
    assert_eq!(of_name(&table, "Example.com.", Some(443)), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_name(&table, "example.com", Some(80)), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_name(&table, "example.com", Some(22)), ("deny", None, Some(OTHER_PORTS)));
    assert_eq!(of_name(&table, "a.example.com", Some(443)), no);
    assert_eq!(of_name(&table, "notexample.com", Some(443)), no);
    assert_eq!(of_name(&table, "example.com.evil.net", Some(443)), no);
    assert_eq!(of_name(&table, "example.org", Some(443)), no);
    assert_eq!(of_name(&table, "notexample.org", Some(443)), no);
    assert_eq!(of_name(&table, "b.example.org", Some(443)), ("allow", rule("yes.toml:2"), None));
    assert_eq!(
        of_name(&table, "c.b.a.example.org", Some(443)),
        ("allow", rule("yes.toml:2"), None)
    );
    assert_eq!(of_name(&table, "a.example.org", Some(443)), ("allow", rule("yes.toml:2"), None));
    assert_eq!(of_name(&table, "a.example.org", Some(22)), ("allow", rule("yes.toml:3"), None));
    assert_eq!(of_name(&table, "b.example.org", Some(22)), ("deny", None, Some(OTHER_PORTS)));
    assert_eq!(of_name(&table, "b.example.org", None), ("allow", rule("yes.toml:2"), None));
    assert_eq!(of_name(&table, "example.org", None), no);
}

#[test]
fn denied_hosts_come_first() {
    let allowed = json!([
        ["*.example.com", null, 1],
        ["one.example.com", 22, 2],
        ["many.example.com", 8080, 3]
    ]);
    let denied = json!([
        ["bad.example.com", null, 1],
        ["*.bad.example.com", null, null],
        ["one.example.com", 22, 3],
        ["web.example.com", 80, 4],
        ["web.example.com", 443, 5]
    ]);
    let table = table("deny", denied, allowed).unwrap();
    assert_eq!(of_name(&table, "good.example.com", Some(443)), ("allow", rule("yes.toml:1"), None));
    assert_eq!(
        of_name(&table, "bad.example.com", Some(443)),
        ("deny", rule("no.toml:1"), Some(DENIED))
    );
    assert_eq!(of_name(&table, "bad.example.com", None), ("deny", rule("no.toml:1"), Some(DENIED)));
    assert_eq!(
        of_name(&table, "a.bad.example.com", Some(1)),
        ("deny", rule("no.toml"), Some(DENIED))
    );
    assert_eq!(
        of_name(&table, "one.example.com", Some(22)),
        ("deny", rule("no.toml:3"), Some(DENIED))
    );
    assert_eq!(of_name(&table, "one.example.com", Some(443)), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_name(&table, "one.example.com", None), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_name(&table, "web.example.com", None), ("deny", rule("no.toml:4"), Some(DENIED)));
    assert_eq!(
        of_name(&table, "many.example.com", Some(8080)),
        ("allow", rule("yes.toml:3"), None)
    );
}

#[test]
fn the_default_applies_to_names_only() {
    let denied = json!([["bad.example", null, 1], ["half.example", 25, 2]]);
    let open = table("allow", denied.clone(), json!([])).unwrap();
    assert_eq!(of_name(&open, "any.example", Some(22)), ("allow", None, None));
    assert_eq!(of_name(&open, "any.example", None), ("allow", None, None));
    assert_eq!(of_name(&open, "bad.example", None), ("deny", rule("no.toml:1"), Some(DENIED)));
    assert_eq!(of_name(&open, "half.example", None), ("allow", None, None));
    assert_eq!(of_name(&open, "half.example", Some(25)), ("deny", rule("no.toml:2"), Some(DENIED)));
    assert_eq!(of_address(&open, "8.8.8.8", 443), ("deny", None, Some(NOT_LISTED)));
    let asks = table("ask", denied, json!([["ok.example", 22, 1]])).unwrap();
    assert_eq!(of_name(&asks, "any.example", None), ("ask", None, Some(DEFAULT_ASKS)));
    assert_eq!(of_name(&asks, "ok.example", Some(443)), ("ask", None, Some(DEFAULT_ASKS)));
    assert_eq!(of_name(&asks, "ok.example", Some(22)), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_address(&asks, "8.8.8.8", 443), ("deny", None, Some(NOT_LISTED)));
}

#[test]
fn a_star_matches_names_but_no_address() {
    let open = table("deny", json!([]), json!([["*", null, 1], ["*", 22, 2]])).unwrap();
    assert_eq!(of_name(&open, "any.example", Some(443)), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_name(&open, "any.example", Some(22)), ("allow", rule("yes.toml:2"), None));
    assert_eq!(of_name(&open, "any.example", Some(25)), ("deny", None, Some(OTHER_PORTS)));
    assert_eq!(of_address(&open, "8.8.8.8", 443), ("deny", None, Some(NOT_LISTED)));
    let shut = table("allow", json!([["*", null, 1]]), json!([["10.0.0.0/8", null, 1]])).unwrap();
    assert_eq!(of_name(&shut, "any.example", Some(443)), ("deny", rule("no.toml:1"), Some(DENIED)));
    assert_eq!(of_address(&shut, "10.0.0.1", 443), ("allow", rule("yes.toml:1"), None));
}

#[test]
fn metadata_services_are_never_reached() {
    let allowed = json!([
        ["*", null, 1],
        ["metadata", null, 2],
        ["metadata.google.internal", 80, 3],
        ["*.internal", 80, 4],
        ["169.254.169.254", null, 5],
        ["0.0.0.0/0", null, 6],
        ["::/0", null, 7]
    ]);
    let table = table("allow", json!([]), allowed).unwrap();
    for name in [
        "metadata",
        "METADATA.google.internal.",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.azure.internal",
    ] {
        assert_eq!(
            of_name(&table, name, Some(80)),
            ("deny", None, Some(METADATA_DENIED)),
            "{name}"
        );
        assert_eq!(of_name(&table, name, None), ("deny", None, Some(METADATA_DENIED)), "{name}");
    }
    assert_eq!(of_name(&table, "other.internal", Some(80)).0, "allow");
    for address in [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "fd00:ec2::254",
        "fe80::1",
        "2002:a9fe:a9fe::",
    ] {
        assert_eq!(
            of_address(&table, address, 80),
            ("deny", None, Some(METADATA_DENIED)),
            "{address}"
        );
        assert!(!dials(&table, address, 80), "{address}");
    }
    assert_eq!(of_address(&table, "8.8.8.8", 80).0, "allow");
    assert_eq!(of_address(&table, "2606:4700::1111", 80).0, "allow");
}

#[test]
fn blocks_allow_addresses() {
    let allowed = json!([
        ["10.0.0.0/8", null, 1],
        ["10.1.0.0/16", 22, 2],
        ["2001:db8::/32", null, 3],
        ["8.8.8.8", 53, 4]
    ]);
    let denied = json!([["10.9.0.0/16", null, 1], ["10.1.2.3", 22, 2], ["1.2.3.0/24", null, 3]]);
    let table = table("deny", denied, allowed).unwrap();
    assert_eq!(of_address(&table, "10.2.3.4", 443), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_address(&table, "::ffff:10.2.3.4", 443), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_address(&table, "10.2.3.4", 22), ("deny", None, Some(OTHER_PORTS)));
    assert_eq!(of_address(&table, "10.1.3.4", 22), ("allow", rule("yes.toml:2"), None));
    assert_eq!(of_address(&table, "10.1.3.4", 80), ("allow", rule("yes.toml:1"), None));
    assert_eq!(of_address(&table, "10.1.2.3", 22), ("deny", rule("no.toml:2"), Some(DENIED)));
    assert_eq!(of_address(&table, "10.9.2.3", 80), ("deny", rule("no.toml:1"), Some(DENIED)));
    assert_eq!(of_address(&table, "11.0.0.1", 80), ("deny", None, Some(NOT_LISTED)));
    assert_eq!(of_address(&table, "2001:db8::1", 443), ("allow", rule("yes.toml:3"), None));
    assert_eq!(of_address(&table, "8.8.8.8", 53), ("allow", rule("yes.toml:4"), None));
    // A rule about an IPv4 address allows no translator, but denies it.
    assert_eq!(of_address(&table, "64:ff9b::8.8.8.8", 53), ("deny", None, Some(NOT_LISTED)));
    assert_eq!(
        of_address(&table, "64:ff9b::1.2.3.4", 53),
        ("deny", rule("no.toml:3"), Some(DENIED))
    );
}

#[test]
fn names_resolve_to_public_or_listed_addresses() {
    let allowed = json!([["10.0.0.0/8", null, 1], ["127.0.0.1", 5432, 2], ["*", null, 3]]);
    let table =
        table("allow", json!([["1.2.3.0/24", null, 1], ["9.9.9.9", 25, 1]]), allowed).unwrap();
    for (address, port, may) in [
        ("8.8.8.8", 22, true),
        ("2606:4700::1111", 443, true),
        ("64:ff9b::8.8.8.8", 443, true),
        ("10.1.2.3", 22, true),
        ("::ffff:10.1.2.3", 22, true),
        ("64:ff9b::10.1.2.3", 22, false),
        ("2002:a01:203::", 22, false),
        ("127.0.0.1", 5432, true),
        ("127.0.0.1", 80, false),
        ("127.0.0.2", 5432, false),
        ("::1", 5432, false),
        ("0.0.0.0", 80, false),
        ("::", 80, false),
        ("192.168.0.1", 80, false),
        ("fd00::1", 80, false),
        ("224.0.0.1", 80, false),
        ("198.18.0.1", 80, false),
        ("255.255.255.255", 80, false),
        ("1.2.3.4", 443, false),
        ("64:ff9b::1.2.3.4", 443, false),
        ("2002:102:304::", 443, false),
        ("9.9.9.9", 25, false),
        ("9.9.9.9", 443, true),
    ] {
        assert_eq!(dials(&table, address, port), may, "{address} {port}");
    }
    assert!(table.may_dial("8.8.8.8".parse().unwrap(), 443, true).is_err());
    assert!(table.may_dial("10.1.2.3".parse().unwrap(), 443, true).is_ok());
}

#[test]
fn an_invalid_host_is_reported_with_its_source() {
    for host in [
        "",
        "foo bar",
        "*.",
        "**",
        "*.*.x",
        "*x",
        "x.*",
        "a.*.b",
        "*.10.0.0.1",
        "*.com:80",
        "10.0.0.0/33",
        "10.0.0.1/8",
        "::/129",
        "[::1]",
        "127.1",
        "0x7f.1",
        "example.com:80",
        "http://a",
        "a..b",
        "*.a/8",
        "example.com/8",
        "bücher.example",
    ] {
        let compiled = table("deny", json!([]), json!([["ok.example", null, 1], [host, null, 7]]));
        let expected = format!(
            "yes.toml:7: \"{host}\" is not a host, a pattern of hosts or a block of addresses"
        );
        assert_eq!(compiled.unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_hundred_thousand_rules_are_found() {
    let names = (0..5_000).map(|n| json!([format!("h{n}.example"), null, n]));
    let below = (0..2_500).map(|n| json!([format!("*.s{n}.example"), null, n]));
    let blocks = (0..2_500).map(|n| json!([format!("11.{}.{}.0/24", n / 250, n % 250), null, n]));
    let table = table("deny", json!([]), names.chain(below).chain(blocks).collect()).unwrap();
    assert_eq!(of_name(&table, "h4999.example", Some(443)), ("allow", rule("yes.toml:4999"), None));
    assert_eq!(
        of_name(&table, "a.b.s2499.example", Some(443)),
        ("allow", rule("yes.toml:2499"), None)
    );
    assert_eq!(of_name(&table, "h5000.example", Some(443)).0, "deny");
    assert_eq!(of_address(&table, "11.9.249.7", 443), ("allow", rule("yes.toml:2499"), None));
    assert_eq!(table.allowed.lengths, [120]);
}

fn with_http(default: &str, http: Value, allowed: Value) -> HostTable {
    let network = json!({
        "mode": "filtered",
        "default": default,
        "default_source": null,
        "approved": [],
        "ask_timeout_s": 60,
        "denied": [{ "source": "no.toml", "hosts": [["denied.paddock.internal", null, 1]] }],
        "allowed": [{ "source": "yes.toml", "hosts": allowed }],
        "local_ports": [],
        "published": [],
        "http": http,
    });
    HostTable::compile(&serde_json::from_str(&network.to_string()).unwrap()).unwrap()
}

fn route(name: &str, host: &str, port: u16, endpoints: Value, inspect: bool) -> Value {
    json!({
        "name": name,
        "upstream": { "scheme": "https", "host": host, "port": port, "base": "" },
        "credential": null,
        "inject_mode": null,
        "inject_name": null,
        "endpoints": endpoints,
        "inspect": inspect,
        "body_methods": [],
        "upstream_addresses": [],
        "shared_addresses": false,
        "source": format!("{name}.toml:3"),
    })
}

#[test]
fn a_route_has_a_name_and_its_upstream_is_denied() {
    let http = json!({
        "routes": [
            route("open", "open.example", 443, Value::Null, false),
            route("shut", "shut.example", 443, json!([]), false),
            route("near", "192.0.2.1", 8080, json!([]), false),
            route("seen", "seen.example", 443, json!([]), true),
            route("denied", "open.example", 443, Value::Null, false),
        ],
        "inspect": [{ "host": "told.example", "source": "p.toml:4" }],
    });
    let allowed =
        json!([["told.example", null, 1], ["shut.example", null, 2], ["192.0.2.0/24", null, 3]]);
    let table = with_http("deny", http, allowed);
    let decision = |name: &str, port| of_name(&table, name, port);
    for port in [None, Some(80), Some(8080)] {
        assert_eq!(decision("open.paddock.internal", port), ("allow", rule("open.toml:3"), None));
        assert_eq!(
            decision("none.paddock.internal", port),
            ("deny", None, Some("no route has this name"))
        );
        assert_eq!(decision("a.open.paddock.internal", port).0, "deny");
        assert_eq!(decision("paddock.internal", port).0, "deny");
        assert_eq!(decision("denied.paddock.internal", port).1, rule("no.toml:1"));
        // Not even by a rule that allows it.
        let guarded = Some("only a route with endpoint rules leads to this host");
        assert_eq!(decision("shut.example", port), ("deny", rule("shut.toml:3"), guarded));
        assert_eq!(decision("open.example", port).0, "deny");
    }
    assert_eq!(of_address(&table, "192.0.2.1", 80).1, rule("near.toml:3"));
    assert_eq!(of_address(&table, "192.0.2.2", 80).0, "allow");
    assert_eq!(decision("seen.example", None), ("allow", rule("seen.toml:3"), None));
    assert_eq!(decision("seen.example", Some(443)), ("allow", rule("seen.toml:3"), None));
    assert_eq!(decision("seen.example", Some(80)).0, "deny");

    let handed = |name: &str| table.handover_kind(&HostName::read(name.as_bytes()).unwrap());
    assert_eq!(handed("open.paddock.internal"), Some(HandoverKind::Route));
    assert_eq!(
        (handed("seen.example"), handed("told.example")),
        (Some(HandoverKind::Inspect), Some(HandoverKind::Inspect))
    );
    assert_eq!((handed("open.example"), handed("other.example")), (None, None));

    let host = |text: &str| http_hosts::read_host(text.as_bytes()).unwrap();
    for (text, port, may) in [
        ("open.example", 443, true),
        ("shut.example", 443, true),
        ("192.0.2.1", 8080, true),
        ("told.example", 80, true),
        ("open.example", 80, false),
        ("told.example", 22, false),
        ("other.example", 443, false),
        ("192.0.2.2", 8080, false),
    ] {
        let allowed_by_person = |name: &HostName| panic!("{name}: the approver is asked");
        assert_eq!(
            table.judge_upstream(&host(text), port, allowed_by_person).is_ok(),
            may,
            "{text}:{port}"
        );
    }
    let dials = |text: &str, address: &str| {
        table.may_dial_upstream(&host(text), address.parse().unwrap(), 443, false).is_ok()
    };
    assert!(dials("open.example", "8.8.8.8") && dials("open.example", "192.0.2.7"));
    assert!(dials("127.0.0.1", "127.0.0.1") && dials("localhost", "::1"));
    for address in ["127.0.0.1", "10.0.0.1", "169.254.169.254"] {
        assert!(!dials("open.example", address), "{address}");
    }
    assert!(!dials("localhost", "10.0.0.1") && !dials("169.254.169.254", "169.254.169.254"));
}

#[test]
fn an_asked_inspected_host_may_be_dialled_once_allowed() {
    let http =
        json!({ "routes": [], "inspect": [{ "host": "told.example", "source": "p.toml:4" }] });
    let table = with_http("ask", http, json!([]));
    assert_eq!(of_name(&table, "told.example", Some(443)).0, "ask");
    let host = |text: &str| http_hosts::read_host(text.as_bytes()).unwrap();
    for (text, allowed_by_person, may) in [
        ("told.example", true, true),
        ("told.example", false, false),
        ("other.example", true, false),
    ] {
        assert_eq!(
            table.judge_upstream(&host(text), 443, |_| allowed_by_person).is_ok(),
            may,
            "{text} {allowed_by_person}"
        );
    }
}
