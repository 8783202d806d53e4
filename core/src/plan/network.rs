//! The network of a plan: which hosts may be reached. What the rules mean is in
//! network/rules/host_table.rs.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::gate::Action;
use super::wire::bytes::Text;
use super::{Plan, PlanError, Tier, present};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub mode: Mode,
    /// For hosts that no rule is about.
    pub default: Action,
    /// Where that is said, for whoever is asked.
    #[serde(deserialize_with = "present")]
    pub default_source: Option<Text>,
    /// How long a person may take.
    pub ask_timeout_s: u32,
    /// They are looked at first.
    pub denied: Vec<Hosts>,
    pub allowed: Vec<Hosts>,
    /// What a person approved for good: they answer questions, and nothing else.
    pub approved: Vec<Hosts>,
    /// Of the host's 127.0.0.1 and ::1, reached at the same port inside.
    pub local_ports: Vec<u16>,
    pub published: Vec<Published>,
    /// None: nothing has to be read as HTTP by the Python half.
    #[serde(deserialize_with = "present")]
    pub http: Option<Http>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A network of its own in which nobody else is; in the landlock tier, no sockets for one.
    None,
    Filtered,
}

/// Rules that stand in one file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    pub source: Text,
    pub hosts: Vec<HostRule>,
}

/// A name, `*.` and a name, `*`, an address or a block of addresses; a port; a line.
#[derive(Debug, Deserialize)]
pub struct HostRule(pub Text, pub Option<u16>, pub Option<u32>);

/// A port inside that the host's 127.0.0.1 shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub inside: u16,
    pub host: u16,
}

/// What the Python half serves (src/paddock/http). No secret is in it, only where secrets lie.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub routes: Vec<Route>,
    pub inspect: Vec<Inspected>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// It is reached at this name below paddock.internal.
    pub name: Text,
    pub upstream: Upstream,
    #[serde(deserialize_with = "present")]
    pub credential: Option<Credential>,
    #[serde(deserialize_with = "present")]
    pub inject_mode: Option<Text>,
    #[serde(deserialize_with = "present", rename = "inject_name")]
    _inject_name: Option<Text>,
    /// None: every endpoint.
    #[serde(deserialize_with = "present")]
    pub endpoints: Option<Vec<Endpoint>>,
    /// The upstream's own name leads to the same.
    pub inspect: bool,
    #[serde(rename = "body_methods")]
    _body_methods: Vec<Text>,
    /// Addresses and blocks that the upstream's name may lead to. Empty: every public address.
    pub upstream_addresses: Vec<Text>,
    /// Other names may lead to the addresses of this upstream, although it has endpoints.
    pub shared_addresses: bool,
    pub source: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upstream {
    #[serde(rename = "scheme")]
    _scheme: Scheme,
    /// An address is without brackets.
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
pub struct Inspected {
    pub host: Text,
    pub source: Text,
}

impl Network {
    /// Can a plan with these other parts have it?
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

    /// The hosts are checked where they are compiled.
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
        if self.mode == Mode::None && open {
            return Err(PlanError::Network("hosts or ports although mode is \"none\""));
        }
        Ok(())
    }
}

/// Where sockets may lead that no namespace keeps in, and the supervisor connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// None: it is not fenced, or a namespace sees to it.
    pub network: Option<Mode>,
    /// Unix sockets lead to files that are granted one by one.
    pub unix_by_path: bool,
}

impl SocketAccess {
    pub fn is_held(self) -> bool {
        self.network.is_some() || self.unix_by_path
    }
}
