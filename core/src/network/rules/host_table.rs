//! The compiled host rules: a name or an address in, a decision out. A lookup costs the same for
//! any number of rules.
//!
//! The order: hosts that are never reached, denied hosts, allowed hosts, the default. The default
//! and `*` apply to names only: an address is reached only if a rule lists it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use super::address::{self, AddressBlock, AddressKind};
use super::http_hosts::{self, HandoverKind, HttpHosts, METADATA_DENIED, NameRoute};
use crate::network::relay::guarded_addresses::GuardedUpstream;
use crate::plan::host_name::{Host, HostName};
use crate::plan::wire::bytes::Text;
use crate::plan::{self, Action};

/// Names where clouds hand out credentials.
const METADATA_NAMES: [&[u8]; 5] = [
    b"metadata.google.internal",
    b"metadata.azure.internal",
    b"metadata",
    b"instance-data",
    b"instance-data.ec2.internal",
];

/// The ports that a rule without a port allows.
const DEFAULT_PORTS: [u16; 2] = [80, 443];

const DENIED: &str = "a rule denies it";
const DENIED_ADDRESS: &str = "a rule denies the address of the name";
pub const NOT_ALLOWED: &str = "no rule allows it";
const OTHER_PORTS: &str = "a rule allows it only on other ports";
const DEFAULT_ASKS: &str = "no rule matches, so Paddock asks";
const NOT_LISTED: &str = "no rule lists this address";
const LEADS_HERE: &str = "the name leads to this machine: connect to localhost, and list the port in \
    allowed_local_ports";
const LEADS_TO_PRIVATE: &str =
    "the name leads to a private address: list the address too, with --allow-domain ADDRESS";

/// True if a new rule could allow it.
pub fn rule_could_allow(reason: &str) -> bool {
    [NOT_ALLOWED, OTHER_PORTS, NOT_LISTED].contains(&reason)
}

#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("{place}: \"{host}\" is not a host, a pattern of hosts or a block of addresses")]
    Host { host: Text, place: String },
}

/// A host is reached only with `Allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDecision<'a> {
    pub action: Action,
    /// The deciding rule.
    pub rule: Option<MatchedRule<'a>>,
    /// Why the host is not allowed.
    pub reason: Option<&'static str>,
}

/// A rule that a person wrote. Displayed as its location, `file:line`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedRule<'a> {
    pub host: &'a Text,
    file: &'a Text,
    line: Option<u32>,
}

impl fmt::Display for MatchedRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file),
            None => self.file.fmt(f),
        }
    }
}

#[derive(Debug)]
pub struct HostTable {
    denied: HostSet,
    allowed: HostSet,
    /// Permanent approvals: they answer what the default asks.
    approved: HostSet,
    default: Action,
    http_hosts: HttpHosts,
    rules: Vec<StoredRule>,
    files: Vec<Text>,
}

#[derive(Debug)]
struct StoredRule {
    host: Text,
    file: usize,
    line: Option<u32>,
}

/// The denied, allowed or approved hosts.
#[derive(Debug, Default)]
struct HostSet {
    every_name: PortRules,
    names: HashMap<HostName, PortRules>,
    /// Rules for the names below this name, without the name itself.
    below: HashMap<HostName, PortRules>,
    blocks: HashMap<AddressBlock, PortRules>,
    /// The prefix lengths of the blocks, longest first.
    lengths: Vec<u8>,
}

/// The index of the rule for each port of a host.
#[derive(Debug, Default)]
struct PortRules {
    /// The rule without a port.
    unnamed: Option<usize>,
    named: BTreeMap<u16, usize>,
}

impl PortRules {
    fn add(&mut self, port: Option<u16>, rule: usize) {
        match port {
            Some(port) => self.named.entry(port).or_insert(rule),
            None => self.unnamed.get_or_insert(rule),
        };
    }

    /// A rule without a port applies to all ports.
    fn at_any_port(&self, port: u16) -> Option<usize> {
        self.named.get(&port).copied().or(self.unnamed)
    }

    /// A rule without a port applies to the default ports.
    fn at_default_ports(&self, port: u16) -> Option<usize> {
        self.named.get(&port).copied().or(self.unnamed.filter(|_| DEFAULT_PORTS.contains(&port)))
    }

    /// The ports and rules, if this is the set of allowed hosts.
    fn each(&self) -> impl Iterator<Item = (u16, usize)> {
        let at_default_ports =
            self.unnamed.into_iter().flat_map(|rule| DEFAULT_PORTS.map(|port| (port, rule)));
        self.named.iter().map(|(port, rule)| (*port, *rule)).chain(at_default_ports)
    }

    fn is_empty(&self) -> bool {
        self.unnamed.is_none() && self.named.is_empty()
    }
}

impl HostSet {
    /// The ports of a rule's host. None: the text is not a host.
    fn ports(&mut self, host: &[u8]) -> Option<&mut PortRules> {
        if host == b"*" {
            return Some(&mut self.every_name);
        }
        if let Some(parent) = host.strip_prefix(b"*.") {
            return Some(self.below.entry(HostName::read(parent)?).or_default());
        }
        match AddressBlock::read(host) {
            Some(block) => Some(self.blocks.entry(block).or_default()),
            None => Some(self.names.entry(HostName::read(host)?).or_default()),
        }
    }

    /// The rules that apply to a name, the most specific first.
    fn about(&self, name: &HostName) -> Vec<&PortRules> {
        let below = name.parents().filter_map(|parent| self.below.get(parent));
        let every = (!self.every_name.is_empty()).then_some(&self.every_name);
        self.names.get(name.as_bytes()).into_iter().chain(below).chain(every).collect()
    }

    /// The blocks that contain this address, the smallest first.
    fn around(&self, address: IpAddr) -> impl Iterator<Item = &PortRules> {
        let blocks =
            self.lengths.iter().filter_map(move |length| AddressBlock::around(address, *length));
        blocks.filter_map(|block| self.blocks.get(&block))
    }
}

impl HostTable {
    pub fn compile(network: &plan::Network) -> Result<HostTable, TableError> {
        let mut table = HostTable {
            denied: HostSet::default(),
            allowed: HostSet::default(),
            approved: HostSet::default(),
            default: network.default,
            http_hosts: HttpHosts::default(),
            rules: Vec::new(),
            files: Vec::new(),
        };
        let (denied, allowed) =
            ((&mut table.denied, &network.denied), (&mut table.allowed, &network.allowed));
        for (set, groups) in [denied, allowed, (&mut table.approved, &network.approved)] {
            // Most are names.
            set.names.reserve(groups.iter().map(|group| group.hosts.len()).sum());
            for group in groups {
                for plan::HostRule(host, port, line) in &group.hosts {
                    let written =
                        StoredRule { host: host.clone(), file: table.files.len(), line: *line };
                    let Some(ports) = set.ports(host.as_bytes()) else {
                        let place =
                            MatchedRule { host, file: &group.source, line: *line }.to_string();
                        return Err(TableError::Host { host: host.clone(), place });
                    };
                    ports.add(*port, table.rules.len());
                    table.rules.push(written);
                }
                table.files.push(group.source.clone());
            }
            set.lengths = set.blocks.keys().map(AddressBlock::length).collect();
            set.lengths.sort_unstable_by(|one, other| other.cmp(one));
            set.lengths.dedup();
        }
        if let Some(http) = &network.http {
            let (rules, files) = (&mut table.rules, &mut table.files);
            table.http_hosts = HttpHosts::compile(http, |host, source| {
                let host = Text::from_bytes(host.to_vec()).unwrap_or_else(|_| source.clone());
                rules.push(StoredRule { host, file: files.len(), line: None });
                files.push(source.clone());
                rules.len() - 1
            })?;
        }
        Ok(table)
    }

    /// Decides whether a name may be reached at a port. Without a port: at any port, which is what
    /// a DNS question needs.
    pub fn judge_name(&self, name: &HostName, port: Option<u16>) -> HostDecision<'_> {
        if METADATA_NAMES.contains(&name.as_bytes()) {
            return deny(METADATA_DENIED);
        }
        let (denied, allowed) = (self.denied.about(name), self.allowed.about(name));
        let denial = |port| denied.iter().find_map(|ports| ports.at_any_port(port));
        let Some(port) = port else {
            if let Some(rule) = denied.iter().find_map(|ports| ports.unnamed) {
                return self.denied_by(rule);
            }
            if let Some(decision) = self.by_http_host(name, None) {
                return decision;
            }
            let mut open = allowed.iter().flat_map(|ports| ports.each());
            if let Some((_, rule)) = open.find(|(port, _)| denial(*port).is_none()) {
                return self.allowed_by(rule);
            }
            // Rules deny single ports here, and hardly all of them.
            if self.default != Action::Deny && (1..=u16::MAX).any(|port| denial(port).is_none()) {
                return self.by_default();
            }
            let rule = denied.iter().find_map(|ports| ports.named.values().next());
            return rule.map_or(deny(NOT_ALLOWED), |rule| self.denied_by(*rule));
        };
        if let Some(rule) = denial(port) {
            return self.denied_by(rule);
        }
        if let Some(decision) = self.by_http_host(name, Some(port)) {
            return decision;
        }
        if let Some(rule) = allowed.iter().find_map(|ports| ports.at_default_ports(port)) {
            return self.allowed_by(rule);
        }
        match self.default {
            Action::Deny if !allowed.is_empty() => deny(OTHER_PORTS),
            Action::Ask => {
                let approved = self.approved.about(name);
                let approval = approved.iter().find_map(|ports| ports.at_default_ports(port));
                approval.map_or(self.by_default(), |rule| self.allowed_by(rule))
            }
            _ => self.by_default(),
        }
    }

    /// Decides about an address that was not handed out for a name. Only a rule that lists it
    /// allows it.
    pub fn judge_address(&self, address: IpAddr, port: u16) -> HostDecision<'_> {
        if address::kind(address) == AddressKind::Metadata {
            return deny(METADATA_DENIED);
        }
        if let Some(rule) = self.denial(address, port) {
            return self.denied_by(rule);
        }
        if let Some((rule, reason)) = self.http_hosts.guarded_by(address) {
            return HostDecision { rule: self.rule(rule), ..deny(reason) };
        }
        let mut allowed = self.allowed.around(address).peekable();
        let listed = allowed.peek().is_some();
        let unlisted = deny(if listed { OTHER_PORTS } else { NOT_LISTED });
        allowed
            .find_map(|ports| ports.at_default_ports(port))
            .map_or(unlisted, |rule| self.allowed_by(rule))
    }

    /// Decides whether an address may be dialled for an allowed name. `own`: the address belongs to
    /// this host.
    pub fn may_dial(&self, address: IpAddr, port: u16, own: bool) -> Result<(), &'static str> {
        let kind = address::kind(address);
        if kind == AddressKind::Metadata {
            return Err(METADATA_DENIED);
        }
        if self.denial(address, port).is_some() {
            return Err(DENIED_ADDRESS);
        }
        if self.allowed.around(address).any(|ports| ports.at_any_port(port).is_some()) {
            return Ok(());
        }
        match kind {
            _ if own => Err(LEADS_HERE),
            AddressKind::Public => Ok(()),
            AddressKind::Private => Err(LEADS_TO_PRIVATE),
            AddressKind::Loopback | AddressKind::Unspecified => Err(LEADS_HERE),
            AddressKind::Multicast | AddressKind::Special => {
                Err("the name leads to an address that no host can have, and no rule lists it")
            }
            AddressKind::Metadata => Err(METADATA_DENIED),
        }
    }

    /// How a connection to this allowed name is handed to the HTTP helper. None: it is dialled.
    pub fn handover_kind(&self, name: &HostName) -> Option<HandoverKind> {
        self.http_hosts.handover_kind(name)
    }

    /// Decides whether the HTTP helper may connect to this host. `allowed_by_person`: the names
    /// that a person allowed.
    pub fn judge_upstream(
        &self,
        host: &Host,
        port: u16,
        allowed_by_person: impl FnOnce(&HostName) -> bool,
    ) -> Result<(), &'static str> {
        self.http_hosts.may_dial(host, port, |name| {
            match self.judge_name(name, Some(port)).action {
                Action::Allow => true,
                Action::Ask => allowed_by_person(name),
                Action::Deny => false,
            }
        })
    }

    /// Decides whether this address may be dialled for the HTTP helper. `own`: the address belongs
    /// to this host.
    pub fn may_dial_upstream(
        &self,
        host: &Host,
        address: IpAddr,
        port: u16,
        own: bool,
    ) -> Result<(), &'static str> {
        if let Some(written) = http_hosts::judge_written_address(host, address) {
            return written;
        }
        match self.http_hosts.lists(host, port, address) {
            Some(_) if address::kind(address) == AddressKind::Metadata => Err(METADATA_DENIED),
            Some(_) if self.denial(address, port).is_some() => Err(DENIED_ADDRESS),
            Some(true) => Ok(()),
            Some(false) => Err("the route's upstream_addresses do not list it"),
            None => self.may_dial(address, port, own),
        }
    }

    /// The upstreams with endpoint rules.
    pub fn guarded(&self) -> &[GuardedUpstream] {
        self.http_hosts.guarded()
    }

    /// True if it is the upstream of a route.
    pub fn is_upstream(&self, host: &Host, port: u16) -> bool {
        self.http_hosts.is_upstream(host, port)
    }

    fn by_http_host(&self, name: &HostName, port: Option<u16>) -> Option<HostDecision<'_>> {
        match self.http_hosts.route_of(name, port) {
            NameRoute::Allowed(rule) => Some(self.allowed_by(rule)),
            NameRoute::Denied(rule, reason) => {
                Some(HostDecision { rule: rule.and_then(|rule| self.rule(rule)), ..deny(reason) })
            }
            NameRoute::NotRouted => None,
        }
    }

    /// Checks embedded addresses too, so that a translator or tunnel does not bypass a denied
    /// block.
    fn denial(&self, address: IpAddr, port: u16) -> Option<usize> {
        address::forms(address)
            .find_map(|form| self.denied.around(form).find_map(|ports| ports.at_any_port(port)))
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
            Action::Ask => Some(DEFAULT_ASKS),
        };
        HostDecision { action: self.default, rule: None, reason }
    }

    fn rule(&self, index: usize) -> Option<MatchedRule<'_>> {
        let written = self.rules.get(index)?;
        Some(MatchedRule {
            host: &written.host,
            file: self.files.get(written.file)?,
            line: written.line,
        })
    }
}

fn deny(reason: &'static str) -> HostDecision<'static> {
    HostDecision { action: Action::Deny, rule: None, reason: Some(reason) }
}
