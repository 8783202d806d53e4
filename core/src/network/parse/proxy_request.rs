//! What a client says to the proxy before the connection is its own: which host it wants, and that
//! it may ask.
//!
//! ```text
//! CONNECT host:port HTTP/1.1        then 200, and the connection is the client's
//! GET http://host:port/x HTTP/1.1   one request, passed on as the host would have been asked
//! 05 …                              SOCKS5 (RFC 1928) with user and password (RFC 1929), CONNECT alone
//! ```
//!
//! The caller keeps the bytes, and hands in those that no earlier step took.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::http_request::{self, FRAMING, HEAD_LIMIT, RequestError, Requests, Step as Framing};
use crate::network::relay::refusal_response;
use crate::network::supervisor::proxy_password::{Token, USER};
use crate::plan::host_name::Host;

/// What a client is told that got what it wanted.
const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

const SOCKS: u8 = 5;
const PASSWORD: u8 = 2;
const NO_METHOD: &[u8] = &[SOCKS, 0xff];
/// Of its negotiation.
const RIGHT: &[u8] = &[1, 0];
const WRONG: &[u8] = &[1, 1];

/// What is wrong with what a client of SOCKS wants (RFC 1928, 6).
const SUCCEEDED: u8 = 0;
const FAILURE: u8 = 1;
const NOT_ALLOWED: u8 = 2;
const UNREACHABLE: u8 = 4;
const NO_COMMAND: u8 = 7;
const NO_ADDRESS: u8 = 8;

/// Headers that are between a client and its proxy (RFC 9110, 7.6.1).
const BETWEEN_US: [&[u8]; 6] =
    [b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"upgrade"];

const NO_TOKEN: &str = "the proxy needs the user and password in HTTP_PROXY";
const WRONG_TOKEN: &str = "the user or password for the proxy is wrong";
const NO_HOST: &str = "the proxy request names no host";
const ODD: &str = "the proxy does not understand this request";

/// How a client asked, and so how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Connect,
    /// A request, itself to be passed on.
    Request,
    Socks,
}

impl Form {
    /// For a client that is connected now.
    pub fn welcome(self) -> Vec<u8> {
        match self {
            Form::Connect => CONNECTED.to_vec(),
            Form::Request => Vec::new(),
            Form::Socks => reply(SUCCEEDED),
        }
    }

    /// For one that is not: `answer` if it speaks HTTP.
    pub fn refusal(self, answer: Vec<u8>, status: &str) -> Vec<u8> {
        match self {
            Form::Connect | Form::Request => answer,
            Form::Socks => {
                reply(if status == refusal_response::DENIED { NOT_ALLOWED } else { UNREACHABLE })
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct ProxyRequest {
    pub host: Host,
    pub port: u16,
    pub form: Form,
    /// So many bytes were for us.
    pub taken: usize,
    /// What comes instead of them.
    pub head: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    More,
    /// To be answered at once; so many bytes were for us.
    Say(usize, &'static [u8]),
    Asked(ProxyRequest),
    /// The last words, and why, if that is worth telling.
    Refused(Vec<u8>, Option<&'static str>),
}

/// What a client has yet to say.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    First,
    Request(Requests),
    Password,
    Wish,
}

#[derive(Debug, Default)]
pub struct Greeting(Stage);

impl Greeting {
    pub fn next(&mut self, pending: &[u8], token: &Token) -> Step {
        match (&mut self.0, pending) {
            (_, []) => Step::More,
            (Stage::First, [SOCKS, ..]) => self.methods(pending),
            (Stage::First, _) => {
                self.0 = Stage::Request(Requests::default());
                self.next(pending, token)
            }
            (Stage::Request(requests), _) => match requests.block(pending, HEAD_LIMIT) {
                Ok(None) => Step::More,
                Ok(Some(length)) => http(pending, length, token).unwrap_or_else(|refused| refused),
                Err(error) => malformed(error),
            },
            (Stage::Password, _) => self.password(pending, token),
            (Stage::Wish, _) => wish(pending),
        }
    }

    fn methods(&mut self, pending: &[u8]) -> Step {
        let [_, count, rest @ ..] = pending else { return Step::More };
        let Some(methods) = rest.get(..usize::from(*count)) else { return Step::More };
        if !methods.contains(&PASSWORD) {
            return Step::Refused(NO_METHOD.to_vec(), Some(NO_TOKEN));
        }
        self.0 = Stage::Password;
        Step::Say(2 + methods.len(), &[SOCKS, PASSWORD])
    }

    fn password(&mut self, pending: &[u8], token: &Token) -> Step {
        let Some((user, rest)) = pending.get(1..).and_then(counted) else { return Step::More };
        let Some((password, rest)) = counted(rest) else { return Step::More };
        if pending.first() != Some(&1) || user != USER.as_bytes() || !token.is(password) {
            return Step::Refused(WRONG.to_vec(), Some(WRONG_TOKEN));
        }
        self.0 = Stage::Wish;
        Step::Say(pending.len() - rest.len(), RIGHT)
    }
}

/// A length, so many bytes, and what follows.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked((*length).into())
}

/// Version, command, 0, kind of address, address, port.
fn wish(pending: &[u8]) -> Step {
    let [version, command, reserved, kind, rest @ ..] = pending else { return Step::More };
    let refused = |code| Step::Refused(reply(code), Some(ODD));
    let (host, rest) = match (*version, *command, *reserved, *kind) {
        (SOCKS, 1, 0, 1) => match rest.split_first_chunk::<4>() {
            Some((address, rest)) => (Some(Host::Address(Ipv4Addr::from(*address).into())), rest),
            None => return Step::More,
        },
        (SOCKS, 1, 0, 4) => match rest.split_first_chunk::<16>() {
            Some((address, rest)) => {
                (Some(Host::Address(IpAddr::V6(Ipv6Addr::from(*address)).to_canonical())), rest)
            }
            None => return Step::More,
        },
        (SOCKS, 1, 0, 3) => match counted(rest) {
            Some((name, rest)) => (Host::read(name), rest),
            None => return Step::More,
        },
        (SOCKS, 1, 0, _) => return refused(NO_ADDRESS),
        (SOCKS, _, 0, _) => return refused(NO_COMMAND),
        _ => return refused(FAILURE),
    };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Step::More };
    match (host, u16::from_be_bytes(*port)) {
        (Some(host), port @ 1..) => Step::Asked(ProxyRequest {
            host,
            port,
            form: Form::Socks,
            taken: pending.len() - rest.len(),
            head: Vec::new(),
        }),
        _ => Step::Refused(reply(NOT_ALLOWED), Some(NO_HOST)),
    }
}

/// From where we dialled is nobody's business, and no client needs it.
fn reply(code: u8) -> Vec<u8> {
    vec![SOCKS, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Err: refused.
fn http(pending: &[u8], length: usize, token: &Token) -> Result<Step, Step> {
    let mut lines = http_request::lines(pending, length);
    let line = lines.next().unwrap_or_default();
    let fields: Vec<(&[u8], &[u8])> =
        lines.map(http_request::field).collect::<Result<_, _>>().map_err(malformed)?;
    let mut shown =
        fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"proxy-authorization"));
    match (shown.next(), shown.next()) {
        (Some((_, header)), None) if token.is_in(header) => {}
        // Some clients always try without, and come again.
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
        return Ok(Step::Asked(ProxyRequest {
            host,
            port,
            form: Form::Connect,
            taken: length,
            head: Vec::new(),
        }));
    }
    // Whatever can be read in two ways is refused as on every other connection.
    match Requests::default().next(pending.get(..length).unwrap_or_default()) {
        Ok(Framing::Head(_)) => {}
        Ok(_) => return Err(malformed(RequestError::Malformed)),
        Err(error) => return Err(malformed(error)),
    }
    // It has a scheme, or begins with a slash.
    let rest =
        target.get(b"http://".len()..).filter(|_| !target.starts_with(b"/")).ok_or_else(no_host)?;
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (named, path) = rest.split_at_checked(end).ok_or_else(no_host)?;
    let (host, port) = http_request::authority(named).ok_or_else(no_host)?;
    let head = origin_form(method, path, version, named, &fields);
    Ok(Step::Asked(ProxyRequest {
        host,
        port: port.unwrap_or(80),
        form: Form::Request,
        taken: length,
        head,
    }))
}

/// The request as the host gets it. There is no second one on the connection, which might be for
/// another.
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
    let between_us: Vec<&[u8]> = named
        .filter(|word| !FRAMING.iter().any(|framing| is(word, framing)))
        .chain(BETWEEN_US)
        .collect();
    let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
    let mut head = [method, b" ", slash, path, b" ", version, b"\r\n"].concat();
    if !fields.iter().any(|(name, _)| is(name, b"host")) {
        head.extend([b"Host: ", host, b"\r\n"].concat());
    }
    for (name, value) in
        fields.iter().filter(|(name, _)| !between_us.iter().any(|one| is(name, one)))
    {
        head.extend([*name, b": ", *value, b"\r\n"].concat());
    }
    head.extend(b"Connection: close\r\n\r\n");
    head
}

fn malformed(error: RequestError) -> Step {
    Step::Refused(
        refusal_response::response("400 Bad Request", "", &format!("paddock: {error}\n")),
        Some(ODD),
    )
}

fn no_host() -> Step {
    Step::Refused(
        refusal_response::response("400 Bad Request", "", &format!("paddock: {NO_HOST}\n")),
        Some(NO_HOST),
    )
}

fn unauthorised(told: Option<&'static str>) -> Step {
    let status = "407 Proxy Authentication Required";
    let text = format!("paddock: {}\n", told.unwrap_or(NO_TOKEN));
    Step::Refused(
        refusal_response::response(
            status,
            "Proxy-Authenticate: Basic realm=\"paddock\"\r\n",
            &text,
        ),
        told,
    )
}

#[cfg(test)]
mod tests;
