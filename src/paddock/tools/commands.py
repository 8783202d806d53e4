"""What the ``bash`` tool needs of a place to run commands in, and any executor as such a place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paddock.errors import ExecutorError
from paddock.executors.interface import CommandExecutor, Measured, dialect_in
from paddock.executors.run import run
from paddock.shell.dialect import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended. ``exit_code``: its own, or as on the command line (125 Paddock refused,
    126 denied or not executable, 127 not found, 128+N killed by signal N); 124 with ``timed_out``.
    What it said before it was stopped is kept. ``truncated``: beginning and end are there, and a
    line between them says how much is not. ``notes``: what the place does not hold.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False
    timed_out: bool = False
    notes: tuple[str, ...] = ()


class CommandRunner(Protocol):
    @property
    def confines_writes(self) -> bool:
        """The kernel keeps commands from writing outside their workspace: measured, not assumed. A
        runner that also has ``measure`` (``paddock.executors.interface.Measured``) is started by it
        before this is asked.
        """
        ...

    async def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        """Run a line of shell. When the time is over, or the caller is cancelled, everything the
        line started is ended before this returns. ExecutorError: nothing was started.
        """
        ...


class Commands:
    """In whatever place an executor has."""

    def __init__(self, executor: CommandExecutor) -> None:
        self._executor = executor

    @property
    def confines_writes(self) -> bool:
        return self._executor.confines_writes

    @property
    def dialect(self) -> Dialect:
        return dialect_in(self._executor)

    async def measure(self) -> None:
        if isinstance(self._executor, Measured):
            await self._executor.measure()

    async def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        result = await run(self._executor, command, cwd=cwd, timeout_s=timeout_s)
        if result.error is not None:
            raise ExecutorError(result.error)
        return CommandResult(
            exit_code=result.exit_code,
            stdout=bytes(result.output["stdout"]),
            stderr=bytes(result.output["stderr"]),
            truncated=result.truncated,
            timed_out=result.timed_out,
            notes=result.notes,
        )
