"""Change: one name whose state in the session differs from the workspace, with its obstacle.

A change is the smallest unit that can be applied: a deleted directory is one change, and so is each
name in it. Paths are relative to the workspace, ``.`` is its root. Names that are not UTF-8 are
surrogate escapes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from enum import Enum

from paddock.frozen import dataclass

PERMISSIONS = 0o777
ROOT = "."


class Type(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    LINK = "symlink"
    OTHER = "special file"  # fifo, socket, device

    @classmethod
    def of(cls, mode: int) -> Type:
        return _TYPES.get(stat.S_IFMT(mode), cls.OTHER)


_TYPES = {stat.S_IFREG: Type.FILE, stat.S_IFDIR: Type.DIRECTORY, stat.S_IFLNK: Type.LINK}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """The facts of the file system about one name."""

    type: Type
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    group: int
    links: int
    target: str | None = None  # of a symlink

    @classmethod
    def of(cls, facts: os.stat_result, target: str | None = None) -> TreeEntry:
        return cls(
            type=Type.of(facts.st_mode),
            mode=stat.S_IMODE(facts.st_mode),
            size=facts.st_size,
            mtime_ns=facts.st_mtime_ns,
            ctime_ns=facts.st_ctime_ns,
            inode=facts.st_ino,
            group=facts.st_gid,
            links=facts.st_nlink,
            target=target,
        )

    @property
    def permissions(self) -> int:
        return self.mode & PERMISSIONS

    @property
    def identity(self) -> FileVersion:
        return FileVersion(
            type=self.type, inode=self.inode, mode=self.mode, size=self.size, mtime_ns=self.mtime_ns
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """The facts that stay when a file is renamed, and change when it is written or replaced."""

    type: Type
    inode: int
    mode: int
    size: int
    mtime_ns: int

    def same(self, other: FileVersion) -> bool:
        """A directory stays the same when its content changes."""
        if self.type is Type.DIRECTORY:
            return other.type is Type.DIRECTORY and other.inode == self.inode
        return self == other


class ChangeKind(Enum):
    ADDED = "added"
    CHANGED = "changed"  # content of a file, target of a symlink
    DELETED = "deleted"
    MODE = "mode"
    TYPE = "type"  # a file became a directory, a directory a symlink, …


class Obstacle(Enum):
    """The reason why a change is not applied."""

    CONFLICT = "conflict"  # the host changed it too
    # programs outside would execute or trust it: applied only if it is named
    PROTECTED = "protected"
    MASKED = "masked"  # hidden from the command; never applied
    SPECIAL = "special"  # fifo, socket, device; never applied
    UNREADABLE = "unreadable"
    TOO_DEEP = "too deep"
    BLOCKED = "blocked"  # another change that it needs is not applied
    FAILED = "failed"


# The directories of the workspace that contain a path, without the root, with their paths.
EntryPath = tuple[tuple[str, TreeEntry], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    path: str
    kind: ChangeKind
    old: TreeEntry | None  # in the workspace
    new: TreeEntry | None  # in the session
    copied_up: bool = False  # the session started from the host's file, under this name or another
    # the directory in the workspace that contains it, if it exists
    old_parent: TreeEntry | None = None
    old_directories: EntryPath = ()
    renamed_from: str | None = None
    renamed_to: str | None = None
    obstacle: Obstacle | None = None
    reason: str = ""
    overwrites: bool = False  # a conflict that the user decided; the host's version is kept

    @property
    def takes_away_directory(self) -> bool:
        return (
            self.old is not None
            and self.old.type is Type.DIRECTORY
            and self.kind in (ChangeKind.DELETED, ChangeKind.TYPE)
        )

    @property
    def in_place(self) -> bool:
        """A mode that is changed in place. A file with several links is replaced, so that the other
        names keep their mode.
        """
        return self.kind is ChangeKind.MODE and not (
            self.old and self.old.type is Type.FILE and self.old.links > 1
        )

    @property
    def makes_directory(self) -> bool:
        return (
            self.new is not None
            and self.new.type is Type.DIRECTORY
            and self.kind in (ChangeKind.ADDED, ChangeKind.TYPE)
        )


def inside(path: str, top: str) -> bool:
    return top == ROOT or path == top or path.startswith(f"{top}/")


def above(path: str) -> Iterator[str]:
    """The directories that contain a path, nearest first, without the root."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
