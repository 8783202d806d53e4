"""Reads files of git or of another program, each by one bounded read. It records the stat facts of
each file, so that a plan made from them is valid only while they stay the same.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

from paddock.errors import PolicyError
from paddock.policy.trust.path_list import facts_of
from paddock.text.path_walk import follow

MAX_FILE_BYTES = 1024 * 1024

FileFacts = tuple[int, ...] | None  # None: the file does not exist

_HINT = "Paddock must read it to protect the files that git trusts: make it readable, or remove it"


class FileSnapshot:
    def __init__(
        self, reader: str = "git", *, size_limit: int = MAX_FILE_BYTES, hint: str = _HINT
    ) -> None:
        self._reader = reader
        self._size_limit = size_limit
        self._hint = hint
        self._files: dict[str, FileFacts] = {}
        self._directories: dict[str, FileFacts] = {}

    @property
    def files(self) -> Mapping[str, FileFacts]:
        """With every fact that changes with the content. Missing files are included."""
        return self._files

    @property
    def directories(self) -> Mapping[str, FileFacts]:
        """With their identity and owner; their content changes all the time."""
        return self._directories

    def at(self, path: str) -> os.stat_result | None:
        """The object at the path, without following a link; None if there is none."""
        try:
            found = os.lstat(path)
        except OSError as error:
            # Below a file, and under a name that no file can have, there is no object either.
            if error.errno in (errno.ENOENT, errno.ENOTDIR) or _is_too_long(path):
                self._files[path] = None
                return None
            raise self._unreadable(path, error) from None
        seen = self._directories if stat.S_ISDIR(found.st_mode) else self._files
        seen[path] = facts_of(found)
        return found

    def names(self, directory: str) -> list[str]:
        """The whole paths of its entries; none if it does not exist."""
        try:
            found = sorted(os.listdir(directory))
            self._files[directory] = facts_of(os.lstat(directory))  # a new name changes these facts
        except (FileNotFoundError, NotADirectoryError):
            self._files[directory] = None
            return []
        except OSError as error:
            raise self._unreadable(directory, error) from None
        return [os.path.join(directory, name) for name in found]

    def text(self, path: str) -> str | None:
        """The content; None without a file. Links are followed, as git follows them."""
        found = self.at(path)
        if found is None:
            return None
        if stat.S_ISLNK(found.st_mode):
            try:
                walk = follow(path)
            except PolicyError:
                if _is_loop(path):  # git can not read it either
                    return None
                raise
            for link in walk.links:
                self.at(link.path)  # a changed link changes the file that is read
            return self.text(walk.end.path)
        if stat.S_ISDIR(found.st_mode):
            return None
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(path, error) from None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PolicyError(f"is not a regular file, and {self._reader} reads it", where=path)
            data = file.read(self._size_limit + 1)
        if len(data) > self._size_limit:
            raise PolicyError(
                f"is longer than {self._size_limit} bytes, and {self._reader} reads it",
                where=path,
            )
        return os.fsdecode(data)

    def _unreadable(self, path: str, error: OSError) -> PolicyError:
        return PolicyError(
            f"cannot be read ({error.strerror}), and {self._reader} outside the sandbox may obey "
            "it",
            where=path,
            hint=self._hint,
        )


def _is_too_long(path: str) -> bool:
    """PATH_MAX includes the NUL; the other limit is NAME_MAX."""
    written = os.fsencode(path)
    return len(written) >= 4096 or any(len(name) > 255 for name in written.split(b"/"))


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False
