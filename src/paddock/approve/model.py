"""What is asked, and what is answered. ``schema/companion.schema.json`` has the same as
messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    ONCE = "once"  # this exec, or this connection, alone
    # the same files, arguments and directory, or the same host and port, until the run ends
    SESSION = "session"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    exe: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this program run? All of it comes from the command, and may be meant to deceive who reads
    it. Bytes that are not UTF-8 are surrogate escapes.
    """

    id: int
    exe: str  # the file itself, after all links
    chain: tuple[str, ...]  # exe, then the interpreter of each ``#!`` line
    argv: tuple[str, ...]
    cwd: str
    pid: int
    parent: Parent | None  # None: not known
    rule: str | None  # None: default_action asks
    source: str  # the file and line that does
    reason: str | None
    timeout_s: int  # from when it was asked; then it is denied and withdrawn

    @property
    def scope(self) -> tuple[object, ...]:
        """What an answer for the session is about."""
        return self.chain, self.argv, self.cwd


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQuestion:
    """May this tool call be done? Asked through a ``Desk``, which numbers it. What is shown
    (``lines``, ``diff``, ``reason``) comes from a model, and may be meant to deceive as well.
    """

    id: int = 0
    tool: str
    subject: tuple[str, ...]  # the parsed command, or the paths in the one form they were judged in
    lines: tuple[str, ...]  # what to show of the call
    diff: str | None = None  # what a write would change, in unified form
    cwd: str
    rule: str | None
    reason: str | None
    timeout_s: float = 300

    @property
    def scope(self) -> tuple[object, ...]:
        """What an answer for the session is about. A call without a subject is like no other: a
        tool's name alone says nothing of what it does.
        """
        return self.tool, self.cwd, self.subject or self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    pid: int
    exe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostQuestion:
    """May this host be connected to at this port? Its name is in the ASCII form, which tells apart
    what looks alike.
    """

    id: int
    host: str
    port: int
    process: Caller | None  # None: not known
    source: str  # the file and line that asks
    timeout_s: int

    @property
    def scope(self) -> tuple[object, ...]:
        return self.host, self.port


Asked = Question | HostQuestion | ToolQuestion
