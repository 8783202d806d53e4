"""The executor interface: where and how a command runs. File tools work on the host's worktree;
only commands move.

An executor starts processes and ends those that it owns. Time limits, output caps, streaming,
cancelling and background shells are built on it once (run.py, background_shells.py), for all
executors. ``spawn`` returns an object with the interface of ``asyncio.subprocess.Process``; the
simplest executor returns one.
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

# As a number, because not every host system defines the second.
TERM, KILL = 15, 9

CommandLine = str | Sequence[str]
"""A string is a line for the executor's shell. A list is passed to execve without a shell."""

# The path of bash on Linux, and the shell that every Linux has.
FIND_SHELL = "command -v bash || command -v sh"
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")


class Failure(Enum):
    """The reason why no process was started."""

    DENIED = "denied"  # by the sandbox or a rule
    NOT_FOUND = "not found"
    NOT_EXECUTABLE = "not executable"
    NO_DIRECTORY = "no directory"  # the working directory does not exist
    UNAVAILABLE = "unavailable"  # the executor: no engine, no connection, or a sandbox that ended


class NotStarted(ExecutorError):  # noqa: N818
    """No process was started. A command that fails is a Result instead."""

    def __init__(self, message: str, *, failure: Failure, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.failure = failure
        self.denials: tuple[Denial, ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a terminal."""

    rows: int = 24
    columns: int = 80


class Input(Protocol):
    """The stdin of a process; asyncio.StreamWriter conforms."""

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
        """None: it runs. -N: signal N ended it."""
        ...

    async def wait(self) -> int:
        """Waits until the command itself has ended. Its children may still hold the pipes open."""
        ...

    def send_signal(self, signal: int) -> None:
        """Signals the command and every process it started, as far as the executor can reach them.
        Does nothing after its end.
        """
        ...


@runtime_checkable
class Resizable(Protocol):
    def resize(self, size: Size) -> None: ...


@runtime_checkable
class WritesHost(Protocol):
    """An executor whose commands can write some paths of this host, and not others."""

    async def can_write(self, path: str) -> bool: ...


@runtime_checkable
class Closable(Protocol):
    """A process that holds more than its pipes. Closing it ends its remaining processes."""

    def close(self) -> None: ...


class CommandExecutor(Protocol):
    @property
    def name(self) -> str:
        """The name for people: ``host: no isolation``."""
        ...

    @property
    def confines_writes(self) -> bool:
        """Whether commands are prevented from writing outside their workspace. Measured, not
        assumed: see ``Measured``.
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
        """``cwd``: the working directory, as a path of the executor; None: its default. ``env`` is
        added to the environment that the executor builds; the host's environment is never passed.
        ``stdin``: True creates a pipe; otherwise stdin is empty.
        """
        ...

    async def dispose(self) -> tuple[str, ...]:
        """Ends everything that it owns. Returns messages about what could not be ended. Never
        raises. A second call does nothing.
        """
        ...


@runtime_checkable
class Measured(Protocol):
    """An executor that knows its guarantees and its shell only after its start. Before that,
    ``confines_writes`` is False and ``dialect`` is ``SH``.
    """

    async def measure(self) -> None:
        """Starts the executor as the first command would. NotStarted: it can not be started."""
        ...


def shell_here() -> tuple[str, ...]:
    """The words before a line of shell on this machine: bash if it exists."""
    return shell_words(next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1]))


def shell_words(path: str) -> tuple[str, ...]:
    """-p: bash takes no functions, options or start-up file (BASH_ENV) from the environment,
    because these would change the meaning of a line. --norc: bash also does not read ~/.bashrc,
    which it reads if ssh starts it.
    """
    return (path, "--norc", "-p", "-c") if os.path.basename(path) == "bash" else (path, "-c")


def dialect_of(shell: Sequence[str]) -> Dialect:
    return Dialect.BASH if os.path.basename(shell[0]) == "bash" else Dialect.SH


def dialect_in(executor: object) -> Dialect:
    """The dialect of the executor's shell. An executor without one may have any shell."""
    found = getattr(executor, "dialect", Dialect.SH)
    return found if isinstance(found, Dialect) else Dialect.SH


def checked_environment(env: Mapping[str, str] | None) -> dict[str, str]:
    """Checks that the names are valid variable names."""
    for name, value in (env or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise NotStarted(
                f"not the name of an environment variable: {name!r}", failure=Failure.NOT_EXECUTABLE
            )
    return dict(env or {})


def checked_words(command: CommandLine, shell: Sequence[str]) -> list[str]:
    """The words that are executed."""
    words = [*shell, command] if isinstance(command, str) else [*command]
    if not words or not words[0]:
        raise NotStarted("the command is empty", failure=Failure.NOT_FOUND)
    if any("\0" in word for word in words):
        raise NotStarted(
            "an argument of the command contains a NUL byte", failure=Failure.NOT_EXECUTABLE
        )
    return words
