//! Strings that come through JSON but are bytes on Linux: paths, arguments, environment.
//!
//! Python writes a byte that is not UTF-8 as a lone surrogate (`surrogateescape`: byte 0x80–0xFF
//! becomes U+DC80–U+DCFF). serde_json passes such a string on as WTF-8 if bytes are requested. This
//! file turns it back into bytes. Any other lone surrogate, and NUL, is refused.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::OnceLock;

use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::find_byte;

/// A string of a plan: any bytes but NUL.
#[derive(Clone)]
pub struct Text(Bytes);

#[derive(Clone)]
enum Bytes {
    /// A slice of the plan of this run.
    InPlan(&'static [u8]),
    /// With one NUL at the end. A CString writes to its memory when it is dropped. A plan is
    /// dropped while a copy of this process shares that memory, so each page would then exist
    /// twice.
    Owned(Box<[u8]>),
}

/// The plan of this run. It stays in memory as it was read, and parsed strings point into it.
/// Copying each string would take a tenth of a launch.
static PLAN_BYTES: OnceLock<PlanBytes> = OnceLock::new();

struct PlanBytes {
    plan: &'static [u8],
    /// True if no string has an empty, `.` or `..` component. Checking all paths together takes a
    /// third of the time.
    has_plain_paths: bool,
}

/// Lets the parsed strings of this plan point into it.
pub fn remember_plan(plan: &'static [u8]) {
    // The reader refuses a plan with other characters than printable ASCII (plan/wire/reader.rs).
    // So no part of it can contain NUL or a surrogate.
    let _ = PLAN_BYTES.set(PlanBytes { plan, has_plain_paths: !has_odd_path(plan) });
}

fn part_of_plan(part: &[u8]) -> Option<&'static [u8]> {
    let PlanBytes { plan, .. } = PLAN_BYTES.get()?;
    let start = part.as_ptr().addr().checked_sub(plan.as_ptr().addr())?;
    plan.get(start..start.checked_add(part.len())?)
}

impl Text {
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::InPlan(bytes) => bytes,
            Bytes::Owned(bytes) => &bytes[..bytes.len() - 1],
        }
    }

    pub fn as_c_str(&self) -> Cow<'_, CStr> {
        match &self.0 {
            Bytes::InPlan(bytes) => Cow::Owned(CString::new(*bytes).unwrap_or_default()),
            Bytes::Owned(bytes) => {
                Cow::Borrowed(CStr::from_bytes_until_nul(bytes).unwrap_or_default())
            }
        }
    }

    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<Text, TextError> {
        if bytes.contains(&0) {
            return Err(TextError::Nul);
        }
        bytes.push(0);
        Ok(Text(Bytes::Owned(bytes.into_boxed_slice())))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Text {}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_c_str().fmt(f)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("a string contains a NUL byte")]
    Nul,
    #[error("a string contains a surrogate that represents no byte")]
    Surrogate,
    #[error("{0} is not an absolute path")]
    NotAbsolute(Text),
    #[error("{0} is not a normalised path (empty, \".\" or \"..\" component)")]
    NotNormalised(Text),
}

/// WTF-8 with surrogate-escaped bytes → bytes.
fn unescape(wtf8: &[u8]) -> Result<Vec<u8>, TextError> {
    // Includes room for the NUL.
    let mut bytes = Vec::with_capacity(wtf8.len() + 1);
    if !wtf8.contains(&0xED) {
        bytes.extend_from_slice(wtf8);
        return Ok(bytes);
    }
    let mut rest = wtf8;
    while let [first, tail @ ..] = rest {
        // U+D800–U+DFFF are ED A0 80 – ED BF BF; U+DC80–U+DCFF among them are ED B2 80 – ED B3 BF.
        rest = match rest {
            [0xED, 0xB2, low @ 0x80..=0xBF, after @ ..] => {
                bytes.push(*low);
                after
            }
            [0xED, 0xB3, low @ 0x80..=0xBF, after @ ..] => {
                bytes.push(low + 0x40);
                after
            }
            [0xED, 0xA0..=0xBF, ..] => return Err(TextError::Surrogate),
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    Ok(bytes)
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Text, E> {
        match part_of_plan(bytes) {
            Some(bytes) => Ok(Text(Bytes::InPlan(bytes))),
            None => self.visit_bytes(bytes),
        }
    }

    fn visit_bytes<E: de::Error>(self, wtf8: &[u8]) -> Result<Text, E> {
        unescape(wtf8).and_then(Text::from_bytes).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        self.visit_bytes(text.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        deserializer.deserialize_bytes(TextVisitor)
    }
}

/// Two digits for each byte. Faster than `format!`.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Splits at the first such byte: the part before it, and the part after it if there is one.
pub fn split(text: &[u8], byte: u8) -> (&[u8], Option<&[u8]>) {
    match find_byte::position(text, [byte]) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// A path that starts with `/` and has no empty, `.` or `..` component. So the compared path is the
/// opened path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbsPath(Text);

impl AbsPath {
    pub fn new(text: Text) -> Result<AbsPath, TextError> {
        let known = matches!(text.0, Bytes::InPlan(_))
            && PLAN_BYTES.get().is_some_and(|plan| plan.has_plain_paths);
        match text.as_bytes() {
            [b'/', ..] if known => Ok(AbsPath(text)),
            b"/" => Ok(AbsPath(text)),
            path @ [b'/', ..] if !may_need_check(path) || has_plain_names(&path[1..]) => {
                Ok(AbsPath(text))
            }
            [b'/', ..] => Err(TextError::NotNormalised(text)),
            _ => Err(TextError::NotAbsolute(text)),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub fn as_c_str(&self) -> Cow<'_, CStr> {
        self.0.as_c_str()
    }

    /// True if this path equals `other` or lies below it, by text only.
    pub fn is_within(&self, other: &AbsPath) -> bool {
        let (path, other) = (self.as_bytes(), other.as_bytes());
        // Most paths share a prefix, so the byte at this position decides first.
        match path.get(other.len()) {
            None | Some(b'/') => path.starts_with(other),
            Some(_) => other == b"/",
        }
    }
}

/// False: the path certainly has no empty, `.` or `..` component.
fn may_need_check(path: &[u8]) -> bool {
    has_odd_path(path) || path.ends_with(b"/") || path.ends_with(b"/.")
}

/// Like `may_need_check`, in the middle of a plan, where a quote ends a path as well. It checks all
/// positions without stopping at the first hit, which lets the compiler vectorise the loop.
fn has_odd_path(text: &[u8]) -> bool {
    let is = |byte: u8, other: u8| u8::from(byte == other);
    let ends = |byte: u8| is(byte, b'/') | is(byte, b'"');
    let odd = |first: u8, second: u8, third: u8| {
        is(first, b'/') & (ends(second) | is(second, b'.') & (is(third, b'.') | ends(third)))
    };
    let positions = text.len().saturating_sub(2);
    let [first, second, third] =
        [0, 1, 2].map(|skipped| &text[text.len().min(skipped)..][..positions]);
    (0..positions).fold(0, |found, at| found | odd(first[at], second[at], third[at])) != 0
}

fn has_plain_names(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b".."))
}

impl fmt::Display for AbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for AbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for AbsPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AbsPath, D::Error> {
        AbsPath::new(Text::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> AbsPath {
        AbsPath::new(Text::from_bytes(text.into()).unwrap()).unwrap()
    }

    #[test]
    fn surrogate_escapes_become_bytes() {
        let text: Text = serde_json::from_str(r#""/a\udc80\udcbf\udcc0\udcff\u00e9""#).unwrap();
        assert_eq!(text.as_bytes(), b"/a\x80\xbf\xc0\xff\xc3\xa9");
    }

    #[test]
    fn other_surrogates_and_nul_are_refused() {
        for json in
            [r#""\ud800""#, r#""\udc7f""#, r#""\udd00""#, r#""a\u0000b""#, "[1]", "7", "null"]
        {
            assert!(serde_json::from_str::<Text>(json).is_err(), "{json}");
        }
        let paired: Text = serde_json::from_str(r#""\ud83d\ude00""#).unwrap();
        assert_eq!(paired.as_bytes(), "😀".as_bytes());
    }

    #[test]
    fn relative_and_unnormalised_paths_are_refused() {
        for odd in [
            "a",
            "",
            "/a/",
            "//a",
            "//",
            "/a//b",
            "/a/../b",
            "/a/./b",
            "/..",
            "/.",
            "/a/.",
            "/a/..",
            "/./a",
            "/../a",
            "/a/..b/..",
        ] {
            assert!(AbsPath::new(Text::from_bytes(odd.into()).unwrap()).is_err(), "{odd}");
        }
        for path in ["/", "/a", "/a/..b/.c", "/.a", "/..a", "/...", "/a./b..", "/.config/.x"] {
            assert!(AbsPath::new(Text::from_bytes(path.into()).unwrap()).is_ok(), "{path}");
        }
    }

    #[test]
    fn unnormalised_paths_are_found_inside_a_plan() {
        for odd in [
            "/", "/a/", "//a", "/a//b", "/a/../b", "/a/./b", "/..", "/.", "/a/.", "/a/..", "/./a",
            "/../a",
        ] {
            assert!(has_odd_path(format!(r#"{{"cwd":"{odd}","deny":[]}}"#).as_bytes()), "{odd}");
            assert!(has_odd_path(format!(r#"["/a","{odd}"]"#).as_bytes()), "{odd}");
        }
        for path in ["/a", "/a/b", "/.a", "/a./b..", "/.config/.x", "a", ""] {
            assert!(!has_odd_path(format!(r#"{{"cwd":"{path}","deny":[]}}"#).as_bytes()), "{path}");
        }
    }

    #[test]
    fn split_stops_at_the_first_byte() {
        assert_eq!(split(b"", b'/'), (&b""[..], None));
        assert_eq!(split(b"/", b'/'), (&b""[..], Some(&b""[..])));
        assert_eq!(split(b"a/b/c", b'/'), (&b"a"[..], Some(&b"b/c"[..])));
        assert_eq!(
            split(b"a-name-of-many-letters/b", b'/'),
            (&b"a-name-of-many-letters"[..], Some(&b"b"[..]))
        );
    }

    #[test]
    fn is_within_compares_whole_components() {
        assert!(path("/a/b").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/")));
        assert!(!path("/ab").is_within(&path("/a")));
        assert!(!path("/a").is_within(&path("/a/b")));
    }
}
