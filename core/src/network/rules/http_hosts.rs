//! The hosts that are not dialled for whoever calls them: the Python half speaks HTTP for them.
//! Compiled beside the table.
//!
//! A route has a name of its own, below [`DOMAIN`]. An inspected host is called by its real name.
//! Only the Python half may call the upstream of a route because it is one; and what a route lets
//! be asked of its upstream nobody gets around by calling that himself.

use std::collections::HashMap;
use std::net::IpAddr;

use super::address::{self, Block, Kind as AddressKind};
use super::host_table::TableError;
use crate::network::relay::guarded_addresses::Guarded;
use crate::plan;
use crate::plan::host_name::{Host, Name};
use crate::plan::wire::bytes::Text;

pub const DOMAIN: &[u8] = b"paddock.internal";

/// How a connection is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Route,
    Inspect,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Route => "route",
            Kind::Inspect => "inspect",
        }
    }
}

/// Rules are indices of the table.
#[derive(Debug, Default)]
pub struct HttpHosts {
    routes: HashMap<Name, usize>,
    inspected: HashMap<Name, usize>,
    /// Upstreams that are also called by their own names, at these ports and no others.
    opened: HashMap<Name, Vec<(u16, usize)>>,
    /// Upstreams of which not everything may be asked.
    guarded: HashMap<Host, usize>,
    upstreams: HashMap<(Host, u16), Upstream>,
    /// Upstreams of which not everything may be asked, by whatever address.
    guards: Vec<Guarded>,
}

/// Where the upstream of a route may be.
#[derive(Debug, Default)]
struct Upstream {
    blocks: Vec<Block>,
    /// A route to it names no addresses: it may be wherever a host may be.
    is_anywhere: bool,
}

/// What the table says of a name before it looks at what is allowed.
pub enum NameRoute {
    Open(usize),
    /// By the rule, if it is one that stands in the way.
    Shut(Option<usize>, &'static str),
    Ordinary,
}

const NO_ROUTE: &str = "no route has this name";
const GUARDED: &str = "only a route with endpoint rules leads to this host";
const OTHER_SERVICE: &str = "the route is for another port of this host";
const NO_UPSTREAM: &str = "no route has this upstream";
pub const NEVER: &str = "cloud metadata addresses are always denied";

impl HttpHosts {
    /// `rule` takes down where one stands, and by what name it is known.
    pub fn compile(
        http: &plan::Http,
        mut rule: impl FnMut(&[u8], &Text) -> usize,
    ) -> Result<HttpHosts, TableError> {
        let mut ways = HttpHosts::default();
        for route in &http.routes {
            let odd = |host: &Text| TableError::Host {
                host: host.clone(),
                place: route.source.to_string(),
            };
            let own = [route.name.as_bytes(), b".", DOMAIN].concat();
            let index = rule(&own, &route.source);
            ways.routes.insert(Name::read(&own).ok_or_else(|| odd(&route.name))?, index);
            let plan::Upstream { host, port, .. } = &route.upstream;
            let upstream = read(host.as_bytes()).ok_or_else(|| odd(host))?;
            if route.endpoints.is_some() {
                let (host, is_shared) = (upstream.clone(), route.shared_addresses);
                ways.guards.push(Guarded { host, port: *port, is_shared });
            }
            match &upstream {
                Host::Name(name) if route.inspect => {
                    ways.opened.entry(name.clone()).or_default().push((*port, index));
                }
                _ if route.endpoints.is_some() => {
                    drop(ways.guarded.insert(upstream.clone(), index))
                }
                _ => {}
            }
            let listed = ways.upstreams.entry((upstream, *port)).or_default();
            listed.is_anywhere |= route.upstream_addresses.is_empty();
            for address in &route.upstream_addresses {
                listed.blocks.push(Block::read(address.as_bytes()).ok_or_else(|| odd(address))?);
            }
        }
        for inspected in &http.inspect {
            let odd = || TableError::Host {
                host: inspected.host.clone(),
                place: inspected.source.to_string(),
            };
            let name = Name::read(inspected.host.as_bytes()).ok_or_else(odd)?;
            ways.inspected.insert(name, rule(inspected.host.as_bytes(), &inspected.source));
        }
        Ok(ways)
    }

    /// `port` None: is there any at which it is reached?
    pub fn to(&self, name: &Name, port: Option<u16>) -> NameRoute {
        if name.as_bytes() == DOMAIN || name.parents().any(|parent| parent == DOMAIN) {
            return self
                .routes
                .get(name)
                .map_or(NameRoute::Shut(None, NO_ROUTE), |rule| NameRoute::Open(*rule));
        }
        if let Some(ports) = self.opened.get(name) {
            let open = ports.iter().find(|(open, _)| port.is_none_or(|port| port == *open));
            let first = ports.first().map(|(_, rule)| *rule);
            return open
                .map_or(NameRoute::Shut(first, OTHER_SERVICE), |(_, rule)| NameRoute::Open(*rule));
        }
        match self.guarded.get(&Host::Name(name.clone())) {
            Some(rule) => NameRoute::Shut(Some(*rule), GUARDED),
            None => NameRoute::Ordinary,
        }
    }

    /// Is this the address of an upstream that has to be asked by its route?
    pub fn guards(&self, address: IpAddr) -> Option<(usize, &'static str)> {
        self.guarded.get(&Host::Address(address.to_canonical())).map(|rule| (*rule, GUARDED))
    }

    pub fn guarded(&self) -> &[Guarded] {
        &self.guards
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
    pub fn hands_over(&self, name: &Name) -> Option<Kind> {
        if self.routes.contains_key(name) {
            return Some(Kind::Route);
        }
        (self.opened.contains_key(name) || self.inspected.contains_key(name))
            .then_some(Kind::Inspect)
    }

    /// May the Python half call this host? `allows`: what the table says of a name and this port to
    /// everybody.
    pub fn serves(
        &self,
        host: &Host,
        port: u16,
        allows: impl FnOnce(&Name) -> bool,
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
pub fn read(host: &[u8]) -> Option<Host> {
    let address = std::str::from_utf8(host).ok().and_then(|text| text.parse::<IpAddr>().ok());
    match address {
        Some(address) => Some(Host::Address(address.to_canonical())),
        None => Name::read(host).map(Host::Name),
    }
}

/// An upstream that was written as an address, or as this machine, may be that; it is as it was
/// written. None: its name leads somewhere.
pub fn is_as_written(host: &Host, address: IpAddr) -> Option<Result<(), &'static str>> {
    let kind = address::kind(address);
    let written = match host {
        Host::Address(_) => true,
        Host::Name(name) => name.as_bytes() == b"localhost" && kind == AddressKind::Loopback,
    };
    written.then_some(if kind == AddressKind::Metadata { Err(NEVER) } else { Ok(()) })
}
