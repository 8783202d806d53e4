//! Redaction: secrets are taken out of text before it is written or shown.
//!
//! `secrets.tsv` holds the rules. The core redacts what it journals itself; Python asks `paddock-core
//! redact` for prompts, tool calls and reports. A secret that looks like nothing special stays.
//! In a command, a secret goes only as far as a shell reads it as a part of one word. So the reader
//! sees everything that is executed.
//!
//! A supervisor writes a line for every exec, so a text without secrets costs one look at each
//! byte. Only a rule whose trigger is in the text is tried, and only its expression is compiled.

use std::borrow::Cow;
use std::sync::OnceLock;

use regex::bytes::{Captures, Regex, RegexBuilder};

mod shell_syntax;

use shell_syntax::ShellSyntax;

const TABLE: &str = include_str!("secrets.tsv");
const REDACTED: &[u8] = b"[redacted]";
/// Characters; shorter ones are names as often as secrets.
const MIN_OPAQUE_CHARS: usize = 32;
/// Tolerance for rounding when entropies are compared.
const ENTROPY_TOLERANCE: f64 = 1e-9;

struct SecretTable {
    flags: Vec<&'static [u8]>,
    harmless: Vec<&'static [u8]>,
    parts: Vec<(&'static str, String)>,
    reference: OnceLock<Option<Regex>>,
    secret_name: OnceLock<Option<Regex>>,
    rules: Vec<SecretRule>,
    /// Starts of patterns, and the index of the rule of each.
    triggers: Vec<(&'static [u8], usize)>,
    /// One bit for each pair of bytes that some trigger starts with.
    pairs: Box<[u64]>,
}

struct SecretRule {
    how: RuleKind,
    required_bytes: &'static [u8],
    pattern: &'static str,
    expression: OnceLock<Option<Regex>>,
}

enum RuleKind {
    Name,
    Flag,
    Header,
    Any,
}

/// How the quotes and operators in a text are read.
#[derive(Clone, Copy)]
pub enum Reading {
    /// No shell runs it: a secret goes as a whole.
    Text,
    /// A shell may run it.
    Command,
    /// A line of something that a shell may run: the matching quotes may be on other lines.
    Part,
}

/// The value of a field. It goes as a whole if the field's name is one of a secret.
pub fn field<'v>(name: &[u8], value: &'v [u8]) -> Cow<'v, [u8]> {
    let table = table();
    if table.names_a_secret(name) && table.is_secret_value(value) {
        return Cow::Borrowed(REDACTED);
    }
    redact(value, Reading::Text)
}

/// The words of a command: a flag and its value may be two of them.
pub fn words<'a>(
    words: impl ExactSizeIterator<Item = &'a [u8]>,
) -> impl ExactSizeIterator<Item = Cow<'a, [u8]>> {
    let mut hidden = false;
    words.map(move |word| {
        let shown =
            if hidden && !word.starts_with(b"-") { Cow::Borrowed(REDACTED) } else { text(word) };
        hidden = word.starts_with(b"-") && table().is_flag(word);
        shown
    })
}

/// A text that a shell may run.
pub fn text(text: &[u8]) -> Cow<'_, [u8]> {
    redact(text, Reading::Command)
}

pub fn redact(text: &[u8], reading: Reading) -> Cow<'_, [u8]> {
    let table = table();
    let mut shown = Cow::Borrowed(text);
    let mut candidates = table.matching_rules(text);
    while candidates != 0 {
        let index = candidates.trailing_zeros() as usize;
        candidates &= candidates - 1;
        let Some(rule) = table.rules.get(index) else { continue };
        if rule.has_required_byte(text) {
            match rule.apply(table, &shown, reading) {
                Some(Cow::Owned(changed)) => shown = Cow::Owned(changed),
                Some(Cow::Borrowed(_)) => {}
                // An expression does not compile: show nothing.
                None => return Cow::Borrowed(REDACTED),
            }
        }
    }
    match without_opaque(&shown) {
        Some(changed) => Cow::Owned(changed),
        None => shown,
    }
}

fn table() -> &'static SecretTable {
    static SECRET_TABLE: OnceLock<SecretTable> = OnceLock::new();
    SECRET_TABLE.get_or_init(SecretTable::read)
}

impl SecretTable {
    fn read() -> SecretTable {
        let mut table = SecretTable {
            flags: Vec::new(),
            harmless: Vec::new(),
            parts: Vec::new(),
            reference: OnceLock::new(),
            secret_name: OnceLock::new(),
            rules: Vec::with_capacity(96),
            triggers: Vec::with_capacity(192),
            pairs: vec![0; (1 << 16) / 64].into_boxed_slice(),
        };
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let mut columns = line.split('\t');
            let mut next = || columns.next().unwrap_or_default();
            match next() {
                "flag" => table.flags = next().split(' ').map(str::as_bytes).collect(),
                "harmless" => table.harmless = next().split(' ').map(str::as_bytes).collect(),
                "part" => table.parts.push((next(), next().to_owned())),
                _ => {
                    let how = match next() {
                        "name" => RuleKind::Name,
                        "flag" => RuleKind::Flag,
                        "header" => RuleKind::Header,
                        _ => RuleKind::Any,
                    };
                    let index = table.rules.len();
                    for trigger in next().split(' ').map(str::as_bytes) {
                        let pair = pair(trigger[0], trigger[1]);
                        table.pairs[pair / 64] |= 1 << (pair % 64);
                        table.triggers.push((trigger, index));
                    }
                    let (required_bytes, pattern) = (next().as_bytes(), next());
                    table.rules.push(SecretRule {
                        how,
                        required_bytes,
                        pattern,
                        expression: OnceLock::new(),
                    });
                }
            }
        }
        let flags = TABLE.lines().find_map(|line| line.strip_prefix("flag\t")).unwrap_or_default();
        let once_or_twice =
            |flag: &str| if flag.starts_with('-') { flag.to_owned() } else { format!("-?{flag}") };
        let flags: Vec<String> = flags.split(' ').map(once_or_twice).collect();
        table.parts.push(("flags", format!("-(?:{})", flags.join("|"))));
        table.triggers.sort_unstable();
        table
    }

    /// The rules whose trigger occurs in the text, one bit for each.
    fn matching_rules(&self, text: &[u8]) -> u128 {
        let mut candidates = 0;
        for at in 0..text.len().saturating_sub(1) {
            let pair = pair(text[at], text[at + 1]);
            if self.pairs[pair / 64] & (1 << (pair % 64)) == 0 {
                continue;
            }
            let first = self.triggers.partition_point(|(trigger, _)| {
                usize::from(trigger[0]) << 8 | usize::from(trigger[1]) < pair
            });
            for (trigger, rule) in &self.triggers[first..] {
                if self::pair(trigger[0], trigger[1]) != pair {
                    break;
                }
                if text[at..]
                    .get(..trigger.len())
                    .is_some_and(|found| found.eq_ignore_ascii_case(trigger))
                {
                    candidates |= 1 << rule;
                }
            }
        }
        candidates
    }

    fn is_flag(&self, word: &[u8]) -> bool {
        let once = word.strip_prefix(b"-").unwrap_or(word);
        let twice = once.strip_prefix(b"-").unwrap_or(once);
        self.flags
            .iter()
            .any(|flag| flag.eq_ignore_ascii_case(once) || flag.eq_ignore_ascii_case(twice))
    }

    /// Compiles a pattern after inserting the named parts.
    fn compile(&self, pattern: &str) -> Option<Regex> {
        let mut whole = pattern.to_owned();
        for (name, part) in &self.parts {
            whole = whole.replace(&format!("{{{name}}}"), part);
        }
        RegexBuilder::new(&whole).unicode(false).build().ok()
    }

    fn names_a_secret(&self, name: &[u8]) -> bool {
        let whole = r"(?i)^[\w.-]*{names}\z";
        let expression = self.secret_name.get_or_init(|| self.compile(whole));
        // A field is hidden if the expression does not compile.
        expression.as_ref().is_none_or(|expression| expression.is_match(name))
    }

    /// True for a value; false for a harmless word, a reference or the name of a type.
    fn is_secret_value(&self, value: &[u8]) -> bool {
        let quote = |byte: &u8| matches!(byte, b'"' | b'\'');
        let start = value.iter().position(|byte| !quote(byte)).unwrap_or(value.len());
        let end = value.iter().rposition(|byte| !quote(byte)).map_or(start, |last| last + 1);
        let plain = &value[start..end];
        let word = plain
            .iter()
            .rposition(|byte| *byte != b'.')
            .map_or(&plain[..0], |last| &plain[..=last]);
        if plain.is_empty()
            || self.harmless.iter().any(|harmless| harmless.eq_ignore_ascii_case(word))
        {
            return false;
        }
        let reference = self.reference.get_or_init(|| self.compile("^{reference}"));
        let refers = reference.as_ref().is_some_and(|reference| reference.is_match(plain));
        !refers && !plain.ends_with(b"(") && !plain.windows(9).any(|part| part == b"[redacted")
    }
}

/// A pair of bytes in lower case, as a number.
fn pair(first: u8, second: u8) -> usize {
    usize::from(first.to_ascii_lowercase()) << 8 | usize::from(second.to_ascii_lowercase())
}

impl SecretRule {
    fn has_required_byte(&self, text: &[u8]) -> bool {
        self.required_bytes == b"-"
            || text.iter().any(|byte| match byte {
                b' ' | b'\t'..=b'\r' => self.required_bytes.contains(&b'_'),
                byte => *byte != b'_' && self.required_bytes.contains(byte),
            })
    }

    fn apply<'t>(
        &self,
        table: &SecretTable,
        text: &'t [u8],
        reading: Reading,
    ) -> Option<Cow<'t, [u8]>> {
        let expression = self.expression.get_or_init(|| table.compile(self.pattern)).as_ref()?;
        let mut syntax = None;
        Some(expression.replace_all(text, |found: &Captures<'_>| {
            self.replacement(
                table,
                syntax.get_or_insert_with(|| ShellSyntax::of(text, reading)),
                found,
            )
        }))
    }

    /// Redacts the last group up to the first shell syntax. A rule without groups redacts all of
    /// the match or nothing.
    fn replacement(
        &self,
        table: &SecretTable,
        syntax: &ShellSyntax,
        found: &Captures<'_>,
    ) -> Vec<u8> {
        let whole = found.get(0).map_or(0..0, |whole| whole.range());
        let text = found.get(0).map_or(&b""[..], |whole| whole.as_bytes());
        let Some(value) = found
            .get(found.len() - 1)
            .filter(|value| !value.is_empty() && self.is_redacted(table, value.as_bytes()))
        else {
            return text.to_vec();
        };
        let cut = syntax.first(value.range());
        if cut < value.end() {
            let left = &value.as_bytes()[..cut - value.start()];
            // A value that contains quotes here lies between two quoted strings.
            if found.len() == 1
                || left.is_empty()
                || left.iter().any(|byte| matches!(byte, b'"' | b'\''))
            {
                return text.to_vec();
            }
        }
        [&text[..value.start() - whole.start], REDACTED, &text[cut - whole.start..]].concat()
    }

    fn is_redacted(&self, table: &SecretTable, value: &[u8]) -> bool {
        match self.how {
            RuleKind::Name => table.is_secret_value(value),
            RuleKind::Flag => !value.starts_with(b"-") && table.is_secret_value(value),
            RuleKind::Header => value.len() >= MIN_OPAQUE_CHARS || !is_plain(value),
            RuleKind::Any => true,
        }
    }
}

/// True for one word in lower case, or with a capital first letter.
fn is_plain(word: &[u8]) -> bool {
    let [first, rest @ ..] = word else { return false };
    first.is_ascii_alphabetic() && rest.iter().all(u8::is_ascii_lowercase)
}

/// Redacts long runs of letters and digits that are not names, numbers or joined words. None: there
/// are none.
fn without_opaque(text: &[u8]) -> Option<Vec<u8>> {
    let is_part =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'+' | b'/' | b'=' | b'-');
    let mut out: Option<Vec<u8>> = None;
    let (mut at, mut done) = (0, 0);
    while at < text.len() {
        let length = text[at..].iter().take_while(|byte| is_part(**byte)).count();
        if length >= MIN_OPAQUE_CHARS {
            let run = &text[at..at + length];
            if let Some(shown) = redact_opaque(run) {
                let out = out.get_or_insert_default();
                out.extend(&text[done..at]);
                out.extend(shown);
                done = at + length;
            }
        }
        at += length + 1;
    }
    out.map(|mut out| {
        out.extend(&text[done..]);
        out
    })
}

fn redact_opaque(run: &[u8]) -> Option<Vec<u8>> {
    if looks_random(run) {
        return Some(REDACTED.to_vec());
    }
    let hides = |part: &&[u8]| part.len() >= MIN_OPAQUE_CHARS && looks_random(part);
    let parts: Vec<&[u8]> = run.split(|byte| *byte == b'/').collect();
    if parts.len() < 2 || !parts.iter().any(hides) {
        return None;
    }
    let shown: Vec<&[u8]> =
        parts.iter().map(|part| if hides(part) { REDACTED } else { part }).collect();
    Some(shown.join(&b'/'))
}

fn looks_random(text: &[u8]) -> bool {
    let slashed = text.contains(&b'/');
    if slashed && text.split(|byte| *byte == b'/').any(|part| part.len() > 2 && is_word(part)) {
        return false; // a path
    }
    let parts = || {
        text.split(|byte| matches!(byte, b'-' | b'_' | b'+' | b'=' | b'/'))
            .filter(|part| !part.is_empty())
    };
    let (mut count, mut length, mut strange) = (0, 0, 0);
    let mut longest: &[u8] = b"";
    for part in parts() {
        count += 1;
        length += part.len();
        if part.len() > longest.len() {
            longest = part;
        }
        if !is_word(part) && !part.iter().all(u8::is_ascii_digit) {
            strange += part.len();
        }
    }
    if count == 0 || strange * 2 < text.len() {
        return longest.len() >= MIN_OPAQUE_CHARS && is_mixed(longest);
    }
    length >= 8 * count && entropy(text) >= 3.0 - ENTROPY_TOLERANCE
}

/// True for letters followed by at most four digits.
fn is_word(part: &[u8]) -> bool {
    let letters = part.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let digits = &part[letters..];
    digits.len() <= 4 && digits.iter().all(u8::is_ascii_digit)
}

/// True for letters whose upper and lower case change too often for a word of a language.
fn is_mixed(word: &[u8]) -> bool {
    let turns = word
        .windows(2)
        .filter(|pair| pair[0].is_ascii_uppercase() != pair[1].is_ascii_uppercase())
        .count();
    turns * 5 > word.len() * 2 && entropy(word) >= 4.0 - ENTROPY_TOLERANCE
}

fn entropy(text: &[u8]) -> f64 {
    let mut is_secret_value = [0_u32; 256];
    text.iter().for_each(|byte| is_secret_value[usize::from(*byte)] += 1);
    let length = text.len() as f64;
    let share = |count: u32| f64::from(count) / length;
    -is_secret_value
        .iter()
        .filter(|count| **count > 0)
        .map(|count| share(*count) * share(*count).log2())
        .sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const GOLDEN: &str = include_str!("../../../../schema/examples/redaction.json");

    fn golden(key: &str) -> Vec<(Value, Value)> {
        let golden: Value = serde_json::from_str(GOLDEN).unwrap();
        let pairs = golden[key].as_array().unwrap();
        pairs.iter().map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    }

    #[test]
    fn every_expression_compiles() {
        let table = table();
        assert!((60..128).contains(&table.rules.len()));
        for rule in &table.rules {
            assert!(table.compile(rule.pattern).is_some(), "{}", rule.pattern);
        }
        assert!(table.compile("^{reference}").is_some());
        assert!(table.names_a_secret(b"API_KEY") && !table.names_a_secret(b"LANG"));
    }

    #[test]
    fn the_examples_come_out_as_the_schema_says() {
        let texts = golden("texts");
        let (mut gone, mut plain) = (0, 0);
        for (input, expected) in &texts {
            let (input, expected) = (input.as_str().unwrap(), expected.as_str().unwrap());
            assert_eq!(String::from_utf8_lossy(&text(input.as_bytes())), expected, "{input}");
            *(if input == expected { &mut plain } else { &mut gone }) += 1;
        }
        println!("redaction: {gone} secrets gone, {plain} plain texts untouched");
        assert!(gone > 80 && plain > 50);
    }

    #[test]
    fn a_flag_hides_the_word_after_it() {
        for (input, expected) in golden("words") {
            let list = |value: &Value| -> Vec<Vec<u8>> {
                value
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|word| word.as_str().unwrap().as_bytes().to_vec())
                    .collect()
            };
            let input = list(&input);
            let shown: Vec<Vec<u8>> =
                words(input.iter().map(Vec::as_slice)).map(Cow::into_owned).collect();
            assert_eq!(shown, list(&expected));
        }
    }

    #[test]
    fn ordinary_words_are_not_copied() {
        for word in
            [&b"/usr/lib/gcc/x86_64-linux-gnu/13/include-fixed"[..], b"-O2", b"\xff\xfe", b"", b"a"]
        {
            assert!(matches!(text(word), Cow::Borrowed(_)));
        }
    }
}
