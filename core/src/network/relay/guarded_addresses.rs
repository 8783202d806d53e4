//! The addresses of upstreams that have endpoint rules: a route leads there, and no other
//! connection does.
//!
//! A name can be guarded by itself ([`crate::network::rules::http_hosts`]), but another name may
//! lead to the same address, and an address may be listed. So before anything is dialled at a port
//! that such an upstream may serve, the relay looks up the upstream's name too, and compares. It
//! remembers all that it found in this run. It does not know an address to which the upstream's
//! name never led. An upstream on this machine is guarded at all addresses of this machine: a
//! server that listens on all of them is the same server.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::dial_addresses::is_of_this_machine;
use super::host_resolver::{Addresses, LookupFailure};
use crate::network::rules::address;
use crate::plan::host_name::{Host, HostName};

/// Ports of web servers: a server of https may serve the same in clear text.
const WEB_PORTS: [u16; 2] = [80, 443];

/// A lookup is not repeated within this time. The resolver's cache follows the TTL of the name
/// server.
const LOOKUP_TTL: Duration = Duration::from_secs(1);

/// Stored addresses of one upstream. Beyond this, all are dropped and looked up again.
const MAX_ADDRESSES: usize = 4096;

const GUARDED_ADDRESS: &str = "this address is reserved for a route with endpoint rules; to share it, \
    write shared_addresses = true in the route";
const UNKNOWN_ADDRESSES: &str = "it may be the upstream of a route with endpoint rules: no name server gives \
    the upstream's addresses";

/// An upstream with endpoint rules.
#[derive(Debug)]
pub struct GuardedUpstream {
    pub host: Host,
    pub port: u16,
    /// True: names of other hosts may resolve to the same addresses.
    pub is_shared: bool,
}

#[derive(Debug, Default)]
struct KnownAddresses {
    addresses: HashSet<IpAddr>,
    /// One of them belongs to this machine.
    is_on_this_machine: bool,
    looked_up: Option<Instant>,
    /// No name server answered the last lookup.
    is_unknown: bool,
}

impl KnownAddresses {
    fn add(&mut self, address: IpAddr) {
        // Each lookup returns the same addresses; only a new one is compared with this machine's.
        if self.addresses.insert(address.to_canonical()) {
            self.addresses.extend(address::forms(address));
            self.is_on_this_machine |= is_of_this_machine(address);
        }
    }
}

/// What is known about the upstreams, in the order of the table.
pub struct UpstreamGuards<'t> {
    guarded: &'t [GuardedUpstream],
    known: Vec<KnownAddresses>,
    by_name: HashMap<&'t HostName, Vec<usize>>,
}

impl<'t> UpstreamGuards<'t> {
    pub fn new(guarded: &'t [GuardedUpstream]) -> UpstreamGuards<'t> {
        let mut by_name: HashMap<&HostName, Vec<usize>> = HashMap::new();
        let mut known: Vec<KnownAddresses> = Vec::new();
        for (index, one) in guarded.iter().enumerate() {
            known.push(KnownAddresses::default());
            match &one.host {
                Host::Name(name) => by_name.entry(name).or_default().push(index),
                Host::Address(address) => known[index].add(*address),
            }
        }
        UpstreamGuards { guarded, known, by_name }
    }

    /// The names to look up before a connection to this port.
    pub fn to_look_up(&self, port: u16, now: Instant) -> Vec<&'t HostName> {
        let is_due = |index: &usize| {
            let is_fresh = self.known[*index].looked_up.is_some_and(|at| now < at + LOOKUP_TTL);
            serves(&self.guarded[*index], port) && !is_fresh
        };
        self.by_name
            .iter()
            .filter(|(_, indices)| indices.iter().any(is_due))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Stores the result of a lookup.
    pub fn learn_lookup(
        &mut self,
        name: &HostName,
        found: &Result<Addresses, LookupFailure>,
        now: Instant,
    ) {
        for index in self.by_name.get(name).into_iter().flatten() {
            let known = &mut self.known[*index];
            known.looked_up = Some(now);
            known.is_unknown = matches!(found, Err(LookupFailure::Silent));
            if known.addresses.len() > MAX_ADDRESSES {
                known.addresses.clear();
            }
            found.iter().flat_map(|found| found.iter()).for_each(|address| known.add(*address));
        }
    }

    /// Decides whether a connection that does not use the route may dial this address. `is_named`:
    /// a name resolved to it.
    pub fn judge(&self, address: IpAddr, port: u16, is_named: bool) -> Result<(), &'static str> {
        for (guarded, known) in self.guarded.iter().zip(&self.known) {
            if !serves(guarded, port) || (guarded.is_shared && is_named) {
                continue;
            }
            if known.is_unknown {
                return Err(UNKNOWN_ADDRESSES);
            }
            if address::forms(address).any(|form| known.addresses.contains(&form))
                || (known.is_on_this_machine && is_of_this_machine(address))
            {
                return Err(GUARDED_ADDRESS);
            }
        }
        Ok(())
    }
}

fn serves(guarded: &GuardedUpstream, port: u16) -> bool {
    port == guarded.port || WEB_PORTS.contains(&port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(host: &str, port: u16, is_shared: bool) -> GuardedUpstream {
        GuardedUpstream {
            host: crate::network::rules::http_hosts::read_host(host.as_bytes()).unwrap(),
            port,
            is_shared,
        }
    }

    fn found(addresses: &[&str]) -> Result<Addresses, LookupFailure> {
        Ok(addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    #[test]
    fn all_addresses_of_a_guarded_upstream_are_denied() {
        let table = [guarded("up.example", 8443, false)];
        let mut guards = UpstreamGuards::new(&table);
        let (name, now) = (HostName::read(b"up.example").unwrap(), Instant::now());
        assert_eq!(guards.to_look_up(8443, now), [&name]);
        assert!(guards.to_look_up(5432, now).is_empty());
        guards.learn_lookup(&name, &found(&["20.0.0.1"]), now);
        guards.learn_lookup(&name, &found(&["20.0.0.2", "2a00::1"]), now);
        assert!(guards.to_look_up(443, now).is_empty());
        assert_eq!(guards.to_look_up(443, now + LOOKUP_TTL), [&name]);
        for address in [
            "20.0.0.1",
            "20.0.0.2",
            "2a00::1",
            "::ffff:20.0.0.1",
            "64:ff9b::20.0.0.1",
            "2002:1400:1::7",
        ] {
            for port in [80, 443, 8443] {
                assert_eq!(
                    guards.judge(address.parse().unwrap(), port, true),
                    Err(GUARDED_ADDRESS),
                    "{address} {port}"
                );
            }
            assert_eq!(guards.judge(address.parse().unwrap(), 5432, true), Ok(()), "{address}");
        }
        assert_eq!(guards.judge("20.0.0.3".parse().unwrap(), 443, true), Ok(()));
    }

    #[test]
    fn a_local_upstream_guards_all_local_addresses() {
        let table = [guarded("app.example", 8099, false), guarded("127.0.0.2", 8100, false)];
        let mut guards = UpstreamGuards::new(&table);
        assert_eq!(
            guards.judge("::1".parse().unwrap(), 8099, false),
            Ok(()),
            "the name has not led here"
        );
        guards.learn_lookup(
            &HostName::read(b"app.example").unwrap(),
            &found(&["127.0.0.1"]),
            Instant::now(),
        );
        for address in ["127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"] {
            for port in [8099, 8100] {
                assert_eq!(
                    guards.judge(address.parse().unwrap(), port, false),
                    Err(GUARDED_ADDRESS),
                    "{address} {port}"
                );
            }
            assert_eq!(guards.judge(address.parse().unwrap(), 5432, false), Ok(()), "{address}");
        }
        assert_eq!(
            guards.judge("20.0.0.1".parse().unwrap(), 8099, false),
            Ok(()),
            "another machine"
        );
    }

    #[test]
    fn shared_addresses_are_open_to_names_only() {
        let table = [guarded("up.example", 443, true), guarded("20.0.0.9", 443, false)];
        let mut guards = UpstreamGuards::new(&table);
        guards.learn_lookup(
            &HostName::read(b"up.example").unwrap(),
            &found(&["20.0.0.1"]),
            Instant::now(),
        );
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, true), Ok(()));
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, false), Err(GUARDED_ADDRESS));
        assert_eq!(guards.judge("20.0.0.9".parse().unwrap(), 443, true), Err(GUARDED_ADDRESS));
    }

    #[test]
    fn an_unresolved_upstream_denies_its_ports() {
        let table = [guarded("up.example", 443, false)];
        let mut guards = UpstreamGuards::new(&table);
        let (name, now) = (HostName::read(b"up.example").unwrap(), Instant::now());
        guards.learn_lookup(&name, &Err(LookupFailure::Silent), now);
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, true), Err(UNKNOWN_ADDRESSES));
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 22, true), Ok(()));
        guards.learn_lookup(&name, &Err(LookupFailure::Unknown), now);
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, true), Ok(()));
    }
}
