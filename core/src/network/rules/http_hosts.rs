//! The hosts that are not dialled for whoever calls them: the Python half speaks HTTP for them.
//! Compiled beside the table.
//!
//! A route has a name of its own, below [`ROUTE_DOMAIN`]. An inspected host is called by its real name.
//! Only the Python half may call the upstream of a route because it is one; and what a route lets
//! be asked of its upstream nobody gets around by calling that himself.

use std::collections::HashMap;
use std::net::IpAddr;

use super::address::{self, AddressBlock, AddressKind};
use super::host_table::TableError;
use crate::network::relay::guarded_addresses::GuardedUpstream;
use crate::plan;
use crate::plan::host_name::{Host, HostName};
use crate::plan::wire::bytes::Text;

pub const ROUTE_DOMAIN: &[u8] = b"paddock.internal";

/// How a connection is handed over.
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

/// Rules are indices of the table.
#[derive(Debug, Default)]
pub struct HttpHosts {
    routes: HashMap<HostName, usize>,
    inspected: HashMap<HostName, usize>,
    /// Upstreams that are also called by their own names, at these ports and no others.
    opened: HashMap<HostName, Vec<(u16, usize)>>,
    /// Upstreams of which not everything may be asked.
    guarded: HashMap<Host, usize>,
    upstreams: HashMap<(Host, u16), UpstreamAddresses>,
    /// Upstreams of which not everything may be asked, by whatever address.
    guarded_upstreams: Vec<GuardedUpstream>,
}

/// Where the upstream of a route may be.
#[derive(Debug, Default)]
struct UpstreamAddresses {
    blocks: Vec<AddressBlock>,
    /// A route to it names no addresses: it may be wherever a host may be.
    is_anywhere: bool,
}

/// What the table says of a name before it looks at what is allowed.
pub enum NameRoute {
    Allowed(usize),
    /// By the rule, if it is one that stands in the way.
    Denied(Option<usize>, &'static str),
    NotRouted,
}

const NO_ROUTE: &str = "no route has this name";
const GUARDED_UPSTREAM: &str = "a route with endpoint rules leads there, and no other way does";
const OTHER_SERVICE: &str = "the route is about another port of this host";
const NO_UPSTREAM: &str = "it is the upstream of no route";
pub const METADATA_DENIED: &str = "where clouds hand out credentials is never reached";

impl HttpHosts {
    /// `rule` takes down where one stands, and by what name it is known.
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

    /// `port` None: is there any at which it is reached?
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

    /// Is this the address of an upstream that has to be asked by its route?
    pub fn guarded_by(&self, address: IpAddr) -> Option<(usize, &'static str)> {
        self.guarded
            .get(&Host::Address(address.to_canonical()))
            .map(|rule| (*rule, GUARDED_UPSTREAM))
    }

    pub fn guarded(&self) -> &[GuardedUpstream] {
        &self.guarded_upstreams
    }

    /// Does a route lead there?
    pub fn is_upstream(&self, host: &Host, port: u16) -> bool {
        self.upstreams.contains_key(&(host.clone(), port))
    }

    /// Do the routes to an upstream name this address? None: they leave it to what is true of every
    /// host.
    pub fn lists(&self, host: &Host, port: u16, address: IpAddr) -> Option<bool> {
        let upstream = self.upstreams.get(&(host.clone(), port))?;
        let is_listed = upstream.blocks.iter().any(|block| block.contains(address));
        (is_listed || !upstream.is_anywhere).then_some(is_listed)
    }

    /// Is a connection to this name, which was allowed, handed over?
    pub fn handover_kind(&self, name: &HostName) -> Option<HandoverKind> {
        if self.routes.contains_key(name) {
            return Some(HandoverKind::Route);
        }
        (self.opened.contains_key(name) || self.inspected.contains_key(name))
            .then_some(HandoverKind::Inspect)
    }

    /// May the Python half call this host? `allows`: what the table says of a name and this port to
    /// everybody.
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

/// As a policy writes the host of an upstream: an address of IPv6 has no brackets.
pub fn read_host(host: &[u8]) -> Option<Host> {
    let address = std::str::from_utf8(host).ok().and_then(|text| text.parse::<IpAddr>().ok());
    match address {
        Some(address) => Some(Host::Address(address.to_canonical())),
        None => HostName::read(host).map(Host::Name),
    }
}

/// An upstream that was written as an address, or as this machine, may be that; it is as it was
/// written. None: its name leads somewhere.
pub fn judge_written_address(host: &Host, address: IpAddr) -> Option<Result<(), &'static str>> {
    let kind = address::kind(address);
    let written = match host {
        Host::Address(_) => true,
        Host::Name(name) => name.as_bytes() == b"localhost" && kind == AddressKind::Loopback,
    };
    written.then_some(if kind == AddressKind::Metadata { Err(METADATA_DENIED) } else { Ok(()) })
}
