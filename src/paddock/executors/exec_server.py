"""Commands that a process of ours starts for us (``paddock-core attend``): behind a fence, or on
the host as it is.

It does what Python can not do safely from a process with threads: a session and a terminal of its
own for each command, its directory, one number for what failed, and a signal or the end for
everything that a command started. A request is a message with descriptors; each command then has a
line of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paddock.core.canonical import canonical
from paddock.executors import process_tree
from paddock.executors.denials import Denial, Denials
from paddock.executors.interface import Failure, NotStarted, Size

_MAX_MESSAGE_BYTES = 4096  # of what a warden says
_ANCILLARY = socket.CMSG_SPACE(struct.calcsize("iII")) + socket.CMSG_SPACE(struct.calcsize("i"))
_MAX_BUFFERED_BYTES = 256 * 1024  # of what a stream keeps for its reader
_TO_END_S = 5.0
_START, _OPEN = b"s", b"o"  # the kinds of requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of the command and of its descendants that were waited for."""

    cpu_s: float
    max_rss_kib: int


class Attendant:
    """``start`` gives a running one, whose stdin is the socket; ``words`` is what it said when it
    ended, for people. ``own_terminals``: it can make some, of its own /dev/pts. ``denials``: of the
    fence that it is behind.
    """

    def __init__(
        self,
        start: Callable[[socket.socket], subprocess.Popen[bytes]],
        words: Callable[[], str],
        *,
        own_terminals: bool = True,
        denials: Denials | None = None,
    ) -> None:
        self._words = words
        self._own_terminals = own_terminals
        self._denials = denials
        self._running: set[AttendedProcess] = set()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._line = ours
            ours.setblocking(False)
            try:
                self._process = start(theirs)
            except OSError as error:
                ours.close()
                if denials is not None:
                    denials.close()
                raise NotStarted(
                    f"cannot start paddock-core: {error.strerror}",
                    failure=Failure.UNAVAILABLE,
                ) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def spawn(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        cwd: str | None,
        stdin: bool,
        tty: Size | None,
    ) -> AttendedProcess:
        request = canonical(
            {
                "argv": list(words),
                "environment": [f"{name}={value}" for name, value in environment.items()],
                "cwd": cwd,
                "terminal": None if tty is None else [tty.rows, tty.columns],
            }
        )
        with contextlib.ExitStack() as theirs:
            line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.callback(their_line.close)
            process = AttendedProcess(line, words[0], self._running, self._denials)
            try:
                file = theirs.enter_context(
                    open(os.memfd_create("request", os.MFD_CLOEXEC), "wb", buffering=0)
                )
                file.write(request.encode("ascii"))
                given = [file.fileno(), their_line.fileno()]
                if tty is None:
                    given += await process.connect(theirs, stdin=stdin)
                elif not self._own_terminals:
                    given += process.open_terminal(theirs, tty)
                await self._send(given)
                theirs.close()
                await process.started(self._end)
            except NotStarted as error:
                error.denials = await process.denials()
                process.close()
                raise
            except BaseException:
                process.close()
                raise
        return process

    async def open(self, path: str, *, read: bool) -> int:
        """The object that a path without links leads to inside, opened for reading or only looked
        up. OSError: there is none, or commands can not open it. NotStarted: the sandbox has ended.
        """
        line, their_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with (
            line,
            their_line,
            open(os.memfd_create("open", os.MFD_CLOEXEC), "wb", buffering=0) as file,
        ):
            file.write(canonical({"path": path, "read": read}).encode("ascii"))
            line.setblocking(False)
            await self._send([file.fileno(), their_line.fileno()], _OPEN)
            their_line.close()
            await _readable(line)
            try:
                message, descriptors, _, _ = socket.recv_fds(line, _MAX_MESSAGE_BYTES, 1)
            except OSError:
                message, descriptors = b"", []
        if not message:
            raise await self._end()
        if not descriptors:
            number = int(json.loads(message)["errno"])
            raise OSError(number, os.strerror(number), path)
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]

    async def _send(self, descriptors: list[int], kind: bytes = _START) -> None:
        rights = [
            (
                socket.SOL_SOCKET,
                socket.SCM_RIGHTS,
                struct.pack(f"{len(descriptors)}i", *descriptors),
            )
        ]
        while True:
            try:
                self._line.sendmsg([kind], rights, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await _writable(self._line)
            except OSError:
                raise await self._end() from None

    async def _end(self) -> NotStarted:
        """It is gone, or about to be."""
        await asyncio.to_thread(self._ended, _TO_END_S)
        said = self._words().strip()
        return NotStarted(
            f"the sandbox that runs commands has ended{': ' + said if said else ''}",
            failure=Failure.UNAVAILABLE,
        )

    async def close(self) -> bool:
        """And everything that it started. False: it did not end."""
        for process in list(self._running):
            process.close()
        self._line.close()
        if self._denials is not None:
            self._denials.close()
        asks: list[Callable[[], None]] = [lambda: None, self._process.terminate, self._process.kill]
        for ask in asks:
            ask()
            if await asyncio.to_thread(self._ended, _TO_END_S):
                return True
        return False

    def _ended(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class AttendedProcess:
    """Has the shape of asyncio.subprocess.Process."""

    def __init__(
        self,
        line: socket.socket,
        name: str,
        siblings: set[AttendedProcess],
        denials: Denials | None,
    ) -> None:
        self._line = line
        self._name = name
        self._siblings = siblings
        self._denials = denials
        self._since = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._terminal: int | None = None
        self._connected = False
        self._transports: list[asyncio.BaseTransport] = []
        self._warden: int | None = None  # its number, by the kernel's word
        self._attended = False
        self.pid: int | None = None
        self.usage: Usage | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        line.setblocking(False)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop.add_reader(line.fileno(), self._hear)
        siblings.add(self)

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def gone(self) -> None:
        """Until nothing is left of what it started."""
        await self._gone.wait()

    async def denials(self) -> tuple[Denial, ...]:
        """What was refused to it since this was asked last."""
        if self._denials is None or self._warden is None:
            return ()
        return await self._denials.take(self._warden, self._since)

    def send_signal(self, signal: int) -> None:
        if self._warden is not None and not self._gone.is_set():
            process_tree.send(self._warden, signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def resize(self, size: Size) -> None:
        if self._terminal is not None:
            fcntl.ioctl(
                self._terminal,
                termios.TIOCSWINSZ,
                struct.pack("HHHH", size.rows, size.columns, 0, 0),
            )

    def close(self) -> None:
        """Whatever it started, and runs, is ended."""
        self._connected = True
        self.kill()
        self._leave()
        self._forget_terminal()
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    async def connect(self, theirs: contextlib.ExitStack, *, stdin: bool) -> list[int]:
        """Pipes to it: its ends."""
        if stdin:
            read, write = os.pipe()
            theirs.callback(os.close, read)
            self.stdin = await self._writer(write)
        else:
            read = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, read)
        ends = [read]
        for name in ("stdout", "stderr"):
            read, write = os.pipe()
            theirs.callback(os.close, write)
            ends.append(write)
            setattr(self, name, await self._reader(read))
        return ends

    def open_terminal(self, theirs: contextlib.ExitStack, size: Size) -> list[int]:
        self._terminal, end = os.openpty()
        theirs.callback(os.close, end)
        self.resize(size)
        return [end, end, end]

    async def started(self, lost: Callable[[], Awaitable[NotStarted]]) -> None:
        said = await asyncio.shield(self._said)  # who is cancelled here cancels nobody else
        if "started" in said:
            self.pid = said["started"]
            if self._terminal is not None:
                self.stdin = await self._writer(os.dup(self._terminal))
                self.stdout = await self._reader(os.dup(self._terminal))
                self._connected = True
                self._forget_terminal()
            return
        if "failed" not in said:
            raise await lost()
        raise _failure(said["failed"], said["errno"], self._name)

    async def _reader(self, fd: int) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=_MAX_BUFFERED_BYTES, loop=self._loop)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: _TerminalOutput(reader, loop=self._loop), os.fdopen(fd, "rb")
        )
        self._transports.append(transport)
        return reader

    async def _writer(self, fd: int) -> asyncio.StreamWriter:
        transport, protocol = await self._loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=self._loop),
            os.fdopen(fd, "wb", buffering=0),
        )
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, self._loop)

    def _hear(self) -> None:
        try:
            message, ancillary, _, _ = self._line.recvmsg(_MAX_MESSAGE_BYTES, _ANCILLARY)
        except BlockingIOError:
            return
        except OSError:
            message, ancillary = b"", []
        for _, kind, packed in ancillary:
            if kind == socket.SCM_RIGHTS:
                (self._terminal,) = struct.unpack("i", packed)
                os.set_inheritable(self._terminal, False)
            elif kind == socket.SCM_CREDENTIALS and message:
                self._warden, _, _ = struct.unpack("iII", packed)
        if not message:
            self._leave()
            return
        said = json.loads(message)
        if "warden" in said:
            self._attended = True
        elif not self._said.done():
            self._said.set_result(said)
        elif not self._ended.done():
            self.usage = Usage(cpu_s=said["cpu_us"] / 1e6, max_rss_kib=said["max_rss_kib"])
            self._ended.set_result(said["exited"] if "exited" in said else -said["killed"])

    def _leave(self) -> None:
        """The end of the line: nothing of it runs any more, or will soon."""
        if self._gone.is_set():
            return
        self._gone.set()
        self._siblings.discard(self)
        self._loop.remove_reader(self._line.fileno())
        self._line.close()
        self._forget_terminal()
        if not self._said.done():
            # Its warden was ended first, which nobody but the command itself does.
            self._said.set_result({"started": None} if self._attended else {})
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)

    def _forget_terminal(self) -> None:
        """When it has ended; not before it was connected to, however short its life was."""
        if self._terminal is not None and self._gone.is_set() and self._connected:
            os.close(self._terminal)
            self._terminal = None


class _TerminalOutput(asyncio.StreamReaderProtocol):
    def connection_lost(self, exc: Exception | None) -> None:
        # A terminal whose last program is gone reads as an error.
        ended = isinstance(exc, OSError) and exc.errno == errno.EIO
        super().connection_lost(None if ended else exc)


async def _writable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(line.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(line.fileno())


async def _readable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(line.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(line.fileno())


def _failure(step: str, number: int, name: str) -> NotStarted:
    text = os.strerror(number)
    match step, number:
        case "cwd", _:
            return NotStarted(
                f"cannot enter the working directory: {text}", failure=Failure.NO_DIRECTORY
            )
        case "exec", errno.ENOENT | errno.ENOTDIR:
            return NotStarted(f"{name}: {text}", failure=Failure.NOT_FOUND)
        case "exec", errno.EACCES | errno.EPERM:
            return NotStarted(
                f"{name}: {text}",
                failure=Failure.DENIED,
                hint="type `paddock why --exec COMMAND` to see which rule denies it",
            )
        case "exec", _:
            return NotStarted(f"{name}: {text}", failure=Failure.NOT_EXECUTABLE)
        case _:
            return NotStarted(f"cannot start {name} ({step}): {text}", failure=Failure.UNAVAILABLE)
