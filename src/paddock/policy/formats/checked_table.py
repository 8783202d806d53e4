"""A table of a policy file with its position. Its errors have file, line and dotted key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.formats.expand import wrong
from paddock.policy.formats.suggest import did_you_mean
from paddock.policy.formats.toml_line_numbers import Path
from paddock.policy.model import Source, Sourced

E = TypeVar("E", bound=Enum)

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    str: "a text",
    list: "a list",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class Table:
    file: str
    values: Mapping[str, object]
    lines: Mapping[Path, int]
    path: Path = ()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def source(self, *steps: str | int) -> Source:
        """The position of a key below this table, or of the nearest item above it that has one."""
        path = (*self.path, *steps)
        dotted = dotted_key(path)
        while path and path not in self.lines:
            path = path[:-1]
        return Source(file=self.file, line=self.lines.get(path, 1), key=dotted)

    def wrong(self, key: str, message: str, *, hint: str | None = None) -> PolicyError:
        return wrong(self.source(key), message, hint=hint)

    def allow_only(self, keys: Iterable[str]) -> None:
        known = tuple(keys)
        for key in self.values:
            if key not in known:
                kind = "section" if not self.path else "key"
                raise self.wrong(key, f"unknown {kind}", hint=did_you_mean(key, known))

    def boolean(self, key: str) -> Sourced[bool] | None:
        if key not in self:
            return None
        value = self.values[key]
        if not isinstance(value, bool):
            raise self._mistyped(key, value, bool)
        return Sourced(value, self.source(key))

    def integer(self, key: str, *, low: int, high: int = 2**31 - 1) -> Sourced[int] | None:
        if key not in self:
            return None
        return Sourced(self._integer(self.values[key], (key,), low, high), self.source(key))

    def integers(self, key: str, *, low: int, high: int) -> tuple[Sourced[int], ...]:
        return tuple(
            Sourced(self._integer(value, (key, index), low, high), self.source(key, index))
            for index, value in self._elements(key)
        )

    def _integer(self, value: object, steps: tuple[str | int, ...], low: int, high: int) -> int:
        source = self.source(*steps)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _mistyped(source, value, int)
        if not low <= value <= high:
            raise wrong(source, f"{value} is not between {low} and {high}")
        return value

    def string(self, key: str) -> Sourced[str] | None:
        if key not in self:
            return None
        value = self.values[key]
        if not isinstance(value, str):
            raise self._mistyped(key, value, str)
        return Sourced(value, self.source(key))

    def strings(self, key: str) -> tuple[Sourced[str], ...]:
        return tuple(self._strings(key))

    def string_or_strings(self, key: str) -> tuple[Sourced[str], ...]:
        if isinstance(self.values.get(key), str):
            one = self.string(key)
            return () if one is None else (one,)
        return self.strings(key)

    def _strings(self, key: str) -> Iterator[Sourced[str]]:
        for index, value in self._elements(key):
            source = self.source(key, index)
            if not isinstance(value, str):
                raise _mistyped(source, value, str)
            yield Sourced(value, source)

    def choice(self, key: str, kind: type[E]) -> Sourced[E] | None:
        written = self.string(key)
        if written is None:
            return None
        known = [str(member.value) for member in kind]
        if written.value not in known:
            raise self.wrong(
                key,
                f"{written.value!r} is not one of {', '.join(known)}",
                hint=did_you_mean(written.value, known),
            )
        return Sourced(kind(written.value), written.source)

    def table(self, key: str) -> Table | None:
        if key not in self:
            return None
        return self._table(self.values[key], key)

    def tables(self, key: str) -> tuple[Table, ...]:
        return tuple(self._table(value, key, index) for index, value in self._elements(key))

    def strings_or_tables(self, key: str) -> tuple[Sourced[str] | Table, ...]:
        return tuple(
            Sourced(value, self.source(key, index))
            if isinstance(value, str)
            else self._text_or_table(value, key, index)
            for index, value in self._elements(key)
        )

    def _text_or_table(self, value: object, *steps: str | int) -> Table:
        if not isinstance(value, dict):
            found = _NAMES.get(type(value), f"a {type(value).__name__}")
            raise wrong(self.source(*steps), f"expected a text or a table, found {found}")
        return self._table(value, *steps)

    def _table(self, value: object, *steps: str | int) -> Table:
        if not isinstance(value, dict):
            raise _mistyped(self.source(*steps), value, dict)
        return Table(self.file, value, self.lines, (*self.path, *steps))

    def _elements(self, key: str) -> Iterator[tuple[int, object]]:
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self._mistyped(key, value, list)
        yield from enumerate(value)

    def _mistyped(self, key: str, value: object, wanted: type) -> PolicyError:
        return _mistyped(self.source(key), value, wanted)


def _mistyped(source: Source, value: object, wanted: type) -> PolicyError:
    found = _NAMES.get(type(value), f"a {type(value).__name__}")
    return wrong(source, f"expected {_NAMES[wanted]}, found {found}")


def dotted_key(path: Path) -> str:
    """``filesystem.read_globs[2]``"""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if step.replace("-", "_").isidentifier() else repr(step)
            text += f".{name}" if text else name
    return text
