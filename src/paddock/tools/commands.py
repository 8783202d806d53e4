"""The runner that the ``bash`` tool needs, and an adapter for any executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from paddock.errors import ExecutorError
from paddock.executors.interface import CommandExecutor, Measured, dialect_in
from paddock.executors.run import run
from paddock.shell.dialect import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The result of a command. ``exit_code``: its own, or as on the command line (125 Paddock
    refused, 126 denied or not executable, 127 not found, 128+N killed by signal N); 124 with
    ``timed_out``. Output before the end is kept. ``truncated``: the beginning and the end are kept,
    and a line between them gives the number of omitted bytes. ``notes``: missing guarantees of the
    executor.
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
        """Whether the kernel prevents commands from writing outside their workspace: measured, not
        assumed. A runner with ``measure`` (``paddock.executors.interface.Measured``) is started by
        it first.
        """
        ...

    async def run(self, command: str, *, cwd: str, timeout_s: float) -> CommandResult:
        """Runs a line of shell. After a timeout or a cancellation, all its processes have ended
        before this returns. ExecutorError: nothing was started.
        """
        ...


class Commands:
    """Runs commands in any executor."""

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
