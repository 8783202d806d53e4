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
    paths: tuple[str, ...] = ()
    facts: tuple[int, ...] = ()

    @classmethod
    def read(cls, state_dir: str) -> JournalHistory:
        return cls._of(PathListFile(state_dir, STORE).read())

    @classmethod
    def record(cls, state_dir: str, paths: Iterable[str]) -> JournalHistory:
        """Adds these by their resolved paths, and drops those that do not exist any more."""
        store = PathListFile(state_dir, STORE)
        with store.locked():
            known = store.read()
            wanted = dict.fromkeys(follow(path).end.path for path in paths)
            all_paths = dict.fromkeys((*_still_existing(known, store.path), *wanted))
            return cls._of(known if tuple(all_paths) == known.paths else store.write(all_paths))

    @classmethod
    def _of(cls, remembered: StoredPaths) -> JournalHistory:
        return cls(paths=remembered.paths, facts=remembered.facts)


EMPTY_JOURNAL_HISTORY = JournalHistory()


def _still_existing(known: StoredPaths, path: str) -> list[str]:
    if known.paths and time.time() - os.lstat(path).st_mtime < MIN_AGE_S:
        return list(known.paths)
    return [path for path in known.paths if not _is_gone(path)]


def _is_gone(path: str) -> bool:
    """An invisible path is not gone: a command may have closed a directory above it (Landlock does
    not restrict chmod).
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
