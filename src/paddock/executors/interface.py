"""The seam: where and how a command runs. File tools stay on the host's worktree; only this moves.

An executor starts a process and can end what it owns, no more. Time limits, caps, streaming,
cancelling and background shells are written once in terms of it (run.py, shells.py), so every place
inherits them. What ``spawn`` returns has the shape of ``asyncio.subprocess.Process``; the simplest
executor returns one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from paddock.errors import ExecutorError
from paddock.executors.denials import Denial
from paddock.shell.dialect import Dialect

# By number: not every system that commands are started from has the second.
TERM, KILL = 15, 9

CommandLine = str | Sequence[str]
"""A text is a line for the executor's shell, a list is for nobody but the kernel."""

# Where Linux has bash, and what every Linux has.
FIND_SHELL = "command -v bash || command -v sh"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")


class Failure(Enum):
    """Why there is no process."""

    DENIED = "denied"  # by the fence or a rule
    NOT_FOUND = "not found"
    NOT_EXECUTABLE = "not executable"
    NO_DIRECTORY = "no directory"  # the one to run it in
    UNAVAILABLE = "unavailable"  # the place itself: no engine, no connection, a sandbox that ended


class NotStarted(ExecutorError):  # noqa: N818 (what it says)
    """No process was started. A command that fails is a result."""

    def __init__(self, message: str, *, failure: Failure, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.failure = failure
        self.denials: tuple[Denial, ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """Of a terminal."""

    rows: int = 24
    columns: int = 80


class Input(Protocol):
    """Of a process: asyncio.StreamWriter has it."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class Process(Protocol):
    """A started command. With a terminal, all output is stdout."""

    @property
    def pid(self) -> int | None: ...
    @property
    def stdin(self) -> Input | None: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...
    @property
    def returncode(self) -> int | None:
        """None: it runs. -N: ended by signal N."""
        ...

    async def wait(self) -> int:
        """Until the command itself has ended. What it left behind may hold its pipes open."""
        ...

    def send_signal(self, signal: int) -> None:
        """To the command and all it started, as far as the place can reach them. Nothing, once it
        has ended.
        """
        ...


@runtime_checkable
class Resizable(Protocol):
    def resize(self, size: Size) -> None: ...


@runtime_checkable
class Closable(Protocol):
    """A process that holds more than its pipes: released when nobody needs it any more, and with it
    what it left running.
    """

    def close(self) -> None: ...


class CommandExecutor(Protocol):
    @property
    def name(self) -> str:
        """Of the place, for people: ``host: no isolation``."""
        ...

    @property
    def confines_writes(self) -> bool:
        """Are commands kept from writing outside their workspace? Measured, not assumed: see
        ``Measured``.
        """
        ...

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> Process:
        """``cwd``: where the command runs, a path of that place; None: the executor's own. ``env``:
        on top of the environment that the executor builds; the host's never leaks in. ``stdin``: a
        pipe; else there is nothing to read.
        """
        ...

    async def dispose(self) -> tuple[str, ...]:
        """End everything that it owns: what could not be ended, in words. Never raises; a second
        time does nothing.
        """
        ...


@runtime_checkable
class Measured(Protocol):
    """An executor that only knows after its start what it holds, and which shell it has. Before
    that, ``confines_writes`` is False and its ``dialect`` is ``SH``.
    """

    async def measure(self) -> None:
        """Start the place, as the first command would. NotStarted: it can not be started."""
        ...


def shell_here() -> tuple[str, ...]:
    """The words before a line of shell on this machine: bash where there is bash."""
    return shell_words(next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1]))


def shell_words(path: str) -> tuple[str, ...]:
    """-p: bash takes no functions, options or start-up file (BASH_ENV) from the environment, which
    would give the words of a line another meaning. --norc: nor ~/.bashrc, which it reads when ssh
    starts it.
    """
    return (path, "--norc", "-p", "-c") if os.path.basename(path) == "bash" else (path, "-c")


def dialect_of(shell: Sequence[str]) -> Dialect:
    return Dialect.BASH if os.path.basename(shell[0]) == "bash" else Dialect.SH


def dialect_in(executor: object) -> Dialect:
    """Of the shell that runs its lines; one that does not say may have any."""
    found = getattr(executor, "dialect", Dialect.SH)
    return found if isinstance(found, Dialect) else Dialect.SH


def checked_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Names that a process can have."""
    for name, value in (env or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise NotStarted(
                f"not the name of an environment variable: {name!r}", failure=Failure.NOT_EXECUTABLE
            )
    return dict(env or {})


def checked_words(command: CommandLine, shell: Sequence[str]) -> list[str]:
    """What is executed."""
    words = [*shell, command] if isinstance(command, str) else [*command]
    if not words or not words[0]:
        raise NotStarted("the command is empty", failure=Failure.NOT_FOUND)
    if any("\0" in word for word in words):
        raise NotStarted(
            "an argument of the command contains a NUL byte", failure=Failure.NOT_EXECUTABLE
        )
    return words
