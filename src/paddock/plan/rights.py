"""The Landlock rights: which ABI has which right, and which rights each kind of access needs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from paddock.frozen import dataclass

KERNEL_OF_ABI = MappingProxyType(
    {1: "5.13", 2: "5.19", 3: "6.2", 4: "6.7", 5: "6.10", 6: "6.12", 7: "6.15"}
)

_READ = frozenset({"execute", "read_file", "read_dir"})
_WRITE = frozenset(
    {
        "write_file",
        "truncate",
        "refer",
        *("make_reg", "make_dir", "make_sym", "make_fifo", "make_sock"),
        *("remove_file", "remove_dir"),
    }
)
# Handled, so that they are denied, and never granted: agents do not need device nodes.
_NEVER = frozenset({"make_char", "make_block"})
_DEVICE = frozenset({"read_file", "write_file", "read_dir", "truncate", "ioctl_dev"})

_INTRODUCED = MappingProxyType({"refer": 2, "truncate": 3, "ioctl_dev": 5})
_SCOPES = MappingProxyType({"abstract_unix_socket": 6, "signal": 6})

# The gaps of older kernels, in plain words.
_OPEN_WITHOUT = MappingProxyType(
    {
        "refer": "the command cannot move or link files between directories",
        "truncate": "the command can empty files outside the grants",
        "ioctl_dev": "the command can control devices with ioctl",
        "abstract_unix_socket": "the command can reach abstract unix sockets outside",
        "signal": "the command can signal processes outside",
    }
)

_EXECUTE = frozenset({"execute"})

ACCESS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "read": _READ,
        "read-noexec": _READ - _EXECUTE,
        "write": _WRITE,
        "allow": _READ | _WRITE,
        "allow-noexec": (_READ | _WRITE) - _EXECUTE,
        "exec": _EXECUTE | {"read_file"},
        "device": _DEVICE,
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
    rights = _READ | _WRITE | _NEVER | _DEVICE
    handled = {right for right in rights if _INTRODUCED.get(right, 1) <= abi}
    scoped = {scope for scope, since in _SCOPES.items() if since <= abi}
    needs = {**_INTRODUCED, **_SCOPES}
    missing = tuple(
        Missing(right=right, kernel=KERNEL_OF_ABI[since], consequence=_OPEN_WITHOUT[right])
        for right, since in sorted(needs.items(), key=lambda item: (item[1], item[0]))
        if since > abi
    )
    return Holdable(
        handled=tuple(sorted(handled)),
        scoped=tuple(sorted(scoped)),
        access={name: tuple(sorted(wanted & handled)) for name, wanted in ACCESS.items()},
        missing=missing,
    )
