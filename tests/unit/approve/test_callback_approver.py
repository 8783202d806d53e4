"""A function answers questions. A slow answer delays no other question."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paddock.approve.callback_approver import MAX_PARALLEL_CALLS, Callback
from paddock.approve.inbox import Inbox
from paddock.approve.questions import Question, Verdict
from tests.support.waiting import wait_for
from tests.unit.approve.questions import Core, connected, question


@contextmanager
def served(decide: Callable[[Question], Verdict]) -> Iterator[tuple[Core, Callback, Inbox]]:
    with connected() as (core, inbox):
        callback = Callback(decide)
        thread = threading.Thread(target=callback.serve, args=(inbox,))
        thread.start()
        try:
            yield core, callback, inbox
        finally:
            core.line.close()
            thread.join()


def numbered(count: int) -> list[Question]:
    return [question(id=number, cwd=f"/{number}") for number in range(count)]


def test_the_function_gets_the_question_and_gives_the_answer() -> None:
    seen = []

    def decide(one: Question) -> Verdict:
        seen.append(one)
        return Verdict.SESSION

    with served(decide) as (core, _, _):
        core.ask(question())
        assert core.received() == {"answer": 7, "verdict": "session", "by": "callback"}
    assert seen == [question()]


def test_a_slow_answer_delays_no_other() -> None:
    release = threading.Event()

    def decide(one: Question) -> Verdict:
        if one.id == 0:
            assert release.wait(60)
        return Verdict.ONCE

    with served(decide) as (core, callback, _):
        core.ask(*numbered(300))
        assert sorted(core.received()["answer"] for _ in range(299)) == list(range(1, 300))
        release.set()
        assert core.received()["answer"] == 0
    assert callback.failure is None


def test_callbacks_in_parallel_are_limited_and_withdrawn_questions_are_never_asked() -> None:
    release, entered = threading.Event(), threading.Semaphore(0)
    calls: list[int] = []

    def decide(one: Question) -> Verdict:
        calls.append(one.id)
        entered.release()
        assert release.wait(60)
        return Verdict.DENY

    with served(decide) as (core, _, inbox):
        core.ask(*numbered(MAX_PARALLEL_CALLS + 2))
        for _ in range(MAX_PARALLEL_CALLS):
            assert entered.acquire(timeout=60)
        wait_for(lambda: inbox.is_open(question(id=MAX_PARALLEL_CALLS + 1)), "all have come")
        core.withdraw(MAX_PARALLEL_CALLS)
        wait_for(lambda: not inbox.is_open(question(id=MAX_PARALLEL_CALLS)), "it is withdrawn")
        assert not entered.acquire(blocking=False)
        release.set()
        answered = {core.received()["answer"] for _ in range(MAX_PARALLEL_CALLS + 1)}
    assert answered == {*range(MAX_PARALLEL_CALLS), MAX_PARALLEL_CALLS + 1}
    assert MAX_PARALLEL_CALLS not in calls


def test_a_function_that_fails_denies_and_the_first_failure_is_kept() -> None:
    def decide(one: Question) -> Verdict:
        if one.id == 0:
            raise ZeroDivisionError
        return True  # type: ignore[return-value]

    with served(decide) as (core, callback, _):
        for one in numbered(2):
            core.ask(one)
            assert core.received() == {"answer": one.id, "verdict": "deny", "by": "callback"}
    assert isinstance(callback.failure, ZeroDivisionError)
    with served(lambda one: True) as (core, callback, _):  # type: ignore[arg-type,return-value]
        core.ask(question())
        assert core.received()["verdict"] == "deny"
    assert isinstance(callback.failure, TypeError)
