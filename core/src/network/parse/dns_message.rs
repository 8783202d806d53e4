//! DNS messages (RFC 1035, RFC 6891): questions from inside and their answers, questions to the
//! host's resolvers and their replies.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::plan::host_name::HostName;

/// How long programs inside cache an answer.
const ANSWER_TTL_S: u32 = 60;

/// The advertised size of a datagram (DNS flag day 2020). Answers are far smaller.
const MAX_UDP_PAYLOAD_BYTES: u16 = 1232;

/// The longest name on the wire, including label lengths.
const MAX_WIRE_NAME_BYTES: usize = 255;

/// Longer chains of aliases have no address.
const MAX_ALIASES: usize = 16;

/// Further addresses of one name are ignored.
const MAX_ADDRESSES: usize = 32;

const IN: u16 = 1;
const CNAME: u16 = 5;
const OPT: u16 = 41;

/// Flags of the header.
const RESPONSE: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const AUTHORITATIVE: u16 = 0x0400;
const TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
const RESPONSE_CODE: u16 = 0x000f;

const NO_ERROR: u16 = 0;
const FORMAT_ERROR: u16 = 1;
const SERVER_FAILURE: u16 = 2;
const NAME_ERROR: u16 = 3;
const NOT_IMPLEMENTED: u16 = 4;
const REFUSED: u16 = 5;
/// The upper bits are in the OPT record.
const BAD_VERSION: u16 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    A,
    Aaaa,
    Other(u16),
}

impl RecordKind {
    fn of(number: u16) -> RecordKind {
        match number {
            1 => RecordKind::A,
            28 => RecordKind::Aaaa,
            other => RecordKind::Other(other),
        }
    }

    fn number(self) -> u16 {
        match self {
            RecordKind::A => 1,
            RecordKind::Aaaa => 28,
            RecordKind::Other(other) => other,
        }
    }
}

/// A message to port 53.
#[derive(Debug, PartialEq, Eq)]
pub enum DnsQuestion {
    Query(Query),
    /// A question that is not answered here; this is the error message.
    Refused(Vec<u8>),
    /// No answer: it is not DNS, or it is an answer itself. Two servers could answer each other
    /// forever.
    Nothing,
}

/// One question, class IN.
#[derive(Debug, PartialEq, Eq)]
pub struct Query {
    /// None: an unusual name (plan/host_name.rs).
    pub name: Option<HostName>,
    pub kind: RecordKind,
    header: Header,
    /// The question exactly as it came: resolvers compare it.
    question: Vec<u8>,
}

/// The fields of a question that its answer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    id: u16,
    flags: u16,
    /// The question has an OPT record, so the answer has one.
    extended: bool,
}

impl Header {
    /// Builds the answer; without the question if it could not be read.
    fn answer(self, code: u16, question: &[u8], record: Option<&[u8]>) -> Vec<u8> {
        let mut message = Vec::with_capacity(64 + question.len());
        let flags = RESPONSE
            | RECURSION_AVAILABLE
            | self.flags & (OPCODE | RECURSION_DESIRED)
            | code & RESPONSE_CODE;
        let counts = [
            u16::from(!question.is_empty()),
            u16::from(record.is_some()),
            0,
            u16::from(self.extended),
        ];
        for number in [self.id, flags].into_iter().chain(counts) {
            message.extend(number.to_be_bytes());
        }
        message.extend(question);
        message.extend(record.unwrap_or_default());
        if self.extended {
            // Root name, type, payload size, upper bits of the code, version 0, no flags, no
            // options.
            message.push(0);
            message.extend(OPT.to_be_bytes());
            message.extend(MAX_UDP_PAYLOAD_BYTES.to_be_bytes());
            message.extend([(code >> 4) as u8, 0, 0, 0, 0, 0]);
        }
        message
    }
}

impl Query {
    pub fn read(message: &[u8]) -> DnsQuestion {
        let mut reader = DnsReader { message, at: 0 };
        let (Some(id), Some(flags), Some(counts)) = (reader.u16(), reader.u16(), reader.counts())
        else {
            return DnsQuestion::Nothing;
        };
        let mut header = Header { id, flags, extended: false };
        let refused = |header: Header, code, question: &[u8]| {
            DnsQuestion::Refused(header.answer(code, question, None))
        };
        if flags & RESPONSE != 0 {
            return DnsQuestion::Nothing;
        }
        if flags & OPCODE != 0 {
            return refused(header, NOT_IMPLEMENTED, b"");
        }
        let [1, 0, 0, additional] = counts else {
            return refused(header, FORMAT_ERROR, b"");
        };
        // No earlier name exists that this one could point to.
        let (start, plain) = (reader.at, false);
        let (Some(labels), Some(kind), Some(class)) =
            (reader.name(plain), reader.u16(), reader.u16())
        else {
            return refused(header, FORMAT_ERROR, b"");
        };
        let question = message.get(start..reader.at).unwrap_or_default();
        let mut version = 0;
        for _ in 0..additional {
            match reader.record() {
                Some(record) if record.kind != OPT => {}
                Some(record) if !header.extended && record.owner == [0] => {
                    header.extended = true;
                    version = record.ttl_s >> 16 & 0xff;
                }
                _ => return refused(header, FORMAT_ERROR, question),
            }
        }
        if reader.at != message.len() {
            return refused(header, FORMAT_ERROR, question);
        }
        if version != 0 {
            return refused(header, BAD_VERSION, question);
        }
        if class != IN {
            return refused(header, REFUSED, question);
        }
        DnsQuestion::Query(Query {
            name: name(&labels),
            kind: RecordKind::of(kind),
            header,
            question: question.to_vec(),
        })
    }

    /// The name for messages, in printable ASCII. A dot inside a label is escaped (RFC 1035, 5.1).
    pub fn asked_name(&self) -> String {
        let shown = |label: &[u8]| label.escape_ascii().to_string().replace('.', "\\.");
        labels(&self.question).map(shown).collect::<Vec<_>>().join(".")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    /// The name exists, but has no record of this type (NODATA).
    Nothing,
    /// NXDOMAIN
    NoName,
    /// SERVFAIL
    Failed,
}

/// Builds an answer of at most 512 bytes. An address of another type than requested becomes
/// `Nothing`.
pub fn answer(query: &Query, answer: DnsAnswer) -> Vec<u8> {
    let (code, address) = match (answer, query.kind) {
        (DnsAnswer::V4(address), RecordKind::A) => (NO_ERROR, Some(address.octets().to_vec())),
        (DnsAnswer::V6(address), RecordKind::Aaaa) => (NO_ERROR, Some(address.octets().to_vec())),
        (DnsAnswer::V4(_) | DnsAnswer::V6(_) | DnsAnswer::Nothing, _) => (NO_ERROR, None),
        (DnsAnswer::NoName, _) => (NAME_ERROR, None),
        (DnsAnswer::Failed, _) => (SERVER_FAILURE, None),
    };
    let record = address.map(|address| {
        // A pointer to the name in the question.
        let mut record = vec![0xc0, 12];
        record.extend(query.kind.number().to_be_bytes());
        record.extend(IN.to_be_bytes());
        record.extend(ANSWER_TTL_S.to_be_bytes());
        record.extend([0, address.len() as u8]);
        record.extend(address);
        record
    });
    query.header.answer(code, &query.question, record.as_deref())
}

/// Builds a question to a resolver, without extensions. An answer of more than 512 bytes is
/// requested again by TCP.
pub fn question(id: u16, name: &HostName, kind: RecordKind) -> Vec<u8> {
    let mut message = Vec::with_capacity(18 + name.as_bytes().len());
    for number in [id, RECURSION_DESIRED, 1, 0, 0, 0] {
        message.extend(number.to_be_bytes());
    }
    message.extend(wire_name(name));
    message.extend(kind.number().to_be_bytes());
    message.extend(IN.to_be_bytes());
    message
}

/// The reply of a resolver.
#[derive(Debug, PartialEq, Eq)]
pub struct DnsReply {
    /// In the order of the reply. Empty: the name has no record of this type.
    pub addresses: Vec<IpAddr>,
    /// The smallest TTL of the used records; 0 if there are no addresses.
    pub ttl_s: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// The reply to another question: the right one can still come.
    Other,
    /// The reply was truncated: ask by TCP.
    Truncated,
    NoName,
    /// The resolver has no answer (SERVFAIL, REFUSED …); another one may have it.
    Failed,
    Malformed,
}

impl DnsReply {
    pub fn read(
        message: &[u8],
        name: &HostName,
        kind: RecordKind,
        id: u16,
    ) -> Result<DnsReply, ReplyError> {
        let mut reader = DnsReader { message, at: 0 };
        let (Some(reply_id), Some(flags), Some(counts)) =
            (reader.u16(), reader.u16(), reader.counts())
        else {
            return Err(ReplyError::Other);
        };
        if reply_id != id || flags & (RESPONSE | OPCODE) != RESPONSE {
            return Err(ReplyError::Other);
        }
        let mut wanted = wire_name(name);
        let [questions, answers, ..] = counts;
        match questions {
            // Some servers report an error without repeating the question.
            0 if flags & RESPONSE_CODE != NO_ERROR => return Err(ReplyError::Failed),
            1 => {
                let repeated = (reader.name(true), reader.u16(), reader.u16());
                if repeated != (Some(wanted.clone()), Some(kind.number()), Some(IN)) {
                    return Err(ReplyError::Other);
                }
            }
            _ => return Err(ReplyError::Other),
        }
        if flags & TRUNCATED != 0 {
            return Err(ReplyError::Truncated);
        }
        match flags & RESPONSE_CODE {
            NO_ERROR => {}
            NAME_ERROR => return Err(ReplyError::NoName),
            _ => return Err(ReplyError::Failed),
        }
        let mut records = Vec::new();
        for _ in 0..answers {
            let record = reader.record().ok_or(ReplyError::Malformed)?;
            if record.class == IN && (record.kind == CNAME || record.kind == kind.number()) {
                records.push(record);
            }
        }
        let mut ttl_s = u32::MAX;
        for _ in 0..=MAX_ALIASES {
            let mut addresses = Vec::new();
            for record in
                records.iter().filter(|record| record.kind != CNAME && record.owner == wanted)
            {
                addresses.push(record.address(kind).ok_or(ReplyError::Malformed)?);
                ttl_s = ttl_s.min(record.ttl_s);
            }
            if !addresses.is_empty() {
                addresses.truncate(MAX_ADDRESSES);
                return Ok(DnsReply { addresses, ttl_s });
            }
            let Some(alias) =
                records.iter().find(|record| record.kind == CNAME && record.owner == wanted)
            else {
                // A server that neither knows the name nor asks others refers to another server.
                // That is not an answer.
                let lame = records.is_empty() && flags & (AUTHORITATIVE | RECURSION_AVAILABLE) == 0;
                return if lame {
                    Err(ReplyError::Failed)
                } else {
                    Ok(DnsReply { addresses, ttl_s: 0 })
                };
            };
            wanted = alias.target(message).ok_or(ReplyError::Malformed)?;
            ttl_s = ttl_s.min(alias.ttl_s);
        }
        Err(ReplyError::Malformed)
    }
}

/// The name on the wire: each label after its length, then the root.
fn wire_name(name: &HostName) -> Vec<u8> {
    // A label has at most 63 bytes.
    let labels = name
        .labels()
        .flat_map(|label| std::iter::once(label.len() as u8).chain(label.iter().copied()));
    labels.chain(std::iter::once(0)).collect()
}

/// The labels of a wire name without pointers.
fn labels(wire_name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = wire_name;
    std::iter::from_fn(move || {
        let (length, behind) = rest.split_first().filter(|(length, _)| **length != 0)?;
        let (label, behind) = behind.split_at_checked((*length).into())?;
        rest = behind;
        Some(label)
    })
}

fn name(wire_name: &[u8]) -> Option<HostName> {
    let labels: Vec<&[u8]> = labels(wire_name).collect();
    // A dot inside a label does not separate labels.
    if labels.iter().any(|label| label.contains(&b'.')) {
        None
    } else {
        HostName::read(&labels.join(&b'.'))
    }
}

struct DnsRecord<'a> {
    owner: Vec<u8>,
    kind: u16,
    class: u16,
    ttl_s: u32,
    /// Offset of its data in the message.
    at: usize,
    data: &'a [u8],
}

impl DnsRecord<'_> {
    fn address(&self, kind: RecordKind) -> Option<IpAddr> {
        match kind {
            RecordKind::A => <[u8; 4]>::try_from(self.data).ok().map(IpAddr::from),
            RecordKind::Aaaa => <[u8; 16]>::try_from(self.data).ok().map(IpAddr::from),
            RecordKind::Other(_) => None,
        }
    }

    /// The target name of an alias.
    fn target(&self, message: &[u8]) -> Option<Vec<u8>> {
        let mut reader = DnsReader { message, at: self.at };
        reader.name(true).filter(|_| reader.at == self.at + self.data.len())
    }
}

struct DnsReader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> DnsReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let part = self.message.get(self.at..end)?;
        self.at = end;
        Some(part)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// Counts of questions, answers, authorities and additional records.
    fn counts(&mut self) -> Option<[u16; 4]> {
        Some([self.u16()?, self.u16()?, self.u16()?, self.u16()?])
    }

    /// Reads a name in lower case and follows pointers if allowed. Each pointer leads to an earlier
    /// position, so the loop ends.
    fn name(&mut self, may_point: bool) -> Option<Vec<u8>> {
        let mut wire_name = Vec::new();
        let mut reader = DnsReader { message: self.message, at: self.at };
        let mut before = self.at;
        let mut end = None;
        loop {
            let [length] = *reader.take(1)? else { return None };
            match length {
                0..0x40 => {
                    wire_name.push(length);
                    wire_name.extend(reader.take(length.into())?.to_ascii_lowercase());
                    if wire_name.len() > MAX_WIRE_NAME_BYTES {
                        return None;
                    }
                    if length == 0 {
                        self.at = end.unwrap_or(reader.at);
                        return Some(wire_name);
                    }
                }
                0xc0.. if may_point => {
                    let [low] = *reader.take(1)? else { return None };
                    end = end.or(Some(reader.at));
                    let to = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                    if to >= before {
                        return None;
                    }
                    (before, reader.at) = (to, to);
                }
                _ => return None,
            }
        }
    }

    fn record(&mut self) -> Option<DnsRecord<'a>> {
        let (owner, kind, class, ttl_s) = (self.name(true)?, self.u16()?, self.u16()?, self.u32()?);
        let length = self.u16()?;
        let at = self.at;
        let data = self.take(length.into())?;
        // A TTL has 31 bits; a larger one counts as 0 (RFC 2181, 8). An OPT record has no TTL.
        let ttl_s = if kind != OPT && ttl_s > i32::MAX as u32 { 0 } else { ttl_s };
        Some(DnsRecord { owner, kind, class, ttl_s, at, data })
    }
}
