"""The kernel's view of a plan, written as C for ``limit.c``: Landlock rules and a seccomp program.

The filter makes the same decisions as the core's filter (architecture, x32, io_uring, terminals,
sockets, namespaces, block list), by a balanced search over the call number.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from paddock.plan.plan import ungrouped
from tests.support.syscalls import numbers

RIGHTS = (
    "execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char",
    "make_dir", "make_reg",
    "make_sock", "make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev",
)  # fmt: skip
FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16}
SCOPES = ("abstract_unix_socket", "signal")

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[platform.machine()]
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, ENOSYS, EAFNOSUPPORT = 1, 38, 97
LOAD, JEQ, JGE, JSET, RET = 0x20, 0x15, 0x35, 0x45, 0x06
NR, ARCH_AT, ARG0, ARG1 = 0, 4, 16, 24


def header(plan: dict[str, Any]) -> str:
    landlock, seccomp = plan["landlock"], plan["seccomp"]
    rules = "\n".join(f"    {{{_c(path)}, {rights:#x}}}," for path, rights in landlock_rules(plan))
    program = "\n".join(
        f"    {{{code:#x}, {jt}, {jf}, {k:#x}}}," for code, jt, jf, k in seccomp_program(seccomp)
    )
    return (
        f"static const uint64_t handled = {_bits(landlock['handled'], RIGHTS):#x};\n"
        f"static const uint64_t scoped = {_bits(landlock['scoped'], SCOPES):#x};\n"
        f"static const struct rule rules[] = {{\n{rules}\n}};\n"
        f"static const struct sock_filter filter[] = {{\n{program}\n}};\n"
    )


def _bits(names: list[str], order: tuple[str, ...]) -> int:
    return sum(1 << order.index(name) for name in names)


def _c(text: str) -> str:
    return '"' + "".join(f"\\x{byte:02x}" for byte in os.fsencode(text)) + '"'


def landlock_rules(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for grant in ungrouped(plan["files"]["grants"]):
        rights = _bits(plan["landlock"]["access"][grant["access"]], RIGHTS)
        for path in _carved(
            grant["path"], [os.path.realpath(kept_out) for kept_out in grant["except"]]
        ):
            yield path, rights


def _carved(path: str, kept_out: list[str]) -> Iterator[str]:
    """The paths of a tree without the excepted paths, as the core computes them."""
    if path in kept_out:
        return
    if not any(one.startswith(path.rstrip("/") + "/") for one in kept_out):
        yield path
        return
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.is_symlink():
                yield from _carved(entry.path, kept_out)


@dataclass(slots=True)
class _Assembler:
    """Instructions with named targets. The offsets are computed last and have to fit 8 bits."""

    code: list[tuple[int, str | None, str | None, int]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)

    def label(self, name: str) -> None:
        self.labels[name] = len(self.code)

    def op(self, code: int, k: int, true: str | None = None, false: str | None = None) -> None:
        self.code.append((code, true, false, k))

    def assemble(self) -> Iterator[tuple[int, int, int, int]]:
        for at, (code, true, false, k) in enumerate(self.code):
            yield code, self._offset(at, true), self._offset(at, false), k

    def _offset(self, at: int, label: str | None) -> int:
        offset = 0 if label is None else self.labels[label] - at - 1
        assert 0 <= offset <= 255, (label, offset)
        return offset


def seccomp_program(seccomp: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    assert seccomp["default"] == "allow"
    number = numbers()
    actions = {number[name]: "eperm" for name in seccomp["syscalls"] if name in number}
    actions |= {number[name]: "enosys" for name in number if name.startswith("io_uring_")}
    actions |= {number["ioctl"]: "ioctl", number["socket"]: "socket"}
    if not seccomp["namespaces"]:
        actions |= {number["clone"]: "clone", number["clone3"]: "enosys"}
    out = _Assembler()
    out.op(LOAD, ARCH_AT)
    out.op(JEQ, ARCH, None, "kill")
    out.op(LOAD, NR)
    out.op(JGE, 0x40000000, "kill", None)
    _search(out, sorted(actions.items()))
    out.label("ioctl")
    out.op(LOAD, ARG1)
    out.op(JEQ, 0x5412, "eperm", None)
    out.op(JEQ, 0x541C, "eperm", "allow")
    out.label("socket")
    out.op(LOAD, ARG0)
    *others, last = sorted(FAMILIES[name] for name in seccomp["sockets"])
    for family in others:
        out.op(JEQ, family, "allow", None)
    out.op(JEQ, last, "allow", "family")
    out.label("clone")
    out.op(LOAD, ARG0)
    out.op(JSET, 0x7E020080, "eperm", "allow")
    for name, value in (
        ("allow", ALLOW),
        ("eperm", ERRNO | EPERM),
        ("enosys", ERRNO | ENOSYS),
        ("family", ERRNO | EAFNOSUPPORT),
        ("kill", KILL),
    ):
        out.label(name)
        out.op(RET, value)
    return list(out.assemble())


def _search(out: _Assembler, actions: list[tuple[int, str]]) -> None:
    if len(actions) == 1:
        value, target = actions[0]
        out.op(JEQ, value, target, "allow")
        return
    half = len(actions) // 2
    right = f"from-{actions[half][0]}"
    out.op(JGE, actions[half][0], right, None)
    _search(out, actions[:half])
    out.label(right)
    _search(out, actions[half:])
