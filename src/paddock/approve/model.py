"""What is asked, what is answered, and who answers. ``schema/companion.schema.json`` has the same as messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paddock.approve.inbox import Inbox


class Verdict(Enum):
    ONCE = "once"  # this exec alone
    SESSION = "session"  # the same files, arguments and directory, until the run ends
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    exe: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """May this program run? All of it comes from the command, and may be meant to deceive who reads it. Bytes that are
    not UTF-8 are surrogate escapes."""

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
    def subject(self) -> tuple[object, ...]:
        """What an answer for the session is about."""
        return self.chain, self.argv, self.cwd


class Approver(Protocol):
    """Answers the questions of an inbox, until that is closed. A question it does not answer is denied in the end."""

    def serve(self, inbox: Inbox) -> None: ...
