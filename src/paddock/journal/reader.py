"""Reads a journal: a directory with one file for each day, or one file, and the ``head`` that the
writer stores beside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paddock.errors import JournalError
from paddock.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line. ``fields``: its content. ``raw``: the bytes for the hash in the next line."""

    file: str
    line: int
    raw: bytes
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.fields.get("event", "?"))

    @property
    def session(self) -> str:
        return str(self.fields.get("session", "?"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Events of a session that could not be written."""

    where: str  # "file:line", or the head
    session: str
    count: int
    reason: str

    def __str__(self) -> str:
        events, are = ("event", "is") if self.count == 1 else ("events", "are")
        return (
            f"{self.where}: {self.count} {events} of session {self.session} {are} missing: "
            f"{self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last line according to the writer, and the losses that are not in an event yet."""

    seq: int
    hash: str
    file: str
    size: int
    losses: tuple[Loss, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    dir: Path
    file: str | None  # None: one file for each day

    @classmethod
    def at(cls, location: str) -> Journal:
        path = Path(location)
        return (
            cls(dir=path.parent, file=path.name)
            if location.endswith(".jsonl")
            else cls(dir=path, file=None)
        )

    @property
    def head_path(self) -> Path:
        return self.dir / (f"{self.file}.head" if self.file else "head")

    def files(self) -> list[Path]:
        if self.file:
            return [self.dir / self.file]
        try:
            return sorted(path for path in self.dir.iterdir() if path.suffix == ".jsonl")
        except OSError as error:
            raise _unreadable(self.dir, error) from error

    def check(self) -> None:
        """Applies the core's own conditions: a file that another user could have created is not a
        journal.
        """
        for path, kind, wanted in (
            (self.dir, stat.S_IFDIR, None if self.file else 0o700),
            *self._regular(),
        ):
            try:
                facts = path.lstat()
            except OSError as error:
                raise _unreadable(path, error) from error
            if stat.S_IFMT(facts.st_mode) != kind:
                raise JournalError(
                    f"{path} is not a {'directory' if kind == stat.S_IFDIR else 'regular file'}"
                )
            if facts.st_uid != os.getuid():
                raise JournalError(f"{path} belongs to uid {facts.st_uid}, not to you")
            if wanted is not None and stat.S_IMODE(facts.st_mode) != wanted:
                raise JournalError(
                    f"{path} has mode {stat.S_IMODE(facts.st_mode):04o}, not {wanted:04o}"
                )

    def _regular(self) -> list[tuple[Path, int, int]]:
        return [(path, stat.S_IFREG, 0o600) for path in (*self.files(), self.head_path)]

    @contextmanager
    def still(self) -> Iterator[None]:
        """Blocks writers for a moment, so that the files and the head are consistent."""
        try:
            fd = os.open(self.head_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise _unreadable(self.head_path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def head(self) -> Head:
        try:
            stands, *lost = self.head_path.read_text("utf-8").split("\0")
            front, size = stands.rsplit(None, 1)
            seq, digest, file = front.split(" ", 2)  # a file name may contain spaces
            losses = tuple(map(self._loss, filter(None, lost)))
            return Head(seq=int(seq), hash=digest, file=file, size=int(size), losses=losses)
        except OSError as error:
            raise _unreadable(self.head_path, error) from error
        except ValueError as error:
            raise JournalError(f"{self.head_path}: not a journal head") from error

    def _loss(self, stored: str) -> Loss:
        session, count, reason = stored.removesuffix("\n").split(" ", 2)
        return Loss(where=self.head_path.name, session=session, count=int(count), reason=reason)

    def lines(self) -> Iterator[tuple[Path, int, bytes]]:
        for path in self.files():
            if not stat.S_ISREG(path.lstat().st_mode):
                raise JournalError(f"{path} is not a regular file")
            try:
                content = path.read_bytes()
            except OSError as error:
                raise _unreadable(path, error) from error
            # Only \n ends a line: the writer escapes every other control character.
            for number, raw in enumerate(
                content.removesuffix(b"\n").split(b"\n") if content else (), 1
            ):
                yield path, number, raw

    def events(self) -> Iterator[Event]:
        for path, number, raw in self.lines():
            fields = parse(raw)
            if fields is None:
                raise JournalError(
                    f"{path}:{number}: not an event",
                    hint="type `paddock audit verify` to see what is wrong",
                )
            yield Event(file=path.name, line=number, raw=raw, fields=fields)


def parse(raw: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _unreadable(path: Path, error: OSError) -> JournalError:
    if (
        isinstance(error, FileNotFoundError)
        and path.name.endswith("head")
        and any(path.parent.glob("*.jsonl"))
    ):
        return JournalError(
            f"{path} is missing, but the journal has events: the end of the chain is unknown"
        )
    hint = (
        "no run has written a journal there yet" if isinstance(error, FileNotFoundError) else None
    )
    return JournalError(f"cannot read the journal {path}: {error.strerror}", hint=hint)
