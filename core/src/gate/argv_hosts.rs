//! The hosts of http and https URLs in a command's arguments, for `argv_host_in`.
//!
//! Programs read URLs in many ways (`https:/host`, `https://a\@b`, `http://0x7f.1`,
//! `https://{a,b}.example`). Only a URL that RFC 3986 reads in one way, with a plain name or
//! address, has a host here. Any other text that begins like a URL is in doubt, and doubt never
//! allows.

use std::net::{IpAddr, Ipv6Addr};

use iri_string::types::UriStr;

use crate::plan::host_name::{Host, HostName};

/// A host in a policy: `*`, `name`, `*.name` for all below a name but not itself, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    Any,
    Is(Host),
    Below(HostName),
}

impl HostPattern {
    pub fn read(text: &[u8]) -> Option<HostPattern> {
        if text == b"*" {
            return Some(HostPattern::Any);
        }
        if let Some(parent) = text.strip_prefix(b"*.") {
            return HostName::read(parent).map(HostPattern::Below);
        }
        let bare: Option<Ipv6Addr> =
            std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let bare = bare.map(|address| Host::Address(IpAddr::V6(address).to_canonical()));
        bare.or_else(|| Host::read(text)).map(HostPattern::Is)
    }

    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (HostPattern::Any, _) => true,
            (HostPattern::Is(wanted), _) => wanted == host,
            (HostPattern::Below(parent), Host::Name(name)) => {
                name.parents().any(|above| above == parent.as_bytes())
            }
            (HostPattern::Below(_), _) => false,
        }
    }
}

/// The hosts of all URLs in one argument; None for one in doubt.
pub fn in_argument(argument: &[u8], found: &mut Vec<Option<Host>>) {
    for start in 0..argument.len() {
        let text = &argument[start..];
        let scheme = match text {
            [h, t1, t2, p, b':', ..] if is_http(&[*h, *t1, *t2, *p]) => 4,
            [h, t1, t2, p, b's' | b'S', b':', ..] if is_http(&[*h, *t1, *t2, *p]) => 5,
            _ => continue,
        };
        found.push(host_of(text, scheme));
    }
}

fn is_http(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"http")
}

fn host_of(text: &[u8], scheme: usize) -> Option<Host> {
    let authority = text[scheme..].strip_prefix(b"://")?;
    // The rest after the authority does not change the host. Nothing else ends it, neither a quote
    // nor a blank.
    let length = authority
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?' | b'#'))
        .unwrap_or(authority.len());
    let address = UriStr::new(std::str::from_utf8(&text[..scheme + 3 + length]).ok()?).ok()?;
    Host::read(address.authority_components()?.host().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(argument: &str) -> Vec<Option<Host>> {
        let mut found = Vec::new();
        in_argument(argument.as_bytes(), &mut found);
        found
    }

    fn name(text: &str) -> Option<Host> {
        HostName::read(text.as_bytes()).map(Host::Name)
    }

    fn address(text: &str) -> Option<Host> {
        Some(Host::Address(text.parse().unwrap()))
    }

    #[test]
    fn a_host_is_one_that_every_parser_reads() {
        for (argument, expected) in [
            ("https://api.github.com/x?y#z", vec![name("api.github.com")]),
            ("HTTPS://API.GitHub.com:443", vec![name("api.github.com")]),
            ("http://api.github.com./", vec![name("api.github.com")]),
            ("--url=https://a.example/b", vec![name("a.example")]),
            ("git+https://a.example/b.git", vec![name("a.example")]),
            ("https://api.github.com@evil.example/", vec![name("evil.example")]),
            ("https://user:pass@evil.example:8080/", vec![name("evil.example")]),
            ("https://[2001:DB8::1]:8443/", vec![address("2001:db8::1")]),
            ("http://127.0.0.1/", vec![address("127.0.0.1")]),
            (
                "see https://a.example/, then 'https://b.example/'",
                vec![name("a.example"), name("b.example")],
            ),
            ("https://a.example/?to=https://b.example", vec![name("a.example"), name("b.example")]),
            ("ftp://a.example", vec![]),
            ("a.example", vec![]),
            ("http", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(hosts(argument), expected, "{argument}");
        }
    }

    #[test]
    fn a_url_that_parsers_read_differently_is_in_doubt() {
        for argument in [
            "https:/evil.example",
            "https:evil.example",
            r"https:\\evil.example",
            r"https://ok.example\@evil.example/",
            "https://a@b@evil.example/",
            "https://{ok,evil}.example/",
            "https://ok[1-3].example/",
            "https://ok%2eexample/",
            "https://b\u{fc}cher.example/",
            "https://a.example;id",
            "https://a..example/",
            "https:///evil.example",
            "https://",
            "http://2130706433/",
            "http://127.1/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://[::1%25eth0]/",
            "https://ok.example .evil.example/",
            "https://ok.example\n.evil.example/",
            "https://ok.example'.evil.example/",
        ] {
            assert_eq!(hosts(argument), [None], "{argument:?}");
        }
    }

    #[test]
    fn patterns_match_exactly_or_everything_below() {
        let pattern = |text: &str| HostPattern::read(text.as_bytes()).unwrap();
        let host = |text: &str| Host::read(text.as_bytes()).unwrap();
        for (written, asked, expected) in [
            ("GitHub.com", "github.com", true),
            ("github.com.", "github.com", true),
            ("github.com", "api.github.com", false),
            ("*.github.com", "api.github.com", true),
            ("*.github.com", "a.b.github.com", true),
            ("*.github.com", "github.com", false),
            ("*.github.com", "evilgithub.com", false),
            ("*", "anything.example", true),
            ("*", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::1", "[0:0:0:0:0:0:0:1]", true),
            ("[::1]", "[::1]", true),
            ("10.0.0.1", "[::ffff:10.0.0.1]", true),
        ] {
            assert_eq!(pattern(written).matches(&host(asked)), expected, "{written} {asked}");
        }
        for refused in
            ["", "*.", "*.1.2.3.4", "a b", "@pypi", "a/b", "https://a", "a..b", "*a", "1.2.3"]
        {
            assert_eq!(HostPattern::read(refused.as_bytes()), None, "{refused}");
        }
    }
}
