"""A process replaces a directory of the workspace by a link and back in a loop, while an apply
works in it.

    races.py HOW BASE ROUNDS      HOW: apply, or names (the control: a copy by path names)

Runs as the tester. Prints the number of rounds that hit the link, and whether anything was written
outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import Any

from paddock.workspace import system_calls
from paddock.workspace.apply import apply
from paddock.workspace.apply_record import Record
from paddock.workspace.conflicts import Terms, judge
from paddock.workspace.replace_file import Roots
from paddock.workspace.scan import scan

FILES = 40


def swap(workspace: str) -> None:
    fd = os.open(workspace, os.O_RDONLY)
    while True:
        system_calls.exchange("d", "link", fd)


def lay_out(base: str) -> None:
    shutil.rmtree(base, ignore_errors=True)
    for name in ("workspace/d/sub", "outside/sub", "session/upper/d/sub"):
        os.makedirs(f"{base}/{name}")
    os.symlink(f"{base}/outside", f"{base}/workspace/link")
    for number in range(FILES):
        for place in ("d", "d/sub"):
            with open(f"{base}/session/upper/{place}/{number}", "w") as file:
                file.write("evil")


def by_names(base: str) -> None:
    """The changes that were not applied."""
    for parent, _, files in os.walk(f"{base}/session/upper"):
        for name in files:
            with contextlib.suppress(OSError):
                shutil.copy(
                    os.path.join(parent, name),
                    parent.replace("session/upper", "workspace") + f"/{name}",
                )


def by_apply(base: str) -> int:
    fds = [
        os.open(f"{base}/{name}", os.O_RDONLY) for name in ("session/upper", "workspace", "session")
    ]
    try:
        roots = Roots(upper=fds[0], lower=fds[1], state=fds[2])
        terms = Terms(started_ns=time.time_ns() + 10**12, is_protected=_nothing)
        record = Record.read(roots.state)
        return len(apply(roots, judge(scan(fds[0], fds[1]), terms, record), terms, record).left)
    finally:
        for fd in fds:
            os.close(fd)


def _nothing(path: str, *, directory: bool, link: bool = False) -> bool:
    return False


def main() -> int:
    how, base, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    met = 0
    outside: list[Any] = []
    for _ in range(rounds):
        lay_out(base)
        pid = os.fork()
        if pid == 0:
            swap(f"{base}/workspace")
        try:
            if how == "names":
                by_names(base)
            else:
                met += bool(by_apply(base))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        outside += [name for _, _, files in os.walk(f"{base}/outside") for name in files]
    shutil.rmtree(base)
    print(json.dumps({"met": met, "outside": len(outside)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
