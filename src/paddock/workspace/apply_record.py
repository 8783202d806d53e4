"""The record of a session's applies: the planned steps of each one, written before it starts.

One file, ``applied.jsonl``, three lines for each apply:

    apply    the steps, with the object at each path, and the directories they touch
    staged   the files that were staged; from here on the workspace changes
    end      everything is in place and on disk

An apply without its end was interrupted. The record is then sufficient to distinguish its own files
from those of the host. Later the same lines show which files of the workspace are as this session
left them, and so are not changes of the host.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paddock.errors import SessionError
from paddock.workspace.change import FileVersion, TreeEntry, Type

NAME = "applied.jsonl"
TEMPORARY = ".paddock-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyStep:
    """Puts an object at a path, or removes the one there."""

    path: str
    # the temporary name of the new version, and then of the host's old one until it is verified
    temporary: str
    places: bool
    old: FileVersion | None
    keep: bool = False  # the host's version is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    token: str
    steps: tuple[ApplyStep, ...]
    directories: Mapping[
        str, tuple[int, ...]
    ]  # their current and future permissions, which are not changes of the host


@dataclass(slots=True)
class Record:
    """The record of all applies so far. It is read and written through the descriptor of the
    session's directory.

    ``known``: files that an apply made, or found unchanged by the host. Their ctime is not
    meaningful any more: moving one aside and back changes it, and so does removing another link.
    ``directories``: those it found unchanged, with their possible permissions since.
    """

    directory: int
    known: set[FileVersion] = field(default_factory=set)
    directories: dict[str, set[int]] = field(default_factory=dict)
    unfinished: Intent | None = None
    staged: dict[str, FileVersion] | None = (
        None  # of the unfinished apply, by path; None: it did not get that far
    )
    length: int = 0  # of the whole lines

    @classmethod
    def read(cls, directory: int) -> Record:
        record = cls(directory)
        try:
            fd = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return record
        with open(fd, "rb") as file:
            # Only the last line can be incomplete, and then its operation has not begun.
            *lines, torn = file.read().split(b"\n")
            record.length = file.tell() - len(torn)
        try:
            for line in lines:
                record._take(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise SessionError(f"the session's {NAME} is invalid: {error!r}") from None
        return record

    @property
    def temporaries(self) -> frozenset[str]:
        """Names that an interrupted apply may have left in the workspace."""
        steps = self.unfinished.steps if self.unfinished else ()
        return frozenset(name for step in steps for name in (step.temporary, f"{step.temporary}~"))

    def made(self, directory: TreeEntry) -> bool:
        return any(
            one.type is Type.DIRECTORY and one.inode == directory.inode for one in self.known
        )

    def intend(self, intent: Intent) -> None:
        steps = [
            {
                "path": step.path,
                "temporary": step.temporary,
                "places": step.places,
                "old": _identity_out(step.old),
                "keep": step.keep,
            }
            for step in intent.steps
        ]
        directories = {path: list(modes) for path, modes in intent.directories.items()}
        self._append({"apply": intent.token, "steps": steps, "directories": directories})

    def stage(self, token: str, files: Mapping[str, FileVersion]) -> None:
        self._append(
            {"staged": token, "files": {path: _identity_out(one) for path, one in files.items()}}
        )

    def end(self, token: str) -> None:
        self._append({"end": token})

    def _append(self, line: dict[str, Any]) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(NAME, flags, 0o600, dir_fd=self.directory)
        with open(fd, "wb", buffering=0) as file:
            data = json.dumps(line).encode("ascii") + b"\n"
            os.ftruncate(
                fd, self.length
            )  # an incomplete line in the middle would make the rest unreadable
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), NAME)
            os.fsync(fd)
        if not self.length:
            os.fsync(self.directory)
        self.length += len(data)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if "apply" in line:
            self.staged = None
            self.unfinished = Intent(
                token=line["apply"],
                steps=tuple(
                    ApplyStep(
                        path=step["path"],
                        temporary=step["temporary"],
                        places=step["places"],
                        old=_identity_in(step["old"]),
                        keep=step["keep"],
                    )
                    for step in line["steps"]
                ),
                directories={path: tuple(modes) for path, modes in line["directories"].items()},
            )
            self.known.update(
                step.old for step in self.unfinished.steps if step.old and not step.keep
            )
            for path, modes in self.unfinished.directories.items():
                self.directories.setdefault(path, set()).update(modes)
        elif "staged" in line:
            found = {path: _identity_in(one) for path, one in line["files"].items()}
            self.staged = {path: one for path, one in found.items() if one}
            self.known.update(self.staged.values())
        else:
            assert line["end"]
            self.unfinished = self.staged = None


def _identity_out(identity: FileVersion | None) -> list[Any] | None:
    if identity is None:
        return None
    return [identity.type.value, identity.inode, identity.mode, identity.size, identity.mtime_ns]


def _identity_in(value: list[Any] | None) -> FileVersion | None:
    if value is None:
        return None
    kind, inode, mode, size, mtime_ns = value
    return FileVersion(type=Type(kind), inode=inode, mode=mode, size=size, mtime_ns=mtime_ns)
