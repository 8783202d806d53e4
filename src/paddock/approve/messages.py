"""The messages between core and companion, one a datagram. The core is believed: a wrong one is a bug."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from paddock.approve.model import Parent, Question, Verdict
from paddock.canonical import canonical
from paddock.errors import CoreError

LONGEST = 64 * 1024


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Whoever wanted to know is gone, or the time is over."""

    id: int


def read(datagram: bytes) -> Question | Withdrawn:
    try:
        message = json.loads(datagram)
        if "withdrawn" in message:
            (number,) = message.values()
            return Withdrawn(_number(number))
        return _question(**message)
    except (ValueError, TypeError, RecursionError) as error:
        raise CoreError(f"a message of paddock-core is not understood: {error!r}", hint="reinstall paddock") from error


def answer(question: int, verdict: Verdict, by: str) -> bytes:
    return canonical({"answer": question, "verdict": verdict.value, "by": by}).encode("ascii")


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
