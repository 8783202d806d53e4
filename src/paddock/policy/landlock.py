"""The rights and scopes of Landlock, from landlock.tsv, which paddock-core shares."""

from __future__ import annotations

import os
from enum import Enum
from functools import cache

from paddock.frozen import dataclass

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "landlock.tsv")


class LandlockKind(Enum):
    RIGHT = "right"
    SCOPE = "scope"


@dataclass(frozen=True, slots=True, kw_only=True)
class LandlockEntry:
    """One row; landlock.tsv explains the columns."""

    kind: LandlockKind
    name: str
    abi: int
    access: frozenset[str]
    without_it: str | None


@cache
def landlock_table() -> tuple[LandlockEntry, ...]:
    with open(TABLE, encoding="ascii") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return tuple(
        LandlockEntry(
            kind=LandlockKind(kind),
            name=name,
            abi=int(abi),
            access=frozenset(() if access == "-" else access.split()),
            without_it=None if without_it == "-" else without_it,
        )
        for kind, name, abi, access, without_it in rows
    )
