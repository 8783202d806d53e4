"""The open questions of a run, and the socket they come by. The core asks, withdraws, and closes it when it ends."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from paddock.approve import messages
from paddock.approve.model import Question, Verdict


class Inbox:
    """One thread reads; any may answer. What is not open any more can not be answered: the first answer counts, and a
    withdrawn question needs none."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._open: dict[int, Question] = {}
        self._closed = False

    def fileno(self) -> int:
        return self._line.fileno()

    @property
    def closed(self) -> bool:
        return self._closed

    def open(self) -> list[Question]:
        """In the order they came."""
        with self._lock:
            return list(self._open.values())

    def is_open(self, question: Question) -> bool:
        with self._lock:
            return question.id in self._open

    def wait(self, *others: int, timeout_s: float | None = None) -> list[int]:
        """Until there is something to :meth:`read`, or one of the other descriptors can be read: those that can."""
        poll = select.poll()
        for one in (self._line.fileno(), *others):
            poll.register(one, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)}
        return [one for one in others if one in ready]

    def read(self, came: Callable[[Question], None] = lambda question: None) -> None:
        """Everything that has arrived; never waits."""
        while not self._closed:
            try:
                datagram = self._line.recv(messages.LONGEST, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                datagram = b""
            if not datagram:
                self._closed = True
                with self._lock:
                    self._open.clear()
                return
            message = messages.read(datagram)
            with self._lock:
                if isinstance(message, messages.Withdrawn):
                    self._open.pop(message.id, None)
                    continue
                self._open[message.id] = message
            came(message)

    def answer(self, question: Question, verdict: Verdict, by: str) -> None:
        """An answer for the session is one to all that ask the same."""
        with self._lock:
            if question.id not in self._open:
                return
            alike = [one.id for one in self._open.values() if one.subject == question.subject]
            for number in alike if verdict is Verdict.SESSION else [question.id]:
                del self._open[number]
                with contextlib.suppress(ConnectionError):  # it ended meanwhile
                    self._line.send(messages.answer(number, verdict, by))
