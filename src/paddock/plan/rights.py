"""The Landlock rights that a plan contains: by the ABI of the kernel and the kind of access."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from paddock.frozen import dataclass
from paddock.policy.landlock import LandlockKind, landlock_table

KERNEL_OF_ABI = MappingProxyType(
    {1: "5.13", 2: "5.19", 3: "6.2", 4: "6.7", 5: "6.10", 6: "6.12", 7: "6.15"}
)


def _given_by(access: str) -> frozenset[str]:
    return frozenset(entry.name for entry in landlock_table() if access in entry.access)


_READ = _given_by("read")
_WRITE = _given_by("write")
_EXECUTE = frozenset({"execute"})

ACCESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "read": _READ,
        "read-noexec": _READ - _EXECUTE,
        "write": _WRITE,
        "allow": _READ | _WRITE,
        "allow-noexec": (_READ | _WRITE) - _EXECUTE,
        "exec": _given_by("exec"),
        "device": _given_by("device"),
    }
)
WRITES = frozenset({"write", "allow", "allow-noexec"})
WITHOUT_EXECUTE = MappingProxyType({"read": "read-noexec", "allow": "allow-noexec"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A right the policy needs and this kernel lacks."""

    right: str
    kernel: str
    consequence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdable:
    """The rights that a kernel of one ABI can enforce."""

    handled: tuple[str, ...]
    scoped: tuple[str, ...]
    access: Mapping[str, tuple[str, ...]]
    missing: tuple[Missing, ...]


def holdable(abi: int) -> Holdable:
    known = [entry for entry in landlock_table() if entry.abi <= abi]
    handled = {entry.name for entry in known if entry.kind is LandlockKind.RIGHT}
    scoped = {entry.name for entry in known if entry.kind is LandlockKind.SCOPE}
    missing = tuple(
        Missing(right=entry.name, kernel=KERNEL_OF_ABI[entry.abi], consequence=entry.without_it)
        for entry in sorted(landlock_table(), key=lambda entry: (entry.abi, entry.name))
        if entry.abi > abi and entry.without_it is not None
    )
    return Holdable(
        handled=tuple(sorted(handled)),
        scoped=tuple(sorted(scoped)),
        access={name: tuple(sorted(wanted & handled)) for name, wanted in ACCESS.items()},
        missing=missing,
    )
