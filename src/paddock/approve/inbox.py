"""The open questions of one asker, and the channel they arrive on: a socket of the core, or an
``Approvals`` in the same process.
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
from paddock.approve.questions import AnyQuestion, Verdict


class Inbox(ABC):
    """One thread reads. Any thread may answer. Only open questions can be answered: the first
    answer counts, and a withdrawn question needs none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, AnyQuestion] = {}
        self._closed = False

    @abstractmethod
    def fileno(self) -> int:
        """This descriptor is readable when there is something to :meth:`read`."""

    @abstractmethod
    def _arrived(self) -> Iterator[messages.Message | None]:
        """The messages that have arrived; None: the channel is closed. Never waits."""

    @abstractmethod
    def _reply(self, number: int, verdict: Verdict, by: str) -> None: ...

    @property
    def closed(self) -> bool:
        return self._closed

    def open(self) -> list[AnyQuestion]:
        """In the order of arrival."""
        with self._lock:
            return list(self._open.values())

    def is_open(self, question: AnyQuestion) -> bool:
        with self._lock:
            return question.id in self._open

    def wait(self, *others: int, timeout_s: float | None = None) -> list[int]:
        """Waits until there is something to :meth:`read`, or until another descriptor is readable.
        Returns the readable descriptors among ``others``.
        """
        poll = select.poll()
        for one in (self.fileno(), *others):
            poll.register(one, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        return [one for one in others if one in ready]

    def read(self, came: Callable[[AnyQuestion], None] = lambda question: None) -> None:
        """Reads everything that has arrived. Never waits."""
        if self._closed:
            return
        for message in self._arrived():
            with self._lock:
                if message is None:
                    self._closed = True
                    self._open.clear()
                    return
                if isinstance(message, messages.WithdrawMessage):
                    self._open.pop(message.id, None)
                    continue
                self._open[message.id] = message
            came(message)

    def answer(self, question: AnyQuestion, verdict: Verdict, by: str) -> list[int]:
        """Answers the question. An answer for the session also answers every open question with the
        same scope. Returns the numbers of the answered questions. An invalid answer raises an error
        for the approver and answers nothing.
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
    """Answers the questions of an inbox until the inbox is closed. Questions that it does not
    answer are denied at the end.
    """

    def serve(self, inbox: Inbox) -> None: ...


class SocketInbox(Inbox):
    """The core sends questions, withdraws them, and closes the socket when it ends."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def _arrived(self) -> Iterator[messages.Message | None]:
        while True:
            try:
                datagram = self._sock.recv(messages.MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                datagram = b""
            yield messages.read(datagram) if datagram else None

    def _reply(self, number: int, verdict: Verdict, by: str) -> None:
        with contextlib.suppress(ConnectionError):  # the core ended meanwhile
            self._sock.send(messages.answer(number, verdict, by))
