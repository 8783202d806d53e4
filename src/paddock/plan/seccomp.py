"""System calls and sockets for each tier."""

from __future__ import annotations

from paddock.plan.plan import Landlock, Seccomp
from paddock.policy.model import Syscalls, Tier

# IPC objects of the user, which no grant covers. In its own ipc namespace the run sees only its
# own.
IPC = frozenset(
    [
        "shmget",
        "shmat",
        "shmctl",
        "msgget",
        "msgsnd",
        "msgrcv",
        "msgctl",
        "semget",
        "semop",
        "semtimedop",
        "semctl",
        "mq_open",
        "mq_unlink",
    ]
)

# Browsers put their own processes into user namespaces with an empty root.
NESTING = frozenset({"unshare", "setns", "chroot"})

# The calls of debuggers.
TRACING = frozenset({"ptrace", "process_vm_readv", "process_vm_writev"})

_ABSTRACT = "abstract_unix_socket"


def seccomp_of(syscalls: Syscalls, tier: Tier, landlock: Landlock | None) -> Seccomp:
    blocked = _blocked(syscalls, tier)
    passed = None if syscalls.allow is None else {name.value for name in syscalls.allow} - blocked
    sockets = {family.value for family in syscalls.sockets}
    if not reaches_services(tier, landlock):
        sockets.add("unix")
    return Seccomp(
        default="allow" if passed is None else "deny",
        syscalls=tuple(sorted(blocked if passed is None else passed)),
        sockets=tuple(sorted(sockets)),
        namespaces="unshare" not in blocked if passed is None else "unshare" in passed,
    )


def nests(syscalls: Syscalls) -> bool:
    return syscalls.namespaces is not None and syscalls.namespaces.value


def reaches_services(tier: Tier, landlock: Landlock | None) -> bool:
    """Whether a unix socket could lead outside. By path: only if the whole file tree is visible. By
    an abstract name: unless Landlock scopes it.
    """
    return tier is not Tier.FULL or landlock is None or _ABSTRACT not in landlock.scoped


def _blocked(syscalls: Syscalls, tier: Tier) -> set[str]:
    """A call that the user blocks stays blocked, also if the tier could do without the built-in
    block.
    """
    traced = syscalls.trace is not None and syscalls.trace.value
    spared = (
        (IPC if tier is Tier.FULL else frozenset())
        | (NESTING if nests(syscalls) else frozenset())
        | (TRACING if traced else frozenset())
    )
    return {
        call.value for call in syscalls.block if not (call.source.builtin and call.value in spared)
    }
