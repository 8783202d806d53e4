"""Records which worktree belonged to which repository while no sandboxed command could write
either.

After the first run in a worktree its ``.git`` file counts as previously writable
(policy/trust/writable_history.py), and its author is unknown. So a pair that was trustworthy once
is recorded in the state directory, which no command can write.
"""

from __future__ import annotations

import os
import stat

from paddock.errors import PolicyError
from paddock.frozen import dataclass

STORE = "worktrees"


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    pairs: frozenset[tuple[str, str]] = frozenset()  # (worktree, git directory)

    @classmethod
    def read(cls, state_dir: str, uid: int) -> Links:
        path = os.path.join(state_dir, STORE)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise PolicyError(f"cannot be read: {error.strerror}", where=path) from None
        with os.fdopen(fd, "rb") as file:
            return cls(pairs=_pairs(_checked(file.fileno(), path, uid), file.read()))

    def know(self, top: str, git_dir: str) -> bool:
        return (top, git_dir) in self.pairs


def remember(state_dir: str, uid: int, top: str, git_dir: str) -> None:
    path = os.path.join(state_dir, STORE)
    try:
        os.makedirs(state_dir, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise PolicyError(f"cannot be written: {error.strerror}", where=path) from None
    with os.fdopen(fd, "r+b") as file:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX)
        if (top, git_dir) not in _pairs(_checked(fd, path, uid), file.read()):
            file.write(os.fsencode(top) + b"\0" + os.fsencode(git_dir) + b"\0")


def _checked(fd: int, path: str, uid: int) -> str:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise PolicyError(
            "is not a regular file that only you can write", where=path, hint=f"remove {path}"
        )
    return path


def _pairs(path: str, data: bytes) -> frozenset[tuple[str, str]]:
    words = [os.fsdecode(word) for word in data.split(b"\0")]
    if words.pop() or len(words) % 2:
        raise PolicyError("is truncated", where=path, hint=f"remove {path}")
    return frozenset(zip(words[::2], words[1::2], strict=True))
