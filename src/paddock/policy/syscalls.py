"""System call names, from syscalls.tsv, which the loader and paddock-core share."""

from __future__ import annotations

import os
from functools import cache

from paddock.frozen import dataclass

_TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "syscalls.tsv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Syscall:
    name: str
    numbers: tuple[tuple[str, int], ...]  # for each machine, as ``uname -m`` spells it
    gone: str | None  # the kernel release that removed it

    def remark(self, machine: str) -> str | None:
        """The reason why naming this call may have no effect, if there is one."""
        if self.gone is not None:
            return f"Linux dropped {self.name} in {self.gone}"
        if machine in _machines() and machine not in dict(self.numbers):
            return f"{machine} has no {self.name}"
        return None


@cache
def table() -> dict[str, Syscall]:
    calls: dict[str, Syscall] = {}
    machines = _machines()
    for row in _rows():
        name, *numbers, gone = row
        have = tuple(
            (machine, int(n)) for machine, n in zip(machines, numbers, strict=True) if n != "-"
        )
        calls[name] = Syscall(name=name, numbers=have, gone=None if gone == "-" else gone)
    return calls


@cache
def _lines() -> tuple[str, ...]:
    # A plain file beside this module: importlib.resources would add about 20 ms of imports to every
    # start.
    with open(_TABLE, encoding="ascii") as file:
        return tuple(file.read().splitlines())


def _rows() -> list[list[str]]:
    return [line.split("\t") for line in _lines() if line and not line.startswith("#")]


@cache
def _machines() -> tuple[str, ...]:
    """The column names, from the last comment line: ``# name  x86_64  aarch64  gone``."""
    header = [line for line in _lines() if line.startswith("#")][-1]
    return tuple(header.lstrip("# ").split("\t")[1:-1])
