//! The parent processes of this process and its terminal, as /proc shows them.

use std::ffi::CString;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags};

/// The journal cuts a longer chain anyway.
const MAX_ANCESTORS: usize = 64;

/// `comm:pid` of each ancestor, from the parent up to pid 1 or to the edge of the pid namespace. A
/// process that can not be read appears as `?:pid` and ends the chain.
pub fn parent_chain() -> Vec<Vec<u8>> {
    let mut chain = Vec::with_capacity(8);
    let mut next = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    while next > 0 && chain.len() < MAX_ANCESTORS {
        let pid = next;
        let mut entry;
        match read_stat(pid) {
            Some(stat) => {
                entry = stat.comm;
                next = stat.parent;
            }
            None => {
                entry = b"?".to_vec();
                next = 0;
            }
        }
        entry.extend_from_slice(format!(":{pid}").as_bytes());
        chain.push(entry);
    }
    chain
}

pub fn parent_of(pid: i32) -> Option<i32> {
    read_stat(pid).map(|stat| stat.parent)
}

/// True if a signal or a tracer stopped the process. False if the process is gone.
pub fn is_stopped(pid: i32) -> bool {
    read_stat(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// The child of `top` that `pid` descends from, or `pid` itself if it is that child. Call this
/// while the process waits for the supervisor: later its pid can belong to another process.
pub fn branch_of(pid: u32, top: u32) -> Option<u32> {
    let (mut pid, top) = (i32::try_from(pid).ok()?, i32::try_from(top).ok()?);
    for _ in 0..MAX_ANCESTORS {
        match parent_of(pid)? {
            parent if parent == top => return u32::try_from(pid).ok(),
            0 | 1 => return None,
            parent => pid = parent,
        }
    }
    None
}

/// The beginning of `/proc/PID/read_stat`: `PID (NAME) STATE PPID …`, where NAME may hold anything.
#[derive(Debug, PartialEq, Eq)]
struct StatPrefix {
    comm: Vec<u8>,
    state: u8,
    parent: i32,
}

fn read_stat(pid: i32) -> Option<StatPrefix> {
    let mut buffer = [0; 512];
    let file = rustix::fs::open(
        format!("/proc/{pid}/stat"),
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .ok()?;
    let length = rustix::io::read(file, &mut buffer).ok()?;
    parse_stat_prefix(&buffer[..length])
}

fn parse_stat_prefix(read_stat: &[u8]) -> Option<StatPrefix> {
    let open = read_stat.iter().position(|byte| *byte == b'(')?;
    let close = read_stat.iter().rposition(|byte| *byte == b')')?;
    let comm = read_stat.get(open + 1..close)?.to_vec();
    let mut fields = std::str::from_utf8(&read_stat[close + 1..]).ok()?.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some(StatPrefix { comm, state, parent: fields.next()?.parse().ok()? })
}

/// The terminal on a standard descriptor, else the controlling one, else none.
pub fn terminal_name() -> Option<CString> {
    let standard: [BorrowedFd<'_>; 3] =
        [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    for fd in standard {
        if let Ok(name) = rustix::termios::ttyname(fd, Vec::new()) {
            return Some(name);
        }
    }
    let controlling = c"/dev/tty";
    rustix::fs::open(controlling, OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
        .ok()?;
    Some(controlling.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_does_not_confuse_the_fields() {
        let expected = StatPrefix { comm: b"a) R 1 (b) c".to_vec(), state: b'S', parent: 42 };
        assert_eq!(parse_stat_prefix(b"77 (a) R 1 (b) c) S 42 77 77 0"), Some(expected));
        assert!(parse_stat_prefix(b"").is_none());
        assert!(parse_stat_prefix(b"77 )(").is_none());
    }

    #[test]
    fn the_chain_starts_at_the_parent() {
        let chain = parent_chain();
        let parent = format!(":{}", rustix::process::getppid().unwrap().as_raw_nonzero());
        assert!(String::from_utf8_lossy(&chain[0]).ends_with(&parent));
    }
}
