//! Network decisions that the supervisor receives: from the relay (`network/relay/decision_log.rs`)
//! and from the HTTP helper (src/paddock/http/exchange.py).

use std::net::SocketAddr;

use serde::Deserialize;

use crate::plan::present;

const UNPROXIED: &str =
    "this tier allows only the proxy in HTTP_PROXY and ALL_PROXY, and allowed_local_ports";

/// A decision of the relay, the HTTP helper or the supervisor.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkDecision {
    #[allow(dead_code, reason = "there is one kind of message")]
    event: NetworkEventTag,
    pub layer: NetworkLayer,
    pub action: NetworkAction,
    #[serde(deserialize_with = "present")]
    pub host: Option<String>,
    #[serde(deserialize_with = "present")]
    pub port: Option<u16>,
    #[serde(deserialize_with = "present")]
    pub address: Option<String>,
    /// Where the deciding rule stands.
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
    /// The process that owns the connection.
    #[serde(deserialize_with = "present")]
    pub pid: Option<u32>,
    #[serde(deserialize_with = "present")]
    pub exe: Option<String>,
    /// The approver, and how long the answer took.
    #[serde(deserialize_with = "present")]
    pub by: Option<String>,
    #[serde(deserialize_with = "present")]
    pub asked_ms: Option<u64>,
    /// The HTTP request; only the HTTP helper sends it.
    #[serde(default)]
    pub request: Option<Box<HttpExchange>>,
}

/// The reported part of an HTTP request.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpExchange {
    #[serde(deserialize_with = "present")]
    pub method: Option<String>,
    /// The path without its query.
    #[serde(deserialize_with = "present")]
    pub path: Option<String>,
    /// The status of the response. None: there was no response.
    #[serde(deserialize_with = "present")]
    pub status: Option<u16>,
    #[serde(deserialize_with = "present")]
    pub route: Option<String>,
    /// The option that would allow it.
    #[serde(deserialize_with = "present")]
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NetworkEventTag {
    Network,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkLayer {
    Name,
    Connect,
    Request,
    /// A connection to a published port.
    Publish,
}

impl NetworkLayer {
    pub fn name(self) -> &'static str {
        match self {
            NetworkLayer::Name => "name",
            NetworkLayer::Connect => "connect",
            NetworkLayer::Request => "request",
            NetworkLayer::Publish => "publish",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkAction {
    Allow,
    Deny,
    /// Allowed, but not reachable.
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
    /// A refused connection to a published port without a listener is not a denial.
    pub fn is_denial(&self) -> bool {
        self.action == NetworkAction::Deny && self.layer != NetworkLayer::Publish
    }

    /// A direct connection where only the proxy may connect.
    pub fn unproxied(target: SocketAddr) -> NetworkDecision {
        NetworkDecision {
            event: NetworkEventTag::Network,
            layer: NetworkLayer::Connect,
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

    /// `host:port`, in the form of the option that would allow it. None: the decision names no
    /// host.
    pub fn host_and_port(&self) -> Option<String> {
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

    pub const MESSAGE: &str = "{\"action\":\"deny\",\"address\":null,\"event\":\"network\",\
        \"host\":\"example.com\",\"layer\":\"connect\",\
                           \"asked_ms\":null,\"by\":null,\"exe\":null,\"pid\":null,\"ms\":null,\
                           \"port\":443,\"reason\":\"no rule allows it\",\"received\":null,\
                           \"rule\":null,\"sent\":null}";

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
