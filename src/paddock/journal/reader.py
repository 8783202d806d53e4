"""Reading a journal: a directory with one file a day, or one file; plus the ``head`` the writer keeps beside it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddock.errors import JournalError


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line. ``fields`` is what it says; ``raw`` the bytes the next line's hash is made of."""

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
class Head:
    """What the writer believes it wrote last."""

    seq: int
    hash: str
    file: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    dir: Path
    file: str | None  # None: one file a day

    @classmethod
    def at(cls, place: str) -> Journal:
        path = Path(place)
        return cls(dir=path.parent, file=path.name) if place.endswith(".jsonl") else cls(dir=path, file=None)

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

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep writers out for a moment, so that the files and the head belong together."""
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
            seq, digest, file, size = self.head_path.read_text("ascii").split()
            return Head(seq=int(seq), hash=digest, file=file, size=int(size))
        except OSError as error:
            raise _unreadable(self.head_path, error) from error
        except ValueError as error:
            raise JournalError(f"{self.head_path}: not a journal head") from error

    def lines(self) -> Iterator[tuple[Path, int, bytes]]:
        for path in self.files():
            try:
                content = path.read_bytes()
            except OSError as error:
                raise _unreadable(path, error) from error
            # Only \n ends a line: the writer escapes every other control character.
            for number, raw in enumerate(content.removesuffix(b"\n").split(b"\n") if content else (), 1):
                yield path, number, raw

    def events(self) -> Iterator[Event]:
        for path, number, raw in self.lines():
            fields = parse(raw)
            if fields is None:
                raise JournalError(f"{path}:{number}: not an event", hint="`paddock audit verify` says what is wrong")
            yield Event(file=path.name, line=number, raw=raw, fields=fields)


def parse(raw: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(raw)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def _unreadable(path: Path, error: OSError) -> JournalError:
    hint = "nothing has been journaled there yet" if isinstance(error, FileNotFoundError) else None
    return JournalError(f"can not read the journal {path}: {error.strerror}", hint=hint)
