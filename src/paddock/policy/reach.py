"""Reach: every place that a fenced command of this user was ever allowed to write.

What one run may write, it may prepare for the next: a link where a grant will lead, a policy file where one will be
read. So the places are remembered. A grant does not follow a link that stands in one of them, and a policy file in one
of them counts only as trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from paddock.policy.remembered import Remembered, Store

STORE = "reach"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    trees: tuple[str, ...] = ()
    facts: tuple[int, ...] = ()

    @classmethod
    def read(cls, state_dir: str) -> Reach:
        return cls._of(Store(state_dir, STORE).read())

    @classmethod
    def record(cls, state_dir: str, trees: Iterable[str]) -> Reach:
        """Add these, if they are not inside what is known already."""
        store = Store(state_dir, STORE)
        with store.locked():
            known = cls._of(store.read())
            added = known.lacks(trees)
            return cls._of(store.write((*known.trees, *added))) if added else known

    @classmethod
    def require_recordable(cls, state_dir: str, trees: Iterable[str]) -> None:
        """Refuse what :meth:`record` would, and write nothing."""
        if cls.read(state_dir).lacks(trees):
            Store(state_dir, STORE).require_writable()

    @classmethod
    def _of(cls, remembered: Remembered) -> Reach:
        return cls(trees=remembered.paths, facts=remembered.facts)

    def lacks(self, trees: Iterable[str]) -> list[str]:
        return [tree for tree in dict.fromkeys(trees) if not self.holds(tree)]

    def holds(self, path: str) -> bool:
        return any(_within(path, tree) for tree in self.trees)


NOTHING_REACHED = Reach()


def _within(path: str, tree: str) -> bool:
    return f"{path}/".startswith(f"{tree.rstrip('/')}/")
