//! What a client is answered that speaks HTTP and is refused. The others are cut off.

use std::fmt;

use crate::network::rules::host_table;

/// For a message, and for the text of a 403.
pub struct RefusalText<'a> {
    pub rule: Option<&'a dyn fmt::Display>,
    pub reason: &'a str,
    pub status: &'static str,
}

pub const DENIED: &str = "403 Forbidden";
pub const UNREACHABLE: &str = "502 Bad Gateway";

/// For whoever speaks HTTP.
pub fn answer(host: Option<&dyn fmt::Display>, port: u16, verdict: &RefusalText<'_>) -> Vec<u8> {
    let host = host.map(ToString::to_string).unwrap_or_default();
    let place =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let RefusalText { rule, reason, status } = verdict;
    let what = if *status == DENIED { "denied" } else { "not reached" };
    let more = match rule {
        Some(rule) if *status == DENIED => format!("; {rule}"),
        None if *status == DENIED && host_table::is_unruled(reason) => match port {
            80 | 443 => format!("; --allow-domain {host}"),
            _ => format!("; --allow-domain {place}"),
        },
        _ => String::new(),
    };
    let text = format!("paddock: {what}: {place} ({reason}{more})\n");
    response(status, "", &text)
}

/// `fields`: whole lines.
pub fn response(status: &str, fields: &str, text: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_stands_in_brackets_before_a_port() {
        let verdict = RefusalText { rule: None, reason: host_table::NOT_ALLOWED, status: DENIED };
        for (host, port, said) in [
            (
                "2001:db8::1",
                8443,
                "[2001:db8::1]:8443 (no rule allows it; --allow-domain [2001:db8::1]:8443)",
            ),
            ("2001:db8::1", 80, "[2001:db8::1]:80 (no rule allows it; --allow-domain 2001:db8::1)"),
            (
                "192.0.2.1",
                8443,
                "192.0.2.1:8443 (no rule allows it; --allow-domain 192.0.2.1:8443)",
            ),
            ("a.example", 443, "a.example:443 (no rule allows it; --allow-domain a.example)"),
        ] {
            let answer = String::from_utf8(answer(Some(&host), port, &verdict)).unwrap();
            assert!(answer.ends_with(&format!("\r\n\r\npaddock: denied: {said}\n")), "{answer}");
        }
    }
}
