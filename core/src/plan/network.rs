//! The network of a plan: which hosts may be reached. network/rules/host_table.rs says what the
//! rules mean.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::gate::Action;
use super::wire::bytes::Text;
use super::{Plan, PlanError, Tier, present};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub mode: NetworkMode,
    /// The action for hosts without a rule.
    pub default: Action,
    /// The source of that default, for the approver.
    #[serde(deserialize_with = "present")]
    pub default_source: Option<Text>,
    /// The time limit of a person's answer.
    pub ask_timeout_s: u32,
    /// Denied hosts; they are checked first.
    pub denied: Vec<HostRules>,
    pub allowed: Vec<HostRules>,
    /// Hosts that a person approved permanently. These rules only answer questions.
    pub approved: Vec<HostRules>,
    /// Ports on the host's 127.0.0.1 and ::1 that the command reaches at the same port inside.
    pub local_ports: Vec<u16>,
    pub published: Vec<PublishedPort>,
    /// None: no route and no inspected host.
    #[serde(deserialize_with = "present")]
    pub http: Option<HttpPlan>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// No network. Full tier: an empty network namespace. Landlock tier: no internet sockets.
    None,
    Filtered,
}

/// The rules of one policy file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRules {
    pub source: Text,
    pub hosts: Vec<HostRule>,
}

/// A host (a name, `*.` and a name, `*`, an address or a block of addresses), a port and a line
/// number.
#[derive(Debug, Deserialize)]
pub struct HostRule(pub Text, pub Option<u16>, pub Option<u32>);

/// A port of the command that is reachable on the host's 127.0.0.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedPort {
    pub inside: u16,
    pub host: u16,
}

/// What the HTTP helper serves (src/paddock/http). It contains no secret, only where secrets are
/// stored.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpPlan {
    pub routes: Vec<Route>,
    pub inspect: Vec<InspectedHost>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The route's name below paddock.internal.
    pub name: Text,
    pub upstream: RouteUpstream,
    #[serde(deserialize_with = "present")]
    pub credential: Option<Credential>,
    #[serde(deserialize_with = "present")]
    pub inject_mode: Option<Text>,
    #[serde(deserialize_with = "present", rename = "inject_name")]
    _inject_name: Option<Text>,
    /// None: all endpoints are allowed.
    #[serde(deserialize_with = "present")]
    pub endpoints: Option<Vec<Endpoint>>,
    /// True: the upstream's own name uses this route, too.
    pub inspect: bool,
    #[serde(rename = "body_methods")]
    _body_methods: Vec<Text>,
    /// Addresses and blocks that the upstream's name may resolve to. Empty: every public address.
    pub upstream_addresses: Vec<Text>,
    /// True: other names may resolve to the upstream's addresses although the route has endpoints.
    pub shared_addresses: bool,
    pub source: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteUpstream {
    #[serde(rename = "scheme")]
    _scheme: Scheme,
    /// An IPv6 address has no brackets here.
    pub host: Text,
    pub port: u16,
    #[serde(rename = "base")]
    _base: Text,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Scheme {
    Http,
    Https,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    pub kind: CredentialKind,
    pub place: Text,
    #[serde(rename = "source")]
    _source: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialKind {
    Env,
    File,
    Keyring,
    Command,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    #[serde(rename = "method")]
    _method: Text,
    #[serde(rename = "path")]
    _path: Text,
    #[serde(rename = "source")]
    _source: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InspectedHost {
    pub host: Text,
    pub source: Text,
}

impl Network {
    /// Checks that the other parts of the plan allow this network.
    pub fn check_in(&self, plan: &Plan) -> Result<(), PlanError> {
        if plan.container.is_some() {
            return Err(PlanError::Container("a second network"));
        }
        match plan.tier {
            Tier::Full if plan.namespaces.is_none() || plan.files.is_none() => {
                return Err(PlanError::Tier("full", "a network without namespaces"));
            }
            Tier::Landlock if plan.landlock.is_none() || plan.seccomp.is_none() => {
                return Err(PlanError::Tier("landlock", "a network without Landlock and seccomp"));
            }
            Tier::Landlock if self.default == Action::Ask => {
                return Err(PlanError::Tier("landlock", "questions about hosts"));
            }
            Tier::Landlock if !self.published.is_empty() => {
                return Err(PlanError::Tier("landlock", "ports to publish"));
            }
            Tier::Landlock if self.http.is_some() => {
                return Err(PlanError::Tier("landlock", "routes or inspected hosts"));
            }
            _ => {}
        }
        self.check()
    }

    /// The host table checks the hosts when it compiles them.
    pub fn check(&self) -> Result<(), PlanError> {
        let named = self
            .denied
            .iter()
            .chain(&self.allowed)
            .chain(&self.approved)
            .flat_map(|group| &group.hosts);
        let ports = named.filter_map(|rule| rule.1).chain(self.local_ports.iter().copied());
        let upstreams =
            self.http.iter().flat_map(|http| &http.routes).map(|route| route.upstream.port);
        let ports = ports.chain(upstreams);
        let shown = self.published.iter().flat_map(|one| [one.inside, one.host]);
        if ports.chain(shown).any(|port| port == 0) {
            return Err(PlanError::Network("port 0"));
        }
        let hosts: BTreeSet<u16> = self.published.iter().map(|one| one.host).collect();
        if hosts.len() != self.published.len() {
            return Err(PlanError::Network("one port of the host published twice"));
        }
        if self.ask_timeout_s == 0 {
            return Err(PlanError::Network("no time to answer"));
        }
        let open = self.default != Action::Deny
            || !self.allowed.is_empty()
            || !self.local_ports.is_empty()
            || self.http.is_some();
        if self.mode == NetworkMode::None && open {
            return Err(PlanError::Network("hosts or ports although mode is \"none\""));
        }
        Ok(())
    }
}

/// Which sockets the supervisor connects for the command, because no namespace confines them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// None: the network is not restricted, or a namespace restricts it.
    pub network: Option<NetworkMode>,
    /// Unix sockets connect only to socket files that are granted one by one.
    pub unix_by_path: bool,
}

impl SocketAccess {
    pub fn is_enforced(self) -> bool {
        self.network.is_some() || self.unix_by_path
    }
}
