"""Events of this process → the journal, by way of the core, which is its only writer
(core/src/commands/record.rs).

Each event is answered when it is written. What can not be written is a JournalError, and from then
on so is every other event: whoever needs the journal stops acting. Only the ends of calls that are
under way are still told, as long as the core is there: what it can not write it counts.
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
from paddock.plan.model import Plan

_MAX_MESSAGE_BYTES = 64 * 1024  # bytes of a message
_MAX_TEXT_CHARS = (
    4000,
    400,
    20,
)  # characters of each text, until it fits; the core cuts to what fits a line
_MAX_TEXTS = 100  # of a list
_HINT = "type `paddock audit verify` to see what is wrong"


class Recorder:
    """``plan``: whose journal it is, opened as a run would open it. ``session``: what its events
    are told apart by. Any thread may record. Close it in the end; it also ends with this process.
    """

    def __init__(self, plan: Plan) -> None:
        if plan.journal is None:
            raise JournalError("the policy has no journal", hint="write enabled = true in [audit]")
        self._lock = threading.Lock()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._core = core.Recording(plan, theirs.fileno(), on_stderr=plan.journal.stderr)
            except BaseException:
                self._line.close()
                raise
        self._broken: str | None = None
        self._over = False  # nobody is at the other end
        try:
            self.session = str(self._heard()["session"])
        except BaseException:
            self.close()
            raise

    def record(self, event: Mapping[str, Any]) -> None:
        """Returns when it is in the journal."""
        message = _fitting(event)
        with self._lock:
            if self._broken is not None and (self._over or event.get("event") != "tool.end"):
                raise JournalError(self._broken, hint=_HINT)
            with contextlib.suppress(OSError):  # what it said last tells more
                self._line.sendall(message)
            error = self._heard()["error"]
            if error is not None:
                self._broken = str(error)
                raise JournalError(self._broken, hint=_HINT)

    def close(self) -> None:
        with self._lock:
            self._broken, self._over = self._broken or "the journal is closed", True
            self._line.close()
            self._core.end()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _heard(self) -> Any:
        try:
            answer = self._line.recv(_MAX_MESSAGE_BYTES)
        except ConnectionError:
            answer = b""
        if answer:
            return json.loads(answer)
        refusal: PaddockError = self._core.refusal()
        self._broken, self._over = refusal.message, True
        raise JournalError(refusal.message, hint=refusal.hint) from None


def _fitting(event: Mapping[str, Any]) -> bytes:
    """The core takes nothing that is longer, and what it does not take is the end of it."""
    for longest in _MAX_TEXT_CHARS:
        message = canonical({key: _plain(value, longest) for key, value in event.items()}).encode(
            "ascii"
        )
        if len(message) <= _MAX_MESSAGE_BYTES:
            return message
    raise JournalError("the event is too long for the journal")


def _plain(value: Any, longest: int) -> Any:
    """Text of any length and letters as the core takes it: no NUL, and no surrogate that stands for
    no byte.
    """
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
