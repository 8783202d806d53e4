//! The password of the proxy: 128 random bits, new for each run. It is in the command's
//! environment, and goes to the relay by its socket, never into a plan, an argument or the journal.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::rand::GetRandomFlags;

/// The user name of the proxy.
pub const PROXY_USER: &str = "paddock";

const TOKEN_BYTES: usize = 32;

pub struct ProxyToken([u8; TOKEN_BYTES]);

impl ProxyToken {
    pub fn new() -> Result<ProxyToken, Errno> {
        let mut random = [0; TOKEN_BYTES / 2];
        rustix::rand::getrandom(&mut random, GetRandomFlags::empty())?;
        let digit = |half: u8| char::from_digit(half.into(), 16).map_or(b'0', |digit| digit as u8);
        let digits = random.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
        Ok(ProxyToken::of(digits))
    }

    fn of(digits: impl Iterator<Item = u8>) -> ProxyToken {
        let mut token = [0; TOKEN_BYTES];
        token.iter_mut().zip(digits).for_each(|(digit_index, digit)| *digit_index = digit);
        ProxyToken(token)
    }

    #[cfg(test)]
    pub fn known() -> ProxyToken {
        ProxyToken::of(b"0123456789abcdef".repeat(2).into_iter())
    }

    /// Sends the password to the relay, before any other message.
    pub fn send(&self, socket: &OwnedFd) -> Result<(), Errno> {
        rustix::net::send(socket, &self.0, SendFlags::NOSIGNAL).map(drop)
    }

    pub fn receive(socket: &OwnedFd) -> Result<ProxyToken, Errno> {
        let mut token = [0; TOKEN_BYTES];
        match rustix::net::recv(socket, &mut token, RecvFlags::TRUNC)? {
            (_, TOKEN_BYTES) => Ok(ProxyToken(token)),
            _ => Err(Errno::PROTO),
        }
    }

    /// Compares a password in constant time.
    pub fn matches(&self, password: &[u8]) -> bool {
        password.len() == TOKEN_BYTES
            && self.0.iter().zip(password).fold(0, |other, (one, two)| other | (one ^ two)) == 0
    }

    /// Checks a `Proxy-Authorization` header: the scheme, then user and password in base 64 (RFC
    /// 7617).
    pub fn is_in_header(&self, header: &[u8]) -> bool {
        let Some((scheme, credentials)) = header.split_at_checked(6) else { return false };
        let expected = base64(&[PROXY_USER.as_bytes(), b":", &self.0].concat());
        let same = |bytes: &[u8]| {
            bytes.len() == expected.len()
                && expected.iter().zip(bytes).fold(0, |other, (one, two)| other | (one ^ two)) == 0
        };
        scheme.eq_ignore_ascii_case(b"basic ") && same(credentials.trim_ascii())
    }
}

impl fmt::Display for ProxyToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// RFC 4648, 4.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - three.len()));
        for digit_index in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * digit_index) & 63) as usize];
            text.push(if digit_index <= three.len() { letter } else { b'=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::socket_pair;

    #[test]
    fn base64_matches_the_rfc_examples() {
        let written = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("\u{7f}~?>", "f34/Pg=="),
        ];
        for (bytes, text) in written {
            assert_eq!(base64(bytes.as_bytes()), text.as_bytes(), "{bytes}");
        }
    }

    #[test]
    fn each_token_is_new_and_arrives_unchanged() {
        let (token, other) = (ProxyToken::new().unwrap(), ProxyToken::new().unwrap());
        assert_ne!(token.to_string(), other.to_string());
        assert!(
            token.to_string().bytes().all(|digit| digit.is_ascii_hexdigit())
                && token.to_string().len() == TOKEN_BYTES
        );
        let (ours, theirs) = socket_pair::pair().unwrap();
        token.send(&ours).unwrap();
        assert_eq!(ProxyToken::receive(&theirs).unwrap().to_string(), token.to_string());
        rustix::net::send(&ours, b"short", SendFlags::NOSIGNAL).unwrap();
        assert!(ProxyToken::receive(&theirs).is_err());
        drop(ours);
        assert!(ProxyToken::receive(&theirs).is_err());
    }

    #[test]
    fn only_the_right_password_matches() {
        let token = ProxyToken::of([b'a'; TOKEN_BYTES].into_iter());
        let header = |user: &str, password: &[u8]| {
            [b"Basic ", &base64(&[user.as_bytes(), b":", password].concat())[..]].concat()
        };
        assert!(
            token.matches(&[b'a'; TOKEN_BYTES])
                && token.is_in_header(&header("paddock", &[b'a'; TOKEN_BYTES]))
        );
        for wrong in
            [&[b'b'; TOKEN_BYTES][..], &[b'a'; TOKEN_BYTES - 1], &[b'a'; TOKEN_BYTES + 1], b""]
        {
            assert!(!token.matches(wrong) && !token.is_in_header(&header("paddock", wrong)));
        }
        assert!(!token.is_in_header(&header("root", &[b'a'; TOKEN_BYTES])));
        assert!(
            !token.is_in_header(b"")
                && !token.is_in_header(b"Basic ")
                && !token.is_in_header(b"Bearer aaaa")
        );
    }
}
