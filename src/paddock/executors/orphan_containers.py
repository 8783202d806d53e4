"""Containers whose owner is gone: each has its owner's name on a label, and the next owner removes
what the dead left.

A container ends with its owner's pipe and is removed by its engine; this is for when the engine's
own helpers were killed as well, or the machine went down.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from paddock.executors.interface import CommandExecutor
from paddock.executors.run import run

LABEL = "paddock.owner"
_TIME_S = 60.0


def owner() -> str:
    """Of this process: machine, boot, pid namespace, pid and when that began. Numbers of processes
    are used again.
    """
    pid = os.getpid()
    return "/".join(
        (
            _machine(),
            _boot(),
            str(os.stat("/proc/self/ns/pid").st_ino),
            str(pid),
            _began(pid) or "?",
        )
    )


def is_dead(name: str) -> bool:
    """False as well for whom we can not know: an engine may serve other machines, and other pid
    namespaces.
    """
    fields = name.split("/")
    if len(fields) != 5 or fields[0] != _machine():
        return False
    _, boot, namespace, pid, began = fields
    if boot != _boot():
        return True
    known = namespace == str(os.stat("/proc/self/ns/pid").st_ino) and pid.isdigit()
    return known and _began(int(pid)) != began


async def remove_left(client: CommandExecutor, engine: Sequence[str]) -> tuple[str, ...]:
    """Their names. ``engine``: its client with its options."""
    listed = await run(
        client, [*engine, "ps", "--all", "--quiet", "--filter", f"label={LABEL}"], timeout_s=_TIME_S
    )
    ids = listed.stdout.split()
    if not listed.ok or not ids:
        return ()
    shown = f'{{{{.Name}}}} {{{{index .Config.Labels "{LABEL}"}}}}'
    # One by one: another may go meanwhile.
    inspected = [
        await run(client, [*engine, "inspect", "--format", shown, id], timeout_s=_TIME_S)
        for id in ids
    ]
    lines = [one.stdout.split() for one in inspected if one.ok]
    left = [line[0].removeprefix("/") for line in lines if len(line) == 2 and is_dead(line[1])]
    return tuple(
        [
            name
            for name in left
            if (await run(client, [*engine, "rm", "--force", name], timeout_s=_TIME_S)).ok
        ]
    )


def _machine() -> str:
    with contextlib.suppress(OSError):
        return Path("/etc/machine-id").read_text("ascii").strip() or platform.node()
    return platform.node()


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return "?"


def _began(pid: int) -> str | None:
    """In ticks since the boot (proc_pid_stat(5), field 22); None: there is none of this number."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
        )
    return None
