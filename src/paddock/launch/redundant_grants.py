"""Grants that another one covers on this machine: a launch opens and rules each of them for
nothing.

With a merged /usr that is /bin, /lib and their like. Landlock adds rights up along the way to a
file, so leaving one of them out changes no answer. In the full tier each has its own mount or link,
and all stay.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace

from paddock.plan import Plan
from paddock.plan.model import Files, PathGrant
from paddock.plan.paths import touch, within
from paddock.plan.rights import WRITES
from paddock.policy.model import Tier


@dataclass(frozen=True, slots=True)
class _Placed:
    grant: PathGrant
    real: str
    rights: frozenset[str]


def without_covered(plan: Plan) -> Plan:
    if plan.tier is not Tier.LANDLOCK or plan.files is None or plan.landlock is None:
        return plan
    access = {name: frozenset(rights) for name, rights in plan.landlock.access.items()}
    placed = [
        _Placed(grant, real, access[grant.access])
        for grant in plan.files.grants
        if (real := _real(grant.path))
    ]
    # One that a link leads to depends on that link, and covers nothing.
    direct = [one for one in placed if one.real == one.grant.path]
    unwritable = _with_real(plan.files.unwritable)
    spare: set[int] = set()
    for one in placed:
        others = (other for other in direct if other is not one and id(other.grant) not in spare)
        if any(_covers(other, one, unwritable) for other in others):
            spare.add(id(one.grant))
    files: Files = replace(
        plan.files, grants=tuple(grant for grant in plan.files.grants if id(grant) not in spare)
    )
    return replace(plan, files=files)


def _covers(other: _Placed, one: _Placed, unwritable: Iterable[str]) -> bool:
    if (
        one.grant.access == "exec"
    ):  # says more than its rights: what lies there may be executed, whoever wrote it
        return False
    if not (one.rights <= other.rights and within(one.real, other.real)):
        return False
    kept_out = [*_with_real(other.grant.except_)]
    if other.grant.access in WRITES and one.grant.access not in WRITES:
        kept_out += unwritable  # a grant to write goes around them, one to read does not
    return not any(touch(one.real, place) for place in kept_out) and not _is_socket(one.real)


def _is_socket(path: str) -> bool:
    """Such a grant says more than its rights, too: it may be connected to."""
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def _with_real(paths: Iterable[str]) -> list[str]:
    return [name for path in paths for name in (path, os.path.realpath(path))]


def _real(path: str) -> str | None:
    """None: nothing is there, or it can not be seen."""
    try:
        return os.path.realpath(path, strict=True)
    except OSError:
        return None
