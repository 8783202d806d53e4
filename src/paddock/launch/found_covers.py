"""The covers of the core over existing names."""

from __future__ import annotations

from enum import Enum

from paddock.core import process as core
from paddock.errors import CoreError
from paddock.frozen import dataclass
from paddock.plan import Plan


class CoverKind(Enum):
    MASK = "mask"
    LOCK = "lock"
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Cover:
    """A mount of the core over a name inside (core/src/files/cover.rs)."""

    path: str
    kind: CoverKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCovers:
    """``links``: the symlinks in git directories, which are not covered, and their targets."""

    covers: list[Cover]
    links: frozenset[tuple[str, str]]


def covers_of(plan: Plan) -> FoundCovers:
    """The covers over existing names in the full tier."""
    try:
        answer = core.ask("covers", plan=plan)
        covers = [
            Cover(path=str(one["path"]), kind=CoverKind(one["kind"])) for one in answer["covers"]
        ]
        links = frozenset((str(one["path"]), str(one["said"])) for one in answer["links"])
        return FoundCovers(covers=covers, links=links)
    except (KeyError, TypeError, ValueError) as error:
        raise CoreError(
            f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error
