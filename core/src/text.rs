//! Strings that came through JSON but are bytes on Linux: paths, arguments, environment.
//!
//! Python writes a byte that is not UTF-8 as a lone surrogate (`surrogateescape`: byte 0x80–0xFF becomes
//! U+DC80–U+DCFF). serde_json hands such a string over as WTF-8 when bytes are asked for; here they become
//! the single bytes they stand for. Any other lone surrogate, and NUL, is refused.

use std::ffi::CStr;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// A string of a plan: any bytes but NUL, and one NUL at the end. A CString would write to its memory when it is dropped, and a
/// plan is dropped when a copy of this process shares that memory: each page would be there twice from then on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Text(Box<[u8]>);

impl Text {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0[..self.0.len() - 1]
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<Text, TextError> {
        if bytes.contains(&0) {
            return Err(TextError::Nul);
        }
        bytes.push(0);
        Ok(Text(bytes.into_boxed_slice()))
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
    #[error("a string holds a NUL byte")]
    Nul,
    #[error("a string holds a surrogate that stands for no byte")]
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

/// A path that starts with `/` and has no empty, `.` or `..` component: what was compared is what is opened.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbsPath(Text);

impl AbsPath {
    pub fn new(text: Text) -> Result<AbsPath, TextError> {
        match text.as_bytes() {
            b"/" => Ok(AbsPath(text)),
            [b'/', relative @ ..] => {
                if relative.split(|byte| *byte == b'/').any(|part| matches!(part, b"" | b"." | b"..")) {
                    return Err(TextError::NotNormalised(text));
                }
                Ok(AbsPath(text))
            }
            _ => Err(TextError::NotAbsolute(text)),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub fn as_c_str(&self) -> &CStr {
        self.0.as_c_str()
    }

    /// At `other` or below it, by the letters alone.
    pub fn is_within(&self, other: &AbsPath) -> bool {
        match self.as_bytes().strip_prefix(other.as_bytes()) {
            Some([]) | Some([b'/', ..]) => true,
            Some(_) => other.as_bytes() == b"/",
            None => false,
        }
    }
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
        for json in [r#""\ud800""#, r#""\udc7f""#, r#""\udd00""#, r#""a\u0000b""#, "[1]", "7", "null"] {
            assert!(serde_json::from_str::<Text>(json).is_err(), "{json}");
        }
        let paired: Text = serde_json::from_str(r#""\ud83d\ude00""#).unwrap();
        assert_eq!(paired.as_bytes(), "😀".as_bytes());
    }

    #[test]
    fn paths_are_absolute_and_normalised() {
        for json in [r#""a""#, r#""""#, r#""/a/""#, r#""//a""#, r#""/a/../b""#, r#""/a/./b""#, r#""/..""#] {
            assert!(serde_json::from_str::<AbsPath>(json).is_err(), "{json}");
        }
        for json in [r#""/""#, r#""/a""#, r#""/a/..b/.c""#] {
            assert!(serde_json::from_str::<AbsPath>(json).is_ok(), "{json}");
        }
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
