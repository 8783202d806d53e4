"""Programs that start another one, from wrappers.toml: how to find the inner command."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wrappers.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """The head of wrappers.toml explains the fields."""

    values: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    leading: bool = False
    operands: int = 0
    assigns: bool = False
    any_name: bool = False
    scripts: tuple[str, ...] = ()
    splits: bool = False
    joins: bool = False
    appends: bool = False
    feeds: bool = False
    stops: tuple[str, ...] = ()
    chdir: tuple[str, ...] = ()
    anywhere: bool = False

    @property
    def taking(self) -> frozenset[str]:
        """The options that take a value."""
        return frozenset((*self.values, *self.pairs, *self.scripts, *self.chdir))


@cache  # part of the installation, like the code
def wrappers() -> Mapping[str, Wrapper]:
    import tomllib

    with open(TABLE, "rb") as file:
        table = tomllib.load(file)
    return {name: _wrapper(entry) for name, entry in table.items()}


def wrapper_of(program: str) -> Wrapper | None:
    """The dynamic loader also starts a program, and has many names."""
    return wrappers().get("ld.so" if re.fullmatch(r"ld[.-].*\.so(\..*)?", program) else program)


def _wrapper(entry: dict[str, Any]) -> Wrapper:
    keys: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return Wrapper(**keys)
