"""Directories of a grant that can not be listed, because a path inside them is denied.

Landlock has no deny rule: a directory that contains a denied path is granted entry by entry, and
not itself. The author of the deny may not expect this, so `check` and `explain` print it. A run
does not print it, because nothing is weaker.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from paddock.frozen import dataclass
from paddock.plan.path_containment import carved_directories, within
from paddock.plan.plan import Files
from paddock.plan.rights import ACCESS, WRITES
from paddock.policy.glob import Glob
from paddock.policy.model import Access, Filesystem

MAX_SHOWN_DIRECTORIES = (
    3  # of the denied paths in a broad grant; `explain` lists all of them beside the grant
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeniedPath:
    path: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.path} ({self.source})" if self.source else self.path


def lost_in_policy(filesystem: Filesystem) -> Iterator[str]:
    """From the policy alone, each deny with its line. Only the machine of the run determines the
    tier.
    """
    denies = [(Glob.parse(deny.pattern), deny) for deny in filesystem.denies]
    denied = [
        _DeniedPath(path=glob.prefix, source=str(deny.source))
        for glob, deny in denies
        if glob.exact
    ]
    for grant in filesystem.grants:
        tree = Glob.parse(grant.pattern).prefix
        inside = [one for one in denied if one.path != tree and within(one.path, tree)]
        if inside and grant.access in (Access.READ, Access.ALLOW):
            yield _text(str(grant.source), tree, inside) + " in the landlock tier"


def lost_in_plan(files: Files, *, absent: Container[str] = ()) -> Iterator[str]:
    """From a plan, for every kind of denied path. ``absent``: grants without an object. Write
    grants have a warning of their own.
    """
    for grant in files.grants:
        lists = "read_dir" in ACCESS[grant.access]
        if grant.except_ and lists and grant.access not in WRITES and grant.path not in absent:
            yield _text(
                grant.source, grant.path, [_DeniedPath(path=path) for path in grant.except_]
            )


def _text(source: str, tree: str, denied: list[_DeniedPath]) -> str:
    named = ", ".join(map(str, denied[:MAX_SHOWN_DIRECTORIES])) + (
        f" and {len(denied) - MAX_SHOWN_DIRECTORIES} more" if denied[MAX_SHOWN_DIRECTORIES:] else ""
    )
    lost = ", ".join(carved_directories(tree, [one.path for one in denied]))
    return f"{source}: {named} is denied inside {tree}, so the command cannot list {lost}"
