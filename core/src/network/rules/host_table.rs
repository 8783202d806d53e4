//! The rules about hosts, compiled: a name or an address in, a verdict out. A lookup costs the same
//! however many rules there are.
//!
//! First what is never reached, then what is denied, then what is allowed, then the default. The
//! default and `*` are about names: an address is reached only if a rule lists it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use super::address::{self, Block, Kind};
use super::http_hosts::{self, HttpHosts, Kind as Handed, NEVER, NameRoute};
use crate::network::relay::guarded_addresses::Guarded;
use crate::plan::host_name::{Host, Name};
use crate::plan::wire::bytes::Text;
use crate::plan::{self, Action};

/// Where clouds hand out credentials.
const METADATA: [&[u8]; 5] = [
    b"metadata.google.internal",
    b"metadata.azure.internal",
    b"metadata",
    b"instance-data",
    b"instance-data.ec2.internal",
];

/// What a rule without a port allows.
const USUAL: [u16; 2] = [80, 443];

const DENIED: &str = "a rule denies it";
const DENIED_ADDRESS: &str = "a rule denies the address of the name";
pub const NOT_ALLOWED: &str = "no rule allows it";
const OTHER_PORTS: &str = "a rule allows it only on other ports";
const ASKED: &str = "no rule matches, so Paddock asks";
const NOT_LISTED: &str = "no rule lists this address";

/// Would a rule change it?
pub fn is_unruled(reason: &str) -> bool {
    [NOT_ALLOWED, OTHER_PORTS, NOT_LISTED].contains(&reason)
}

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("{place}: \"{host}\" is not a host, a pattern of hosts or a block of addresses")]
    Host { host: Text, place: String },
}

/// Whatever is not `Allow` is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDecision<'a> {
    pub action: Action,
    /// The one that decided.
    pub rule: Option<Rule<'a>>,
    /// Why not.
    pub reason: Option<&'static str>,
}

/// One that a person wrote. Displayed as the place where it stands, `file:line`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    pub host: &'a Text,
    file: &'a Text,
    line: Option<u32>,
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => self.file.fmt(f),
        }
    }
}

#[derive(Debug)]
pub struct Table {
    denied: Side,
    allowed: Side,
    /// By a person, for good: they answer what the default asks.
    approved: Side,
    default: Action,
    ways: HttpHosts,
    rules: Vec<Written>,
    files: Vec<Text>,
}

#[derive(Debug)]
struct Written {
    host: Text,
    file: usize,
    line: Option<u32>,
}

/// The denied or the allowed.
#[derive(Debug, Default)]
struct Side {
    every_name: Ports,
    names: HashMap<Name, Ports>,
    /// Those below a name, and not itself.
    below: HashMap<Name, Ports>,
    blocks: HashMap<Block, Ports>,
    /// The lengths that blocks have, the longest first.
    lengths: Vec<u8>,
}

/// Which rule is about which port of a host, by its index.
#[derive(Debug, Default)]
struct Ports {
    /// That names no port.
    unnamed: Option<usize>,
    named: BTreeMap<u16, usize>,
}

impl Ports {
    fn add(&mut self, port: Option<u16>, rule: usize) {
        match port {
            Some(port) => self.named.entry(port).or_insert(rule),
            None => self.unnamed.get_or_insert(rule),
        };
    }

    /// A rule that names no port is about all.
    fn any(&self, port: u16) -> Option<usize> {
        self.named.get(&port).copied().or(self.unnamed)
    }

    /// A rule that names no port is about the usual ones.
    fn usual(&self, port: u16) -> Option<usize> {
        self.named.get(&port).copied().or(self.unnamed.filter(|_| USUAL.contains(&port)))
    }

    /// Those that are allowed if this is about the allowed.
    fn each(&self) -> impl Iterator<Item = (u16, usize)> {
        let usual = self.unnamed.into_iter().flat_map(|rule| USUAL.map(|port| (port, rule)));
        self.named.iter().map(|(port, rule)| (*port, *rule)).chain(usual)
    }

    fn is_empty(&self) -> bool {
        self.unnamed.is_none() && self.named.is_empty()
    }
}

impl Side {
    /// The ports of the host that a rule names; None: it names none.
    fn ports(&mut self, host: &[u8]) -> Option<&mut Ports> {
        if host == b"*" {
            return Some(&mut self.every_name);
        }
        if let Some(parent) = host.strip_prefix(b"*.") {
            return Some(self.below.entry(Name::read(parent)?).or_default());
        }
        match Block::read(host) {
            Some(block) => Some(self.blocks.entry(block).or_default()),
            None => Some(self.names.entry(Name::read(host)?).or_default()),
        }
    }

    /// What is about a name, the nearest first.
    fn about(&self, name: &Name) -> Vec<&Ports> {
        let below = name.parents().filter_map(|parent| self.below.get(parent));
        let every = (!self.every_name.is_empty()).then_some(&self.every_name);
        self.names.get(name.as_bytes()).into_iter().chain(below).chain(every).collect()
    }

    /// The blocks with this address, the smallest first.
    fn around(&self, address: IpAddr) -> impl Iterator<Item = &Ports> {
        let blocks = self.lengths.iter().filter_map(move |length| Block::around(address, *length));
        blocks.filter_map(|block| self.blocks.get(&block))
    }
}

impl Table {
    pub fn compile(network: &plan::Network) -> Result<Table, TableError> {
        let mut table = Table {
            denied: Side::default(),
            allowed: Side::default(),
            approved: Side::default(),
            default: network.default,
            ways: HttpHosts::default(),
            rules: Vec::new(),
            files: Vec::new(),
        };
        let (denied, allowed) =
            ((&mut table.denied, &network.denied), (&mut table.allowed, &network.allowed));
        for (side, groups) in [denied, allowed, (&mut table.approved, &network.approved)] {
            // Most are names.
            side.names.reserve(groups.iter().map(|group| group.hosts.len()).sum());
            for group in groups {
                for plan::HostRule(host, port, line) in &group.hosts {
                    let written =
                        Written { host: host.clone(), file: table.files.len(), line: *line };
                    let Some(ports) = side.ports(host.as_bytes()) else {
                        let place = Rule { host, file: &group.source, line: *line }.to_string();
                        return Err(TableError::Host { host: host.clone(), place });
                    };
                    ports.add(*port, table.rules.len());
                    table.rules.push(written);
                }
                table.files.push(group.source.clone());
            }
            side.lengths = side.blocks.keys().map(Block::length).collect();
            side.lengths.sort_unstable_by(|one, other| other.cmp(one));
            side.lengths.dedup();
        }
        if let Some(http) = &network.http {
            let (rules, files) = (&mut table.rules, &mut table.files);
            table.ways = HttpHosts::compile(http, |host, source| {
                let host = Text::from_bytes(host.to_vec()).unwrap_or_else(|_| source.clone());
                rules.push(Written { host, file: files.len(), line: None });
                files.push(source.clone());
                rules.len() - 1
            })?;
        }
        Ok(table)
    }

    /// May this name be reached at this port; or, without one, at any port at all? That is what a
    /// question for a name asks.
    pub fn judge_name(&self, name: &Name, port: Option<u16>) -> HostDecision<'_> {
        if METADATA.contains(&name.as_bytes()) {
            return deny(NEVER);
        }
        let (denied, allowed) = (self.denied.about(name), self.allowed.about(name));
        let denial = |port| denied.iter().find_map(|ports| ports.any(port));
        let Some(port) = port else {
            if let Some(rule) = denied.iter().find_map(|ports| ports.unnamed) {
                return self.denied_by(rule);
            }
            if let Some(verdict) = self.by_way(name, None) {
                return verdict;
            }
            let mut open = allowed.iter().flat_map(|ports| ports.each());
            if let Some((_, rule)) = open.find(|(port, _)| denial(*port).is_none()) {
                return self.allowed_by(rule);
            }
            // Denied are single ports at most, and hardly all.
            if self.default != Action::Deny && (1..=u16::MAX).any(|port| denial(port).is_none()) {
                return self.by_default();
            }
            let rule = denied.iter().find_map(|ports| ports.named.values().next());
            return rule.map_or(deny(NOT_ALLOWED), |rule| self.denied_by(*rule));
        };
        if let Some(rule) = denial(port) {
            return self.denied_by(rule);
        }
        if let Some(verdict) = self.by_way(name, Some(port)) {
            return verdict;
        }
        if let Some(rule) = allowed.iter().find_map(|ports| ports.usual(port)) {
            return self.allowed_by(rule);
        }
        match self.default {
            Action::Deny if !allowed.is_empty() => deny(OTHER_PORTS),
            Action::Ask => {
                let approved = self.approved.about(name);
                let approval = approved.iter().find_map(|ports| ports.usual(port));
                approval.map_or(self.by_default(), |rule| self.allowed_by(rule))
            }
            _ => self.by_default(),
        }
    }

    /// May this address be reached, that was not handed out for a name? Only if a rule lists it.
    pub fn judge_address(&self, address: IpAddr, port: u16) -> HostDecision<'_> {
        if address::kind(address) == Kind::Metadata {
            return deny(NEVER);
        }
        if let Some(rule) = self.denial(address, port) {
            return self.denied_by(rule);
        }
        if let Some((rule, reason)) = self.ways.guards(address) {
            return HostDecision { rule: self.rule(rule), ..deny(reason) };
        }
        let mut allowed = self.allowed.around(address).peekable();
        let listed = allowed.peek().is_some();
        let unlisted = deny(if listed { OTHER_PORTS } else { NOT_LISTED });
        allowed.find_map(|ports| ports.usual(port)).map_or(unlisted, |rule| self.allowed_by(rule))
    }

    /// May this address be dialled, to which a name led that may be reached? `own`: it is one of
    /// the host's own.
    pub fn may_dial(&self, address: IpAddr, port: u16, own: bool) -> Result<(), &'static str> {
        let kind = address::kind(address);
        if kind == Kind::Metadata {
            return Err(NEVER);
        }
        if self.denial(address, port).is_some() {
            return Err(DENIED_ADDRESS);
        }
        if self.allowed.around(address).any(|ports| ports.any(port).is_some()) {
            return Ok(());
        }
        match kind {
            _ if own => Err("the name leads to this machine, and no rule lists the address"),
            Kind::Public => Ok(()),
            Kind::Private => Err("the name leads to a private address that no rule lists"),
            Kind::Loopback | Kind::Unspecified => {
                Err("the name leads to this machine, and no rule lists the address")
            }
            Kind::Multicast | Kind::Special => {
                Err("the name leads to an address that no host can have, and no rule lists it")
            }
            Kind::Metadata => Err(NEVER),
        }
    }

    /// Is a connection to this name, which was allowed, not dialled but handed over?
    pub fn hands_over(&self, name: &Name) -> Option<Handed> {
        self.ways.hands_over(name)
    }

    /// May the Python half call this host, for whoever it speaks for? `agreed`: what a person
    /// allowed that was asked.
    pub fn judge_upstream(
        &self,
        host: &Host,
        port: u16,
        agreed: impl FnOnce(&Name) -> bool,
    ) -> Result<(), &'static str> {
        self.ways.serves(host, port, |name| match self.judge_name(name, Some(port)).action {
            Action::Allow => true,
            Action::Ask => agreed(name),
            Action::Deny => false,
        })
    }

    /// And may this address be dialled for it? `own`: it is one of the host's own.
    pub fn may_dial_upstream(
        &self,
        host: &Host,
        address: IpAddr,
        port: u16,
        own: bool,
    ) -> Result<(), &'static str> {
        if let Some(written) = http_hosts::is_as_written(host, address) {
            return written;
        }
        match self.ways.lists(host, port, address) {
            Some(_) if address::kind(address) == Kind::Metadata => Err(NEVER),
            Some(_) if self.denial(address, port).is_some() => Err(DENIED_ADDRESS),
            Some(true) => Ok(()),
            Some(false) => Err("the route's upstream_addresses do not list it"),
            None => self.may_dial(address, port, own),
        }
    }

    /// The upstreams with endpoint rules.
    pub fn guarded(&self) -> &[Guarded] {
        self.ways.guarded()
    }

    /// Does a route lead there?
    pub fn is_upstream(&self, host: &Host, port: u16) -> bool {
        self.ways.is_upstream(host, port)
    }

    fn by_way(&self, name: &Name, port: Option<u16>) -> Option<HostDecision<'_>> {
        match self.ways.to(name, port) {
            NameRoute::Open(rule) => Some(self.allowed_by(rule)),
            NameRoute::Shut(rule, reason) => {
                Some(HostDecision { rule: rule.and_then(|rule| self.rule(rule)), ..deny(reason) })
            }
            NameRoute::Ordinary => None,
        }
    }

    /// Nobody gets around a denied block by a translator or a tunnel.
    fn denial(&self, address: IpAddr, port: u16) -> Option<usize> {
        address::forms(address)
            .find_map(|form| self.denied.around(form).find_map(|ports| ports.any(port)))
    }

    fn allowed_by(&self, rule: usize) -> HostDecision<'_> {
        HostDecision { action: Action::Allow, rule: self.rule(rule), reason: None }
    }

    fn denied_by(&self, rule: usize) -> HostDecision<'_> {
        HostDecision { rule: self.rule(rule), ..deny(DENIED) }
    }

    fn by_default(&self) -> HostDecision<'_> {
        let reason = match self.default {
            Action::Allow => None,
            Action::Deny => Some(NOT_ALLOWED),
            Action::Ask => Some(ASKED),
        };
        HostDecision { action: self.default, rule: None, reason }
    }

    fn rule(&self, index: usize) -> Option<Rule<'_>> {
        let written = self.rules.get(index)?;
        Some(Rule { host: &written.host, file: self.files.get(written.file)?, line: written.line })
    }
}

fn deny(reason: &'static str) -> HostDecision<'static> {
    HostDecision { action: Action::Deny, rule: None, reason: Some(reason) }
}
