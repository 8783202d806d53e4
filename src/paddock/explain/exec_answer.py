"""The decision for one program: the result of the files, as the kernel gives it, and the decision
of the gate.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Mapping, Sequence

from paddock.explain.ask_gate import ExecDecision, MatchedRule
from paddock.explain.find_program import locate
from paddock.frozen import dataclass
from paddock.plan import Plan
from paddock.policy.model import Action


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecAnswer:
    """``failure``: the errno from the files. ``decision``: that of the gate; None: no gate, or no
    program.
    """

    chain: tuple[str, ...]
    failure: int | None
    decision: ExecDecision | None
    reason: str
    hint: str | None = None

    @property
    def allowed(self) -> bool:
        return self.failure is None and (self.decision is None or self.decision.allowed)

    @property
    def asked(self) -> bool:
        decision = self.decision
        return (
            self.failure is None
            and decision is not None
            and decision.action is Action.ASK
            and not decision.allowed
        )


def answer_exec(
    plan: Plan, words: Sequence[str], cwd: str, environ: Mapping[str, str]
) -> ExecAnswer:
    found = locate(plan, words, cwd, environ)
    if found is None:
        where = (
            "no directory in the command's PATH has it"
            if "/" not in words[0]
            else "the file, or its interpreter, does not exist in the sandbox"
        )
        return ExecAnswer(chain=(), failure=errno.ENOENT, decision=None, reason=where)
    chain, decision = found.judged.chain, found.judged.decision
    # The gate is asked before the kernel reads any file.
    if found.failure is not None and not (decision and decision.cause == "unseen"):
        path = chain[0] if chain else os.path.join(cwd, found.path)
        reason, hint = _files_refuse(found.failure, path)
        return ExecAnswer(
            chain=chain, failure=found.failure, decision=decision, reason=reason, hint=hint
        )
    if decision is None:
        return ExecAnswer(
            chain=chain, failure=None, decision=None, reason="there are no exec rules"
        )
    return ExecAnswer(
        chain=chain,
        failure=None,
        decision=decision,
        reason=_because(decision),
        hint=_hint(decision, chain, words),
    )


def _files_refuse(failure: int, path: str) -> tuple[str, str]:
    if failure == errno.ELOOP:
        return (
            "its interpreter is a script whose interpreter is a script, more often than the "
            "kernel allows",
            "name a program, not a script, in the `#!` line",
        )
    reason = f"the sandbox denies executing the file ({os.strerror(failure)})"
    return reason, f"type `paddock why --op exec --path {shlex.quote(path)}` to see why"


def _because(decision: ExecDecision) -> str:
    if decision.approved:
        return f"approved earlier ({decision.approved.source}); {_asking(decision)} asks"
    match decision.cause:
        case "rule":
            return _named(decision.rule)
        case "error":
            return f"{_named(decision.rule)} cannot be checked: {decision.error}"
        case "unseen":
            return f"no rule can allow it: {decision.error}"
        case _:
            return f"no rule matches, and default_action is {decision.action.value}"


def _asking(decision: ExecDecision) -> str:
    return _named(decision.rule) if decision.rule else "default_action"


def _named(rule: MatchedRule | None) -> str:
    return f"rule {rule.id!r} ({rule.source})" if rule else "a rule"


def _hint(decision: ExecDecision, chain: tuple[str, ...], words: Sequence[str]) -> str | None:
    if decision.allowed:
        return None
    if decision.doubted:
        return (
            f"{_named(decision.doubted)} almost matches; an allow rule must match the file itself "
            f"({chain[0]}), which no command could have created, and the exact arguments "
            f"({words[0]!r} first)"
        )
    return None
