"""A name in the sandbox. File tools have no rights of their own there.

A process in the sandbox opens the file that is read, and writes the new one. So masks, locks and
judged writes hold for file tools as for commands, and in a copy-on-write workspace file tools use
the copy. The path was judged before any question, and is opened again for each step, through no
link.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, runtime_checkable

from paddock.executors.exec_server import FileWrite, WriteError
from paddock.text.path_compare import LocatedPath
from paddock.tools.name_in_open_dir import (
    changed,
    content_of,
    os_errors_as_results,
    owned_by_another,
    real_path,
    replaced_by_another_kind,
    require_regular,
)
from paddock.tools.result import ToolFailure, ToolOutcome

T = TypeVar("T")
_REFUSALS = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY))


@runtime_checkable
class SandboxFiles(Protocol):
    """A sandbox that opens and writes files by a process inside."""

    async def open(self, path: str, *, read: bool) -> int: ...
    async def write(self, request: FileWrite) -> None: ...


class Ask(Protocol):
    """Waits in a thread for the answer of the sandbox."""

    def __call__(self, answer: Awaitable[T]) -> T: ...


class FilesInSandbox:
    def __init__(self, sandbox: SandboxFiles, ask: Ask) -> None:
        self._sandbox, self._ask = sandbox, ask

    def name(
        self, located: LocatedPath, may_make: Callable[[str], bool] = lambda path: False
    ) -> NameInSandbox:
        """``may_make``: whether a missing directory may be created."""
        path, shown = real_path(located), located.written
        above, name = os.path.split(path)
        missing: list[str] = []
        with os_errors_as_results(shown):
            while True:
                try:
                    os.close(self.open(above, shown, read=False))
                except FileNotFoundError:
                    if not may_make(above):
                        raise
                    above, last = os.path.split(above)
                    missing.insert(0, last)
                else:
                    return NameInSandbox(self, above, tuple(missing), name, shown)

    def directory(self, path: str, shown: str) -> int:
        """A descriptor that lists a directory."""
        with os_errors_as_results(shown):
            if not stat.S_ISDIR(self.facts(path, shown).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            return self.open(path, shown, read=True)

    def facts(self, path: str, shown: str) -> os.stat_result:
        found = self.open(path, shown, read=False)
        try:
            return os.fstat(found)
        finally:
            os.close(found)

    def open(self, path: str, shown: str, *, read: bool) -> int:
        try:
            return self._ask(self._sandbox.open(path, read=read))
        except OSError as error:
            _raise_denial(error, shown, "read", {path: os.R_OK})
            raise

    def write(self, request: FileWrite) -> None:
        self._ask(self._sandbox.write(request))


class NameInSandbox:
    """``missing``: directories that must be created before the name."""

    def __init__(
        self, files: FilesInSandbox, above: str, missing: tuple[str, ...], name: str, shown: str
    ) -> None:
        self._files, self._above, self._missing, self._name = files, above, missing, name
        self._path = os.path.join(above, *missing, name)
        self.shown = shown

    def close(self) -> None:
        return  # it holds nothing open

    def regular(self) -> os.stat_result | None:
        """None: the name does not exist. A failure if it is not a file."""
        if self._missing:
            return None
        with os_errors_as_results(self.shown):
            try:
                facts = self._files.facts(self._path, self.shown)
            except FileNotFoundError:
                return None
        return require_regular(facts, self.shown)

    def read(self, most: int) -> tuple[bytes, os.stat_result]:
        """The whole content, and the facts before the first byte was read."""
        if self.regular() is None:  # checked first, because opening a device can have an effect
            raise ToolFailure(ToolOutcome.NOT_FOUND, f"{self.shown}: no such file")
        with os_errors_as_results(self.shown):
            fd = self._files.open(self._path, self.shown, read=True)
            try:
                facts = os.fstat(fd)
                if not stat.S_ISREG(facts.st_mode):
                    raise replaced_by_another_kind(self.shown)
                return content_of(fd, facts, most, self.shown), facts
            finally:
                os.close(fd)

    def require_writable(self, before: os.stat_result | None) -> None:
        """An early answer, so that no person is asked in vain. The write itself is judged again."""
        with os_errors_as_results(self.shown):
            for path in (self._above, *([] if before is None else [self._path])):
                fd = self._files.open(path, self.shown, read=False)
                try:
                    if os.fstatvfs(fd).f_flag & os.ST_RDONLY:
                        raise ToolFailure(
                            ToolOutcome.BLOCKED,
                            f"{self.shown}: the sandbox denies it: commands can only read it",
                        )
                finally:
                    os.close(fd)

    def replace(self, data: bytes, before: os.stat_result | None, old: bytes | None) -> None:
        """Replaces the file at once, or not at all. ``before``: the file at the time of the
        decision, ``old`` its content; None: there was none, or it was not read. If another file is
        there now, it stays, and the call fails.
        """
        request = FileWrite(
            directory=self._above,
            missing=self._missing,
            name=self._name,
            data=data,
            before=before,
            old=old,
        )
        with os_errors_as_results(self.shown):
            try:
                self._files.write(request)
            except WriteError as error:
                if error.step == "changed":
                    raise changed(self.shown) from None
                if error.step == "owner":
                    raise owned_by_another(self.shown) from None
                needed = {self._above: os.W_OK | os.X_OK}
                if before is not None:
                    needed |= {self._path: os.W_OK}
                _raise_denial(error, self.shown, "write", needed)
                raise


def _raise_denial(error: OSError, shown: str, act: str, needed: dict[str, int]) -> None:
    """A refusal is a denial of the sandbox if the user has the permissions outside."""
    if error.errno not in _REFUSALS:
        return
    if all(os.access(path, mode, effective_ids=True) for path, mode in needed.items()):
        raise ToolFailure(
            ToolOutcome.BLOCKED,
            f"{shown}: the sandbox denies it: commands cannot {act} it ({error.strerror})",
        ) from None
