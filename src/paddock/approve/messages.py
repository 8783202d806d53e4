"""The messages between the core and the approver process, one message in a datagram. The core is
trusted: an invalid message is a bug.

An ``Approvals`` sends the same messages to an approver in another process, and adds questions about
tools.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any

from paddock.approve.questions import (
    AnyQuestion,
    Caller,
    HostQuestion,
    Parent,
    Question,
    ToolQuestion,
    Verdict,
)
from paddock.core.canonical import canonical
from paddock.errors import CoreError

MAX_MESSAGE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WithdrawMessage:
    """The asker has ended, or the time is over."""

    id: int


Message = AnyQuestion | WithdrawMessage


def read(datagram: bytes) -> Message:
    try:
        message = json.loads(datagram)
        if "withdrawn" in message:
            (number,) = message.values()
            return WithdrawMessage(_number(number))
        if "tool" in message:
            return _tool_question(**message)
        return _host_question(**message) if "host" in message else _question(**message)
    except (ValueError, TypeError, RecursionError) as error:
        raise CoreError(
            f"paddock-core sent an invalid message: {error!r}", hint="reinstall paddock"
        ) from error


def answer(question: int, verdict: Verdict, by: str) -> bytes:
    return canonical({"answer": question, "verdict": verdict.value, "by": by}).encode("ascii")


@dataclass(frozen=True, slots=True)
class AnswerMessage:
    id: int
    verdict: Verdict
    by: str


def read_answer(datagram: bytes) -> AnswerMessage:
    def text(*, answer: Any, verdict: Any, by: Any) -> AnswerMessage:
        return AnswerMessage(_number(answer), Verdict(verdict), _text(by))

    try:
        return text(**json.loads(datagram))
    except (ValueError, TypeError, RecursionError) as error:
        raise CoreError(
            f"an approver sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error


def ask(question: AnyQuestion) -> bytes | None:
    """Cuts a diff that is too long and marks the cut. None: the rest of the question is too long to
    be shown.
    """
    text = _asked(question)
    if len(text) > MAX_MESSAGE_BYTES and isinstance(question, ToolQuestion) and question.diff:
        lines = question.diff.splitlines()
        while len(text) > MAX_MESSAGE_BYTES and lines:
            del lines[len(lines) // 2 :]
            left = f"… {len(question.diff.splitlines()) - len(lines)} more lines are not shown …"
            text = _asked(replace(question, diff="\n".join([*lines, left])))
    return text if len(text) <= MAX_MESSAGE_BYTES else None


def withdraw(question: int) -> bytes:
    return canonical({"withdrawn": question}).encode("ascii")


def _asked(question: AnyQuestion) -> bytes:
    text = {one.name: getattr(question, one.name) for one in fields(question) if one.name != "id"}
    if isinstance(question, Question):
        text["parent"] = question.parent and {
            "exe": question.parent.exe,
            "argv": question.parent.argv,
        }
    if isinstance(question, HostQuestion):
        text["process"] = question.process and {
            "pid": question.process.pid,
            "exe": question.process.exe,
        }
    text["timeout_s"] = max(1, math.ceil(question.timeout_s))
    return canonical({"ask": question.id, **text}).encode("ascii")


def _tool_question(
    *,
    ask: Any,
    tool: Any,
    subject: Any,
    lines: Any,
    diff: Any,
    cwd: Any,
    rule: Any,
    reason: Any,
    timeout_s: Any,
) -> ToolQuestion:
    return ToolQuestion(
        id=_number(ask),
        tool=_text(tool),
        subject=_texts(subject),
        lines=_texts(lines),
        diff=None if diff is None else _text(diff),
        cwd=_text(cwd),
        rule=None if rule is None else _text(rule),
        reason=None if reason is None else _text(reason),
        timeout_s=_number(timeout_s),
    )


def _question(
    *,
    ask: Any,
    exe: Any,
    chain: Any,
    argv: Any,
    cwd: Any,
    pid: Any,
    parent: Any,
    rule: Any,
    source: Any,
    reason: Any,
    timeout_s: Any,
) -> Question:
    return Question(
        id=_number(ask),
        exe=_text(exe),
        chain=_texts(chain),
        argv=_texts(argv),
        cwd=_text(cwd),
        pid=_number(pid),
        parent=None if parent is None else _parent(**parent),
        rule=None if rule is None else _text(rule),
        source=_text(source),
        reason=None if reason is None else _text(reason),
        timeout_s=_number(timeout_s),
    )


def _host_question(
    *, ask: Any, host: Any, port: Any, process: Any, source: Any, timeout_s: Any
) -> HostQuestion:
    return HostQuestion(
        id=_number(ask),
        host=_text(host),
        port=_number(port),
        process=None if process is None else _caller(**process),
        source=_text(source),
        timeout_s=_number(timeout_s),
    )


def _caller(*, pid: Any, exe: Any) -> Caller:
    return Caller(pid=_number(pid), exe=_text(exe))


def _parent(*, exe: Any, argv: Any) -> Parent:
    return Parent(exe=_text(exe), argv=_texts(argv))


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(value)
    return tuple(map(_text, value))
