"""An approver that calls a function of the caller. Each call has its own thread, so a slow answer
delays no other question.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from paddock.approve.inbox import Inbox
from paddock.approve.questions import AnyQuestion, Verdict

MAX_PARALLEL_CALLS = 32
"""Calls at the same time. Further questions wait, and their time runs meanwhile."""

BY = "callback"


class Callback:
    """``failure``: the first exception that the function raised. Such a question is denied, and so
    is a question with an invalid answer.

    A call that still runs at the end of the run is not awaited, and its answer is ignored. A
    coroutine runs in ``loop``; without one, it runs in a new loop.
    """

    def __init__(
        self,
        decide: Callable[[Any], Verdict | Awaitable[Verdict]],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._decide = decide
        self._loop = loop
        self.failure: BaseException | None = None

    def serve(self, inbox: Inbox) -> None:
        # One set for each inbox: a session has one inbox for its tools and one for its rules.
        waiting: queue.SimpleQueue[AnyQuestion | None] = queue.SimpleQueue()
        idle = threading.Semaphore(0)
        workers = 0

        def came(question: AnyQuestion) -> None:
            nonlocal workers
            waiting.put(question)
            if not idle.acquire(blocking=False) and workers < MAX_PARALLEL_CALLS:
                workers += 1
                threading.Thread(
                    target=self._work,
                    args=(inbox, waiting, idle),
                    name=f"paddock-{BY}",
                    daemon=True,
                ).start()

        while not inbox.closed:
            inbox.wait()
            inbox.read(came)
        for _ in range(workers):
            waiting.put(None)

    def _work(
        self,
        inbox: Inbox,
        waiting: queue.SimpleQueue[AnyQuestion | None],
        idle: threading.Semaphore,
    ) -> None:
        while (question := waiting.get()) is not None:
            if inbox.is_open(question):
                inbox.answer(question, self._decided(question), BY)
            idle.release()

    def _decided(self, question: AnyQuestion) -> Verdict:
        try:
            verdict = self._decide(question)
            if inspect.isawaitable(verdict):
                verdict = self._awaited(verdict)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"an approver must return a Verdict, not {verdict!r}")
        except BaseException as error:
            self.failure = self.failure or error
            return Verdict.DENY
        return verdict

    def _awaited(self, verdict: Awaitable[Verdict]) -> Verdict:
        async def waited() -> Verdict:
            return await verdict

        if self._loop is None:
            return asyncio.run(waited())
        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result()


class DenyAll:
    """Denies every question."""

    def serve(self, inbox: Inbox) -> None:
        while not inbox.closed:
            inbox.wait()
            inbox.read()
            for question in inbox.open():
                inbox.answer(question, Verdict.DENY, "deny-all")
