"""Directories that git recognises as a repository under any name. Git looks for HEAD, objects and
refs in every directory it is started in, and obeys the configuration beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field

from paddock.frozen import dataclass
from paddock.policy.git_layout import GIT, MAKING, is_part, is_written, make_one
from paddock.workspace.change import ROOT, Change, above, inside
from paddock.workspace.dir_fd_access import entry, parent_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Repositories:
    """Git directories with other names than ``.git``, which has its own patterns."""

    known: frozenset[str] = frozenset()  # existing on the host
    made: frozenset[str] = frozenset()  # created by the session

    def protect(self, path: str) -> bool:
        """The parts that git executes or obeys; in a new one, also the parts that make it a
        repository.
        """
        for one in self.known | self.made:
            if path == one or not inside(path, one):
                continue
            part = path if one == ROOT else path[len(one) + 1 :]
            if is_part(part) or (one in self.made and part.split("/")[0] in MAKING):
                return True
        return False

    def are_written_in(self, directory: str) -> bool:
        """Whether git would write through a link there."""
        return is_written(directory, self.known | self.made)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    changes: Mapping[str, Change]
    lower: int
    _host: dict[str, bool] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        change = self.changes.get(path)
        return change.new is not None if change is not None else self.had(path)

    def had(self, path: str) -> bool:
        """On the host. Only a missing object counts as missing."""
        if path not in self._host:
            try:
                with parent_of(self.lower, path) as (directory, name):
                    self._host[path] = entry(name, directory) is not None
            except (FileNotFoundError, NotADirectoryError):
                self._host[path] = False
            except OSError:
                self._host[path] = True
        return self._host[path]


def repositories_in(changes: Iterable[Change], lower: int) -> Repositories:
    """Those in the session's view that contain a change."""
    view = _View(changes={change.path: change for change in changes}, lower=lower)
    known, made = set(), set()
    for directory in {one for changed in view.changes for one in (changed, *above(changed), ROOT)}:
        if directory.rpartition("/")[2] == GIT:
            continue
        if make_one(lambda name, at=directory: view.had(_join(at, name))):  # type: ignore[misc]
            known.add(directory)
        elif make_one(lambda name, at=directory: view.has(_join(at, name))):  # type: ignore[misc]
            made.add(directory)
    return Repositories(known=frozenset(known), made=frozenset(made))


def made_by(path: str) -> str | None:
    """The directory that a file at this path of the host would turn into a repository."""
    part = path
    while (directory := os.path.dirname(part)) != part:
        name = os.path.basename(part)
        if name in MAKING and os.path.basename(directory) != GIT:
            has = {one for one in MAKING if os.path.lexists(f"{directory}/{one}")}
            if make_one({*has, name}.__contains__) and not make_one(has.__contains__):
                return directory
        part = directory
    return None


def _join(directory: str, name: str) -> str:
    return name if directory == ROOT else f"{directory}/{name}"
