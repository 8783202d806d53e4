//! Filters run through a small BPF machine, for both architectures. Every answer to every number is
//! checked.

use super::bpf::{
    HIGH_HALF, JUMP, JUMP_ANY_BIT, JUMP_AT_LEAST, JUMP_EQUAL, LOAD, MAX_LENGTH, OFFSET_ARCH,
    OFFSET_NR, RET_ALLOW, RET_ERRNO, RET_KILL_PROCESS, RET_USER_NOTIF, RETURN, offset_of_argument,
};
use crate::plan::SocketFamily;
use crate::sandbox::seccomp::*;

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];
const EPERM: u32 = RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = RET_ERRNO | libc::ENOSYS as u32;
const EAFNOSUPPORT: u32 = RET_ERRNO | libc::EAFNOSUPPORT as u32;

const ALL_SENT: SentCalls = SentCalls { reading_opens: true, times_of_open_files: true };

struct TestCall {
    arch: u32,
    number: u32,
    arguments: [u64; 6],
}

/// What the kernel would answer. Panics on anything that bpf_check_classic and seccomp_check_filter
/// refuse.
fn interpret(program: &[Instruction], call: &TestCall) -> u32 {
    let mut accumulator = 0;
    let mut at = 0;
    for _ in 0..program.len() {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let taken = match code {
            LOAD if k == OFFSET_NR => {
                accumulator = call.number;
                continue;
            }
            LOAD if k == OFFSET_ARCH => {
                accumulator = call.arch;
                continue;
            }
            LOAD => {
                let half = |index: u32, half| offset_of_argument(index) + half == k;
                let index = (0..6).find(|index| half(*index, 0) || half(*index, HIGH_HALF));
                let index = index.expect("loads a half of an argument");
                let argument = call.arguments[index as usize];
                accumulator =
                    if half(index, 0) { argument as u32 } else { (argument >> 32) as u32 };
                continue;
            }
            RETURN => return k,
            JUMP => {
                at += k as usize;
                continue;
            }
            JUMP_EQUAL => accumulator == k,
            JUMP_AT_LEAST => accumulator >= k,
            JUMP_ANY_BIT => accumulator & k != 0,
            other => panic!("unknown instruction {other:#x}"),
        };
        at += usize::from(if taken { jt } else { jf });
    }
    panic!("the program does not return");
}

fn requested(default: plan::SeccompDefault, names: &[&str], namespaces: bool) -> plan::Seccomp {
    let syscalls = names.iter().map(|name| syscalls::find(name).unwrap()).collect();
    let sockets =
        [SocketFamily::Unix, SocketFamily::Inet, SocketFamily::Inet6, SocketFamily::Netlink].into();
    plan::Seccomp { default, syscalls, sockets, namespaces }
}

fn blocking(names: &[&str], arch: Arch) -> Filter {
    Filter::compile(
        &requested(plan::SeccompDefault::Allow, names, false),
        arch,
        false,
        false,
        false,
        SocketAccess::default(),
    )
    .unwrap()
}

fn answer_with(filter: &Filter, arch: Arch, number: u32, arguments: &[u64]) -> u32 {
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    interpret(&filter.program, &TestCall { arch: arch.audit(), number, arguments: all })
}

fn answer_to(filter: &Filter, arch: Arch, name: &str, arguments: &[u64]) -> u32 {
    answer_with(filter, arch, syscalls::find(name).unwrap().number(arch).unwrap(), arguments)
}

#[test]
fn every_listed_or_newer_call_is_refused_and_every_other_allowed() {
    let listed = ["bpf", "keyctl", "mount", "ptrace", "setns", "swapon", "unshare", "userfaultfd"];
    for arch in ARCHES {
        let filter = blocking(&listed, arch);
        assert_eq!(filter.blocked, listed.len());
        for (number, syscall) in arch.syscalls() {
            let expected = match syscall.name {
                name if listed.contains(&name) => EPERM,
                "clone3" => ENOSYS,
                name if name.starts_with("io_uring") => ENOSYS,
                "socket" | "socketpair" => EAFNOSUPPORT, // family 0
                _ => RET_ALLOW,
            };
            assert_eq!(
                answer_with(&filter, arch, number, &[]),
                expected,
                "{arch:?} {}",
                syscall.name
            );
        }
        // The kernel gave no call this number, and newer calls get the numbers after the last.
        assert_eq!(answer_with(&filter, arch, 400, &[]), RET_ALLOW, "{arch:?}");
        let last = arch.syscalls().last().unwrap().0;
        for newer in [last + 1, 1000, 0x3FFF_FFFF] {
            assert_eq!(answer_with(&filter, arch, newer, &[]), ENOSYS, "{arch:?} {newer}");
        }
    }
}

#[test]
fn exec_rules_refuse_shared_directories_and_new_listeners() {
    for arch in ARCHES {
        let open = requested(plan::SeccompDefault::Allow, &[], false);
        let (plain, gated) = [false, true]
            .map(|gated| {
                Filter::compile(&open, arch, false, gated, false, SocketAccess::default()).unwrap()
            })
            .into();
        let thread = [0x0001_0200];
        let sharing = [0x0000_0211];
        for (filter, shares, listens) in
            [(&plain, RET_ALLOW, RET_ALLOW), (&gated, EPERM, RET_ERRNO | 16)]
        {
            assert_eq!(answer_to(filter, arch, "clone", &thread), RET_ALLOW);
            assert_eq!(answer_to(filter, arch, "clone", &sharing), shares);
            assert_eq!(answer_to(filter, arch, "clone", &[0x1000_0211]), EPERM);
            assert_eq!(answer_to(filter, arch, "seccomp", &[1, 8]), listens);
            assert_eq!(answer_to(filter, arch, "seccomp", &[1, 0]), RET_ALLOW);
        }
    }
}

#[test]
fn only_listed_calls_go_to_the_listener() {
    for arch in ARCHES {
        let program = notifying(arch, &["renameat", "renameat2", "execve"], ALL_SENT).unwrap();
        let filter = Filter { program, blocked: 0, absent: Vec::new(), refused: Vec::new() };
        for name in ["renameat", "renameat2", "execve"] {
            assert_eq!(answer_to(&filter, arch, name, &[]), RET_USER_NOTIF);
        }
        for name in ["linkat", "execveat", "exit_group"] {
            assert_eq!(answer_to(&filter, arch, name, &[]), RET_ALLOW);
        }
    }
}

#[test]
fn times_of_an_open_file_are_sent_only_if_that_is_asked_for() {
    const FD: u64 = 5;
    for arch in ARCHES {
        for (times_of_open_files, path, expected) in [
            (false, 0, RET_ALLOW),
            (false, 8, RET_USER_NOTIF),
            (false, 1 << 32, RET_USER_NOTIF),
            (true, 0, RET_USER_NOTIF),
        ] {
            let sent = SentCalls { times_of_open_files, ..ALL_SENT };
            let program = notifying(arch, &["utimensat"], sent).unwrap();
            let filter = Filter { program, blocked: 0, absent: Vec::new(), refused: Vec::new() };
            assert_eq!(answer_to(&filter, arch, "utimensat", &[FD, path]), expected, "{path:#x}");
        }
    }
}

#[test]
fn calls_that_open_files_without_names_or_freeze_them_are_refused() {
    const FIFREEZE: u64 = 0xC004_5877;
    for arch in ARCHES {
        let names = ["fanotify_init", "open_by_handle_at"];
        let program = notifying(arch, &names, ALL_SENT).unwrap();
        let filter = Filter { program, blocked: 0, absent: Vec::new(), refused: Vec::new() };
        assert!(names.iter().all(|name| answer_to(&filter, arch, name, &[]) == EPERM));
        for (judged, expected) in [(true, EPERM), (false, RET_ALLOW)] {
            let requested = requested(plan::SeccompDefault::Allow, &[], false);
            let access = SocketAccess::default();
            let filter = Filter::compile(&requested, arch, false, false, judged, access).unwrap();
            assert_eq!(answer_to(&filter, arch, "ioctl", &[3, FIFREEZE]), expected);
        }
    }
}

#[test]
fn each_single_name_is_refused_and_its_neighbours_are_not() {
    for arch in ARCHES {
        for (number, syscall) in arch.syscalls() {
            if matches!(syscall.name, "execve" | "exit_group") {
                continue;
            }
            let filter = blocking(&[syscall.name], arch);
            let refused = if syscall.name == "clone3" || syscall.name.starts_with("io_uring") {
                ENOSYS
            } else {
                EPERM
            };
            assert_eq!(
                answer_with(&filter, arch, number, &[]),
                refused,
                "{arch:?} {}",
                syscall.name
            );
            let free = blocking(&[], arch);
            for neighbour in [number.wrapping_sub(1), number + 1] {
                if neighbour != u32::MAX {
                    let (with, without) = (&filter, &free);
                    let expected = answer_with(without, arch, neighbour, &[]);
                    assert_eq!(
                        answer_with(with, arch, neighbour, &[]),
                        expected,
                        "{arch:?} {neighbour}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_foreign_architecture_and_x32_are_killed() {
    const I386: u32 = 0x4000_0003;
    const ARM: u32 = 0x4000_0028;
    for arch in ARCHES {
        let filter = blocking(&["ptrace"], arch);
        let other = if arch == Arch::X86_64 { Arch::Aarch64 } else { Arch::X86_64 };
        for foreign in [I386, ARM, other.audit(), 0] {
            let call = TestCall { arch: foreign, number: 1, arguments: [0; 6] };
            assert_eq!(interpret(&filter.program, &call), RET_KILL_PROCESS);
        }
    }
    let filter = blocking(&[], Arch::X86_64);
    for number in [0x4000_0000, 0x4000_0000 + 101, u32::MAX] {
        assert_eq!(answer_with(&filter, Arch::X86_64, number, &[]), RET_KILL_PROCESS);
    }
}

#[test]
fn terminal_injection_is_refused_with_any_upper_bits() {
    for arch in ARCHES {
        let filter = blocking(&[], arch);
        for high in [0, 1 << 32, 0xFFFF_FFFF << 32] {
            for (request, expected) in [
                (0x5412, EPERM),
                (0x541C, EPERM),
                (0x5411, RET_ALLOW),
                (0x5413, RET_ALLOW),
                (0x541B, RET_ALLOW),
                (0x541D, RET_ALLOW),
            ] {
                assert_eq!(
                    answer_to(&filter, arch, "ioctl", &[0, request | high]),
                    expected,
                    "{request:#x}"
                );
            }
        }
    }
}

#[test]
fn only_the_named_socket_families_pass() {
    for arch in ARCHES {
        for (families, numbers) in [
            (&[][..], &[][..]),
            (&[SocketFamily::Inet], &[2]),
            (&[SocketFamily::Inet, SocketFamily::Inet6, SocketFamily::Netlink], &[2, 10, 16]),
            (
                &[
                    SocketFamily::Unix,
                    SocketFamily::Inet,
                    SocketFamily::Inet6,
                    SocketFamily::Netlink,
                ],
                &[1, 2, 10, 16],
            ),
        ] {
            let sockets = families.iter().copied().collect();
            let requested =
                plan::Seccomp { sockets, ..requested(plan::SeccompDefault::Allow, &[], false) };
            let filter =
                Filter::compile(&requested, arch, false, false, false, SocketAccess::default())
                    .unwrap();
            for family in 0..64_u64 {
                let expected = if numbers.contains(&family) { RET_ALLOW } else { EAFNOSUPPORT };
                assert_eq!(answer_to(&filter, arch, "socket", &[family]), expected, "{family}");
                assert_eq!(
                    answer_to(&filter, arch, "socket", &[family | 1 << 32]),
                    expected,
                    "{family}"
                );
            }
            assert_eq!(answer_to(&filter, arch, "socketpair", &[1]), RET_ALLOW);
        }
        assert_eq!(answer_to(&blocking(&["socket"], arch), arch, "socket", &[1]), EPERM);
    }
}

#[test]
fn a_datagram_pair_needs_the_unix_family() {
    const FLAGS: u64 = 0x8_0800; // SOCK_CLOEXEC | SOCK_NONBLOCK
    for arch in ARCHES {
        let without = plan::Seccomp {
            sockets: [SocketFamily::Inet].into(),
            ..requested(plan::SeccompDefault::Allow, &[], false)
        };
        let closed =
            Filter::compile(&without, arch, false, false, false, SocketAccess::default()).unwrap();
        for (kind, expected) in [(1, RET_ALLOW), (2, EPERM), (3, EPERM), (5, RET_ALLOW)] {
            assert_eq!(answer_to(&closed, arch, "socketpair", &[1, kind]), expected, "{kind}");
            assert_eq!(
                answer_to(&closed, arch, "socketpair", &[1, kind | FLAGS]),
                expected,
                "{kind}"
            );
            assert_eq!(
                answer_to(&blocking(&[], arch), arch, "socketpair", &[1, kind]),
                RET_ALLOW,
                "{kind}"
            );
        }
    }
}

#[test]
fn only_unix_sockets_come_in_pairs() {
    for arch in ARCHES {
        for families in [
            &[][..],
            &[SocketFamily::Inet, SocketFamily::Inet6, SocketFamily::Netlink],
            &[SocketFamily::Unix, SocketFamily::Inet],
        ] {
            let sockets = families.iter().copied().collect();
            let requested =
                plan::Seccomp { sockets, ..requested(plan::SeccompDefault::Allow, &[], false) };
            let filter =
                Filter::compile(&requested, arch, false, false, false, SocketAccess::default())
                    .unwrap();
            for (family, kind) in
                (0..64_u64).flat_map(|family| [1, 2, 3, 5].map(|kind| (family, kind)))
            {
                let expected = match (family, kind) {
                    (1, 2 | 3) if !families.contains(&SocketFamily::Unix) => EPERM,
                    (1, _) => RET_ALLOW,
                    _ => EAFNOSUPPORT,
                };
                assert_eq!(
                    answer_to(&filter, arch, "socketpair", &[family, kind]),
                    expected,
                    "{family} {kind}"
                );
                assert_eq!(
                    answer_to(&filter, arch, "socketpair", &[family | 1 << 32, kind]),
                    expected,
                    "{family} {kind}"
                );
            }
        }
        assert_eq!(answer_to(&blocking(&["socketpair"], arch), arch, "socketpair", &[1, 1]), EPERM);
    }
}

#[test]
fn limits_of_another_process_can_not_be_set() {
    for arch in ARCHES {
        let filter = blocking(&[], arch);
        assert_eq!(answer_to(&filter, arch, "prlimit64", &[0, 7]), RET_ALLOW);
        assert_eq!(answer_to(&filter, arch, "prlimit64", &[4242, 7]), EPERM);
        for (name, process, others) in [("setpriority", 0, [1, 2]), ("ioprio_set", 1, [2, 3])] {
            assert_eq!(answer_to(&filter, arch, name, &[process]), RET_ALLOW, "{name}");
            for which in others {
                assert_eq!(answer_to(&filter, arch, name, &[which]), EPERM, "{name} {which}");
            }
        }
    }
}

#[test]
fn namespaces_need_permission_of_the_plan() {
    const THREAD: u64 = 0x3D_0F00;
    for arch in ARCHES {
        let closed = blocking(&[], arch);
        assert_eq!(answer_to(&closed, arch, "clone", &[THREAD]), RET_ALLOW);
        assert_eq!(answer_to(&closed, arch, "clone", &[libc::SIGCHLD as u64]), RET_ALLOW);
        assert_eq!(answer_to(&closed, arch, "clone3", &[]), ENOSYS);
        let flags =
            [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
        for flag in flags {
            assert_eq!(answer_to(&closed, arch, "clone", &[flag | THREAD]), EPERM, "{flag:#x}");
            assert_eq!(answer_to(&closed, arch, "unshare", &[flag]), EPERM, "{flag:#x}");
        }
        assert_eq!(answer_to(&closed, arch, "unshare", &[0x80]), EPERM);
        assert_eq!(answer_to(&closed, arch, "unshare", &[0x400]), RET_ALLOW); // CLONE_FILES

        let open = Filter::compile(
            &requested(plan::SeccompDefault::Allow, &[], true),
            arch,
            false,
            false,
            false,
            SocketAccess::default(),
        )
        .unwrap();
        for name in ["clone", "clone3", "unshare"] {
            assert_eq!(answer_to(&open, arch, name, &[0x1000_0000]), RET_ALLOW);
        }
    }
}

#[test]
fn an_allow_list_refuses_every_other_call() {
    let listed =
        ["execve", "exit_group", "read", "write", "ioctl", "socket", "clone", "io_uring_setup"];
    for arch in ARCHES {
        let filter = Filter::compile(
            &requested(plan::SeccompDefault::Deny, &listed, false),
            arch,
            false,
            false,
            false,
            SocketAccess::default(),
        )
        .unwrap();
        for (number, syscall) in arch.syscalls() {
            let expected = match syscall.name {
                name if name.starts_with("io_uring") => ENOSYS,
                "clone3" => ENOSYS,
                "socket" => EAFNOSUPPORT,
                name if listed.contains(&name) => RET_ALLOW,
                _ => EPERM,
            };
            assert_eq!(
                answer_with(&filter, arch, number, &[]),
                expected,
                "{arch:?} {}",
                syscall.name
            );
        }
        let known: Vec<u32> = arch.syscalls().map(|(number, _)| number).collect();
        for number in (0..1200).filter(|number| !known.contains(number)) {
            assert_eq!(answer_with(&filter, arch, number, &[]), ENOSYS, "{number}");
        }
        assert_eq!(answer_to(&filter, arch, "ioctl", &[0, 0x5412]), EPERM);
        assert_eq!(answer_to(&filter, arch, "socket", &[40]), EAFNOSUPPORT);
        assert_eq!(answer_to(&filter, arch, "clone", &[0x1000_0000]), EPERM);
    }
}

#[test]
fn the_longest_lists_still_assemble() {
    let all: Vec<&str> = syscalls::TABLE.iter().map(|syscall| syscall.name).collect();
    let every_second: Vec<&str> = all.iter().step_by(2).copied().collect();
    for arch in ARCHES {
        // Every second number is refused: the largest possible number of ranges.
        let alternating: Vec<&str> =
            arch.syscalls().step_by(2).map(|(_, syscall)| syscall.name).collect();
        for names in [&all, &every_second, &alternating] {
            for default in [plan::SeccompDefault::Allow, plan::SeccompDefault::Deny] {
                let filter = Filter::compile(
                    &requested(default, names, true),
                    arch,
                    false,
                    false,
                    false,
                    SocketAccess::default(),
                )
                .unwrap();
                assert!(filter.program.len() <= MAX_LENGTH);
                for (number, syscall) in
                    arch.syscalls().filter(|(_, syscall)| !syscall.name.starts_with("io_uring"))
                {
                    let refused =
                        names.contains(&syscall.name) == (default == plan::SeccompDefault::Allow);
                    let answer = answer_with(&filter, arch, number, &[1]);
                    let expected = match (refused, syscall.name) {
                        (true, "clone3") => ENOSYS,
                        // The argument means another process, or a process group.
                        (true, _) | (false, "prlimit64" | "setpriority") => EPERM,
                        (false, _) => RET_ALLOW,
                    };
                    assert_eq!(answer, expected, "{arch:?} {}", syscall.name);
                }
            }
        }
    }
}

#[test]
fn names_of_other_architectures_are_reported_not_refused() {
    let filter = blocking(&["access", "ptrace"], Arch::Aarch64);
    assert_eq!((filter.blocked, filter.absent.as_slice()), (1, ["access"].as_slice()));
    assert!(blocking(&["access"], Arch::X86_64).absent.is_empty());
}

#[test]
fn the_filter_knows_what_it_refuses() {
    let filter = blocking(&["prctl"], Arch::X86_64);
    assert!(filter.refuses("prctl") && filter.refuses("io_uring_enter"));
    assert!(!filter.refuses("read") && !filter.refuses("ioctl"));
}

#[test]
fn sixty_names_make_a_short_program() {
    let names: Vec<&str> =
        Arch::X86_64.syscalls().step_by(6).map(|(_, syscall)| syscall.name).take(60).collect();
    let filter = blocking(&names, Arch::X86_64);
    assert!(filter.program.len() < 200, "{}", filter.program.len());
}

#[test]
fn every_call_with_another_answer_is_listed_as_special() {
    for arch in ARCHES {
        let filtered =
            SocketAccess { network: Some(plan::NetworkMode::Filtered), unix_by_path: true };
        for (namespaces, families, socket_access) in [
            (false, &[][..], SocketAccess::default()),
            (false, &[1, 2], SocketAccess::default()),
            (true, &[1], SocketAccess::default()),
            (false, &[1, 2], filtered),
        ] {
            let sockets = SocketRules::of(families, false, socket_access);
            let special = |name| answer(name, false, namespaces, &sockets) != CallAnswer::Allow;
            let unknown: Vec<&str> = arch
                .syscalls()
                .map(|(_, syscall)| syscall.name)
                .filter(|name| special(name))
                .collect();
            assert!(
                unknown.len() > 5 && unknown.iter().all(|name| SPECIAL_CALLS.contains(name)),
                "{unknown:?}"
            );
        }
    }
    assert!(
        ["kill", "clone", "seccomp"].iter().all(|name| SPECIAL_CALLS.contains(name)),
        "of Filter::compile itself"
    );
    assert!(SPECIAL_CALLS.iter().all(|name| syscalls::find(name).is_some()));
}

#[test]
fn only_terminal_changes_go_to_the_listener() {
    const TCGETS: u64 = 0x5401;
    const TCSETSW: u64 = 0x5403;
    const TIOCSPGRP: u64 = 0x5410;
    for arch in ARCHES {
        let program = notifying(arch, &["execve", "ioctl"], ALL_SENT).unwrap();
        let number = syscalls::find("ioctl").unwrap().number(arch).unwrap();
        let answer = |command: u64| {
            interpret(
                &program,
                &TestCall { arch: arch.audit(), number, arguments: [0, command, 0, 0, 0, 0] },
            )
        };
        assert_eq!((answer(TCGETS), answer(0)), (RET_ALLOW, RET_ALLOW));
        for command in [TCSETSW, TIOCSPGRP, 0x402C_542B, 0x7_0000_5402] {
            assert_eq!(answer(command), RET_USER_NOTIF, "{command:#x}");
        }
    }
}

/// The filter of a plan whose sockets the supervisor connects.
fn reaching(arch: Arch, network: Option<plan::NetworkMode>, unix_by_path: bool) -> Filter {
    let sockets = [SocketFamily::Inet, SocketFamily::Inet6, SocketFamily::Netlink].into();
    let requested = plan::Seccomp { sockets, ..requested(plan::SeccompDefault::Allow, &[], false) };
    Filter::compile(&requested, arch, false, false, false, SocketAccess { network, unix_by_path })
        .unwrap()
}

#[test]
fn supervised_connect_leaves_only_tcp() {
    const FLAGS: u64 = 0x8_0800; // SOCK_CLOEXEC | SOCK_NONBLOCK
    const EACCES: u32 = RET_ERRNO | libc::EACCES as u32;
    const EPROTONOSUPPORT: u32 = RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    for arch in ARCHES {
        let none = reaching(arch, Some(plan::NetworkMode::None), false);
        let filtered = reaching(arch, Some(plan::NetworkMode::Filtered), false);
        for family in [2, 10] {
            assert_eq!(answer_to(&none, arch, "socket", &[family, 1, 0]), EAFNOSUPPORT);
            for kind in [1, 1 | FLAGS, 1 | FLAGS & 0x800] {
                assert_eq!(answer_to(&filtered, arch, "socket", &[family, kind, 0]), RET_ALLOW);
                assert_eq!(answer_to(&filtered, arch, "socket", &[family, kind, 6]), RET_ALLOW);
                for protocol in [1, 17, 132, 255, 262] {
                    assert_eq!(
                        answer_to(&filtered, arch, "socket", &[family, kind, protocol]),
                        EPROTONOSUPPORT
                    );
                }
            }
            for kind in [2, 3, 4, 5, 10, 2 | FLAGS] {
                assert_eq!(
                    answer_to(&filtered, arch, "socket", &[family, kind, 0]),
                    EACCES,
                    "{kind}"
                );
            }
        }
        for filter in [&none, &filtered] {
            assert_eq!(answer_to(filter, arch, "socket", &[16, 3, 0]), RET_ALLOW);
            assert_eq!(answer_to(filter, arch, "socket", &[16, 3, 16]), EPROTONOSUPPORT);
            assert_eq!(answer_to(filter, arch, "socket", &[1, 1, 0]), EAFNOSUPPORT);
        }
        let open = reaching(arch, None, false);
        assert_eq!(answer_to(&open, arch, "socket", &[2, 2, 0]), RET_ALLOW);
    }
}

#[test]
fn netlink_allows_only_routes_by_default() {
    const EPROTONOSUPPORT: u32 = RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    for arch in ARCHES {
        let usual = reaching(arch, None, false);
        let sockets = [SocketFamily::Netlink, SocketFamily::NetlinkAll].into();
        let requested =
            plan::Seccomp { sockets, ..requested(plan::SeccompDefault::Allow, &[], false) };
        let of = |network| {
            Filter::compile(
                &requested,
                arch,
                false,
                false,
                false,
                SocketAccess { network, unix_by_path: false },
            )
            .unwrap()
        };
        let (all, pinned) = (of(None), of(Some(plan::NetworkMode::Filtered)));
        assert_eq!(answer_to(&usual, arch, "socket", &[16, 3, 0]), RET_ALLOW);
        for protocol in 1..32 {
            assert_eq!(
                answer_to(&usual, arch, "socket", &[16, 3, protocol]),
                EPROTONOSUPPORT,
                "{protocol}"
            );
            assert_eq!(
                answer_to(&all, arch, "socket", &[16, 3, protocol]),
                RET_ALLOW,
                "{protocol}"
            );
            assert_eq!(
                answer_to(&pinned, arch, "socket", &[16, 3, protocol]),
                EPROTONOSUPPORT,
                "{protocol}"
            );
        }
    }
}

#[test]
fn no_send_connects_and_no_option_redirects() {
    const FASTOPEN: u64 = 0x2000_0000;
    const EOPNOTSUPP: u32 = RET_ERRNO | libc::EOPNOTSUPP as u32;
    const ENOPROTOOPT: u32 = RET_ERRNO | libc::ENOPROTOOPT as u32;
    for arch in ARCHES {
        let (open, held) =
            (reaching(arch, None, true), reaching(arch, Some(plan::NetworkMode::Filtered), false));
        for (name, flags) in [("sendto", 3), ("sendmmsg", 3), ("sendmsg", 2)] {
            let mut arguments = [0; 6];
            assert_eq!(answer_to(&held, arch, name, &arguments), RET_ALLOW);
            arguments[flags] = FASTOPEN | 0x40;
            assert_eq!(answer_to(&held, arch, name, &arguments), EOPNOTSUPP, "{name}");
            assert_eq!(answer_to(&open, arch, name, &arguments), RET_ALLOW, "{name}");
        }
        for (level, option, expected) in [
            (6, 30, ENOPROTOOPT),
            (0, 4, EPERM),
            (41, 57, EPERM),
            (1, 25, EPERM),
            (6, 4, RET_ALLOW),
            (0, 1, RET_ALLOW),
            (1, 2, RET_ALLOW),
            (41, 26, RET_ALLOW),
            (41, 4, RET_ALLOW),
        ] {
            assert_eq!(
                answer_to(&held, arch, "setsockopt", &[3, level, option]),
                expected,
                "{level} {option}"
            );
            assert_eq!(answer_to(&open, arch, "setsockopt", &[3, level, option]), RET_ALLOW);
        }
    }
}

#[test]
fn single_socket_grants_refuse_unconnected_sends() {
    const EPROTONOSUPPORT: u32 = RET_ERRNO | libc::EPROTONOSUPPORT as u32;
    for arch in ARCHES {
        let filter = reaching(arch, None, true);
        for (kind, expected, pair) in [
            (1, RET_ALLOW, RET_ALLOW),
            (5, RET_ALLOW, RET_ALLOW),
            (2, EPROTONOSUPPORT, EPERM),
            (3, EPROTONOSUPPORT, EPERM),
        ] {
            for flags in [0, 0x800, 0x8_0000, 0x8_0800] {
                assert_eq!(
                    answer_to(&filter, arch, "socket", &[1, kind | flags, 0]),
                    expected,
                    "{kind}"
                );
                assert_eq!(
                    answer_to(&filter, arch, "socketpair", &[1, kind | flags, 0]),
                    pair,
                    "{kind}"
                );
            }
        }
        assert_eq!(answer_to(&filter, arch, "seccomp", &[1, 8]), RET_ERRNO | 16);
    }
}
