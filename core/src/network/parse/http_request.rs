//! The requests on a connection of HTTP/1 (RFC 9112): which host each is for, and where it ends.
//!
//! What a server might read in another way is refused: a request inside of what is a body here
//! would be for a host that nobody judged.
//!
//! The caller keeps the bytes and hands in those that were not passed on yet:
//!
//! ```text
//! loop: match requests.next(pending)?
//!     More       read more, behind pending
//!     Head(head) judge head.host; if it may: pass head.length bytes on
//!     Pass(n)    pass the next n bytes on, those that are here and those to come (splice)
//!     Open       pass everything on from here: it is no longer HTTP
//! ```
//!
//! Whether a server agrees to another protocol (`Upgrade`) stands in its response. What comes
//! behind such a request waits until it is `answered`. That is the first thing that the server says
//! only if it is the first request: no other one may ask for it.

#[cfg(test)]
mod tests;

use crate::plan::host_name::Host;

/// The longest head of a request.
pub const HEAD_LIMIT: usize = 64 << 10;
/// The longest line with the size of a chunk.
const SIZE_LIMIT: usize = 1 << 10;
/// All that follows the last chunk.
const TRAILER_LIMIT: usize = 8 << 10;

/// Headers that say whom a request is for and how long it is.
pub(super) const FRAMING: [&[u8]; 3] = [b"host", b"content-length", b"transfer-encoding"];

/// Servers expect no body with these. Some do not read it, and take it for the next request
/// (Python's http.server does).
const BODILESS: [&[u8]; 5] = [b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"];

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// More bytes are needed to say; never said of `HEAD_LIMIT` bytes.
    More,
    /// Something that a server might take for a request of HTTP, good or bad.
    Request,
    Other,
    /// Nothing that has to wait; but its line may yet become a request to somebody
    /// ([`is_request`]).
    Unended,
}

/// Servers forgive what stands before a request and between its words; Python takes all of these
/// for blanks.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x0b | 0x0c | b'\r' | 0x1c..=0x20 | 0x85 | 0xa0)
}

/// A line that somebody reads as a request: behind its method comes a version of HTTP, or something
/// that is served. Node, Java and Python ask for no version.
pub fn is_request(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_version =
        |word: &[u8]| word.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/"));
    let takes = |method: &[u8], target: &[u8]| {
        method.iter().copied().all(is_token) && (is_usual(method) || target.iter().all(is_graphic))
    };
    line.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty()).skip(1).any(is_version)
        || is_served(line, is_blank, takes)
        || is_request_to_java(line)
}

/// Its lines end with CR and LF together, nothing but a blank is one, and it takes every method,
/// but not every target: what git and programs that speak no text say is no line to it.
pub fn is_request_to_java(line: &[u8]) -> bool {
    is_served(line, |byte| byte == b' ', |_, target| target.iter().all(is_graphic))
}

fn is_served(line: &[u8], parts: fn(u8) -> bool, takes: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let mut words = line.split(|byte| parts(*byte)).filter(|word| !word.is_empty());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_target =
        target.starts_with(b"/") || target == b"*" || target.windows(3).any(|part| part == b"://");
    is_target && takes(method, target)
}

fn is_graphic(byte: &u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..)
}

fn is_usual(method: &[u8]) -> bool {
    method.iter().all(u8::is_ascii_uppercase)
}

pub fn first(bytes: &[u8]) -> First {
    let undecided = if bytes.len() < HEAD_LIMIT { First::More } else { First::Request };
    let start =
        bytes.iter().position(|byte| *byte != b'\n' && !is_blank(*byte)).unwrap_or(bytes.len());
    let bytes = bytes.get(start..).unwrap_or_default();
    if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = bytes.get(..end).unwrap_or_default();
        let whole =
            bytes.windows(2).position(|part| part == b"\r\n").and_then(|end| bytes.get(..end));
        return match whole {
            _ if is_request(line) => First::Request,
            Some(whole) if is_request_to_java(whole) => First::Request,
            Some(_) => First::Other,
            None => First::Unended,
        };
    }
    let length = bytes.iter().position(|byte| !is_token(*byte)).unwrap_or(bytes.len());
    let (method, rest) = bytes.split_at_checked(length).unwrap_or_default();
    match rest {
        [] => undecided,
        // Git's own protocol has no line that ends.
        [blank, ..] if is_blank(*blank) && (is_usual(method) || !rest.contains(&0)) => undecided,
        _ => First::Unended,
    }
}

enum Begins {
    Undecided,
    Request,
    Other,
}

/// Does a body begin with a line that a server could read as a request? `is_whole`: nothing of it
/// is to come.
fn body_begins(body: &[u8], is_whole: bool) -> Begins {
    let start =
        body.iter().position(|byte| *byte != b'\n' && !is_blank(*byte)).unwrap_or(body.len());
    let body = body.get(start..).unwrap_or_default();
    let end = body.iter().position(|byte| *byte == b'\n').or(is_whole.then_some(body.len()));
    // No server has a method of other letters: a long line of JSON is not waited for.
    let word = body.iter().position(|byte| !is_token(*byte)).unwrap_or(body.len());
    let is_method = body.get(word).is_none_or(|byte| word > 0 && is_blank(*byte));
    match end {
        _ if !is_method => Begins::Other,
        None => Begins::Undecided,
        Some(end) if is_request(body.get(..end).unwrap_or_default()) => Begins::Request,
        Some(_) => Begins::Other,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing may be passed on before more is there.
    More,
    /// A request begins: to be judged before it is passed on.
    Head(Head),
    /// So many bytes may be passed on unseen. They need not be here yet.
    Pass(u64),
    /// All that follows may be passed on.
    Open,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// In bytes, with the empty line at its end.
    pub length: usize,
    /// None: HTTP/1.0 without a Host.
    pub host: Option<Host>,
    pub port: Option<u16>,
}

/// Why the connection can not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("the head of the request is too long")]
    Long,
    #[error("the request is malformed")]
    Malformed,
    #[error("the request is not HTTP/1")]
    Version,
    #[error("the request names no host, or more than one")]
    Host,
    #[error("the length of the request is ambiguous")]
    Length,
    #[error("CONNECT is not supported here")]
    Connect,
    #[error("HTTP/2 without TLS is not supported here")]
    Http2,
    #[error("only the first request of a connection can switch the protocol")]
    Late,
    #[error("a server could read the body of this request as another request")]
    Body,
}

/// The requests of one connection.
#[derive(Debug, Default)]
pub struct Requests {
    state: State,
    /// A request was seen.
    begun: bool,
    /// So many pending bytes were searched for the end of the head or of the trailers.
    searched: usize,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    /// A body that some servers do not read: its beginning must not be a request. So many bytes.
    Doubtful(u64),
    Body(u64),
    /// A chunk's size. `is_plain`: nothing else may stand in its line, because some servers do not
    /// read the body.
    Size {
        is_plain: bool,
    },
    /// The end of a chunk's line.
    ChunkEnd,
    Trailers,
    /// The server's word on another protocol.
    Answer,
    Open,
}

impl Requests {
    /// `pending`: all bytes that no earlier step let pass.
    pub fn next(&mut self, pending: &[u8]) -> Result<Step, RequestError> {
        match self.state {
            State::Head => match pending {
                // Some clients end a body with an empty line that does not count; servers skip it
                // (RFC 9112, 2.2).
                [b'\r', b'\n', ..] => Ok(Step::Pass(2)),
                [] | [b'\r'] => Ok(Step::More),
                _ => self.head(pending),
            },
            State::Doubtful(length) => {
                let body =
                    pending.get(..usize::try_from(length).unwrap_or(usize::MAX)).unwrap_or(pending);
                match body_begins(body, body.len() as u64 == length) {
                    Begins::Undecided if body.len() < HEAD_LIMIT => Ok(Step::More),
                    Begins::Undecided | Begins::Request => Err(RequestError::Body),
                    Begins::Other => {
                        self.state = State::Head;
                        Ok(Step::Pass(length))
                    }
                }
            }
            State::Body(length) => {
                self.state = State::Head;
                Ok(Step::Pass(length))
            }
            State::Size { is_plain } => self.size(pending, is_plain),
            State::ChunkEnd => match pending {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size { is_plain: false };
                    Ok(Step::Pass(2))
                }
                [] | [b'\r'] => Ok(Step::More),
                _ => Err(RequestError::Malformed),
            },
            State::Trailers => {
                let Some(length) = self.block(pending, TRAILER_LIMIT)? else {
                    return Ok(Step::More);
                };
                for line in lines(pending, length) {
                    let (name, _) = field(line)?;
                    // Some servers put them to the headers, where these would count (RFC 9110,
                    // 6.5.1).
                    if FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
                        return Err(RequestError::Malformed);
                    }
                }
                self.state = State::Head;
                Ok(Step::Pass(length as u64))
            }
            State::Answer => Ok(Step::More),
            State::Open => Ok(Step::Open),
        }
    }

    /// The server has to say whether it agrees to another protocol.
    pub fn awaits_answer(&self) -> bool {
        self.state == State::Answer
    }

    pub fn answered(&mut self, agreed: bool) {
        self.state = if agreed { State::Open } else { State::Head };
    }

    /// All of the last request was seen, and nothing of the next.
    pub fn is_between(&self) -> bool {
        self.state == State::Head
    }

    fn head(&mut self, pending: &[u8]) -> Result<Step, RequestError> {
        let Some(length) = self.block(pending, HEAD_LIMIT)? else { return Ok(Step::More) };
        let (host, port, next) = read(lines(pending, length))?;
        if next == State::Answer && self.begun {
            return Err(RequestError::Late);
        }
        (self.state, self.begun) = (next, true);
        Ok(Step::Head(Head { length, host, port }))
    }

    fn size(&mut self, pending: &[u8], is_plain: bool) -> Result<Step, RequestError> {
        let Some(end) = pending.iter().take(SIZE_LIMIT).position(|byte| *byte == b'\n') else {
            return if pending.len() < SIZE_LIMIT {
                Ok(Step::More)
            } else {
                Err(RequestError::Malformed)
            };
        };
        let line = pending
            .get(..end)
            .and_then(|line| line.strip_suffix(b"\r"))
            .ok_or(RequestError::Malformed)?;
        let digits = line.iter().position(|byte| *byte == b';').unwrap_or(line.len());
        let (digits, extension) = line.split_at_checked(digits).unwrap_or_default();
        // Not so long that one that is not careful takes it for something smaller.
        let plain = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let size = std::str::from_utf8(digits)
            .ok()
            .and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let size = size
            .filter(|_| plain && extension.iter().all(is_text))
            .ok_or(RequestError::Malformed)?;
        if is_plain && !extension.is_empty() {
            return Err(RequestError::Body);
        }
        self.state = if size == 0 { State::Trailers } else { State::ChunkEnd };
        Ok(Step::Pass(size + end as u64 + 1))
    }

    /// How long the lines are until the empty one, with it, if that is there already. Each ends
    /// with CR and LF.
    pub(super) fn block(
        &mut self,
        pending: &[u8],
        limit: usize,
    ) -> Result<Option<usize>, RequestError> {
        for (at, _) in pending
            .iter()
            .enumerate()
            .take(limit)
            .skip(self.searched)
            .filter(|(_, byte)| **byte == b'\n')
        {
            let line = pending
                .get(..at)
                .and_then(|before| before.strip_suffix(b"\r"))
                .ok_or(RequestError::Malformed)?;
            if line.is_empty() || line.ends_with(b"\n") {
                self.searched = 0;
                return Ok(Some(at + 1));
            }
        }
        self.searched = pending.len();
        if pending.len() < limit { Ok(None) } else { Err(RequestError::Long) }
    }
}

/// Those of a block, without the empty one.
pub(super) fn lines(pending: &[u8], length: usize) -> impl Iterator<Item = &[u8]> {
    let block = pending.get(..length.saturating_sub(2)).unwrap_or_default();
    block
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r\n").unwrap_or(line))
}

pub(super) type Authority = (Host, Option<u16>);

/// Whom a request is for, and what comes behind its head.
fn read<'a>(
    mut lines: impl Iterator<Item = &'a [u8]>,
) -> Result<(Option<Host>, Option<u16>, State), RequestError> {
    let (method, target, newer) = request_line(lines.next().unwrap_or_default())?;
    let is_bodiless = BODILESS.iter().any(|bodiless| method.eq_ignore_ascii_case(bodiless));
    let mut host: Option<Authority> = None;
    let mut length = None;
    let mut chunked = false;
    let (mut upgrades, mut connection_upgrades) = (false, false);
    for line in lines {
        let (name, value) = field(line)?;
        match name.to_ascii_lowercase().as_slice() {
            b"host" => {
                let read = authority(value).ok_or(RequestError::Host)?;
                if host.replace(read).is_some() {
                    return Err(RequestError::Host);
                }
            }
            b"content-length" => {
                let read = number(value).ok_or(RequestError::Length)?;
                if length.replace(read).is_some() {
                    return Err(RequestError::Length);
                }
            }
            b"transfer-encoding" => {
                if chunked || !newer || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(RequestError::Length);
                }
                chunked = true;
            }
            b"upgrade" => {
                upgrades = true;
                if words(value).any(|word| {
                    word.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(b"h2"))
                }) {
                    return Err(RequestError::Http2);
                }
            }
            b"connection" => {
                connection_upgrades |=
                    words(value).any(|word| word.eq_ignore_ascii_case(b"upgrade"))
            }
            // To programs that get them as variables of the environment these are the same (RFC
            // 3875, 4.1.18).
            b"content_length" | b"transfer_encoding" => return Err(RequestError::Length),
            _ => {}
        }
    }
    let (host, port) = match (target, host) {
        (Some(target), Some(host)) if !agree(&target, &host) => return Err(RequestError::Host),
        (None, None) if newer => return Err(RequestError::Host),
        (target, host) => host.or(target).map_or((None, None), |(host, port)| (Some(host), port)),
    };
    let next = match (length, chunked) {
        (Some(_), true) => return Err(RequestError::Length),
        (None, true) => State::Size { is_plain: is_bodiless },
        (Some(length @ 1..), false) if is_bodiless => State::Doubtful(length),
        (Some(length @ 1..), false) => State::Body(length),
        // HTTP/1.0 knows no other protocols (RFC 9110, 7.8).
        _ if newer && upgrades && connection_upgrades => State::Answer,
        _ => State::Head,
    };
    Ok((host, port, next))
}

/// The method, the host in the target, if there is one, and whether it is of HTTP/1.1.
fn request_line(line: &[u8]) -> Result<(&[u8], Option<Authority>, bool), RequestError> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(RequestError::Malformed);
    };
    let newer = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        b"HTTP/2.0" => return Err(RequestError::Http2),
        _ => return Err(RequestError::Version),
    };
    if method.is_empty()
        || !method.iter().copied().all(is_token)
        || !target.iter().all(is_text)
        || target.contains(&b'\t')
    {
        return Err(RequestError::Malformed);
    }
    if method.eq_ignore_ascii_case(b"CONNECT") {
        return Err(RequestError::Connect);
    }
    match target {
        [b'/', ..] => return Ok((method, None, newer)),
        b"*" if method == b"OPTIONS" => return Ok((method, None, newer)),
        _ => {}
    }
    let (scheme, rest) = target.split_at_checked(7).ok_or(RequestError::Malformed)?;
    if !scheme.eq_ignore_ascii_case(b"http://") {
        return Err(RequestError::Malformed);
    }
    let named = rest.split(|byte| matches!(byte, b'/' | b'?')).next().and_then(authority);
    Ok((method, Some(named.ok_or(RequestError::Host)?), newer))
}

/// Name and value of a header. No line goes on in the next one, and nothing stands between the name
/// and the colon.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), RequestError> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(RequestError::Malformed)?;
    let (name, value) = line.split_at_checked(colon).ok_or(RequestError::Malformed)?;
    let value = value.strip_prefix(b":").unwrap_or(value);
    if name.is_empty() || !name.iter().copied().all(is_token) || !value.iter().all(is_text) {
        return Err(RequestError::Malformed);
    }
    Ok((name, value.trim_ascii()))
}

/// A host, and a port if there is one.
pub(super) fn authority(text: &[u8]) -> Option<Authority> {
    let after = text.iter().position(|byte| *byte == b']').unwrap_or(0);
    match text.iter().skip(after).position(|byte| *byte == b':') {
        Some(colon) => {
            let (host, port) = text.split_at_checked(after + colon)?;
            let port = number(port.strip_prefix(b":")?).and_then(|port| u16::try_from(port).ok());
            Some((Host::read(host)?, Some(port.filter(|port| *port != 0)?)))
        }
        None => Some((Host::read(text)?, None)),
    }
}

/// It is about HTTP in clear, so the port that is not named is 80.
fn agree(one: &Authority, other: &Authority) -> bool {
    one.0 == other.0 && one.1.unwrap_or(80) == other.1.unwrap_or(80)
}

/// Digits and nothing else; none of them a 0 that would make it octal to some.
fn number(text: &[u8]) -> Option<u64> {
    let plain = text == b"0" || !text.starts_with(b"0") && text.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(text).ok().filter(|_| plain)?;
    // Others have a sign.
    digits.parse().ok().filter(|number| *number <= i64::MAX as u64)
}

/// Of a list with commas.
pub(super) fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// No control byte but the tab.
fn is_text(byte: &u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}
