"""Everything that descends from a process, seen from outside.

The root has to adopt orphans (PR_SET_CHILD_SUBREAPER): then nobody leaves its tree, whatever he
does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

_MAX_ROUNDS = 64


def descendants(root: int) -> list[int]:
    """At this moment; not the root itself."""
    found: list[int] = []
    for pid in _and_children(root, found):
        _and_children(pid, found)
    return found


def send(root: int, number: int) -> None:
    if number == signal.SIGKILL:
        kill(root)
        return
    for pid in descendants(root):
        _signal(pid, number)


def kill(root: int) -> None:
    """All of them. Killed one by one, what forks faster than we look would live on: so everybody is
    stopped first, round after round, until no new ones turn up.
    """
    before = -1
    for _ in range(_MAX_ROUNDS):
        found = descendants(root)
        for pid in found:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(pid, resource.RLIMIT_NPROC, (0, 0))
            _signal(pid, signal.SIGSTOP)
        if len(found) == before:
            break
        before = len(found)
    for pid in descendants(root):
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _and_children(pid: int, found: list[int]) -> list[int]:
    with contextlib.suppress(OSError):  # it is gone
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", "rb") as file,
            ):
                found += map(int, file.read().split())
    return found
