"""Questions of several runs in one queue, answered from any client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from paddock.approve.questions import Verdict
from paddock.approve.server_queue import PendingQuestion, Queue, SettledQuestion
from tests.support.waiting import wait_for
from tests.unit.approve.questions import Core, connected, question


@contextlib.contextmanager
def served(queue: Queue, asker: str = "") -> Iterator[Core]:
    with connected() as (core, inbox):
        thread = threading.Thread(target=queue.serve, args=(inbox,), kwargs={"asker": asker})
        thread.start()
        try:
            yield core
        finally:
            core.line.close()
            thread.join()


def pending(queue: Queue, count: int) -> list[PendingQuestion]:
    return wait_for(
        lambda: found if len(found := queue.pending()) == count else None, f"{count} wait"
    )


def test_questions_of_several_runs_wait_together_and_get_their_own_answers() -> None:
    queue = Queue()
    with served(queue, "a") as first, served(queue, "b") as second:
        first.ask(question(id=1))
        (one,) = pending(queue, 1)
        second.ask(question(id=1))
        _, two = pending(queue, 2)
        assert (one.asker, two.asker, one.id != two.id) == ("a", "b", True)
        assert queue.answer(two.id, Verdict.ONCE, "me")
        assert not queue.answer(two.id, Verdict.ONCE, "me")
        assert second.received() == {"answer": 1, "verdict": "once", "by": "me"}
        assert first.received_nothing()
        assert queue.answer(one.id, Verdict.DENY, "me")
        assert first.received()["verdict"] == "deny"
        assert not queue.answer(99, Verdict.ONCE, "me")
    assert [(one.verdict, one.by) for one in queue.history()] == [
        (Verdict.ONCE, "me"),
        (Verdict.DENY, "me"),
    ]


@pytest.mark.parametrize(
    ("verdict", "by"), [("once", "me"), (True, "me"), (None, "me"), (Verdict.ONCE, None)]
)
def test_an_invalid_answer_is_reported_to_its_sender_and_answers_nothing(
    verdict: Any, by: Any
) -> None:
    queue = Queue()
    with served(queue) as core:
        core.ask(question(id=1))
        (one,) = pending(queue, 1)
        with pytest.raises(TypeError, match="an answer must be a Verdict"):
            queue.answer(one.id, verdict, by)
        assert queue.pending() == [one]
        assert queue.answer(one.id, Verdict.DENY, "me")
        assert core.received()["verdict"] == "deny"


def test_an_answer_for_the_session_is_for_the_same_of_that_run() -> None:
    queue = Queue()
    with served(queue) as first, served(queue) as second:
        first.ask(question(id=1), question(id=2), question(id=3, cwd="/other"))
        second.ask(question(id=1))
        waiting = pending(queue, 4)
        (asked,) = [one for one in waiting if one.question.id == 2]
        assert queue.answer(asked.id, Verdict.SESSION, "me")
        assert sorted(first.received()["answer"] for _ in range(2)) == [1, 2]
        assert len(queue.pending()) == 2
        assert second.received_nothing()


def test_a_withdrawn_question_and_a_question_of_an_ended_run_cannot_be_answered() -> None:
    queue = Queue()
    with served(queue) as core:
        core.ask(question(id=1), question(id=2, cwd="/2"))
        first, second = pending(queue, 2)
        core.withdraw(1)
        pending(queue, 1)
        assert not queue.answer(first.id, Verdict.ONCE, "me")
    assert queue.pending() == []
    assert not queue.answer(second.id, Verdict.ONCE, "me")
    assert [one.verdict for one in queue.history()] == [None, None]


def test_queue_reports_changes_as_they_happen() -> None:
    queue = Queue()

    async def watched() -> None:
        with queue.changes() as changes, served(queue) as core:
            core.ask(question())
            asked = await asyncio.wait_for(anext(changes), 10)
            assert isinstance(asked, PendingQuestion)
            assert asked in queue.pending()
            assert queue.answer(asked.id, Verdict.ONCE, "me")
            settled = await asyncio.wait_for(anext(changes), 10)
            assert settled == queue.history()[-1]
            assert isinstance(settled, SettledQuestion)
            assert changes.all_at_once() == []

    asyncio.run(watched())
    with served(queue) as core:  # no client watches any more, and that loop has ended
        core.ask(question())
        pending(queue, 1)
