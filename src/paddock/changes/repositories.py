"""Directories that git would take for a repository, whatever their name: it looks for HEAD, objects and refs in every
directory it is started in, and obeys the configuration beside them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

from paddock.changes.model import ROOT, Change, above, inside
from paddock.changes.tree import entry, parent_of

_MAKE_ONE = ("HEAD", "objects", "refs")
_MAKING = (*_MAKE_ONE, "commondir")
_GIT = ".git"  # has patterns of its own

# What makes a repository, and what git executes or obeys in one.
PARTS = frozenset({*_MAKE_ONE, "config", "config.worktree", "commondir", "hooks", "info"})


def repositories_in(changes: Iterable[Change], lower: int) -> Iterator[str]:
    """Those in the session's view that a change has a part in."""
    by_path = {change.path: change for change in changes}
    seen = set()
    for path in (one for changed in by_path for one in (changed, *above(changed))):
        directory, name = _split(path)
        if name not in PARTS or directory in seen or _split(directory)[1] == _GIT:
            continue
        seen.add(directory)
        if _make_one({part for part in _MAKING if _exists(_join(directory, part), by_path, lower)}):
            yield directory


def made_by(path: str) -> str | None:
    """The directory that would become one by a file at this path of the host."""
    part = path
    while (directory := os.path.dirname(part)) != part:
        name = os.path.basename(part)
        if name in _MAKING and os.path.basename(directory) != _GIT:
            has = {one for one in _MAKING if os.path.lexists(f"{directory}/{one}")}
            if _make_one({*has, name}) and not _make_one(has):
                return directory
        part = directory
    return None


def _make_one(parts: set[str]) -> bool:
    """With a commondir, objects and refs are found elsewhere."""
    return parts.issuperset(_MAKE_ONE) or parts.issuperset(("HEAD", "commondir"))


def part_of(path: str, repositories: frozenset[str]) -> bool:
    return any(
        inside(path, one) and path != one and path.removeprefix(f"{one}/").split("/")[0] in PARTS
        for one in repositories
    )


def _exists(path: str, changes: Mapping[str, Change], lower: int) -> bool:
    change = changes.get(path)
    if change is not None:
        return change.new is not None
    with contextlib.suppress(OSError), parent_of(lower, path) as (directory, name):
        return entry(name, directory) is not None
    return False


def _split(path: str) -> tuple[str, str]:
    directory, _, name = path.rpartition("/")
    return directory or ROOT, name


def _join(directory: str, name: str) -> str:
    return name if directory == ROOT else f"{directory}/{name}"
