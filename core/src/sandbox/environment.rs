//! The command's environment, built from nothing: variables that pass and are not denied, variables
//! that are kept by their whole name, then variables that the plan sets.

use std::ffi::CString;
use std::net::SocketAddr;

use crate::network::supervisor::proxy_password::{self, ProxyToken};
use crate::plan::wire::bytes::Text;
use crate::plan::{Environment, PLACEHOLDER_TOKEN, TMP_TOKEN};

/// `placeholder` replaces the secrets of routes. `inherited` are `NAME=value` entries. Of two with
/// one name the first counts, as for getenv(3).
pub fn build(
    requested: &Environment,
    inherited: Vec<CString>,
    temp: Option<&[u8]>,
    placeholder: &[u8],
) -> Vec<CString> {
    let mut entries: Vec<CString> = Vec::with_capacity(inherited.len() + requested.set.len());
    let (pass, deny) =
        (VariablePatterns::of(&requested.pass), VariablePatterns::of(&requested.deny));
    for entry in inherited {
        let Some(name) = name_of(&entry) else { continue };
        let replaced = requested.set.iter().any(|(set, _)| set.as_bytes() == name);
        let known = entries.iter().any(|earlier| name_of(earlier) == Some(name));
        let kept = requested.keep.iter().any(|whole| whole.as_bytes() == name);
        if !replaced && !known && (kept || (pass.list(name) && !deny.list(name))) {
            entries.push(entry);
        }
    }
    for (name, value) in &requested.set {
        let value = expand(value.as_bytes(), temp.unwrap_or_default(), placeholder);
        // Names, values and the directory's path have no NUL: the parser has checked that.
        entries.extend(CString::new([name.as_bytes(), b"=", &value].concat()));
    }
    entries
}

/// Variables for a proxy. Most programs read only one spelling.
const PROXY_VARIABLES: [&str; 3] = ["http_proxy", "https_proxy", "all_proxy"];
const NO_PROXY_VARIABLE: &str = "no_proxy";
/// Protocols without a proxy inside.
const OTHER_PROXY_VARIABLES: [&str; 3] = ["ftp_proxy", "socks_proxy", "rsync_proxy"];
/// Hosts that need no proxy: the command's own servers, and routes.
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,::1,.paddock.internal";

/// Replaces the caller's proxy by that of this run. A variable that the policy sets stays, in any
/// spelling.
pub fn with_proxy(
    mut entries: Vec<CString>,
    set: &[(Text, Text)],
    (address, token): (SocketAddr, &ProxyToken),
) -> Vec<CString> {
    let names =
        || PROXY_VARIABLES.into_iter().chain([NO_PROXY_VARIABLE]).chain(OTHER_PROXY_VARIABLES);
    let is_set = |name: &str| {
        set.iter().any(|(set, _)| set.as_bytes().eq_ignore_ascii_case(name.as_bytes()))
    };
    entries.retain(|entry| {
        let own = name_of(entry).unwrap_or_default();
        !names().any(|name| own.eq_ignore_ascii_case(name.as_bytes()))
            || set.iter().any(|(set, _)| set.as_bytes() == own)
    });
    let proxy = format!("http://{}:{token}@{}", proxy_password::PROXY_USER, address);
    for name in PROXY_VARIABLES.into_iter().chain([NO_PROXY_VARIABLE]).filter(|name| !is_set(name))
    {
        let value = if name == NO_PROXY_VARIABLE { NO_PROXY_HOSTS } else { &proxy };
        entries.extend(CString::new(format!("{name}={value}")));
        entries.extend(CString::new(format!("{}={value}", name.to_ascii_uppercase())));
    }
    entries
}

fn name_of(entry: &CString) -> Option<&[u8]> {
    let bytes = entry.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        None | Some(0) => None,
        Some(end) => Some(&bytes[..end]),
    }
}

fn expand(value: &[u8], temp: &[u8], placeholder: &[u8]) -> Vec<u8> {
    let mut expanded = Vec::with_capacity(value.len() + temp.len());
    let mut rest = value;
    while let Some((first, tail)) = rest.split_first() {
        let tokens = [(TMP_TOKEN, temp), (PLACEHOLDER_TOKEN, placeholder)];
        match tokens.iter().find_map(|(token, means)| Some((rest.strip_prefix(*token)?, means))) {
            Some((after, means)) => {
                expanded.extend_from_slice(means);
                rest = after;
            }
            None => {
                expanded.push(*first);
                rest = tail;
            }
        }
    }
    expanded
}

/// Patterns of variable names. Those that begin with a star are apart: nearly every other differs
/// from nearly every name in its first letter.
struct VariablePatterns<'p> {
    starred: Vec<&'p [u8]>,
    others: Vec<&'p [u8]>,
    letters: [bool; 256],
}

impl<'p> VariablePatterns<'p> {
    fn of(patterns: &'p [Text]) -> VariablePatterns<'p> {
        let (starred, others): (Vec<_>, Vec<_>) =
            patterns.iter().map(Text::as_bytes).partition(|one| one.first() == Some(&b'*'));
        let mut letters = [false; 256];
        // An empty pattern matches only an empty name, and there is none.
        others
            .iter()
            .filter_map(|one| one.first())
            .for_each(|letter| letters[usize::from(*letter)] = true);
        VariablePatterns { starred, others, letters }
    }

    fn list(&self, name: &[u8]) -> bool {
        let Some(first) = name.first() else { return false };
        let likely = self.letters[usize::from(*first)];
        (likely
            && self
                .others
                .iter()
                .any(|pattern| pattern.first() == Some(first) && matches(pattern, name)))
            || self.starred.iter().any(|pattern| matches(pattern, name))
    }
}

/// `*` matches any characters, also none. Everything else matches itself.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|byte| *byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        // The leftmost match is always good enough: it leaves the most for the rest.
        match (0..=rest.len()).find(|start| rest[*start..].starts_with(part)) {
            Some(start) => rest = &rest[start + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(items: &[&str]) -> Vec<Text> {
        items.iter().map(|item| Text::from_bytes(item.as_bytes().to_vec()).unwrap()).collect()
    }

    fn built(
        pass: &[&str],
        deny: &[&str],
        set: &[(&str, &str)],
        inherited: &[&str],
    ) -> Vec<String> {
        let set = set
            .iter()
            .map(|(name, value)| (texts(&[name])[0].clone(), texts(&[value])[0].clone()))
            .collect();
        let requested =
            Environment { pass: texts(pass), deny: texts(deny), keep: texts(&["KEPT_TOKEN"]), set };
        let inherited = inherited.iter().map(|entry| CString::new(*entry).unwrap()).collect();
        let entries = build(&requested, inherited, Some(b"/tmp/x"), b"stand-in");
        entries.into_iter().map(|entry| entry.into_string().unwrap()).collect()
    }

    #[test]
    fn a_variable_kept_by_its_whole_name_beats_a_deny() {
        let inherited = ["KEPT_TOKEN=a", "OTHER_TOKEN=b", "KEPT_TOKEN_2=c"];
        assert_eq!(built(&["*"], &["*_TOKEN*"], &[], &inherited), ["KEPT_TOKEN=a"]);
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name, expected) in [
            ("PATH", "PATH", true),
            ("PATH", "PATHS", false),
            ("PATH", "XPATH", false),
            ("LC_*", "LC_ALL", true),
            ("LC_*", "LC_", true),
            ("LC_*", "LC", false),
            ("*_TOKEN", "GH_TOKEN", true),
            ("*_TOKEN", "GH_TOKENS", false),
            ("*", "", true),
            ("*", "ANY", true),
            ("A*A", "A", false),
            ("A*A", "AA", true),
            ("*KEY*", "MY_KEY_ID", true),
            ("*A*B*", "xBxA", false),
            ("*A*B*", "xAxBx", true),
            ("a*b*c", "abbc", true),
            ("a?c", "abc", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn only_variables_that_pass_and_are_not_denied_remain() {
        let inherited = ["PATH=/bin", "GH_TOKEN=1", "LD_PRELOAD=x", "OTHER=1", "HOME=/h"];
        assert_eq!(
            built(&["PATH", "*_TOKEN", "LD_*"], &["*_TOKEN", "LD_*"], &[], &inherited),
            ["PATH=/bin"]
        );
        assert!(built(&[], &[], &[], &inherited).is_empty());
    }

    #[test]
    fn set_replaces_and_is_not_denied() {
        let entries = built(
            &["*"],
            &["CI"],
            &[("CI", "1"), ("T", "<tmp>/a:<tmp>"), ("E", "")],
            &["CI=0", "X=y=z"],
        );
        assert_eq!(entries, ["X=y=z", "CI=1", "T=/tmp/x/a:/tmp/x", "E="]);
    }

    #[test]
    fn the_proxy_of_the_run_replaces_the_callers() {
        let token = ProxyToken::new().unwrap();
        let inherited = [
            "http_proxy=http://corp",
            "HTTPS_PROXY=x",
            "No_Proxy=*",
            "ftp_proxy=x",
            "PATH=/bin",
            "MY_HTTP_PROXY=y",
        ];
        let with = |set: &[(&str, &str)]| {
            let inherited: Vec<CString> =
                inherited.iter().map(|entry| CString::new(*entry).unwrap()).collect();
            let set: Vec<_> = set
                .iter()
                .map(|(name, value)| (texts(&[name])[0].clone(), texts(&[value])[0].clone()))
                .collect();
            let entries = with_proxy(inherited, &set, (crate::network::namespace::PROXY, &token));
            entries.into_iter().map(|entry| entry.into_string().unwrap()).collect::<Vec<_>>()
        };
        let proxy = format!("http://paddock:{token}@127.255.255.254:1");
        let mut expected = vec!["PATH=/bin".to_owned(), "MY_HTTP_PROXY=y".to_owned()];
        for name in
            ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
        {
            expected.push(format!("{name}={proxy}"));
        }
        expected.extend(
            ["no_proxy", "NO_PROXY"]
                .map(|name| format!("{name}=localhost,127.0.0.1,::1,.paddock.internal")),
        );
        assert_eq!(with(&[]), expected);
        // As after `build`, which has added the variables that the plan sets.
        let kept = with(&[("HTTPS_PROXY", "x"), ("no_proxy", "*")]);
        assert!(kept.iter().any(|entry| entry == "HTTPS_PROXY=x"), "{kept:?}");
        assert!(
            !kept
                .iter()
                .any(|entry| entry.starts_with("https_proxy=") || entry.contains("localhost")),
            "{kept:?}"
        );
        assert!(!kept.iter().any(|entry| entry.contains("corp")), "{kept:?}");
        assert!(kept.iter().any(|entry| *entry == format!("http_proxy={proxy}")), "{kept:?}");
    }

    #[test]
    fn malformed_and_repeated_entries_are_dropped() {
        assert_eq!(built(&["*"], &[], &[], &["A=1", "A=2", "noequals", "=x", "B="]), ["A=1", "B="]);
    }
}
