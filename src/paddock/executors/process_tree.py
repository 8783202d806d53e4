"""All descendants of a process, seen from outside.

The root must adopt orphans (PR_SET_CHILD_SUBREAPER). Then no process can leave its tree.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal

_MAX_ROUNDS = 64


def descendants(root: int) -> list[int]:
    """The descendants at this moment, without the root."""
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
    """Kills the whole tree. A process that forks faster than the scan could survive single kills.
    So all processes are stopped first, in rounds, until no new ones appear.
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
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{thread}/children", "rb") as file,
            ):
                found += map(int, file.read().split())
    return found
