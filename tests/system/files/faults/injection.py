"""Makes system calls of the real programs fail. strace counts the calls of a clean run, then makes
one of them fail.

Without ``-f`` strace follows one process, from `paddock` to the supervisor that it becomes. Child
processes are not changed.

The whole table has for each call: each of the seven errors at the first, the second and the last
call, and one error at each call between them. `make stress` runs all of it. An ordinary test run
uses a fixed sample that is spread over the table. A lower stress level uses other rows than the
ordinary sample, and that many times more rows.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.sandbox import Word
from tests.support.stress import LEVEL, WHOLE_LEVEL
from tests.support.tester import Outcome

ERRORS = ("EACCES", "EIO", "ENOMEM", "ESTALE", "ELOOP", "ENAMETOOLONG", "EMFILE")
# The calls of a search, a guard, a walk, the git readers, an apply and a session.
CALLS = (
    "open,openat,openat2,stat,lstat,newfstatat,statx,fstat,getdents64,readlink,readlinkat,inotify_init1,"
    "inotify_add_watch,fstatfs,statfs,read,pread64,write,mmap,brk,mremap,rename,renameat,renameat2,link,linkat,unlink,"
    "unlinkat,rmdir,chmod,fchmod,fchmodat,mkdir,mkdirat,flock,flistxattr,getxattr,lgetxattr,fgetxattr,lseek,access,"
    "faccessat,faccessat2,copy_file_range,sendfile,fsync,symlinkat,utimensat,fcntl,sendmsg,recvmsg,ftruncate"
)
# The allocator checks only whether these failed.
ALLOCATIONS = ("mmap", "brk", "mremap")
# The number of calls depends on a race between the command and the guard.
LEAST_REACHED = 0.5
_CALL = re.compile(r"^(?:\d+ +)?([a-z0-9_]+)\(")

Run = Callable[[Sequence[Word]], Outcome]
# True if counting begins at this line of strace.
Begins = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Fault:
    call: str
    index: int  # the first is 1
    error: str
    lasting: bool = False  # all calls from this one on

    def __str__(self) -> str:
        return f"{self.call} #{self.index}{'+' if self.lasting else ''} {self.error}"

    def words(self, tracing: Tracing, log: Path) -> list[Word]:
        inject = (
            f"inject={self.call}:error={self.error}:when={self.index}{'+' if self.lasting else ''}"
        )
        return [*tracing.strace(log), "-e", f"trace={self.call}", "-e", inject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracing:
    """The calls that are counted and fail. ``paths``: only calls with these paths. ``children``:
    calls of all processes, each counted separately. Then ``calls`` must have only calls that the
    command itself never makes.
    """

    paths: Sequence[Path] = ()
    calls: str = CALLS
    children: bool = False
    begins: Begins | None = None
    words: Sequence[Word] = ()  # further arguments of strace

    def strace(self, log: Path) -> list[Word]:
        paths: list[Word] = [word for path in self.paths for word in ("-P", path)]
        return ["strace", "-q", *(["-f"] if self.children else []), *self.words, "-o", log, *paths]


def since_program(name: str) -> Begins:
    """If only some paths are traced, the path of the program has to be one of them."""
    return lambda line: "execve(" in line and f'{name}"' in line


def since_supervision(line: str) -> bool:
    """The supervisor makes this descriptor when the command runs."""
    return line.startswith("signalfd4(")


@contextmanager
def _log() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        os.chmod(file.name, 0o666)
        yield Path(file.name)


def counted(run: Run, tracing: Tracing) -> tuple[dict[str, tuple[int, int]], Outcome]:
    """The number of calls of each kind in a run: before the counting begins, and in all."""
    with _log() as log:
        outcome = run([*tracing.strace(log), "-e", f"trace=execve,signalfd4,{tracing.calls}"])
        lines = log.read_text(errors="replace").splitlines()
    before: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in lines:
        match = _CALL.match(line)
        if match is None:
            continue
        if match[1] in tracing.calls.split(","):
            total[f"{line.split()[0]} {match[1]}" if tracing.children else match[1]] += 1
        if tracing.begins is not None and tracing.begins(line):
            before = total.copy()
    if tracing.children:  # the process with the most calls
        most: dict[str, int] = {}
        for key, count in total.items():
            call = key.split()[1]
            most[call] = max(most.get(call, 0), count)
        return {call: (0, count) for call, count in most.items()}, outcome
    return {
        call: (before[call], count) for call, count in total.items() if count > before[call]
    }, outcome


def whole_table(counts: dict[str, tuple[int, int]]) -> list[Fault]:
    table = []
    turn = 0
    for call, (before, total) in sorted(counts.items()):
        edges = {before + 1, min(before + 2, total), total}
        for index in range(before + 1, total + 1):
            errors: tuple[str, ...] = ERRORS
            if call in ALLOCATIONS:
                errors = ("ENOMEM",)
            elif index not in edges:
                errors = (ERRORS[turn % len(ERRORS)],)
                turn += 1
            table += [Fault(call=call, index=index, error=error) for error in errors]
    return table


def lasting_table(counts: dict[str, tuple[int, int]]) -> list[Fault]:
    """All calls from each call on fail, as without memory."""
    return [
        Fault(call=call, index=index, error="ENOMEM", lasting=True)
        for call, (before, total) in sorted(counts.items())
        for index in range(before + 1, total + 1)
    ]


def chosen(table: list[Fault], sample: int) -> list[Fault]:
    """A share of each call, so that every call is in the sample."""
    rows = sample * max(LEVEL, 1)
    if LEVEL >= WHOLE_LEVEL or len(table) <= rows:
        return table
    half = len(table) // rows // 2 if LEVEL else 0
    return [table[number * len(table) // rows + half] for number in range(rows)]


@dataclass(slots=True)
class Table:
    """The result of each fault. ``LOST`` is the only bad one."""

    name: str
    rows: list[tuple[Fault, str, str]] = field(default_factory=list)

    def add(self, fault: Fault, result: str, detail: str = "") -> None:
        self.rows.append((fault, result, detail))

    def check(self) -> None:
        by_call: dict[str, Counter[str]] = {}
        for fault, result, _ in self.rows:
            by_call.setdefault(fault.call, Counter())[result] += 1
        totals = Counter(result for _, result, _ in self.rows)
        print(f"\n{self.name}: {len(self.rows)} faults: {_shown(totals)}")
        for call, results in sorted(by_call.items()):
            print(f"  {call:20} {_shown(results)}")
        bad = [f"{fault}: {detail}" for fault, result, detail in self.rows if result == LOST]
        print("".join(f"  {LOST}: {line}\n" for line in bad), end="")
        assert not bad, (
            f"{len(bad)} of {len(self.rows)} faults of {self.name} lost without a message: {bad}"
        )
        assert self.rows, f"{self.name}: no call was counted"
        reached = len(self.rows) - totals[NOT_REACHED]
        assert reached >= LEAST_REACHED * len(self.rows), (
            f"{self.name}: of {len(self.rows)} faults {reached} happened"
        )


LOST = "LOST"
NOT_REACHED = "not reached"


def _shown(results: Counter[str]) -> str:
    return ", ".join(f"{result} {count}" for result, count in sorted(results.items()))


Judge = Callable[[Outcome], tuple[str, str]]
# The table of faults for the counted calls.
Faults = Callable[[dict[str, tuple[int, int]]], list[Fault]]


def try_faults(
    table: Table,
    run: Run,
    tracing: Tracing,
    *,
    sample: int,
    judge: Judge,
    put_back: Callable[[], None],
    faults: Faults = whole_table,
) -> Outcome:
    """``judge`` returns the result of an outcome and a detail. ``put_back`` restores everything.
    Returns the outcome of the clean run, whose result has to be "closed".
    """
    counts, clean = counted(run, tracing)
    assert judge(clean)[0] == "closed", (
        f"the control: no call fails, and all names are covered: {judge(clean)} {clean}"
    )
    put_back()
    for fault in chosen(faults(counts), sample):
        with _log() as log:
            outcome = run(fault.words(tracing, log))
            happened = "(INJECTED)" in log.read_text(errors="replace")
        result, detail = judge(outcome)
        table.add(fault, result if happened or result == LOST else NOT_REACHED, detail)
        put_back()
    return clean
