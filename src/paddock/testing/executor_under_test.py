"""The executor under test, the list of checks, and their observations: marks in files that the host
reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paddock.executors.background_shells import Shells
from paddock.executors.interface import CommandExecutor, CommandLine, NotStarted
from paddock.executors.run import Result, run

CHECK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorUnderTest:
    """``workspace``: a directory with the same files for the host and for commands. ``inside``: its
    path for commands, and their default working directory. ``tells_failures``: the executor
    distinguishes a command that can not be started from one that fails.
    """

    executor: CommandExecutor
    workspace: Path
    inside: str
    tells_failures: bool = True
    has_terminals: bool = True
    at_a_time: int = 8  # checks

    def below(self, name: str) -> ExecutorUnderTest:
        """A subdirectory for one check."""
        (self.workspace / name).mkdir()
        return replace(self, workspace=self.workspace / name, inside=f"{self.inside}/{name}")

    async def run(self, command: CommandLine, **options: Any) -> Result:
        options = {"cwd": self.inside, **options}
        return await asyncio.wait_for(run(self.executor, command, **options), CHECK_TIMEOUT_S)


Check = Callable[[ExecutorUnderTest], Awaitable[None]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


@contextlib.contextmanager
def refused() -> Iterator[None]:
    try:
        yield
    except (NotStarted, ValueError):
        return
    raise AssertionError("it was started")


@contextlib.asynccontextmanager
async def shells_of(subject: ExecutorUnderTest) -> AsyncIterator[Shells]:
    shells = Shells(subject.executor)
    try:
        yield shells
    finally:
        await shells.dispose(1)


def beating(name: str) -> str:
    """A line of shell that adds marks to a file, for at most half a minute."""
    return f"n=0; while [ $n -lt 600 ]; do echo x >> beat-{name}; sleep 0.05; n=$((n+1)); done"


def until(subject: ExecutorUnderTest, name: str) -> str:
    return f"while ! test -e {subject.inside}/{name}; do sleep 0.02; done"


def size_of(subject: ExecutorUnderTest, name: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return (subject.workspace / f"beat-{name}").stat().st_size
    return 0


async def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CHECK_TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


async def beats(subject: ExecutorUnderTest, name: str) -> None:
    await wait_for(lambda: size_of(subject, name) > 0)


async def still(subject: ExecutorUnderTest, name: str) -> None:
    """Waits for a time in which ten marks would appear, and checks that none does."""
    deadline = time.monotonic() + CHECK_TIMEOUT_S
    before, since = size_of(subject, name), time.monotonic()
    while time.monotonic() - since < 0.5:
        await asyncio.sleep(0.05)
        if (now := size_of(subject, name)) != before:
            before, since = now, time.monotonic()
        assert time.monotonic() < deadline, f"{name} lives on"


def soon(subject: ExecutorUnderTest) -> float:
    """Long enough for a command to start on a busy machine."""
    return 1.5
