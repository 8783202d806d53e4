"""A function of the caller's answers. It is called in threads of its own: a slow answer holds up no other question."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from paddock.approve.inbox import Inbox
from paddock.approve.model import Question, Verdict

AT_ONCE = 32
"""So many calls run at the same time; further questions wait their turn, and their time runs meanwhile."""

BY = "callback"


class Callback:
    """``failure``: what the function raised first. Such a question is denied, and so is one with no proper answer.

    A call that is still running when the run ends is not waited for, and its answer counts no more."""

    def __init__(self, decide: Callable[[Question], Verdict]) -> None:
        self._decide = decide
        self._waiting: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self.failure: BaseException | None = None

    def serve(self, inbox: Inbox) -> None:
        workers = 0

        def came(question: Question) -> None:
            nonlocal workers
            self._waiting.put(question)
            if not self._idle.acquire(blocking=False) and workers < AT_ONCE:
                workers += 1
                threading.Thread(target=self._work, args=(inbox,), name=f"paddock-{BY}", daemon=True).start()

        while not inbox.closed:
            inbox.wait()
            inbox.read(came)
        for _ in range(workers):
            self._waiting.put(None)

    def _work(self, inbox: Inbox) -> None:
        while (question := self._waiting.get()) is not None:
            if inbox.is_open(question):
                inbox.answer(question, self._decided(question), BY)
            self._idle.release()

    def _decided(self, question: Question) -> Verdict:
        try:
            verdict = self._decide(question)
            if not isinstance(verdict, Verdict):
                raise TypeError(f"an approver answers with a Verdict, not with {verdict!r}")
        except BaseException as error:
            self.failure = self.failure or error
            return Verdict.DENY
        return verdict
