//! All output of the core to stderr: `paddock: what`, then `hint: what to do`. Characters that
//! control a terminal or are invisible are escaped.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags};

pub fn print_line(prefix: &str, text: &str) {
    // A failed write to stderr can not be reported anywhere.
    let _ = rustix::io::write(rustix::stdio::stderr(), line(prefix, text).as_bytes());
}

fn line(prefix: &str, text: &str) -> String {
    let mut line = String::with_capacity(prefix.len() + text.len() + 3);
    line.push_str(prefix);
    line.push_str(": ");
    for character in text.chars() {
        if is_invisible(character) {
            let _ = write!(line, "{}", character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

/// Output while the command runs. The command can stop its terminal or fill a pipe, and that must
/// not block the supervisor. So a line is written only if the write can not block, and the number
/// of lines is limited.
pub struct NonBlockingStderr {
    /// None: a write to this stderr could block.
    out: Option<OwnedFd>,
    lines_printed: usize,
}

/// After this many lines, only every power of two is printed.
const MAX_LINES: usize = 50;

impl NonBlockingStderr {
    pub fn new() -> NonBlockingStderr {
        let kind = rustix::fs::fstat(rustix::stdio::stderr())
            .map(|stat| FileType::from_raw_mode(stat.st_mode));
        let out = match kind {
            // A new open file description has its own O_NONBLOCK flag.
            Ok(FileType::CharacterDevice | FileType::Fifo) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                rustix::fs::open(c"/proc/self/fd/2", flags, Mode::empty()).ok()
            }
            Ok(FileType::RegularFile) => {
                rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).ok()
            }
            _ => None,
        };
        NonBlockingStderr { out, lines_printed: 0 }
    }

    /// Returns the text if it could not be printed.
    pub fn print_line<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        self.lines_printed += 1;
        if self.lines_printed > MAX_LINES && !self.lines_printed.is_power_of_two() {
            return None;
        }
        let whole = line("paddock", text);
        let written = self.out.as_ref().map(|out| rustix::io::write(out, whole.as_bytes()));
        if matches!(written, Some(Ok(count)) if count == whole.len()) { None } else { Some(text) }
    }
}

/// Code points that control a terminal, or appear as nothing or as a blank: control and format
/// characters, separators, Unicode's `Default_Ignorable_Code_Point` (tags, variation selectors,
/// fillers), private use, surrogates, noncharacters, the empty Braille pattern. Python has the same
/// list (`cli/terminal_output.py`). `schema/examples/unseen.txt` checks both.
#[rustfmt::skip]
const INVISIBLE: [(u32, u32); 47] = [
    (0x0000, 0x001F), (0x007F, 0x00A0), (0x00AD, 0x00AD), (0x034F, 0x034F), (0x0600, 0x0605),
    (0x061C, 0x061C), (0x06DD, 0x06DD), (0x070F, 0x070F), (0x0890, 0x0891), (0x08E2, 0x08E2),
    (0x115F, 0x1160), (0x1680, 0x1680), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2000, 0x200F),
    (0x2028, 0x202F), (0x205F, 0x206F), (0x2800, 0x2800), (0x3000, 0x3000), (0x3164, 0x3164),
    (0xD800, 0xF8FF), (0xFDD0, 0xFDEF), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFFB), (0xFFFE, 0xFFFF), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F),
    (0x16FE4, 0x16FE4), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0x1FFFE, 0x1FFFF),
    (0x2FFFE, 0x2FFFF), (0x3FFFE, 0x3FFFF), (0x4FFFE, 0x4FFFF), (0x5FFFE, 0x5FFFF),
    (0x6FFFE, 0x6FFFF), (0x7FFFE, 0x7FFFF), (0x8FFFE, 0x8FFFF), (0x9FFFE, 0x9FFFF),
    (0xAFFFE, 0xAFFFF), (0xBFFFE, 0xBFFFF), (0xCFFFE, 0xCFFFF), (0xDFFFE, 0xE0FFF),
    (0xEFFFE, 0x10FFFF),
];

fn is_invisible(character: char) -> bool {
    let code = u32::from(character);
    let behind = INVISIBLE.partition_point(|(begin, _)| *begin <= code);
    behind.checked_sub(1).and_then(|at| INVISIBLE.get(at)).is_some_and(|(_, end)| code <= *end)
}

pub fn print_error(what: &str, hint: &str) {
    print_line("paddock", what);
    print_line("hint", hint);
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVISIBLE_IN_BOTH_LANGUAGES: &str = include_str!("../../../schema/examples/unseen.txt");

    #[test]
    fn exactly_the_listed_code_points_are_escaped() {
        let mut listed = vec![false; 0x11_0000];
        for range in INVISIBLE_IN_BOTH_LANGUAGES.lines() {
            let (begin, end) = range.split_once('-').unwrap_or((range, range));
            let [begin, end] = [begin, end].map(|code| usize::from_str_radix(code, 16).unwrap());
            listed[begin..=end].fill(true);
        }
        for character in '\0'..=char::MAX {
            assert_eq!(
                is_invisible(character),
                listed[character as usize],
                "{:x}",
                character as u32
            );
        }
        assert_eq!(line("x", "a\u{e0041}\u{ad}b"), "x: a\\u{e0041}\\u{ad}b\n");
    }
}
