"""Reach: every place that a fenced command of this user was ever allowed to write.

What one run may write, it may prepare for the next: a link where a grant will lead, a policy file where one will be
read. So the places are remembered, in the state directory, which no command can write. A grant does not follow a link
that stands in one of them, and a policy file in one of them counts only as trusted.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass

from paddock.errors import PolicyError

STORE = "reach"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    trees: tuple[str, ...] = ()
    facts: tuple[int, ...] = ()  # of the store as it was read or written; empty: there is none

    @classmethod
    def read(cls, state_dir: str) -> Reach:
        try:
            fd = os.open(os.path.join(state_dir, STORE), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise _wrong(state_dir, error) from None
        with os.fdopen(fd, "rb") as file:
            return cls(trees=_trees(file.read()), facts=facts_of(os.fstat(fd)))

    @classmethod
    def record(cls, state_dir: str, trees: Iterable[str]) -> Reach:
        """Add these, if they are not inside what is known already."""
        try:
            os.makedirs(state_dir, mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(os.path.join(state_dir, STORE), flags, 0o600)
        except OSError as error:
            raise _wrong(state_dir, error) from None
        with os.fdopen(fd, "r+b") as file:
            fcntl.flock(fd, fcntl.LOCK_EX)
            known = _trees(file.read())
            added = [tree for tree in dict.fromkeys(trees) if not any(_within(tree, one) for one in known)]
            if added:
                file.write(b"".join(os.fsencode(tree).replace(b"\n", b"\\n") + b"\n" for tree in added))
                file.flush()
            return cls(trees=(*known, *added), facts=facts_of(os.fstat(fd)))

    @staticmethod
    def require_writable(state_dir: str) -> None:
        """Refuse what :meth:`record` would, and write nothing."""
        place, needed = os.path.join(state_dir, STORE), os.R_OK | os.W_OK
        while not os.path.lexists(place):
            place, needed = os.path.dirname(place), os.W_OK | os.X_OK
        if not os.access(place, needed):
            raise _wrong(state_dir, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def holds(self, path: str) -> bool:
        return any(_within(path, tree) for tree in self.trees)


NOTHING_REACHED = Reach()


def facts_of(found: os.stat_result) -> tuple[int, ...]:
    """All that a change of a file or of its rights touches."""
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid, found.st_size, *times)


def _trees(data: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(line) for line in data.split(b"\n") if line)


def _within(path: str, tree: str) -> bool:
    return f"{path}/".startswith(f"{tree.rstrip('/')}/")


def _wrong(state_dir: str, error: OSError) -> PolicyError:
    return PolicyError(
        f"can not be used: {error.strerror}",
        where=os.path.join(state_dir, STORE),
        hint="paddock keeps its state there; it can not run behind another fence",
    )
