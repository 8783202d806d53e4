"""What the fence answers for a path, and because of which grant: the reasoning behind ``paddock why``.

Follows Landlock's own rule: the rights on a file are the union of what the grants on it and on the directories above it
give. In the full tier mounts hold the same grants, and masks and locks lie on top. ``paddock-core attempt`` asks the
kernel the same question; a test holds the two answers together.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterable
from dataclasses import dataclass
from enum import Enum

from paddock.plan.grants import TMP
from paddock.plan.model import Files, PathGrant, Plan
from paddock.plan.paths import with_parents, within
from paddock.plan.rights import ACCESS, WITHOUT_EXECUTE, WRITES
from paddock.policy.glob import Glob
from paddock.policy.model import Tier
from paddock.policy.protected import protected_because

# Made anew for each run of the full tier: what the host has there is not in them.
PRIVATE = (TMP, "/var/tmp", "/dev", "/proc")


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
    if plan.files is None:
        return Judgement(allowed=True, path=real, grants=(), reason="files are not fenced: every path is open")
    needed, bearer = _needed(real, operation, to_make)
    giving: list[PathGrant] = []
    near: list[PathGrant] = []
    given: set[str] = set()
    kept_out: str | None = None
    for grant in plan.files.grants:
        if not within(bearer, os.path.realpath(grant.path)):
            continue
        why = _kept_out(plan.files, grant, bearer) if plan.tier is Tier.LANDLOCK else None
        rights = set() if why else _rights(plan, grant)
        (giving if needed & rights else near).append(grant)
        given |= rights
        kept_out = kept_out or why
    if closed := _closed(plan.files, real, bearer, operation):
        return Judgement(allowed=False, path=real, grants=tuple(near), reason=closed, closed=True)
    if needed <= given:
        said = f"granted by {giving[0].source}"
        if plan.tier is Tier.FULL and any(within(real, place) for place in PRIVATE):
            said = f"{giving[0].path} is the run's own: what the host has there is not in it"
        return Judgement(allowed=True, path=real, grants=tuple(giving), reason=said)
    if kept_out:
        said = kept_out
    elif given:
        said = f"granted only for {', '.join(sorted({grant.access for grant in near}))}"
    else:
        said = "outside every grant"
    return Judgement(allowed=False, path=real, grants=tuple(near), reason=said)


def _rights(plan: Plan, grant: PathGrant) -> set[str]:
    if plan.landlock is not None:
        return set(plan.landlock.access[grant.access])
    # By mounts alone: what can be written can be read, and what is not mounted noexec can be executed.
    if grant.access in WITHOUT_EXECUTE.values():
        return set(ACCESS[grant.access])
    return set(ACCESS["allow"] if grant.access in WRITES else ACCESS["read"] | ACCESS[grant.access])


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


def _closed(files: Files, real: str, bearer: str, operation: Operation) -> str | None:
    """The reason why no grant would open it, if there is one."""
    names = (*files.closed, *(files.unwritable if operation is Operation.WRITE else ()))
    for name in names:
        if within(bearer, os.path.realpath(name)):
            return f"{name} stays closed, whatever is granted"
    places = with_parents(real)
    if denied := _matching(files.deny, places):
        return f"the deny {denied} stays closed, whatever is granted"
    if operation is Operation.WRITE:
        kept = [place for place in places if not _matching(files.excepted, [place])]
        if _matching(files.protected, [place for place in kept if not _is_git_directory(place)]):
            why = protected_because(real)
            return "protected: read-only in what can be written" + (f", because {why}" if why else "")
    return None


def _matching(patterns: Iterable[str], paths: list[str]) -> str | None:
    """The first pattern that one of the paths matches as a whole."""
    for pattern in patterns:
        glob = Glob.parse(pattern)
        if any(glob.matches(path) for path in paths):
            return pattern
    return None


def _is_git_directory(path: str) -> bool:
    """A directory of that name is only pinned; what is protected in it has names of its own."""
    return os.path.basename(path) == ".git" and os.path.isdir(path) and not os.path.islink(path)


def _kept_out(files: Files, grant: PathGrant, path: str) -> str | None:
    """Why this grant does not reach the path, if a closed place keeps it away."""
    closed = {*grant.except_, *files.closed, *(files.unwritable if grant.access in WRITES else ())}
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
