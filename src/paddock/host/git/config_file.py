"""Parses a git configuration file into its entries (git-config(1), "Syntax").

A sandboxed command may have written the file. Parsing takes linear time, and a text that git would
refuse ends at its first error.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddock.frozen import dataclass

_KEY = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_SECTION = _KEY | {"."}
_BLANK = frozenset(" \t\r\f\v")
_ESCAPED = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """``[section "subsection"] key = value``. Section and key are in lower case, as git compares
    them. A key without a value is a boolean that is on.
    """

    section: str
    subsection: str | None
    key: str
    value: str | None

    @property
    def name(self) -> str:
        """``section.key``, without the subsection."""
        return f"{self.section}.{self.key}"


def entries(text: str) -> Iterator[ConfigEntry]:
    return _ConfigReader(text.removeprefix("\ufeff")).entries()


class _MistakeError(Exception):
    pass


class _ConfigReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def entries(self) -> Iterator[ConfigEntry]:
        section: tuple[str, str | None] | None = None
        try:
            while (letter := self._peek()) is not None:
                if letter in _BLANK or letter == "\n":
                    self._at += 1
                elif letter in "#;":
                    self._skip_line()
                elif letter == "[":
                    self._at += 1
                    section = self._section()
                elif section is not None and letter.isascii() and letter.isalpha():
                    key = self._word(_KEY).lower()
                    yield ConfigEntry(
                        section=section[0], subsection=section[1], key=key, value=self._value()
                    )
                else:
                    return
        except _MistakeError:
            return

    def _peek(self) -> str | None:
        return self._text[self._at] if self._at < len(self._text) else None

    def _take(self) -> str | None:
        letter = self._peek()
        self._at += 1
        return letter

    def _skip_line(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _skip_blanks(self) -> None:
        while self._peek() in _BLANK:
            self._at += 1

    def _word(self, letters: frozenset[str]) -> str:
        start = self._at
        while self._peek() in letters:
            self._at += 1
        return self._text[start : self._at]

    def _section(self) -> tuple[str, str | None]:
        """After the bracket: ``name]``, ``name "any text"]``, or the old ``name.text]``."""
        name = self._word(_SECTION).lower()
        if not name:
            raise _MistakeError
        if self._peek() == "]":
            self._at += 1
            head, dot, tail = name.partition(".")
            return head, tail if dot else None
        self._skip_blanks()
        if self._take() != '"':
            raise _MistakeError
        subsection: list[str] = []
        while (letter := self._take()) != '"':
            if letter == "\\":
                letter = self._take()
            if letter is None or letter == "\n":
                raise _MistakeError
            subsection.append(letter)
        if self._take() != "]":
            raise _MistakeError
        return name, "".join(subsection)

    def _value(self) -> str | None:
        self._skip_blanks()
        letter = self._peek()
        if letter is None or letter == "\n":
            return None
        if self._take() != "=":
            raise _MistakeError
        self._skip_blanks()
        return self._text_value()

    def _text_value(self) -> str:
        out: list[str] = []
        value_length = 0  # trailing blanks belong to the value only inside quotes
        quoted = False
        while (letter := self._take()) is not None:
            if letter == "\n":
                if quoted:
                    raise _MistakeError
                break
            if letter == '"':
                quoted = not quoted
                value_length = len(out)
            elif letter == "\\":
                escaped = self._take()
                if escaped == "\r" and self._peek() == "\n":
                    escaped = self._take()
                if escaped == "\n":
                    continue
                if escaped not in _ESCAPED:
                    raise _MistakeError
                out.append(_ESCAPED[escaped])
                value_length = len(out)
            elif not quoted and letter in "#;":
                self._skip_line()
                break
            else:
                out.append(letter)
                if quoted or letter not in _BLANK:
                    value_length = len(out)
        if quoted:
            raise _MistakeError
        return "".join(out[:value_length])
