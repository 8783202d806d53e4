//! The core's only words on stderr: `paddock: what`, then `hint: what to do`. Control characters, and those that turn
//! text around, never reach the terminal.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Mode, OFlags};

pub fn say(prefix: &str, text: &str) {
    // Nowhere is left to report that stderr can not be written.
    let _ = rustix::io::write(rustix::stdio::stderr(), line(prefix, text).as_bytes());
}

fn line(prefix: &str, text: &str) -> String {
    let mut line = String::with_capacity(prefix.len() + text.len() + 3);
    line.push_str(prefix);
    line.push_str(": ");
    for character in text.chars() {
        if character.is_control() || steers_text(character) {
            let _ = write!(line, "{}", character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

/// Words while the command runs. Nobody may keep the supervisor from its work by not taking them, and the command can stop its terminal or
/// fill a pipe: so they are written only where writing can not wait, and not without end.
pub struct Live {
    /// None: whatever is there could make us wait.
    out: Option<OwnedFd>,
    said: usize,
}

/// So many say enough; after them one in so many as were said before.
const MOST_SAID: usize = 50;

impl Live {
    pub fn new() -> Live {
        let kind = rustix::fs::fstat(rustix::stdio::stderr()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let out = match kind {
            // Opened anew, it has flags of its own.
            Ok(FileType::CharacterDevice | FileType::Fifo) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                rustix::fs::open(c"/proc/self/fd/2", flags, Mode::empty()).ok()
            }
            Ok(FileType::RegularFile) => rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).ok(),
            _ => None,
        };
        Live { out, said: 0 }
    }

    /// Gives back what could not be said.
    pub fn say<'t>(&mut self, text: &'t str) -> Option<&'t str> {
        self.said += 1;
        if self.said > MOST_SAID && !self.said.is_power_of_two() {
            return None;
        }
        let whole = line("paddock", text);
        let written = self.out.as_ref().map(|out| rustix::io::write(out, whole.as_bytes()));
        if matches!(written, Some(Ok(count)) if count == whole.len()) { None } else { Some(text) }
    }
}

/// Invisible characters that change how the text around them reads: zero-width, directional, byte order mark.
fn steers_text(character: char) -> bool {
    matches!(character, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}

pub fn complain(what: &str, hint: &str) {
    say("paddock", what);
    say("hint", hint);
}
