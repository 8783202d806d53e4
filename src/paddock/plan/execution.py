"""Grants whose execution is turned off (``execute = false``), held against the other grants.

Landlock adds rights up: what one grant leaves out, another over the same files gives back. At the
very same path the tighter word counts, whoever wrote the other one. A grant from further up, one
that is there for executing, or the loader's can not be made tighter without breaking it: then the
policy contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from paddock.errors import PolicyError
from paddock.plan.grants import LOADER, RequestedGrant
from paddock.plan.model import Level, Notice
from paddock.plan.paths import within
from paddock.plan.rights import ACCESS, WITHOUT_EXECUTE


def hold_off(
    asked: Iterable[RequestedGrant], *, strict: bool, notices: list[Notice]
) -> list[RequestedGrant]:
    """``strict``: what can not be held is an error, else it is said."""
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
