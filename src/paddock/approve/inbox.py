"""The open questions of whoever asks, and the line they come by: the core's socket, or a desk in
the same process.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Protocol

from paddock.approve import messages
from paddock.approve.model import Asked, Verdict


class Inbox(ABC):
    """One thread reads; any may answer. What is not open any more can not be answered: the first
    answer counts, and a withdrawn question needs none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Asked] = {}
        self._closed = False

    @abstractmethod
    def fileno(self) -> int:
        """Can be read when there is something to :meth:`read`."""

    @abstractmethod
    def _arrived(self) -> Iterator[messages.Message | None]:
        """What has come since; None: the end. Never waits."""

    @abstractmethod
    def _reply(self, number: int, verdict: Verdict, by: str) -> None: ...

    @property
    def closed(self) -> bool:
        return self._closed

    def open(self) -> list[Asked]:
        """In the order they came."""
        with self._lock:
            return list(self._open.values())

    def is_open(self, question: Asked) -> bool:
        with self._lock:
            return question.id in self._open

    def wait(self, *others: int, timeout_s: float | None = None) -> list[int]:
        """Until there is something to :meth:`read`, or one of the other descriptors can be read:
        those that can.
        """
        poll = select.poll()
        for one in (self.fileno(), *others):
            poll.register(one, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        return [one for one in others if one in ready]

    def read(self, came: Callable[[Asked], None] = lambda question: None) -> None:
        """Everything that has arrived; never waits."""
        if self._closed:
            return
        for message in self._arrived():
            with self._lock:
                if message is None:
                    self._closed = True
                    self._open.clear()
                    return
                if isinstance(message, messages.Withdrawn):
                    self._open.pop(message.id, None)
                    continue
                self._open[message.id] = message
            came(message)

    def answer(self, question: Asked, verdict: Verdict, by: str) -> list[int]:
        """An answer for the session is one to all that ask the same. What was answered. What is no
        verdict is the fault of who says it, and answers nothing.
        """
        if not isinstance(verdict, Verdict) or not isinstance(by, str):
            raise TypeError(f"an answer must be a Verdict and a name, not {verdict!r} and {by!r}")
        with self._lock:
            if question.id not in self._open:
                return []
            alike = [one.id for one in self._open.values() if one.scope == question.scope]
            answered = alike if verdict is Verdict.SESSION else [question.id]
            for number in answered:
                del self._open[number]
                self._reply(number, verdict, by)
            return answered


class Approver(Protocol):
    """Answers the questions of an inbox, until that is closed. A question it does not answer is
    denied in the end.
    """

    def serve(self, inbox: Inbox) -> None: ...


class SocketInbox(Inbox):
    """The core asks, withdraws, and closes the socket when it ends."""

    def __init__(self, line: socket.socket) -> None:
        super().__init__()
        self._line = line

    def fileno(self) -> int:
        return self._line.fileno()

    def _arrived(self) -> Iterator[messages.Message | None]:
        while True:
            try:
                datagram = self._line.recv(messages.MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                datagram = b""
            yield messages.read(datagram) if datagram else None

    def _reply(self, number: int, verdict: Verdict, by: str) -> None:
        with contextlib.suppress(ConnectionError):  # it ended meanwhile
            self._line.send(messages.answer(number, verdict, by))
