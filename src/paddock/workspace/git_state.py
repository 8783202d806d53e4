"""Files that git leaves behind in a copy and obeys later: its index, its refs, the state and
options of an unfinished rebase. The core judges their content, as in a live workspace.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping

from paddock.core import process as core
from paddock.frozen import dataclass
from paddock.policy.git_layout import GIT, MAKING, is_foreign
from paddock.workspace.change import ROOT, Change, Type, inside
from paddock.workspace.dir_fd_access import parent_of
from paddock.workspace.repositories import Repositories

# There are many, and git obeys none of them. The core is not asked about them.
_OBJECT = re.compile(r"(.*/)?objects/([0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]+\.\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    harmful: frozenset[str]  # the host's git would obey these files in a harmful way
    contents: Mapping[str, bytes]  # files that get another content: an index without its caches


def git_state(
    changes: Iterable[Change], upper: int, repositories: Repositories, workspace: str
) -> GitState:
    directories = repositories.known | repositories.made
    harmful = set()
    contents = {}
    for change in changes:
        if _breaks(change, repositories):
            harmful.add(change.path)
            continue
        part = _part(change.path, directories)
        if part is None or change.new is None or change.new.type is not Type.FILE:
            continue
        if _OBJECT.fullmatch(part):
            continue
        place = os.path.join(workspace, change.path)
        answer = core.ask("git-state", part, place, question=_content(upper, change.path))
        if answer is False:
            harmful.add(change.path)
        elif isinstance(answer, str):
            contents[change.path] = bytes.fromhex(answer)
    return GitState(harmful=frozenset(harmful), contents=contents)


def _breaks(change: Change, repositories: Repositories) -> bool:
    """Whether the host's git would no longer take a directory for a repository. It would go to one
    above it. The core judges the content of HEAD. Also whether the file is a person's own.
    """
    if change.old is None:
        return False
    directory, name = os.path.split(change.path)
    if _is_repository(change.path, repositories):
        needed = stat.S_IRUSR | stat.S_IXUSR
    elif os.path.basename(directory) == GIT and change.old.type is Type.FILE and is_foreign(name):
        return True
    elif name not in MAKING or not _is_repository(directory or ROOT, repositories):
        return False
    else:
        needed = stat.S_IRUSR | (stat.S_IXUSR if change.old.type is Type.DIRECTORY else 0)
    if change.new is None or change.new.type is not change.old.type:
        return True
    return bool(change.old.mode & ~change.new.mode & needed)


def _is_repository(path: str, repositories: Repositories) -> bool:
    return os.path.basename(path) == GIT or path in repositories.known


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
