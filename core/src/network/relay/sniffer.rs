//! What the first bytes of a connection, and each request of HTTP on it, have to say: the name that
//! the connection was allowed for.

use super::decision_log::Layer;
use crate::network::parse::http_request::{self, First, Requests, Step};
use crate::network::parse::tls_client_hello::{self, Hello, Named, Next};
use crate::plan::host_name::{Host, Name};

/// Why a connection that was allowed does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub layer: Layer,
    /// The host that it named instead.
    pub host: Option<String>,
    pub reason: String,
    /// Whether the client reads an answer of HTTP.
    pub is_http: bool,
}

impl Refusal {
    fn of_tls(reason: String) -> Refusal {
        Refusal { layer: Layer::Connect, host: None, reason, is_http: false }
    }

    fn of_request(host: Option<String>, reason: String) -> Refusal {
        Refusal { layer: Layer::Request, host, reason, is_http: true }
    }

    pub fn too_long() -> Refusal {
        Refusal::of_request(None, "the first bytes are too long".into())
    }
}

/// What becomes of bytes from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// More have to be seen.
    More,
    /// So many may go on, whether they are here or not.
    Pass(u64),
    /// Nothing that is said from here on is for this connection.
    End,
}

pub struct Sniffer {
    host: Host,
    port: u16,
    stage: Stage,
    /// Of HTTP: a second request ends the connection.
    is_single: bool,
    is_over: bool,
    /// It stays so, whatever is asked and however often.
    refused: Option<Refusal>,
}

enum Stage {
    First,
    /// So much of the first line was passed on. Nobody can do anything with a request before its
    /// line has ended.
    Line(Vec<u8>),
    /// A ClientHello was passed on, and another may follow. `is_early`: behind data.
    Greeted {
        is_early: bool,
    },
    /// The line of ssh was passed on.
    Packets,
    Requests(Requests),
}

impl Sniffer {
    pub fn of(name: Name, port: u16) -> Sniffer {
        let host = Host::Name(name);
        Sniffer { host, port, stage: Stage::First, is_single: false, is_over: false, refused: None }
    }

    /// One request, and no more.
    pub fn of_a_request(host: Host, port: u16) -> Sniffer {
        let stage = Stage::Requests(Requests::default());
        Sniffer { host, port, stage, is_single: true, is_over: false, refused: None }
    }

    /// What becomes of these bytes.
    pub fn judge(&mut self, bytes: &[u8]) -> Result<Seen, Refusal> {
        if let Some(refusal) = &self.refused {
            return Err(refusal.clone());
        }
        self.look_at(bytes).inspect_err(|refusal| self.refused = Some(refusal.clone()))
    }

    fn look_at(&mut self, bytes: &[u8]) -> Result<Seen, Refusal> {
        if let Stage::First = self.stage {
            match tls_client_hello::read(bytes) {
                Hello::NotTls => {}
                hello => return self.judge_hello(hello, false),
            }
            match http_request::first(bytes) {
                First::More => return Ok(Seen::More),
                First::Other | First::Unended if matches!(self.port, 80 | 443) => {
                    return self.judge_line_of_ssh(bytes);
                }
                First::Other => return Ok(Seen::Pass(u64::MAX)),
                First::Unended => self.stage = Stage::Line(Vec::new()),
                First::Request => self.stage = Stage::Requests(Requests::default()),
            }
        }
        let requests = match &mut self.stage {
            Stage::First => return Ok(Seen::More),
            Stage::Line(line) => return go_on(line, bytes),
            Stage::Greeted { is_early } => {
                let is_early = *is_early;
                return match tls_client_hello::next(bytes, is_early) {
                    Next::More => Ok(Seen::More),
                    Next::Skip(length) => Ok(Seen::Pass(length as u64)),
                    Next::Last => Ok(Seen::Pass(u64::MAX)),
                    Next::Hello(hello) => self.judge_hello(hello, is_early),
                };
            }
            // Their length comes first, and the highest byte of that is zero.
            Stage::Packets if bytes.starts_with(b"\0") => return Ok(Seen::Pass(u64::MAX)),
            Stage::Packets => return Err(self.strange()),
            Stage::Requests(requests) => requests,
        };
        if self.is_over && requests.is_between() {
            return Ok(Seen::End);
        }
        match requests.next(bytes) {
            Ok(Step::More) => Ok(Seen::More),
            Ok(Step::Pass(length)) => Ok(Seen::Pass(length)),
            Ok(Step::Open) => Ok(Seen::Pass(u64::MAX)),
            Ok(Step::Head(head)) => match head.host {
                Some(other) if other != self.host => {
                    let reason = format!("the connection is for {}", self.host);
                    Err(Refusal::of_request(Some(other.to_string()), reason))
                }
                // Whoever names none gets what the server has for everybody.
                _ => {
                    self.is_over = self.is_single;
                    Ok(Seen::Pass(head.length as u64))
                }
            },
            Err(error) => Err(Refusal::of_request(None, error.to_string())),
        }
    }

    /// Web servers read more as a request than a request is. At their ports only what is understood
    /// here goes on; and ssh, which many reach there.
    fn judge_line_of_ssh(&mut self, bytes: &[u8]) -> Result<Seen, Refusal> {
        let end =
            bytes.iter().position(|byte| *byte == b'\n').filter(|_| bytes.starts_with(b"SSH-"));
        let end = end.ok_or_else(|| self.strange())?;
        self.stage = Stage::Packets;
        Ok(Seen::Pass(end as u64 + 1))
    }

    fn strange(&self) -> Refusal {
        Refusal::of_tls(format!(
            "the first bytes are neither HTTP nor TLS, and port {} allows only these",
            self.port
        ))
    }

    /// `was_early`: one before it announced data.
    fn judge_hello(&mut self, hello: Hello, was_early: bool) -> Result<Seen, Refusal> {
        let Named { name, length, is_early } = match hello {
            Hello::More => return Ok(Seen::More),
            Hello::Sni(named) => named,
            Hello::NoSni => return Err(Refusal::of_tls("its TLS handshake names no host".into())),
            Hello::Odd | Hello::NotTls => {
                return Err(Refusal::of_tls(
                    "its TLS handshake is \
                malformed"
                        .into(),
                ));
            }
        };
        if Name::read(&name).map(Host::Name).as_ref() != Some(&self.host) {
            return Err(Refusal::of_tls(format!(
                "its TLS handshake is for {}",
                name.escape_ascii()
            )));
        }
        self.stage = Stage::Greeted { is_early: is_early || was_early };
        Ok(Seen::Pass(length as u64))
    }

    /// Nothing more goes on before it is known whether the server agrees to another protocol.
    pub fn awaits_answer(&self) -> bool {
        matches!(&self.stage, Stage::Requests(requests) if requests.awaits_answer())
    }

    pub fn answered(&mut self, agreed: bool) {
        if let Stage::Requests(requests) = &mut self.stage {
            requests.answered(agreed);
        }
    }

    /// The stream ends behind these bytes, which could have become a request or TLS. May they go
    /// on? A line that never ended is a request to Python, which reads one up to there.
    pub fn judge_end(&self, bytes: &[u8]) -> Result<bool, Refusal> {
        match &self.stage {
            Stage::First
                if tls_client_hello::read(bytes) != Hello::NotTls || bytes.contains(&b'\n') =>
            {
                Ok(false)
            }
            Stage::First if http_request::is_request(bytes) => {
                Err(Refusal::of_request(None, "the request line does not end".into()))
            }
            Stage::First if matches!(self.port, 80 | 443) => Err(self.strange()),
            Stage::First => Ok(true),
            Stage::Line(line) if !line.contains(&b'\n') && http_request::is_request(line) => {
                Err(could_be_read())
            }
            _ => Ok(false),
        }
    }
}

fn could_be_read() -> Refusal {
    Refusal::of_tls("a server could read it as an HTTP request for any host".into())
}

/// More of a first line that is no request so far. It ends with LF, and once more with CR and LF.
fn go_on(line: &mut Vec<u8>, bytes: &[u8]) -> Result<Seen, Refusal> {
    let (before, has_ended) = (line.len().saturating_sub(1), line.contains(&b'\n'));
    line.extend_from_slice(bytes);
    let end = line.iter().position(|byte| *byte == b'\n').filter(|_| !has_ended);
    let last = line[before..].windows(2).position(|part| part == b"\r\n").map(|end| before + end);
    let reads = end.is_some_and(|end| http_request::is_request(&line[..end]))
        || last.is_some_and(|last| http_request::is_request_to_java(&line[..last]));
    if reads {
        return Err(could_be_read());
    }
    let is_free = last.is_some() || line.len() >= http_request::HEAD_LIMIT;
    Ok(Seen::Pass(if is_free { u64::MAX } else { bytes.len() as u64 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::parse::tls_client_hello::tests::{hello, sni};

    const CHANGE_CIPHER_SPEC: &[u8] = b"\x14\x03\x03\0\x01\x01";
    const DATA: &[u8] = b"\x17\x03\x03\0\x02ab";

    /// What goes on of bytes that come in pieces of a size, as a flow hands them in; and whether
    /// all that follows would.
    fn passed(port: u16, said: &[u8], size: usize) -> (usize, Result<bool, String>) {
        let mut sight = Sniffer::of(Name::read(b"good.example").unwrap(), port);
        let (mut free, mut here) = (0_u64, 0);
        for piece in said.chunks(size) {
            here += piece.len();
            while free < here as u64 {
                match sight.judge(&said[free as usize..here]) {
                    Ok(Seen::Pass(more)) => free = free.saturating_add(more),
                    Ok(Seen::More | Seen::End) => break,
                    Err(refusal) => return (free as usize, Err(refusal.reason)),
                }
            }
        }
        (here.min(free as usize), Ok(free == u64::MAX))
    }

    #[test]
    fn every_hello_has_to_be_for_the_name() {
        let (good, evil) = (hello(&sni(b"good.example")), hello(&sni(b"evil.example")));
        let refused = |length| (length, Err("its TLS is for evil.example".to_owned()));
        for size in 1..=good.len() * 3 {
            let of = |parts: &[&[u8]]| passed(8443, &parts.concat(), size);
            assert_eq!(of(&[&good, &evil]), refused(good.len()), "{size}");
            assert_eq!(of(&[&good, CHANGE_CIPHER_SPEC, &evil]), refused(good.len() + 6), "{size}");
            assert_eq!(of(&[&good, &good, &evil]), refused(good.len() * 2), "{size}");
            assert_eq!(of(&[&good, CHANGE_CIPHER_SPEC]), (good.len() + 6, Ok(false)), "{size}");
            let usual = [&good[..], CHANGE_CIPHER_SPEC, &good, DATA, b"anything"].concat();
            assert_eq!(passed(8443, &usual, size), (usual.len(), Ok(true)), "{size}");
        }
    }

    #[test]
    fn a_line_that_the_stream_ends_is_no_request() {
        let ends = |port, said: &[u8]| {
            let mut sight = Sniffer::of(Name::read(b"good.example").unwrap(), port);
            let held = match sight.judge(said) {
                Ok(Seen::More) => said,
                Ok(Seen::Pass(_)) => b"",
                other => panic!("{other:?}"),
            };
            sight.judge_end(held).map_err(|refusal| refusal.reason)
        };
        for said in [
            "GET http://evil.example/ HTTP/1.0",
            "GET http://evil.example/ HTTP/1.1\r",
            "GET /old",
            "GET //evil.example/x",
            " \tGET /x",
            "put /x HTTP/1.1",
            "G(T / HTTP/1.1",
        ] {
            assert!(ends(8080, said.as_bytes()).is_err(), "{said}");
        }
        for said in ["hello", "GET", "EHLO me", "003bgit-upload-pack /project\0host=x", "PING"] {
            assert!(ends(8080, said.as_bytes()).is_ok(), "{said}");
        }
        assert_eq!(ends(8080, b"hello"), Ok(true));
        assert!(ends(80, b"hello").is_err());
        assert_eq!(ends(80, b""), Ok(false));
    }

    #[test]
    fn behind_the_line_of_ssh_come_its_packets() {
        for size in 1..40 {
            assert_eq!(passed(443, b"SSH-2.0-x y\r\n\0\0\x05\xdc", size), (17, Ok(true)), "{size}");
            let (length, refused) = passed(443, b"SSH-2.0-x y\r\nGET / HTTP/1.1\r\n\r\n", size);
            assert!(length == 13 && refused.is_err(), "{size}");
        }
    }
}
