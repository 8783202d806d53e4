//! Finds the process that has a socket. The kernel does not map a socket to its processes, so their
//! descriptors are searched: only for connections that are denied or asked about, and for a short
//! time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use crate::kernel::ancestry;
use crate::network::relay::relay_messages::SocketProcess;

/// Time for all searches of one turn. Later ones stay unknown: other tasks must be served.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(5);

/// Further processes are not searched.
const MAX_PROCESSES: usize = 4096;

pub struct SocketProcesses {
    /// Init of the sandbox: all its processes descend from it.
    init: Pid,
    /// The process that was found last; it often connects again.
    last: Option<u32>,
    /// The run's command, and the child of it that each process descends from.
    command: Option<u32>,
    branches: BTreeMap<u32, u32>,
}

impl SocketProcesses {
    pub fn of(init: Pid) -> SocketProcesses {
        SocketProcesses { init, last: None, command: None, branches: BTreeMap::new() }
    }

    /// From now on the child of the command is stored for each process.
    pub fn track_branches(&mut self, command: Pid) {
        self.command = Some(command.as_raw_nonzero().get() as u32);
    }

    pub fn branch_of(&self, pid: u32) -> Option<u32> {
        self.branches.get(&pid).copied()
    }

    /// The deadline of a turn that starts now.
    pub fn deadline() -> Instant {
        Instant::now() + SEARCH_TIMEOUT
    }

    /// None: no process has it any more, or the time is over.
    pub fn find(&mut self, socket: u32, until: Instant) -> Option<SocketProcess> {
        let link = format!("socket:[{socket}]");
        let pid = match self.last.filter(|last| has_socket(*last, &link, until) == Some(true)) {
            Some(last) => last,
            None => self.search(&link, until)?,
        };
        self.last = Some(pid);
        // Checked again: the pid can be reused, and the other program must not be reported.
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        if has_socket(pid, &link, until) != Some(true) {
            return None;
        }
        if let Some(branch) = self.command.and_then(|command| ancestry::branch_of(pid, command)) {
            if self.branches.len() >= MAX_PROCESSES {
                self.branches.clear();
            }
            self.branches.insert(pid, branch);
        }
        Some(SocketProcess { pid, exe: exe.to_string_lossy().into_owned() })
    }

    fn search(&self, link: &str, until: Instant) -> Option<u32> {
        let mut found = vec![self.init.as_raw_nonzero().get() as u32];
        let mut looked_at = 0;
        while let Some(pid) = found.get(looked_at).copied().filter(|_| looked_at < MAX_PROCESSES) {
            looked_at += 1;
            if has_socket(pid, link, until)? {
                return Some(pid);
            }
            add_children(pid, &mut found);
        }
        None
    }
}

/// None: the time is over.
fn has_socket(pid: u32, link: &str, until: Instant) -> Option<bool> {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Some(false) };
    for (index, descriptor) in descriptors.flatten().enumerate() {
        if index % 64 == 0 && Instant::now() >= until {
            return None;
        }
        if std::fs::read_link(descriptor.path()).is_ok_and(|target| target.as_os_str() == link) {
            return Some(true);
        }
    }
    Some(false)
}

fn add_children(pid: u32, found: &mut Vec<u32>) {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(
            children.split_ascii_whitespace().filter_map(|child| child.parse::<u32>().ok()),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, WaitOptions};
    use std::net::TcpListener;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn the_owner_of_a_socket_is_found_among_the_descendants() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        // A separate tree: processes of other tests have descriptors of this process too.
        let init = crate::kernel::sys::fork(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let number = std::fs::metadata(format!("/proc/self/fd/{}", listener.as_raw_fd()))
                .unwrap()
                .ino() as u32;
            let forever = || std::thread::sleep(Duration::from_secs(600));
            let child = crate::kernel::sys::fork(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
                forever();
                0
            });
            drop(listener);
            let child = child.unwrap().as_raw_nonzero().get() as u32;
            rustix::io::write(&writer, &[number.to_ne_bytes(), child.to_ne_bytes()].concat())
                .unwrap();
            forever();
            0
        });
        let init = init.unwrap();
        let mut message = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut message).unwrap(), 8);
        let [number, child] =
            [0, 4].map(|at| u32::from_ne_bytes(message[at..at + 4].try_into().unwrap()));
        let later = Instant::now() + Duration::from_secs(60);
        let mut processes = SocketProcesses::of(init);
        let exe = std::fs::read_link("/proc/self/exe").unwrap().to_string_lossy().into_owned();
        for _ in 0..2 {
            assert_eq!(
                processes.find(number, later),
                Some(SocketProcess { pid: child, exe: exe.clone() })
            );
        }
        assert_eq!(processes.find(1, later), None);
        assert_eq!(processes.find(number, Instant::now()), None);
        rustix::process::kill_process(init, Signal::KILL).unwrap();
        rustix::process::waitpid(Some(init), WaitOptions::empty()).unwrap();
    }
}
