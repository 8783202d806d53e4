"""The decision of the gate for one exec. The core has the only rule engine
(``core/src/gate/rules.rs``), and only it knows which files the kernel would run
(``core/src/gate/interpreter_chain.rs``).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paddock.core import process as core
from paddock.core.canonical import canonical
from paddock.errors import CoreError
from paddock.frozen import dataclass
from paddock.plan import Plan
from paddock.policy.model import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """The arguments of execve(2). The parent is unknown in advance, so rules about the parent can
    not be judged.
    """

    path: str
    argv: tuple[str, ...]
    cwd: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedRule:
    id: str
    source: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecDecision:
    """``cause``: ``rule``, ``default``, ``unseen`` (no rule applies: ``error`` has the reason) or
    ``error`` (``rule`` could not be judged: ``error`` has the reason). ``doubted``: the rule that
    would have allowed it, but matched only by a name that does not count. ``approved``: the stored
    answer to the question, if there is one.
    """

    action: Action
    cause: str
    rule: MatchedRule | None
    error: str | None
    doubted: MatchedRule | None
    approved: MatchedRule | None = None

    @property
    def allowed(self) -> bool:
        return self.action is Action.ALLOW or self.approved is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedExec:
    """``chain``: every file that runs, the requested one first. ``needs``: the other files that the
    kernel opens, as named: interpreters, a loader. ``failure``: the errno of the kernel, if known.
    ``decision``: None without a gate, or with nothing to judge.
    """

    chain: tuple[str, ...]
    needs: tuple[str, ...]
    failure: int | None
    decision: ExecDecision | None


def judge_exec(plan: Plan, question: Exec) -> JudgedExec:
    answer = core.ask("judge", plan=plan, question=canonical(asdict(question)))
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


def _rule(answer: Any) -> MatchedRule | None:
    return (
        None
        if answer is None
        else MatchedRule(id=answer["id"], source=answer["source"], reason=answer["reason"])
    )
