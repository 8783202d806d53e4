//! `redact`: takes secrets out of texts for Python, until stdin ends.
//!
//! A request is one letter for the reading, the number of texts, and the texts. Each number is four
//! bytes, lowest first; a text is its length and its bytes. The answer is as many texts. A request
//! is read to its end before the answer is written, so neither side waits for the other.

use std::borrow::Cow;
use std::io::{self, BufRead as _, BufReader, BufWriter, Read, Write};

use super::error::Refusal;
use crate::journal::redact::{self, Reading};

pub fn serve() -> Result<i32, Refusal> {
    let mut requests = BufReader::new(io::stdin().lock());
    let mut answers = BufWriter::new(io::stdout().lock());
    loop {
        match answer_one(&mut requests, &mut answers) {
            Ok(true) => {}
            Ok(false) => return Ok(0),
            Err(_) => return Err(Refusal::Usage("redact: the request cannot be read or answered")),
        }
    }
}

/// False: there are no more requests.
fn answer_one(requests: &mut BufReader<impl Read>, answers: &mut impl Write) -> io::Result<bool> {
    let Some(&kind) = requests.fill_buf()?.first() else { return Ok(false) };
    requests.consume(1);
    let count = number(requests)?;
    let texts = (0..count).map(|_| text(requests)).collect::<io::Result<Vec<Vec<u8>>>>()?;
    let all = |reading| texts.iter().map(|text| redact::redact(text, reading)).collect();
    let redacted: Vec<Cow<'_, [u8]>> = match kind {
        b't' => all(Reading::Text),
        b'c' => all(Reading::Command),
        b'p' => all(Reading::Part),
        b'w' => redact::words(texts.iter().map(Vec::as_slice)).collect(),
        // Fields: a name and a value each. A name comes back as it is.
        b'f' if texts.len().is_multiple_of(2) => texts
            .chunks_exact(2)
            .flat_map(|field| [Cow::from(&field[0]), redact::field(&field[0], &field[1])])
            .collect(),
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    answers.write_all(&count.to_le_bytes())?;
    for text in redacted {
        answers.write_all(&length(&text)?.to_le_bytes())?;
        answers.write_all(&text)?;
    }
    answers.flush()?;
    Ok(true)
}

fn number(requests: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    requests.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn text(requests: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = number(requests)?;
    let mut bytes = Vec::new();
    let read = requests.take(u64::from(length)).read_to_end(&mut bytes)?;
    if read == length as usize { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn length(text: &[u8]) -> io::Result<u32> {
    u32::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, texts: &[&[u8]]) -> Vec<u8> {
        let mut frame = vec![kind];
        frame.extend(u32::try_from(texts.len()).unwrap().to_le_bytes());
        for text in texts {
            frame.extend(length(text).unwrap().to_le_bytes());
            frame.extend(*text);
        }
        frame
    }

    fn answer(request: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut requests = BufReader::new(request);
        while answer_one(&mut requests, &mut out)? {}
        Ok(out)
    }

    #[test]
    fn each_reading_gives_as_many_texts() {
        type Texts<'t> = &'t [&'t [u8]];
        let cases: [(u8, Texts<'_>, Texts<'_>); 5] = [
            (b't', &[b"token=x1;b", b"", b"\xff"], &[b"token=[redacted];b", b"", b"\xff"]),
            (b'c', &[b"password=x;evil"], &[b"password=[redacted];evil"]),
            (b'p', &[b"+don't https://a:x;evil@b"], &[b"+don't https://a:[redacted];evil@b"]),
            (b'w', &[b"--token", b"abc", b"-v"], &[b"--token", b"[redacted]", b"-v"]),
            (
                b'f',
                &[b"API_KEY", b"abc", b"LANG", b"C"],
                &[b"API_KEY", b"[redacted]", b"LANG", b"C"],
            ),
        ];
        for (kind, texts, expected) in cases {
            assert_eq!(answer(&frame(kind, texts)).unwrap(), frame(kind, expected)[1..], "{kind}");
        }
        let two = [frame(b't', &[b"a"]), frame(b't', &[])].concat();
        assert_eq!(answer(&two).unwrap().len(), 9 + 4);
    }

    #[test]
    fn a_request_that_is_cut_off_or_unknown_has_no_answer() {
        let whole = frame(b'f', &[b"name", b"value"]);
        for end in 1..whole.len() {
            assert!(answer(&whole[..end]).is_err(), "{end}");
        }
        assert!(answer(&frame(b'f', &[b"name"])).is_err());
        assert!(answer(&frame(b'x', &[])).is_err());
    }
}
