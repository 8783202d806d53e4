"""System calls of the real programs that fail: strace counts those of a clean run, then lets one of them fail.

Without ``-f`` strace follows one process, from `paddock` to the supervisor that it becomes. What that process starts is
not touched.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.fence import Word
from tests.support.tester import Outcome

STRESS = "PADDOCK_STRESS" in os.environ

ERRORS = ("EACCES", "EIO", "ENOMEM", "ESTALE", "ELOOP", "ENAMETOOLONG", "EMFILE")
# What a search, a guard, a walk, git's readers, an apply and a session are made of.
CALLS = (
    "openat,openat2,newfstatat,statx,fstat,getdents64,readlink,readlinkat,inotify_init1,inotify_add_watch,"
    "fstatfs,statfs,read,pread64,mmap,brk,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,chmod,fchmod,"
    "fchmodat,mkdir,mkdirat,flock,flistxattr,lseek,access,faccessat2,copy_file_range,sendfile,fsync,symlinkat,utimensat"
)
_CALL = re.compile(r"^(?:\d+ +)?([a-z0-9_]+)\(")

Run = Callable[[Sequence[Word]], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Fault:
    call: str
    index: int  # the first is 1
    error: str

    def words(self, paths: Sequence[Word]) -> list[Word]:
        inject = f"inject={self.call}:error={self.error}:when={self.index}"
        return ["strace", "-qq", "-o", "/dev/null", *paths, "-e", f"trace={self.call}", "-e", inject]


def only(paths: Sequence[Path]) -> list[Word]:
    """The words for strace that limit it to calls about these."""
    return [word for path in paths for word in ("-P", path)]


def counted(run: Run, paths: Sequence[Word] = (), *, since: str = "") -> tuple[dict[str, tuple[int, int]], Outcome]:
    """How many calls of each kind a run makes: those before a program is executed whose name ends with ``since``, and
    all."""
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        os.chmod(file.name, 0o666)
        outcome = run(["strace", "-qq", "-o", file.name, *paths, "-e", f"trace=execve,{CALLS}"])
        lines = Path(file.name).read_text(errors="replace").splitlines()
    before: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in lines:
        match = _CALL.match(line)
        if match is None:
            continue
        if match[1] == "execve":
            if since and f'{since}"' in line:
                before = total.copy()
            continue
        total[match[1]] += 1
    return {call: (before[call], count) for call, count in total.items() if count > before[call]}, outcome


def faults(counts: dict[str, tuple[int, int]], *, errors: int, seed: int = 0) -> Iterator[Fault]:
    """The first, the second and the last call of each kind, each with so many errors; in a stress run all calls."""
    turn = seed
    for call, (before, total) in sorted(counts.items()):
        first = before + 1
        chosen = range(first, total + 1) if STRESS else sorted({first, min(first + 1, total), total})
        for index in chosen:
            picked: tuple[str, ...]
            if STRESS:
                picked = ERRORS
            elif call in ("mmap", "brk"):
                picked = ("ENOMEM",)
            else:
                picked = tuple(ERRORS[(turn + step) % len(ERRORS)] for step in range(errors))
                turn += errors
            for error in picked:
                yield Fault(call=call, index=index, error=error)


@dataclass(slots=True)
class Table:
    """What became of each."""

    name: str
    rows: list[tuple[Fault, str, str]]

    def add(self, fault: Fault, outcome: Outcome, uncovered: list[str], *, finished_later: bool) -> None:
        """``uncovered``: the names that were read, are left or were changed, as the host sees them. ``finished_later``:
        only names were left, the supervisor died, and the next run took them away."""
        if not uncovered:
            verdict = "closed" if outcome.exit_code == 0 else f"closed, exit {outcome.exit_code}"
        elif outcome.exit_code == 125:
            verdict = "refused"
        elif finished_later and outcome.exit_code != 0:
            verdict = "finished later"
        elif all(name in outcome.stderr for name in uncovered):
            verdict = "said"
        else:
            verdict = "UNCOVERED"
        self.rows.append((fault, verdict, ", ".join(uncovered)))

    def check(self) -> None:
        by_call: dict[str, Counter[str]] = {}
        for fault, verdict, _ in self.rows:
            by_call.setdefault(fault.call, Counter())[verdict.partition(",")[0]] += 1
        print(f"\n{self.name}: {len(self.rows)} faults")
        for call, verdicts in sorted(by_call.items()):
            print(f"  {call:20} {', '.join(f'{verdict} {count}' for verdict, count in sorted(verdicts.items()))}")
        bad = [(fault, what) for fault, verdict, what in self.rows if verdict == "UNCOVERED"]
        for fault, what in bad:
            print(f"  UNCOVERED: {fault.call} #{fault.index} {fault.error}: {what}")
        assert not bad, f"{len(bad)} of {len(self.rows)} faults leave a name uncovered without a word: {bad}"
