"""Walks a path as the kernel does, one name at a time, to find every link on it and its end.

A link counts by its directory: a process that can write there chooses its target. Only a missing
object has no links: an inaccessible directory may contain one. If that directory belongs to another
user, no command of this user closed it and none can pass it, so it counts as empty. An inaccessible
directory of this user is an error, because Landlock does not restrict chmod.
(``core/src/kernel/resolved_path.rs`` follows the same rules.)
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from typing import NamedTuple

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.text.birth_time import born_object_at

MAX_LINKS = 40  # the kernel's limit for one path


class Identity(NamedTuple):
    device: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        return cls(found.st_dev, found.st_ino)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPath:
    """A path without links. ``object``: the object at it, if it exists. ``above``: the directories
    that contain it.
    """

    path: str
    object: Identity | None
    above: tuple[Identity, ...]
    directory: bool = False

    def objects(self) -> Iterator[tuple[str, Identity]]:
        """The object and the directories above it, each with its path."""
        parts = [part for part in self.path.split("/") if part]
        if self.object is not None:
            yield self.path, self.object
        for depth, identity in zip(range(len(self.above) - 1, -1, -1), self.above, strict=True):
            yield "/" + "/".join(parts[:depth]), identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A path and everything below it, known by name and, for a directory, by inode and birth time,
    because it may be renamed. The name counts as long as no other directory has it.
    """

    path: str
    identity: Identity | None = None
    born_ns: int | None = None  # None: unknown, so the device and the inode count alone

    def names(self, path: str) -> bool:
        within = f"{path}/".startswith(f"{self.path.rstrip('/')}/")
        return within and not self.is_replaced()

    def holds(self, resolved: ResolvedPath) -> bool:
        return any(self._is(path, identity) for path, identity in resolved.objects())

    def is_replaced(self) -> bool:
        """Whether another object has its name. In doubt it is not."""
        if self.identity is None or self.born_ns is None:
            return False
        found = born_object_at(self.path)
        if found is None or found.born_ns is None:
            return False
        return (found.inode, found.born_ns) != (self.identity.inode, self.born_ns)

    def _is(self, path: str, identity: Identity) -> bool:
        """The number of a device changes at a reboot, so it counts only without a birth time."""
        if self.identity is None or self.identity.inode != identity.inode:
            return False
        found = born_object_at(path) if self.born_ns is not None else None
        if found is None or found.born_ns is None or found[:2] != identity:
            return self.identity.device == identity.device
        return found.born_ns == self.born_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PathWalk:
    written: str  # absolute, normalised by text alone
    links: tuple[ResolvedPath, ...]  # in the order of the walk
    end: ResolvedPath

    @property
    def straight(self) -> bool:
        return not self.links

    @property
    def resolved_paths(self) -> tuple[ResolvedPath, ...]:
        return (*self.links, self.end)


def follow(path: str) -> PathWalk:
    written = path if path.startswith("/") else os.path.join(os.getcwd(), path)
    ahead = _names(written)
    root = os.lstat("/")
    here, chain, links = "", [Identity.of(root)], list[ResolvedPath]()
    found: os.stat_result | None = root  # None: the rest of the path is below a missing object
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = os.path.dirname(here).rstrip("/")
            if found is not None:
                found, chain = root, chain[:1] + chain[1:-1]  # the parent directory
            continue
        above, here = here, f"{here}/{name}"
        if found is None:
            continue
        found = _look(here, above or "/")
        if found is None:
            continue
        if not stat.S_ISLNK(found.st_mode):
            chain.append(Identity.of(found))
            continue
        if len(links) == MAX_LINKS:
            raise _wrong(written, OSError(errno.ELOOP, "too many symbolic links"))
        links.append(
            ResolvedPath(path=here, object=Identity.of(found), above=tuple(reversed(chain)))
        )
        target = _read(here)
        if target.startswith("/"):
            here, chain = "", chain[:1]
        else:
            here = above
        found = root
        ahead += _names(target)
    above_end = tuple(reversed(chain))
    if found is None:
        end = ResolvedPath(path=here or "/", object=None, above=above_end)
    else:
        directory = stat.S_ISDIR(found.st_mode)
        end = ResolvedPath(
            path=here or "/", object=above_end[0], above=above_end[1:], directory=directory
        )
    return PathWalk(written=os.path.normpath(written), links=tuple(links), end=end)


def _names(path: str) -> list[str]:
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _look(path: str, directory: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        # In a searchable directory the error does not mean that the object is missing.
        if _is_ours(directory) or os.access(directory, os.X_OK):
            raise _wrong(directory, error) from None
        return None
    except OSError as error:
        raise _wrong(path, error) from None


def _is_ours(directory: str) -> bool:
    try:
        return os.lstat(directory).st_uid == os.getuid()
    except OSError:  # it existed a moment ago
        return True


def _read(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError as error:
        raise _wrong(link, error) from None


def _wrong(path: str, error: OSError) -> PolicyError:
    shut = error.errno == errno.EACCES
    return PolicyError(
        f"cannot follow this path: {error.strerror}",
        where=path,
        hint=f"find out why the directory is closed, then type `chmod u+x {shlex.quote(path)}`"
        if shut
        else None,
    )
