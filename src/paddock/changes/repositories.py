"""Directories that git would take for a repository, whatever their name: it looks for HEAD, objects and refs in every
directory it is started in, and obeys the configuration beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from paddock.changes.model import ROOT, Change, above, inside
from paddock.changes.tree import entry, parent_of

_MAKE_ONE = ("HEAD", "objects", "refs")
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
        # With a commondir, objects and refs are found elsewhere.
        has = {part for part in (*_MAKE_ONE, "commondir") if _exists(_join(directory, part), by_path, lower)}
        if has.issuperset(_MAKE_ONE) or has.issuperset(("HEAD", "commondir")):
            yield directory


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
