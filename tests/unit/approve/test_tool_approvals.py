"""Questions about tool calls in this process. Every missing answer is a denial."""

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
from tests.unit.policy.user_dirs import UserDirs


class Recorded:
    def __init__(self, decide: Callable[[ToolQuestion], Verdict]) -> None:
        self.seen: list[ToolQuestion] = []
        self._decide = decide

    def __call__(self, question: ToolQuestion) -> Verdict:
        self.seen.append(question)
        return self._decide(question)


def answers(approvals: Approvals, *questions: ToolQuestion) -> list[tuple[Verdict, str]]:
    async def asked() -> list[tuple[Verdict, str]]:
        return [await approvals.ask(one) for one in questions]

    return asyncio.run(asked())


def test_answer_once_is_valid_once_and_deny_denies() -> None:
    decide = Recorded(
        lambda question: Verdict.ONCE if question.subject[1] == "status" else Verdict.DENY
    )
    with Approvals(Callback(decide)) as approvals:
        results = answers(approvals, tool(), tool(), tool(subject=("git", "push")))
    assert results == [(Verdict.ONCE, "callback")] * 2 + [(Verdict.DENY, "callback")]
    assert len({one.id for one in decide.seen}) == 3


def test_an_answer_for_the_session_is_about_the_subject() -> None:
    decide = Recorded(lambda question: Verdict.SESSION)
    other = [
        tool(subject=("git", "status", ";", "rm", "-rf", "~")),
        tool(cwd="/v"),
        tool(tool="zsh"),
        tool(subject=("git status",)),
    ]
    with Approvals(Callback(decide)) as approvals:
        results = answers(approvals, tool(), tool(lines=("git  status",)), *other)
    assert results == [
        (Verdict.SESSION, "callback"),
        (Verdict.SESSION, REMEMBERED),
        *[(Verdict.SESSION, "callback")] * 4,
    ]


def test_a_call_without_a_subject_is_asked_about_every_time() -> None:
    decide = Recorded(lambda question: Verdict.SESSION)
    with Approvals(Callback(decide)) as approvals:
        answers(approvals, tool(subject=()), tool(subject=()))
    assert len(decide.seen) == 2


def test_a_call_without_an_approver_is_denied() -> None:
    with Approvals(None) as approvals:
        assert answers(approvals, tool()) == [(Verdict.DENY, NOBODY)]
    with Approvals(DenyAll()) as approvals:
        assert answers(approvals, tool()) == [(Verdict.DENY, "deny-all")]


class Dying:
    def serve(self, inbox: Inbox) -> None:
        inbox.wait()
        raise RuntimeError("lost")


def test_an_approver_that_dies_denies_what_is_open_and_all_that_comes() -> None:
    with Approvals(Dying()) as approvals:
        assert answers(approvals, tool(), tool()) == [(Verdict.DENY, NOBODY)] * 2
        assert str(approvals.failure) == "lost"


def test_a_callback_that_raises_or_returns_nonsense_denies() -> None:
    callback = Callback(lambda question: 1 / 0)  # type: ignore[arg-type,return-value]
    with Approvals(callback) as approvals:
        assert answers(approvals, tool()) == [(Verdict.DENY, "callback")]
    assert isinstance(callback.failure, ZeroDivisionError)
    with Approvals(Callback(lambda question: True)) as approvals:  # type: ignore[arg-type,return-value]
        assert answers(approvals, tool()) == [(Verdict.DENY, "callback")]


def test_a_coroutine_may_answer_in_the_loop_of_the_caller() -> None:
    async def asked() -> tuple[Verdict, str]:
        here = asyncio.get_running_loop()

        async def decide(question: ToolQuestion) -> Verdict:
            assert asyncio.get_running_loop() is here
            return Verdict.ONCE

        with Approvals(Callback(decide, loop=here)) as approvals:
            return await approvals.ask(tool())

    assert asyncio.run(asked()) == (Verdict.ONCE, "callback")


def test_a_question_that_times_out_is_denied_and_withdrawn() -> None:
    never = threading.Event()
    with Approvals(
        Callback(lambda question: Verdict.ONCE if never.wait() else Verdict.DENY)
    ) as approvals:
        assert answers(approvals, tool(timeout_s=0.01)) == [(Verdict.DENY, TIMEOUT)]
        never.set()


class Watching:
    """An approver that answers nothing and shows the open questions."""

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
        with Approvals(watching) as approvals:
            asking = asyncio.create_task(approvals.ask(tool()))
            await asyncio.to_thread(watching.came.wait)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            await asyncio.to_thread(watching.withdrawn.wait)

    asyncio.run(asked())


def test_closing_denies_what_is_open() -> None:
    watching = Watching()

    async def asked() -> tuple[Verdict, str]:
        with Approvals(watching) as approvals:
            asking = asyncio.create_task(approvals.ask(tool()))
            await asyncio.to_thread(watching.came.wait)
        return await asking

    assert asyncio.run(asked()) == (Verdict.DENY, NOBODY)


def test_concurrent_questions_get_their_own_answers() -> None:
    async def asked() -> list[tuple[Verdict, str]]:
        def decide(question: ToolQuestion) -> Verdict:
            return Verdict.ONCE if int(question.subject[1]) % 2 else Verdict.DENY

        with Approvals(Callback(decide)) as approvals:
            return await asyncio.gather(
                *(approvals.ask(tool(subject=("n", str(n)))) for n in range(200))
            )

    assert [verdict is Verdict.ONCE for verdict, _ in asyncio.run(asked())] == [
        bool(n % 2) for n in range(200)
    ]


def test_redaction_hides_no_executed_text_in_a_question() -> None:
    decide = Recorded(lambda question: Verdict.DENY)
    key = ("BEGIN RSA PRIVATE KEY", "END RSA PRIVATE KEY")
    with Approvals(Callback(decide)) as approvals:
        answers(
            approvals,
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


def test_shown_command_has_no_secret_and_remembered_rule_is_exact() -> None:
    decide = Recorded(lambda question: Verdict.DENY)
    hidden = "correct horse"
    question = tool(
        subject=("curl", hidden),
        lines=("curl --token abc123", f"x {hidden}"),
        diff=f"+password: {hidden}",
        reason=hidden,
    )
    with Approvals(Callback(decide), redactor=Redactor([hidden])) as approvals:
        answers(approvals, question)
    (seen,) = decide.seen
    assert hidden not in str((seen.lines, seen.diff, seen.reason))
    assert "abc123" not in seen.lines[0]
    assert MARK in str(seen.diff)
    assert seen.subject == question.subject


def test_an_answer_for_good_covers_the_same_call_only(dirs: UserDirs) -> None:
    keep(tool_for(tool(), dirs.origin), dirs.origin)
    with Approvals(DenyAll(), origin=dirs.origin) as approvals:
        assert answers(approvals, tool()) == [(Verdict.SESSION, ALWAYS)]
        others = [
            tool(subject=("git", "status", ";", "rm")),
            tool(cwd="/v"),
            tool(tool="zsh"),
            tool(subject=()),
        ]
        assert answers(approvals, *others) == [(Verdict.DENY, "deny-all")] * 4
    dirs.user("approved.toml", "nonsense")
    with Approvals(DenyAll(), origin=dirs.origin) as approvals:
        assert answers(approvals, tool()) == [(Verdict.DENY, "deny-all")]


class Forwarding:
    """An approver that forwards to the other end of a socket pair."""

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
        with Approvals(Forwarding(ours)) as approvals:
            others = [
                tool(tool="write_file", subject=("/w/x",)),
                tool(cwd="/v", lines=("x" * 70_000,)),
            ]
            results = answers(approvals, asked, asked, *others)
        ours.shutdown(socket.SHUT_RDWR)
        other.join()
    assert results == [
        (Verdict.SESSION, "callback"),
        (Verdict.SESSION, REMEMBERED),
        (Verdict.DENY, "callback"),
        (Verdict.DENY, "too long to be shown"),
    ]
    assert seen[0] == replace(asked, id=1, lines=("a", "b", "\udcff"))


def test_a_diff_that_is_too_long_is_cut_and_says_so() -> None:
    results = messages.ask(tool(diff="\n".join(f"+line {n}" for n in range(20_000))))
    assert results is not None
    question = messages.read(results)
    assert isinstance(question, ToolQuestion)
    assert question.diff is not None
    lines = question.diff.split("\n")
    assert lines[-1] == f"… {20_000 - len(lines) + 1} more lines are not shown …"


def test_the_end_of_the_other_process_denies() -> None:
    with connected() as (core, inbox), Approvals(Forwarding(core.line)) as approvals:
        core.line.settimeout(None)

        def hang_up() -> None:
            inbox.wait()
            core.line.shutdown(socket.SHUT_RDWR)

        other = threading.Thread(target=hang_up)
        other.start()
        assert answers(approvals, tool(), tool()) == [(Verdict.DENY, NOBODY)] * 2
        other.join()


def test_without_a_forwarded_approver_everything_is_denied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("paddock.approve.approvals_socket.server_dir", lambda uid: str(tmp_path))
    with Approvals(Server()) as approvals:
        assert answers(approvals, tool()) == [(Verdict.DENY, NOBODY)]
        assert isinstance(approvals.failure, FileNotFoundError)
    script = (
        "import asyncio; from paddock.approve import ToolQuestion; "
        "from paddock.approve.tool_approvals import Approvals;"
        "from paddock.approve.forwarding_approvers import AtTerminal\n"
        "with Approvals(AtTerminal()) as approvals:\n"
        "    question = ToolQuestion(tool='t', subject=('x',), lines=('x',), cwd='/', "
        "rule=None, reason=None)\n"
        "    print(asyncio.run(approvals.ask(question)))"
    )
    results = subprocess.run(
        [sys.executable, "-c", script], start_new_session=True, capture_output=True, text=True
    )
    assert results.stdout == "(<Verdict.DENY: 'deny'>, 'nobody')\n", results
