"""The line of each key and array element of a TOML text, by its path.

``tomllib`` gives values without positions. This scanner gives positions without values, for text
that tomllib has already accepted. So it may assume valid TOML and only has to find the borders of
items. A path leads to an item: ``("filesystem", "read_globs", 2)``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate

Path = tuple[str | int, ...]

# No policy nests deeper. Storing a path for each part of a hostile key with 100,000 parts would
# exhaust memory.
_MAX_DEPTH = 8
_SPACE = " \t"
_BLANK = " \t\r\n"
_BARE_END = frozenset(" \t\r\n.=]")
_SCALAR_END = frozenset(",]}#\r\n")


def positions(text: str) -> Mapping[Path, int]:
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._line_starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self._elements: dict[Path, int] = {}  # arrays of tables: the number of elements so far

    def document(self) -> None:
        table: Path = ()
        while self._skip_blank():
            if self._sees("["):
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line = self._line()
        is_array = self._sees("[[")
        self.at += 2 if is_array else 1
        keys = self._dotted_key()[:_MAX_DEPTH]
        self.at += 2 if is_array else 1
        path: Path = ()
        for depth, key in enumerate(keys, start=1):
            path = (*path, key)
            self.lines.setdefault(path, line)
            if is_array and depth == len(keys):
                self._elements[path] = self._elements.get(path, 0) + 1
            if path in self._elements:
                path = (*path, self._elements[path] - 1)
        self.lines[path] = line
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for key in self._dotted_key()[:_MAX_DEPTH]:
            path = (*path, key)
            self.lines.setdefault(path, line)
        self.at += 1  # "="
        self._skip(_SPACE)
        self._value(path)

    def _dotted_key(self) -> list[str]:
        keys: list[str] = []
        while True:
            self._skip(_SPACE)
            keys.append(self._key())
            self._skip(_SPACE)
            if not self._sees("."):
                return keys
            self.at += 1

    def _key(self) -> str:
        start = self.at
        if self._sees('"') or self._sees("'"):
            self._string()
            return _unquoted(self.text[start : self.at])
        while self.at < len(self.text) and self.text[self.at] not in _BARE_END:
            self.at += 1
        return self.text[start : self.at]

    def _value(self, path: Path) -> None:
        if self._sees('"') or self._sees("'"):
            self._string()
        elif self._sees("["):
            self._array(path)
        elif self._sees("{"):
            self._inline_table(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in _SCALAR_END:
                self.at += 1

    def _array(self, path: Path) -> None:
        self.at += 1
        index = 0
        while self._skip_blank() and not self._sees("]"):
            if self._sees(","):
                self.at += 1
                continue
            element = (*path, index)
            self.lines[element] = self._line()
            self._value(element)
            index += 1
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while self._skip_blank() and not self._sees("}"):
            if self._sees(","):
                self.at += 1
                continue
            self._pair(path)
        self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        escapes = quote == '"'
        if self._sees(quote * 3):
            self.at += 3
            while self.at < len(self.text) and not self._sees(quote * 3):
                self.at += 2 if escapes and self.text[self.at] == "\\" else 1
            self.at += 3
            # Up to two quotes may precede the closing three; they belong to the string.
            while self._sees(quote):
                self.at += 1
            return
        end = self.text.find(quote, self.at + 1)
        while escapes and end > 0 and self._is_escaped(end):
            end = self.text.find(quote, end + 1)
        self.at = end + 1 if end > 0 else len(self.text)

    def _is_escaped(self, at: int) -> bool:
        start = at
        while self.text[start - 1] == "\\":
            start -= 1
        return (at - start) % 2 == 1

    def _skip_blank(self) -> bool:
        """Skips white space, line ends and comments; False at the end of the text."""
        while True:
            self._skip(_BLANK)
            if not self._sees("#"):
                return self.at < len(self.text)
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def _skip(self, letters: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in letters:
            self.at += 1

    def _sees(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _line(self) -> int:
        return bisect_right(self._line_starts, self.at)


def _unquoted(raw: str) -> str:
    if raw.startswith("'") or "\\" not in raw:
        return raw[1:-1]
    import tomllib

    return str(tomllib.loads(f"key = {raw}")["key"])
