//! From the plan's system call list to a filter: the answer to each number.
//!
//! Some answers do not depend on the list. io_uring would make calls that no filter sees. TIOCSTI
//! and TIOCLINUX type into the caller's terminal. A socket family that the plan does not name
//! reaches services, kernel code and networks that nothing else here watches. clone3 has its flags
//! behind a pointer, which no filter can read, so it gets ENOSYS: every libc then falls back to
//! clone (EPERM would break threads).

pub mod bpf;
mod sockets;

use self::bpf::{ArgumentRule, BpfError, CallAnswer, CallRange, ValueTest};
use self::sockets::SocketRules;
use crate::files::writes::call::{REFUSED_CALLS, WRITING_OPEN_FLAGS};
use crate::kernel::sys::Instruction;
use crate::plan::syscalls::{self, Arch, Syscall, SyscallFinder};
use crate::plan::{self, SocketAccess};

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const TERMINAL_INJECTION: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(1, ValueTest::Refuse { values: &[TIOCSTI, TIOCLINUX], errno: libc::EPERM })];

/// Calls that change a terminal: settings (TCSETS and its variants), flow (TCXONC), pending input
/// (TCFLSH), ownership (TIOCSCTTY, TIOCSPGRP, TIOCNOTTY), size (TIOCSWINSZ) and line discipline
/// (TIOCSETD).
const TERMINAL_CHANGES: &[ArgumentRule<'_>] = &[ArgumentRule::at(
    1,
    ValueTest::Notify {
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

/// Opens that only read do not wait.
const WRITING_OPEN: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(1, ValueTest::NotifyBits { bits: WRITING_OPEN_FLAGS })];
const WRITING_OPENAT: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(2, ValueTest::NotifyBits { bits: WRITING_OPEN_FLAGS })];

/// utimensat(2) without a path sets the times of an open file. In the full tier the mounts refuse
/// that for protected names (EROFS), so it does not wait.
const TIMES_BY_PATH: &[ArgumentRule<'_>] = &[ArgumentRule::at(1, ValueTest::NotifyPointer)];

/// For judged writes: also calls that make or remove subvolumes by name, with all files in them
/// (btrfs, bcachefs), and calls that change attributes of a file that is open for reading only
/// (FS_IOC_SETFLAGS, FSSETXATTR, SETVERSION, ENABLE_VERITY, SET_ENCRYPTION_POLICY and the same of
/// single file systems).
const JUDGED_IOCTL: &[ArgumentRule<'_>] = &[ArgumentRule::at(
    1,
    ValueTest::Refuse {
        values: &[
            TIOCSTI,
            TIOCLINUX,
            0x4008_6602,
            0x4004_6602,
            0x401C_5820,
            0x4008_7602,
            0x4004_7602,
            0x4008_6604,
            0x4004_6604,
            0x4080_6685,
            0x800C_6613,
            0x4004_7211,
            0x4008_941A,
            0x5000_940E,
            0x5000_940F,
            0x5000_9401,
            0x5000_9417,
            0x5000_9418,
            0x5000_943F,
            0x4020_BC10,
            0x4020_BC11,
            // FIFREEZE and FITHAW stop all writers of a file system.
            0xC004_5877,
            0xC004_5878,
        ],
        errno: libc::EPERM,
    },
)];

/// A process that hides its memory could not have its writes judged. The call answers with success
/// and does nothing: inside the sandbox all processes belong to the same command.
const STAYS_DUMPABLE: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(0, ValueTest::Refuse { values: &[libc::PR_SET_DUMPABLE as u32], errno: 0 })];

/// Landlock does not judge prlimit(2) on another process of the same user: it could end the
/// supervisor by its CPU limit, or silence the journal by its file size limit.
const OWN_PROCESS_ONLY: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(0, ValueTest::Only { values: &[0], errno: libc::EPERM })];

/// A process group can span pid namespaces: kill(2) of 0 signals every process of the group, also
/// those without a pid here.
const NO_PROCESS_GROUP: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(0, ValueTest::Refuse { values: &[0], errno: libc::EPERM })];

/// The same holds for the priority of a process group, and for that of a user's processes.
const OWN_PRIORITY: &[ArgumentRule<'_>] = &[ArgumentRule::at(
    0,
    ValueTest::Refuse {
        values: &[libc::PRIO_PGRP as u32, libc::PRIO_USER as u32],
        errno: libc::EPERM,
    },
)];
const IOPRIO_WHO_PGRP: u32 = 2;
const IOPRIO_WHO_USER: u32 = 3;
const OWN_IO_PRIORITY: &[ArgumentRule<'_>] = &[ArgumentRule::at(
    0,
    ValueTest::Refuse { values: &[IOPRIO_WHO_PGRP, IOPRIO_WHO_USER], errno: libc::EPERM },
)];

/// Every CLONE_NEW* flag of clone(2). CLONE_NEWTIME is in the signal byte there: only unshare and
/// clone3 have it.
const CLONE_NEW: u32 = 0x7E02_0000;
const CLONE_NEWTIME: u32 = 0x80;
const CLONE_NAMESPACES: &[ArgumentRule<'_>] =
    &[ArgumentRule::at(0, ValueTest::RefuseBits { bits: CLONE_NEW, errno: libc::EPERM })];
const UNSHARE_NAMESPACES: &[ArgumentRule<'_>] = &[ArgumentRule::at(
    0,
    ValueTest::RefuseBits { bits: CLONE_NEW | CLONE_NEWTIME, errno: libc::EPERM },
)];

/// For exec rules. Processes that share their working directory could change it after it was
/// judged, and so the file that an interpreter opens by a relative path. Only threads share it, and
/// an exec ends them. And the last listener answers: the command must not install one of its own.
const CLONE_FS: u32 = 0x200;
const CLONE_THREAD: u32 = 0x1_0000;
const GATED_CLONE: &[ArgumentRule<'_>] = &[
    ArgumentRule::at(0, ValueTest::RefuseBits { bits: CLONE_NEW, errno: libc::EPERM }),
    ArgumentRule::at(
        0,
        ValueTest::RefuseBitsWithout { bits: CLONE_FS, others: CLONE_THREAD, errno: libc::EPERM },
    ),
];
const SECCOMP_NEW_LISTENER: u32 = 1 << 3;
const GATED_SECCOMP: &[ArgumentRule<'_>] = &[ArgumentRule::at(
    1,
    ValueTest::RefuseBits { bits: SECCOMP_NEW_LISTENER, errno: libc::EBUSY },
)];

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
    /// signals from it. `gated`: there are exec rules, and no namespaces inside. `judged`: writes
    /// are judged.
    pub fn compile(
        requested: &plan::Seccomp,
        arch: Arch,
        shared_group: bool,
        gated: bool,
        judged: bool,
        socket_access: SocketAccess,
    ) -> Result<Filter, BpfError> {
        let unknown = match requested.default {
            plan::SeccompDefault::Allow => CallAnswer::Allow,
            plan::SeccompDefault::Deny => CallAnswer::Errno(libc::ENOSYS),
        };
        let mut families: Vec<u32> =
            requested.sockets.iter().map(|family| family.number()).collect();
        if socket_access.network == Some(plan::NetworkMode::None) {
            families.retain(|family| !sockets::INTERNET.contains(family));
        }
        families.extend(socket_access.unix_by_path.then_some(plan::SocketFamily::Unix.number()));
        families.dedup();
        let sockets = SocketRules::of(
            &families,
            requested.sockets.contains(&plan::SocketFamily::NetlinkAll),
            socket_access,
        );
        let calls = calls(requested, arch);
        let mut ranges = Vec::with_capacity(calls.len() + 2);
        ranges.push(CallRange { first: 0, action: unknown });
        let mut listed = vec![false; syscalls::TABLE.len()];
        requested.syscalls.iter().for_each(|syscall| listed[syscall.row] = true);
        let mut refused = Vec::with_capacity(calls.len());
        let mut blocked = 0;
        for (number, syscall) in calls {
            let on_block_list =
                listed[syscall.row] == (requested.default == plan::SeccompDefault::Allow);
            let action = match syscall.name {
                "kill" if !on_block_list && shared_group => CallAnswer::Arguments(NO_PROCESS_GROUP),
                "ioctl" if !on_block_list && judged => CallAnswer::Arguments(JUDGED_IOCTL),
                "clone" if !on_block_list && gated => CallAnswer::Arguments(GATED_CLONE),
                "seccomp" if !on_block_list && (gated || judged || socket_access.is_enforced()) => {
                    CallAnswer::Arguments(GATED_SECCOMP)
                }
                name => answer(name, on_block_list, requested.namespaces, &sockets),
            };
            blocked += usize::from(on_block_list);
            if let CallAnswer::Errno(_) = action {
                refused.push(syscall.name);
            }
            set(&mut ranges, number, action);
            set(&mut ranges, number + 1, unknown);
        }
        // A newer kernel may have calls that no list here knows: such a call could write a name
        // without a judgement, or start a program.
        let last = arch.rows().last().map_or(0, |(number, _)| *number);
        set(&mut ranges, last + 1, CallAnswer::Errno(libc::ENOSYS));
        let absent = requested.syscalls.iter().filter(|syscall| syscall.number(arch).is_none());
        let absent = absent.map(|syscall| syscall.name).collect();
        Ok(Filter { program: bpf::assemble(arch, ranges)?, blocked, absent, refused })
    }

    /// Is the call refused, whatever its arguments are?
    pub fn refuses(&self, name: &str) -> bool {
        self.refused.contains(&name)
    }
}

/// In the order of their numbers: every call whose answer may differ from the default. That is a
/// fifth of some hundred calls, and each launch compiles a filter.
fn calls(requested: &plan::Seccomp, arch: Arch) -> Vec<(u32, &'static Syscall)> {
    let mut wanted = vec![requested.default == plan::SeccompDefault::Deny; syscalls::TABLE.len()];
    let mut finder = SyscallFinder::new();
    let special = SPECIAL_CALLS.iter().filter_map(|name| finder.find(name.as_bytes()));
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

/// Calls that are sent or not, although their name is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentCalls {
    /// Opens that only read.
    pub reading_opens: bool,
    /// Calls that set the times of an open file.
    pub times_of_open_files: bool,
}

/// A separate program for calls that the supervisor answers. It is installed first, because another
/// filter could refuse to send its listener. If another filter refuses a call, the supervisor does
/// not get it.
pub fn notifying(
    arch: Arch,
    names: &[&str],
    sent: SentCalls,
) -> Result<Vec<Instruction>, BpfError> {
    let mut ranges = vec![CallRange { first: 0, action: CallAnswer::Allow }];
    let mut is_named = vec![false; syscalls::TABLE.len()];
    let found = names.iter().filter_map(|name| syscalls::find(name));
    found.for_each(|syscall| is_named[syscall.row] = true);
    for (number, syscall) in arch.syscalls() {
        let action = match is_named[syscall.row] {
            true if syscall.name == "ioctl" => CallAnswer::Arguments(TERMINAL_CHANGES),
            true if syscall.name == "prctl" => CallAnswer::Arguments(STAYS_DUMPABLE),
            true if let Some(errno) = refused(syscall.name) => CallAnswer::Errno(errno),
            true if syscall.name == "open" && !sent.reading_opens => {
                CallAnswer::Arguments(WRITING_OPEN)
            }
            true if syscall.name == "openat" && !sent.reading_opens => {
                CallAnswer::Arguments(WRITING_OPENAT)
            }
            true if syscall.name == "utimensat" && !sent.times_of_open_files => {
                CallAnswer::Arguments(TIMES_BY_PATH)
            }
            true => CallAnswer::Notify,
            false => CallAnswer::Allow,
        };
        set(&mut ranges, number, action);
        set(&mut ranges, number + 1, CallAnswer::Allow);
    }
    bpf::assemble(arch, ranges)
}

/// The errno of a call that is refused where writes are judged.
fn refused(name: &str) -> Option<i32> {
    REFUSED_CALLS.iter().find(|(refused, _)| *refused == name).map(|(_, errno)| *errno)
}

/// Calls that are not simply allowed or refused, here and in [`Filter::compile`], in order.
const SPECIAL_CALLS: [&str; 18] = [
    "clone",
    "clone3",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioctl",
    "ioprio_set",
    "kill",
    "prlimit64",
    "seccomp",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "setpriority",
    "setsockopt",
    "socket",
    "socketpair",
    "unshare",
];

fn answer<'a>(
    name: &str,
    blocked: bool,
    namespaces: bool,
    sockets: &'a SocketRules<'_>,
) -> CallAnswer<'a> {
    match name {
        "io_uring_setup" | "io_uring_enter" | "io_uring_register" => {
            CallAnswer::Errno(libc::ENOSYS)
        }
        "clone3" if blocked || !namespaces => CallAnswer::Errno(libc::ENOSYS),
        _ if blocked => CallAnswer::Errno(libc::EPERM),
        "ioctl" => CallAnswer::Arguments(TERMINAL_INJECTION),
        "prlimit64" => CallAnswer::Arguments(OWN_PROCESS_ONLY),
        "setpriority" => CallAnswer::Arguments(OWN_PRIORITY),
        "ioprio_set" => CallAnswer::Arguments(OWN_IO_PRIORITY),
        "clone" if !namespaces => CallAnswer::Arguments(CLONE_NAMESPACES),
        "unshare" if !namespaces => CallAnswer::Arguments(UNSHARE_NAMESPACES),
        name => sockets.answer(name).unwrap_or(CallAnswer::Allow),
    }
}

/// Numbers come in ascending order. Equal neighbours are one range.
fn set<'a>(ranges: &mut Vec<CallRange<'a>>, first: u32, action: CallAnswer<'a>) {
    if ranges.last().is_some_and(|last| last.first == first) {
        ranges.pop();
    }
    if ranges.last().is_none_or(|last| last.action != action) {
        ranges.push(CallRange { first, action });
    }
}

#[cfg(test)]
mod tests;
