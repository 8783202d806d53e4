"""Files that git leaves behind in a copy and obeys later: its index, its packed refs, the state and
options of an unfinished rebase. The core judges their content, as after a run in a live workspace.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from paddock.core import process as core
from paddock.policy.git_layout import GIT, layout
from paddock.workspace.change import ROOT, Change, Type, inside
from paddock.workspace.dir_fd_access import parent_of
from paddock.workspace.repositories import Repositories


def harmful_state(
    changes: Iterable[Change], upper: int, repositories: Repositories, workspace: str
) -> Iterator[str]:
    """The paths that the host's git would obey in a harmful way."""
    directories = repositories.known | repositories.made
    for change in changes:
        part = _part(change.path, directories)
        if part is None or change.new is None or change.new.type is not Type.FILE:
            continue
        if os.path.basename(part) in layout().checked and not core.ask(
            "git-state",
            part,
            os.path.join(workspace, change.path),
            question=_content(upper, change.path),
        ):
            yield change.path


def _part(path: str, directories: Iterable[str]) -> str | None:
    """The path relative to its git directory; None: it is in none."""
    names = path.split("/")
    if GIT in names[:-1]:
        return "/".join(names[names.index(GIT) + 1 :])
    for one in directories:
        if path != one and inside(path, one):
            return path if one == ROOT else path[len(one) + 1 :]
    return None


def _content(upper: int, path: str) -> bytes:
    with parent_of(upper, path) as (directory, name):
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory
        )
        with open(file, "rb") as opened:
            return opened.read()
