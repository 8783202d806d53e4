"""Removes secrets from text before it is written or shown: journal, prompts, logs.

This is best effort: text that looks like a secret is removed, and known secrets are removed
everywhere. A secret that looks like ordinary text stays. ``secrets.tsv`` has the rules; the core
reads the same file (core/src/journal/redact/) for its own events. The expressions run in RE2,
because commands choose the text: its time is linear. They work on bytes, so text that is not UTF-8
stays unchanged.
"""

from __future__ import annotations

import base64
import itertools
import math
import os
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from paddock.text.shell_syntax import Syntax

MARK = "[redacted]"
MIN_OPAQUE_CHARS = 32  # shorter text is as often a name as a secret
_MIN_VALUE_CHARS = 4  # of a known value: a shorter one would remove half of every text
_TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "secrets.tsv")
_WORD = re.compile(r"[A-Za-z]*[0-9]{0,4}")
_BREAK = re.compile(r"[-_+=]+")
_QUOTES = frozenset("\"'")
_NEARLY = 1e-9  # two languages sum in different orders


class Redactor:
    """``values``: known secrets, removed everywhere, also URL-encoded or as base64.

    ``redact`` is for text that is not run. In a command, apparent secrets are removed only inside
    one word of the shell, so that the reader sees everything that is executed. ``part`` is for a
    part of a command, whose quotes may be elsewhere.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        spellings = {
            spelling
            for value in values
            if len(value) >= _MIN_VALUE_CHARS
            for spelling in _spellings(value)
        }
        self._values = sorted(spellings, key=len, reverse=True)

    def redact(self, text: str) -> str:
        return self._without(text, lambda data: None)

    def command(self, text: str) -> str:
        return self._without(text, Syntax)

    def part(self, text: str) -> str:
        return self._without(text, lambda data: Syntax(data, doubtful=True))

    def known(self, text: str) -> str:
        """Removes the known values and nothing else."""
        return _text_of(self._known(_bytes_of(text)))

    def _known(self, data: str) -> str:
        for value in self._values:
            data = data.replace(value, MARK)
        return data

    def _without(self, text: str, syntax: Callable[[str], Syntax | None]) -> str:
        data = self._known(_bytes_of(text))
        small, table = data.lower(), _table()
        for rule in table.rules:
            if rule.is_worth_trying(small) and rule.expression.search(data):
                data = str(rule.expression.sub(partial(_replaced, rule.goes, syntax(data)), data))
        return _text_of(str(_opaque_runs().sub(_opaque, data)))

    def all_of(self, value: Any) -> Any:
        """The same for every string inside lists and mappings."""
        match value:
            case str():
                return self.redact(value)
            case dict():
                return {
                    key: MARK if _names_a_secret(key, each) else self.all_of(each)
                    for key, each in value.items()
                }
            case list() | tuple():
                return type(value)(self._words(value))
            case _:
                return value

    def _words(self, words: Iterable[Any]) -> Iterable[Any]:
        """A list may contain the arguments of a command: a flag and its value are two strings, and
        one may be a script.
        """
        hidden = False
        for word in words:
            if not isinstance(word, str):
                yield self.all_of(word)
            else:
                yield MARK if hidden and not word.startswith("-") else self.command(word)
            hidden = isinstance(word, str) and _table().is_flag(word)


def redact(text: str) -> str:
    return Redactor().redact(text)


def _bytes_of(text: str) -> str:
    """Each byte as one character, because RE2 accepts only UTF-8."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _text_of(data: str) -> str:
    return data.encode("latin-1").decode("utf-8", "surrogatepass")


def _spellings(value: str) -> Iterable[str]:
    data = value.encode("utf-8", "surrogatepass")
    yield data.decode("latin-1")
    yield urllib.parse.quote(data, safe="")
    yield base64.b64encode(data).decode("ascii")
    yield base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _names_a_secret(key: object, value: object) -> bool:
    return (
        isinstance(key, str)
        and isinstance(value, str)
        and _name().fullmatch(_bytes_of(key)) is not None
        and _counts(_bytes_of(value))
    )


@dataclass(frozen=True)
class _Rule:
    """``triggers``: a text without any of these is skipped, and so is one without any character of
    ``besides``.
    """

    how: str
    triggers: tuple[str, ...]
    besides: str
    pattern: str

    def is_worth_trying(self, small: str) -> bool:
        return any(trigger in small for trigger in self.triggers) and (
            not self.besides or any(letter in small for letter in self.besides)
        )

    @cached_property
    def expression(self) -> Any:
        return _compile(self.pattern)

    def goes(self, value: str) -> bool:
        match self.how:
            case "name":
                return _counts(value)
            case "flag":
                return not value.startswith("-") and _counts(value)
            case "header":
                return len(value) >= MIN_OPAQUE_CHARS or not (
                    value.isalpha() and (value.islower() or value.istitle())
                )
            case _:
                return True


@dataclass(frozen=True)
class _Table:
    flags: frozenset[str]
    harmless: frozenset[str]
    parts: dict[str, str]
    rules: tuple[_Rule, ...]

    def is_flag(self, word: str) -> bool:
        name = word.lower().removeprefix("-")
        return word.startswith("-") and (name in self.flags or name.removeprefix("-") in self.flags)


@cache
def _table() -> _Table:
    with open(_TABLE, encoding="ascii") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]

    def of(kind: str) -> Iterator[list[str]]:
        return (row[1:] for row in rows if row[0] == kind)

    flags = next(of("flag"))[0].split()
    parts = {row[0]: row[1] for row in of("part")} | {
        "flags": f"-(?:{'|'.join(map(_once_or_twice, flags))})"
    }

    def whole(pattern: str) -> str:
        for name, part in parts.items():
            pattern = pattern.replace(f"{{{name}}}", part)
        return pattern

    return _Table(
        flags=frozenset(flags),
        harmless=frozenset(next(of("harmless"))[0].split()),
        parts=parts,
        rules=tuple(
            _Rule(
                how,
                tuple(triggers.split()),
                besides.replace("_", " \t\n\r\f\v").removeprefix("-"),
                whole(pattern),
            )
            for how, triggers, besides, pattern in of("rule")
        ),
    )


def _once_or_twice(flag: str) -> str:
    return flag if flag.startswith("-") else f"-?{flag}"


@cache
def _compile(pattern: str) -> Any:
    import re2

    return re2.compile(pattern)


def _name() -> Any:
    return _compile(rf"(?i)[\w.-]*{_table().parts['names']}")


def _reference() -> Any:
    return _compile(rf"^{_table().parts['reference']}")


def _opaque_runs() -> Any:
    return _compile(rf"[A-Za-z0-9_+/=-]{{{MIN_OPAQUE_CHARS},}}")


def _replaced(goes: Callable[[str], bool], syntax: Syntax | None, found: Any) -> str:
    """Removes the last group, as far as it is no syntax; without groups, everything or nothing."""
    whole, base, last = str(found[0]), found.start(), found.re.groups
    start, end = found.span(last)
    value = str(found[last])
    if not value or not goes(value):
        return whole
    if syntax is not None and (cut := syntax.first(start, end)) < end:
        value, end = value[: cut - start], cut
        # An apparent quoted value there is between two quoted values.
        if not last or not value or not _QUOTES.isdisjoint(value):
            return whole
    return whole[: start - base] + MARK + whole[end - base :]


def _counts(value: str) -> bool:
    """Whether it is a value, not a keyword, a reference, or the name of a type."""
    plain = value.strip("\"'")
    if not plain or plain.lower().rstrip(".") in _table().harmless:
        return False
    return not _reference().search(plain) and not plain.endswith("(") and "[redacted" not in plain


def _opaque(found: Any) -> str:
    text = str(found[0])
    if "/" not in text or _looks_random(text):
        return MARK if _looks_random(text) else text
    return "/".join(
        MARK if len(part) >= MIN_OPAQUE_CHARS and _looks_random(part) else part
        for part in text.split("/")
    )


def _looks_random(text: str) -> bool:
    """Not a combination of names, numbers and words."""
    if "/" in text and any(len(part) > 2 and _WORD.fullmatch(part) for part in text.split("/")):
        return False  # a path
    parts = [part for part in _BREAK.split(text.replace("/", "_")) if part]
    strange = [part for part in parts if not _WORD.fullmatch(part) and not part.isdigit()]
    if not parts or sum(map(len, strange)) * 2 < len(text):
        return (
            sum(map(len, parts)) >= MIN_OPAQUE_CHARS
            and max(map(len, parts)) >= MIN_OPAQUE_CHARS
            and _mixed(max(parts, key=len))
        )
    return sum(map(len, parts)) / len(parts) >= 8 and _entropy(text) >= 3.0 - _NEARLY


def _mixed(word: str) -> bool:
    """Letters only, in an order of no language."""
    turns = sum(a.isupper() != b.isupper() for a, b in itertools.pairwise(word))
    return _entropy(word) >= 4.0 - _NEARLY and turns * 5 > len(word) * 2


def _entropy(text: str) -> float:
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values())
