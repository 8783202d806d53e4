"""The state of a shell between commands, as far as the text shows it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from paddock.shell.program_arguments import ShellStream
from paddock.shell.words import SOMETHING, UNKNOWN, Piece, hidden, unknown

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(slots=True, kw_only=True)
class ShellState:
    """``names``: names that stand for other text (alias, ``hash -p``). ``copies``: programs under
    other names, by path. ``cases``: the letter case of variables (``declare -l``). ``stdin``: the
    input that ``exec <`` set.
    """

    cwd: str
    home: str
    variables: dict[str, tuple[Piece, ...]] = field(default_factory=dict)
    files: dict[str, ShellStream] = field(default_factory=dict)
    functions: dict[str, Sequence[Node]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    stdin: ShellStream | None = None

    def copy(self) -> ShellState:
        """For a subshell. Its files and definitions still count, because the order of execution is
        unknown.
        """
        return replace(self, variables=dict(self.variables))

    def cased(self, name: str, text: str) -> str:
        match self.cases.get(name):
            case "l":
                return text.lower()
            case "u":
                return text.upper()
            case "c":
                return text.capitalize()
            case _:
                return text

    def resolve(self, written: str) -> str:
        if written.startswith(("/", UNKNOWN, SOMETHING)) or UNKNOWN in self.cwd:
            return (
                written if UNKNOWN in written else os.path.normpath(written) if written else written
            )
        return os.path.normpath(os.path.join(self.cwd, written))

    def cd(self, target: str) -> None:
        if target == "-" or unknown(target):
            self.cwd = UNKNOWN
        elif target.startswith("/") or UNKNOWN not in self.cwd:
            self.cwd = os.path.normpath(os.path.join(self.cwd, target))

    def tilde(self, text: str) -> str:
        if not text.startswith("~"):
            return text
        user, slash, rest = text[1:].partition("/")
        if not user:
            return f"{self.home}{slash}{rest}"
        if user == "+":
            return f"{self.cwd}{slash}{rest}"
        if user == "root":
            return f"/root{slash}{rest}"
        return f"/home/{user}{slash}{rest}" if user.isidentifier() else text

    def set_arguments(self, words: Sequence[str]) -> None:
        """Sets ``$1`` and so on."""
        for name in [name for name in self.variables if name.isdigit()]:
            del self.variables[name]
        for at, word in enumerate(words):
            self.variables[str(at + 1)] = (Piece(word),)
        together = (Piece(" ".join(map(hidden, words)), splits=True),)
        self.variables["@"] = self.variables["*"] = together
