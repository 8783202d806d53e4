"""Commands that the exec server starts for us (``paddock-core attend``), in a sandbox or on the
host.

The exec server does what Python can not do safely from a process with threads. Each command gets
its own session, terminal and directory. A failure has one number. A signal or the end reaches all
descendants of a command. A request is a message with descriptors; then each command has its own
socket.
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

_MAX_MESSAGE_BYTES = 4096  # bytes of a message from a reaper
_ANCILLARY = socket.CMSG_SPACE(struct.calcsize("iII")) + socket.CMSG_SPACE(struct.calcsize("i"))
_MAX_BUFFERED_BYTES = 256 * 1024  # bytes that a stream buffers for its reader
_END_TIMEOUT_S = 5.0
_START, _OPEN, _WRITE = b"s", b"o", b"w"  # the kinds of requests
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of the command and its descendants that were waited for."""

    cpu_s: float
    max_rss_kib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWrite:
    """A file that a process in the sandbox writes. ``directory`` exists and has a path without
    links; ``missing`` are directories to make below it. ``before``: the regular file that is
    replaced, and ``old`` its content, if it was read. Without ``before`` the name must be new.
    """

    directory: str
    missing: tuple[str, ...]
    name: str
    data: bytes
    before: os.stat_result | None
    old: bytes | None


class WriteError(OSError):
    """Nothing was written. ``step``: ``permission`` (the file is not writable), ``owner`` (a new
    file can not have its owner), ``changed`` (it is not the file of the request), or another one.
    """

    def __init__(self, number: int, path: str, step: str) -> None:
        super().__init__(number, os.strerror(number), path)
        self.step = step


class ExecServer:
    """``start`` returns a running exec server whose stdin is the socket. ``words`` returns its last
    output, for people. ``own_terminals``: it can create terminals in its own /dev/pts. ``denials``:
    the denials of its sandbox.
    """

    def __init__(
        self,
        start: Callable[[socket.socket], subprocess.Popen[bytes]],
        words: Callable[[], str],
        *,
        own_terminals: bool = True,
        denials: Denials | None = None,
    ) -> None:
        self._last_output = words
        self._own_terminals = own_terminals
        self._denials = denials
        self._running: set[ExecServerProcess] = set()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._sock = ours
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
    ) -> ExecServerProcess:
        request = canonical(
            {
                "argv": list(words),
                "environment": [f"{name}={value}" for name, value in environment.items()],
                "cwd": cwd,
                "terminal": None if tty is None else [tty.rows, tty.columns],
            }
        )
        with contextlib.ExitStack() as theirs:
            sock, their_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.callback(their_sock.close)
            process = ExecServerProcess(sock, words[0], self._running, self._denials)
            try:
                file = theirs.enter_context(
                    open(os.memfd_create("request", os.MFD_CLOEXEC), "wb", buffering=0)
                )
                file.write(request.encode("ascii"))
                descriptors = [file.fileno(), their_sock.fileno()]
                if tty is None:
                    descriptors += await process.connect(theirs, stdin=stdin)
                elif not self._own_terminals:
                    descriptors += process.open_terminal(theirs, tty)
                await self._send(descriptors)
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
        """Opens the object at a path without links inside, for reading or only as O_PATH. OSError:
        it does not exist, or commands can not open it. NotStarted: the sandbox has ended.
        """
        reply, descriptor = await self._ask(_OPEN, {"path": path, "read": read})
        if descriptor is None:
            number = int(reply["errno"])
            raise OSError(number, os.strerror(number), path)
        return descriptor

    async def write(self, request: FileWrite) -> None:
        """Writes a file as a command would, at once or not at all. WriteError: nothing was
        written. NotStarted: the sandbox has ended.
        """
        before = request.before
        state = None
        if before is not None:
            seconds, nanoseconds = divmod(before.st_mtime_ns, 1_000_000_000)
            state = {
                "device": before.st_dev,
                "inode": before.st_ino,
                "size": before.st_size,
                "mtime_s": seconds,
                "mtime_ns": nanoseconds,
            }
        message = {
            "directory": request.directory,
            "missing": list(request.missing),
            "name": request.name,
            "before": state,
        }
        contents = [request.data] if request.old is None else [request.data, request.old]
        reply, _ = await self._ask(_WRITE, message, contents)
        if "errno" in reply:
            path = os.path.join(request.directory, *request.missing, request.name)
            raise WriteError(int(reply["errno"]), path, str(reply["failed"]))

    async def _ask(
        self, kind: bytes, message: dict[str, Any], contents: Sequence[bytes] = ()
    ) -> tuple[dict[str, Any], int | None]:
        """The reply to a request that starts no command, and its descriptor."""
        with contextlib.ExitStack() as held:
            sock, their_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.enter_context(sock)
            held.enter_context(their_sock)
            files = [_sealed(canonical(message).encode("ascii"), held)]
            files += [_sealed(content, held) for content in contents]
            sock.setblocking(False)
            await self._send([files[0], their_sock.fileno(), *files[1:]], kind)
            their_sock.close()
            await _readable(sock)
            try:
                reply, descriptors, _, _ = socket.recv_fds(sock, _MAX_MESSAGE_BYTES, 1)
            except OSError:
                reply, descriptors = b"", []
        if not reply:
            raise await self._end()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return json.loads(reply), descriptors[0] if descriptors else None

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
                self._sock.sendmsg([kind], rights, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await _writable(self._sock)
            except OSError:
                raise await self._end() from None

    async def _end(self) -> NotStarted:
        """The exec server has ended, or is about to."""
        await asyncio.to_thread(self._ended, _END_TIMEOUT_S)
        report = self._last_output().strip()
        return NotStarted(
            f"the sandbox that runs commands has ended{': ' + report if report else ''}",
            failure=Failure.UNAVAILABLE,
        )

    async def close(self) -> bool:
        """Ends the exec server and everything that it started. False: it did not end."""
        for process in list(self._running):
            process.close()
        self._sock.close()
        if self._denials is not None:
            self._denials.close()
        asks: list[Callable[[], None]] = [lambda: None, self._process.terminate, self._process.kill]
        for ask in asks:
            ask()
            if await asyncio.to_thread(self._ended, _END_TIMEOUT_S):
                return True
        return False

    def _ended(self, timeout_s: float) -> bool:
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


class ExecServerProcess:
    """Has the interface of asyncio.subprocess.Process."""

    def __init__(
        self,
        sock: socket.socket,
        name: str,
        siblings: set[ExecServerProcess],
        denials: Denials | None,
    ) -> None:
        self._sock = sock
        self._name = name
        self._siblings = siblings
        self._denials = denials
        self._since = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._start_report: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._terminal: int | None = None
        self._connected = False
        self._transports: list[asyncio.BaseTransport] = []
        self._reaper: int | None = None  # its pid, as the kernel reports it
        self._was_started = False
        self.pid: int | None = None
        self.usage: Usage | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop.add_reader(sock.fileno(), self._read_message)
        siblings.add(self)

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() and not self._ended.cancelled() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def gone(self) -> None:
        """Waits until no process of the command is left."""
        await self._gone.wait()

    async def denials(self) -> tuple[Denial, ...]:
        """The denials since the last call."""
        if self._denials is None or self._reaper is None:
            return ()
        return await self._denials.take(self._reaper, self._since)

    def send_signal(self, signal: int) -> None:
        if self._reaper is not None and not self._gone.is_set():
            process_tree.send(self._reaper, signal)

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
        """Ends every process that the command started."""
        self._connected = True
        self.kill()
        self._leave()
        self._forget_terminal()
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    async def connect(self, theirs: contextlib.ExitStack, *, stdin: bool) -> list[int]:
        """Creates the pipes and returns the command's ends."""
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
        report = await asyncio.shield(
            self._start_report
        )  # cancelling one waiter must not cancel the others
        if "started" in report:
            self.pid = report["started"]
            if self._terminal is not None:
                self.stdin = await self._writer(os.dup(self._terminal))
                self.stdout = await self._reader(os.dup(self._terminal))
                self._connected = True
                self._forget_terminal()
            return
        if "failed" not in report:
            raise await lost()
        raise _failure(report["failed"], report["errno"], self._name)

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

    def _read_message(self) -> None:
        try:
            message, ancillary, _, _ = self._sock.recvmsg(_MAX_MESSAGE_BYTES, _ANCILLARY)
        except BlockingIOError:
            return
        except OSError:
            message, ancillary = b"", []
        for _, kind, packed in ancillary:
            if kind == socket.SCM_RIGHTS:
                (self._terminal,) = struct.unpack("i", packed)
                os.set_inheritable(self._terminal, False)
            elif kind == socket.SCM_CREDENTIALS and message:
                self._reaper, _, _ = struct.unpack("iII", packed)
        if not message:
            self._leave()
            return
        report = json.loads(message)
        if "warden" in report:
            self._was_started = True
        elif not self._start_report.done():
            self._start_report.set_result(report)
        elif not self._ended.done():
            self.usage = Usage(cpu_s=report["cpu_us"] / 1e6, max_rss_kib=report["max_rss_kib"])
            self._ended.set_result(report["exited"] if "exited" in report else -report["killed"])

    def _leave(self) -> None:
        """End of file: no process of the command is left, or the last one is about to end."""
        if self._gone.is_set():
            return
        self._gone.set()
        self._siblings.discard(self)
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._forget_terminal()
        if not self._start_report.done():
            # The reaper ended first. Only the command itself can do that.
            self._start_report.set_result({"started": None} if self._was_started else {})
        if not self._ended.done():
            self._ended.set_result(-signal.SIGKILL)

    def _forget_terminal(self) -> None:
        """Closes the terminal after the command has ended, but not before it was connected, even
        for a very short command.
        """
        if self._terminal is not None and self._gone.is_set() and self._connected:
            os.close(self._terminal)
            self._terminal = None


class _TerminalOutput(asyncio.StreamReaderProtocol):
    def connection_lost(self, exc: Exception | None) -> None:
        # Reading a terminal whose last program has ended gives an error.
        ended = isinstance(exc, OSError) and exc.errno == errno.EIO
        super().connection_lost(None if ended else exc)


def _sealed(content: bytes, held: contextlib.ExitStack) -> int:
    """A file that no process in the sandbox can change."""
    fd = os.memfd_create("request", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    held.callback(os.close, fd)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return fd


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(sock.fileno())


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock.fileno())


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
