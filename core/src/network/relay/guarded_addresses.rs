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

use super::dial::is_of_this_machine;
use super::host_resolver::{Addresses, Failure};
use crate::network::rules::address;
use crate::plan::host_name::{Host, Name};

/// Where web servers are: one that serves https may serve the same in clear.
const WEB: [u16; 2] = [80, 443];

/// What was found out is not asked for again within this time. The resolver's own memory is as long
/// as a name server says.
const FRESH: Duration = Duration::from_secs(1);

/// So many addresses of one upstream are remembered. With more of them, all are forgotten and asked
/// for again.
const REMEMBERED: usize = 4096;

const GUARDED: &str = "this address is reserved for a route with endpoint rules; to share it, \
    write shared_addresses = true in the route";
const UNKNOWN: &str = "it may be the upstream of a route with endpoint rules: no name server gives \
    the upstream's addresses";

/// An upstream with endpoint rules.
#[derive(Debug)]
pub struct Guarded {
    pub host: Host,
    pub port: u16,
    /// Names of other hosts may lead to the same addresses.
    pub is_shared: bool,
}

#[derive(Debug, Default)]
struct Known {
    addresses: HashSet<IpAddr>,
    /// One of them was this machine's.
    is_here: bool,
    looked_up: Option<Instant>,
    /// No name server answered when it was asked for last.
    is_unknown: bool,
}

impl Known {
    fn learn(&mut self, address: IpAddr) {
        // The same address comes with every lookup; only a new one is compared with this machine's.
        if self.addresses.insert(address.to_canonical()) {
            self.addresses.extend(address::forms(address));
            self.is_here |= is_of_this_machine(address);
        }
    }
}

/// What is known of them. The order is that of the table.
pub struct Guards<'t> {
    guarded: &'t [Guarded],
    known: Vec<Known>,
    by_name: HashMap<&'t Name, Vec<usize>>,
}

impl<'t> Guards<'t> {
    pub fn new(guarded: &'t [Guarded]) -> Guards<'t> {
        let mut by_name: HashMap<&Name, Vec<usize>> = HashMap::new();
        let mut known: Vec<Known> = Vec::new();
        for (index, one) in guarded.iter().enumerate() {
            known.push(Known::default());
            match &one.host {
                Host::Name(name) => by_name.entry(name).or_default().push(index),
                Host::Address(address) => known[index].learn(*address),
            }
        }
        Guards { guarded, known, by_name }
    }

    /// The names to look up before something is dialled at this port.
    pub fn to_look_up(&self, port: u16, now: Instant) -> Vec<&'t Name> {
        let is_due = |index: &usize| {
            let is_fresh = self.known[*index].looked_up.is_some_and(|at| now < at + FRESH);
            serves(&self.guarded[*index], port) && !is_fresh
        };
        self.by_name
            .iter()
            .filter(|(_, indices)| indices.iter().any(is_due))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Whatever a lookup of a name has found.
    pub fn heard(&mut self, name: &Name, found: &Result<Addresses, Failure>, now: Instant) {
        for index in self.by_name.get(name).into_iter().flatten() {
            let known = &mut self.known[*index];
            known.looked_up = Some(now);
            known.is_unknown = matches!(found, Err(Failure::Silent));
            if known.addresses.len() > REMEMBERED {
                known.addresses.clear();
            }
            found.iter().flat_map(|found| found.iter()).for_each(|address| known.learn(*address));
        }
    }

    /// May this address be dialled at this port for a connection that is not the route's?
    /// `is_named`: a name led to it.
    pub fn judge(&self, address: IpAddr, port: u16, is_named: bool) -> Result<(), &'static str> {
        for (guarded, known) in self.guarded.iter().zip(&self.known) {
            if !serves(guarded, port) || (guarded.is_shared && is_named) {
                continue;
            }
            if known.is_unknown {
                return Err(UNKNOWN);
            }
            if address::forms(address).any(|form| known.addresses.contains(&form))
                || (known.is_here && is_of_this_machine(address))
            {
                return Err(GUARDED);
            }
        }
        Ok(())
    }
}

fn serves(guarded: &Guarded, port: u16) -> bool {
    port == guarded.port || WEB.contains(&port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded(host: &str, port: u16, is_shared: bool) -> Guarded {
        Guarded {
            host: crate::network::rules::http_hosts::read(host.as_bytes()).unwrap(),
            port,
            is_shared,
        }
    }

    fn found(addresses: &[&str]) -> Result<Addresses, Failure> {
        Ok(addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    #[test]
    fn every_address_that_an_upstream_led_to_is_closed_at_its_port_and_at_those_of_the_web() {
        let table = [guarded("up.example", 8443, false)];
        let mut guards = Guards::new(&table);
        let (name, now) = (Name::read(b"up.example").unwrap(), Instant::now());
        assert_eq!(guards.to_look_up(8443, now), [&name]);
        assert!(guards.to_look_up(5432, now).is_empty());
        guards.heard(&name, &found(&["20.0.0.1"]), now);
        guards.heard(&name, &found(&["20.0.0.2", "2a00::1"]), now);
        assert!(guards.to_look_up(443, now).is_empty());
        assert_eq!(guards.to_look_up(443, now + FRESH), [&name]);
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
                    Err(GUARDED),
                    "{address} {port}"
                );
            }
            assert_eq!(guards.judge(address.parse().unwrap(), 5432, true), Ok(()), "{address}");
        }
        assert_eq!(guards.judge("20.0.0.3".parse().unwrap(), 443, true), Ok(()));
    }

    #[test]
    fn an_upstream_on_this_machine_is_closed_at_every_address_of_this_machine() {
        let table = [guarded("app.example", 8099, false), guarded("127.0.0.2", 8100, false)];
        let mut guards = Guards::new(&table);
        assert_eq!(
            guards.judge("::1".parse().unwrap(), 8099, false),
            Ok(()),
            "the name has not led here"
        );
        guards.heard(&Name::read(b"app.example").unwrap(), &found(&["127.0.0.1"]), Instant::now());
        for address in ["127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"] {
            for port in [8099, 8100] {
                assert_eq!(
                    guards.judge(address.parse().unwrap(), port, false),
                    Err(GUARDED),
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
    fn shared_addresses_are_open_to_other_names_and_to_nobody_who_lists_them() {
        let table = [guarded("up.example", 443, true), guarded("20.0.0.9", 443, false)];
        let mut guards = Guards::new(&table);
        guards.heard(&Name::read(b"up.example").unwrap(), &found(&["20.0.0.1"]), Instant::now());
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, true), Ok(()));
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, false), Err(GUARDED));
        assert_eq!(guards.judge("20.0.0.9".parse().unwrap(), 443, true), Err(GUARDED));
    }

    #[test]
    fn an_upstream_whose_addresses_nobody_says_closes_its_ports_and_one_without_addresses_does_not()
    {
        let table = [guarded("up.example", 443, false)];
        let mut guards = Guards::new(&table);
        let (name, now) = (Name::read(b"up.example").unwrap(), Instant::now());
        guards.heard(&name, &Err(Failure::Silent), now);
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, true), Err(UNKNOWN));
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 22, true), Ok(()));
        guards.heard(&name, &Err(Failure::Unknown), now);
        assert_eq!(guards.judge("20.0.0.1".parse().unwrap(), 443, true), Ok(()));
    }
}
