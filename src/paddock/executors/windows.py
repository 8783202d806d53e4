"""Windows with the restrictions that it offers: a job (memory, number of processes, common end) and
low integrity. At low integrity a command can write only to objects labelled low. The workspace has
that label while the executor lives.

Reads and the network are not restricted. If a call fails (``CallFailed``), no command is started,
unless the configuration permits less; then commands do not count as confined.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ntpath
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from paddock.errors import HostError
from paddock.executors import win32
from paddock.executors.interface import (
    KILL,
    CommandLine,
    Failure,
    Input,
    NotStarted,
    Size,
    checked_environment,
    checked_words,
)
from paddock.executors.win32 import CallFailed, Libraries, Windows

LABELLED, UNLABELLED = "(OI)(CI)Low", "(OI)(CI)Medium"
_PASSED = (
    "SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATH PATHEXT TEMP TMP NUMBER_OF_PROCESSORS "
    "PROCESSOR_ARCHITECTURE OS"
)
_PASSED += " USERPROFILE USERNAME LOCALAPPDATA APPDATA PROGRAMFILES PROGRAMDATA"
_BATCH = (".bat", ".cmd")
_LABEL_TIMEOUT_S = 300.0
_MAX_BUFFERED_BYTES = 256 * 1024

Run = Callable[[Sequence[str]], int]


class Pipes(Protocol):
    """The pipes of a process: our end, as asyncio takes it, and the handle of its end."""

    def to_it(self) -> tuple[Any, int]: ...
    def from_it(self) -> tuple[Any, int]: ...


class WindowsExecutor:
    """``workspace`` is labelled low while this object lives. ``require_enforced`` false: if low
    integrity is not available, run without it, with a warning.
    """

    name = "windows: job object"

    def __init__(
        self,
        *,
        workspace: str | os.PathLike[str] | None = None,
        max_memory_mb: int = 512,
        max_processes: int = 10,
        use_low_integrity: bool = True,
        require_enforced: bool = True,
        env: Mapping[str, str] | None = None,
        shell: Sequence[str] | None = None,
        libraries: Libraries | None = None,
        pipes: Pipes | None = None,
        call: Run | None = None,
    ) -> None:
        self.workspace = os.path.abspath(workspace) if workspace is not None else os.getcwd()
        self._limits = {"memory_mb": max_memory_mb, "processes": max_processes}
        self._windows = Windows(libraries or Libraries.of_windows())
        self._pipes = pipes or _Overlapped()
        self._call = call or _call
        self._shell = None if shell is None else tuple(shell)
        self._env = {**_environment(), **checked_environment(env)}
        self._jobs: dict[int, WindowsProcess] = {}
        self._token: int | None = None
        self._stamped = False
        if use_low_integrity:
            try:
                self._lower()
            except (CallFailed, HostError) as error:
                self._raise()
                if require_enforced:
                    raise HostError(
                        f"Paddock cannot limit where commands write: {error}",
                        hint="to run them in a job object only, write require_enforced = false",
                    ) from None
                warnings.warn(
                    f"commands can write everywhere: {error}", RuntimeWarning, stacklevel=2
                )
        if self._token is not None:
            self.name = "windows: job object, low integrity"
            self._env = {**self._env, **_low_temp(self._env), **checked_environment(env)}

    @property
    def confines_writes(self) -> bool:
        return self._token is not None

    async def spawn(
        self,
        command: CommandLine,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        tty: Size | None = None,
    ) -> WindowsProcess:
        given = checked_environment(env)
        line = self._line(command)
        if tty is not None:
            raise NotStarted(
                f"{self.name}: this executor has no terminals", failure=Failure.UNAVAILABLE
            )
        where = self.workspace if cwd is None else os.path.join(self.workspace, cwd)
        self._forget()
        process = WindowsProcess(self._windows, self._jobs)
        try:
            await process.start(
                self._pipes,
                lambda job, handles: self._windows.start(
                    line,
                    token=self._token,
                    job=job,
                    cwd=where,
                    environment={**self._env, **given},
                    handles=handles,
                ),
                self._limits,
                stdin=stdin,
            )
        except CallFailed as error:
            process.close()
            raise _failure(error, line, where) from None
        except BaseException:
            process.close()
            raise
        return process

    async def dispose(self) -> tuple[str, ...]:
        left = []
        for job, process in list(self._jobs.items()):
            process.close()
            del self._jobs[job]
            self._windows.close(job)
        try:
            self._raise()
        except HostError as error:
            left.append(error.message)
        return tuple(left)

    def _line(self, command: CommandLine) -> str:
        words = checked_words(command, ())
        if isinstance(command, str) and self._shell is None:
            # /s: the line is literal except for its first and last quote; /d: no AutoRun.
            return f'"{_system("cmd.exe")}" /d /s /c "{command}"'
        if isinstance(command, str):
            words = [*(self._shell or ()), command]
        elif words[0].lower().rstrip(". ").endswith(_BATCH):
            # cmd.exe parses arguments of batch files by rules that no quoting makes safe.
            raise NotStarted(
                f"{words[0]}: only a shell can run a batch file", failure=Failure.NOT_EXECUTABLE
            )
        return subprocess.list2cmdline(words)

    def _lower(self) -> None:
        self._token = self._windows.low_token()
        self._stamp(LABELLED)
        self._stamped = True

    def _raise(self) -> None:
        """Restores the previous label."""
        if self._token is not None:
            self._windows.close(self._token)
            self._token = None
        if self._stamped:
            self._stamped = False
            self._stamp(UNLABELLED)

    def _stamp(self, label: str) -> None:
        code = self._call([_system("icacls.exe"), self.workspace, "/setintegritylevel", label])
        if code != 0:
            raise HostError(f"icacls {self.workspace} /setintegritylevel {label}: exit code {code}")

    def _forget(self) -> None:
        """Removes jobs without processes."""
        for job, process in list(self._jobs.items()):
            with contextlib.suppress(CallFailed):
                if process.returncode is not None and self._windows.active(job) == 0:
                    del self._jobs[job]
                    self._windows.close(job)


class WindowsProcess:
    """Every signal ends the job. Its exit code is then that of the requested signal."""

    def __init__(self, windows: Windows, jobs: dict[int, WindowsProcess]) -> None:
        self._windows = windows
        self._jobs = jobs
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._job: int | None = None
        self._signal: int | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self.pid: int | None = None
        self.stdin: Input | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, signal: int) -> None:
        if self._job in self._jobs:
            assert self._job is not None
            self._signal = self._signal or signal
            with contextlib.suppress(CallFailed):
                self._windows.terminate(self._job)

    def close(self) -> None:
        self.send_signal(KILL)
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    async def start(
        self,
        pipes: Pipes,
        start: Callable[[int, Sequence[int]], tuple[int, int]],
        limits: Mapping[str, int],
        *,
        stdin: bool,
    ) -> None:
        theirs: list[int] = []
        try:
            ours, handle = pipes.to_it()
            theirs.append(handle)
            if stdin:
                transport, protocol = await self._loop.connect_write_pipe(
                    lambda: asyncio.streams.FlowControlMixin(loop=self._loop), ours
                )
                self._transports.append(transport)
                self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)
            else:
                ours.close()
            for name in ("stdout", "stderr"):
                ours, handle = pipes.from_it()
                theirs.append(handle)
                setattr(self, name, await self._reader(ours))
            self._job = self._windows.make_job(
                memory_mb=limits["memory_mb"], processes=limits["processes"]
            )
            self._jobs[self._job] = self
            process, self.pid = start(self._job, theirs)
        finally:
            for handle in theirs:
                self._windows.close(handle)
        threading.Thread(target=self._watch, args=(process,), daemon=True).start()

    async def _reader(self, pipe: Any) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=_MAX_BUFFERED_BYTES, loop=self._loop)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: _PipeOutput(reader, loop=self._loop), pipe
        )
        self._transports.append(transport)
        return reader

    def _watch(self, process: int) -> None:
        code = self._windows.wait(process)
        self._windows.close(process)
        with contextlib.suppress(RuntimeError):  # the loop has ended before the process
            self._loop.call_soon_threadsafe(self._end, code)

    def _end(self, code: int) -> None:
        self._ended.set_result(code if self._signal is None else -self._signal)


class _PipeOutput(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        super().eof_received()
        return False  # nothing is written to it, so it closes at end of file


class _Overlapped:
    """The pipes that asyncio makes for its own subprocesses: our end is overlapped, the other one
    is ordinary.
    """

    def to_it(self) -> tuple[Any, int]:
        return self._pipe(ours_reads=False)

    def from_it(self) -> tuple[Any, int]:
        return self._pipe(ours_reads=True)

    def _pipe(self, *, ours_reads: bool) -> tuple[Any, int]:
        windows_utils = importlib.import_module("asyncio.windows_utils")
        # asyncio reads from a pipe that it writes to, to detect its end. So that pipe is duplex.
        read, write = windows_utils.pipe(
            overlapped=(ours_reads, not ours_reads), duplex=not ours_reads
        )
        ours, theirs = (read, write) if ours_reads else (write, read)
        return windows_utils.PipeHandle(ours), theirs


def _failure(error: CallFailed, line: str, cwd: str) -> NotStarted:
    match error.number:
        case win32.ERROR_DIRECTORY:
            return NotStarted(f"{cwd} is not a directory", failure=Failure.NO_DIRECTORY)
        case win32.ERROR_FILE_NOT_FOUND | win32.ERROR_PATH_NOT_FOUND:
            return NotStarted(f"{line}: no such program", failure=Failure.NOT_FOUND)
        case win32.ERROR_BAD_EXE_FORMAT | win32.ERROR_ACCESS_DENIED | win32.ERROR_FILENAME_TOO_LONG:
            return NotStarted(f"{line}: {error}", failure=Failure.NOT_EXECUTABLE)
        case _:
            return NotStarted(str(error), failure=Failure.UNAVAILABLE)


def _system(program: str) -> str:
    """The program of Windows itself, never one in the current directory."""
    return ntpath.join(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", program)


def _environment() -> dict[str, str]:
    """Variables that Windows programs need."""
    return {name: os.environ[name] for name in _PASSED.split() if name in os.environ}


def _low_temp(environment: Mapping[str, str]) -> dict[str, str]:
    """The usual temporary directory is not writable at low integrity. Below LocalLow everything is
    labelled low.
    """
    if "LOCALAPPDATA" not in environment:
        return {}
    low = ntpath.join(environment["LOCALAPPDATA"] + "Low", "Temp")
    os.makedirs(low, exist_ok=True)
    return {"TEMP": low, "TMP": low}


def _call(argv: Sequence[str]) -> int:
    flags = 0x08000000 if sys.platform == "win32" else 0  # no window
    try:
        return subprocess.run(
            argv, capture_output=True, timeout=_LABEL_TIMEOUT_S, creationflags=flags
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return 1
