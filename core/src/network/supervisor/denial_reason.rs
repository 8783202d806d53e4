//! The message about a denial: the reason, and what would allow it.

use crate::journal::event::network::NetworkDecision;
use crate::network::rules::host_table::{self, NOT_ALLOWED};

impl NetworkDecision {
    pub fn denial_reason(&self, host_and_port: &str) -> String {
        if let (Some(reason), Some(Some(hint))) =
            (&self.reason, self.request.as_ref().map(|request| &request.hint))
        {
            return format!("{reason}; {hint}");
        }
        match (&self.rule, self.reason.as_deref().unwrap_or(NOT_ALLOWED)) {
            (Some(rule), NOT_ALLOWED) => rule.clone(),
            (Some(rule), reason) => format!("{reason}; {rule}"),
            (None, reason) if host_table::rule_could_allow(reason) => {
                // Without a port, both default ports are meant.
                let usual = matches!(self.port, Some(80 | 443) | None);
                format!(
                    "{reason}; --allow-domain {}",
                    self.host().filter(|_| usual).unwrap_or(host_and_port)
                )
            }
            (None, reason) => reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::event::network::tests::MESSAGE;
    use crate::plan::wire::reader;

    fn decision(changes: &[(&str, &str)]) -> NetworkDecision {
        let mut message = MESSAGE.to_owned();
        for (old, new) in changes {
            assert!(message.contains(old), "{old}");
            message = message.replace(old, new);
        }
        reader::from_slice(message.as_bytes()).unwrap()
    }

    #[test]
    fn a_denial_names_host_reason_and_option() {
        let port = ("443", "8443");
        let address = ("\"address\":null", "\"address\":\"2001:db8::1\"");
        let host = ("\"host\":\"example.com\"", "\"host\":null");
        let rule = ("\"rule\":null", "\"rule\":\"paddock.toml:12\"");
        let reason = ("no rule allows it", "it leads to a private address");
        let no_reason = ("\"reason\":\"no rule allows it\"", "\"reason\":null");
        for (changes, line) in [
            (&[][..], "example.com:443 (no rule allows it; --allow-domain example.com)"),
            (&[port], "example.com:8443 (no rule allows it; --allow-domain example.com:8443)"),
            (&[("443", "null")], "example.com (no rule allows it; --allow-domain example.com)"),
            (
                &[host, address, port],
                "[2001:db8::1]:8443 (no rule allows it; --allow-domain [2001:db8::1]:8443)",
            ),
            (&[no_reason, rule], "example.com:443 (paddock.toml:12)"),
            (&[no_reason], "example.com:443 (no rule allows it; --allow-domain example.com)"),
            (&[reason], "example.com:443 (it leads to a private address)"),
            (&[reason, rule], "example.com:443 (it leads to a private address; paddock.toml:12)"),
        ] {
            let decision = decision(changes);
            let host_and_port = decision.host_and_port().unwrap();
            assert_eq!(
                format!("{host_and_port} ({})", decision.denial_reason(&host_and_port)),
                line
            );
        }
    }
}
