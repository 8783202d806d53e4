//! What the supervisor is told of the network, as it is read: by the relay
//! (`network/relay/decision_log.rs`) and by what speaks HTTP (src/paddock/http/exchange.py).

use std::net::SocketAddr;

use serde::Deserialize;

use crate::plan::present;

const UNPROXIED: &str =
    "this tier allows only the proxy in HTTP_PROXY and ALL_PROXY, and allowed_local_ports";

/// What the relay has decided, or the supervisor itself.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkDecision {
    #[allow(dead_code, reason = "there is one kind of message")]
    event: Kind,
    pub layer: Layer,
    pub action: NetworkAction,
    #[serde(deserialize_with = "present")]
    pub host: Option<String>,
    #[serde(deserialize_with = "present")]
    pub port: Option<u16>,
    #[serde(deserialize_with = "present")]
    pub address: Option<String>,
    /// Where the rule stands that decided.
    #[serde(deserialize_with = "present")]
    pub rule: Option<String>,
    #[serde(deserialize_with = "present")]
    pub reason: Option<String>,
    #[serde(deserialize_with = "present")]
    pub sent: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub received: Option<u64>,
    #[serde(deserialize_with = "present")]
    pub ms: Option<u64>,
    /// Whose connection it was.
    #[serde(deserialize_with = "present")]
    pub pid: Option<u32>,
    #[serde(deserialize_with = "present")]
    pub exe: Option<String>,
    /// Who was asked, and how long that took.
    #[serde(deserialize_with = "present")]
    pub by: Option<String>,
    #[serde(deserialize_with = "present")]
    pub asked_ms: Option<u64>,
    /// Of a request that was read as HTTP; the relay does not say it.
    #[serde(default)]
    pub request: Option<Box<Spoken>>,
}

/// A request of HTTP, as far as it is told.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spoken {
    #[serde(deserialize_with = "present")]
    pub method: Option<String>,
    /// Without its query.
    #[serde(deserialize_with = "present")]
    pub path: Option<String>,
    /// What was answered; None: nothing.
    #[serde(deserialize_with = "present")]
    pub status: Option<u16>,
    #[serde(deserialize_with = "present")]
    pub route: Option<String>,
    /// What would allow it.
    #[serde(deserialize_with = "present")]
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Network,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Name,
    Connect,
    Request,
    /// A connection to a published port.
    Publish,
}

impl Layer {
    pub fn name(self) -> &'static str {
        match self {
            Layer::Name => "name",
            Layer::Connect => "connect",
            Layer::Request => "request",
            Layer::Publish => "publish",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkAction {
    Allow,
    Deny,
    /// It was allowed, and could not be reached.
    Fail,
}

impl NetworkAction {
    pub fn name(self) -> &'static str {
        match self {
            NetworkAction::Allow => "allow",
            NetworkAction::Deny => "deny",
            NetworkAction::Fail => "fail",
        }
    }
}

impl NetworkDecision {
    /// Who comes to a published port before anybody listens there was denied nothing.
    pub fn is_denial(&self) -> bool {
        self.action == NetworkAction::Deny && self.layer != Layer::Publish
    }

    /// A connection that a program tried to make itself, where only the proxy does.
    pub fn unproxied(target: SocketAddr) -> NetworkDecision {
        NetworkDecision {
            event: Kind::Network,
            layer: Layer::Connect,
            action: NetworkAction::Deny,
            host: None,
            port: Some(target.port()),
            address: Some(target.ip().to_string()),
            rule: None,
            reason: Some(UNPROXIED.to_owned()),
            sent: None,
            received: None,
            ms: None,
            pid: None,
            exe: None,
            by: None,
            asked_ms: None,
            request: None,
        }
    }

    pub fn host(&self) -> Option<&str> {
        self.host.as_deref().or(self.address.as_deref())
    }

    /// `host:port`, as the option takes it that would allow it. None: it is about nobody.
    pub fn place(&self) -> Option<String> {
        let host = self.host()?;
        Some(match self.port {
            Some(port) if host.contains(':') => format!("[{host}]:{port}"),
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::plan::wire::reader;

    pub const MESSAGE: &str = "{\"action\":\"deny\",\"address\":null,\"event\":\"network\",\"host\":\"example.com\",\"layer\":\"connect\",\
                           \"asked_ms\":null,\"by\":null,\"exe\":null,\"pid\":null,\"ms\":null,\"port\":443,\"reason\":\"no rule allows it\",\"received\":null,\"rule\":null,\"sent\":null}";

    #[test]
    fn a_message_has_every_field_and_no_other() {
        let wrong = |old: &str, new: &str| {
            assert!(MESSAGE.contains(old), "{old}");
            reader::from_slice::<NetworkDecision>(MESSAGE.replace(old, new).as_bytes()).is_err()
        };
        assert!(wrong("\"sent\":null", "\"sent\":-1"));
        assert!(wrong(",\"sent\":null", ""));
        assert!(wrong("\"sent\":null", "\"sent\":null,\"uid\":1"));
        assert!(wrong("\"connect\"", "\"exec\""));
        assert!(wrong("\"event\":\"network\"", "\"event\":\"session.end\""));
        assert!(wrong("\"deny\"", "\"ask\""));
        assert!(wrong("443", "65536"));
    }
}
