"""Grants without execution (``execute = false``), compared with the other grants.

Landlock adds rights: a right that one grant leaves out is given back by another grant over the same
files. At the same path the stricter grant counts, in any order. A grant of a parent directory, a
grant for executing and that of the loader can not be restricted without breaking them. Then the
policy contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paddock.errors import PolicyError
from paddock.plan.grants import LOADER, RequestedGrant
from paddock.plan.path_containment import within
from paddock.plan.plan import Level, Notice
from paddock.plan.rights import ACCESS, WITHOUT_EXECUTE


def hold_off(
    asked: Iterable[RequestedGrant], *, strict: bool, notices: list[Notice]
) -> list[RequestedGrant]:
    """``strict``: a conflict is an error; otherwise it is a notice."""
    grants = list(asked)
    off = [one for one in grants if one.access in WITHOUT_EXECUTE.values()]
    at = {one.path for one in off}
    held: list[RequestedGrant] = []
    for one in grants:
        if one.path in at and one.access in WITHOUT_EXECUTE and one.source != LOADER:
            one = replace(one, access=WITHOUT_EXECUTE[one.access])
        elif "execute" in ACCESS[one.access]:
            for tighter in off:
                if within(tighter.path, one.path):
                    _contradiction(tighter, one, strict=strict, notices=notices)
        held.append(one)
    return held


def _contradiction(
    tighter: RequestedGrant, other: RequestedGrant, *, strict: bool, notices: list[Notice]
) -> None:
    text = (
        f"execute = false cannot be enforced for {tighter.path}: {other.path} is granted with "
        f"execution ({other.source})"
    )
    if strict:
        raise PolicyError(
            text, where=tighter.source, hint="Landlock adds grants together: narrow the other grant"
        )
    notices.append(Notice(level=Level.UNENFORCED, text=f"{tighter.source}: {text}"))
