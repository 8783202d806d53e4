"""The denials of the sandbox while a command ran. The supervisor reports them as events of the
session.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import socket
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

_MAX_EVENT_BYTES = 8192  # bytes of an event
_MAX_DENIALS = 256  # denials of a command
_MAX_COMMANDS = 1024  # commands with unread denials
_FLUSH_TIMEOUT_S = 2.0


class DenialKind(Enum):
    EXEC = "exec"
    HOST = "host"
    PATH = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A denied command line, ``host:port`` or path. ``rule_id``: the rule that denied it, or the
    position of that rule.
    """

    kind: DenialKind
    target: str
    rule_id: str | None = None
    reason: str | None = None


@runtime_checkable
class DenialSource(Protocol):
    """A process whose executor reports denials."""

    async def denials(self) -> tuple[Denial, ...]: ...


class Denials:
    """The socket to the supervisor. The session ends when it is closed, so the holder of this
    object is the session owner. ``supervisor_sock`` is the supervisor's end. ``expected``: the plan
    has a mechanism that denies and reports.
    """

    def __init__(self, *, expected: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._expected = expected
        self._sock, self.supervisor_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock.fileno(), self._read_event)
        self._by_reaper: dict[int, dict[tuple[object, ...], Denial]] = {}
        self._without_process: deque[tuple[float, Denial]] = deque(maxlen=_MAX_DENIALS)
        self._questions = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._confines: asyncio.Future[bool | None] = self._loop.create_future()

    async def confines_writes(self) -> bool | None:
        """The core's measurement for this run, reported before the command starts. None: the core
        ended without a report, so it started nothing.
        """
        return await asyncio.shield(self._confines)

    async def take(self, reaper: int, since: float) -> tuple[Denial, ...]:
        """The denials of one command, given by the pid of its reaper. If the process behind a
        denial is unknown, the denial counts for every command that ran at that time.
        """
        if not self._expected:
            return ()
        await self._settled()
        owned = self._by_reaper.pop(reaper, {})
        return (*owned.values(), *(denial for at, denial in self._without_process if at >= since))

    def close(self) -> None:
        self.supervisor_sock.close()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
            self._answered(self._questions)
        if not self._confines.done():
            self._confines.set_result(None)

    async def _settled(self) -> None:
        """Waits until all earlier decisions have arrived."""
        self._questions += 1
        number = self._questions
        try:
            self._sock.send(str(number).encode())
        except OSError:
            return  # the supervisor has ended and reports nothing more
        self._waiting[number] = self._loop.create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                await self._waiting[number]
        self._waiting.pop(number, None)

    def _read_event(self) -> None:
        try:
            message = self._sock.recv(_MAX_EVENT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.close()
            return
        event = json.loads(message)
        if event["event"] == "told":
            self._answered(event["question"])
            return
        if event["event"] == "confinement":
            if not self._confines.done():
                self._confines.set_result(event["writes"] is True)
            return
        denial, reaper = _denial(event), event["warden"]
        if reaper is None:
            self._without_process.append((time.monotonic(), denial))
            return
        while len(self._by_reaper) >= _MAX_COMMANDS:
            del self._by_reaper[next(iter(self._by_reaper))]
        known = self._by_reaper.setdefault(reaper, {})
        if len(known) < _MAX_DENIALS:
            # A program is searched in several directories, and a host is connected to more than
            # once.
            known.setdefault((denial.kind, denial.target, denial.rule_id), denial)

    def _answered(self, question: int) -> None:
        for number, waiting in self._waiting.items():
            if number <= question and not waiting.done():
                waiting.set_result(None)


def _denial(event: dict[str, Any]) -> Denial:
    match event["event"]:
        case "network":
            host = event["host"] or event["address"] or "?"
            target = host if event["port"] is None else f"{host}:{event['port']}"
            return Denial(
                kind=DenialKind.HOST, target=target, rule_id=event["rule"], reason=event["reason"]
            )
        case "file.refused":
            return Denial(kind=DenialKind.PATH, target=event["path"], reason=event["reason"])
        case _:
            target = shlex.join(event["argv"]) or event["exe"]
            return Denial(
                kind=DenialKind.EXEC,
                target=target,
                rule_id=event["rule_id"],
                reason=event["reason"],
            )
