//! The response to a refused HTTP client. Other clients get a reset.

use std::fmt;

use crate::network::rules::host_table;

/// The text of a denial.
pub struct RefusalText<'a> {
    pub rule: Option<&'a dyn fmt::Display>,
    pub reason: &'a str,
    pub status: &'static str,
}

pub const DENIED_STATUS: &str = "403 Forbidden";
pub const UNREACHABLE_STATUS: &str = "502 Bad Gateway";

/// The response for an HTTP client.
pub fn answer(host: Option<&dyn fmt::Display>, port: u16, text: &RefusalText<'_>) -> Vec<u8> {
    let host = host.map(ToString::to_string).unwrap_or_default();
    let target =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let RefusalText { rule, reason, status } = text;
    let what = if *status == DENIED_STATUS { "denied" } else { "not reached" };
    let more = match rule {
        Some(rule) if *status == DENIED_STATUS => format!("; {rule}"),
        None if *status == DENIED_STATUS && host_table::rule_could_allow(reason) => match port {
            80 | 443 => format!("; --allow-domain {host}"),
            _ => format!("; --allow-domain {target}"),
        },
        _ => String::new(),
    };
    let body = format!("paddock: {what}: {target} ({reason}{more})\n");
    response(status, "", &body)
}

/// `fields`: complete header lines.
pub fn response(status: &str, fields: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain; charset=utf-8\r\nContent-Length: \
         {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_with_a_port_has_brackets() {
        let text =
            RefusalText { rule: None, reason: host_table::NOT_ALLOWED, status: DENIED_STATUS };
        for (host, port, expected) in [
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
            let answer = String::from_utf8(answer(Some(&host), port, &text)).unwrap();
            assert!(
                answer.ends_with(&format!("\r\n\r\npaddock: denied: {expected}\n")),
                "{answer}"
            );
        }
    }
}
