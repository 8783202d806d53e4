"""Obstacles of each change: changes of the host, masks, protected names, and other changes.

The host changed a file if its ctime is later than the start of the session, unless an apply of this
session recorded it. A ctime can not be set, and changes with content, mode, link and rename. But a
file below a renamed directory keeps its ctime. So each directory on the path must have the inode
number from the start, or, if that was not recorded, be unchanged itself. A false conflict
(``touch``) costs the user a question; an overlooked one would cost work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Protocol

from paddock.frozen import dataclass
from paddock.workspace.apply_record import Record
from paddock.workspace.change import (
    ROOT,
    Change,
    ChangeKind,
    Obstacle,
    TreeEntry,
    Type,
    above,
    inside,
)
from paddock.workspace.masked_names import HiddenNames
from paddock.workspace.repositories import Repositories

_HOST_CHANGED = "changed on the host since the session started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The paths that the user named; none: everything."""

    paths: tuple[str, ...] = ()

    def holds(self, change: Change) -> bool:
        """Also a new directory that contains a named path, because the path needs it."""
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
    """The conditions under which changes are judged."""

    started_ns: int
    is_protected: IsProtected
    directories: Mapping[str, int] = field(
        default_factory=dict
    )  # of the workspace at the start, with their inode numbers
    trusted_paths: frozenset[str] = frozenset()  # trusted outside, with any name
    repositories: Repositories = field(
        default_factory=Repositories
    )  # that contain changes of the session
    hidden: HiddenNames = field(default_factory=HiddenNames)
    mounted: frozenset[str] = (
        frozenset()
    )  # where another mount covers the workspace: the session did not see it
    contents: Mapping[str, bytes] = field(
        default_factory=dict
    )  # that files of git get in the place of those of the session
    selection: Selection = Selection()
    overwrite: bool = False  # in the selection, the session overrides the host


def judge(changes: list[Change], terms: Terms, record: Record) -> list[Change]:
    """The same changes in the same order, with obstacles for those that can not be applied."""
    judged = {change.path: _alone(change, terms, record) for change in changes}
    _hold_back_children(judged, terms.selection)
    _hold_back_parents(judged, terms.selection)
    _hold_back_children(judged, terms.selection)
    return [judged[change.path] for change in changes]


def is_clean(path: str, directory: TreeEntry, started_ns: int, record: Record) -> bool:
    """Only this session touched the directory since the start. After an apply only its mode shows
    this.
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
        """A directory that contains protected names is not protected itself."""
        if terms.repositories.protect(named) or any(
            inside(named, one) for one in terms.trusted_paths
        ):
            return True
        whole = named == change.path
        link = whole and change.new is not None and change.new.type is Type.LINK
        if link and _written_through(named, terms):
            return True
        return terms.is_protected(named, directory=directory or not whole, link=link)

    return itself(change.path) and not terms.selection.names(change, among=itself)


def _written_through(link: str, terms: Terms) -> bool:
    """Git writes to names in its own directory without checking their type. Through a link it would
    write into its configuration, or into a file elsewhere.
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
        (path for path, one in change.old_directories if not _is_same(path, one, terms, record)),
        None,
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
    """The session has a copy of a file that the host no longer has. Unless the command renamed
    another file to this name, the host removed it, and its directory shows that.
    """
    if not change.copied_up or change.renamed_from or change.old_parent is None:
        return None
    parent = next(above(change.path), ROOT)
    if is_clean(parent, change.old_parent, terms.started_ns, record):
        return None
    return "deleted on the host since the session started"


def _hold_back_children(judged: dict[str, Change], selection: Selection) -> None:
    """Nothing can be put into a directory that is not created. A directory is replaced with its
    whole content or not at all.
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
    """A directory is not removed while something in it stays."""
    for path, change in list(judged.items()):
        if change.old is None or (change.obstacle is None and selection.holds(change)):
            continue
        for one in above(path):
            container = judged.get(one)
            if container and container.takes_away_directory and not container.obstacle:
                judged[one] = _with(container, Obstacle.BLOCKED, f"{path} stays")


def _with(change: Change, obstacle: Obstacle, reason: str) -> Change:
    return replace(change, obstacle=obstacle, reason=reason)
