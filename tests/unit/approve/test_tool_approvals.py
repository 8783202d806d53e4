"""Tool calls are asked about in this process, and every way to get no answer is a no."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paddock.approve import Callback, DenyAll, ToolQuestion, Verdict, messages
from paddock.approve.forwarding_approvers import Server, forward
from paddock.approve.inbox import Inbox, SocketInbox
from paddock.approve.remember_answer import keep, tool_for
from paddock.approve.tool_approvals import ALWAYS, NOBODY, REMEMBERED, TIMEOUT, Approvals
from paddock.core.redact import MARK, Redactor
from tests.unit.approve.questions import connected, tool
from tests.unit.policy.world import World


class Recorded:
    def __init__(self, decide: Callable[[ToolQuestion], Verdict]) -> None:
        self.seen: list[ToolQuestion] = []
        self._decide = decide

    def __call__(self, question: ToolQuestion) -> Verdict:
        self.seen.append(question)
        return self._decide(question)


def answers(desk: Approvals, *questions: ToolQuestion) -> list[tuple[Verdict, str]]:
    async def asked() -> list[tuple[Verdict, str]]:
        return [await desk.ask(one) for one in questions]

    return asyncio.run(asked())


def test_once_is_for_once_and_a_no_is_a_no() -> None:
    decide = Recorded(
        lambda question: Verdict.ONCE if question.subject[1] == "status" else Verdict.DENY
    )
    with Approvals(Callback(decide)) as desk:
        said = answers(desk, tool(), tool(), tool(subject=("git", "push")))
    assert said == [(Verdict.ONCE, "callback")] * 2 + [(Verdict.DENY, "callback")]
    assert len({one.id for one in decide.seen}) == 3


def test_an_answer_for_the_session_is_about_the_subject() -> None:
    decide = Recorded(lambda question: Verdict.SESSION)
    other = [
        tool(subject=("git", "status", ";", "rm", "-rf", "~")),
        tool(cwd="/v"),
        tool(tool="zsh"),
        tool(subject=("git status",)),
    ]
    with Approvals(Callback(decide)) as desk:
        said = answers(desk, tool(), tool(lines=("git  status",)), *other)
    assert said == [
        (Verdict.SESSION, "callback"),
        (Verdict.SESSION, REMEMBERED),
        *[(Verdict.SESSION, "callback")] * 4,
    ]


def test_a_call_without_a_subject_is_asked_about_every_time() -> None:
    decide = Recorded(lambda question: Verdict.SESSION)
    with Approvals(Callback(decide)) as desk:
        answers(desk, tool(subject=()), tool(subject=()))
    assert len(decide.seen) == 2


def test_without_an_approver_it_is_denied() -> None:
    with Approvals(None) as desk:
        assert answers(desk, tool()) == [(Verdict.DENY, NOBODY)]
    with Approvals(DenyAll()) as desk:
        assert answers(desk, tool()) == [(Verdict.DENY, "deny-all")]


class Dying:
    def serve(self, inbox: Inbox) -> None:
        inbox.wait()
        raise RuntimeError("lost")


def test_an_approver_that_dies_denies_what_is_open_and_all_that_comes() -> None:
    with Approvals(Dying()) as desk:
        assert answers(desk, tool(), tool()) == [(Verdict.DENY, NOBODY)] * 2
        assert str(desk.failure) == "lost"


def test_a_function_that_raises_or_says_nothing_sensible_denies() -> None:
    callback = Callback(lambda question: 1 / 0)  # type: ignore[arg-type,return-value]
    with Approvals(callback) as desk:
        assert answers(desk, tool()) == [(Verdict.DENY, "callback")]
    assert isinstance(callback.failure, ZeroDivisionError)
    with Approvals(Callback(lambda question: True)) as desk:  # type: ignore[arg-type,return-value]
        assert answers(desk, tool()) == [(Verdict.DENY, "callback")]


def test_a_coroutine_may_answer_in_the_loop_of_the_caller() -> None:
    async def asked() -> tuple[Verdict, str]:
        here = asyncio.get_running_loop()

        async def decide(question: ToolQuestion) -> Verdict:
            assert asyncio.get_running_loop() is here
            return Verdict.ONCE

        with Approvals(Callback(decide, loop=here)) as desk:
            return await desk.ask(tool())

    assert asyncio.run(asked()) == (Verdict.ONCE, "callback")


def test_no_answer_in_time_is_a_no_and_takes_the_question_back() -> None:
    never = threading.Event()
    with Approvals(
        Callback(lambda question: Verdict.ONCE if never.wait() else Verdict.DENY)
    ) as desk:
        assert answers(desk, tool(timeout_s=0.01)) == [(Verdict.DENY, TIMEOUT)]
        never.set()


class Watching:
    """Answers nothing; tells what is open."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.withdrawn = threading.Event()

    def serve(self, inbox: Inbox) -> None:
        while not inbox.closed:
            inbox.wait()
            inbox.read(lambda question: self.came.set())
            if self.came.is_set() and not inbox.open():
                self.withdrawn.set()


def test_a_cancelled_caller_withdraws_its_question() -> None:
    watching = Watching()

    async def asked() -> None:
        with Approvals(watching) as desk:
            asking = asyncio.create_task(desk.ask(tool()))
            await asyncio.to_thread(watching.came.wait)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            await asyncio.to_thread(watching.withdrawn.wait)

    asyncio.run(asked())


def test_closing_denies_what_is_open() -> None:
    watching = Watching()

    async def asked() -> tuple[Verdict, str]:
        with Approvals(watching) as desk:
            asking = asyncio.create_task(desk.ask(tool()))
            await asyncio.to_thread(watching.came.wait)
        return await asking

    assert asyncio.run(asked()) == (Verdict.DENY, NOBODY)


def test_many_at_once_get_each_their_own_answer() -> None:
    async def asked() -> list[tuple[Verdict, str]]:
        def decide(question: ToolQuestion) -> Verdict:
            return Verdict.ONCE if int(question.subject[1]) % 2 else Verdict.DENY

        with Approvals(Callback(decide)) as desk:
            return await asyncio.gather(
                *(desk.ask(tool(subject=("n", str(n)))) for n in range(200))
            )

    assert [verdict is Verdict.ONCE for verdict, _ in asyncio.run(asked())] == [
        bool(n % 2) for n in range(200)
    ]


def test_what_would_be_executed_is_shown_whatever_stands_around_it() -> None:
    decide = Recorded(lambda question: Verdict.DENY)
    key = ("BEGIN RSA PRIVATE KEY", "END RSA PRIVATE KEY")
    with Approvals(Callback(decide)) as desk:
        answers(
            desk,
            tool(lines=(f": '-----{key[0]}-----'; evil; : '-----{key[1]}-----'",)),
            tool(lines=("echo \\", "--token", "evil")),
            tool(lines=("exec -a token: ./evil1",)),
            tool(
                tool="write_file",
                subject=("/w/x",),
                diff=f"+-----{key[0]}-----\n+evil|sh\n+-----{key[1]}-----",
            ),
        )
    assert all("evil" in "\n".join((*one.lines, one.diff or "")) for one in decide.seen)


def test_what_is_shown_holds_no_secret_and_what_is_remembered_is_exact() -> None:
    decide = Recorded(lambda question: Verdict.DENY)
    hidden = "correct horse"
    question = tool(
        subject=("curl", hidden),
        lines=("curl --token abc123", f"x {hidden}"),
        diff=f"+password: {hidden}",
        reason=hidden,
    )
    with Approvals(Callback(decide), redactor=Redactor([hidden])) as desk:
        answers(desk, question)
    (seen,) = decide.seen
    assert hidden not in str((seen.lines, seen.diff, seen.reason))
    assert "abc123" not in seen.lines[0]
    assert MARK in str(seen.diff)
    assert seen.subject == question.subject


def test_what_was_answered_for_good_is_not_asked_and_nothing_else_is_covered(world: World) -> None:
    keep(tool_for(tool(), world.origin), world.origin)
    with Approvals(DenyAll(), origin=world.origin) as desk:
        assert answers(desk, tool()) == [(Verdict.SESSION, ALWAYS)]
        others = [
            tool(subject=("git", "status", ";", "rm")),
            tool(cwd="/v"),
            tool(tool="zsh"),
            tool(subject=()),
        ]
        assert answers(desk, *others) == [(Verdict.DENY, "deny-all")] * 4
    world.user("approved.toml", "nonsense")
    with Approvals(DenyAll(), origin=world.origin) as desk:
        assert answers(desk, tool()) == [(Verdict.DENY, "deny-all")]


class Forwarding:
    """To the other end of a pair."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def serve(self, inbox: Inbox) -> None:
        forward(inbox, self._line)


def test_an_approver_in_another_process_gets_the_same_questions() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    seen: list[object] = []

    def decide(question: ToolQuestion) -> Verdict:
        seen.append(question)
        return Verdict.SESSION if question.tool == "bash" else Verdict.DENY

    with ours, theirs:
        other = threading.Thread(target=Callback(decide).serve, args=(SocketInbox(theirs),))
        other.start()
        asked = tool(lines=("a\nb", "\udcff"), diff="+x\n-y", rule=None)
        with Approvals(Forwarding(ours)) as desk:
            others = [
                tool(tool="write_file", subject=("/w/x",)),
                tool(cwd="/v", lines=("x" * 70_000,)),
            ]
            said = answers(desk, asked, asked, *others)
        ours.shutdown(socket.SHUT_RDWR)
        other.join()
    assert said == [
        (Verdict.SESSION, "callback"),
        (Verdict.SESSION, REMEMBERED),
        (Verdict.DENY, "callback"),
        (Verdict.DENY, "too long to be shown"),
    ]
    assert seen[0] == replace(asked, id=1, lines=("a", "b", "\udcff"))


def test_a_diff_that_is_too_long_is_cut_and_says_so() -> None:
    said = messages.ask(tool(diff="\n".join(f"+line {n}" for n in range(20_000))))
    assert said is not None
    question = messages.read(said)
    assert isinstance(question, ToolQuestion)
    assert question.diff is not None
    lines = question.diff.split("\n")
    assert lines[-1] == f"… {20_000 - len(lines) + 1} more lines are not shown …"


def test_the_end_of_the_other_process_denies() -> None:
    with connected() as (core, inbox), Approvals(Forwarding(core.line)) as desk:
        core.line.settimeout(None)

        def hang_up() -> None:
            inbox.wait()
            core.line.shutdown(socket.SHUT_RDWR)

        other = threading.Thread(target=hang_up)
        other.start()
        assert answers(desk, tool(), tool()) == [(Verdict.DENY, NOBODY)] * 2
        other.join()


def test_without_a_forwarded_approver_everything_is_denied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paddock.approve.approvals_socket.server_dir", lambda uid: str(tmp_path))
    with Approvals(Server()) as desk:
        assert answers(desk, tool()) == [(Verdict.DENY, NOBODY)]
        assert isinstance(desk.failure, FileNotFoundError)
    script = (
        "import asyncio; from paddock.approve import ToolQuestion; "
        "from paddock.approve.tool_approvals import Approvals;"
        "from paddock.approve.forwarding_approvers import AtTerminal\n"
        "with Approvals(AtTerminal()) as desk:\n"
        "    question = ToolQuestion(tool='t', subject=('x',), lines=('x',), cwd='/', "
        "rule=None, reason=None)\n"
        "    print(asyncio.run(desk.ask(question)))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], start_new_session=True, capture_output=True, text=True
    )
    assert said.stdout == "(<Verdict.DENY: 'deny'>, 'nobody')\n", said
