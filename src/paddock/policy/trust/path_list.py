"""Lists of paths for later runs, in the state directory, which no sandboxed command can write.

A list is replaced as a whole, under a lock on the directory. After a crash it has its old or its
new content.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator

from paddock.errors import PolicyError
from paddock.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPaths:
    paths: tuple[str, ...] = ()
    facts: tuple[int, ...] = ()  # of the file as read or written; empty: there is no file


@dataclass(frozen=True, slots=True)
class PathListFile:
    state_dir: str
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.state_dir, self.name)

    def read(self) -> StoredPaths:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return StoredPaths()
        except OSError as error:
            raise self._wrong(error) from None
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_uid != os.getuid()
                or found.st_mode & 0o022
            ):
                raise PolicyError(
                    "is not a regular file that only you can write",
                    where=self.path,
                    hint="find out why the file changed; Paddock needs it to know what earlier "
                    "runs could write",
                )
            lines = file.read().split(b"\n")
            return StoredPaths(
                paths=tuple(_unescaped(line) for line in lines if line),
                facts=facts_of(os.fstat(fd)),
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks out other processes between reading and writing."""
        try:
            if not os.path.isdir(self.state_dir):
                os.makedirs(self.state_dir, mode=0o700, exist_ok=True)
                os.chmod(self.state_dir, 0o700)  # independent of the umask
            fd = os.open(self.state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._wrong(error) from None
        try:
            import fcntl  # missing on some systems that read policies

            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def write(self, paths: Iterable[str]) -> StoredPaths:
        stored = tuple(paths)
        fresh = f"{self.path}.{os.getpid()}"
        try:
            fd = os.open(
                fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, 0o600)  # independent of the umask
                file.writelines(_escaped(path) + b"\n" for path in stored)
            os.replace(fresh, self.path)
            # Renaming changes the ctime of the inode, which is one of the facts.
            return StoredPaths(paths=stored, facts=facts_of(os.lstat(self.path)))
        except OSError as error:
            raise self._wrong(error) from None

    def require_writable(self) -> None:
        """Raises the errors of :meth:`write` without writing."""
        existing = self.state_dir
        while not os.path.lexists(existing):
            existing = os.path.dirname(existing)
        if not os.access(existing, os.W_OK | os.X_OK):
            raise self._wrong(PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def _wrong(self, error: OSError) -> PolicyError:
        return PolicyError(
            f"cannot be used: {error.strerror}",
            where=self.path,
            hint="Paddock keeps its state there; it cannot run inside another sandbox",
        )


def facts_of(found: os.stat_result) -> tuple[int, ...]:
    """Every fact that a change of a file or of its permissions modifies."""
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_size,
        *times,
    )


def _escaped(path: str) -> bytes:
    return os.fsencode(path).replace(b"\\", b"\\\\").replace(b"\n", b"\\n")


def _unescaped(line: bytes) -> str:
    return os.fsdecode(b"\\".join(part.replace(b"\\n", b"\n") for part in line.split(b"\\\\")))
