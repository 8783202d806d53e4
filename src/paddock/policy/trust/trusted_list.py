"""The list of files that the user trusts, in the state directory, which no sandboxed command can
write.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from paddock.errors import PolicyError
from paddock.frozen import dataclass

MAX_FILE_BYTES = 1024 * 1024
STORE = "trusted"


@dataclass(frozen=True, slots=True)
class TrustedList:
    """The texts that the user agreed to, each with its path at that time: (sha256, path); for the
    file of a package manager, each host. A text under another path does not count, because an agent
    could copy or link the loose policy of one project over the strict one of another.
    """

    entries: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, state_dir: str, uid: int) -> TrustedList:
        """A missing list trusts nothing. A list that others could write is an error."""
        path = os.path.join(state_dir, STORE)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except OSError as error:
            raise PolicyError(f"cannot be read: {reason_of(error)}", where=path) from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
                raise PolicyError(
                    "the list of trusted files is not a regular file that only you can write",
                    where=path,
                    hint=f"type `rm {path}`, then trust your files again with `paddock trust FILE`",
                )
            data = read_all(descriptor, path)
        finally:
            os.close(descriptor)
        return cls(tuple(_entries(data, path)))

    def write(self, state_dir: str, uid: int) -> None:
        """Replaces the whole list. After a crash it has its old or its new content."""
        store = os.path.join(state_dir, STORE)
        fresh = f"{store}.{os.getpid()}"
        try:
            os.makedirs(state_dir, mode=0o700, exist_ok=True)
            found = os.stat(state_dir)
            if found.st_uid != uid:
                raise PolicyError(f"belongs to uid {found.st_uid}, not to you", where=state_dir)
            os.chmod(state_dir, 0o700)
            descriptor = os.open(
                fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, 0o600)
                for sha256, path in self.entries:
                    file.write(os.fsencode(sha256) + b"  " + os.fsencode(path) + b"\n")
            os.replace(fresh, store)
        except OSError as error:
            raise PolicyError(f"cannot be written: {reason_of(error)}", where=store) from None

    def agrees_to(self, sha256: str, path: str) -> bool:
        return (sha256, path) in self.entries

    def knows(self, path: str) -> bool:
        """Whether this path was trusted once, with any text."""
        return any(path == known for _, known in self.entries)


def _entries(data: bytes, shown: str) -> Iterable[tuple[str, str]]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        sha256, separator, path = line.partition(b"  ")
        if not separator or len(sha256) != 64:
            raise PolicyError("not a line of the form 'sha256  path'", where=f"{shown}:{number}")
        yield os.fsdecode(sha256), os.fsdecode(path)


def read_all(descriptor: int, shown: str) -> bytes:
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES:
        chunk = os.read(descriptor, 64 * 1024)
        if not chunk:
            return bytes(data)
        data += chunk
    raise PolicyError(f"is longer than {MAX_FILE_BYTES} bytes", where=shown)


def reason_of(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "too many symbolic links"
    return error.strerror or str(error)
