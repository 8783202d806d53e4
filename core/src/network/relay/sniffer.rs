//! Checks that the first bytes of a connection, and each HTTP request on it, name the host that was
//! allowed.

use super::decision_log::DecisionLayer;
use crate::network::parse::http_request::{self, FirstBytes, HttpRequests, RequestStep};
use crate::network::parse::tls_client_hello::{self, ClientHello, NextRecord, ServerName};
use crate::plan::host_name::{Host, HostName};

/// Why an allowed connection is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SniffedDenial {
    pub layer: DecisionLayer,
    /// The other host that it named.
    pub host: Option<String>,
    pub reason: String,
    /// True if the client understands an HTTP response.
    pub is_http: bool,
}

impl SniffedDenial {
    fn of_tls(reason: String) -> SniffedDenial {
        SniffedDenial { layer: DecisionLayer::Connect, host: None, reason, is_http: false }
    }

    fn of_request(host: Option<String>, reason: String) -> SniffedDenial {
        SniffedDenial { layer: DecisionLayer::Request, host, reason, is_http: true }
    }

    pub fn too_long() -> SniffedDenial {
        SniffedDenial::of_request(None, "the first bytes are too long".into())
    }
}

/// The decision about bytes from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SniffResult {
    /// More bytes are needed.
    More,
    /// This many bytes may pass, even if they have not arrived.
    Pass(u64),
    /// Later bytes do not belong to this connection.
    End,
}

pub struct Sniffer {
    host: Host,
    port: u16,
    stage: SniffStage,
    /// True: a second request ends the connection.
    is_single_request: bool,
    has_ended: bool,
    /// A denial is final.
    denial: Option<SniffedDenial>,
}

enum SniffStage {
    FirstBytes,
    /// The part of the first line that was passed on. No server acts on a request before its line
    /// ends.
    Line(Vec<u8>),
    /// A ClientHello was passed on, and another can follow. `is_early`: after early data.
    AfterHello {
        is_early: bool,
    },
    /// The version line of SSH was passed on.
    Packets,
    Requests(HttpRequests),
}

impl Sniffer {
    pub fn for_name(name: HostName, port: u16) -> Sniffer {
        let host = Host::Name(name);
        Sniffer {
            host,
            port,
            stage: SniffStage::FirstBytes,
            is_single_request: false,
            has_ended: false,
            denial: None,
        }
    }

    /// A connection with exactly one request.
    pub fn for_request(host: Host, port: u16) -> Sniffer {
        let stage = SniffStage::Requests(HttpRequests::default());
        Sniffer { host, port, stage, is_single_request: true, has_ended: false, denial: None }
    }

    /// Judges the next bytes.
    pub fn judge(&mut self, bytes: &[u8]) -> Result<SniffResult, SniffedDenial> {
        if let Some(denial) = &self.denial {
            return Err(denial.clone());
        }
        self.judge_bytes(bytes).inspect_err(|denial| self.denial = Some(denial.clone()))
    }

    fn judge_bytes(&mut self, bytes: &[u8]) -> Result<SniffResult, SniffedDenial> {
        if let SniffStage::FirstBytes = self.stage {
            match tls_client_hello::read(bytes) {
                ClientHello::NotTls => {}
                hello => return self.judge_hello(hello, false),
            }
            match http_request::classify_first_bytes(bytes) {
                FirstBytes::More => return Ok(SniffResult::More),
                FirstBytes::Other | FirstBytes::Unended if matches!(self.port, 80 | 443) => {
                    return self.judge_ssh_line(bytes);
                }
                FirstBytes::Other => return Ok(SniffResult::Pass(u64::MAX)),
                FirstBytes::Unended => self.stage = SniffStage::Line(Vec::new()),
                FirstBytes::Request => self.stage = SniffStage::Requests(HttpRequests::default()),
            }
        }
        let requests = match &mut self.stage {
            SniffStage::FirstBytes => return Ok(SniffResult::More),
            SniffStage::Line(line) => return check_first_line(line, bytes),
            SniffStage::AfterHello { is_early } => {
                let is_early = *is_early;
                return match tls_client_hello::next(bytes, is_early) {
                    NextRecord::More => Ok(SniffResult::More),
                    NextRecord::Skip(length) => Ok(SniffResult::Pass(length as u64)),
                    NextRecord::Last => Ok(SniffResult::Pass(u64::MAX)),
                    NextRecord::Hello(hello) => self.judge_hello(hello, is_early),
                };
            }
            // An SSH packet starts with its length, whose highest byte is zero.
            SniffStage::Packets if bytes.starts_with(b"\0") => {
                return Ok(SniffResult::Pass(u64::MAX));
            }
            SniffStage::Packets => return Err(self.unexpected_protocol()),
            SniffStage::Requests(requests) => requests,
        };
        if self.has_ended && requests.is_between_requests() {
            return Ok(SniffResult::End);
        }
        match requests.next(bytes) {
            Ok(RequestStep::More) => Ok(SniffResult::More),
            Ok(RequestStep::Pass(length)) => Ok(SniffResult::Pass(length)),
            Ok(RequestStep::Open) => Ok(SniffResult::Pass(u64::MAX)),
            Ok(RequestStep::Head(head)) => match head.host {
                Some(other) if other != self.host => {
                    let reason = format!("the connection is for {}", self.host);
                    Err(SniffedDenial::of_request(Some(other.to_string()), reason))
                }
                // A request without a host gets the server's default.
                _ => {
                    self.has_ended = self.is_single_request;
                    Ok(SniffResult::Pass(head.length as u64))
                }
            },
            Err(error) => Err(SniffedDenial::of_request(None, error.to_string())),
        }
    }

    /// Web servers accept more than valid requests. At their ports only understood protocols pass,
    /// and SSH, which many servers offer there.
    fn judge_ssh_line(&mut self, bytes: &[u8]) -> Result<SniffResult, SniffedDenial> {
        let end =
            bytes.iter().position(|byte| *byte == b'\n').filter(|_| bytes.starts_with(b"SSH-"));
        let end = end.ok_or_else(|| self.unexpected_protocol())?;
        self.stage = SniffStage::Packets;
        Ok(SniffResult::Pass(end as u64 + 1))
    }

    fn unexpected_protocol(&self) -> SniffedDenial {
        SniffedDenial::of_tls(format!(
            "the first bytes are neither HTTP nor TLS, and port {} allows only these",
            self.port
        ))
    }

    /// `was_early`: an earlier hello announced early data.
    fn judge_hello(
        &mut self,
        hello: ClientHello,
        was_early: bool,
    ) -> Result<SniffResult, SniffedDenial> {
        let ServerName { name, length, is_early } = match hello {
            ClientHello::More => return Ok(SniffResult::More),
            ClientHello::Sni(named) => named,
            ClientHello::NoSni => {
                return Err(SniffedDenial::of_tls("its TLS handshake names no host".into()));
            }
            ClientHello::Odd | ClientHello::NotTls => {
                return Err(SniffedDenial::of_tls(
                    "its TLS handshake is \
                malformed"
                        .into(),
                ));
            }
        };
        if HostName::read(&name).map(Host::Name).as_ref() != Some(&self.host) {
            return Err(SniffedDenial::of_tls(format!(
                "its TLS handshake is for {}",
                name.escape_ascii()
            )));
        }
        self.stage = SniffStage::AfterHello { is_early: is_early || was_early };
        Ok(SniffResult::Pass(length as u64))
    }

    /// True while the connection waits for the server's answer to an upgrade.
    pub fn awaits_answer(&self) -> bool {
        matches!(&self.stage, SniffStage::Requests(requests) if requests.awaits_answer())
    }

    pub fn answered(&mut self, agreed: bool) {
        if let SniffStage::Requests(requests) = &mut self.stage {
            requests.answered(agreed);
        }
    }

    /// The stream ends after these bytes, which could have become a request or TLS. Returns true if
    /// they may pass. Python's server reads an unended line as a request.
    pub fn judge_end(&self, bytes: &[u8]) -> Result<bool, SniffedDenial> {
        match &self.stage {
            SniffStage::FirstBytes
                if tls_client_hello::read(bytes) != ClientHello::NotTls
                    || bytes.contains(&b'\n') =>
            {
                Ok(false)
            }
            SniffStage::FirstBytes if http_request::is_request(bytes) => {
                Err(SniffedDenial::of_request(None, "the request line does not end".into()))
            }
            SniffStage::FirstBytes if matches!(self.port, 80 | 443) => {
                Err(self.unexpected_protocol())
            }
            SniffStage::FirstBytes => Ok(true),
            SniffStage::Line(line) if !line.contains(&b'\n') && http_request::is_request(line) => {
                Err(looks_like_request())
            }
            _ => Ok(false),
        }
    }
}

fn looks_like_request() -> SniffedDenial {
    SniffedDenial::of_tls("a server could read it as an HTTP request for any host".into())
}

/// Checks more of a first line that is no request so far. A line can end at LF, and for Java only
/// at CR LF.
fn check_first_line(line: &mut Vec<u8>, bytes: &[u8]) -> Result<SniffResult, SniffedDenial> {
    let (before, has_ended) = (line.len().saturating_sub(1), line.contains(&b'\n'));
    line.extend_from_slice(bytes);
    let end = line.iter().position(|byte| *byte == b'\n').filter(|_| !has_ended);
    let last = line[before..].windows(2).position(|pair| pair == b"\r\n").map(|end| before + end);
    let reads = end.is_some_and(|end| http_request::is_request(&line[..end]))
        || last.is_some_and(|last| http_request::is_request_to_java(&line[..last]));
    if reads {
        return Err(looks_like_request());
    }
    let is_free = last.is_some() || line.len() >= http_request::MAX_HEAD_BYTES;
    Ok(SniffResult::Pass(if is_free { u64::MAX } else { bytes.len() as u64 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::parse::tls_client_hello::tests::{hello, sni};

    const CHANGE_CIPHER_SPEC: &[u8] = b"\x14\x03\x03\0\x01\x01";
    const DATA: &[u8] = b"\x17\x03\x03\0\x02ab";

    /// The number of bytes that pass if they arrive in pieces of `size`, and whether everything
    /// after them would pass.
    fn passed_bytes(port: u16, bytes: &[u8], size: usize) -> (usize, Result<bool, String>) {
        let mut sniffer = Sniffer::for_name(HostName::read(b"good.example").unwrap(), port);
        let (mut free, mut here) = (0_u64, 0);
        for piece in bytes.chunks(size) {
            here += piece.len();
            while free < here as u64 {
                match sniffer.judge(&bytes[free as usize..here]) {
                    Ok(SniffResult::Pass(more)) => free = free.saturating_add(more),
                    Ok(SniffResult::More | SniffResult::End) => break,
                    Err(denial) => return (free as usize, Err(denial.reason)),
                }
            }
        }
        (here.min(free as usize), Ok(free == u64::MAX))
    }

    #[test]
    fn a_second_hello_for_another_name_is_denied() {
        let (good, evil) = (hello(&sni(b"good.example")), hello(&sni(b"evil.example")));
        let denial = |length| (length, Err("its TLS handshake is for evil.example".to_owned()));
        for size in 1..=good.len() * 3 {
            let of = |parts: &[&[u8]]| passed_bytes(8443, &parts.concat(), size);
            assert_eq!(of(&[&good, &evil]), denial(good.len()), "{size}");
            assert_eq!(of(&[&good, CHANGE_CIPHER_SPEC, &evil]), denial(good.len() + 6), "{size}");
            assert_eq!(of(&[&good, &good, &evil]), denial(good.len() * 2), "{size}");
            assert_eq!(of(&[&good, CHANGE_CIPHER_SPEC]), (good.len() + 6, Ok(false)), "{size}");
            let usual = [&good[..], CHANGE_CIPHER_SPEC, &good, DATA, b"anything"].concat();
            assert_eq!(passed_bytes(8443, &usual, size), (usual.len(), Ok(true)), "{size}");
        }
    }

    #[test]
    fn an_unended_request_line_is_denied() {
        let ends = |port, bytes: &[u8]| {
            let mut sniffer = Sniffer::for_name(HostName::read(b"good.example").unwrap(), port);
            let undecided = match sniffer.judge(bytes) {
                Ok(SniffResult::More) => bytes,
                Ok(SniffResult::Pass(_)) => b"",
                other => panic!("{other:?}"),
            };
            sniffer.judge_end(undecided).map_err(|denial| denial.reason)
        };
        for bytes in [
            "GET http://evil.example/ HTTP/1.0",
            "GET http://evil.example/ HTTP/1.1\r",
            "GET /old",
            "GET //evil.example/x",
            " \tGET /x",
            "put /x HTTP/1.1",
            "G(T / HTTP/1.1",
        ] {
            assert!(ends(8080, bytes.as_bytes()).is_err(), "{bytes}");
        }
        for bytes in ["hello", "GET", "EHLO me", "003bgit-upload-pack /project\0host=x", "PING"] {
            assert!(ends(8080, bytes.as_bytes()).is_ok(), "{bytes}");
        }
        assert_eq!(ends(8080, b"hello"), Ok(true));
        assert!(ends(80, b"hello").is_err());
        assert_eq!(ends(80, b""), Ok(false));
    }

    #[test]
    fn only_ssh_packets_follow_the_ssh_line() {
        for size in 1..40 {
            assert_eq!(
                passed_bytes(443, b"SSH-2.0-x y\r\n\0\0\x05\xdc", size),
                (17, Ok(true)),
                "{size}"
            );
            let (length, denial) =
                passed_bytes(443, b"SSH-2.0-x y\r\nGET / HTTP/1.1\r\n\r\n", size);
            assert!(length == 13 && denial.is_err(), "{size}");
        }
    }
}
