"""A list of pending questions, for servers. One queue may serve many inboxes, each in its own
thread. Answers may come from any thread or event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from paddock.approve.inbox import Inbox
from paddock.approve.questions import AnyQuestion, Verdict

MAX_KEPT_ANSWERS = 200
MAX_UNSEEN_CHANGES = 1000  # changes that one watcher has not read yet


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """``id`` belongs to the queue, because questions of several runs have the same numbers.
    ``asked_at``: seconds since 1970.
    """

    id: int
    question: AnyQuestion
    asker: str
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledQuestion:
    """``verdict`` None: withdrawn by the asker, or the time was over."""

    pending: PendingQuestion
    verdict: Verdict | None
    by: str | None
    after_s: float


QueueChange = PendingQuestion | SettledQuestion


class Queue:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[PendingQuestion, Inbox]] = {}
        self._settled: deque[SettledQuestion] = deque(maxlen=MAX_KEPT_ANSWERS)
        self._watching: set[Changes] = set()

    def serve(self, inbox: Inbox, *, asker: str = "") -> None:
        """``asker``: the name of the inbox's owner, to be shown."""
        try:
            while not inbox.closed:
                inbox.wait()
                inbox.read(lambda question: self._add(inbox, question, asker))
                self._forget(
                    lambda pending, its: its is inbox and not inbox.is_open(pending.question)
                )
        finally:
            self._forget(lambda pending, its: its is inbox)

    def pending(self) -> list[PendingQuestion]:
        """In the order of arrival."""
        with self._lock:
            return [pending for pending, _ in self._waiting.values()]

    def history(self) -> list[SettledQuestion]:
        """Oldest first."""
        with self._lock:
            return list(self._settled)

    def answer(self, number: int, verdict: Verdict, by: str) -> bool:
        """False: the question is not open any more. An answer for the session answers all open
        questions of that run with the same scope.
        """
        with self._lock:
            found = self._waiting.get(number)
            if found is None:
                return False
            asked, inbox = found
            answered = inbox.answer(asked.question, verdict, by)
            for pending, its in list(self._waiting.values()):
                if its is inbox and pending.question.id in answered:
                    self._settle(pending, verdict, by)
            return bool(answered)

    def changes(self) -> Changes:
        """Changes from now on. Call :meth:`pending` after this call, then no change is missed."""
        watching = Changes(self, asyncio.get_running_loop())
        with self._lock:
            self._watching.add(watching)
        return watching

    def _add(self, inbox: Inbox, question: AnyQuestion, asker: str) -> None:
        with self._lock:
            number = next(self._numbers)
            pending = PendingQuestion(
                id=number, question=question, asker=asker, asked_at=time.time()
            )
            self._waiting[number] = pending, inbox
            self._publish(pending)

    def _forget(self, gone: Callable[[PendingQuestion, Inbox], bool]) -> None:
        with self._lock:
            for pending, inbox in list(self._waiting.values()):
                if gone(pending, inbox):
                    self._settle(pending, None, None)

    def _settle(self, pending: PendingQuestion, verdict: Verdict | None, by: str | None) -> None:
        del self._waiting[pending.id]
        after_s = max(0.0, time.time() - pending.asked_at)
        settled = SettledQuestion(pending=pending, verdict=verdict, by=by, after_s=after_s)
        self._settled.append(settled)
        self._publish(settled)

    def _publish(self, change: QueueChange) -> None:
        for one in self._watching:
            one.publish(change)

    def forget_watcher(self, changes: Changes) -> None:
        with self._lock:
            self._watching.discard(changes)


class Changes(AsyncIterator[QueueChange]):
    """New questions and answers, as they happen. A slow reader loses the oldest changes. Close it
    at the end.
    """

    def __init__(self, queue: Queue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._unseen: deque[QueueChange] = deque(maxlen=MAX_UNSEEN_CHANGES)
        self._news = asyncio.Event()

    def publish(self, change: QueueChange) -> None:
        self._unseen.append(change)
        with contextlib.suppress(RuntimeError):  # that loop has ended
            self._loop.call_soon_threadsafe(self._news.set)

    async def __anext__(self) -> QueueChange:
        while not self._unseen:
            self._news.clear()
            if not self._unseen:
                await self._news.wait()
        return self._unseen.popleft()

    def all_at_once(self) -> list[QueueChange]:
        """Returns the unread changes without waiting."""
        seen = []
        while self._unseen:
            seen.append(self._unseen.popleft())
        return seen

    def close(self) -> None:
        self._queue.forget_watcher(self)

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
