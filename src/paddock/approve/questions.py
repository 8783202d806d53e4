"""Questions and answers. ``schema/companion.schema.json`` describes the same values as messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    ONCE = "once"  # this exec or this connection only
    # the same files, arguments and directory, or the same host and port, until the run ends
    SESSION = "session"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    exe: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this program run? All values come from the command and may be meant to deceive the
    reader. Bytes that are not UTF-8 are surrogate escapes.
    """

    id: int
    exe: str  # the file after all links are followed
    chain: tuple[str, ...]  # exe, then the interpreter of each ``#!`` line
    argv: tuple[str, ...]
    cwd: str
    pid: int
    parent: Parent | None  # None: unknown
    rule: str | None  # None: default_action asks
    source: str  # the file and line that asks
    reason: str | None
    timeout_s: int  # counted from the question; then the question is denied and withdrawn

    @property
    def scope(self) -> tuple[object, ...]:
        """The scope of an answer for the session."""
        return self.chain, self.argv, self.cwd


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """May this tool call be done? ``Approvals`` asks it and gives it its number. The shown text
    (``lines``, ``diff``, ``reason``) comes from a model and may also be meant to deceive.
    """

    id: int = 0
    tool: str
    subject: tuple[str, ...]  # the parsed command, or the paths as they were judged
    lines: tuple[str, ...]  # the text that shows the call
    diff: str | None = None  # the change that a write would make, as a unified diff
    cwd: str
    rule: str | None
    reason: str | None
    timeout_s: float = 300

    @property
    def scope(self) -> tuple[object, ...]:
        """The scope of an answer for the session. A call without a subject has no scope: the name
        of a tool does not say what a call does.
        """
        return self.tool, self.cwd, self.subject or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    pid: int
    exe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostQuestion:
    """May this host be connected to at this port? The name is in ASCII form, which distinguishes
    names that look alike.
    """

    id: int
    host: str
    port: int
    process: Caller | None  # None: unknown
    source: str  # the file and line that asks
    timeout_s: int

    @property
    def scope(self) -> tuple[object, ...]:
        return self.host, self.port


AnyQuestion = Question | HostQuestion | ToolQuestion
