"""Processes started by asyncio, on any system: clients of remote executors, and commands on systems
without the core.

A process that leaves the session of its command can not be ended here; exec_server.py can.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from paddock.executors.interface import (
    KILL,
    CommandLine,
    Failure,
    NotStarted,
    Size,
    checked_environment,
    checked_words,
    dialect_of,
)

_MAX_BUFFERED_BYTES = 256 * 1024  # bytes that a stream buffers for its reader


class PlainProcess:
    """An asyncio.subprocess.Process that signals its whole process group, if there are any."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid: int | None = process.pid
        self.stdin = process.stdin
        self.stdout = process.stdout
        self.stderr = process.stderr
        # Otherwise asyncio reports an unhandled error when a command stops reading.
        self._closing = (
            None if process.stdin is None else asyncio.ensure_future(_closed(process.stdin))
        )

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def send_signal(self, signal: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.kill()  # the only way to end a process that has no console
            elif (
                self._process.returncode is None or not self.closed
            ):  # a process of the group still holds the pipes
                os.killpg(self._process.pid, signal)

    def kill(self) -> None:
        self.send_signal(KILL)

    def resize(self, size: Size) -> None:
        """There is no terminal."""

    @property
    def closed(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Also closes pipes that another process still holds."""
        if self._process.returncode is not None:
            self._transport.close()
            return
        self.kill()
        # The transport itself waits for the child. Closed earlier, it would reap the child before
        # asyncio does.
        for number in range(3):
            pipe = self._transport.get_pipe_transport(number)
            if pipe is not None:
                pipe.close()

    @property
    def _transport(self) -> asyncio.SubprocessTransport:
        return cast("asyncio.SubprocessTransport", self._process._transport)  # type: ignore[attr-defined]


async def _closed(stdin: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await stdin.wait_closed()


class PlainExecutor:
    """Commands have the caller's environment and rights. ``env`` replaces the environment.
    ``shell`` replaces the shell of the system.
    """

    name = "host: no isolation"
    confines_writes = False

    def __init__(
        self,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        shell: Sequence[str] | None = None,
    ) -> None:
        self._cwd = os.path.abspath(cwd) if cwd is not None else os.getcwd()
        self._env = dict(os.environ) if env is None else checked_environment(env)
        self._shell = None if shell is None else tuple(shell)
        self.dialect = dialect_of(self._shell or ("sh",))
        self._processes: set[PlainProcess] = set()

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> PlainProcess:
        words, environment = checked_words(command, self._shell or ()), checked_environment(env)
        if tty is not None:
            raise NotStarted(
                f"{self.name}: this executor has no terminals", failure=Failure.UNAVAILABLE
            )
        where = self._cwd if cwd is None else os.path.join(self._cwd, cwd)
        if not os.path.isdir(where):
            raise NotStarted(f"{where} is not a directory", failure=Failure.NO_DIRECTORY)
        pipe = asyncio.subprocess.PIPE
        # cmd.exe takes its command line literally; quoting it as an argument would change it.
        by_system = isinstance(command, str) and self._shell is None
        start: Any = (
            asyncio.create_subprocess_shell if by_system else asyncio.create_subprocess_exec
        )
        try:
            started = await start(
                *words,
                cwd=where,
                env={**self._env, **environment},
                stdin=pipe if stdin else asyncio.subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                limit=_MAX_BUFFERED_BYTES,
                start_new_session=sys.platform != "win32",
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotStarted(f"{words[0]}: {error.strerror}", failure=Failure.NOT_FOUND) from error
        except OSError as error:
            raise NotStarted(
                f"{words[0]}: {error.strerror}", failure=Failure.NOT_EXECUTABLE
            ) from error
        process = PlainProcess(started)
        self._processes = {one for one in self._processes if not one.closed} | {process}
        return process

    async def dispose(self) -> tuple[str, ...]:
        processes, self._processes = self._processes, set()
        for process in processes:
            process.kill()
        left = []
        for process in processes:
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                left.append(f"process {process.pid} does not end")
            process.close()
        return tuple(left)
