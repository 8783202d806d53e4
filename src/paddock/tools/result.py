"""The result of a tool call. Every call ends in a ToolResult; none raises."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from paddock.tools.commands import CommandResult
from paddock.tools.policy.tool_policy import Decision


class ToolOutcome(Enum):
    OK = "ok"
    BLOCKED = "blocked"  # by the policy; no approval can change it
    DENIED = "denied"  # an approver denied it, or there was no approver
    INVALID_ARGUMENTS = "invalid_arguments"
    NOT_FOUND = "not_found"
    NOT_A_FILE = "not_a_file"  # a directory, device, fifo or socket
    NOT_A_DIRECTORY = "not_a_directory"
    NO_PERMISSION = "no_permission"
    TOO_LARGE = "too_large"
    BINARY = "binary"
    ENCODING = "encoding"  # text, but not in the expected encoding
    NO_MATCH = "no_match"  # the old text of an edit was not found
    NOT_UNIQUE = "not_unique"  # it was found another number of times
    CHANGED = "changed"  # by another process, between judging and doing: nothing was done
    TIMEOUT = "timeout"
    LIMIT = "limit"  # the limit of calls is exceeded
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"  # no executor, or no journal: nothing was done
    FAILED = "failed"  # the system or the tool failed; the message has the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText:
    """``text``: the requested lines. ``newline``: the line end of the file; here it is ``\\n``,
    unless the file mixes. ``more``: lines follow.
    """

    path: str
    text: str
    encoding: str
    newline: str
    size: int
    first_line: int
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    """``replacements``: of an edit."""

    path: str
    size: int
    created: bool
    replacements: int | None = None


Kind = Literal["file", "directory", "link", "fifo", "socket", "device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """``name``: relative to the listed directory."""

    name: str
    kind: Kind
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """``closed``: subdirectories that were not entered, because policy or system denies it."""

    path: str
    entries: tuple[Entry, ...]
    closed: tuple[str, ...]
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """``content``: the output of the tool, if any. ``notes``: more information for the caller."""

    outcome: ToolOutcome
    message: str
    decision: Decision
    content: FileText | FileWritten | Listing | CommandResult | object | None = None
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.outcome is ToolOutcome.OK


class ToolFailure(Exception):  # noqa: N818 (a result, not an error)
    """A tool can not do what was requested. ``content``: the available part."""

    def __init__(self, outcome: ToolOutcome, message: str, content: object | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.content = content


_OUTCOMES = {
    errno.ENOENT: ToolOutcome.NOT_FOUND,
    errno.ENOTDIR: ToolOutcome.NOT_A_DIRECTORY,
    errno.EISDIR: ToolOutcome.NOT_A_FILE,
    errno.ENXIO: ToolOutcome.NOT_A_FILE,
    errno.EACCES: ToolOutcome.NO_PERMISSION,
    errno.EPERM: ToolOutcome.NO_PERMISSION,
    errno.EROFS: ToolOutcome.NO_PERMISSION,
    errno.EEXIST: ToolOutcome.CHANGED,
}


def failure(error: OSError, shown: str) -> ToolFailure:
    if error.errno == errno.ELOOP:
        return ToolFailure(ToolOutcome.CHANGED, f"{shown}: a symbolic link appeared in the path")
    outcome = _OUTCOMES.get(error.errno or 0, ToolOutcome.FAILED)
    return ToolFailure(outcome, f"{shown}: {error.strerror or error}")
