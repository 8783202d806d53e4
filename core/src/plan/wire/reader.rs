//! Reads the one spelling of plans and messages: JSON without blanks, in printable ASCII
//! (src/paddock/plan/plan.py).
//!
//! A general JSON reader checks each byte for blanks, escapes and invalid UTF-8, which took a third
//! of a launch. Text with blanks, other characters or other numbers is not canonical, and is
//! refused. The order of keys is not checked.

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::find_byte;

/// Bytes that are checked in one loop.
const CHUNK_BYTES: usize = 256;

/// Deeper than any valid message.
const MAX_DEPTH: u32 = 32;

#[derive(Debug, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct CanonicalError {
    what: Box<str>,
    at: usize,
}

impl de::Error for CanonicalError {
    #[cold]
    fn custom<T: fmt::Display>(what: T) -> CanonicalError {
        CanonicalError { what: what.to_string().into(), at: 0 }
    }
}

type Result<T> = std::result::Result<T, CanonicalError>;

pub fn from_slice<'de, T: Deserialize<'de>>(text: &'de [u8]) -> Result<T> {
    // Checks whole chunks without stopping at the first hit, which lets the compiler vectorise the
    // loop.
    let (mut odd, mut escape) = (0, text.len());
    for (index, part) in text.chunks(CHUNK_BYTES).enumerate() {
        odd |=
            part.iter().fold(0, |odd, byte| odd | u8::from(byte.wrapping_sub(b' ') > b'~' - b' '));
        if part.iter().fold(0, |any, byte| any | u8::from(*byte == b'\\')) != 0 {
            escape = escape.min(index * CHUNK_BYTES);
        }
    }
    let mut reader = JsonReader { text, at: 0, depth: 0, escape };
    if odd != 0 {
        return Err(reader.fail("an invalid character"));
    }
    let value = T::deserialize(&mut reader).map_err(|error| reader.located(error))?;
    if reader.at == text.len() { Ok(value) } else { Err(reader.fail("text after the end")) }
}

struct JsonReader<'de> {
    text: &'de [u8],
    at: usize,
    depth: u32,
    /// Start of the chunk with the first escape. Most plans have none, and a string before it ends
    /// at the first quote.
    escape: usize,
}

impl<'de> JsonReader<'de> {
    #[cold]
    fn fail(&self, what: &str) -> CanonicalError {
        CanonicalError { what: what.into(), at: self.at }
    }

    /// Adds the position to an error of a visitor.
    #[cold]
    fn located(&self, error: CanonicalError) -> CanonicalError {
        if error.at == 0 { CanonicalError { at: self.at, ..error } } else { error }
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[inline]
    fn take(&mut self, byte: u8) -> Result<()> {
        if self.peek() != Some(byte) {
            return Err(self.fail(&format!("no {:?}", char::from(byte))));
        }
        self.at += 1;
        Ok(())
    }

    fn literal(&mut self, literal: &'static [u8]) -> Result<()> {
        if !self.text[self.at..].starts_with(literal) {
            return Err(self.fail("no value"));
        }
        self.at += literal.len();
        Ok(())
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.fail("too many nested values"));
        }
        self.depth += 1;
        // Returned without unwrapping: a plan is large, and was moved seven times.
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// The string without its quotes. A lone surrogate becomes WTF-8.
    fn string(&mut self) -> Result<Cow<'de, [u8]>> {
        self.take(b'"')?;
        let text = self.text;
        let rest = &text[self.at..];
        let plain = find_byte::position(&text[self.at..self.escape.max(self.at)], [b'"']);
        match plain.or_else(|| find_byte::position(rest, *b"\"\\")) {
            Some(end) if rest[end] == b'"' => {
                self.at += end + 1;
                Ok(Cow::Borrowed(&rest[..end]))
            }
            Some(_) => self.escaped().map(Cow::Owned),
            None => Err(self.fail("a string without an end")),
        }
    }

    #[cold]
    fn escaped(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let byte = self.peek().ok_or_else(|| self.fail("a string without an end"))?;
            self.at += 1;
            match byte {
                b'"' => return Ok(bytes),
                b'\\' => self.escape(&mut bytes)?,
                byte => bytes.push(byte),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let kind = self.peek().ok_or_else(|| self.fail("an incomplete escape"))?;
        self.at += 1;
        bytes.push(match kind {
            b'"' | b'\\' => kind,
            b'b' => 0x08,
            b'f' => 0x0C,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unicode(bytes),
            _ => return Err(self.fail("an unknown escape")),
        });
        Ok(())
    }

    fn unicode(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let first = self.hex()?;
        let mut code = first;
        if (0xD800..0xDC00).contains(&first) && self.text[self.at..].starts_with(b"\\u") {
            let before = self.at;
            self.at += 2;
            match self.hex()? {
                second @ 0xDC00..0xE000 => {
                    code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
                }
                _ => self.at = before,
            }
        }
        match char::from_u32(code) {
            Some(letter) => bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            None => bytes.extend([
                0xE0 | (code >> 12) as u8,
                0x80 | (code >> 6 & 0x3F) as u8,
                0x80 | (code & 0x3F) as u8,
            ]),
        }
        Ok(())
    }

    fn hex(&mut self) -> Result<u32> {
        let digits =
            self.text.get(self.at..self.at + 4).ok_or_else(|| self.fail("an incomplete escape"))?;
        let digit = |code: u32, byte: &u8| Some(code << 4 | char::from(*byte).to_digit(16)?);
        let code =
            digits.iter().try_fold(0, digit).ok_or_else(|| self.fail("an unknown escape"))?;
        self.at += 4;
        Ok(code)
    }

    /// Integers only: a plan has no other numbers.
    fn number<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value> {
        let rest = &self.text[self.at..];
        let (negative, digits) = match rest {
            [b'-', digits @ ..] => (true, digits),
            digits => (false, digits),
        };
        let (mut value, mut length) = (Some(0_u64), 0);
        while let Some(digit @ 0..=9) = digits.get(length).map(|byte| byte.wrapping_sub(b'0')) {
            value = value.and_then(|value| value.checked_mul(10)?.checked_add(digit.into()));
            length += 1;
        }
        let spelled = match &digits[..length] {
            [] | [b'0', _, ..] => false,
            digits => digits != b"0" || !negative,
        };
        let value = value.filter(|_| spelled).ok_or_else(|| self.fail("no number"))?;
        self.at += length + usize::from(negative);
        if !negative {
            return visitor.visit_u64(value);
        }
        let value = 0_i64.checked_sub_unsigned(value).ok_or_else(|| self.fail("no number"))?;
        visitor.visit_i64(value)
    }
}

impl<'de> Deserializer<'de> for &mut JsonReader<'de> {
    type Error = CanonicalError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        match self.peek() {
            Some(b'"') => self.deserialize_str(visitor),
            Some(b'[') => self.deserialize_seq(visitor),
            Some(b'{') => self.deserialize_map(visitor),
            Some(b'n') => {
                self.literal(b"null")?;
                visitor.visit_unit()
            }
            Some(b't') => {
                self.literal(b"true")?;
                visitor.visit_bool(true)
            }
            Some(b'f') => {
                self.literal(b"false")?;
                visitor.visit_bool(false)
            }
            _ => self.number(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.peek() == Some(b'n') {
            self.literal(b"null")?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.peek() != Some(b'"') {
            return self.wrong_kind(visitor);
        }
        let not_text = |_| de::Error::custom("a string that is not UTF-8");
        match self.string()? {
            Cow::Borrowed(bytes) => {
                visitor.visit_borrowed_str(std::str::from_utf8(bytes).map_err(not_text)?)
            }
            Cow::Owned(bytes) => visitor.visit_str(std::str::from_utf8(&bytes).map_err(not_text)?),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.peek() != Some(b'"') {
            return self.wrong_kind(visitor);
        }
        match self.string()? {
            Cow::Borrowed(bytes) => visitor.visit_borrowed_bytes(bytes),
            Cow::Owned(bytes) => visitor.visit_bytes(&bytes),
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.peek() != Some(b'[') {
            return self.wrong_kind(visitor);
        }
        self.at += 1;
        let value = self.deeper(|reader| visitor.visit_seq(JsonMembers { reader, first: true }))?;
        self.take(b']')?;
        Ok(value)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.peek() != Some(b'{') {
            return self.wrong_kind(visitor);
        }
        self.at += 1;
        let value = self.deeper(|reader| visitor.visit_map(JsonMembers { reader, first: true }));
        if value.is_ok() {
            self.take(b'}')?;
        }
        value
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.deserialize_map(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value> {
        visitor.visit_newtype_struct(self)
    }

    /// An enum value: a name, or an object with one name as its only key.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        match self.peek() {
            Some(b'"') => visitor.visit_enum(JsonVariant { reader: self, alone: true }),
            Some(b'{') => {
                self.at += 1;
                let value =
                    self.deeper(|reader| visitor.visit_enum(JsonVariant { reader, alone: false }))?;
                self.take(b'}')?;
                Ok(value)
            }
            _ => self.wrong_kind(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char unit unit_struct tuple_struct
    }

    /// An ignored string may be invalid UTF-8.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value> {
        if self.peek() == Some(b'"') {
            self.deserialize_bytes(visitor)
        } else {
            self.deserialize_any(visitor)
        }
    }
}

impl<'de> JsonReader<'de> {
    /// Tells the visitor which type is there, to produce its error.
    #[cold]
    fn wrong_kind<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value> {
        let found = match self.peek() {
            Some(b'"') => de::Unexpected::Other("a string"),
            Some(b'[') => de::Unexpected::Seq,
            Some(b'{') => de::Unexpected::Map,
            Some(b'n') => de::Unexpected::Other("null"),
            Some(b't' | b'f') => de::Unexpected::Other("a truth value"),
            Some(b'0'..=b'9' | b'-') => de::Unexpected::Other("a number"),
            _ => return Err(self.fail("no value")),
        };
        Err(de::Error::invalid_type(found, &visitor))
    }
}

/// The members of a list or an object. The caller reads the closing bracket.
struct JsonMembers<'a, 'de> {
    reader: &'a mut JsonReader<'de>,
    first: bool,
}

impl JsonMembers<'_, '_> {
    #[inline]
    fn has_next(&mut self, end: u8) -> Result<bool> {
        if self.reader.peek() == Some(end) {
            return Ok(false);
        }
        if !std::mem::replace(&mut self.first, false) {
            self.reader.take(b',')?;
        }
        Ok(true)
    }
}

impl<'de> SeqAccess<'de> for JsonMembers<'_, 'de> {
    type Error = CanonicalError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        if !self.has_next(b']')? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> MapAccess<'de> for JsonMembers<'_, 'de> {
    type Error = CanonicalError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>> {
        if !self.has_next(b'}')? {
            return Ok(None);
        }
        let key = seed.deserialize(&mut *self.reader)?;
        self.reader.take(b':')?;
        Ok(Some(key))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value> {
        seed.deserialize(&mut *self.reader)
    }
}

struct JsonVariant<'a, 'de> {
    reader: &'a mut JsonReader<'de>,
    alone: bool,
}

impl<'de> EnumAccess<'de> for JsonVariant<'_, 'de> {
    type Error = CanonicalError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self)> {
        let name = seed.deserialize(&mut *self.reader)?;
        if !self.alone {
            self.reader.take(b':')?;
        }
        Ok((name, self))
    }
}

impl<'de> VariantAccess<'de> for JsonVariant<'_, 'de> {
    type Error = CanonicalError;

    fn unit_variant(self) -> Result<()> {
        if self.alone {
            Ok(())
        } else {
            Err(self.reader.fail("a value that the name does not have"))
        }
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value> {
        if self.alone {
            return Err(self.reader.fail("a name without its value"));
        }
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value> {
        self.reader.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value> {
        self.reader.deserialize_struct("", fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::Value;
    use std::collections::BTreeMap;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "lowercase")]
    enum TestKind {
        Alone,
        With(Inner),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        flag: bool,
        number: Option<i64>,
        pair: Option<(u64, u64)>,
        names: Vec<String>,
        kinds: Vec<TestKind>,
        map: BTreeMap<String, u32>,
    }

    const WHOLE: &str = concat!(
        r#"{"flag":true,"kinds":["alone","#,
        r#"{"with":{"flag":false,"kinds":[],"map":{},"names":[],"number":null,"pair":null}}],"#,
        r#""map":{"":0,"a b":4294967295},"#,
        r#""names":["","x","\u00e9\n\"\\","\ud83d\ude00"],"#,
        r#""number":-9223372036854775808,"pair":[0,18446744073709551615]}"#,
    );

    #[test]
    fn canonical_text_means_the_same_as_to_serde_json() {
        let read: Inner = from_slice(WHOLE.as_bytes()).unwrap();
        assert_eq!(read, serde_json::from_str(WHOLE).unwrap());
        for text in [
            "null",
            "true",
            "[]",
            "{}",
            "[1,[2,[]],{\"a\":{\"b\":\"c\"}}]",
            "0",
            "-1",
            "\"\\u0000\"",
        ] {
            assert_eq!(
                from_slice::<Value>(text.as_bytes()).unwrap(),
                serde_json::from_str::<Value>(text).unwrap(),
                "{text}"
            );
        }
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "",
            " null",
            "null ",
            "[1, 2]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{\"a\" :1}",
            "{\"a\":1,}",
            "{a:1}",
            "{1:2}",
            "[1",
            "{\"a\":1",
            "01",
            "-0",
            "-",
            "+1",
            "1.0",
            "1e3",
            "18446744073709551616",
            "-9223372036854775809",
            "nul",
            "nulll",
            "True",
            "\"a",
            "\"\\x41\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "\"\t\"",
            "\"\u{e9}\"",
            "\"\u{7f}\"",
            "nullnull",
            "]",
            "}",
            ",",
            "\"\\ud800\"",
        ] {
            assert!(from_slice::<Value>(text.as_bytes()).is_err(), "{text}");
        }
        assert!(from_slice::<Value>(b"\"\xff\"").is_err());
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(from_slice::<Value>(deep(32).as_bytes()).is_ok());
        assert!(from_slice::<Value>(deep(33).as_bytes()).is_err());
        assert!(from_slice::<Value>(deep(1 << 20).as_bytes()).is_err());
    }

    #[test]
    fn errors_name_the_cause_and_the_position() {
        let refused = |text: &str| from_slice::<Inner>(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused("[]"), "invalid type: sequence, expected struct Inner at byte 0");
        assert!(
            refused(r#"{"flag":1}"#)
                .starts_with("invalid type: integer `1`, expected a boolean at byte 9")
        );
        assert!(refused(r#"{"flag":true,"flag":true}"#).starts_with("duplicate field `flag`"));
        assert!(refused(r#"{"fla":true}"#).starts_with("unknown field `fla`"));
        assert!(refused(r#"{"flag":true}"#).starts_with("missing field"));
        assert!(
            refused(&WHOLE.replace("[0,18446744073709551615]", "[0,1,2]")).starts_with("no ']'")
        );
        assert!(
            refused(&WHOLE.replace("[0,18446744073709551615]", "[0]"))
                .starts_with("invalid length")
        );
        assert!(
            refused(&WHOLE.replace("\"alone\"", "{\"alone\":1}"))
                .starts_with("a value that the name does not have")
        );
        assert!(
            refused(&WHOLE.replace("\"alone\"", "\"with\""))
                .starts_with("a name without its value")
        );
        assert!(refused(&WHOLE.replace("\"alone\"", "\"nobody\"")).starts_with("unknown variant"));
    }

    /// Accepted text means the same as to serde_json, and no text causes a panic.
    #[test]
    fn damaged_text_is_refused_or_means_the_same() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % below
        };
        let letters = br#"{}[]",:\\0123456789-aeflnrstu \n"#;
        let (mut read, mut refused) = (0, 0);
        for _ in 0..60_000 {
            let mut bytes = WHOLE.as_bytes().to_vec();
            for _ in 0..=next(3) {
                let at = next(bytes.len());
                match next(3) {
                    0 => bytes[at] = letters[next(letters.len())],
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, letters[next(letters.len())]),
                }
            }
            match from_slice::<Inner>(&bytes) {
                Ok(inner) => {
                    read += 1;
                    assert_eq!(
                        inner,
                        serde_json::from_slice(&bytes).unwrap(),
                        "{}",
                        String::from_utf8_lossy(&bytes)
                    );
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read > 1000 && refused > 10_000, "{read} {refused}");
    }
}
