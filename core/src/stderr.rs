//! The core's only words on stderr: `paddock: what`, then `hint: what to do`. Control characters never reach the terminal.

use std::fmt::Write as _;

pub fn say(prefix: &str, text: &str) {
    let mut line = String::with_capacity(prefix.len() + text.len() + 3);
    line.push_str(prefix);
    line.push_str(": ");
    for character in text.chars() {
        if character.is_control() {
            let _ = write!(line, "{}", character.escape_default());
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    // Nowhere is left to report that stderr can not be written.
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}

pub fn complain(what: &str, hint: &str) {
    say("paddock", what);
    say("hint", hint);
}
