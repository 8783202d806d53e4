"""The decision for one path: the reasoning from the plan, an attempt by the kernel, and the
permissions of the file.

The kernel decides if it can be asked without doing the operation. Otherwise the permissions are
checked together with the plan: a directory is not opened for writing, and a new name is not created
for a question.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container
from dataclasses import replace

from paddock.core import process as core
from paddock.errors import Bug, CoreError
from paddock.explain.file_rules import PRIVATE, Judge, Judgement, Operation, existing
from paddock.frozen import dataclass
from paddock.launch.found_covers import covers_of
from paddock.plan import Plan
from paddock.plan.path_containment import within
from paddock.policy.model import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAttempt:
    """The operation inside the same sandbox: ``allowed``, ``denied``, ``missing``. ``untried``:
    trying would do the operation.
    """

    outcome: str
    errno: str | None


_UNTRIED = FileAttempt(outcome="untried", errno=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAnswer:
    allowed: bool
    reason: str
    judgement: Judgement
    attempt: FileAttempt


def judge_for(plan: Plan, *, to_make: Container[str] = ()) -> Judge:
    """The reasoning, with the core's list of denied paths and of the covers over existing names."""
    if plan.files is not None:
        # Links in denied directories count like denied names. Only the core lists them.
        closed = tuple(str(path) for path in core.ask("closed", plan=plan))
        plan = replace(plan, files=replace(plan.files, closed=closed))
    if plan.tier is not Tier.FULL or plan.files is None:
        return Judge(plan, to_make=to_make)
    return Judge(plan, covers=covers_of(plan).covers, to_make=to_make)


def answer(plan: Plan, path: str, operation: Operation, judge: Judge) -> FileAnswer:
    """``judge``: the result of ``judge_for``. It takes a while, and serves many answers."""
    judgement = judge(path, operation)
    # An attempt has no init, so it says nothing about a name that init judges.
    attempt = _UNTRIED if judgement.by_init else _try(plan, path, operation)
    _agree(judgement, attempt, path)
    if attempt.outcome == "allowed" and not judgement.allowed:
        return _answered(True, "a descriptor that is already open", judgement, attempt)
    if not judgement.allowed:
        return _answered(False, judgement.reason, judgement, attempt)
    forbidden = attempt.errno if attempt.outcome == "denied" else None
    if attempt.outcome != "denied" and not _is_own(plan, judgement.path):
        forbidden = _forbidden(judgement.path, operation, attempt)
    if forbidden:
        reason = f"the sandbox allows it, but the file's own permissions do not ({forbidden})"
        return _answered(False, reason, judgement, attempt)
    return _answered(True, judgement.reason, judgement, attempt)


def _answered(allowed: bool, reason: str, judgement: Judgement, attempt: FileAttempt) -> FileAnswer:
    return FileAnswer(allowed=allowed, reason=reason, judgement=judgement, attempt=attempt)


def _try(plan: Plan, path: str, operation: Operation) -> FileAttempt:
    reply = core.ask("attempt", "--op", operation.value, path, plan=plan)
    try:
        return FileAttempt(outcome=str(reply["outcome"]), errno=reply["errno"])
    except (KeyError, TypeError) as error:
        raise CoreError(
            f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error


def _is_own(plan: Plan, path: str) -> bool:
    """Created anew for the run, so the host's content there says nothing."""
    return plan.tier is Tier.FULL and any(within(path, private) for private in PRIVATE)


def _forbidden(path: str, operation: Operation, attempt: FileAttempt) -> str | None:
    """The obstacle for an operation that the kernel was not asked about; None: there is none."""
    if attempt.outcome == "allowed":
        return None
    match operation:
        case Operation.WRITE:
            checked = existing(path)
            needed = os.W_OK | os.X_OK if os.path.isdir(checked) else os.W_OK
        case Operation.EXEC if attempt.outcome == "untried":
            checked, needed = path, os.X_OK
        case _:
            return None
    if os.access(checked, needed):
        return None
    facts = os.stat(checked)
    return f"{checked}: mode {stat.S_IMODE(facts.st_mode):04o}, uid {facts.st_uid}"


def _agree(judgement: Judgement, attempt: FileAttempt, path: str) -> None:
    """The kernel may be stricter than the grants (file modes). It must never be more open."""
    if (
        attempt.outcome == "allowed"
        and not judgement.allowed
        and not path.startswith(("/dev/", "/proc/"))
    ):
        raise Bug(
            f"the kernel allows {path} and the plan says: {judgement.reason}",
            hint="please report it",
        )
