"""A name in a directory that is held open, for file tools without a sandbox.

The directory is opened by the judged path, through no link (policy/open_judged.py), before any
question. Every later step uses its descriptor. So the judged directory is read and written, even if
names above it change, and a link in place of the file is never followed.

Names can change between judging and opening: a program renames a directory on the path, or links a
denied file to another name. ``OpenDenial`` judges the opened object.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paddock.text.path_compare import LocatedPath
from paddock.tools.policy.open_judged import open_straight
from paddock.tools.result import Kind, ToolFailure, ToolOutcome, failure
from paddock.workspace.system_calls import exchange, rename_new

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BLOCK_BYTES = 1 << 20
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


def kind_of(facts: os.stat_result) -> Kind:
    return _KINDS[stat.S_IFMT(facts.st_mode)]


def real_path(located: LocatedPath) -> str:
    if located.real is None:
        raise ToolFailure(
            ToolOutcome.INVALID_ARGUMENTS, f"{located.written}: this system has no such path"
        )
    return located.real


@contextmanager
def os_errors_as_results(shown: str) -> Iterator[None]:
    """Turns errors of the system into results."""
    try:
        yield
    except OSError as error:
        raise failure(error, shown) from None


OpenDenial = Callable[[str, os.stat_result], str | None]
"""The reason why the object at this path of the host may not be used; None: it may."""


def require_open(path: str, facts: os.stat_result, denial: OpenDenial, shown: str) -> None:
    if why := denial(path, facts):
        raise ToolFailure(ToolOutcome.BLOCKED, f"{shown}: {why}")


def require_regular(facts: os.stat_result, shown: str) -> os.stat_result:
    if not stat.S_ISREG(facts.st_mode):
        raise ToolFailure(ToolOutcome.NOT_A_FILE, f"{shown}: not a file but a {kind_of(facts)}")
    return facts


class FilesOnHost:
    def __init__(self, denial: OpenDenial) -> None:
        self._denial = denial

    def name(
        self, located: LocatedPath, may_make: Callable[[str], bool] = lambda path: False
    ) -> OpenedName:
        """``may_make``: whether a missing directory may be created."""
        return OpenedName.of(located, self._denial, may_make)

    def directory(self, path: str, shown: str) -> int:
        """A descriptor that lists a directory."""
        with os_errors_as_results(shown):
            fd = open_straight(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                require_open(path, os.fstat(fd), self._denial, shown)
            except BaseException:
                os.close(fd)
                raise
            return fd


class OpenedName:
    """``missing``: directories that must be created before the name."""

    def __init__(
        self,
        directory: int,
        path: str,
        missing: tuple[str, ...],
        name: str,
        shown: str,
        denial: OpenDenial,
    ) -> None:
        self._denial = denial
        self._directory = directory
        self._path = path
        self._missing = missing
        self._name = name
        self.shown = shown

    @classmethod
    def of(
        cls,
        located: LocatedPath,
        denial: OpenDenial,
        may_make: Callable[[str], bool],
    ) -> OpenedName:
        path, shown = real_path(located), located.written
        above, name = os.path.split(path)
        missing: list[str] = []
        with os_errors_as_results(shown):
            while True:
                try:
                    directory = open_straight(above, os.O_PATH | os.O_DIRECTORY)
                except FileNotFoundError:
                    if not may_make(above):
                        raise
                    above, last = os.path.split(above)
                    missing.insert(0, last)
                else:
                    break
            return cls(directory, above, tuple(missing), name or ".", shown, denial)

    def close(self) -> None:
        os.close(self._directory)

    def facts(self) -> os.stat_result | None:
        """None: the name does not exist."""
        if self._missing:
            return None
        with os_errors_as_results(self.shown):
            try:
                return os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def regular(self) -> os.stat_result | None:
        """The same; a failure if it is not a file."""
        facts = self.facts()
        return None if facts is None else require_regular(facts, self.shown)

    def read(self, most: int) -> tuple[bytes, os.stat_result]:
        """The whole content, and the facts before the first byte was read."""
        if self.regular() is None:  # checked first, because opening a device can have an effect
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"{self.shown}: no such file")
        with os_errors_as_results(self.shown):
            fd = os.open(self._name, _READ, dir_fd=self._directory)
            try:
                facts = os.fstat(fd)
                if not stat.S_ISREG(facts.st_mode):
                    raise replaced_by_another_kind(self.shown)
                require_open(self._named(), facts, self._denial, self.shown)
                return content_of(fd, facts, most, self.shown), facts
            finally:
                os.close(fd)

    def replace(self, data: bytes, before: os.stat_result | None, old: bytes | None) -> None:
        """Replaces the file at once, or not at all. ``before``: the file at the time of the
        decision, ``old`` its content; None: there was none, or it was not read. If another file is
        there now, it stays, and the call fails.
        """
        with os_errors_as_results(self.shown):
            self._make_missing()
            temporary = f".paddock-{secrets.token_hex(8)}"
            fd = os.open(temporary, _NEW, 0o666, dir_fd=self._directory)
            try:
                try:
                    if before is not None:
                        self._dress(fd, before)
                    _write(fd, data)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                if before is None:
                    rename_new(temporary, self._name, self._directory)
                else:
                    self._exchange(temporary, before, old)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=self._directory)
            self._sync()

    def require_writable(self, before: os.stat_result | None) -> None:
        """Checks the directory, and the file that will be replaced."""
        require_open(self._path, os.fstat(self._directory), self._denial, self.shown)
        if before is not None:
            require_open(self._named(), before, self._denial, self.shown)

    def _named(self) -> str:
        return os.path.join(self._path, self._name)

    def _exchange(self, temporary: str, before: os.stat_result, old: bytes | None) -> None:
        exchange(temporary, self._name, self._directory)
        found = os.stat(temporary, dir_fd=self._directory, follow_symlinks=False)
        if _state(found) != _state(before) and not self._holds(temporary, old):
            exchange(temporary, self._name, self._directory)
            raise changed(self.shown)

    def _holds(self, name: str, old: bytes | None) -> bool:
        """An overlay may give a moved file a new inode number; then the content is compared."""
        if old is None:
            return False
        # It was read before under its own name; here it is only compared.
        other = OpenedName(
            os.dup(self._directory), self._path, (), name, self.shown, lambda path, facts: None
        )
        try:
            return other.read(len(old))[0] == old
        except ToolFailure:
            return False
        finally:
            other.close()

    def _dress(self, fd: int, before: os.stat_result) -> None:
        """Copies owner, mode and attributes of the replaced file. Bits that a write would clear are
        not copied.
        """
        if not os.access(self._name, os.W_OK, dir_fd=self._directory, effective_ids=True):
            raise ToolFailure(ToolOutcome.NO_PERMISSION, f"{self.shown}: the file is not writable")
        ours = os.fstat(fd)
        if (ours.st_uid, ours.st_gid) != (before.st_uid, before.st_gid):
            try:
                os.fchown(fd, before.st_uid, before.st_gid)
            except PermissionError:
                raise owned_by_another(self.shown) from None
        self._copy_attributes(fd)
        os.fchmod(fd, before.st_mode & 0o1777)

    def _copy_attributes(self, target: int) -> None:
        source = os.open(self._name, _READ, dir_fd=self._directory)
        try:
            with contextlib.suppress(OSError):  # not every file system has them
                for name in os.listxattr(source):
                    if name.startswith(("user.", "system.posix_acl_access")):
                        os.setxattr(target, name, os.getxattr(source, name))
        finally:
            os.close(source)

    def _make_missing(self) -> None:
        while self._missing:
            name, *rest = self._missing
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._directory)
            inside = os.open(name, _DIRECTORY, dir_fd=self._directory)
            os.close(self._directory)
            self._directory, self._missing = inside, tuple(rest)
            self._path = os.path.join(self._path, name)

    def _sync(self) -> None:
        """Syncs the name itself. A directory that is writable but not readable is skipped."""
        with contextlib.suppress(PermissionError):
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def _state(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, stat.S_IFMT(facts.st_mode)


def _too_large(shown: str, size: int, most: int) -> ToolFailure:
    return ToolFailure(
        ToolOutcome.TOO_LARGE,
        f"{shown}: {size} bytes is too much: the limit for reading is {most} bytes",
    )


def changed(shown: str) -> ToolFailure:
    return ToolFailure(
        ToolOutcome.CHANGED, f"{shown}: another program changed the file, so it was not written"
    )


def replaced_by_another_kind(shown: str) -> ToolFailure:
    return ToolFailure(ToolOutcome.CHANGED, f"{shown}: the file was replaced by something else")


def owned_by_another(shown: str) -> ToolFailure:
    return ToolFailure(
        ToolOutcome.NO_PERMISSION,
        f"{shown}: the file belongs to another user or group, and writing it would change that",
    )


def content_of(fd: int, facts: os.stat_result, most: int, shown: str) -> bytes:
    """Kernel files report size 0, and some never end."""
    if facts.st_size > most:
        raise _too_large(shown, facts.st_size, most)
    parts, length = [], 0
    while part := os.read(fd, _BLOCK_BYTES):
        parts.append(part)
        length += len(part)
        if length > most:
            raise _too_large(shown, length, most)
    return b"".join(parts)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
