//! `judge-host`: prints the decision of the host table before anything runs.

use serde::Deserialize;

use super::error::Refusal;
use crate::network::rules::host_table::{HostDecision, HostTable};
use crate::plan::host_name::Host;
use crate::plan::wire::bytes::Text;
use crate::plan::wire::reader;
use crate::plan::wire::writer::{self, NonUtf8};
use crate::plan::{Action, Network, PlanError};

const ODD: &str = "programs read this name in different ways";

/// A host as a program writes it, as JSON. An IPv6 address is in brackets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostToJudge {
    network: Network,
    host: Text,
    port: u16,
}

pub fn report(question: &[u8]) -> Result<String, Refusal> {
    let question: HostToJudge = reader::from_slice(question).map_err(PlanError::Json)?;
    question.network.check()?;
    let table = HostTable::compile(&question.network)?;
    let decision = match Host::read(question.host.as_bytes()) {
        Some(Host::Name(name)) => table.judge_name(&name, Some(question.port)),
        Some(Host::Address(address)) => table.judge_address(address, question.port),
        None => HostDecision { action: Action::Deny, rule: None, reason: Some(ODD) },
    };
    let mut out = format!("{{\"action\":\"{}\",\"rule\":", decision.action.name());
    match decision.rule {
        Some(rule) => {
            out.push_str("{\"host\":");
            writer::string(&mut out, rule.host.as_bytes(), NonUtf8::Surrogate);
            out.push_str(",\"source\":");
            writer::string(&mut out, rule.to_string().as_bytes(), NonUtf8::Surrogate);
            out.push('}');
        }
        None => out.push_str("null"),
    }
    out.push_str(",\"reason\":");
    match decision.reason {
        Some(reason) => writer::string(&mut out, reason.as_bytes(), NonUtf8::Surrogate),
        None => out.push_str("null"),
    }
    out.push('}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: &str = include_str!("../../../schema/examples/network.json");

    fn decision_json(host: &str, port: u16) -> String {
        let network: serde_json::Value = serde_json::from_str(NETWORK).unwrap();
        let question = serde_json::json!({ "host": host, "network": network, "port": port });
        report(question.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_table_of_python_is_read_and_decides() {
        let by = |action, host, line, reason: &str| {
            format!(
                "{{\"action\":\"{action}\",\"rule\":{{\"host\":\"{host}\",\
                 \"source\":\"network.toml:{line}\"}},\"reason\":{reason}}}"
            )
        };
        assert_eq!(decision_json("10.1.2.3", 5432), by("allow", "10.0.0.0/8", 10, "null"));
        assert_eq!(decision_json("[2001:db8::1]", 443), by("allow", "2001:db8::1", 11, "null"));
        assert_eq!(
            decision_json("API.Example.com.", 443),
            by("allow", "api.example.com", 7, "null")
        );
        assert_eq!(decision_json("a.example.org", 80), by("allow", "*.example.org", 8, "null"));
        assert_eq!(
            decision_json("secret.example.org", 80),
            by("deny", "secret.example.org", 14, "\"a rule denies it\"")
        );
        assert!(
            decision_json("elsewhere.example", 443)
                .starts_with("{\"action\":\"ask\",\"rule\":null,")
        );
        assert!(
            decision_json("0x7f.1", 80).ends_with(&format!("\"rule\":null,\"reason\":\"{ODD}\"}}"))
        );
    }
}
