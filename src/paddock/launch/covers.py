"""Covers: what the core would lay over names that are there now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from paddock.core import process as core
from paddock.errors import CoreError
from paddock.plan import Plan


class CoverKind(Enum):
    MASK = "mask"
    LOCK = "lock"
    PIN = "pin"


@dataclass(frozen=True, slots=True)
class Cover:
    """A mount that the core lays over a name inside (core/src/files/cover.rs)."""

    path: str
    kind: CoverKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCovers:
    """``links``: the symlinks in git directories, which nothing is laid over, and what they say."""

    covers: list[Cover]
    links: frozenset[tuple[str, str]]


def covers_of(plan: Plan) -> FoundCovers:
    """What the core would lay over names that are there now, in the full tier."""
    try:
        told = core.ask("covers", plan=plan)
        covers = [
            Cover(path=str(one["path"]), kind=CoverKind(one["kind"])) for one in told["covers"]
        ]
        links = frozenset((str(one["path"]), str(one["said"])) for one in told["links"])
        return FoundCovers(covers=covers, links=links)
    except (KeyError, TypeError, ValueError) as error:
        raise CoreError(
            f"paddock-core sent an invalid answer: {error!r}", hint="reinstall paddock"
        ) from error
