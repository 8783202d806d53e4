//! Strings that came through JSON but are bytes on Linux: paths, arguments, environment.
//!
//! Python writes a byte that is not UTF-8 as a lone surrogate (`surrogateescape`: byte 0x80–0xFF
//! becomes U+DC80–U+DCFF). serde_json hands such a string over as WTF-8 when bytes are asked for;
//! here they become the single bytes they stand for. Any other lone surrogate, and NUL, is refused.

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
    /// A part of the plan that is carried out.
    Kept(&'static [u8]),
    /// With one NUL at the end. A CString would write to its memory when it is dropped, and a plan
    /// is dropped when a copy of this process shares that memory: each page would be there twice
    /// from then on.
    Own(Box<[u8]>),
}

/// The plan that is carried out. It stays in memory as it was read, and what is parsed from it
/// points there: a copy of each string would be a tenth of a launch.
static KEPT: OnceLock<Kept> = OnceLock::new();

struct Kept {
    plan: &'static [u8],
    /// None of its strings has an empty, `.` or `..` component: looked at together, its paths take
    /// a third of the time.
    plain: bool,
}

/// Makes the strings of this plan, when it is parsed, parts of it.
pub fn keep(plan: &'static [u8]) {
    // Of one that is not written in printable ASCII not even one string is read
    // (plan/wire/reader.rs): none of its parts has to be looked at for NUL and for surrogates.
    let _ = KEPT.set(Kept { plan, plain: !holds_odd(plan) });
}

fn kept(part: &[u8]) -> Option<&'static [u8]> {
    let Kept { plan, .. } = KEPT.get()?;
    let start = part.as_ptr().addr().checked_sub(plan.as_ptr().addr())?;
    plan.get(start..start.checked_add(part.len())?)
}

impl Text {
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Kept(bytes) => bytes,
            Bytes::Own(bytes) => &bytes[..bytes.len() - 1],
        }
    }

    pub fn as_c_str(&self) -> Cow<'_, CStr> {
        match &self.0 {
            Bytes::Kept(bytes) => Cow::Owned(CString::new(*bytes).unwrap_or_default()),
            Bytes::Own(bytes) => {
                Cow::Borrowed(CStr::from_bytes_until_nul(bytes).unwrap_or_default())
            }
        }
    }

    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<Text, TextError> {
        if bytes.contains(&0) {
            return Err(TextError::Nul);
        }
        bytes.push(0);
        Ok(Text(Bytes::Own(bytes.into_boxed_slice())))
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
    // With room for the NUL.
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
        match kept(bytes) {
            Some(bytes) => Ok(Text(Bytes::Kept(bytes))),
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

/// Two digits a byte, without the detours of a format.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// What comes before the first such byte, and what comes behind it, if there is one.
pub fn split(text: &[u8], byte: u8) -> (&[u8], Option<&[u8]>) {
    match find_byte::position(text, [byte]) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

/// A path that starts with `/` and has no empty, `.` or `..` component: what was compared is what
/// is opened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbsPath(Text);

impl AbsPath {
    pub fn new(text: Text) -> Result<AbsPath, TextError> {
        let known = matches!(text.0, Bytes::Kept(_)) && KEPT.get().is_some_and(|kept| kept.plain);
        match text.as_bytes() {
            [b'/', ..] if known => Ok(AbsPath(text)),
            b"/" => Ok(AbsPath(text)),
            path @ [b'/', ..] if !may_be_odd(path) || has_plain_names(&path[1..]) => {
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

    /// At `other` or below it, by the letters alone.
    pub fn is_within(&self, other: &AbsPath) -> bool {
        let (path, other) = (self.as_bytes(), other.as_bytes());
        // Where the other one ends tells most of them apart, which have their beginning in common.
        match path.get(other.len()) {
            None | Some(b'/') => path.starts_with(other),
            Some(_) => other == b"/",
        }
    }
}

/// No for what has certainly no empty, `.` or `..` component.
fn may_be_odd(path: &[u8]) -> bool {
    holds_odd(path) || path.ends_with(b"/") || path.ends_with(b"/.")
}

/// The same for what lies in the middle, where a quote ends a path as well. Of all places at once,
/// without looking for the first: many are looked at in one step so.
fn holds_odd(text: &[u8]) -> bool {
    let is = |byte: u8, other: u8| u8::from(byte == other);
    let ends = |byte: u8| is(byte, b'/') | is(byte, b'"');
    let odd = |first: u8, second: u8, third: u8| {
        is(first, b'/') & (ends(second) | is(second, b'.') & (is(third, b'.') | ends(third)))
    };
    let places = text.len().saturating_sub(2);
    let [first, second, third] =
        [0, 1, 2].map(|skipped| &text[text.len().min(skipped)..][..places]);
    (0..places).fold(0, |found, at| found | odd(first[at], second[at], third[at])) != 0
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
    fn escaped_bytes_come_back_as_the_bytes_they_were() {
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
    fn paths_are_absolute_and_normalised() {
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
        for plain in ["/", "/a", "/a/..b/.c", "/.a", "/..a", "/...", "/a./b..", "/.config/.x"] {
            assert!(AbsPath::new(Text::from_bytes(plain.into()).unwrap()).is_ok(), "{plain}");
        }
    }

    #[test]
    fn paths_that_are_odd_are_seen_in_the_middle_of_a_plan() {
        for odd in [
            "/", "/a/", "//a", "/a//b", "/a/../b", "/a/./b", "/..", "/.", "/a/.", "/a/..", "/./a",
            "/../a",
        ] {
            assert!(holds_odd(format!(r#"{{"cwd":"{odd}","deny":[]}}"#).as_bytes()), "{odd}");
            assert!(holds_odd(format!(r#"["/a","{odd}"]"#).as_bytes()), "{odd}");
        }
        for plain in ["/a", "/a/b", "/.a", "/a./b..", "/.config/.x", "a", ""] {
            assert!(!holds_odd(format!(r#"{{"cwd":"{plain}","deny":[]}}"#).as_bytes()), "{plain}");
        }
    }

    #[test]
    fn a_text_is_split_once() {
        assert_eq!(split(b"", b'/'), (&b""[..], None));
        assert_eq!(split(b"/", b'/'), (&b""[..], Some(&b""[..])));
        assert_eq!(split(b"a/b/c", b'/'), (&b"a"[..], Some(&b"b/c"[..])));
        assert_eq!(
            split(b"a-name-of-many-letters/b", b'/'),
            (&b"a-name-of-many-letters"[..], Some(&b"b"[..]))
        );
    }

    #[test]
    fn within_is_by_whole_components() {
        assert!(path("/a/b").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/")));
        assert!(!path("/ab").is_within(&path("/a")));
        assert!(!path("/a").is_within(&path("/a/b")));
    }
}
