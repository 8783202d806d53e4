//! `judge-host`: the table's own answer for people, before anything runs.

use serde::Deserialize;

use super::error::Refusal;
use crate::network::rules::host_table::{HostDecision, Table};
use crate::plan::host_name::Host;
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, Invalid};
use crate::plan::{Action, Network, PlanError};

const ODD: &str = "programs read this name in different ways";

/// A host as a program would ask for it, as JSON; an IPv6 address stands in brackets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostToJudge {
    network: Network,
    host: Text,
    port: u16,
}

pub fn report(asked: &[u8]) -> Result<String, Refusal> {
    let asked: HostToJudge = reader::from_slice(asked).map_err(PlanError::Json)?;
    asked.network.check()?;
    let table = Table::compile(&asked.network)?;
    let verdict = match Host::read(asked.host.as_bytes()) {
        Some(Host::Name(name)) => table.judge_name(&name, Some(asked.port)),
        Some(Host::Address(address)) => table.judge_address(address, asked.port),
        None => HostDecision { action: Action::Deny, rule: None, reason: Some(ODD) },
    };
    let mut out = format!("{{\"action\":\"{}\",\"rule\":", verdict.action.name());
    match verdict.rule {
        Some(rule) => {
            out.push_str("{\"host\":");
            writer::string(&mut out, rule.host.as_bytes(), Invalid::Surrogate);
            out.push_str(",\"source\":");
            writer::string(&mut out, rule.to_string().as_bytes(), Invalid::Surrogate);
            out.push('}');
        }
        None => out.push_str("null"),
    }
    out.push_str(",\"reason\":");
    match verdict.reason {
        Some(reason) => writer::string(&mut out, reason.as_bytes(), Invalid::Surrogate),
        None => out.push_str("null"),
    }
    out.push('}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: &str = include_str!("../../../schema/examples/network.json");

    fn told(host: &str, port: u16) -> String {
        let network: serde_json::Value = serde_json::from_str(NETWORK).unwrap();
        let asked = serde_json::json!({ "host": host, "network": network, "port": port });
        report(asked.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_table_that_python_compiled_is_read_and_answers() {
        let by = |action, host, line, reason: &str| {
            format!(
                "{{\"action\":\"{action}\",\"rule\":{{\"host\":\"{host}\",\"source\":\"network.toml:{line}\"}},\"reason\":{reason}}}"
            )
        };
        assert_eq!(told("10.1.2.3", 5432), by("allow", "10.0.0.0/8", 10, "null"));
        assert_eq!(told("[2001:db8::1]", 443), by("allow", "2001:db8::1", 11, "null"));
        assert_eq!(told("API.Example.com.", 443), by("allow", "api.example.com", 7, "null"));
        assert_eq!(told("a.example.org", 80), by("allow", "*.example.org", 8, "null"));
        assert_eq!(
            told("secret.example.org", 80),
            by("deny", "secret.example.org", 14, "\"a rule denies it\"")
        );
        assert!(told("elsewhere.example", 443).starts_with("{\"action\":\"ask\",\"rule\":null,"));
        assert!(told("0x7f.1", 80).ends_with(&format!("\"rule\":null,\"reason\":\"{ODD}\"}}")));
    }
}
