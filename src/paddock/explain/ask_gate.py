"""One exec → what the gate answers. The core's rule engine is the only one
(``core/src/gate/rules.rs``), and only it knows what the kernel would bring to run
(``core/src/gate/interpreter_chain.rs``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.plan import Plan
from paddock.policy.model import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """As execve(2) gets it. Whoever asks beforehand does not know the parent: rules that look at it
    can not be judged then.
    """

    path: str
    argv: tuple[str, ...]
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOf:
    id: str
    source: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecDecision:
    """``cause``: ``rule``, ``default``, ``not-granted`` (allowed by default, but the command could
    have made the program), ``unseen`` (no rule is asked: ``error`` says why) or ``error`` (``rule``
    could not be judged: ``error`` says why). ``doubted``: the rule that would have allowed it and
    held only by a name that does not count. ``approved``: what answers the question, if it is one.
    """

    action: Action
    cause: str
    rule: RuleOf | None
    error: str | None
    doubted: RuleOf | None
    approved: RuleOf | None = None

    @property
    def allowed(self) -> bool:
        return self.action is Action.ALLOW or self.approved is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedExec:
    """``chain``: every file it brings to run, the one asked for first; ``needs``: what the kernel
    opens besides, as it is named: interpreters, a loader. ``failure``: the kernel's own errno,
    where that is known. ``decision``: None where there is no gate, or nothing to judge.
    """

    chain: tuple[str, ...]
    needs: tuple[str, ...]
    failure: int | None
    decision: ExecDecision | None


def judge_exec(plan: Plan, asked: Exec) -> JudgedExec:
    answer = core.ask("judge", plan=plan, question=canonical(asdict(asked)))
    try:
        return JudgedExec(
            chain=tuple(map(str, answer["chain"])),
            needs=tuple(map(str, answer["needs"])),
            failure=answer["errno"],
            decision=_decision(answer["decision"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CoreError(
            f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error


def _decision(answer: Any) -> ExecDecision | None:
    if answer is None:
        return None
    return ExecDecision(
        action=Action(answer["action"]),
        cause=str(answer["cause"]),
        rule=_rule(answer["rule"]),
        error=None if answer["error"] is None else str(answer["error"]),
        doubted=_rule(answer["doubted"]),
        approved=_rule(answer["approved"]),
    )


def _rule(answer: Any) -> RuleOf | None:
    return (
        None
        if answer is None
        else RuleOf(id=answer["id"], source=answer["source"], reason=answer["reason"])
    )
