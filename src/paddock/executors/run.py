"""Runs one command in the foreground, in any executor. Returns how it ended and its output, and
leaves no process that should have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Literal

from paddock.errors import UsageError
from paddock.executors.denials import Denial, DenialSource
from paddock.executors.interface import (
    KILL,
    TERM,
    Closable,
    CommandExecutor,
    CommandLine,
    Failure,
    NotStarted,
    Process,
    Size,
)
from paddock.executors.output import Capture, Captured

MAX_OUTPUT_BYTES = 1024 * 1024
GRACE_S = 5.0
# For output that was written before the end and is in transit. A process that holds the pipe longer
# is not awaited.
DRAIN_S = 0.5
_CHUNK_BYTES = 64 * 1024
_KILL_TIMEOUT_S = 10.0  # after KILL; a remote executor needs time for its signal

Stream = Literal["stdout", "stderr"]

_abandoned_readers: set[asyncio.Task[None]] = (
    set()
)  # readers that continue, so that no writer blocks


class Outcome(Enum):
    """The way a command ended."""

    EXITED = "exited"
    KILLED = "killed"  # by a signal that Paddock did not send
    TIMED_OUT = "timed out"
    DENIED = "denied"  # not started: the sandbox or a rule refused it
    FAILED = "failed"  # not started: not found, not executable, no such directory
    UNAVAILABLE = "unavailable"  # not started: the executor is not available


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    outcome: Outcome
    exit_code: (
        int  # its own code, or that of a shell: 124 timed out, 125 unavailable, 126, 127, 128+N
    )
    signal: int | None = None
    output: Mapping[Stream, Captured] = field(default_factory=dict)
    error: str | None = None  # the reason why it was not started
    duration_s: float = 0.0
    denials: tuple[Denial, ...] = ()
    spooled: Mapping[Stream, Path] = field(default_factory=dict)  # the complete output
    notes: tuple[str, ...] = ()  # missing guarantees of the executor

    @property
    def stdout(self) -> str:
        return self.output["stdout"].text if "stdout" in self.output else ""

    @property
    def stderr(self) -> str:
        return self.output["stderr"].text if "stderr" in self.output else ""

    @property
    def truncated(self) -> bool:
        return any(captured.truncated for captured in self.output.values())

    @property
    def timed_out(self) -> bool:
        return self.outcome is Outcome.TIMED_OUT

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.EXITED and self.exit_code == 0


async def run(
    executor: CommandExecutor,
    command: CommandLine,
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | str = b"",
    tty: Size | None = None,
    timeout_s: float | None = None,
    idle_timeout_s: float | None = None,
    on_output: Callable[[Stream, bytes], None] | None = None,
    cap: int = MAX_OUTPUT_BYTES,
    spool: str | os.PathLike[str] | None = None,
    grace_s: float = GRACE_S,
) -> Result:
    """Runs the command to its end. ``timeout_s`` starts with the command. ``idle_timeout_s`` limits
    the time without output. ``spool``: a directory for the complete output.

    After a timeout or a cancellation every process of the command is terminated and then killed;
    the output so far is kept. Processes that remain when the command ends by itself live until the
    executor is disposed of.
    """
    if any(limit is not None and math.isnan(limit) for limit in (timeout_s, idle_timeout_s)):
        raise UsageError("the time limit is not a number")
    data = _input(stdin)
    started_at = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s) as starting:
            process = await executor.spawn(command, cwd=cwd, env=env, stdin=bool(data), tty=tty)
    except NotStarted as error:
        return _not_started(error, time.monotonic() - started_at)
    except TimeoutError:
        if not starting.expired():
            raise
        empty: dict[Stream, Captured] = {"stdout": Captured(head=b""), "stderr": Captured(head=b"")}
        duration_s = time.monotonic() - started_at
        return Result(outcome=Outcome.TIMED_OUT, exit_code=124, output=empty, duration_s=duration_s)
    with contextlib.ExitStack() as files:
        output_reader = _OutputReader(process, cap, on_output, _spools(spool, files))
        feeding = asyncio.ensure_future(_feed(process, data))
        try:
            timed_out = not await _ended(
                process, output_reader, started_at, timeout_s, idle_timeout_s
            )
            if timed_out:
                await end(process, grace_s)
            await output_reader.rest(DRAIN_S)
            denials = await process.denials() if isinstance(process, DenialSource) else ()
        except BaseException:
            # Cancelled, or a callback failed: no process continues without its caller.
            await asyncio.shield(end(process, grace_s))
            raise
        finally:
            feeding.cancel()
            output_reader.leave()
            if isinstance(process, Closable) and process.returncode is None:
                process.close()
        return _result(process, output_reader, timed_out, denials, time.monotonic() - started_at)


async def end(process: Process, grace_s: float) -> None:
    """Sends TERM to the whole tree, waits, then sends KILL."""
    for number, patience_s in ((TERM, grace_s), (KILL, _KILL_TIMEOUT_S)):
        process.send_signal(number)
        try:
            async with asyncio.timeout(patience_s):
                await process.wait()
                if number == TERM:
                    # The command has ended; its children may not have received the signal.
                    process.send_signal(KILL)
                return
        except TimeoutError:
            continue


class _OutputReader:
    """Reads both streams while a process may write to them."""

    def __init__(
        self,
        process: Process,
        cap: int,
        on_output: Callable[[Stream, bytes], None] | None,
        spools: Mapping[Stream, IO[bytes]],
    ) -> None:
        self.last_at = time.monotonic()
        self.paths = {stream: Path(file.name) for stream, file in spools.items()}
        self._on_output = on_output
        self._left = False
        streams: dict[Stream, asyncio.StreamReader | None] = {
            "stdout": process.stdout,
            "stderr": process.stderr,
        }
        self._captures: dict[Stream, Capture] = {}
        self.reading: list[asyncio.Task[None]] = []
        for stream, reader in streams.items():
            if reader is not None:
                self._captures[stream] = Capture(cap, spools.get(stream))
                self.reading.append(asyncio.create_task(self._read(stream, reader)))

    async def _read(self, stream: Stream, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if self._left:
                continue
            self.last_at = time.monotonic()
            self._captures[stream].take(chunk)
            if self._on_output is not None:
                self._on_output(stream, chunk)

    def failed(self) -> BaseException | None:
        """The exception of a callback."""
        done = [task for task in self.reading if task.done() and not task.cancelled()]
        return next((error for task in done if (error := task.exception())), None)

    async def rest(self, patience_s: float) -> None:
        if self.reading:
            await asyncio.wait(self.reading, timeout=patience_s)
        if error := self.failed():
            raise error

    def leave(self) -> None:
        """A process that still holds a pipe may continue to write. Its output is discarded, and it
        is not killed.
        """
        self._left = True
        for task in self.reading:
            if not task.done():
                _abandoned_readers.add(task)
                task.add_done_callback(_abandoned_readers.discard)
            elif not task.cancelled():
                task.exception()  # one exception was raised already; this one is dropped

    def captured(self) -> dict[Stream, Captured]:
        return {stream: capture.captured() for stream, capture in self._captures.items()}


async def _ended(
    process: Process,
    output_reader: _OutputReader,
    started_at: float,
    timeout_s: float | None,
    idle_timeout_s: float | None,
) -> bool:
    """False: the time is over."""
    ending = asyncio.ensure_future(process.wait())
    try:
        while True:
            now = time.monotonic()
            limits = [started_at + timeout_s] if timeout_s is not None else []
            limits += [output_reader.last_at + idle_timeout_s] if idle_timeout_s is not None else []
            left = min(limits) - now if limits else None
            if left is not None and left <= 0:
                return ending.done()
            watched = [ending, *(task for task in output_reader.reading if not task.done())]
            await asyncio.wait(watched, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if error := output_reader.failed():
                raise error
            if ending.done():
                ending.result()
                return True
    finally:
        ending.cancel()


def _input(stdin: bytes | str) -> bytes:
    """Text becomes UTF-8, as in a command line."""
    if isinstance(stdin, str):
        return os.fsencode(stdin)
    if not isinstance(stdin, bytes | bytearray | memoryview):
        kind = type(stdin).__name__
        raise UsageError(f"stdin is {kind}, not text or bytes", hint='give stdin="…" or stdin=b"…"')
    return bytes(stdin)


async def _feed(process: Process, stdin: bytes) -> None:
    if not stdin or process.stdin is None:
        return
    with contextlib.suppress(ConnectionError):  # the command stopped reading
        process.stdin.write(stdin)
        await process.stdin.drain()
    process.stdin.close()


def _spools(
    directory: str | os.PathLike[str] | None, files: contextlib.ExitStack
) -> dict[Stream, IO[bytes]]:
    if directory is None:
        return {}
    streams: tuple[Stream, Stream] = ("stdout", "stderr")
    return {
        stream: files.enter_context(
            tempfile.NamedTemporaryFile(
                dir=directory, prefix="command-", suffix=f".{stream}", delete=False
            )
        )
        for stream in streams
    }


def _result(
    process: Process,
    output_reader: _OutputReader,
    timed_out: bool,
    denials: tuple[Denial, ...],
    duration_s: float,
) -> Result:
    code = process.returncode
    number = -code if code is not None and code < 0 else None
    outcome = Outcome.TIMED_OUT if timed_out else Outcome.KILLED if number else Outcome.EXITED
    return Result(
        outcome=outcome,
        exit_code=124 if timed_out else 128 + number if number else code or 0,
        signal=number,
        output=output_reader.captured(),
        duration_s=duration_s,
        denials=denials,
        spooled=output_reader.paths,
        notes=getattr(process, "notes", ()),
    )


def _not_started(error: NotStarted, duration_s: float) -> Result:
    outcome, code = {
        Failure.DENIED: (Outcome.DENIED, 126),
        Failure.NOT_FOUND: (Outcome.FAILED, 127),
        Failure.NOT_EXECUTABLE: (Outcome.FAILED, 126),
        Failure.NO_DIRECTORY: (Outcome.FAILED, 125),
        Failure.UNAVAILABLE: (Outcome.UNAVAILABLE, 125),
    }[error.failure]
    return Result(
        outcome=outcome,
        exit_code=code,
        error=error.message,
        duration_s=duration_s,
        denials=error.denials,
    )
