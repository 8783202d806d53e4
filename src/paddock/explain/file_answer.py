"""What a command would meet at one path: the plan's reasoning, the kernel's own try, and the file's
permissions.

The kernel has the last word wherever it can be asked without doing the act. Where it can not (a
directory is not opened for writing, a new name is not made for the sake of a question) the
permissions are looked at beside the plan.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container
from dataclasses import dataclass, replace

from paddock.core import process as core
from paddock.errors import Bug, CoreError
from paddock.explain.file_rules import PRIVATE, Judge, Judgement, Operation, existing
from paddock.launch.covers import covers_of
from paddock.plan import Plan
from paddock.plan.paths import within
from paddock.policy.model import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The act, behind the very fence: ``allowed``, ``denied``, ``missing``; ``untried``: trying
    would be doing.
    """

    outcome: str
    errno: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAnswer:
    allowed: bool
    reason: str
    judgement: Judgement
    tried: Tried


def judge_for(plan: Plan, *, to_make: Container[str] = ()) -> Judge:
    """The reasoning, with the core's word on what it closes, and what it lays over the names that
    are there now.
    """
    if plan.files is not None:
        # Links in closed directories count like names that are denied, and the core alone lists
        # them.
        closed = tuple(str(path) for path in core.ask("closed", plan=plan))
        plan = replace(plan, files=replace(plan.files, closed=closed))
    if plan.tier is not Tier.FULL or plan.files is None:
        return Judge(plan, to_make=to_make)
    return Judge(plan, covers=covers_of(plan).covers, to_make=to_make)


def answer(
    plan: Plan, path: str, operation: Operation, *, to_make: Container[str] = ()
) -> FileAnswer:
    judgement = judge_for(plan, to_make=to_make)(path, operation)
    tried = _try(plan, path, operation)
    _agree(judgement, tried, path)
    if tried.outcome == "allowed" and not judgement.allowed:
        return _answered(True, "a descriptor that is already open", judgement, tried)
    if not judgement.allowed:
        return _answered(False, judgement.reason, judgement, tried)
    forbidden = tried.errno if tried.outcome == "denied" else None
    if tried.outcome != "denied" and not _is_own(plan, judgement.path):
        forbidden = _forbidden(judgement.path, operation, tried)
    if forbidden:
        reason = f"the sandbox allows it, but the file's own permissions do not ({forbidden})"
        return _answered(False, reason, judgement, tried)
    return _answered(True, judgement.reason, judgement, tried)


def _answered(allowed: bool, reason: str, judgement: Judgement, tried: Tried) -> FileAnswer:
    return FileAnswer(allowed=allowed, reason=reason, judgement=judgement, tried=tried)


def _try(plan: Plan, path: str, operation: Operation) -> Tried:
    reply = core.ask("attempt", "--op", operation.value, path, plan=plan)
    try:
        return Tried(outcome=str(reply["outcome"]), errno=reply["errno"])
    except (KeyError, TypeError) as error:
        raise CoreError(
            f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error


def _is_own(plan: Plan, path: str) -> bool:
    """Made anew for the run: what the host has there tells nothing."""
    return plan.tier is Tier.FULL and any(within(path, place) for place in PRIVATE)


def _forbidden(path: str, operation: Operation, tried: Tried) -> str | None:
    """What stands in the way of an act that the kernel was not asked about; None: nothing does."""
    if tried.outcome == "allowed":
        return None
    match operation:
        case Operation.WRITE:
            place = existing(path)
            needed = os.W_OK | os.X_OK if os.path.isdir(place) else os.W_OK
        case Operation.EXEC if tried.outcome == "untried":
            place, needed = path, os.X_OK
        case _:
            return None
    if os.access(place, needed):
        return None
    facts = os.stat(place)
    return f"{place}: mode {stat.S_IMODE(facts.st_mode):04o}, uid {facts.st_uid}"


def _agree(judgement: Judgement, tried: Tried, path: str) -> None:
    """The kernel may be stricter than the grants (file modes). It must never be more open."""
    if (
        tried.outcome == "allowed"
        and not judgement.allowed
        and not path.startswith(("/dev/", "/proc/"))
    ):
        raise Bug(
            f"the kernel allows {path} and the plan says: {judgement.reason}",
            hint="please report it",
        )
