//! The host's files for names: resolv.conf(5) and hosts(5). Each is read again when it changes.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::plan::host_name::HostName;

/// Bounds of resolv.conf(5).
const MAX_SERVERS: usize = 3;
const MAX_TIMEOUT_S: u64 = 30;
const MAX_ATTEMPTS: usize = 5;

/// A longer file is cut. No usual file is so long.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The content of resolv.conf(5), without the search list: names are complete.
#[derive(Debug, PartialEq, Eq)]
pub struct NameServers {
    pub addresses: Vec<SocketAddr>,
    pub timeout: Duration,
    attempts: usize,
}

impl NameServers {
    pub fn read(text: &[u8]) -> NameServers {
        let mut servers =
            NameServers { addresses: Vec::new(), timeout: Duration::from_secs(5), attempts: 2 };
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") if servers.addresses.len() < MAX_SERVERS => {
                    servers.addresses.extend(words.next().and_then(server));
                }
                Some("options") => {
                    for word in words {
                        match word.split_once(':') {
                            Some(("timeout", number)) => {
                                let seconds = number.parse().unwrap_or(5).clamp(1, MAX_TIMEOUT_S);
                                servers.timeout = Duration::from_secs(seconds);
                            }
                            Some(("attempts", number)) => {
                                servers.attempts =
                                    number.parse().unwrap_or(2).clamp(1, MAX_ATTEMPTS);
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        if servers.addresses.is_empty() {
            servers.addresses.push((Ipv4Addr::LOCALHOST, 0).into());
        }
        servers
    }

    pub fn tries(&self) -> usize {
        self.addresses.len() * self.attempts
    }

    pub fn at(&self, attempt: usize, port: u16) -> SocketAddr {
        let mut server = self.addresses[attempt % self.addresses.len()];
        server.set_port(port);
        server
    }
}

/// Reads an address; a link-local one can have an interface number.
fn server(word: &str) -> Option<SocketAddr> {
    match word.parse() {
        Ok(address) => Some(SocketAddr::new(address, 0)),
        Err(_) => format!("[{word}]:0").parse().ok(),
    }
}

/// Parses hosts(5). Other lines are ignored.
pub fn read_hosts(text: &[u8]) -> HashMap<HostName, Vec<IpAddr>> {
    let mut hosts: HashMap<HostName, Vec<IpAddr>> = HashMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let address = words.next().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
        let Some(address) = address else { continue };
        for name in words.filter_map(HostName::read) {
            hosts.entry(name).or_default().push(address);
        }
    }
    hosts
}

/// A parsed file, read again when it changes.
pub struct WatchedFile<T> {
    path: PathBuf,
    read: fn(&[u8]) -> T,
    /// When it was checked last. One turn of the relay's loop has one timestamp, so many
    /// connections cause one check.
    checked_at: Option<Instant>,
    stamp: Option<FileStamp>,
    pub value: T,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl<T> WatchedFile<T> {
    pub fn new(path: PathBuf, read: fn(&[u8]) -> T) -> WatchedFile<T> {
        WatchedFile { path, read, checked_at: None, stamp: None, value: read(b"") }
    }

    pub fn current(&mut self, now: Instant) -> &T {
        if self.checked_at.replace(now) == Some(now) {
            return &self.value;
        }
        let stamp = std::fs::metadata(&self.path).ok().map(|file| FileStamp {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            changed: (file.ctime(), file.ctime_nsec()),
        });
        if stamp != self.stamp {
            self.value = (self.read)(&self.text().unwrap_or_default());
            self.stamp = stamp;
        }
        &self.value
    }

    fn text(&self) -> std::io::Result<Vec<u8>> {
        use std::io::Read as _;
        let mut text = Vec::new();
        std::fs::File::open(&self.path)?.take(MAX_FILE_BYTES).read_to_end(&mut text)?;
        Ok(text)
    }
}
