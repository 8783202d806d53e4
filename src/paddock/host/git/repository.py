"""Where the repository of a directory lies (gitrepository-layout(5)): ``.git`` → git directory →
common directory.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from paddock.errors import PolicyError
from paddock.host.git.file_snapshot import Looked


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """``git_dir`` holds HEAD and the index, ``common_dir`` the configuration, objects and refs: the
    same place but for a linked worktree. ``elsewhere``: ``.git`` is not a directory but names one,
    as a worktree's and a submodule's does.
    """

    top: str
    git_dir: str
    common_dir: str
    elsewhere: bool

    @property
    def linked(self) -> bool:
        return self.elsewhere and self.git_dir != self.common_dir


def repository_of(top: str, looked: Looked) -> Repository | None:
    """None: there is no ``.git`` here, or it names nothing."""
    door = os.path.join(top, ".git")
    found = looked.at(door)
    if found is None:
        return None
    if stat.S_ISDIR(found.st_mode):
        git_dir = door
    else:
        text = looked.text(door)
        if text is None:  # a link to a directory
            git_dir = os.path.realpath(door)
        elif text.startswith("gitdir: "):
            git_dir = _named(top, text.removeprefix("gitdir: "))
        else:
            return None
    common = looked.text(os.path.join(git_dir, "commondir"))
    return Repository(
        top=top,
        git_dir=git_dir,
        common_dir=git_dir if common is None else _named(git_dir, common),
        elsewhere=not stat.S_ISDIR(found.st_mode),
    )


def repository_around(top: str, looked: Looked) -> Repository | None:
    """The one that git finds when it is started in a directory: there, or in the nearest one
    above.
    """
    while True:
        try:
            found = repository_of(top, looked)
        except PolicyError:  # nothing can be read there, by git neither
            return None
        if found is not None or top == "/":
            return found
        top = os.path.dirname(top)


def _named(base: str, written: str) -> str:
    """Git strips the line end and takes the rest as it is."""
    return os.path.normpath(os.path.join(base, written.rstrip("\r\n")))
