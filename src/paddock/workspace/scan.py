"""Finds the changes between upper and lower.

An upper directory of an overlay mounted with ``userxattr`` has only three forms, because the kernel
refuses ``redirect_dir`` and ``metacopy`` there:

    character device 0:0                      this name is deleted
    directory with user.overlay.opaque = y    the lower directory was replaced, not merged
    anything else                             the new content, complete

``user.overlay.origin`` (empty in a user namespace) marks files that were copied up from lower. It
moves with the file when the command renames it. A file that was copied up and is unchanged is not a
change: content and permissions are compared.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from paddock.frozen import dataclass
from paddock.workspace.change import ROOT, Change, ChangeKind, EntryPath, Obstacle, TreeEntry, Type
from paddock.workspace.dir_fd_access import (
    BLOCK_BYTES,
    MAX_DEPTH,
    entry,
    opened_directory,
    opened_file,
)

_PREFIX = "user.overlay."
_UNKNOWN_FORMS = frozenset({"redirect", "metacopy"})  # made by a kernel with other rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One directory in both trees. ``lower`` None: the workspace has none; it is new, or was
    another type.
    """

    upper: int
    lower: int | None
    lower_entry: TreeEntry | None
    lower_directories: EntryPath = ()  # of lower, ending with this directory
    prefix: str = ""
    hidden: bool = (
        False  # a parent is opaque: the content of lower is not part of the session's view
    )
    depth: int = 0

    def below(self, name: str, upper: int, lower: int | None, *, opaque: bool) -> Layer:
        found = TreeEntry.of(os.fstat(lower)) if lower is not None else None
        return Layer(
            upper=upper,
            lower=lower,
            lower_entry=found,
            lower_directories=(*self.lower_directories, (self.prefix + name, found))
            if found
            else (),
            prefix=f"{self.prefix}{name}/",
            hidden=self.hidden or opaque,
            depth=self.depth + 1,
        )


def scan(upper: int, lower: int, *, unseen: frozenset[str] = frozenset()) -> list[Change]:
    """Children of a deleted directory come before it, children of every other one after it.
    ``unseen``: names of temporary files that an interrupted apply left in lower.
    """
    old, new = TreeEntry.of(os.fstat(lower)), TreeEntry.of(os.fstat(upper))
    found = []
    if old.permissions != new.permissions:
        found.append(Change(path=ROOT, kind=ChangeKind.MODE, old=old, new=new))
    found += _walk(Layer(upper=upper, lower=lower, lower_entry=old), unseen)
    return found


def _walk(layer: Layer, unseen: frozenset[str]) -> Iterator[Change]:
    names = sorted(os.listdir(layer.upper))
    if layer.hidden and layer.lower is not None:
        for name in sorted(set(os.listdir(layer.lower)) - set(names) - unseen):
            yield from _gone(
                layer.lower, name, layer.prefix + name, layer.lower_directories, layer.depth, unseen
            )
    for name in names:
        path = layer.prefix + name
        old: TreeEntry | None = None
        new: TreeEntry | None = None
        try:
            new = entry(name, layer.upper)
            old = entry(name, layer.lower) if layer.lower is not None else None
            if new is not None:  # otherwise a running command has just removed it
                yield from _compare(layer, name, old, new, unseen)
        except OSError as error:
            yield _unreadable(path, old, new, error)


def _compare(
    layer: Layer, name: str, old: TreeEntry | None, new: TreeEntry, unseen: frozenset[str]
) -> Iterator[Change]:
    path = layer.prefix + name
    if _is_whiteout(layer.upper, name, new):
        if old and layer.lower is not None:
            yield from _gone(layer.lower, name, path, layer.lower_directories, layer.depth, unseen)
        return
    if new.type is Type.OTHER:
        kind = ChangeKind.TYPE if old and old.type is not Type.OTHER else ChangeKind.ADDED
        reason = "apply skips fifos, sockets and devices"
        yield Change(
            path=path, kind=kind, old=old, new=new, obstacle=Obstacle.SPECIAL, reason=reason
        )
        return
    if (
        old
        and old.type is Type.DIRECTORY
        and new.type is not Type.DIRECTORY
        and layer.lower is not None
    ):
        yield from _gone_below(
            layer.lower, name, path, layer.lower_directories, layer.depth, unseen
        )
    if new.type is Type.DIRECTORY:
        yield from _compare_directory(layer, name, old, new, unseen)
        return
    difference = _difference(layer, name, old, new)
    if difference is not None:
        yield _change(layer, path, difference, old, new, _marks(layer.upper, name, new))


def _compare_directory(
    layer: Layer, name: str, old: TreeEntry | None, new: TreeEntry, unseen: frozenset[str]
) -> Iterator[Change]:
    path = layer.prefix + name
    merged = old is not None and old.type is Type.DIRECTORY
    with contextlib.ExitStack() as stack:
        upper = stack.enter_context(opened_directory(name, layer.upper))
        lower = stack.enter_context(opened_directory(name, layer.lower)) if merged else None
        marks = _marks_of(upper)
        if not merged:
            yield _change(
                layer, path, ChangeKind.TYPE if old else ChangeKind.ADDED, old, new, marks
            )
        elif marks & _UNKNOWN_FORMS or (old and old.permissions != new.permissions):
            yield _change(layer, path, ChangeKind.MODE, old, new, marks)
        if layer.depth >= MAX_DEPTH:
            yield _too_deep(f"{path}/…", None, new)
        elif not marks & _UNKNOWN_FORMS:
            opaque = "opaque" in marks and os.getxattr(upper, f"{_PREFIX}opaque") == b"y"
            yield from _walk(layer.below(name, upper, lower, opaque=opaque), unseen)


def _difference(
    layer: Layer, name: str, old: TreeEntry | None, new: TreeEntry
) -> ChangeKind | None:
    if old is None:
        return ChangeKind.ADDED
    if old.type is not new.type:
        return ChangeKind.TYPE
    if new.type is Type.LINK:
        return ChangeKind.CHANGED if old.target != new.target else None
    assert layer.lower is not None
    if old.size != new.size or not _same_content(name, layer.upper, layer.lower):
        return ChangeKind.CHANGED
    return ChangeKind.MODE if old.permissions != new.permissions else None


def _same_content(name: str, upper: int, lower: int) -> bool:
    with opened_file(name, upper) as new:
        try:
            with opened_file(name, lower) as old:
                while block := os.read(new, BLOCK_BYTES):
                    if block != os.read(old, BLOCK_BYTES):
                        return False
                return not os.read(old, 1)
        except (
            PermissionError
        ):  # it can not be compared, so it counts as changed; replacing it needs no read
            return False


def _change(
    layer: Layer,
    path: str,
    kind: ChangeKind,
    old: TreeEntry | None,
    new: TreeEntry,
    marks: frozenset[str],
) -> Change:
    unknown = sorted(marks & _UNKNOWN_FORMS)
    return Change(
        path=path,
        kind=kind,
        old=old,
        new=new,
        copied_up="origin" in marks,
        old_parent=layer.lower_entry,
        old_directories=layer.lower_directories,
        obstacle=Obstacle.UNREADABLE if unknown else None,
        reason=f"this kernel's overlay has an unknown attribute ({unknown[0]})" if unknown else "",
    )


def _gone(
    lower: int,
    name: str,
    path: str,
    lower_directories: EntryPath,
    depth: int,
    unseen: frozenset[str],
) -> Iterator[Change]:
    """A name of lower that the session removed, and its content."""
    old: TreeEntry | None = None
    try:
        old = entry(name, lower)
        if old is None:
            return
        if old.type is Type.DIRECTORY:
            yield from _gone_below(lower, name, path, lower_directories, depth, unseen)
        yield Change(
            path=path, kind=ChangeKind.DELETED, old=old, new=None, old_directories=lower_directories
        )
    except OSError as error:
        yield _unreadable(path, old, None, error)


def _gone_below(
    lower: int,
    name: str,
    path: str,
    lower_directories: EntryPath,
    depth: int,
    unseen: frozenset[str],
) -> Iterator[Change]:
    with opened_directory(name, lower) as directory:
        lower_directories = (*lower_directories, (path, TreeEntry.of(os.fstat(directory))))
        if depth >= MAX_DEPTH:
            yield _too_deep(f"{path}/…", TreeEntry.of(os.fstat(directory)), None)
            return
        for child in sorted(set(os.listdir(directory)) - unseen):
            yield from _gone(
                directory, child, f"{path}/{child}", lower_directories, depth + 1, unseen
            )


def _is_whiteout(upper: int, name: str, new: TreeEntry) -> bool:
    if new.type is not Type.OTHER:
        return False
    facts = os.stat(name, dir_fd=upper, follow_symlinks=False)
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def _marks(upper: int, name: str, new: TreeEntry) -> frozenset[str]:
    if new.type is not Type.FILE:  # symlinks can not have any
        return frozenset()
    with opened_file(name, upper) as fd:
        return _marks_of(fd)


def _marks_of(fd: int) -> frozenset[str]:
    try:
        return frozenset(
            name.removeprefix(_PREFIX) for name in os.listxattr(fd) if name.startswith(_PREFIX)
        )
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return frozenset()  # a file system without attributes can not be an upper layer


def _unreadable(path: str, old: TreeEntry | None, new: TreeEntry | None, error: OSError) -> Change:
    kind = ChangeKind.DELETED if new is None else ChangeKind.CHANGED if old else ChangeKind.ADDED
    reason = f"cannot be examined: {error.strerror}"
    return Change(
        path=path, kind=kind, old=old, new=new, obstacle=Obstacle.UNREADABLE, reason=reason
    )


def _too_deep(path: str, old: TreeEntry | None, new: TreeEntry | None) -> Change:
    kind = ChangeKind.DELETED if new is None else ChangeKind.ADDED
    reason = f"deeper than {MAX_DEPTH} levels"
    return Change(path=path, kind=kind, old=old, new=new, obstacle=Obstacle.TOO_DEEP, reason=reason)
