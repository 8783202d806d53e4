"""Compares two plans of one session, because the core of a session can start more than once.

Between two starts another run can change what a grant leads to, and a file of the policy can
change. Code of the session may have relied on the first plan. So a later plan may close more, and
it may know more previously writable paths. Any other difference counts as wider.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from paddock.plan.plan import Files, Gate, NetworkPlan, Plan, ShellPlan

_UNCOMPARED = ("files", "notices")


Exists = Callable[[str], bool]


def widened(before: Plan, now: Plan, exists: Exists) -> str | None:
    """What the later plan opens, or the part of it that differs. None: it opens nothing more.
    ``exists``: whether there is an object at a path. A removed journal is not closed any more.
    """
    return None if before == now else next(_differences(before, now, exists), None)


def _differences(before: Plan, now: Plan, exists: Exists) -> Iterator[str]:
    yield from _of_files(before.files, now.files, exists)
    for field in fields(Plan):
        values = (_compared(getattr(plan, field.name)) for plan in (before, now))
        if field.name not in _UNCOMPARED and next(values) != next(values):
            yield field.name


def _of_files(before: Files | None, now: Files | None, exists: Exists) -> Iterator[str]:
    if before is None:
        return
    if now is None:
        yield "files"
        return
    excepts = {(grant.path, grant.access): set(grant.except_) for grant in before.grants}
    for grant in now.grants:
        known = excepts.get((grant.path, grant.access))
        if known is None or any(map(exists, known - set(grant.except_))):
            yield f"{grant.path} ({grant.access})"
    for name in ("closed", "unwritable"):
        dropped_paths = set(getattr(before, name)) - set(getattr(now, name))
        yield from sorted(f"{path} ({name})" for path in dropped_paths if exists(path))
    for name in ("reached", "denied", "protected"):
        dropped = set(getattr(before, name)) - set(getattr(now, name))
        yield from sorted(f"{getattr(one, 'path', one)} ({name})" for one in dropped)
    yield from sorted(set(now.excepted) - set(before.excepted))


def _compared(value: object) -> object:
    """Without answers that the user gave meanwhile (``approved``)."""
    match value:
        case Gate():
            return replace(value, approved=())
        case NetworkPlan():
            return replace(value, approved=())
        case ShellPlan():
            inside = json.loads(value.plan)
            inside["files"]["reached"] = []
            return value.on_failure, inside
    return value
