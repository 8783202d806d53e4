"""``read_file``, ``write_file``, ``edit_file``, ``list_directory``: each is prepared, then done.

Preparing opens the judged file and computes the change, so that a person can see it, and no
question is asked for a call that can not succeed. Doing writes exactly that change, or nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from paddock.text.path_compare import LocatedPath
from paddock.text.path_walk import Identity
from paddock.tools.name_in_open_dir import kind_of, os_errors_as_results, real_path
from paddock.tools.policy.calls import ToolCall
from paddock.tools.result import Entry, FileText, FileWritten, Listing, ToolFailure, ToolOutcome
from paddock.tools.text_encoding import DEFAULT, Document, named
from paddock.workspace.text_diff import Tag, unified

_MAX_SHOWN_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for every call."""

    read_bytes: int = 10 << 20
    write_bytes: int = 10 << 20
    entries: int = 10_000
    depth: int = 16
    timeout_s: float = 120.0
    longest_timeout_s: float = 3600.0
    calls: int | None = None
    own_timeout_s: float | None = None  # for tools of the caller


May = Callable[[str], bool]


class FileName(Protocol):
    """A judged name, and the file that it has."""

    def regular(self) -> os.stat_result | None: ...
    def read(self, most: int) -> tuple[bytes, os.stat_result]: ...
    def require_writable(self, before: os.stat_result | None) -> None: ...
    def replace(self, data: bytes, before: os.stat_result | None, old: bytes | None) -> None: ...
    def close(self) -> None: ...


class ToolFiles(Protocol):
    """Where file tools find names: in the sandbox, or on the host. ``may_make``: whether a missing
    directory may be created.
    """

    def name(self, located: LocatedPath, may_make: May = ...) -> FileName: ...
    def directory(self, path: str, shown: str) -> int: ...


class Act(Protocol):
    """``prepare``, then ``summary`` and ``diff`` for a question, then ``do``; ``close`` in any
    case.
    """

    summary: tuple[str, ...]

    def prepare(self) -> None: ...
    def do(self) -> object: ...
    def close(self) -> None: ...


class ReadFile:
    def __init__(
        self, call: ToolCall, located: LocatedPath, limits: Limits, files: ToolFiles
    ) -> None:
        self._arguments, self._located, self._limits, self._files = (
            call.arguments,
            located,
            limits,
            files,
        )
        self._opened: FileName | None = None
        self.summary: tuple[str, ...] = (f"read {located.written}",)

    def prepare(self) -> None:
        for name in ("offset", "limit"):
            if self._arguments.get(name, 1) < 1:
                raise ToolFailure(
                    ToolOutcome.INVALID_ARGUMENTS, f"{name} is a line number, and lines start at 1"
                )
        if "encoding" in self._arguments:
            named(self._arguments["encoding"])
        self._opened = self._files.name(self._located)

    def do(self) -> FileText:
        assert self._opened is not None
        shown = self._located.written
        data, _ = self._opened.read(self._limits.read_bytes)
        document = Document.read(data, shown, self._arguments.get("encoding"))
        first = self._arguments.get("offset", 1)
        lines = document.text.split("\n")
        lines = [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        if first > max(1, len(lines)):
            raise ToolFailure(
                ToolOutcome.INVALID_ARGUMENTS,
                f"{shown}: the file has {len(lines)} lines, so line {first} does not exist",
            )
        end = first - 1 + self._arguments.get("limit", len(lines))
        return FileText(
            path=real_path(self._located),
            text="".join(lines[first - 1 : end]),
            encoding=document.encoding,
            newline=document.newline,
            size=len(data),
            first_line=first,
            more=end < len(lines),
        )

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


class _Change:
    """A file that gets new content."""

    def __init__(
        self,
        call: ToolCall,
        located: LocatedPath,
        limits: Limits,
        files: ToolFiles,
        may_make: May,
    ) -> None:
        self._arguments, self._located, self._limits = call.arguments, located, limits
        self._files, self._may_make = files, may_make
        self._opened: FileName | None = None
        self._before: os.stat_result | None = None
        self._old: bytes | None = None
        self._data = b""
        self._texts = "", ""
        self.summary: tuple[str, ...] = ()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _planned(self, data: bytes, old: Document | None, new: str, *summary: str) -> None:
        if len(data) > self._limits.write_bytes:
            raise ToolFailure(
                ToolOutcome.TOO_LARGE,
                f"{len(data)} bytes is too much: the limit for writing is "
                f"{self._limits.write_bytes} bytes",
            )
        self._data = data
        self._texts = ("", new) if old is None else (old.text, old.as_here(new))
        self.summary = summary

    def diff(self) -> str:
        old, new = (text.encode("utf-8", "surrogatepass") for text in self._texts)
        lines = unified(old, new)
        return "".join(
            f"{line.text if line.tag is Tag.HUNK else line.tag.value + line.text}\n"
            for line in lines
        )

    def _write(self) -> None:
        assert self._opened is not None
        self._opened.replace(self._data, self._before, self._old)


class WriteFile(_Change):
    def prepare(self) -> None:
        content, encoding, shown = (
            self._arguments["content"],
            self._arguments.get("encoding"),
            self._located.written,
        )
        chosen = None if encoding is None else named(encoding)
        self._opened = self._files.name(self._located, self._may_make)
        self._before = self._opened.regular()
        self._opened.require_writable(self._before)
        old: Document | None = None
        replaced = ""
        if self._before is not None:
            replaced = f" over {self._before.st_size} bytes"
            try:
                self._old, self._before = self._opened.read(self._limits.read_bytes)
                old = Document.read(self._old, shown)
            except ToolFailure as failed:
                if failed.outcome not in (
                    ToolOutcome.BINARY,
                    ToolOutcome.ENCODING,
                    ToolOutcome.TOO_LARGE,
                ):
                    raise
                replaced += " that are not shown: " + failed.message.removeprefix(f"{shown}: ")
        new = old or Document(text="", encoding=DEFAULT)
        if chosen is not None and chosen != new.encoding:
            new = Document(text="", encoding=chosen, newline=new.newline)
        written = new.written(content)
        self._planned(
            written, old, content, f"write {shown}: {len(written)} bytes ({new.encoding}){replaced}"
        )

    def do(self) -> FileWritten:
        self._write()
        return FileWritten(
            path=real_path(self._located), size=len(self._data), created=self._before is None
        )


class EditFile(_Change):
    _count = 0

    def prepare(self) -> None:
        shown, arguments = self._located.written, self._arguments
        self._opened = self._files.name(self._located)
        self._old, self._before = self._opened.read(self._limits.read_bytes)
        self._opened.require_writable(self._before)
        document = Document.read(self._old, shown, arguments.get("encoding"))
        if document.written(document.text) != self._old:
            raise ToolFailure(
                ToolOutcome.ENCODING,
                f"{shown}: the encoding does not allow writing the same bytes back",
            )
        old, new = document.as_here(arguments["old_text"]), document.as_here(arguments["new_text"])
        if not old or old == new:
            raise ToolFailure(
                ToolOutcome.INVALID_ARGUMENTS,
                "the new text is the same as the old text" if old else "the old text is empty",
            )
        self._count = document.text.count(old)
        self._require_count(document.text, old)
        text = document.text.replace(old, new)
        times = "" if self._count == 1 else f", {self._count} times"
        self._planned(document.written(text), document, text, f"edit {shown}{times}")

    def do(self) -> FileWritten:
        self._write()
        return FileWritten(
            path=real_path(self._located),
            size=len(self._data),
            created=False,
            replacements=self._count,
        )

    def _require_count(self, text: str, old: str) -> None:
        shown, count = self._located.written, self._count
        if count == 0:
            raise ToolFailure(
                ToolOutcome.NO_MATCH, f"{shown}: the file does not contain the old text"
            )
        expected = self._arguments.get("expected_count")
        if expected is None and (count == 1 or self._arguments.get("replace_all", False)):
            return
        if expected != count:
            lines = [str(text.count("\n", 0, at) + 1) for at in _found(text, old, _MAX_SHOWN_LINES)]
            more = ", …" if count > len(lines) else ""
            wanted = "once" if expected is None else f"{expected} times"
            raise ToolFailure(
                ToolOutcome.NOT_UNIQUE,
                f"{shown}: the file contains the old text {count} times (line "
                f"{', '.join(lines)}{more}), not {wanted}",
            )


class ListDirectory:
    """Links are listed, never followed, so there are no cycles. A directory that a mount shows
    twice is entered once. A directory that the policy would not list is not entered.
    """

    def __init__(
        self,
        call: ToolCall,
        located: LocatedPath,
        limits: Limits,
        files: ToolFiles,
        may_list: May,
    ) -> None:
        self._depth = call.arguments.get("depth", 1)
        self._located, self._limits, self._files, self._may_list = (
            located,
            limits,
            files,
            may_list,
        )
        self._directory: int | None = None
        self.summary: tuple[str, ...] = (f"list {located.written}",)

    def prepare(self) -> None:
        if not 1 <= self._depth <= self._limits.depth:
            raise ToolFailure(
                ToolOutcome.INVALID_ARGUMENTS, f"depth must be between 1 and {self._limits.depth}"
            )
        self._directory = self._files.directory(real_path(self._located), self._located.written)

    def do(self) -> Listing:
        assert self._directory is not None
        entries: list[Entry] = []
        closed: list[str] = []
        seen: set[Identity] = set()

        def look(directory: int, below: str, depth: int) -> None:
            identity = Identity.of(os.fstat(directory))
            if identity in seen:
                closed.append(below.rstrip("/"))
                return
            seen.add(identity)
            with os.scandir(directory) as found:
                names = sorted(_some(found, self._limits.entries + 1 - len(entries)))
            inside = []
            for name in names:
                try:
                    facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                entries.append(Entry(name=below + name, kind=kind_of(facts), size=facts.st_size))
                if entries[-1].kind == "directory" and depth > 1:
                    inside.append(name)
            for name in inside:
                descend(below + name, depth - 1)

        def descend(below: str, depth: int) -> None:
            if len(entries) > self._limits.entries:
                return
            path = os.path.join(real_path(self._located), below)
            try:
                if not self._may_list(path):
                    raise PermissionError
                fd = self._files.directory(path, below)
                try:
                    look(fd, f"{below}/", depth)
                finally:
                    os.close(fd)
            except (OSError, ToolFailure):
                closed.append(below)

        with os_errors_as_results(self._located.written):
            look(self._directory, "", self._depth)
        shown_entries = entries[: self._limits.entries]
        return Listing(
            path=real_path(self._located),
            entries=tuple(shown_entries),
            closed=tuple(closed),
            truncated=len(shown_entries) < len(entries),
        )

    def close(self) -> None:
        if self._directory is not None:
            os.close(self._directory)


def _some(found: Iterator[os.DirEntry[str]], most: int) -> Iterator[str]:
    for entry, _ in zip(found, range(most), strict=False):
        yield entry.name


def _found(text: str, old: str, most: int) -> Iterator[int]:
    at = text.find(old)
    while at >= 0 and most:
        yield at
        at, most = text.find(old, at + len(old)), most - 1
