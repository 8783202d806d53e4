"""Questions wait in a list until somebody answers them: for servers. One queue may serve many
inboxes, each in a thread of its own; whoever answers may be in any thread or event loop.
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
from paddock.approve.model import Asked, Verdict

MAX_KEPT_ANSWERS = 200  # answers
MAX_UNSEEN_CHANGES = 1000  # changes that somebody who watches has not looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """``id`` is the queue's: questions of several runs have the same numbers. ``asked_at``: seconds
    since 1970.
    """

    id: int
    question: Asked
    asker: str
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """``verdict`` None: taken back, by who asked or because the time was over."""

    pending: Pending
    verdict: Verdict | None
    by: str | None
    after_s: float


QueueChange = Pending | Settled


class Queue:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Pending, Inbox]] = {}
        self._settled: deque[Settled] = deque(maxlen=MAX_KEPT_ANSWERS)
        self._watching: set[Changes] = set()

    def serve(self, inbox: Inbox, *, asker: str = "") -> None:
        """``asker``: who this inbox belongs to, to be shown."""
        try:
            while not inbox.closed:
                inbox.wait()
                inbox.read(lambda question: self._came(inbox, question, asker))
                self._forget(
                    lambda pending, its: its is inbox and not inbox.is_open(pending.question)
                )
        finally:
            self._forget(lambda pending, its: its is inbox)

    def pending(self) -> list[Pending]:
        """In the order they came."""
        with self._lock:
            return [pending for pending, _ in self._waiting.values()]

    def history(self) -> list[Settled]:
        """The latest last."""
        with self._lock:
            return list(self._settled)

    def answer(self, number: int, verdict: Verdict, by: str) -> bool:
        """False: it is not open any more. An answer for the session reaches all of its run that ask
        the same.
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
        """From now on. Look at :meth:`pending` after this call, and nothing is missed."""
        watching = Changes(self, asyncio.get_running_loop())
        with self._lock:
            self._watching.add(watching)
        return watching

    def _came(self, inbox: Inbox, question: Asked, asker: str) -> None:
        with self._lock:
            number = next(self._numbers)
            pending = Pending(id=number, question=question, asker=asker, asked_at=time.time())
            self._waiting[number] = pending, inbox
            self._publish(pending)

    def _forget(self, gone: Callable[[Pending, Inbox], bool]) -> None:
        with self._lock:
            for pending, inbox in list(self._waiting.values()):
                if gone(pending, inbox):
                    self._settle(pending, None, None)

    def _settle(self, pending: Pending, verdict: Verdict | None, by: str | None) -> None:
        del self._waiting[pending.id]
        after_s = max(0.0, time.time() - pending.asked_at)
        settled = Settled(pending=pending, verdict=verdict, by=by, after_s=after_s)
        self._settled.append(settled)
        self._publish(settled)

    def _publish(self, change: QueueChange) -> None:
        for one in self._watching:
            one.tell(change)

    def forget_watcher(self, changes: Changes) -> None:
        with self._lock:
            self._watching.discard(changes)


class Changes(AsyncIterator[QueueChange]):
    """What is asked and what is settled, as it happens. Who does not look in time misses the
    oldest. Close it.
    """

    def __init__(self, queue: Queue, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = queue
        self._loop = loop
        self._unseen: deque[QueueChange] = deque(maxlen=MAX_UNSEEN_CHANGES)
        self._news = asyncio.Event()

    def tell(self, change: QueueChange) -> None:
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
        """What has not been looked at; waits for nothing."""
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
