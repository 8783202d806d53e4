"""Harmless arguments for every system call the profiles block, and the numbers of this machine.

With these arguments the bare kernel answers anything but EPERM: success, a bad address, a bad
value. Many of these calls check a capability first, so an ordinary user gets EPERM with or without
a sandbox. Root tries those, where only a filter can answer EPERM.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from tests.support.installation import REPOSITORY

TABLE = REPOSITORY / "src" / "paddock" / "policy" / "syscalls.tsv"
_BAD = "1"  # an address that is never mapped
_MANY = "0xffffffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    name: str
    arguments: tuple[str, ...]
    by_root: bool  # for an ordinary user a capability check comes first
    errno: str = "EPERM"

    def __str__(self) -> str:
        return self.name


def _calls(
    names: dict[str, tuple[str, ...]], *, by_root: bool, errno: str = "EPERM"
) -> tuple[Call, ...]:
    return tuple(
        Call(name=name, arguments=args, by_root=by_root, errno=errno)
        for name, args in names.items()
    )


CALLS = (
    *_calls(
        {
            # C-032
            "ptrace": ("0",),
            "perf_event_open": (_BAD,),
            "process_vm_readv": ("0", "0", "0", "0", "0", "1"),
            "process_vm_writev": ("0", "0", "0", "0", "0", "1"),
            # C-033
            "mount": (_BAD, _BAD, _BAD),
            # C-034
            "unshare": ("0",),
            "setns": ("-1", "0"),
            # C-036
            "keyctl": ("9999",),
            "add_key": (_BAD,),
            "request_key": (_BAD,),
            # C-037
            "userfaultfd": ("1",),
            # C-039
            "clock_adjtime": ("0", _BAD),
            "clock_settime": ("0", _BAD),
            "adjtimex": (_BAD,),
            # C-041
            "name_to_handle_at": ("-1", _BAD),
            "open_by_handle_at": ("-1", _BAD),
            "pidfd_getfd": ("-1", "0", "1"),
            "kcmp": ("0", "0", "9999"),
            "quotactl_fd": ("-1",),
            "iopl": ("9",),
            # C-031
            "personality": (_MANY,),
            "mbind": ("1", "0", "9999"),
            "move_pages": ("0", "0", "0", "0", "0", "9999"),
            "lookup_dcookie": ("0", _BAD, "0"),
            # beyond the classic lists
            "migrate_pages": ("0", "0"),
            "file_setattr": ("-1", _BAD, _BAD, "0"),
            "lsm_set_self_attr": ("9999", _BAD, "0"),
            "modify_ldt": ("9999",),
            "uselib": (_BAD,),
            "sysfs": ("9999",),
            "ustat": (_MANY, _BAD),
            "shmget": ("4661", "0", "0"),
            "shmat": ("-1", "0", "0"),
            "shmctl": ("-1", "9999", "0"),
            "msgget": ("4661", "0"),
            "msgsnd": ("-1", _BAD, "0", "0"),
            "msgrcv": ("-1", _BAD, "0", "0", "0"),
            "msgctl": ("-1", "9999", "0"),
            "semget": ("4661", "0", "0"),
            "semop": ("-1", _BAD, "0"),
            "semtimedop": ("-1", _BAD, "0", "0"),
            "semctl": ("-1", "0", "9999"),
            "mq_open": (_BAD, "0"),
            "mq_unlink": (_BAD,),
        },
        by_root=False,
    ),
    *_calls(
        {
            "umount2": (_BAD, "0x8000"),
            "pivot_root": (_BAD, _BAD),
            "chroot": (_BAD,),
            "open_tree": ("-1", _BAD, "1"),
            "open_tree_attr": ("-1", _BAD, "1"),
            "move_mount": ("-1", _BAD, "-1", _BAD, "0"),
            "fsopen": (_BAD,),
            "fsconfig": ("-1", "9999"),
            "fsmount": ("-1", "0", "0"),
            "fspick": ("-1", _BAD, "0"),
            "mount_setattr": ("-1", _BAD, "0", "1", "32"),
            # C-035: the magic numbers are wrong, the images missing
            "reboot": ("0", "0", "0"),
            "kexec_load": ("0", _MANY, "0", "0"),
            "kexec_file_load": ("-1", "-1", "0", "0", "0xffff"),
            "init_module": (_BAD, "0", _BAD),
            "finit_module": ("-1", _BAD, "0xffff"),
            "delete_module": (_BAD, "0"),
            "bpf": ("9999", "0", "0"),
            # C-038
            "acct": (_BAD,),
            "swapon": (_BAD, "0"),
            "swapoff": (_BAD,),
            "settimeofday": (_BAD, "0"),
            "syslog": ("9999",),
            "ioperm": (_MANY, _MANY, "1"),
            "quotactl": (_MANY, _BAD),
            "vhangup": (),
            "sethostname": (_BAD, "1"),
            "setdomainname": (_BAD, "1"),
        },
        by_root=True,
    ),
    *_calls(
        {"io_uring_setup": ("0", _BAD), "io_uring_enter": ("-1",), "io_uring_register": ("-1",)},
        by_root=False,
        errno="ENOSYS",
    ),
)

# The classic lists: every profile blocks these.
AI_AGENT_FLOOR = frozenset(
    [
        "ptrace",
        "perf_event_open",
        "process_vm_readv",
        "process_vm_writev",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "unshare",
        "setns",
        "reboot",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "keyctl",
        "add_key",
        "request_key",
        "bpf",
        "userfaultfd",
        "acct",
        "swapon",
        "swapoff",
        "settimeofday",
        "clock_settime",
        "clock_adjtime",
        "adjtimex",
    ]
)
STRICT_ADDS = frozenset(
    ["personality", "lookup_dcookie", "vhangup", "quotactl", "mbind", "move_pages"]
)


def numbers(table: Path = TABLE) -> dict[str, int]:
    """Name to number on this machine, without names that this architecture lacks."""
    column = {"x86_64": 1, "aarch64": 2}[platform.machine()]
    rows = [
        line.split("\t")
        for line in table.read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
