"""The open questions of an inbox, and the questions that one answer settles."""

from __future__ import annotations

from paddock.approve.questions import Verdict
from tests.unit.approve.questions import connected, question


def test_questions_are_open_until_they_are_answered_or_withdrawn() -> None:
    with connected() as (core, inbox):
        first, second, third = (question(id=number, cwd=f"/{number}") for number in range(3))
        core.ask(first, second, third)
        core.withdraw(1)
        inbox.read()
        assert inbox.open() == [first, third]
        inbox.answer(second, Verdict.ONCE, "x")
        assert core.received_nothing()
        inbox.answer(third, Verdict.DENY, "x")
        inbox.answer(third, Verdict.ONCE, "x")
        assert core.received() == {"answer": 2, "verdict": "deny", "by": "x"}
        assert core.received_nothing()
        assert inbox.open() == [first]


def test_a_session_answer_answers_all_equal_questions() -> None:
    with connected() as (core, inbox):
        same = [question(id=number, pid=number) for number in range(3)]
        core.ask(*same, question(id=9, argv=("git", "push", "-f")))
        inbox.read()
        inbox.answer(same[1], Verdict.ONCE, "x")
        assert core.received()["answer"] == 1
        inbox.answer(same[0], Verdict.SESSION, "x")
        assert [core.received()["answer"] for _ in range(2)] == [0, 2]
        assert [one.id for one in inbox.open()] == [9]


def test_inbox_closes_when_the_core_ends() -> None:
    with connected() as (core, inbox):
        core.ask(question())
        core.line.close()
        assert inbox.wait() == []
        inbox.read()
        assert inbox.closed
        assert not inbox.open()
        inbox.answer(question(), Verdict.ONCE, "x")
