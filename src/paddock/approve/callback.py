"""A function of the caller's answers. It is called in threads of its own: a slow answer holds up no
other question.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from paddock.approve.inbox import Inbox
from paddock.approve.model import Asked, Verdict

MAX_PARALLEL_CALLS = 32
"""So many calls run at the same time; further questions wait their turn, and their time runs meanwhile."""

BY = "callback"


class Callback:
    """``failure``: what the function raised first. Such a question is denied, and so is one with no
    proper answer.

    A call that is still running when the run ends is not waited for, and its answer counts no more.
    A coroutine runs in ``loop``; without one, in a loop of its own.
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
        # Each inbox has its own: a session has one for its tools and one for its rules.
        waiting: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        idle = threading.Semaphore(0)
        workers = 0

        def came(question: Asked) -> None:
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
        self, inbox: Inbox, waiting: queue.SimpleQueue[Asked | None], idle: threading.Semaphore
    ) -> None:
        while (question := waiting.get()) is not None:
            if inbox.is_open(question):
                inbox.answer(question, self._decided(question), BY)
            idle.release()

    def _decided(self, question: Asked) -> Verdict:
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
    """Whatever is asked."""

    def serve(self, inbox: Inbox) -> None:
        while not inbox.closed:
            inbox.wait()
            inbox.read()
            for question in inbox.open():
                inbox.answer(question, Verdict.DENY, "deny-all")
