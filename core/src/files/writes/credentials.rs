//! The user, the groups and the capabilities that a call is done with. A process of root can drop
//! them, and must not get them back by a call that this process does for it.

use rustix::io::Errno;
use rustix::process::Gid;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::resolve::{Caller, status_field};
use crate::kernel::calling_process::proc_path;
use crate::kernel::sys;

/// What the kernel compares with the mode of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCredentials {
    user: u32,
    group: u32,
    groups: Vec<u32>,
    effective: CapabilitySet,
}

impl FileCredentials {
    pub fn of(thread: u32) -> Result<FileCredentials, Errno> {
        let status = std::fs::read(proc_path(thread, "status")).map_err(|_| Errno::SRCH)?;
        let numbers = |name| numbers(&status, name).ok_or(Errno::SRCH);
        // The real, the effective and the saved number come first.
        let of_files = |name| numbers(name)?.get(3).copied().ok_or(Errno::SRCH);
        let effective = status_field(&status, b"CapEff:", 16).ok_or(Errno::SRCH)?;
        Ok(FileCredentials {
            user: of_files(b"Uid:")?,
            group: of_files(b"Gid:")?,
            groups: numbers(b"Groups:")?,
            effective: CapabilitySet::from_bits_retain(effective),
        })
    }

    /// This process has the credentials `before`.
    fn apply(&self, before: &FileCredentials, sets: CapabilitySets) -> Result<(), Errno> {
        let use_only = |effective| {
            rustix::thread::set_capabilities(None, CapabilitySets { effective, ..sets })
        };
        // To change the user and the groups needs capabilities, and the user changes them.
        use_only(sets.permitted)?;
        if self.groups != before.groups {
            let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
            rustix::thread::set_thread_groups(&groups)?;
        }
        if (self.user, self.group) != (before.user, before.group) {
            sys::set_file_user(self.user, self.group)?;
        }
        // This process still reads the memory and the descriptors of the caller.
        use_only((self.effective | CapabilitySet::SYS_PTRACE) & sets.permitted)
    }
}

/// The numbers of a line.
fn numbers(status: &[u8], name: &[u8]) -> Option<Vec<u32>> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

/// Runs `act` with the credentials of another process, and takes the own ones back.
pub fn acting_as<T, E: From<Errno>>(
    other: &FileCredentials,
    act: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let own = FileCredentials::of(std::process::id())?;
    if own == *other {
        return act();
    }
    let sets = rustix::thread::capabilities(None)?;
    let result = match other.apply(&own, sets) {
        Ok(()) => act(),
        Err(errno) => Err(errno.into()),
    };
    own.apply(other, sets)?;
    rustix::thread::set_capabilities(None, sets)?;
    result
}

impl Caller {
    /// The soft limit of a resource.
    pub fn resource_limit(self, resource: u32, name: &str) -> Result<u64, Errno> {
        match sys::resource_limit(self.thread, resource as _) {
            // Another user, and this process has no capability for that.
            Err(Errno::PERM) => {
                let limits = std::fs::read_to_string(proc_path(self.thread, "limits"));
                let limits = limits.map_err(|_| Errno::SRCH)?;
                let line = limits.lines().find_map(|line| line.strip_prefix(name));
                let word = line.and_then(|line| line.split_ascii_whitespace().next());
                Ok(word.ok_or(Errno::SRCH)?.parse().unwrap_or(u64::MAX)) // unlimited
            }
            limit => limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_credentials_and_limits_are_read() {
        let own = std::process::id();
        let found = FileCredentials::of(own).unwrap();
        assert_eq!(found.user, rustix::process::geteuid().as_raw());
        assert_eq!(found.group, rustix::process::getegid().as_raw());
        assert_eq!(found.effective, rustix::thread::capabilities(None).unwrap().effective);
        assert_eq!(acting_as(&found, || Ok::<u32, Errno>(7)), Ok(7));
    }

    #[test]
    fn a_line_without_numbers_is_empty() {
        assert_eq!(numbers(b"Uid:\t1\t2\t3\t4\nGroups:\t \n", b"Groups:"), Some(vec![]));
        assert_eq!(numbers(b"Uid:\t1\t2\t3\t4\n", b"Uid:"), Some(vec![1, 2, 3, 4]));
        assert_eq!(numbers(b"Uid:\tx\n", b"Uid:"), None);
        assert_eq!(numbers(b"", b"Uid:"), None);
    }
}
