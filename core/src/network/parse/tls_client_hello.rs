//! The name in the first message of TLS (ClientHello, RFC 8446, 4.1.2; server_name, RFC 6066, 3).
//!
//! This is the name that everyone can read. An encrypted hello (RFC 9849) contains another name,
//! which the relay does not see. It can not be refused, because browsers send random bytes in its
//! place. Programs inside do not get the keys for it (questions for HTTPS records have no answer).
//! A program that has the keys reaches only what the server of the allowed name accepts.
//!
//! A TLS 1.3 server can ask for a second hello (HelloRetryRequest), and some servers use the name
//! in that one. So the records after the first hello are checked, until no other hello can come in
//! clear text.

/// A longer hello is refused.
pub const MAX_HELLO_BYTES: usize = 16 << 10;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;
const HEARTBEAT: u8 = 24;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
/// The highest length byte of a ClientHello: the format allows at most 0x020144 bytes.
const MAX_HELLO_LENGTH_HIGH_BYTE: u8 = 2;
const HELLO_REQUEST: u8 = 0;
const SERVER_NAME: u16 = 0;
const EARLY_DATA: u16 = 42;
const HOST_NAME: u8 = 0;

/// The plain text of a record.
const MAX_RECORD_BYTES: usize = 1 << 14;
/// The overhead of encryption (RFC 5246, 6.2.3).
const MAX_ENCRYPTION_BYTES: usize = 2 << 10;
const RECORD_HEADER_BYTES: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientHello {
    /// More bytes are needed. Never returned for `MAX_HELLO_BYTES` bytes.
    More,
    NotTls,
    Sni(ServerName),
    NoSni,
    /// TLS that not every server reads in the same way: refused.
    Odd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// The raw bytes, not yet checked as a host name.
    pub name: Vec<u8>,
    /// The length of all its records.
    pub length: usize,
    /// Encrypted early data can follow before the server answers. A server that asks for a second
    /// hello skips it.
    pub is_early: bool,
}

/// A record after a ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextRecord {
    /// More bytes are needed. Never returned for a whole record.
    More,
    /// It names no host. After this many bytes another ClientHello can follow.
    Skip(usize),
    /// From here on the stream is encrypted, or the server closes it.
    Last,
    Hello(ClientHello),
}

/// `bytes` start with a record. `is_early`: an earlier hello announced early data.
pub fn next(bytes: &[u8], is_early: bool) -> NextRecord {
    let Some(([kind, major, _, high, low], content)) =
        bytes.split_first_chunk::<RECORD_HEADER_BYTES>()
    else {
        return NextRecord::More;
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if *major != 3 || length > MAX_RECORD_BYTES + MAX_ENCRYPTION_BYTES {
        return NextRecord::Hello(ClientHello::Odd);
    }
    match *kind {
        // Some servers also skip an alert (user_canceled).
        CHANGE_CIPHER_SPEC | ALERT => NextRecord::Skip(RECORD_HEADER_BYTES + length),
        APPLICATION_DATA if is_early => NextRecord::Skip(RECORD_HEADER_BYTES + length),
        // Some servers ignore an empty record.
        APPLICATION_DATA if length > 0 => NextRecord::Last,
        // A fragment can start a ClientHello.
        HANDSHAKE if length >= 4 => {
            let start = content.get(..length.min(5));
            let record = bytes.get(..RECORD_HEADER_BYTES + length);
            match (start, record) {
                (None, _) | (Some([CLIENT_HELLO, 0..=MAX_HELLO_LENGTH_HIGH_BYTE, ..]), None) => {
                    NextRecord::More
                }
                (Some([CLIENT_HELLO, 0..=MAX_HELLO_LENGTH_HIGH_BYTE, ..]), Some(record)) => {
                    match read(record) {
                        // A hello that spans records: encrypted bytes can look like that, and no
                        // client does it.
                        ClientHello::More => NextRecord::Hello(ClientHello::Odd),
                        hello => NextRecord::Hello(hello),
                    }
                }
                (Some([HELLO_REQUEST, 0, 0, 0] | [HELLO_REQUEST, 0, 0, 0, CLIENT_HELLO]), _) => {
                    NextRecord::Hello(ClientHello::Odd)
                }
                _ => NextRecord::Last,
            }
        }
        _ => NextRecord::Hello(ClientHello::Odd),
    }
}

/// `first`: all bytes of the connection so far.
pub fn read(first: &[u8]) -> ClientHello {
    match first {
        [HANDSHAKE, 3, ..] => {}
        [] | [HANDSHAKE] => return ClientHello::More,
        // Some servers accept these as TLS: another record version, or another record before the
        // ClientHello.
        [HANDSHAKE, ..] | [CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA | HEARTBEAT, 3, ..] => {
            return ClientHello::Odd;
        }
        [CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA | HEARTBEAT] => return ClientHello::More,
        // SSL 2: a length, the message type, a version. It can not name a host.
        [0x80..=0xff, _, 1, 0 | 3, ..] => return ClientHello::Odd,
        [0x80..=0xff] | [0x80..=0xff, _] | [0x80..=0xff, _, 1] => return ClientHello::More,
        _ => return ClientHello::NotTls,
    }
    let (body, length) = match handshake_message(first) {
        Some(HandshakeMessage::Whole(body, length)) => (body, length),
        Some(HandshakeMessage::Part) if first.len() < MAX_HELLO_BYTES => return ClientHello::More,
        _ => return ClientHello::Odd,
    };
    match server_name(TlsReader(&body)) {
        Some((Some(name), is_early)) => {
            ClientHello::Sni(ServerName { name: name.to_vec(), length, is_early })
        }
        Some((None, _)) => ClientHello::NoSni,
        None => ClientHello::Odd,
    }
}

enum HandshakeMessage {
    Part,
    /// The body of a ClientHello and the length of its records.
    Whole(Vec<u8>, usize),
}

/// The first message, joined from its records. None: it is not a ClientHello.
fn handshake_message(first: &[u8]) -> Option<HandshakeMessage> {
    let mut rest = TlsReader(first);
    let mut handshake_message = Vec::new();
    loop {
        let Some([kind, major, _, high, low]) = rest.0.first_chunk() else {
            let begins = [HANDSHAKE, 3].iter().zip(rest.0).all(|(wanted, byte)| wanted == byte);
            return begins.then_some(HandshakeMessage::Part);
        };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if (*kind, *major) != (HANDSHAKE, 3) || !(1..=MAX_RECORD_BYTES).contains(&length) {
            return None;
        }
        rest.take(RECORD_HEADER_BYTES)?;
        let whole = rest.take(length);
        handshake_message.extend(whole.unwrap_or(rest.0));
        if handshake_message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return None;
        }
        if let Some(([_, high, middle, low], body)) = handshake_message.split_first_chunk() {
            let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            // Nothing follows it in its record: the client waits for the answer.
            if length > MAX_HELLO_BYTES || body.len() > length {
                return None;
            }
            if whole.is_some() && body.len() == length {
                return Some(HandshakeMessage::Whole(body.to_vec(), first.len() - rest.0.len()));
            }
        }
        if whole.is_none() {
            return Some(HandshakeMessage::Part);
        }
    }
}

/// The server name, and whether early data was announced. None: malformed, or more than one name.
fn server_name(mut hello: TlsReader<'_>) -> Option<(Option<&[u8]>, bool)> {
    let (_version, _random) = (hello.take(2)?, hello.take(32)?);
    let (_session, _ciphers, _compression) =
        (hello.vector_u8()?, hello.vector_u16()?, hello.vector_u8()?);
    if hello.0.is_empty() {
        return Some((None, false));
    }
    let mut extensions = hello.vector_u16().filter(|_| hello.0.is_empty())?;
    let (mut found, mut is_early) = (None, false);
    while !extensions.0.is_empty() {
        let (kind, content) = (extensions.u16()?, extensions.vector_u16()?);
        is_early |= kind == EARLY_DATA;
        if kind != SERVER_NAME {
            continue;
        }
        let name = host_name(content)?;
        if found.replace(name).is_some() {
            return None;
        }
    }
    Some((found, is_early))
}

/// The only entry of the list.
fn host_name(mut extension: TlsReader<'_>) -> Option<&[u8]> {
    let mut list = extension.vector_u16().filter(|_| extension.0.is_empty())?;
    let ([HOST_NAME], name) = (list.take(1)?, list.vector_u16()?) else { return None };
    (list.0.is_empty() && !name.0.is_empty()).then_some(name.0)
}

/// The unread bytes.
struct TlsReader<'a>(&'a [u8]);

impl<'a> TlsReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    /// A vector with a length of one byte.
    fn vector_u8(&mut self) -> Option<TlsReader<'a>> {
        let [length] = *self.take(1)? else { return None };
        self.take(length.into()).map(TlsReader)
    }

    /// A vector with a length of two bytes.
    fn vector_u16(&mut self) -> Option<TlsReader<'a>> {
        let length = self.u16()?;
        self.take(length.into()).map(TlsReader)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::network::fuzz_bytes::FuzzBytes;

    fn vector_u16(content: &[u8]) -> Vec<u8> {
        [&(content.len() as u16).to_be_bytes(), content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector_u16(content)].concat()
    }

    pub fn sni(name: &[u8]) -> Vec<u8> {
        extension(SERVER_NAME, &vector_u16(&[&[HOST_NAME], &vector_u16(name)[..]].concat()))
    }

    fn body(extensions: &[u8]) -> Vec<u8> {
        let start =
            [&[3, 3][..], &[7; 32], &[32], &[9; 32], b"\0\x04\x13\x01\x13\x02\x01\0"].concat();
        [start, extensions.to_vec()].concat()
    }

    fn handshake(body: &[u8]) -> Vec<u8> {
        [&[CLIENT_HELLO, 0][..], &vector_u16(body)].concat()
    }

    fn record(content: &[u8]) -> Vec<u8> {
        [&[HANDSHAKE, 3, 1][..], &vector_u16(content)].concat()
    }

    pub fn hello(extensions: &[u8]) -> Vec<u8> {
        record(&handshake(&body(&vector_u16(extensions))))
    }

    fn named(name: &[u8], first: &[u8]) -> ClientHello {
        ClientHello::Sni(ServerName { name: name.to_vec(), length: first.len(), is_early: false })
    }

    fn usual() -> Vec<u8> {
        hello(
            &[
                extension(0x0a0a, b""),
                extension(43, b"\x02\x03\x04"),
                sni(b"Example.com"),
                extension(21, &[0; 99]),
            ]
            .concat(),
        )
    }

    #[test]
    fn the_server_name_is_found() {
        assert_eq!(read(&usual()), named(b"Example.com", &usual()));
        assert_eq!(
            read(&[usual(), b"\x14\x03\x03\0\x01\x01early".to_vec()].concat()),
            named(b"Example.com", &usual())
        );
        assert_eq!(read(&hello(&extension(43, b"\x02\x03\x04"))), ClientHello::NoSni);
        assert_eq!(read(&hello(b"")), ClientHello::NoSni);
        assert_eq!(read(&record(&handshake(&body(b"")))), ClientHello::NoSni);
    }

    #[test]
    fn a_partial_hello_needs_more_bytes() {
        let whole = usual();
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), ClientHello::More, "{length}");
        }
        let handshake_message = handshake(&body(&vector_u16(&sni(b"a.example"))));
        for size in [1, 2, 3, 50] {
            let records: Vec<u8> = handshake_message.chunks(size).flat_map(record).collect();
            assert_eq!(read(&records), named(b"a.example", &records), "{size}");
            for length in 0..records.len() {
                assert_eq!(read(&records[..length]), ClientHello::More, "{size} {length}");
            }
        }
    }

    #[test]
    fn other_protocols_are_not_tls() {
        let ssl2 = &b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10"[..];
        for first in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"SSH-2.0-x\r\n",
            b"\0",
            b"\x80\0\0\x05", // memcached
            b"\x15\x02",
        ] {
            assert_eq!(read(first), ClientHello::NotTls, "{first:?}");
        }
        for first in [
            ssl2,
            &b"\x16\x02"[..],
            b"\x16\x04",
            b"\x15\x03\x01\0\x02\x01\x5a",
            b"\x14\x03",
            b"\x17\x03\x03",
            b"\x18\x03",
        ] {
            assert_eq!(read(first), ClientHello::Odd, "{first:?}");
            assert!(
                (1..first.len().min(2)).all(|length| read(&first[..length]) == ClientHello::More),
                "{first:?}"
            );
        }
    }

    #[test]
    fn an_ambiguous_hello_is_refused() {
        let entry = |name: &[u8]| [&[HOST_NAME], &vector_u16(name)[..]].concat();
        let list = |entries: &[u8]| hello(&extension(SERVER_NAME, &vector_u16(entries)));
        let mut bad_length = usual();
        bad_length[8] -= 1;
        let handshake_message = handshake(&body(&vector_u16(&sni(b"a.example"))));
        for (why, first) in [
            ("two extensions", hello(&[sni(b"a.example"), sni(b"b.example")].concat())),
            ("the same twice", hello(&[sni(b"a.example"), sni(b"a.example")].concat())),
            ("two entries", list(&[entry(b"a.example"), entry(b"b.example")].concat())),
            (
                "an entry of another kind",
                list(&[b"\x01\0\x01a".to_vec(), entry(b"a.example")].concat()),
            ),
            ("no entry", list(b"")),
            ("nothing", hello(&extension(SERVER_NAME, b""))),
            ("an empty name", list(&entry(b""))),
            (
                "more behind the list",
                hello(&extension(SERVER_NAME, &[vector_u16(&entry(b"a")), vec![0]].concat())),
            ),
            (
                "more behind the extensions",
                record(&handshake(&body(&[vector_u16(&sni(b"a")), vec![0]].concat()))),
            ),
            ("a part of an extension", hello(&sni(b"a.example")[..7])),
            ("no ciphers", record(&handshake(&[3; 34]))),
            ("another message behind it", record(&[handshake_message.clone(), vec![1]].concat())),
            ("a length that is too small", bad_length),
            ("another message", record(b"\x02\0\0\0")),
            (
                "an empty record",
                [record(&handshake_message[..9]), record(b""), record(&handshake_message[9..])]
                    .concat(),
            ),
            (
                "another record between",
                [record(&handshake_message[..9]), b"\x17\x03\x03\0\x01x".to_vec()].concat(),
            ),
            ("another record begins", [record(&handshake_message[..9]), b"\x17".to_vec()].concat()),
            ("a long record", vec![HANDSHAKE, 3, 1, 0x40, 1, CLIENT_HELLO]),
            ("a long message", record(b"\x01\x01\0\0")),
        ] {
            assert_eq!(read(&first), ClientHello::Odd, "{why}");
        }
    }

    fn other(kind: u8, content: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3][..], &vector_u16(content)].concat()
    }

    #[test]
    fn a_second_hello_is_found_after_skipped_records() {
        assert_eq!(next(&usual(), false), NextRecord::Hello(named(b"Example.com", &usual())));
        for skipped in [
            other(CHANGE_CIPHER_SPEC, b"\x01"),
            other(CHANGE_CIPHER_SPEC, b""),
            other(ALERT, b"\x01\x5a"),
        ] {
            assert_eq!(
                next(&[&skipped[..], &usual()].concat(), false),
                NextRecord::Skip(skipped.len())
            );
        }
        let first = hello(&[extension(EARLY_DATA, b""), sni(b"a.example")].concat());
        assert!(matches!(read(&first), ClientHello::Sni(ServerName { is_early: true, .. })));
        let early = other(APPLICATION_DATA, &[9; 40]);
        assert_eq!(next(&early, true), NextRecord::Skip(45));
        assert_eq!(next(&early, false), NextRecord::Last);
    }

    #[test]
    fn after_these_records_the_stream_is_encrypted() {
        for last in [
            other(HANDSHAKE, b"\x10\0\0\x02\x01\x02"),
            other(HANDSHAKE, b"\x0b\0\0\x03\0\0\0"),
            // Encrypted records with different first bytes.
            other(HANDSHAKE, &[&[0; 8][..], &[0x5a; 32]].concat()),
            other(HANDSHAKE, &[0x5a; 40]),
            other(
                HANDSHAKE,
                &[&[CLIENT_HELLO, MAX_HELLO_LENGTH_HIGH_BYTE + 1][..], &[0x5a; 38]].concat(),
            ),
        ] {
            assert_eq!(next(&last, false), NextRecord::Last, "{last:?}");
        }
    }

    #[test]
    fn an_ambiguous_second_hello_is_refused() {
        let handshake_message = handshake(&body(&vector_u16(&sni(b"b.example"))));
        let odd = NextRecord::Hello(ClientHello::Odd);
        for (why, bytes) in [
            (
                "over two records",
                [record(&handshake_message[..9]), record(&handshake_message[9..])].concat(),
            ),
            ("a part of the header", record(&handshake_message[..3])),
            ("a byte", record(&handshake_message[..1])),
            (
                "a part, and it is long",
                other(
                    HANDSHAKE,
                    &[&[CLIENT_HELLO, MAX_HELLO_LENGTH_HIGH_BYTE][..], &[1; 60]].concat(),
                ),
            ),
            (
                "another message behind it",
                record(&[handshake_message.clone(), handshake_message.clone()].concat()),
            ),
            (
                "a request for it before it",
                record(&[b"\0\0\0\0".to_vec(), handshake_message.clone()].concat()),
            ),
            ("a request for it", record(b"\0\0\0\0")),
            ("empty", record(b"")),
            ("empty data", other(APPLICATION_DATA, b"")),
            ("a heartbeat", other(HEARTBEAT, b"\x01\0\0")),
            ("no kind", other(25, b"x")),
            ("another version", [&[HANDSHAKE, 2, 1][..], &vector_u16(&handshake_message)].concat()),
            ("a long record", vec![CHANGE_CIPHER_SPEC, 3, 3, 0x48, 1]),
        ] {
            assert_eq!(next(&bytes, false), odd, "{why}");
        }
        assert_eq!(next(&hello(b""), false), NextRecord::Hello(ClientHello::NoSni));
    }

    #[test]
    fn a_partial_second_hello_needs_more_bytes() {
        for length in 0..usual().len() {
            assert_eq!(next(&usual()[..length], false), NextRecord::More, "{length}");
        }
    }

    #[test]
    fn a_hello_has_a_maximum_length() {
        let padded = |size: usize| {
            handshake(&body(&vector_u16(
                &[extension(21, &vec![0; size]), sni(b"a.example")].concat(),
            )))
        };
        let first = record(&padded(15_000));
        assert_eq!(read(&first), named(b"a.example", &first));
        let spread: Vec<u8> = padded(15_900).chunks(100).flat_map(record).collect();
        assert_eq!(read(&spread[..MAX_HELLO_BYTES - 1]), ClientHello::More);
        assert_eq!(read(&spread[..MAX_HELLO_BYTES]), ClientHello::Odd);
    }

    #[test]
    fn random_bytes_cause_no_panic() {
        let (mut noise, usual) = (FuzzBytes::new(2), usual());
        for _ in 0..5_000 {
            if let ClientHello::Sni(ServerName { name, .. }) = read(&noise.mutated(&usual)) {
                assert!(!name.is_empty());
            }
            let _ = read(&record(&noise.bytes(64)));
            let _ = read(&hello(&noise.bytes(64)));
            let _ = next(&noise.mutated(&usual), false);
        }
    }
}
