//! From the plan's system call list to a filter: which number gets which answer.
//!
//! Some answers do not depend on the list. io_uring would carry out calls that no filter sees;
//! TIOCSTI and TIOCLINUX type into the terminal the fence was started from; a socket family that
//! the plan does not name reaches services, kernel code and networks that nothing else here
//! watches. clone3 keeps its flags behind a pointer, where no filter can look, so it is ENOSYS, on
//! which every libc falls back to clone (EPERM would break threads).

pub mod bpf;
mod sockets;

use self::bpf::{Action, BpfError, Look, Range, Test};
use self::sockets::Sockets;
use crate::kernel::sys::Instruction;
use crate::plan::syscalls::{self, Arch, Syscall, SyscallFinder};
use crate::plan::{self, SocketAccess};

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const TERMINAL_INJECTION: &[Look<'_>] =
    &[Look::at(1, Test::Refuse { values: &[TIOCSTI, TIOCLINUX], errno: libc::EPERM })];

/// What decides who reads from a terminal, and what becomes of what is typed: settings (TCSETS and
/// its kin, with the older and newer ones), flow (TCXONC), what waits to be read (TCFLSH), whose it
/// is (TIOCSCTTY, TIOCSPGRP, TIOCNOTTY), its size (TIOCSWINSZ), its line discipline (TIOCSETD).
const TERMINAL_CHANGES: &[Look<'_>] = &[Look::at(
    1,
    Test::Notify {
        values: &[
            0x5402,
            0x5403,
            0x5404,
            0x5406,
            0x5407,
            0x5408,
            0x540A,
            0x540B,
            0x540E,
            0x5410,
            0x5414,
            0x5422,
            0x5423,
            0x5433,
            0x5434,
            0x5435,
            0x402C_542B,
            0x402C_542C,
            0x402C_542D,
        ],
    },
)];

/// Landlock does not judge prlimit(2) on another process of the same user: it could end the
/// supervisor by its CPU limit, or silence the journal by its file size limit.
const OWN_PROCESS: &[Look<'_>] = &[Look::at(0, Test::Only { values: &[0], errno: libc::EPERM })];

/// A process group reaches across pid namespaces: kill(2) of 0 is for everybody in it, also for
/// those who have no number here.
const NAMED_PROCESSES: &[Look<'_>] =
    &[Look::at(0, Test::Refuse { values: &[0], errno: libc::EPERM })];

/// Every CLONE_NEW* flag that clone(2) takes. CLONE_NEWTIME lies in the signal byte there: only
/// unshare and clone3 know it.
const CLONE_NEW: u32 = 0x7E02_0000;
const CLONE_NEWTIME: u32 = 0x80;
const CLONE_NAMESPACES: &[Look<'_>] =
    &[Look::at(0, Test::RefuseBits { bits: CLONE_NEW, errno: libc::EPERM })];
const UNSHARE_NAMESPACES: &[Look<'_>] =
    &[Look::at(0, Test::RefuseBits { bits: CLONE_NEW | CLONE_NEWTIME, errno: libc::EPERM })];

/// Under exec rules. Processes that share their working directory could change it after it was
/// judged, and what an interpreter then opens by a relative path; only threads share it, and an
/// exec ends them. And who listens last answers: nobody may take over what we answer.
const CLONE_FS: u32 = 0x200;
const CLONE_THREAD: u32 = 0x1_0000;
const GATED_CLONE: &[Look<'_>] = &[
    Look::at(0, Test::RefuseBits { bits: CLONE_NEW, errno: libc::EPERM }),
    Look::at(
        0,
        Test::RefuseBitsWithout { bits: CLONE_FS, others: CLONE_THREAD, errno: libc::EPERM },
    ),
];
const SECCOMP_NEW_LISTENER: u32 = 1 << 3;
const GATED_SECCOMP: &[Look<'_>] =
    &[Look::at(1, Test::RefuseBits { bits: SECCOMP_NEW_LISTENER, errno: libc::EBUSY })];

#[derive(Debug)]
pub struct Filter {
    pub program: Vec<Instruction>,
    /// Calls of this architecture that the list refuses.
    pub blocked: usize,
    /// Listed names that this architecture does not have.
    pub absent: Vec<&'static str>,
    refused: Vec<&'static str>,
}

impl Filter {
    /// `shared_group`: the supervisor is in the command's process group, and nothing else keeps
    /// signals from it. `gated`: there are exec rules, and no namespaces inside.
    pub fn compile(
        requested: &plan::Seccomp,
        arch: Arch,
        shared_group: bool,
        gated: bool,
        reach: SocketAccess,
    ) -> Result<Filter, BpfError> {
        let unknown = match requested.default {
            plan::SeccompDefault::Allow => Action::Allow,
            plan::SeccompDefault::Deny => Action::Errno(libc::ENOSYS),
        };
        let mut families: Vec<u32> =
            requested.sockets.iter().map(|family| family.number()).collect();
        if reach.network == Some(plan::NetworkMode::None) {
            families.retain(|family| !sockets::INTERNET.contains(family));
        }
        families.extend(reach.unix_by_path.then_some(plan::SocketFamily::Unix.number()));
        families.dedup();
        let sockets = Sockets::of(
            &families,
            requested.sockets.contains(&plan::SocketFamily::NetlinkAll),
            reach,
        );
        let calls = calls(requested, arch);
        let mut ranges = Vec::with_capacity(calls.len() + 2);
        ranges.push(Range { first: 0, action: unknown });
        let mut listed = vec![false; syscalls::TABLE.len()];
        requested.syscalls.iter().for_each(|syscall| listed[syscall.row] = true);
        let mut refused = Vec::with_capacity(calls.len());
        let mut blocked = 0;
        for (number, syscall) in calls {
            let on_block_list =
                listed[syscall.row] == (requested.default == plan::SeccompDefault::Allow);
            let action = match syscall.name {
                "kill" if !on_block_list && shared_group => Action::Arguments(NAMED_PROCESSES),
                "clone" if !on_block_list && gated => Action::Arguments(GATED_CLONE),
                "seccomp" if !on_block_list && (gated || reach.is_enforced()) => {
                    Action::Arguments(GATED_SECCOMP)
                }
                name => answer(name, on_block_list, requested.namespaces, &sockets),
            };
            blocked += usize::from(on_block_list);
            if let Action::Errno(_) = action {
                refused.push(syscall.name);
            }
            set(&mut ranges, number, action);
            set(&mut ranges, number + 1, unknown);
        }
        let absent = requested.syscalls.iter().filter(|syscall| syscall.number(arch).is_none());
        let absent = absent.map(|syscall| syscall.name).collect();
        Ok(Filter { program: bpf::assemble(arch, ranges)?, blocked, absent, refused })
    }

    /// Whatever the arguments are.
    pub fn refuses(&self, name: &str) -> bool {
        self.refused.contains(&name)
    }
}

/// In the order of their numbers: every call whose answer may be another than that to calls nobody
/// knows. Of some hundred that is a fifth, and each launch compiles a filter.
fn calls(requested: &plan::Seccomp, arch: Arch) -> Vec<(u32, &'static Syscall)> {
    let mut wanted = vec![requested.default == plan::SeccompDefault::Deny; syscalls::TABLE.len()];
    let mut finder = SyscallFinder::new();
    let special = SPECIAL.iter().filter_map(|name| finder.find(name.as_bytes()));
    requested
        .syscalls
        .iter()
        .copied()
        .chain(special)
        .for_each(|syscall| wanted[syscall.row] = true);
    arch.rows()
        .iter()
        .filter(|(_, row)| wanted[*row])
        .map(|(number, row)| (*number, &syscalls::TABLE[*row]))
        .collect()
}

/// A program of its own for calls that the supervisor answers: what it is asked with has to reach
/// him before any other filter can refuse that. Where another filter refuses a call, nobody is
/// asked.
pub fn notifying(arch: Arch, names: &[&str]) -> Result<Vec<Instruction>, BpfError> {
    let mut ranges = vec![Range { first: 0, action: Action::Allow }];
    for (number, syscall) in arch.syscalls() {
        let action = match names.contains(&syscall.name) {
            true if syscall.name == "ioctl" => Action::Arguments(TERMINAL_CHANGES),
            true => Action::Notify,
            false => Action::Allow,
        };
        set(&mut ranges, number, action);
        set(&mut ranges, number + 1, Action::Allow);
    }
    bpf::assemble(arch, ranges)
}

/// Those that are not simply allowed or refused, below and in [`Filter::compile`]. In their order.
const SPECIAL: [&str; 16] = [
    "clone",
    "clone3",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioctl",
    "kill",
    "prlimit64",
    "seccomp",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setsockopt",
    "socket",
    "socketpair",
    "unshare",
];

fn answer<'a>(name: &str, blocked: bool, namespaces: bool, sockets: &'a Sockets<'_>) -> Action<'a> {
    match name {
        "io_uring_setup" | "io_uring_enter" | "io_uring_register" => Action::Errno(libc::ENOSYS),
        "clone3" if blocked || !namespaces => Action::Errno(libc::ENOSYS),
        _ if blocked => Action::Errno(libc::EPERM),
        "ioctl" => Action::Arguments(TERMINAL_INJECTION),
        "prlimit64" => Action::Arguments(OWN_PROCESS),
        "clone" if !namespaces => Action::Arguments(CLONE_NAMESPACES),
        "unshare" if !namespaces => Action::Arguments(UNSHARE_NAMESPACES),
        name => sockets.answer(name).unwrap_or(Action::Allow),
    }
}

/// Numbers arrive in ascending order; equal neighbours are one range.
fn set<'a>(ranges: &mut Vec<Range<'a>>, first: u32, action: Action<'a>) {
    if ranges.last().is_some_and(|last| last.first == first) {
        ranges.pop();
    }
    if ranges.last().is_none_or(|last| last.action != action) {
        ranges.push(Range { first, action });
    }
}

#[cfg(test)]
mod tests;
