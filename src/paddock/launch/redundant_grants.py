"""Removes grants that another grant covers on this machine, because a launch opens each of them.

With a merged /usr these are /bin, /lib and similar. Landlock adds rights along the path to a file,
so leaving one out changes no decision. In the full tier each has its own mount or link, and all
stay.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace

from paddock.frozen import dataclass
from paddock.plan import Plan
from paddock.plan.path_containment import touch, within
from paddock.plan.plan import Files, PathGrant
from paddock.plan.rights import WRITES
from paddock.policy.model import Tier


@dataclass(frozen=True, slots=True)
class _ResolvedGrant:
    grant: PathGrant
    real: str
    rights: frozenset[str]


def without_covered(plan: Plan) -> Plan:
    if plan.tier is not Tier.LANDLOCK or plan.files is None or plan.landlock is None:
        return plan
    access = {name: frozenset(rights) for name, rights in plan.landlock.access.items()}
    resolved = [
        _ResolvedGrant(grant, real, access[grant.access])
        for grant in plan.files.grants
        if (real := _real(grant.path))
    ]
    # A grant behind a link depends on that link, and covers no other.
    direct = [one for one in resolved if one.real == one.grant.path]
    unwritable = _with_real(plan.files.unwritable)
    spare: set[int] = set()
    for one in resolved:
        others = (other for other in direct if other is not one and id(other.grant) not in spare)
        if any(_covers(other, one, unwritable) for other in others):
            spare.add(id(one.grant))
    files: Files = replace(
        plan.files, grants=tuple(grant for grant in plan.files.grants if id(grant) not in spare)
    )
    return replace(plan, files=files)


def _covers(other: _ResolvedGrant, one: _ResolvedGrant, unwritable: Iterable[str]) -> bool:
    if (
        one.grant.access == "exec"
    ):  # a grant of programs means more than its rights: they may be executed, whatever wrote them
        return False
    if not (one.rights <= other.rights and within(one.real, other.real)):
        return False
    excluded = [*_with_real(other.grant.except_)]
    if other.grant.access in WRITES and one.grant.access not in WRITES:
        excluded += unwritable  # a write grant excludes them, a read grant does not
    return not any(touch(one.real, path) for path in excluded) and not _is_socket(one.real)


def _is_socket(path: str) -> bool:
    """A grant of a socket also means more than its rights: it may be connected to."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _with_real(paths: Iterable[str]) -> list[str]:
    return [name for path in paths for name in (path, os.path.realpath(path))]


def _real(path: str) -> str | None:
    """None: the path does not exist, or can not be examined."""
    try:
        return os.path.realpath(path, strict=True)
    except OSError:
        return None
