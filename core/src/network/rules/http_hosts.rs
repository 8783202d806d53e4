//! Hosts for which the HTTP helper answers, instead of a direct connection. Compiled with the host
//! table.
//!
//! A route has its own name below [`ROUTE_DOMAIN`]. An inspected host keeps its real name. Only the
//! HTTP helper may connect to a host because it is the upstream of a route. A direct connection
//! must not bypass the endpoint rules of a route.

use std::collections::HashMap;
use std::net::IpAddr;

use super::address::{self, AddressBlock, AddressKind};
use super::host_table::TableError;
use crate::network::relay::guarded_addresses::GuardedUpstream;
use crate::plan;
use crate::plan::host_name::{Host, HostName};
use crate::plan::wire::bytes::Text;

pub const ROUTE_DOMAIN: &[u8] = b"paddock.internal";

/// Why a connection is handed to the HTTP helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverKind {
    Route,
    Inspect,
}

impl HandoverKind {
    pub fn name(self) -> &'static str {
        match self {
            HandoverKind::Route => "route",
            HandoverKind::Inspect => "inspect",
        }
    }
}

/// Rules are indexes in the host table.
#[derive(Debug, Default)]
pub struct HttpHosts {
    routes: HashMap<HostName, usize>,
    inspected: HashMap<HostName, usize>,
    /// Upstreams that also use the route under their own names, only at these ports.
    opened: HashMap<HostName, Vec<(u16, usize)>>,
    /// Hosts of upstreams with endpoint rules.
    guarded: HashMap<Host, usize>,
    upstreams: HashMap<(Host, u16), UpstreamAddresses>,
    /// Upstreams with endpoint rules, for the check of addresses.
    guarded_upstreams: Vec<GuardedUpstream>,
}

/// The addresses of a route's upstream.
#[derive(Debug, Default)]
struct UpstreamAddresses {
    blocks: Vec<AddressBlock>,
    /// A route lists no addresses: the rules for other hosts apply.
    is_anywhere: bool,
}

/// The decision about a name before the allowed hosts are checked.
pub enum NameRoute {
    Allowed(usize),
    /// Denied, by a rule if there is one.
    Denied(Option<usize>, &'static str),
    NotRouted,
}

const NO_ROUTE: &str = "no route has this name";
const GUARDED_UPSTREAM: &str = "only a route with endpoint rules leads to this host";
const OTHER_SERVICE: &str = "the route is for another port of this host";
const NO_UPSTREAM: &str = "no route has this upstream";
pub const METADATA_DENIED: &str = "cloud metadata addresses are always denied";

impl HttpHosts {
    /// `rule` stores a rule by its host and source, and returns its index.
    pub fn compile(
        http: &plan::HttpPlan,
        mut rule: impl FnMut(&[u8], &Text) -> usize,
    ) -> Result<HttpHosts, TableError> {
        let mut hosts = HttpHosts::default();
        for route in &http.routes {
            let odd = |host: &Text| TableError::Host {
                host: host.clone(),
                place: route.source.to_string(),
            };
            let own = [route.name.as_bytes(), b".", ROUTE_DOMAIN].concat();
            let index = rule(&own, &route.source);
            hosts.routes.insert(HostName::read(&own).ok_or_else(|| odd(&route.name))?, index);
            let plan::RouteUpstream { host, port, .. } = &route.upstream;
            let upstream = read_host(host.as_bytes()).ok_or_else(|| odd(host))?;
            if route.endpoints.is_some() {
                let (host, is_shared) = (upstream.clone(), route.shared_addresses);
                hosts.guarded_upstreams.push(GuardedUpstream { host, port: *port, is_shared });
            }
            match &upstream {
                Host::Name(name) if route.inspect => {
                    hosts.opened.entry(name.clone()).or_default().push((*port, index));
                }
                _ if route.endpoints.is_some() => {
                    hosts.guarded.insert(upstream.clone(), index);
                }
                _ => {}
            }
            let listed = hosts.upstreams.entry((upstream, *port)).or_default();
            listed.is_anywhere |= route.upstream_addresses.is_empty();
            for address in &route.upstream_addresses {
                listed
                    .blocks
                    .push(AddressBlock::read(address.as_bytes()).ok_or_else(|| odd(address))?);
            }
        }
        for inspected in &http.inspect {
            let odd = || TableError::Host {
                host: inspected.host.clone(),
                place: inspected.source.to_string(),
            };
            let name = HostName::read(inspected.host.as_bytes()).ok_or_else(odd)?;
            hosts.inspected.insert(name, rule(inspected.host.as_bytes(), &inspected.source));
        }
        Ok(hosts)
    }

    /// The route of a name. `port` None: at any port.
    pub fn route_of(&self, name: &HostName, port: Option<u16>) -> NameRoute {
        if name.as_bytes() == ROUTE_DOMAIN || name.parents().any(|parent| parent == ROUTE_DOMAIN) {
            return self
                .routes
                .get(name)
                .map_or(NameRoute::Denied(None, NO_ROUTE), |rule| NameRoute::Allowed(*rule));
        }
        if let Some(ports) = self.opened.get(name) {
            let open = ports.iter().find(|(open, _)| port.is_none_or(|port| port == *open));
            let first = ports.first().map(|(_, rule)| *rule);
            return open.map_or(NameRoute::Denied(first, OTHER_SERVICE), |(_, rule)| {
                NameRoute::Allowed(*rule)
            });
        }
        match self.guarded.get(&Host::Name(name.clone())) {
            Some(rule) => NameRoute::Denied(Some(*rule), GUARDED_UPSTREAM),
            None => NameRoute::NotRouted,
        }
    }

    /// The rule and reason if this is the address of an upstream with endpoint rules.
    pub fn guarded_by(&self, address: IpAddr) -> Option<(usize, &'static str)> {
        self.guarded
            .get(&Host::Address(address.to_canonical()))
            .map(|rule| (*rule, GUARDED_UPSTREAM))
    }

    pub fn guarded(&self) -> &[GuardedUpstream] {
        &self.guarded_upstreams
    }

    /// True if it is the upstream of a route.
    pub fn is_upstream(&self, host: &Host, port: u16) -> bool {
        self.upstreams.contains_key(&(host.clone(), port))
    }

    /// True if a route to this upstream lists the address. None: the rules for other hosts apply.
    pub fn lists(&self, host: &Host, port: u16, address: IpAddr) -> Option<bool> {
        let upstream = self.upstreams.get(&(host.clone(), port))?;
        let is_listed = upstream.blocks.iter().any(|block| block.contains(address));
        (is_listed || !upstream.is_anywhere).then_some(is_listed)
    }

    /// How a connection to this allowed name is handed over. None: it is not.
    pub fn handover_kind(&self, name: &HostName) -> Option<HandoverKind> {
        if self.routes.contains_key(name) {
            return Some(HandoverKind::Route);
        }
        (self.opened.contains_key(name) || self.inspected.contains_key(name))
            .then_some(HandoverKind::Inspect)
    }

    /// Decides whether the HTTP helper may connect to this host. `allows`: the decision of the host
    /// table about a name.
    pub fn may_dial(
        &self,
        host: &Host,
        port: u16,
        allows: impl FnOnce(&HostName) -> bool,
    ) -> Result<(), &'static str> {
        let is_upstream = self.is_upstream(host, port);
        let is_inspected = || match host {
            Host::Name(name) => self.inspected.contains_key(name) && allows(name),
            Host::Address(_) => false,
        };
        if is_upstream || is_inspected() { Ok(()) } else { Err(NO_UPSTREAM) }
    }
}

/// Reads the host of an upstream as a policy writes it: an IPv6 address has no brackets.
pub fn read_host(host: &[u8]) -> Option<Host> {
    let address = std::str::from_utf8(host).ok().and_then(|text| text.parse::<IpAddr>().ok());
    match address {
        Some(address) => Some(Host::Address(address.to_canonical())),
        None => HostName::read(host).map(Host::Name),
    }
}

/// Allows an upstream that the policy writes as an address or as localhost. None: its name must be
/// resolved.
pub fn judge_written_address(host: &Host, address: IpAddr) -> Option<Result<(), &'static str>> {
    let kind = address::kind(address);
    let written = match host {
        Host::Address(_) => true,
        Host::Name(name) => name.as_bytes() == b"localhost" && kind == AddressKind::Loopback,
    };
    written.then_some(if kind == AddressKind::Metadata { Err(METADATA_DENIED) } else { Ok(()) })
}
