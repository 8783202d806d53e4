"""Commands on another system, started by a local client: docker, podman, ssh or wsl. The client is
a process of the host; its command is not.

Killing a client leaves its command running. So every command has a mark in its environment, and a
line of shell on the other system signals every process with that mark. A process that removes the
mark from its environment can not be signalled until the other system ends it.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from paddock.executors.interface import KILL, Input, Process, Size

MARK = "PADDOCK_COMMAND"
# Signal numbers of Linux, because the command runs there. The client's own system may lack them.
_STOP, _SIGNALS = 19, 65
_STOP_ROUNDS = 3
_NO_DIRECTORY = 125
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_CHUNK_BYTES = 64 * 1024


def new_mark(session: str = "") -> str:
    """A mark for a session, or for a command of a session."""
    return f"{session}{secrets.token_hex(8)}."


def signalling(mark: str, number: int) -> str:
    """The line of shell that signals a command or a whole session. As in process_tree.py, a process
    is stopped before it is killed, so that it starts no others.
    """
    numbers = [_STOP] * _STOP_ROUNDS + [number] if number == KILL else [number]
    wanted = f"{MARK}={mark}"
    at_once = f"grep -lsF {wanted} /proc/[0-9]*/environ"
    # busybox grep ignores the part of a line after its first NUL.
    marked = f"tr '\\0' '\\n' <$p 2>/dev/null | grep -qF {wanted}"
    one_by_one = f"for p in /proc/[0-9]*/environ; do if {marked}; then echo $p; fi; done"
    found = f"if printf 'a\\000b' | grep -qF b; then {at_once}; else {one_by_one}; fi"
    each = f"for p in $({found}); do p=${{p%/environ}}; kill -$n ${{p#/proc/}} 2>/dev/null; done"
    return f"for n in {' '.join(map(str, numbers))}; do {each}; done; true"


def scripted(words: Sequence[str], cwd: str, environment: Mapping[str, str]) -> str:
    """A line of shell that runs the words on the other system."""
    named = {name: value for name, value in environment.items() if _IDENTIFIER.fullmatch(name)}
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in named.items())
    # A shell can not set a variable of such a name; the program `env` can.
    others = [f"{name}={value}" for name, value in environment.items() if name not in named]
    enter = f"cd -- {shlex.quote(cwd)} || exit {_NO_DIRECTORY}; "
    return f"{enter}{exports}{shlex.join(['env', *others, *words] if others else words)}"


def new_exit_marker() -> str:
    """Random and independent of the mark, because a command can read its mark."""
    return f"\0{secrets.token_hex(16)}\0"


def with_exit_report(script: str, exit_marker: str) -> str:
    """Adds to the script a report of its exit code, because some clients do not report it while a
    process holds the pipes. The shell that runs the script has the marker text; its child, the
    command, does not get it.
    """
    shown = exit_marker.replace("\0", "\\000")
    return f"{script}; code=$?; printf '{shown}%d\\n' $code >&2; exit $code"


class RemoteClient(Process, Protocol):
    """The local process."""

    def kill(self) -> None: ...
    def close(self) -> None: ...
    def resize(self, size: Size) -> None: ...


class ClientProcess:
    """``send_remote_signal`` sends a signal to the remote command. ``exit_marker``: the marker that
    is written to stderr with the exit code after the command has ended, for clients that wait until
    all pipes are closed. ``notes``: missing guarantees of the executor.
    """

    def __init__(
        self,
        client: RemoteClient,
        send_remote_signal: Callable[[int], Awaitable[object]],
        exit_marker: bytes | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.notes = notes
        self._client = client
        self._send_remote_signal = send_remote_signal
        self._signalling: asyncio.Future[None] | None = None
        self._code: int | None = None
        self._exit_reported = asyncio.Event()
        self.stderr = client.stderr
        self._listening: asyncio.Task[None] | None = None
        if exit_marker is not None and client.stderr is not None:
            self.stderr = asyncio.StreamReader()
            self._listening = asyncio.create_task(
                self._listen(client.stderr, self.stderr, exit_marker)
            )

    @property
    def pid(self) -> int | None:
        return None  # the command has no local pid

    @property
    def stdin(self) -> Input | None:
        return self._client.stdin

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        return self._client.stdout

    @property
    def returncode(self) -> int | None:
        code = self._client.returncode if self._code is None else self._code
        # As a shell reports it: 128 plus the number of the signal.
        return code if code is None or not 128 < code <= 128 + _SIGNALS else 128 - code

    @property
    def gone(self) -> bool:
        """Whether the client has ended too, which frees its session on the connection."""
        return self._client.returncode is not None

    async def wait(self) -> int:
        ended = [
            asyncio.ensure_future(self._client.wait()),
            asyncio.ensure_future(self._exit_reported.wait()),
        ]
        try:
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            if self._listening is not None and not self._exit_reported.is_set():
                await asyncio.wait([self._listening])  # the exit report may still be in transit
        finally:
            for one in ended:
                one.cancel()
        code = self.returncode
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        before = self._signalling
        self._signalling = asyncio.ensure_future(self._signal(number, before))

    def resize(self, size: Size) -> None:
        self._client.resize(size)  # the client passes it on

    def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        self._client.close()

    async def settled(self) -> None:
        """Waits until every signal has been sent."""
        if self._signalling is not None:
            await asyncio.wait([self._signalling])

    async def _signal(self, number: int, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._send_remote_signal(number)
        if number == KILL:
            self._client.kill()

    async def _listen(
        self, source: asyncio.StreamReader, sink: asyncio.StreamReader, exit_marker: bytes
    ) -> None:
        """Passes everything on except the exit report. A chunk may contain any part of it."""
        ending = re.compile(re.escape(exit_marker) + rb"([0-9]{1,3})\n")
        buffered = b""
        while chunk := await source.read(_CHUNK_BYTES):
            buffered += chunk
            passed = len(buffered)
            if not self._exit_reported.is_set():
                ended = ending.search(buffered)
                if ended is not None:
                    self._code = int(ended[1])
                    self._exit_reported.set()
                    buffered = buffered[: ended.start()] + buffered[ended.end() :]
                    passed = len(buffered)
                else:
                    passed -= _beginning(exit_marker, at_the_end_of=buffered)
            sink.feed_data(buffered[:passed])
            buffered = buffered[passed:]
        sink.feed_data(buffered)
        sink.feed_eof()


def _beginning(word: bytes, *, at_the_end_of: bytes) -> int:
    """The length of the suffix that may begin the exit report."""
    at = at_the_end_of.rfind(word)
    if at >= 0 and re.compile(rb"[0-9]{0,3}").fullmatch(at_the_end_of, at + len(word)):
        return len(at_the_end_of) - at
    return next(
        (size for size in range(len(word) - 1, 0, -1) if at_the_end_of.endswith(word[:size])), 0
    )
