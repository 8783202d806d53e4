//! The core's only words on stderr: `paddock: what`, then `hint: what to do`. Control characters, and those that turn
//! text around, never reach the terminal.

use std::fmt::Write as _;

pub fn say(prefix: &str, text: &str) {
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
    // Nowhere is left to report that stderr can not be written.
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

/// Invisible characters that change how the text around them reads: zero-width, directional, byte order mark.
fn steers_text(character: char) -> bool {
    matches!(character, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}')
}

pub fn complain(what: &str, hint: &str) {
    say("paddock", what);
    say("hint", hint);
}
