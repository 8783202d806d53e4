"""Directories of a grant that can not be listed, because something inside them stays closed.

Landlock has no deny: a directory that holds a closed place is granted entry by entry and not
itself. Whoever wrote the deny may not expect that, so `check` and `explain` say it. A run does not:
it was told before, and nothing is weaker.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass

from paddock.plan.model import Files
from paddock.plan.paths import carved_directories, within
from paddock.plan.rights import ACCESS, WRITES
from paddock.policy.glob import Glob
from paddock.policy.model import Access, Filesystem

MAX_SHOWN_DIRECTORIES = (
    3  # of a broad grant's many closed places; `explain` lists them all beside the grant
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Closed:
    path: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.source})" if self.source else self.path


def lost_as_written(filesystem: Filesystem) -> Iterator[str]:
    """From the policy alone, each deny with its line; which tier a run will have, only the run's
    machine knows.
    """
    denies = [(Glob.parse(deny.pattern), deny) for deny in filesystem.denies]
    closed = [
        _Closed(path=glob.prefix, source=str(deny.source)) for glob, deny in denies if glob.exact
    ]
    for grant in filesystem.grants:
        tree = Glob.parse(grant.pattern).prefix
        inside = [one for one in closed if one.path != tree and within(one.path, tree)]
        if inside and grant.access in (Access.READ, Access.ALLOW):
            yield _said(str(grant.source), tree, inside) + " in the landlock tier"


def lost_as_held(files: Files, *, absent: Container[str] = ()) -> Iterator[str]:
    """From a plan, whatever closed them. ``absent``: grants that came to nothing. Writing ones have
    a warning.
    """
    for grant in files.grants:
        lists = "read_dir" in ACCESS[grant.access]
        if grant.except_ and lists and grant.access not in WRITES and grant.path not in absent:
            yield _said(grant.source, grant.path, [_Closed(path=path) for path in grant.except_])


def _said(source: str, tree: str, closed: list[_Closed]) -> str:
    named = ", ".join(map(str, closed[:MAX_SHOWN_DIRECTORIES])) + (
        f" and {len(closed) - MAX_SHOWN_DIRECTORIES} more" if closed[MAX_SHOWN_DIRECTORIES:] else ""
    )
    lost = ", ".join(carved_directories(tree, [one.path for one in closed]))
    return f"{source}: {named} is denied inside {tree}, so the command cannot list {lost}"
