//! Checks whether the first response of a server switches protocols (RFC 9110, 15.2.2).

/// Length of the status line up to the byte after the three digits.
const STATUS_LINE_BYTES: usize = 13;

/// `first`: all bytes from the server so far. None: more are needed.
pub fn switches_protocol(mut first: &[u8]) -> Option<bool> {
    loop {
        let begins = |start: &[u8]| first.iter().zip(start).all(|(byte, wanted)| byte == wanted);
        // Other informational responses are followed by the final one.
        if !begins(b"HTTP/1.1 1") {
            return Some(false);
        }
        let status = first.get(..STATUS_LINE_BYTES)?;
        match status.get(9..)? {
            [b'1', b'0', b'1', b' ' | b'\r'] => return Some(true),
            [b'1', tens, ones, b' ' | b'\r'] if tens.is_ascii_digit() && ones.is_ascii_digit() => {}
            _ => return Some(false),
        }
        let end = first.windows(4).position(|part| part == b"\r\n\r\n")?;
        first = first.get(end + 4..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_101_switches_protocols() {
        for (text, expected) in [
            ("HTTP/1.1 101 Switching Protocols\r\n", Some(true)),
            ("HTTP/1.1 101\r\n", Some(true)),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 x", Some(true)),
            ("HTTP/1.1 103 Early Hints\r\nLink: HTTP/1.1 101 \r\n\r\nHTTP/1.1 200 OK", Some(false)),
            ("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 101 x", Some(false)),
            ("HTTP/1.0 101 x\r\n", Some(false)),
            ("HTTP/1.1 1010\r\n", Some(false)),
            ("HTTP/1.1 1x1 \r\n", Some(false)),
            ("\r\nHTTP/1.1 101 x", Some(false)),
            ("SSH-2.0", Some(false)),
            ("", None),
            ("HTTP/1.1 1", None),
            ("HTTP/1.1 101", None),
            ("HTTP/1.1 100 Continue\r\n", None),
            ("HTTP/1.1 100 Continue\r\n\r\n", None),
        ] {
            assert_eq!(switches_protocol(text.as_bytes()), expected, "{text:?}");
            // Later bytes do not change the answer.
            for length in 0..text.len() {
                let early = switches_protocol(&text.as_bytes()[..length]);
                assert!(early.is_none() || early == expected, "{text:?} {length}");
            }
        }
    }
}
