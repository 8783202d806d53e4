"""What stands in the way of each change: the host's own changes, masks, protected names, and other
changes.

The host changed a file if its ctime is later than the session's start, unless an apply of this very
session knows it as it is. ctime can not be set by anybody, and moves with content, mode, link and
rename alike. But a file below a directory that is moved keeps its own: so each directory on the way
has to be the one that was there at the start, by its number, or, where that was not noted, be
unchanged itself. A change that is none (``touch``) costs a person a question; one that is
overlooked costs their work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from paddock.workspace.masked_names import Hidden
from paddock.workspace.model import (
    ROOT,
    Change,
    ChangeKind,
    Obstacle,
    TreeEntry,
    Type,
    above,
    inside,
)
from paddock.workspace.record import Record
from paddock.workspace.repositories import Repositories

_HOST_CHANGED = "changed on the host since the session started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The paths a person named; none: everything."""

    paths: tuple[str, ...] = ()

    def holds(self, change: Change) -> bool:
        """Also a new directory that a named path lies in: without it there is no place for the
        path.
        """
        return not self.paths or self.names(change)

    def names(self, change: Change, among: Callable[[str], bool] = lambda path: True) -> bool:
        needed = change.kind is ChangeKind.ADDED and change.makes_directory
        return any(
            inside(change.path, one) or (needed and inside(one, change.path))
            for one in self.paths
            if among(one)
        )


class IsProtected(Protocol):
    def __call__(self, path: str, *, directory: bool, link: bool = False) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Under which a session's changes are judged."""

    started_ns: int
    is_protected: IsProtected
    directories: Mapping[str, int] = field(
        default_factory=dict
    )  # of the workspace at the start, with their numbers
    obeyed: frozenset[str] = frozenset()  # outside, whatever their names
    repositories: Repositories = field(
        default_factory=Repositories
    )  # that the session has a part in
    hidden: Hidden = field(default_factory=Hidden)
    mounted: frozenset[str] = (
        frozenset()
    )  # where another file system covers the workspace: the session did not see it
    selection: Selection = Selection()
    overwrite: bool = False  # in the selection, the session wins over the host


def judge(changes: list[Change], terms: Terms, record: Record) -> list[Change]:
    """The same changes in the same order; those that can not be applied have an obstacle now."""
    judged = {change.path: _alone(change, terms, record) for change in changes}
    _hold_back_children(judged, terms.selection)
    _hold_back_parents(judged, terms.selection)
    _hold_back_children(judged, terms.selection)
    return [judged[change.path] for change in changes]


def is_clean(path: str, directory: TreeEntry, started_ns: int, record: Record) -> bool:
    """Nobody but this session touched the directory since the start. After an apply only its mode
    can tell.
    """
    return directory.ctime_ns <= started_ns or directory.permissions in record.directories.get(
        path, ()
    )


def _alone(change: Change, terms: Terms, record: Record) -> Change:
    if change.obstacle:
        return change
    path = change.path
    if terms.hidden(path, on_host=change.old is not None):
        return _with(
            change, Obstacle.MASKED, "the host has a file there that was hidden from the command"
        )
    if any(inside(path, one) for one in terms.mounted):
        return _with(change, Obstacle.CONFLICT, "another file system is mounted there")
    if _protected(change, terms):
        reason = "a program outside may run or trust it: check it, then give its path to apply it"
        return _with(change, Obstacle.PROTECTED, reason)
    conflict = _conflict(change, terms, record)
    if not conflict:
        return change
    if terms.overwrite and terms.selection.names(change):
        return replace(change, overwrites=True)
    return _with(change, Obstacle.CONFLICT, conflict)


def _protected(change: Change, terms: Terms) -> bool:
    directory = all(one is None or one.type is Type.DIRECTORY for one in (change.old, change.new))

    def itself(named: str) -> bool:
        """A directory that merely holds protected names does not name them."""
        if terms.repositories.protect(named) or any(inside(named, one) for one in terms.obeyed):
            return True
        whole = named == change.path
        link = whole and change.new is not None and change.new.type is Type.LINK
        if link and _written_through(named, terms):
            return True
        return terms.is_protected(named, directory=directory or not whole, link=link)

    return itself(change.path) and not terms.selection.names(change, among=itself)


def _written_through(link: str, terms: Terms) -> bool:
    """Git writes to names in its own directory without a look at what they are: its configuration,
    or a file elsewhere, would get what it says there.
    """
    directory = link.rpartition("/")[0] or ROOT
    names = directory.split("/")
    if ".git" not in names:
        return terms.repositories.are_written_in(directory)
    repository = "/".join(names[: names.index(".git") + 1])
    return terms.is_protected(f"{repository}/config", directory=False)


def _conflict(change: Change, terms: Terms, record: Record) -> str | None:
    if change.old is None:
        return _deleted_meanwhile(change, terms, record)
    if other := next(
        (path for path, one in change.old_way if not _is_same(path, one, terms, record)), None
    ):
        return f"{other} is perhaps not the same directory as when the session started"
    if change.old.type is Type.DIRECTORY:
        return (
            None if is_clean(change.path, change.old, terms.started_ns, record) else _HOST_CHANGED
        )
    if change.old.ctime_ns <= terms.started_ns or change.old.identity in record.known:
        return None
    return _HOST_CHANGED


def _is_same(path: str, directory: TreeEntry, terms: Terms, record: Record) -> bool:
    known = terms.directories.get(path)
    if known is None:
        return is_clean(path, directory, terms.started_ns, record)
    return known == directory.inode or record.made(directory)


def _deleted_meanwhile(change: Change, terms: Terms, record: Record) -> str | None:
    """The session has a copy of a file that the host no longer has. If the command did not just
    rename another one to this name, the host removed it, and that shows on the directory it was in.
    """
    if not change.copied_up or change.renamed_from or change.old_parent is None:
        return None
    parent = next(above(change.path), ROOT)
    if is_clean(parent, change.old_parent, terms.started_ns, record):
        return None
    return "deleted on the host since the session started"


def _hold_back_children(judged: dict[str, Change], selection: Selection) -> None:
    """Nothing can be put into a directory that is not made, and a directory is replaced with all
    that was in it or not at all.
    """
    for path, change in judged.items():
        if change.obstacle:
            continue
        for one in above(path):
            container = judged.get(one)
            if container is None or not (container.obstacle or not selection.holds(container)):
                continue
            replaced = container.kind is ChangeKind.TYPE and container.takes_away_directory
            if replaced or (container.makes_directory and change.kind is not ChangeKind.DELETED):
                judged[path] = _with(change, Obstacle.BLOCKED, f"apply skips {one}")
                break


def _hold_back_parents(judged: dict[str, Change], selection: Selection) -> None:
    """A directory is not taken away while something in it stays."""
    for path, change in list(judged.items()):
        if change.old is None or (change.obstacle is None and selection.holds(change)):
            continue
        for one in above(path):
            container = judged.get(one)
            if container and container.takes_away_directory and not container.obstacle:
                judged[one] = _with(container, Obstacle.BLOCKED, f"{path} stays")


def _with(change: Change, obstacle: Obstacle, reason: str) -> Change:
    return replace(change, obstacle=obstacle, reason=reason)
