"""The judged name is the name that a call makes, also if its meaning changes meanwhile.

Threads and processes change everything that the meaning of a name depends on as fast as possible:
the memory with the path and the flags, symlinks, directories, descriptors, the working directory,
and the caller itself. A second run in the same workspace does so too. The verdict is the state of
the protected names on the host. Nothing inside can remove a protected name once it is there.

The control is the same race under a judge that only checks, and then lets the kernel continue. It
fails within a few thousand calls.

`make test` makes some thousand calls altogether, `make stress` a million.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.features import need
from tests.support.sandbox import SandboxRunner, Word
from tests.support.stress import amount
from tests.support.tester import Outcome
from tests.support.tree import ProjectTree
from tests.support.waiting import NeverHappened

CALLS = amount(ordinary=240, first=400, more=2400)
NAIVE_CALLS = 600
MOST_RUNS = 100
TIMEOUT_S = 120 + CALLS / 50
FLAGS = ("--quiet", "--socket", "unix")
KINDS = (
    "thread", "clone", "how", "link", "relink", "exchange", "descriptor", "cwd", "killed",
)  # fmt: skip
# In two runs: one makes names, the other one changes what they mean.
PAIRS = ("link", "relink", "slow", "exchange", "parts")
# Each of their calls starts a process, or waits for another run.
SLOW = ("killed", "parts")
SLOWER = 8


@pytest.fixture(params=["landlock", "full"])
def each_tier(
    request: pytest.FixtureRequest, sandbox: SandboxRunner, host: dict[str, Any]
) -> SandboxRunner:
    """Each race is run in both tiers."""
    if request.param == "full":
        need("namespaces", host["namespaces"]["usable"], str(host["namespaces"]))
    return replace(sandbox, tier=request.param)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The directory of a race, with free and protected names."""

    place: Path
    before: object

    @classmethod
    def in_place(cls, tree: ProjectTree, place: Path) -> Field:
        for name in ("aclaude", ".claude", "agit/hooks", ".git/hooks", "kept"):
            (place / name).mkdir(parents=True)
        for name in ("kept/.envrc", "kept/aenvrc", "seed"):
            (place / name).write_text("of the host\n")
        tree.make(place)
        return cls(place=place, before=state(place / "kept" / ".envrc"))

    def clear(self) -> None:
        """Removes what the halves of a pair tell each other."""
        for name in ("done", "flipping", "together"):
            (self.place / name).unlink(missing_ok=True)

    def reached(self) -> list[str]:
        """The protected names that exist or have changed."""
        found = [
            *(self.place / ".claude").iterdir(),
            *(self.place / ".git" / "hooks").iterdir(),
            *self.place.glob(".envrc"),
            *(part for part in self.place.glob("d*") if is_repository(part)),
        ]
        if state(self.place / "kept" / ".envrc") != self.before:
            found.append(self.place / "kept" / ".envrc")
        return [str(path.relative_to(self.place)) for path in found]


def is_repository(path: Path) -> bool:
    return all((path / part).exists() for part in ("HEAD", "objects", "refs"))


def state(path: Path) -> object:
    """Everything about a file that the host can see, except the time of access."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return (
        facts.st_mode, facts.st_ino, facts.st_nlink, facts.st_mtime_ns, facts.st_ctime_ns,
        path.read_bytes(), tuple(os.listxattr(path)),
    )  # fmt: skip


def halves(kind: str, *, is_pair: bool) -> list[tuple[str, ...]]:
    return [(kind, "make"), (kind, "flip")] if is_pair else [(kind,)]


def racing(sandbox: SandboxRunner, calls: int, kind: str, *half: str) -> list[Word]:
    return [sandbox.programs.write_racer, kind, str(calls), *half]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    calls: int
    made: int
    refused: int

    @classmethod
    def of(cls, outcome: Outcome) -> Counts:
        found = re.fullmatch(r"started\ncalls (\d+) made (\d+) refused (\d+)\n", outcome.stdout)
        assert found, str(outcome)
        calls, made, refused = map(int, found.groups())
        return cls(calls=calls, made=made, refused=refused)


@contextmanager
def beside(sandbox: SandboxRunner, words: list[Word] | None, place: Path) -> Iterator[None]:
    """Runs a second command as long as the block, which ends it."""
    if words is None:
        yield
        return
    with sandbox.tester.starting(words, cwd=place) as process:
        yield
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr
        assert stdout.startswith("started\n"), stderr


def run_pair(sandbox: SandboxRunner, commands: list[list[Word]], place: Path) -> Counts:
    first, *others = commands
    with beside(sandbox, others[0] if others else None, place):
        outcome = sandbox.tester.run(first, cwd=place, timeout_s=TIMEOUT_S)
    assert outcome.exit_code == 0, str(outcome)
    return Counts.of(outcome)


def control(sandbox: SandboxRunner, kind: str, *, is_pair: bool) -> None:
    field = Field.in_place(sandbox.tree, sandbox.tree.outside)
    act = "perform" if kind == "killed" else "continue"
    naive: list[Word] = [sandbox.programs.naive_writes, act]
    calls = NAIVE_CALLS // (SLOWER if kind in SLOW else 1)
    commands = [[*naive, *racing(sandbox, calls, *half)] for half in halves(kind, is_pair=is_pair)]
    # Losing the race is chance, so the control runs until it happens.
    for _ in range(MOST_RUNS):
        counts = run_pair(sandbox, commands, field.place)
        if field.reached():
            return
        field.clear()
    raise NeverHappened(f"{kind}: {MOST_RUNS} runs, the last one: {counts}")


def protect(sandbox: SandboxRunner, kind: str, *, is_pair: bool) -> None:
    field = Field.in_place(sandbox.tree, sandbox.tree.project)
    calls = CALLS // (SLOWER if kind in SLOW else 1)
    commands = [
        sandbox.command(racing(sandbox, calls, *half), *FLAGS)
        for half in halves(kind, is_pair=is_pair)
    ]
    # Chance decides which of the two names a call meets, so the race runs until both were met.
    for _ in range(MOST_RUNS):
        counts = run_pair(sandbox, commands, field.place)
        print(sandbox.tier, kind, "in two runs" if is_pair else "in one run", counts)
        assert field.reached() == [], str(counts)
        assert counts.calls >= calls
        if counts.made and (counts.refused or kind == "killed"):
            return
        field.clear()
    raise NeverHappened(f"{kind}: {MOST_RUNS} runs, the last one: {counts}")


@pytest.mark.parametrize("kind", KINDS)
def test_control_a_judge_that_only_looks_loses_the_race(sandbox: SandboxRunner, kind: str) -> None:
    control(sandbox, kind, is_pair=False)


@pytest.mark.parametrize("kind", PAIRS)
def test_control_two_judges_that_only_look_lose_the_race(sandbox: SandboxRunner, kind: str) -> None:
    control(sandbox, kind, is_pair=True)


@pytest.mark.parametrize("kind", KINDS)
def test_no_unjudged_name_is_made(each_tier: SandboxRunner, kind: str) -> None:
    protect(each_tier, kind, is_pair=False)


@pytest.mark.parametrize("kind", PAIRS)
def test_no_unjudged_name_is_made_by_two_runs(each_tier: SandboxRunner, kind: str) -> None:
    protect(each_tier, kind, is_pair=True)
