//! Synthetic addresses of names inside. Each leads back to its name.
//!
//! They come from a block for benchmarks (RFC 2544) and from a local IPv6 block. Neither is
//! reachable from inside. A name keeps its addresses while there is room. Then the name that was
//! not used for the longest time loses its addresses.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::plan::host_name::HostName;

/// Names that have addresses at once.
pub const MAX_NAMES: u32 = 65_536;

/// The base address of each family. Names get the following ones: half of 198.18.0.0/15, and the
/// start of fdfa::/16.
const FIRST_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const FIRST_V6: Ipv6Addr = Ipv6Addr::new(0xfdfa, 0, 0, 0, 0, 0, 0, 0);

#[derive(Debug)]
pub struct SyntheticAddresses {
    max_names: u32,
    /// The index is the offset from the base address, minus one.
    slots: Vec<AddressSlot>,
    numbers: HashMap<HostName, u32>,
    /// Addresses that no connection uses, by the time of their last use.
    idle: BTreeMap<u64, u32>,
    /// Counts uses.
    now: u64,
}

#[derive(Debug)]
struct AddressSlot {
    name: HostName,
    connections: u32,
    used: u64,
}

impl Default for SyntheticAddresses {
    fn default() -> SyntheticAddresses {
        SyntheticAddresses::with_max_names(MAX_NAMES)
    }
}

impl SyntheticAddresses {
    fn with_max_names(max_names: u32) -> SyntheticAddresses {
        SyntheticAddresses {
            max_names,
            slots: Vec::new(),
            numbers: HashMap::new(),
            idle: BTreeMap::new(),
            now: 0,
        }
    }

    /// The addresses of a name, new ones if needed. None: connections use all of them.
    pub fn address_of(&mut self, name: &HostName) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let number = match self.numbers.get(name.as_bytes()) {
            Some(number) => *number,
            None => {
                let number = self.take_number(name)?;
                self.numbers.insert(name.clone(), number);
                number
            }
        };
        self.mark_used(number);
        Some((
            Ipv4Addr::from_bits(FIRST_V4.to_bits().checked_add(number)?.checked_add(1)?),
            Ipv6Addr::from_bits(FIRST_V6.to_bits().checked_add(number.into())?.checked_add(1)?),
        ))
    }

    pub fn name_of(&self, address: IpAddr) -> Option<&HostName> {
        Some(&self.slots.get(number(address)?)?.name)
    }

    /// A connection to this address starts: the address keeps its name until `release`. Returns
    /// false if it has no name.
    pub fn acquire(&mut self, address: IpAddr) -> bool {
        let Some(slot) = number(address).and_then(|number| self.slots.get_mut(number)) else {
            return false;
        };
        slot.connections = slot.connections.saturating_add(1);
        self.idle.remove(&slot.used);
        true
    }

    /// A connection ends: call once for each `acquire`.
    pub fn release(&mut self, address: IpAddr) {
        let Some(number) = number(address) else { return };
        if let Some(slot) = self.slots.get_mut(number) {
            slot.connections = slot.connections.saturating_sub(1);
            self.mark_used(number as u32);
        }
    }

    /// A slot for a new name.
    fn take_number(&mut self, name: &HostName) -> Option<u32> {
        let new = AddressSlot { name: name.clone(), connections: 0, used: 0 };
        if self.slots.len() < self.max_names as usize {
            self.slots.push(new);
            return Some(self.slots.len() as u32 - 1);
        }
        let (_, number) = self.idle.pop_first()?;
        let slot = self.slots.get_mut(number as usize)?;
        self.numbers.remove(slot.name.as_bytes());
        *slot = new;
        Some(number)
    }

    /// Marks a slot as used now.
    fn mark_used(&mut self, number: u32) {
        self.now += 1;
        let Some(slot) = self.slots.get_mut(number as usize) else { return };
        self.idle.remove(&slot.used);
        slot.used = self.now;
        if slot.connections == 0 {
            self.idle.insert(self.now, number);
        }
    }
}

/// The slot number of an address; the slot may not exist.
fn number(address: IpAddr) -> Option<usize> {
    let number = match address.to_canonical() {
        IpAddr::V4(address) => u128::from(address.to_bits().checked_sub(FIRST_V4.to_bits())?),
        IpAddr::V6(address) => address.to_bits().checked_sub(FIRST_V6.to_bits())?,
    };
    usize::try_from(number.checked_sub(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: u32) -> HostName {
        HostName::read(format!("h{number}.example").as_bytes()).unwrap()
    }

    fn v4(synthetic: &mut SyntheticAddresses, number: u32) -> IpAddr {
        synthetic.address_of(&name(number)).unwrap().0.into()
    }

    #[test]
    fn names_and_addresses_map_both_ways() {
        let mut synthetic = SyntheticAddresses::default();
        let first = synthetic.address_of(&name(0)).unwrap();
        assert_eq!(first, ("198.18.0.1".parse().unwrap(), "fdfa::1".parse().unwrap()));
        assert_eq!(synthetic.address_of(&name(1)).unwrap().0.to_string(), "198.18.0.2");
        assert_eq!(synthetic.address_of(&name(0)), Some(first));
        assert_eq!(synthetic.name_of(first.0.into()), Some(&name(0)));
        assert_eq!(synthetic.name_of(first.1.into()), Some(&name(0)));
        assert_eq!(synthetic.name_of(first.0.to_ipv6_mapped().into()), Some(&name(0)));
        for address in [
            "198.18.0.0",
            "198.18.0.3",
            "198.17.255.255",
            "fdfa::",
            "fdfa::3",
            "fdfa::1:0:0:0:1",
            "::",
            "255.255.255.255",
            "ffff::1",
        ] {
            assert_eq!(synthetic.name_of(address.parse().unwrap()), None, "{address}");
            assert!(!synthetic.acquire(address.parse().unwrap()));
            synthetic.release(address.parse().unwrap());
        }
    }

    #[test]
    fn the_least_recently_used_address_is_reused() {
        let mut synthetic = SyntheticAddresses::with_max_names(9);
        for number in 0..9 {
            synthetic.address_of(&name(number)).unwrap();
        }
        let in_use = v4(&mut synthetic, 3);
        assert!(synthetic.acquire(in_use) && synthetic.acquire(in_use));
        synthetic.release(in_use);
        let recently_used = v4(&mut synthetic, 0);
        // 0 was just used and 3 has a connection, so 1, 2 and 4 are reused.
        for (new, old) in [(0, "198.18.0.2"), (1, "198.18.0.3"), (2, "198.18.0.5")] {
            assert_eq!(v4(&mut synthetic, 9 + new).to_string(), old);
        }
        assert_eq!(synthetic.name_of("198.18.0.2".parse().unwrap()), Some(&name(9)));
        assert_eq!(synthetic.name_of(recently_used), Some(&name(0)));
        assert_eq!(synthetic.name_of(in_use), Some(&name(3)));
        // A name that lost its addresses gets others.
        assert_eq!(v4(&mut synthetic, 1).to_string(), "198.18.0.6");
        assert_eq!((synthetic.slots.len(), synthetic.numbers.len()), (9, 9));
        synthetic.release(in_use);
        assert_eq!(synthetic.idle.len(), 9);
    }

    #[test]
    fn addresses_in_use_are_not_reused() {
        let mut synthetic = SyntheticAddresses::with_max_names(9);
        for number in 0..9 {
            let address = v4(&mut synthetic, number);
            assert!(synthetic.acquire(address));
        }
        assert_eq!(synthetic.address_of(&name(9)), None);
        let known = v4(&mut synthetic, 7);
        synthetic.release(known);
        assert_eq!(v4(&mut synthetic, 9), known);
        assert_eq!(synthetic.name_of(known), Some(&name(9)));
    }
}
