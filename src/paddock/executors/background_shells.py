"""Background commands in any executor: start, read with a cursor, write, end.

A shell keeps its last MiB of output in memory and all of it in a log. A shell that can not be
started has the state FAILED; it never runs in the foreground instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from paddock.errors import UsageError
from paddock.executors.interface import (
    Closable,
    CommandExecutor,
    CommandLine,
    NotStarted,
    Process,
    Resizable,
    Size,
)
from paddock.executors.private_dir import make_private_dir, refuse_writable
from paddock.executors.run import GRACE_S, end

RING_BYTES = 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_DRAIN_S = 0.5
_KILL_TIMEOUT_S = 30.0  # after KILL: on another machine this includes the delay of a connection


class ShellStatus(Enum):
    RUNNING = "running"
    COMPLETED = "completed"  # by itself, with any exit code
    FAILED = "failed"  # never started
    KILLED = "killed"  # by this program or by any other signal


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOutput:
    """The output of a shell since the cursor. ``lost``: the number of bytes that were dropped
    before they were read.
    """

    data: bytes
    lost: int
    state: ShellStatus
    exit_code: int | None

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class Shell:
    """One of :class:`Shells`. stdout and stderr are mixed in the order of arrival."""

    def __init__(self, id: str, command: CommandLine, log: Path) -> None:
        self.id = id
        self.command = command
        self.log = log
        self.state = ShellStatus.RUNNING
        self.exit_code: int | None = None
        self.error: str | None = None
        self._ring = bytearray()
        self._written = 0  # bytes of the stream since its beginning
        self._cursor = 0
        self._changed = asyncio.Condition()
        self._process: Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._killed = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def peek(self) -> ShellOutput:
        """The result of :meth:`read` without moving the cursor."""
        first = self._written - len(self._ring)
        lost = max(first - self._cursor, 0)
        data = bytes(self._ring[max(self._cursor - first, 0) :])
        return ShellOutput(data=data, lost=lost, state=self.state, exit_code=self.exit_code)

    def read(self) -> ShellOutput:
        output = self.peek()
        self._cursor = self._written
        return output

    async def wait(self, timeout_s: float | None = None) -> ShellStatus:
        """Waits until it has ended, or until the timeout."""
        await self._until(lambda: self.state is not ShellStatus.RUNNING, timeout_s)
        return self.state

    async def wait_for(
        self, pattern: str | re.Pattern[str], timeout_s: float | None = None
    ) -> re.Match[str] | None:
        """Waits until the output after the cursor matches. None: the shell ended or the time is
        over without a match.
        """
        expression = re.compile(pattern)

        def found() -> re.Match[str] | None:
            return expression.search(self.peek().text)

        await self._until(
            lambda: found() is not None or self.state is not ShellStatus.RUNNING, timeout_s
        )
        return found()

    async def write(self, data: bytes | str) -> None:
        if (
            self._process is None
            or self._process.stdin is None
            or self.state is not ShellStatus.RUNNING
        ):
            raise UsageError(f"{self.id} accepts no input: its state is {self.state.value}")
        self._process.stdin.write(data.encode() if isinstance(data, str) else data)
        await self._process.stdin.drain()

    def close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def resize(self, size: Size) -> None:
        if isinstance(self._process, Resizable):
            self._process.resize(size)

    async def kill(self, grace_s: float = GRACE_S) -> ShellStatus:
        """Sends TERM, and KILL after the grace, to every process of the shell. Returns after its
        end.
        """
        if self._process is not None and self.state is ShellStatus.RUNNING:
            self._killed = True
            await end(self._process, grace_s)
            await self.wait(_KILL_TIMEOUT_S)
        return self.state

    async def _start(
        self,
        executor: CommandExecutor,
        log: BinaryIO,
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        tty: Size | None,
    ) -> None:
        try:
            self._process = await executor.spawn(
                self.command, cwd=cwd, env=env, stdin=True, tty=tty
            )
        except NotStarted as error:
            self.state, self.error = ShellStatus.FAILED, error.message
            with log:
                self._take(f"{error.message}\n".encode(), log)
            return
        except BaseException:
            log.close()
            raise
        self._following = asyncio.create_task(self._follow(self._process, log))

    async def _follow(self, process: Process, log: BinaryIO) -> None:
        with log:
            streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
            reading = [asyncio.create_task(self._read(stream, log)) for stream in streams]
            try:
                code = await process.wait()
                if reading:
                    # Processes that it left running may hold the pipes. They are not part of this
                    # shell.
                    await asyncio.wait(reading, timeout=_DRAIN_S)
            finally:
                for task in reading:
                    task.cancel()
        self.exit_code = code if code >= 0 else 128 - code
        self.state = ShellStatus.KILLED if self._killed or code < 0 else ShellStatus.COMPLETED
        async with self._changed:
            self._changed.notify_all()

    async def _read(self, stream: asyncio.StreamReader, log: BinaryIO) -> None:
        while chunk := await stream.read(_CHUNK_BYTES):
            self._take(chunk, log)
            async with self._changed:
                self._changed.notify_all()

    def _take(self, chunk: bytes, log: BinaryIO) -> None:
        log.write(chunk)
        self._ring += chunk
        self._written += len(chunk)
        if len(self._ring) > RING_BYTES:
            del self._ring[: len(self._ring) - RING_BYTES]

    async def _until(self, holds: object, timeout_s: float | None) -> None:
        assert callable(holds)
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: bool(holds()))
        except TimeoutError:
            return

    async def _dispose(self, grace_s: float) -> None:
        await self.kill(grace_s)
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if isinstance(self._process, Closable):
            self._process.close()


class Shells:
    """``directory``: for the logs; None: a temporary one, removed with the shells. A directory that
    commands can write is refused. ``workspace``: the directory of the host where commands work.
    """

    def __init__(
        self,
        executor: CommandExecutor,
        directory: str | os.PathLike[str] | None = None,
        *,
        workspace: str | None = None,
    ) -> None:
        self._executor = executor
        self._chosen = None if directory is None else os.fspath(directory)
        self._workspace = workspace
        self._logs: _LogDirectory | None = None
        self._opening = asyncio.Lock()
        self._shells: dict[str, Shell] = {}
        self._disposed = False

    async def start(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: Size | None = None,
    ) -> Shell:
        if self._disposed:
            raise UsageError("the session of these shells has ended")
        async with self._opening:
            self._logs = self._logs or await self._open_logs()
        id = f"shell_{len(self._shells) + 1}"
        log = self._logs.create(f"{id}.log")
        shell = Shell(id, command, self._logs.path / f"{id}.log")
        self._shells[id] = shell
        await shell._start(self._executor, log, cwd=cwd, env=env, tty=tty)
        return shell

    async def _open_logs(self) -> _LogDirectory:
        if self._chosen is None:
            return _LogDirectory(await asyncio.to_thread(make_private_dir, "paddock-shells-"))
        await refuse_writable(self._chosen, self._executor, self._workspace)
        return _LogDirectory(self._chosen)

    def list(self) -> tuple[Shell, ...]:
        return tuple(self._shells.values())

    def __getitem__(self, id: str) -> Shell:
        try:
            return self._shells[id]
        except KeyError:
            raise UsageError(
                f"no shell has the id {id}",
                hint=f"the open shells are: {', '.join(self._shells) or 'none'}",
            ) from None

    def read(self, id: str) -> ShellOutput:
        return self[id].read()

    def peek(self, id: str) -> ShellOutput:
        return self[id].peek()

    async def write(self, id: str, data: bytes | str) -> None:
        await self[id].write(data)

    async def kill(self, id: str, grace_s: float = GRACE_S) -> ShellStatus:
        return await self[id].kill(grace_s)

    async def dispose(self, grace_s: float = GRACE_S) -> None:
        """Ends all shells. A second call does nothing."""
        if self._disposed:
            return
        self._disposed = True
        await asyncio.gather(*(shell._dispose(grace_s) for shell in self._shells.values()))
        if self._logs is not None:
            self._logs.close()


class _LogDirectory:
    """Logs are created by the descriptor of their directory, as new files. So no link that appears
    there leads a log to another file.
    """

    def __init__(self, directory: str | tempfile.TemporaryDirectory[str]) -> None:
        self._own = None if isinstance(directory, str) else directory
        self.path = Path(directory if isinstance(directory, str) else directory.name)
        self._fd = os.open(self.path, os.O_RDONLY) if os.open in os.supports_dir_fd else None

    def create(self, name: str) -> BinaryIO:
        path = name if self._fd is not None else os.fspath(self.path / name)
        with contextlib.suppress(FileNotFoundError):  # the log of an earlier session
            os.unlink(path, dir_fd=self._fd)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        return open(os.open(path, flags, 0o666, dir_fd=self._fd), "wb", buffering=0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._own is not None:
            self._own.cleanup()
