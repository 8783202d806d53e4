//! Host names, restricted to those that every program reads in the same way.

use std::borrow::Borrow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Without the final dot. On the wire, with the label lengths, this is 255 bytes (RFC 1035, 2.3.4).
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// A host name in lower case, without the final dot. Clones share their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<[u8]>);

impl HostName {
    /// None: an unusual name. It is neither looked up nor dialled.
    pub fn read(text: &[u8]) -> Option<HostName> {
        let name = text.strip_suffix(b".").unwrap_or(text);
        let plain = |label: &[u8]| {
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        if name.len() > MAX_NAME_BYTES || !name.split(|byte| *byte == b'.').all(plain) {
            return None;
        }
        // Most programs read a name that ends in a number as an address: 127.1, 2130706433,
        // 0x7f000001 (WHATWG URL, "ends in a number").
        let last = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
        let number = last.iter().all(u8::is_ascii_digit) || matches!(last, [b'0', b'x' | b'X', ..]);
        (!number).then(|| HostName(name.iter().map(u8::to_ascii_lowercase).collect()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'.')
    }

    /// The parent domains of this name, the nearest first.
    pub fn parents(&self) -> impl Iterator<Item = &[u8]> {
        let dots = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'.');
        dots.filter_map(|(at, _)| self.0.get(at + 1..))
    }
}

/// Lets a map look up a part of a name without a copy.
impl Borrow<[u8]> for HostName {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The part of a URL's authority before the port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    Name(HostName),
    Address(IpAddr),
}

impl Host {
    /// Reads a name, an IPv4 address, or an IPv6 address in brackets. None: not every program reads
    /// this host in the same way.
    pub fn read(text: &[u8]) -> Option<Host> {
        if let [b'[', inner @ .., b']'] = text {
            let address: Ipv6Addr = std::str::from_utf8(inner).ok()?.parse().ok()?;
            return Some(Host::Address(IpAddr::V6(address).to_canonical()));
        }
        let dotted = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        dotted
            .map(|address| Host::Address(IpAddr::V4(address)))
            .or_else(|| HostName::read(text).map(Host::Name))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => name.fmt(f),
            Host::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<String> {
        HostName::read(text.as_bytes()).map(|name| name.to_string())
    }

    #[test]
    fn names_are_lowercased_without_the_final_dot() {
        for (text, read) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com.", "example.com"),
            ("localhost", "localhost"),
            ("_dmarc.a-b.xn--bcher-kva.example", "_dmarc.a-b.xn--bcher-kva.example"),
            ("1.2.3.4.in-addr.arpa", "1.2.3.4.in-addr.arpa"),
            ("0x7f.example", "0x7f.example"),
            ("7.example7", "7.example7"),
            ("1.2.3.4e", "1.2.3.4e"),
        ] {
            assert_eq!(name(text).as_deref(), Some(read), "{text}");
        }
    }

    #[test]
    fn unusual_names_are_refused() {
        for text in [
            "",
            ".",
            "..",
            ".a",
            "a..b",
            "a..",
            "a b",
            " a",
            "a ",
            "a\0",
            "a\0.example.com",
            "a\r\nb",
            "a\n",
            "a\t",
            "a%00",
            "a%2eb",
            "a/b",
            "a:80",
            "a@b",
            "a\\b",
            "[::1]",
            "::1",
            "bücher.example",
            "a。b",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0177.0.0.1",
            "0x7f000001",
            "0x7f.1",
            "127.0.0.1.",
            "a.0xffffffff",
            "a.0X1",
            "a.1",
            "*",
            "*.example.com",
            "fe80::1%lo",
            "a\x7f",
            "a,b",
            "a'b",
            "a\"b",
            "a#b",
        ] {
            assert_eq!(name(text), None, "{text:?}");
        }
        assert_eq!(HostName::read(b"a\xff"), None);
    }

    #[test]
    fn names_and_labels_have_a_maximum_length() {
        let label = "a".repeat(63);
        assert!(name(&label).is_some());
        assert!(name(&format!("a{label}")).is_none());
        let longest = format!("{label}.{label}.{label}.{}", &label[..61]);
        assert_eq!(longest.len(), 253);
        assert_eq!(name(&longest), Some(longest.clone()));
        assert_eq!(name(&format!("{longest}.")), Some(longest.clone()));
        assert_eq!(name(&format!("{longest}a")), None);
    }

    #[test]
    fn parents_are_listed_nearest_first() {
        let name = HostName::read(b"a.b.example").unwrap();
        assert_eq!(name.parents().collect::<Vec<_>>(), [&b"b.example"[..], b"example"]);
        assert_eq!(name.labels().collect::<Vec<_>>(), [&b"a"[..], b"b", b"example"]);
        assert_eq!(HostName::read(b"a").unwrap().parents().count(), 0);
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        for (text, host) in [
            ("Example.com", "example.com"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]", "::1"),
            ("[::FFFF:10.0.0.1]", "10.0.0.1"),
        ] {
            assert_eq!(Host::read(text.as_bytes()).unwrap().to_string(), host);
        }
        for text in [
            "",
            "::1",
            "[]",
            "[",
            "]",
            "[127.0.0.1]",
            "[::1",
            "[::1]:80",
            "[fe80::1%1]",
            "127.1",
            "a:80",
            "127.0.0.1.",
        ] {
            assert_eq!(Host::read(text.as_bytes()), None, "{text}");
        }
    }
}
