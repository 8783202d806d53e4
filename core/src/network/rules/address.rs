//! Kinds of addresses, and blocks of addresses.
//!
//! An IPv6 address can contain an IPv4 address that a translator or tunnel extracts. So every
//! embedded address is checked too, and the most restricted kind counts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Only `Public` is dialled because a name resolves to it. All others must be listed, and
/// `Metadata` is never dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressKind {
    Public,
    /// Reserved for another purpose than internet hosts.
    Special,
    Multicast,
    Private,
    Loopback,
    Unspecified,
    /// Addresses where clouds hand out credentials, and all link-local addresses.
    Metadata,
}

pub fn kind(address: IpAddr) -> AddressKind {
    forms(address).map(kind_of_form).max().unwrap_or(AddressKind::Special)
}

/// The address itself and its embedded IPv4 addresses.
pub fn forms(address: IpAddr) -> impl Iterator<Item = IpAddr> {
    let address = address.to_canonical();
    let embedded_v4 = match address {
        IpAddr::V4(_) => [None; 4],
        IpAddr::V6(address) => embedded_v4(address),
    };
    std::iter::once(address).chain(embedded_v4.into_iter().flatten().map(IpAddr::V4))
}

fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 4] {
    let bits = address.to_bits();
    let v4 = |bits: u128| Some(Ipv4Addr::from_bits(bits as u32));
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => [None; 4],
        // IPv4-compatible (RFC 4291, 2.5.5.1), translated (RFC 2765), NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0, _, _]
        | [0, 0, 0, 0, 0xffff, 0, _, _]
        | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => [v4(bits), None, None, None],
        // Local-use NAT64 (RFC 8215). The position of the address depends on the prefix length (RFC
        // 6052, 2.2): 96, 64, 56, 48. Bits 64 to 71 are never part of it.
        [0x64, 0xff9b, 1, ..] => [
            v4(bits),
            v4(bits >> 24),
            v4((bits >> 64 & 0xff) << 24 | bits >> 32 & 0xff_ffff),
            v4((bits >> 64 & 0xffff) << 16 | bits >> 40 & 0xffff),
        ],
        // 6to4 (RFC 3056).
        [0x2002, ..] => [v4(bits >> 80), None, None, None],
        // Teredo (RFC 4380): the server, and the client with all bits inverted.
        [0x2001, 0, ..] => [v4(bits >> 64), v4(!bits), None, None],
        _ => [None; 4],
    }
}

fn kind_of_form(address: IpAddr) -> AddressKind {
    match address {
        IpAddr::V4(address) => kind_of_v4(address),
        IpAddr::V6(address) => kind_of_v6(address),
    }
}

/// From the IANA IPv4 special-purpose address registry. The few globally reachable addresses in
/// 192.0.0.0/24 serve no names.
fn kind_of_v4(address: Ipv4Addr) -> AddressKind {
    match address.octets() {
        // Link-local; Alibaba, Azure, Oracle.
        [169, 254, ..] | [100, 100, 100, 200] | [168, 63, 129, 16] | [192, 0, 0, 192] => {
            AddressKind::Metadata
        }
        [0, 0, 0, 0] => AddressKind::Unspecified,
        [127, ..] => AddressKind::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => {
            AddressKind::Private
        }
        [224..=239, ..] => AddressKind::Multicast,
        [0 | 240..=255, ..]
        | [192, 0, 0 | 2, _]
        | [192, 88, 99, _]
        | [198, 18..=19, ..]
        | [198, 51, 100, _]
        | [203, 0, 113, _] => AddressKind::Special,
        _ => AddressKind::Public,
    }
}

/// From the IANA IPv6 special-purpose address registry. Unallocated addresses are special too.
fn kind_of_v6(address: Ipv6Addr) -> AddressKind {
    match address.segments() {
        // Link-local; Amazon, Google, Oracle, Scaleway, Akamai. Each provider has other services
        // beside the metadata service (Amazon hands out pod credentials at fd00:ec2::23), so the
        // whole block counts.
        [0xfe80..=0xfebf, ..]
        | [0xfd00, 0xec2, ..]
        | [0xfd20, 0xce, 0, 0, ..]
        | [0xfd00, 0xc1, 0, 0, ..]
        | [0xfd00, 0x42, 0, 0, ..]
        | [0xfd00, 0xa9fe, 0xa9fe, ..] => AddressKind::Metadata,
        [0, 0, 0, 0, 0, 0, 0, 0] => AddressKind::Unspecified,
        [0, 0, 0, 0, 0, 0, 0, 1] => AddressKind::Loopback,
        // Unique local, and the former site-local addresses.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => AddressKind::Private,
        [0xff00..=0xffff, ..] => AddressKind::Multicast,
        // For protocols (Teredo, ORCHID, benchmarks …), for documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => AddressKind::Special,
        // Their embedded address decides.
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] | [0x2002, ..] => AddressKind::Public,
        [0x2000..=0x3fff, ..] => AddressKind::Public,
        _ => AddressKind::Special,
    }
}

/// Addresses with a common prefix. An IPv4 address uses its mapped form, and belongs only to blocks
/// of at least that prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressBlock {
    bits: u128,
    length: u8,
}

/// Prefix length of mapped addresses, `::ffff:0:0/96`.
const MAPPED_PREFIX_BITS: u8 = 96;

impl AddressBlock {
    /// Reads an address, or one with `/` and a prefix length. The remaining bits must be 0:
    /// 10.1.2.3/8 is ambiguous.
    pub fn read(text: &[u8]) -> Option<AddressBlock> {
        let (address, length) = match std::str::from_utf8(text).ok()?.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (std::str::from_utf8(text).ok()?, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let before = if address.is_ipv4() { MAPPED_PREFIX_BITS } else { 0 };
        let length = match length {
            Some("0") => before,
            Some(digits) if digits.starts_with(['+', '0']) => return None,
            Some(digits) => digits.parse::<u8>().ok()?.checked_add(before)?,
            None => 128,
        };
        let bits = bits(address);
        let block = AddressBlock { bits: bits & mask(length), length };
        (length <= 128 && block.bits == bits).then_some(block)
    }

    /// The block of this prefix length that contains the address. None: the length is too short for
    /// IPv4.
    pub fn around(address: IpAddr, length: u8) -> Option<AddressBlock> {
        let shortest = if address.to_canonical().is_ipv4() { MAPPED_PREFIX_BITS } else { 0 };
        (shortest..=128)
            .contains(&length)
            .then(|| AddressBlock { bits: bits(address) & mask(length), length })
    }

    /// The prefix length.
    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        AddressBlock::around(address, self.length).as_ref() == Some(self)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(length: u8) -> u128 {
    u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(expected: AddressKind, addresses: &[&str]) {
        for address in addresses {
            assert_eq!(kind(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        kinds(
            AddressKind::Public,
            &[
                "1.1.1.1",
                "9.255.255.255",
                "11.0.0.0",
                "100.63.255.255",
                "100.128.0.0",
                "126.255.255.255",
            ],
        );
        kinds(
            AddressKind::Public,
            &[
                "128.0.0.0",
                "169.253.255.255",
                "169.255.0.0",
                "172.15.255.255",
                "172.32.0.0",
                "192.0.1.0",
            ],
        );
        kinds(
            AddressKind::Public,
            &["192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255"],
        );
        kinds(
            AddressKind::Public,
            &["168.63.129.15", "2606:4700::1111", "2001:200::1", "2a00:1450::1", "3ffe::1"],
        );
    }

    #[test]
    fn other_addresses_are_not_public() {
        kinds(AddressKind::Unspecified, &["0.0.0.0", "::", "::ffff:0.0.0.0"]);
        kinds(AddressKind::Loopback, &["127.0.0.1", "127.255.255.255", "::1", "::ffff:127.0.0.1"]);
        kinds(
            AddressKind::Private,
            &[
                "10.0.0.0",
                "10.255.255.255",
                "172.16.0.0",
                "172.31.255.255",
                "192.168.0.0",
                "100.64.0.0",
            ],
        );
        kinds(
            AddressKind::Private,
            &["100.127.255.255", "fc00::", "fdff:ffff::1", "fec0::1", "::ffff:10.1.2.3", "fdfa::1"],
        );
        kinds(
            AddressKind::Multicast,
            &["224.0.0.1", "239.255.255.255", "ff02::1", "::ffff:224.0.0.1"],
        );
        kinds(
            AddressKind::Special,
            &["0.1.2.3", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1"],
        );
        kinds(
            AddressKind::Special,
            &[
                "203.0.113.1",
                "240.0.0.1",
                "255.255.255.255",
                "192.88.99.1",
                "2001:db8::1",
                "3fff::1",
            ],
        );
        kinds(
            AddressKind::Special,
            &[
                "100::1",
                "5f00::1",
                "4000::1",
                "2001:2::1",
                "2001:20::1",
                "::8.8.8.8",
                "2001:0:808:808::",
            ],
        );
    }

    #[test]
    fn embedded_metadata_addresses_are_recognised() {
        kinds(
            AddressKind::Metadata,
            &["169.254.169.254", "169.254.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192"],
        );
        kinds(
            AddressKind::Metadata,
            &["fe80::1", "febf::1", "fd00:ec2::254", "fd20:ce::254", "fd00:42::42"],
        );
        kinds(
            AddressKind::Metadata,
            &["fd00:ec2::23", "fd00:ec2:ffff::1", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1"],
        );
        kinds(
            AddressKind::Private,
            &["fd00:ec1::254", "fd00:ec3::254", "fd20:ce:1::1", "fd00:a9fe:a9ff::1", "fd00:5a::1"],
        );
        for v4 in ["169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"] {
            let bits = u128::from(v4.parse::<Ipv4Addr>().unwrap().to_bits());
            let below = |prefix: &str, embedded_v4: u128| {
                let prefix: Ipv6Addr = prefix.parse().unwrap();
                assert_eq!(
                    kind(Ipv6Addr::from_bits(prefix.to_bits() | embedded_v4).into()),
                    AddressKind::Metadata,
                    "{v4} {prefix}"
                );
            };
            for prefix in
                ["::ffff:0:0", "::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::", "64:ff9b:1:7:9::"]
            {
                below(prefix, bits);
            }
            below("64:ff9b:1:0700::", (bits >> 24) << 64 | (bits & 0xff_ffff) << 32);
            below("64:ff9b:1::", (bits >> 16) << 64 | (bits & 0xffff) << 40);
            below("64:ff9b:1:7::", bits << 24);
            below("2002::1", bits << 80);
            below("2001::", bits << 64);
            below("2001:0:808:808::", !bits & u128::from(u32::MAX));
        }
    }

    #[test]
    fn a_translated_address_has_the_kind_of_its_embedded_one() {
        kinds(AddressKind::Public, &["64:ff9b::8.8.8.8", "2002:808:808::1"]);
        kinds(AddressKind::Private, &["64:ff9b::10.0.0.1", "2002:a00:1::1", "2002:c0a8:1::"]);
        kinds(AddressKind::Loopback, &["64:ff9b::127.0.0.1", "2002:7f00:1::"]);
    }

    #[test]
    fn a_block_contains_addresses_with_its_prefix() {
        for (block, within, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::10.0.0.1"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.7/32", "192.0.2.7", "192.0.2.8"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::/0", "2001:db8::", "10.0.0.1"),
            ("::/0", "::1", "::ffff:10.0.0.1"),
            ("::1", "::1", "::2"),
            ("::ffff:10.0.0.0/104", "10.0.0.1", "11.0.0.1"),
        ] {
            let read = AddressBlock::read(block.as_bytes()).unwrap();
            assert!(read.contains(within.parse().unwrap()), "{block} {within}");
            assert!(!read.contains(outside.parse().unwrap()), "{block} {outside}");
        }
    }

    #[test]
    fn invalid_blocks_are_refused() {
        for text in [
            "",
            "/",
            "10.0.0.0/",
            "/8",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/08",
            "10.0.0.0/8/8",
            "10.0.0.0/256",
            "10.0.0.0/160",
            "10.0.0.1/8",
            "10.0.0/8",
            "010.0.0.0/8",
            "0x0a000000",
            "167772160",
            "::/129",
            "::1/64",
            "[::1]",
            "fe80::1%1",
            "10.0.0.0/ 8",
            " 10.0.0.0",
            "10.0.0.0\0",
            "10.0.0.0/00",
            "*",
            "example.com",
        ] {
            assert_eq!(AddressBlock::read(text.as_bytes()), None, "{text}");
        }
    }
}
