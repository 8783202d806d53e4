"""One exec → what the gate answers. The core's rule engine is the only one (``core/src/gate/rules.rs``)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from paddock import core
from paddock.errors import CoreError
from paddock.plan import Plan
from paddock.policy.model import Action


@dataclass(frozen=True, slots=True)
class File:
    named: str  # as execve(2) or the ``#!`` line has it
    real: str  # where that leads
    argument: str | None = None  # what the ``#!`` line gives to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """``chain``: every file it brings to run, the one asked for first. Whoever asks beforehand does not know the
    parent: rules that look at it can not be judged then."""

    chain: tuple[File, ...]
    argv: tuple[str, ...]
    cwd: str
    uid: int
    parent: None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOf:
    id: str
    source: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``cause``: ``rule``, ``default``, ``not-granted`` (allowed by default, but the command could have made the
    program) or ``error`` (``rule`` could not be judged: ``error`` says why). ``doubted``: the rule that would have
    allowed it and held only by a name that does not count. ``approved``: what answers the question, if it is one."""

    action: Action
    cause: str
    rule: RuleOf | None
    error: str | None
    doubted: RuleOf | None
    approved: RuleOf | None = None

    @property
    def allowed(self) -> bool:
        return self.action is Action.ALLOW or self.approved is not None


def judge_exec(plan: Plan, asked: Exec) -> Decision:
    answer = core.ask("judge", plan=plan, question=json.dumps(asdict(asked)))
    try:
        return Decision(
            action=Action(answer["action"]),
            cause=str(answer["cause"]),
            rule=_rule(answer["rule"]),
            error=None if answer["error"] is None else str(answer["error"]),
            doubted=_rule(answer["doubted"]),
            approved=_rule(answer["approved"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CoreError(f"the answer of paddock-core is not understood: {error!r}", hint="reinstall paddock") from error


def _rule(answer: Any) -> RuleOf | None:
    return None if answer is None else RuleOf(id=answer["id"], source=answer["source"], reason=answer["reason"])
