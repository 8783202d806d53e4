"""Writes events of this process to the journal, through the core, which is its only writer
(core/src/commands/record_events.rs).

Each event is acknowledged when it is written. An event that can not be written raises a
JournalError, and so does every later event: code that needs the journal stops. Only the ends of
running calls are still sent while the core lives; it counts those that it can not write.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import JournalError, PaddockError
from paddock.plan.plan import Plan

_MAX_MESSAGE_BYTES = 64 * 1024
_MAX_TEXT_CHARS = (
    4000,
    400,
    20,
)  # characters of each text, until the event fits; the core cuts to the line limit
_MAX_TEXTS = 100  # of a list
_HINT = "type `paddock audit verify` to see what is wrong"


class Recorder:
    """``plan``: the plan of the journal, which is opened as for a run. ``session``: the id in its
    events. Any thread may record. Close it at the end; it also ends with this process.
    """

    def __init__(self, plan: Plan) -> None:
        if plan.journal is None:
            raise JournalError("the policy has no journal", hint="write enabled = true in [audit]")
        self._lock = threading.Lock()
        self._sock, their_sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with their_sock:
            try:
                self._core = core.Recording(
                    plan, their_sock.fileno(), on_stderr=plan.journal.stderr
                )
            except BaseException:
                self._sock.close()
                raise
        self._broken: str | None = None
        self._over = False  # the other end is closed
        try:
            self.session = str(self._read_answer()["session"])
        except BaseException:
            self.close()
            raise

    def record(self, event: Mapping[str, Any]) -> None:
        """Returns when the event is in the journal."""
        message = _fitting(event)
        with self._lock:
            if self._broken is not None and (self._over or event.get("event") != "tool.end"):
                raise JournalError(self._broken, hint=_HINT)
            with contextlib.suppress(OSError):  # its last message says more
                self._sock.sendall(message)
            error = self._read_answer()["error"]
            if error is not None:
                self._broken = str(error)
                raise JournalError(self._broken, hint=_HINT)

    def close(self) -> None:
        with self._lock:
            self._broken, self._over = self._broken or "the journal is closed", True
            self._sock.close()
            self._core.end()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_answer(self) -> Any:
        try:
            answer = self._sock.recv(_MAX_MESSAGE_BYTES)
        except ConnectionError:
            answer = b""
        if answer:
            return json.loads(answer)
        refusal: PaddockError = self._core.refusal()
        self._broken, self._over = refusal.message, True
        raise JournalError(refusal.message, hint=refusal.hint) from None


def _fitting(event: Mapping[str, Any]) -> bytes:
    """The core accepts no longer message, and a longer one ends it."""
    for longest in _MAX_TEXT_CHARS:
        message = canonical({key: _plain(value, longest) for key, value in event.items()}).encode(
            "ascii"
        )
        if len(message) <= _MAX_MESSAGE_BYTES:
            return message
    raise JournalError("the event is too long for the journal")


def _plain(value: Any, longest: int) -> Any:
    """Converts a text for the core: no NUL, and no surrogate that stands for no byte."""
    match value:
        case str():
            over = len(value) - longest
            text = (value if over <= 0 else f"{value[:longest]}…+{over} more").replace("\0", "\\0")
            try:
                text.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                return text.encode("utf-8", "backslashreplace").decode("utf-8")
            return text
        case list() | tuple():
            more = [f"…+{len(value) - _MAX_TEXTS} more"] if len(value) > _MAX_TEXTS else []
            return [*(_plain(each, longest) for each in value[:_MAX_TEXTS]), *more]
        case _:
            return value
