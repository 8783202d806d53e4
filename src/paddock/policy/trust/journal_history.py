"""Journals of earlier runs of this user in other directories (``--audit-log``, ``audit.dir``).

Each run denies its own journal and the default one. A journal elsewhere is recorded, so that later
runs deny it too. A removed journal is dropped from the list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from paddock.frozen import dataclass
from paddock.policy.trust.path_list import PathListFile, StoredPaths
from paddock.text.path_walk import follow

STORE = "journals"
MIN_AGE_S = 60  # a run is recorded shortly before it creates its journal


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHistory:
    places: tuple[str, ...] = ()
    facts: tuple[int, ...] = ()

    @classmethod
    def read(cls, state_dir: str) -> JournalHistory:
        return cls._of(PathListFile(state_dir, STORE).read())

    @classmethod
    def record(cls, state_dir: str, places: Iterable[str]) -> JournalHistory:
        """Adds these by their resolved paths, and drops those that do not exist any more."""
        store = PathListFile(state_dir, STORE)
        with store.locked():
            known = store.read()
            wanted = dict.fromkeys(follow(place).end.path for place in places)
            kept = dict.fromkeys((*_still_existing(known, store.path), *wanted))
            return cls._of(known if tuple(kept) == known.paths else store.write(kept))

    @classmethod
    def _of(cls, remembered: StoredPaths) -> JournalHistory:
        return cls(places=remembered.paths, facts=remembered.facts)


EMPTY_JOURNAL_HISTORY = JournalHistory()


def _still_existing(known: StoredPaths, path: str) -> list[str]:
    if known.paths and time.time() - os.lstat(path).st_mtime < MIN_AGE_S:
        return list(known.paths)
    return [place for place in known.paths if not _is_gone(place)]


def _is_gone(place: str) -> bool:
    """An invisible path is not gone: a command may have closed a directory above it (Landlock does
    not restrict chmod).
    """
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
