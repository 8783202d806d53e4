"""Removes containers whose owner has ended. Each container has its owner's id as a label, and the
next owner removes them.

A container ends with its owner's pipe, and the engine removes it. This file handles the case that
the engine's helpers were killed too, or that the machine stopped.
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
_ENGINE_TIMEOUT_S = 60.0


def owner() -> str:
    """The id of this process: machine, boot, pid namespace, pid and start time. Pids are reused, so
    a pid alone is not enough.
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
    """False if unknown: an engine may serve other machines and other pid namespaces."""
    fields = name.split("/")
    if len(fields) != 5 or fields[0] != _machine():
        return False
    _, boot, namespace, pid, began = fields
    if boot != _boot():
        return True
    known = namespace == str(os.stat("/proc/self/ns/pid").st_ino) and pid.isdigit()
    return known and _began(int(pid)) != began


async def remove_left(client: CommandExecutor, engine: Sequence[str]) -> tuple[str, ...]:
    """Removes the containers of dead owners and returns their names. ``client`` starts the engine's
    client; ``engine``: its options.
    """
    listed = await run(
        client,
        [*engine, "ps", "--all", "--quiet", "--filter", f"label={LABEL}"],
        timeout_s=_ENGINE_TIMEOUT_S,
    )
    ids = listed.stdout.split()
    if not listed.ok or not ids:
        return ()
    shown = f'{{{{.Name}}}} {{{{index .Config.Labels "{LABEL}"}}}}'
    # One at a time, because another process may remove some meanwhile.
    inspected = [
        await run(client, [*engine, "inspect", "--format", shown, id], timeout_s=_ENGINE_TIMEOUT_S)
        for id in ids
    ]
    lines = [one.stdout.split() for one in inspected if one.ok]
    left = [line[0].removeprefix("/") for line in lines if len(line) == 2 and is_dead(line[1])]
    return tuple(
        [
            name
            for name in left
            if (await run(client, [*engine, "rm", "--force", name], timeout_s=_ENGINE_TIMEOUT_S)).ok
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
    """In ticks since boot (proc_pid_stat(5), field 22). None: there is no such process."""
    with contextlib.suppress(OSError):
        return (
            Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
        )
    return None
