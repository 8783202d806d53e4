"""The messages between core and companion, one a datagram. The core is believed: a wrong one is a
bug.

A program's own desk asks the same way where its approver is another process, and adds questions
about tools.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any

from paddock.approve.model import (
    Asked,
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
class Withdrawn:
    """Whoever wanted to know is gone, or the time is over."""

    id: int


Message = Asked | Withdrawn


def read(datagram: bytes) -> Message:
    try:
        message = json.loads(datagram)
        if "withdrawn" in message:
            (number,) = message.values()
            return Withdrawn(_number(number))
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
class Answered:
    id: int
    verdict: Verdict
    by: str


def read_answer(datagram: bytes) -> Answered:
    def said(*, answer: Any, verdict: Any, by: Any) -> Answered:
        return Answered(_number(answer), Verdict(verdict), _text(by))

    try:
        return said(**json.loads(datagram))
    except (ValueError, TypeError, RecursionError) as error:
        raise CoreError(
            f"an approver sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error


def ask(question: Asked) -> bytes | None:
    """A diff that is too long is cut, and says so. None: the rest is too long to be shown."""
    said = _asked(question)
    if len(said) > MAX_MESSAGE_BYTES and isinstance(question, ToolQuestion) and question.diff:
        lines = question.diff.splitlines()
        while len(said) > MAX_MESSAGE_BYTES and lines:
            del lines[len(lines) // 2 :]
            left = f"… {len(question.diff.splitlines()) - len(lines)} more lines are not shown …"
            said = _asked(replace(question, diff="\n".join([*lines, left])))
    return said if len(said) <= MAX_MESSAGE_BYTES else None


def withdraw(question: int) -> bytes:
    return canonical({"withdrawn": question}).encode("ascii")


def _asked(question: Asked) -> bytes:
    said = {one.name: getattr(question, one.name) for one in fields(question) if one.name != "id"}
    if isinstance(question, Question):
        said["parent"] = question.parent and {
            "exe": question.parent.exe,
            "argv": question.parent.argv,
        }
    if isinstance(question, HostQuestion):
        said["process"] = question.process and {
            "pid": question.process.pid,
            "exe": question.process.exe,
        }
    said["timeout_s"] = max(1, math.ceil(question.timeout_s))
    return canonical({"ask": question.id, **said}).encode("ascii")


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
