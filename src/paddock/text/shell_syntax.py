"""Finds the syntax of a shell in a text, so that removing a secret never hides a command.

One pass from left to right tracks the quotes. From the first position where quoting is uncertain
(substitutions, here-documents, arithmetic, patterns), quotes are ignored: every character that
could be syntax counts as syntax. core/src/journal/redact/shell_syntax.rs does the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left

_NEWS = re.compile(r"""[\s;&|<>()`'"\\#$\[]""", re.ASCII)
_ENDS = {  # of quoted text
    "'": re.compile(r"'"),
    "$'": re.compile(r"['\\]"),
    '"': re.compile(r'\\.|"|`|\$[({]', re.DOTALL),
}
_LOOSE = re.compile(r"[\s;&|<>()`]|\$[({]", re.ASCII)


class Syntax:
    """``doubtful``: quotes are ignored from the beginning, as in a part of a text."""

    def __init__(self, text: str, *, doubtful: bool = False) -> None:
        self._text = text
        self._found: list[int] = []
        self._loose(0 if doubtful else self._plain(), len(text))

    def first(self, start: int, end: int) -> int:
        """The first syntax character in the range, or its end."""
        at = bisect_left(self._found, start)
        return min(end, self._found[at]) if at < len(self._found) else end

    def _loose(self, start: int, end: int) -> None:
        self._found += [found.start() for found in _LOOSE.finditer(self._text, start, end)]

    def _plain(self) -> int:
        """Returns the position where quoting becomes uncertain."""
        text, at = self._text, 0
        while (found := _NEWS.search(text, at)) is not None:
            at = found.start()
            letter, following = text[at], text[at + 1 : at + 2]
            begins = at == 0 or text[at - 1] in " \t\n;&|<>()"
            if letter == "\\":
                self._found += [at + 1] if following == "\n" else []
                at += 2
            elif letter in "'\"" or text.startswith("$'", at):
                quote = letter if letter != "$" else "$'"
                at += len(quote)
                while (
                    (end := _ENDS[quote].search(text, at))
                    and len(end[0]) == 2
                    and end[0][0] == "\\"
                ):
                    at = end.end()
                if end is None:
                    return len(text)  # never closed: no shell runs it
                if end[0] not in "'\"":
                    return end.start()  # shells treat a backslash in $'…' differently
                at = end.end()
            elif letter == "#" and begins:
                line = text.find("\n", at)
                line = len(text) if line < 0 else line
                self._loose(at, line)
                at = line
            elif _is_doubtful(text, at, begins):
                return at
            elif letter in "#[$":
                at += 2 if letter + following == "$$" else 1
            else:
                wide = 3 if text.startswith("<<<", at) else 1
                self._found += range(at, at + wide)
                at += wide
        return len(text)


def _is_doubtful(text: str, at: int, begins: bool) -> bool:
    two = text[at : at + 2]
    match text[at]:
        case "`":
            return True
        case "$":
            return two in ("$(", "${")
        case "[":
            return begins and two == "[["
        case "(":
            return two == "((" or text[max(0, at - 1)] in "?*+@!"
        case "<":
            return two == "<<" and not text.startswith("<<<", at)
        case _:
            return False
