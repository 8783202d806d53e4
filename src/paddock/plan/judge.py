"""What the fence answers for a path, and because of which grant: the reasoning behind ``paddock why``.

Follows Landlock's own rule: the rights on a file are the union of what the grants on it and on the directories above it
give. ``paddock-core attempt`` asks the kernel the same question; a test holds the two answers together.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum

from paddock.plan.model import Landlock, PathGrant, Plan
from paddock.plan.paths import within
from paddock.plan.rights import WRITES


class Operation(Enum):
    READ = "read"
    WRITE = "write"
    EXEC = "exec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    allowed: bool
    path: str  # where the name really leads
    grants: tuple[
        PathGrant, ...
    ]  # that allow it; or, if denied, that come near: above the path, or carved away from it
    reason: str
    closed: bool = False  # no grant would open it


def judge(plan: Plan, path: str, operation: Operation, *, to_make: Container[str] = ()) -> Judgement:
    """``to_make``: directories that are not there and that the run will make."""
    real = os.path.realpath(path)
    if plan.landlock is None:
        return Judgement(allowed=True, path=real, grants=(), reason="Landlock is off: every path is open")
    needed, bearer = _needed(real, operation, to_make)
    giving: list[PathGrant] = []
    near: list[PathGrant] = []
    given: set[str] = set()
    kept_out: str | None = None
    for grant in plan.landlock.grants:
        if not within(bearer, os.path.realpath(grant.path)):
            continue
        why = _kept_out(plan.landlock, grant, bearer)
        rights = set() if why else set(plan.landlock.access[grant.access])
        (giving if needed & rights else near).append(grant)
        given |= rights
        kept_out = kept_out or why
    if needed <= given:
        return Judgement(allowed=True, path=real, grants=tuple(giving), reason=f"granted by {giving[0].source}")
    if closed := _closed(plan.landlock, bearer, operation):
        reason = f"{closed} stays closed, whatever is granted"
        return Judgement(allowed=False, path=real, grants=tuple(near), reason=reason, closed=True)
    if kept_out:
        reason = kept_out
    elif given:
        reason = f"granted only for {', '.join(sorted({grant.access for grant in near}))}"
    else:
        reason = "outside every grant"
    return Judgement(allowed=False, path=real, grants=tuple(near), reason=reason)


def _needed(real: str, operation: Operation, to_make: Container[str]) -> tuple[set[str], str]:
    """The rights the act takes, and the path they are looked up on: a new name is made in its directory."""
    try:
        directory = stat.S_ISDIR(os.lstat(real).st_mode)
    except OSError:
        return ({"make_reg"} if operation is Operation.WRITE else {"read_file"}), existing(real, to_make)
    match operation:
        case Operation.READ:
            return ({"read_dir"} if directory else {"read_file"}), real
        case Operation.WRITE:
            return ({"make_reg"} if directory else {"write_file"}), real
        case Operation.EXEC:
            return {"execute"}, real


def existing(path: str, to_make: Container[str] = ()) -> str:
    """The path, or the nearest directory above it that is there or will be."""
    while path not in to_make and not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _closed(landlock: Landlock, path: str, operation: Operation) -> str | None:
    names = (*landlock.closed, *(landlock.unwritable if operation is Operation.WRITE else ()))
    return next((name for name in names if within(path, os.path.realpath(name))), None)


def _kept_out(landlock: Landlock, grant: PathGrant, path: str) -> str | None:
    """Why this grant does not reach the path, if a closed place keeps it away."""
    closed = {*grant.except_, *landlock.closed, *(landlock.unwritable if grant.access in WRITES else ())}
    tree = os.path.realpath(grant.path)
    for name in sorted(closed):
        place = os.path.realpath(name)
        if within(path, place):
            return f"{name} stays closed inside {grant.path} ({grant.source})"
        if within(place, path) and within(place, tree):
            return (
                f"{path} holds {name}, which stays closed, so it is granted entry by entry "
                f"and not itself ({grant.source})"
            )
    return None
