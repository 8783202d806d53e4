"""Asks an approver about the tool calls of this process.

The approver works in its own thread and reads an inbox, as it does for a run. Every failure counts
as deny: no approver, an approver that ended or raised, no answer in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import replace

from paddock.approve.inbox import Approver, Inbox
from paddock.approve.messages import Message, WithdrawMessage
from paddock.approve.questions import ToolQuestion, Verdict
from paddock.core.redact import Redactor
from paddock.errors import PolicyError
from paddock.policy import Origin
from paddock.policy.trust.approved import ToolApproval, load_approved
from paddock.shell.redacted_command import shown_command

NOBODY = "nobody"  # no approver could be reached
TIMEOUT = "timeout"
REMEMBERED = "session"  # answered earlier, for the session
ALWAYS = "always"  # answered earlier, permanently: approved.toml

AnswerBy = tuple[Verdict, str]
"""The answer, and the name of its approver."""


class Approvals:
    """Pass it to the code that runs tools, and close it at the end. Any event loop may ask, and
    several questions may be open at once. The approver chooses the order in which it shows them.
    ``redactor`` knows the secrets that must not be shown. ``origin``: the user whose
    ``approved.toml`` is read; None: no such file is read. ``failure``: the exception that ended the
    approver, if any.
    """

    def __init__(
        self,
        approver: Approver | None,
        *,
        redactor: Redactor | None = None,
        origin: Origin | None = None,
    ) -> None:
        self._approver = approver
        self._redactor = redactor or Redactor()
        self._origin = origin
        self._numbers = itertools.count(1)
        self._remembered: set[tuple[object, ...]] = set()
        self._inbox = _QuestionInbox()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.failure: BaseException | None = None

    async def ask(self, question: ToolQuestion) -> AnswerBy:
        """Cancelling this call withdraws the question."""
        question = replace(
            question,
            id=next(self._numbers),
            lines=tuple(
                shown_command("\n".join(question.lines), self._redactor, cwd=question.cwd).split(
                    "\n"
                )
            ),
            # Redacted line by line, so that the diff keeps its line breaks.
            diff=None
            if question.diff is None
            else "\n".join(map(self._redactor.part, question.diff.split("\n"))),
            reason=None if question.reason is None else self._redactor.redact(question.reason),
        )
        if question.scope in self._remembered:
            return Verdict.SESSION, REMEMBERED
        if self._approved(question):
            return Verdict.SESSION, ALWAYS
        if not self._start_approver():
            return Verdict.DENY, NOBODY
        answer = self._inbox.put(question)
        try:
            verdict, by = await asyncio.wait_for(asyncio.wrap_future(answer), question.timeout_s)
        except TimeoutError:
            return Verdict.DENY, TIMEOUT
        finally:
            self._inbox.take_back(question.id)
        if verdict is Verdict.SESSION and question.subject:
            self._remembered.add(question.scope)
        return verdict, by

    def _approved(self, question: ToolQuestion) -> bool:
        """A file that can not be read approves nothing. The user is asked instead."""
        if self._origin is None:
            return False
        with contextlib.suppress(PolicyError):
            approval = ToolApproval(tool=question.tool, cwd=question.cwd, subject=question.subject)
            return approval in load_approved(self._origin).tools
        return False

    def close(self) -> None:
        """Denies the open questions. Returns when the approver has ended."""
        self._inbox.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._inbox.release()

    def __enter__(self) -> Approvals:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_approver(self) -> bool:
        """The approver starts at the first question, because most sessions have none."""
        with self._starting:
            if self._thread is None and self._approver is not None and not self._inbox.over:
                self._thread = threading.Thread(
                    target=self._serve, name="paddock-approver", daemon=True
                )
                self._thread.start()
        return self._thread is not None and not self._inbox.over

    def _serve(self) -> None:
        try:
            if self._approver is not None:
                self._approver.serve(self._inbox)
        except BaseException as error:
            self.failure = error
        finally:
            self._inbox.close()


class _QuestionInbox(Inbox):
    """The inbox of an ``Approvals``."""

    def __init__(self) -> None:
        super().__init__()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._news: deque[Message | None] = deque()
        self._answers: dict[int, Future[AnswerBy]] = {}
        self.over = False

    def put(self, question: ToolQuestion) -> Future[AnswerBy]:
        answer: Future[AnswerBy] = Future()
        with self._lock:
            if self.over:
                answer.set_result((Verdict.DENY, NOBODY))
                return answer
            self._answers[question.id] = answer
            self._put_news(question)
        return answer

    def take_back(self, number: int) -> None:
        with self._lock:
            if self._answers.pop(number, None) is not None and not self.over:
                self._open.pop(number, None)  # an answer that comes later is ignored
                self._put_news(WithdrawMessage(number))

    def close(self) -> None:
        with self._lock:
            if self.over:
                return
            self.over = True
            self._put_news(None)
            for number in list(self._answers):
                self._reply(number, Verdict.DENY, NOBODY)

    def release(self) -> None:
        """Call it when no thread waits for messages any more."""
        with self._lock:
            bell, self._bell = self._bell, -1
        if bell >= 0:
            os.close(bell)

    def fileno(self) -> int:
        return self._bell

    def _arrived(self) -> Iterator[Message | None]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        while self._news:
            yield self._news.popleft()

    def _reply(self, number: int, verdict: Verdict, by: str) -> None:
        answer = self._answers.pop(number, None)
        if answer is not None:
            # the caller cancelled the question meanwhile
            with contextlib.suppress(InvalidStateError):
                answer.set_result((verdict, by))

    def _put_news(self, news: Message | None) -> None:
        self._news.append(news)
        os.eventfd_write(self._bell, 1)
