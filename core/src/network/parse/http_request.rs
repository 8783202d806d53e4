//! The requests on an HTTP/1 connection (RFC 9112): the host of each, and where it ends.
//!
//! A request that some server could read in another way is refused: a request inside of what this
//! parser takes for a body would reach a host without a decision.
//!
//! The caller keeps the bytes, and passes in those that were not passed on yet:
//!
//! ```text
//! loop: match requests.next(pending)?
//!     More       read more, behind pending
//!     Head(head) judge head.host; if it may: pass head.length bytes on
//!     Pass(n)    pass the next n bytes on, those that are here and those to come (splice)
//!     Open       pass everything on from here: it is no longer HTTP
//! ```
//!
//! The response says whether a server switches to another protocol (`Upgrade`). The bytes after
//! such a request wait until `answered` is called. Only the first request of a connection may ask
//! for an upgrade, because only then the first bytes from the server are the answer to it.

#[cfg(test)]
mod tests;

use crate::plan::host_name::Host;

/// The longest head of a request.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// The longest line with the size of a chunk.
const MAX_CHUNK_LINE_BYTES: usize = 1 << 10;
/// All that follows the last chunk.
const MAX_TRAILER_BYTES: usize = 8 << 10;

/// Headers that say whom a request is for and how long it is.
pub(super) const FRAMING_HEADERS: [&[u8]; 3] = [b"host", b"content-length", b"transfer-encoding"];

/// Servers expect no body with these. Some do not read it, and take it for the next request
/// (Python's http.server does).
const BODILESS_METHODS: [&[u8]; 5] = [b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"];

/// The kind of the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// More bytes are needed. Never returned for `MAX_HEAD_BYTES` bytes.
    More,
    /// A server might read it as an HTTP request, valid or not.
    Request,
    Other,
    /// Not a request so far, but its line can still become one ([`is_request`]).
    Unended,
}

/// Servers tolerate these bytes before a request and between its words. Python treats all of them
/// as blanks.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x0b | 0x0c | b'\r' | 0x1c..=0x20 | 0x85 | 0xa0)
}

/// True if some server reads the line as a request: after the method comes an HTTP version or a
/// target that is served. Node, Java and Python need no version.
pub fn is_request(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let is_version =
        |word: &[u8]| word.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/"));
    let takes = |method: &[u8], target: &[u8]| {
        method.iter().copied().all(is_token)
            && (is_uppercase(method) || target.iter().all(is_graphic))
    };
    line.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty()).skip(1).any(is_version)
        || has_served_target(line, is_blank, takes)
        || is_request_to_java(line)
}

/// Java's server ends lines only with CR LF, separates words only by blanks, and accepts every
/// method but not every target. Git and binary protocols do not look like requests to it.
pub fn is_request_to_java(line: &[u8]) -> bool {
    has_served_target(line, |byte| byte == b' ', |_, target| target.iter().all(is_graphic))
}

fn has_served_target(
    line: &[u8],
    parts: fn(u8) -> bool,
    takes: impl Fn(&[u8], &[u8]) -> bool,
) -> bool {
    let mut words = line.split(|byte| parts(*byte)).filter(|word| !word.is_empty());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_target =
        target.starts_with(b"/") || target == b"*" || target.windows(3).any(|part| part == b"://");
    is_target && takes(method, target)
}

fn is_graphic(byte: &u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..)
}

fn is_uppercase(method: &[u8]) -> bool {
    method.iter().all(u8::is_ascii_uppercase)
}

pub fn classify_first_bytes(bytes: &[u8]) -> FirstBytes {
    let undecided =
        if bytes.len() < MAX_HEAD_BYTES { FirstBytes::More } else { FirstBytes::Request };
    let start =
        bytes.iter().position(|byte| *byte != b'\n' && !is_blank(*byte)).unwrap_or(bytes.len());
    let bytes = bytes.get(start..).unwrap_or_default();
    if let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let line = bytes.get(..end).unwrap_or_default();
        let whole =
            bytes.windows(2).position(|part| part == b"\r\n").and_then(|end| bytes.get(..end));
        return match whole {
            _ if is_request(line) => FirstBytes::Request,
            Some(whole) if is_request_to_java(whole) => FirstBytes::Request,
            Some(_) => FirstBytes::Other,
            None => FirstBytes::Unended,
        };
    }
    let length = bytes.iter().position(|byte| !is_token(*byte)).unwrap_or(bytes.len());
    let (method, rest) = bytes.split_at_checked(length).unwrap_or_default();
    match rest {
        [] => undecided,
        // Git's own protocol has lines without an end.
        [blank, ..] if is_blank(*blank) && (is_uppercase(method) || !rest.contains(&0)) => {
            undecided
        }
        _ => FirstBytes::Unended,
    }
}

enum BodyStart {
    Undecided,
    Request,
    Other,
}

/// Checks whether a body starts with a line that a server could read as a request. `is_whole`: no
/// more bytes follow.
fn body_begins(body: &[u8], is_whole: bool) -> BodyStart {
    let start =
        body.iter().position(|byte| *byte != b'\n' && !is_blank(*byte)).unwrap_or(body.len());
    let body = body.get(start..).unwrap_or_default();
    let end = body.iter().position(|byte| *byte == b'\n').or(is_whole.then_some(body.len()));
    // No server has a method with other characters, so a long line of JSON need not be complete.
    let word = body.iter().position(|byte| !is_token(*byte)).unwrap_or(body.len());
    let is_method = body.get(word).is_none_or(|byte| word > 0 && is_blank(*byte));
    match end {
        _ if !is_method => BodyStart::Other,
        None => BodyStart::Undecided,
        Some(end) if is_request(body.get(..end).unwrap_or_default()) => BodyStart::Request,
        Some(_) => BodyStart::Other,
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestStep {
    /// More bytes are needed before anything is passed on.
    More,
    /// The head of a request. The caller judges it before passing it on.
    Head(RequestHead),
    /// This many bytes may be passed on unseen. They may still have to arrive.
    Pass(u64),
    /// Everything that follows may be passed on.
    Open,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Length in bytes, including the empty line at the end.
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
pub struct HttpRequests {
    state: RequestState,
    /// True once a request was seen.
    has_seen_request: bool,
    /// Bytes that were already searched for the end of the head or the trailers.
    searched: usize,
}

/// What the parser expects next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestState {
    #[default]
    Head,
    /// A body of this length that some servers do not read: it must not start with a request.
    Doubtful(u64),
    Body(u64),
    /// The size line of a chunk. `is_plain`: it may only contain the size, because some servers do
    /// not read the body.
    Size {
        is_plain: bool,
    },
    /// The line end after a chunk.
    ChunkEnd,
    Trailers,
    /// The server's answer about another protocol.
    Answer,
    Open,
}

impl HttpRequests {
    /// `pending`: all bytes that no earlier step passed on.
    pub fn next(&mut self, pending: &[u8]) -> Result<RequestStep, RequestError> {
        match self.state {
            RequestState::Head => match pending {
                // Some clients send an extra empty line after a body; servers skip it (RFC 9112,
                // 2.2).
                [b'\r', b'\n', ..] => Ok(RequestStep::Pass(2)),
                [] | [b'\r'] => Ok(RequestStep::More),
                _ => self.head(pending),
            },
            RequestState::Doubtful(length) => {
                let body =
                    pending.get(..usize::try_from(length).unwrap_or(usize::MAX)).unwrap_or(pending);
                match body_begins(body, body.len() as u64 == length) {
                    BodyStart::Undecided if body.len() < MAX_HEAD_BYTES => Ok(RequestStep::More),
                    BodyStart::Undecided | BodyStart::Request => Err(RequestError::Body),
                    BodyStart::Other => {
                        self.state = RequestState::Head;
                        Ok(RequestStep::Pass(length))
                    }
                }
            }
            RequestState::Body(length) => {
                self.state = RequestState::Head;
                Ok(RequestStep::Pass(length))
            }
            RequestState::Size { is_plain } => self.size(pending, is_plain),
            RequestState::ChunkEnd => match pending {
                [b'\r', b'\n', ..] => {
                    self.state = RequestState::Size { is_plain: false };
                    Ok(RequestStep::Pass(2))
                }
                [] | [b'\r'] => Ok(RequestStep::More),
                _ => Err(RequestError::Malformed),
            },
            RequestState::Trailers => {
                let Some(length) = self.block(pending, MAX_TRAILER_BYTES)? else {
                    return Ok(RequestStep::More);
                };
                for line in lines(pending, length) {
                    let (name, _) = field(line)?;
                    // Some servers merge trailers into the headers, where these fields would count
                    // (RFC 9110, 6.5.1).
                    if FRAMING_HEADERS.iter().any(|framing| name.eq_ignore_ascii_case(framing)) {
                        return Err(RequestError::Malformed);
                    }
                }
                self.state = RequestState::Head;
                Ok(RequestStep::Pass(length as u64))
            }
            RequestState::Answer => Ok(RequestStep::More),
            RequestState::Open => Ok(RequestStep::Open),
        }
    }

    /// True while the server has to answer whether it switches protocols.
    pub fn awaits_answer(&self) -> bool {
        self.state == RequestState::Answer
    }

    pub fn answered(&mut self, agreed: bool) {
        self.state = if agreed { RequestState::Open } else { RequestState::Head };
    }

    /// True if the last request is complete and the next has not started.
    pub fn is_between_requests(&self) -> bool {
        self.state == RequestState::Head
    }

    fn head(&mut self, pending: &[u8]) -> Result<RequestStep, RequestError> {
        let Some(length) = self.block(pending, MAX_HEAD_BYTES)? else {
            return Ok(RequestStep::More);
        };
        let (host, port, next) = read(lines(pending, length))?;
        if next == RequestState::Answer && self.has_seen_request {
            return Err(RequestError::Late);
        }
        (self.state, self.has_seen_request) = (next, true);
        Ok(RequestStep::Head(RequestHead { length, host, port }))
    }

    fn size(&mut self, pending: &[u8], is_plain: bool) -> Result<RequestStep, RequestError> {
        let Some(end) = pending.iter().take(MAX_CHUNK_LINE_BYTES).position(|byte| *byte == b'\n')
        else {
            return if pending.len() < MAX_CHUNK_LINE_BYTES {
                Ok(RequestStep::More)
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
        // Short enough that a careless parser does not truncate it.
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
        self.state = if size == 0 { RequestState::Trailers } else { RequestState::ChunkEnd };
        Ok(RequestStep::Pass(size + end as u64 + 1))
    }

    /// The length up to and including the empty line, if it has arrived. Each line ends with CR LF.
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

/// The lines of a block, without the empty one.
pub(super) fn lines(pending: &[u8], length: usize) -> impl Iterator<Item = &[u8]> {
    let block = pending.get(..length.saturating_sub(2)).unwrap_or_default();
    block
        .split_inclusive(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r\n").unwrap_or(line))
}

pub(super) type Authority = (Host, Option<u16>);

/// The host of a request, and what follows its head.
fn read<'a>(
    mut lines: impl Iterator<Item = &'a [u8]>,
) -> Result<(Option<Host>, Option<u16>, RequestState), RequestError> {
    let (method, target, newer) = request_line(lines.next().unwrap_or_default())?;
    let is_bodiless = BODILESS_METHODS.iter().any(|bodiless| method.eq_ignore_ascii_case(bodiless));
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
            // CGI programs read these names as the same variables (RFC 3875, 4.1.18).
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
        (None, true) => RequestState::Size { is_plain: is_bodiless },
        (Some(length @ 1..), false) if is_bodiless => RequestState::Doubtful(length),
        (Some(length @ 1..), false) => RequestState::Body(length),
        // HTTP/1.0 has no upgrade (RFC 9110, 7.8).
        _ if newer && upgrades && connection_upgrades => RequestState::Answer,
        _ => RequestState::Head,
    };
    Ok((host, port, next))
}

/// The method, the host of an absolute target, and whether the version is HTTP/1.1.
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

/// The name and value of a header. Folded lines and blanks before the colon are refused.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), RequestError> {
    let colon = line.iter().position(|byte| *byte == b':').ok_or(RequestError::Malformed)?;
    let (name, value) = line.split_at_checked(colon).ok_or(RequestError::Malformed)?;
    let value = value.strip_prefix(b":").unwrap_or(value);
    if name.is_empty() || !name.iter().copied().all(is_token) || !value.iter().all(is_text) {
        return Err(RequestError::Malformed);
    }
    Ok((name, value.trim_ascii()))
}

/// Reads a host and an optional port.
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

/// Plain HTTP, so the default port is 80.
fn agree(one: &Authority, other: &Authority) -> bool {
    one.0 == other.0 && one.1.unwrap_or(80) == other.1.unwrap_or(80)
}

/// Digits only, without a leading 0, which some parsers read as octal.
fn number(text: &[u8]) -> Option<u64> {
    let plain = text == b"0" || !text.starts_with(b"0") && text.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(text).ok().filter(|_| plain)?;
    // Some parsers use signed numbers.
    digits.parse().ok().filter(|number| *number <= i64::MAX as u64)
}

/// The words of a comma-separated list.
pub(super) fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// True for any byte except control characters other than the tab.
fn is_text(byte: &u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}
