//! What a client sends to the proxy first: the host that it wants, and the password.
//!
//! ```text
//! CONNECT host:port HTTP/1.1        then 200, and the client uses the connection
//! GET http://host:port/x HTTP/1.1   one request, passed on in origin form
//! 05 …                              SOCKS5 (RFC 1928), user and password (RFC 1929), CONNECT only
//! ```
//!
//! The caller keeps the bytes, and passes in those that no earlier step consumed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::http_request::{
    self, FRAMING_HEADERS, HttpRequests, MAX_HEAD_BYTES, RequestError, RequestStep,
};
use crate::network::relay::refusal_response;
use crate::network::supervisor::proxy_password::{PROXY_USER, ProxyToken};
use crate::plan::host_name::Host;

/// The response to a successful CONNECT.
const CONNECT_SUCCEEDED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

const SOCKS_VERSION: u8 = 5;
const PASSWORD: u8 = 2;
const NO_METHOD: &[u8] = &[SOCKS_VERSION, 0xff];
/// Replies of the password negotiation (RFC 1929).
const PASSWORD_ACCEPTED: &[u8] = &[1, 0];
const PASSWORD_REJECTED: &[u8] = &[1, 1];

/// Reply codes of SOCKS (RFC 1928, 6).
const SUCCEEDED: u8 = 0;
const FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_COMMAND: u8 = 7;
const NO_ADDRESS: u8 = 8;

/// Headers between a client and its proxy (RFC 9110, 7.6.1).
const HOP_BY_HOP_HEADERS: [&[u8]; 6] =
    [b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"upgrade"];

const NO_TOKEN: &str = "the proxy needs the user and password in HTTP_PROXY";
const WRONG_TOKEN: &str = "the user or password for the proxy is wrong";
const NO_HOST: &str = "the proxy request names no host";
const MALFORMED: &str = "the proxy does not understand this request";

/// The protocol of a client, which decides the form of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    Connect,
    /// A request that is passed on.
    Request,
    Socks,
}

impl ProxyProtocol {
    /// The reply to a client that is now connected.
    pub fn success_reply(self) -> Vec<u8> {
        match self {
            ProxyProtocol::Connect => CONNECT_SUCCEEDED.to_vec(),
            ProxyProtocol::Request => Vec::new(),
            ProxyProtocol::Socks => reply(SUCCEEDED),
        }
    }

    /// The reply to a refused client: `answer` for HTTP.
    pub fn denial_reply(self, answer: Vec<u8>, status: &str) -> Vec<u8> {
        match self {
            ProxyProtocol::Connect | ProxyProtocol::Request => answer,
            ProxyProtocol::Socks => reply(if status == refusal_response::DENIED_STATUS {
                NOT_ALLOWED
            } else {
                UNREACHABLE
            }),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct ProxyRequest {
    pub host: Host,
    pub port: u16,
    pub protocol: ProxyProtocol,
    /// This many bytes belong to the greeting.
    pub consumed: usize,
    /// The bytes that replace them.
    pub head: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum GreetingStep {
    More,
    /// Send this reply now. The first number counts the consumed bytes.
    Reply(usize, &'static [u8]),
    Request(ProxyRequest),
    /// The final reply, and the reason if it is reported.
    Refused(Vec<u8>, Option<&'static str>),
}

/// What the client must send next.
#[derive(Debug, Default)]
enum GreetingStage {
    #[default]
    First,
    Request(HttpRequests),
    Password,
    SocksRequest,
}

#[derive(Debug, Default)]
pub struct ProxyGreeting(GreetingStage);

impl ProxyGreeting {
    pub fn next(&mut self, pending: &[u8], token: &ProxyToken) -> GreetingStep {
        match (&mut self.0, pending) {
            (_, []) => GreetingStep::More,
            (GreetingStage::First, [SOCKS_VERSION, ..]) => self.methods(pending),
            (GreetingStage::First, _) => {
                self.0 = GreetingStage::Request(HttpRequests::default());
                self.next(pending, token)
            }
            (GreetingStage::Request(requests), _) => {
                match requests.block(pending, MAX_HEAD_BYTES) {
                    Ok(None) => GreetingStep::More,
                    Ok(Some(length)) => {
                        http(pending, length, token).unwrap_or_else(|refused| refused)
                    }
                    Err(error) => malformed(error),
                }
            }
            (GreetingStage::Password, _) => self.password(pending, token),
            (GreetingStage::SocksRequest, _) => socks_request(pending),
        }
    }

    fn methods(&mut self, pending: &[u8]) -> GreetingStep {
        let [_, count, rest @ ..] = pending else { return GreetingStep::More };
        let Some(methods) = rest.get(..usize::from(*count)) else { return GreetingStep::More };
        if !methods.contains(&PASSWORD) {
            return GreetingStep::Refused(NO_METHOD.to_vec(), Some(NO_TOKEN));
        }
        self.0 = GreetingStage::Password;
        GreetingStep::Reply(2 + methods.len(), &[SOCKS_VERSION, PASSWORD])
    }

    fn password(&mut self, pending: &[u8], token: &ProxyToken) -> GreetingStep {
        let Some((user, rest)) = pending.get(1..).and_then(length_prefixed) else {
            return GreetingStep::More;
        };
        let Some((password, rest)) = length_prefixed(rest) else { return GreetingStep::More };
        if pending.first() != Some(&1) || user != PROXY_USER.as_bytes() || !token.matches(password)
        {
            return GreetingStep::Refused(PASSWORD_REJECTED.to_vec(), Some(WRONG_TOKEN));
        }
        self.0 = GreetingStage::SocksRequest;
        GreetingStep::Reply(pending.len() - rest.len(), PASSWORD_ACCEPTED)
    }
}

/// Splits a length byte and that many bytes from the rest.
fn length_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked((*length).into())
}

/// A SOCKS request: version, command, 0, type of address, address, port.
fn socks_request(pending: &[u8]) -> GreetingStep {
    let [version, command, reserved, kind, rest @ ..] = pending else { return GreetingStep::More };
    let refused = |code| GreetingStep::Refused(reply(code), Some(MALFORMED));
    let (host, rest) = match (*version, *command, *reserved, *kind) {
        (SOCKS_VERSION, 1, 0, 1) => match rest.split_first_chunk::<4>() {
            Some((address, rest)) => (Some(Host::Address(Ipv4Addr::from(*address).into())), rest),
            None => return GreetingStep::More,
        },
        (SOCKS_VERSION, 1, 0, 4) => match rest.split_first_chunk::<16>() {
            Some((address, rest)) => {
                (Some(Host::Address(IpAddr::V6(Ipv6Addr::from(*address)).to_canonical())), rest)
            }
            None => return GreetingStep::More,
        },
        (SOCKS_VERSION, 1, 0, 3) => match length_prefixed(rest) {
            Some((name, rest)) => (Host::read(name), rest),
            None => return GreetingStep::More,
        },
        (SOCKS_VERSION, 1, 0, _) => return refused(NO_ADDRESS),
        (SOCKS_VERSION, _, 0, _) => return refused(NO_COMMAND),
        _ => return refused(FAILURE),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return GreetingStep::More };
    match (host, u16::from_be_bytes(*port)) {
        (Some(host), port @ 1..) => GreetingStep::Request(ProxyRequest {
            host,
            port,
            protocol: ProxyProtocol::Socks,
            consumed: pending.len() - rest.len(),
            head: Vec::new(),
        }),
        _ => GreetingStep::Refused(reply(NOT_ALLOWED), Some(NO_HOST)),
    }
}

/// The reply does not contain the local address; no client needs it.
fn reply(code: u8) -> Vec<u8> {
    vec![SOCKS_VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Err: the request is refused.
fn http(pending: &[u8], length: usize, token: &ProxyToken) -> Result<GreetingStep, GreetingStep> {
    let mut lines = http_request::lines(pending, length);
    let line = lines.next().unwrap_or_default();
    let fields: Vec<(&[u8], &[u8])> =
        lines.map(http_request::field).collect::<Result<_, _>>().map_err(malformed)?;
    let mut credentials =
        fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"proxy-authorization"));
    match (credentials.next(), credentials.next()) {
        (Some((_, header)), None) if token.is_in_header(header) => {}
        // Some clients always try without a password first.
        (None, _) => return Err(unauthorised(None)),
        _ => return Err(unauthorised(Some(WRONG_TOKEN))),
    }
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version @ (b"HTTP/1.1" | b"HTTP/1.0")] = words[..] else {
        return Err(malformed(RequestError::Malformed));
    };
    if method.eq_ignore_ascii_case(b"CONNECT") {
        let Some((host, Some(port))) = http_request::authority(target) else {
            return Err(no_host());
        };
        return Ok(GreetingStep::Request(ProxyRequest {
            host,
            port,
            protocol: ProxyProtocol::Connect,
            consumed: length,
            head: Vec::new(),
        }));
    }
    // Ambiguous requests are refused, as on every other connection.
    match HttpRequests::default().next(pending.get(..length).unwrap_or_default()) {
        Ok(RequestStep::Head(_)) => {}
        Ok(_) => return Err(malformed(RequestError::Malformed)),
        Err(error) => return Err(malformed(error)),
    }
    // The target has a scheme, or starts with a slash.
    let rest =
        target.get(b"http://".len()..).filter(|_| !target.starts_with(b"/")).ok_or_else(no_host)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (named, path) = rest.split_at_checked(end).ok_or_else(no_host)?;
    let (host, port) = http_request::authority(named).ok_or_else(no_host)?;
    let head = origin_form(method, path, version, named, &fields);
    Ok(GreetingStep::Request(ProxyRequest {
        host,
        port: port.unwrap_or(80),
        protocol: ProxyProtocol::Request,
        consumed: length,
        head,
    }))
}

/// The request as the host receives it. A second request on the connection is not passed on: it
/// could name another host.
fn origin_form(
    method: &[u8],
    path: &[u8],
    version: &[u8],
    host: &[u8],
    fields: &[(&[u8], &[u8])],
) -> Vec<u8> {
    let is = |name: &[u8], other: &[u8]| name.eq_ignore_ascii_case(other);
    let named = fields
        .iter()
        .filter(|(name, _)| is(name, b"connection"))
        .flat_map(|(_, value)| http_request::words(value));
    let hop_by_hop: Vec<&[u8]> = named
        .filter(|word| !FRAMING_HEADERS.iter().any(|framing| is(word, framing)))
        .chain(HOP_BY_HOP_HEADERS)
        .collect();
    let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
    let mut head = [method, b" ", slash, path, b" ", version, b"\r\n"].concat();
    if !fields.iter().any(|(name, _)| is(name, b"host")) {
        head.extend([b"Host: ", host, b"\r\n"].concat());
    }
    for (name, value) in
        fields.iter().filter(|(name, _)| !hop_by_hop.iter().any(|one| is(name, one)))
    {
        head.extend([*name, b": ", *value, b"\r\n"].concat());
    }
    head.extend(b"Connection: close\r\n\r\n");
    head
}

fn malformed(error: RequestError) -> GreetingStep {
    GreetingStep::Refused(
        refusal_response::response("400 Bad Request", "", &format!("paddock: {error}\n")),
        Some(MALFORMED),
    )
}

fn no_host() -> GreetingStep {
    GreetingStep::Refused(
        refusal_response::response("400 Bad Request", "", &format!("paddock: {NO_HOST}\n")),
        Some(NO_HOST),
    )
}

fn unauthorised(reason: Option<&'static str>) -> GreetingStep {
    let status = "407 Proxy Authentication Required";
    let text = format!("paddock: {}\n", reason.unwrap_or(NO_TOKEN));
    GreetingStep::Refused(
        refusal_response::response(
            status,
            "Proxy-Authenticate: Basic realm=\"paddock\"\r\n",
            &text,
        ),
        reason,
    )
}

#[cfg(test)]
mod tests;
