"""Control groups of root around the processes of a test.

They bound memory and processes even if the code under test fails to. The counters of the kernel are
the host's evidence. *Given* groups belong to the tester, as an administrator would delegate them.
The other groups do not, so Paddock has no group to use unless a test gives one.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.features import need, need_root
from tests.support.tester import Tester
from tests.support.waiting import wait_for

TREES = Path("/sys/fs/cgroup")
SAFE_TASKS = 200
SAFE_MEMORY_MB = 2048
SAFE_SECONDS = 60

Word = str | bytes | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimit:
    memory: Path
    pids: Path
    given: dict[str, Path]
    tester: Tester

    def prefix(self) -> list[Word]:
        """The prefix of a command that root starts: it joins the groups, then becomes the tester.
        If all else fails, the kernel ends each process after a minute of CPU time.
        """
        groups = {"memory": self.memory, "pids": self.pids, **self.given}
        join = "".join(f"echo $$ > {group}/cgroup.procs || exit 99; " for group in groups.values())
        limits = f"prlimit --nproc={2 * SAFE_TASKS} --cpu={SAFE_SECONDS}"
        user = f"setpriv --reuid={self.tester.uid} --regid={self.tester.gid} --clear-groups"
        return ["sh", "-c", f'{join}exec {limits} {user} "$@"', "sh"]

    @property
    def peak_mb(self) -> int:
        """The peak of memory, with files in memory and the page cache."""
        return int((self.memory / "memory.max_usage_in_bytes").read_text()) >> 20

    @property
    def peak_tasks(self) -> int:
        """The peak of processes, with those of Paddock."""
        return int((self.pids / "pids.peak").read_text())

    @property
    def tasks(self) -> int:
        return int((self.pids / "pids.current").read_text())

    @property
    def left_behind(self) -> list[Path]:
        """Groups that a run created in the given groups and did not remove."""
        return [
            entry for group in self.given.values() for entry in group.iterdir() if entry.is_dir()
        ]


@contextmanager
def around(tester: Tester, *given: str) -> Iterator[CgroupLimit]:
    need_root()
    need(
        "cgroup",
        (TREES / "memory").is_dir() and (TREES / "pids").is_dir(),
        "no control groups of version 1 here",
    )
    with ExitStack() as stack:
        memory = stack.enter_context(_group("memory"))
        pids = stack.enter_context(_group("pids"))
        (memory / "memory.limit_in_bytes").write_text(str(SAFE_MEMORY_MB << 20))
        (pids / "pids.max").write_text(str(SAFE_TASKS))
        delegated = {}
        for tree in given:
            above = {"memory": memory, "pids": pids}.get(tree, TREES / tree)
            need("cgroup", above.is_dir(), f"no tree {tree} here")
            group = stack.enter_context(_group(tree, above))
            for place in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
                if place.exists():
                    os.chown(place, tester.uid, tester.gid)
            delegated[tree] = group
        yield CgroupLimit(memory=memory, pids=pids, given=delegated, tester=tester)


@contextmanager
def _group(tree: str, above: Path | None = None) -> Iterator[Path]:
    group = (above or TREES / tree) / f"paddock_test_{secrets.token_hex(4)}"
    group.mkdir()
    try:
        yield group
    finally:
        wait_for(lambda: _emptied(group), f"{group} is empty")


def _emptied(group: Path) -> bool:
    """Kills the whole group, so that a process that forks meanwhile ends too."""
    if (group / "pids.max").exists():
        (group / "pids.max").write_text("0")
    for below in [entry for entry in group.iterdir() if entry.is_dir()]:
        _emptied(below)
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def python(script: str, *arguments: object) -> list[Word]:
    return ["/usr/bin/python3", "-c", script, *map(str, arguments)]
