"""Finds the repository of a directory (gitrepository-layout(5)): ``.git`` → git directory → common
directory.
"""

from __future__ import annotations

import os
import stat

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.host.git.file_snapshot import FileSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """``git_dir`` has HEAD and the index, ``common_dir`` has the configuration, objects and refs.
    They are the same except in a linked worktree. ``elsewhere``: ``.git`` is a file that names a
    directory, as in a worktree or a submodule.
    """

    top: str
    git_dir: str
    common_dir: str
    elsewhere: bool

    @property
    def linked(self) -> bool:
        return self.elsewhere and self.git_dir != self.common_dir


def repository_of(top: str, snapshot: FileSnapshot) -> Repository | None:
    """None: there is no ``.git``, or it names nothing."""
    dot_git = os.path.join(top, ".git")
    found = snapshot.at(dot_git)
    if found is None:
        return None
    if stat.S_ISDIR(found.st_mode):
        git_dir = dot_git
    else:
        text = snapshot.text(dot_git)
        if text is None:  # a link to a directory
            git_dir = os.path.realpath(dot_git)
        elif text.startswith("gitdir: "):
            git_dir = _named(top, text.removeprefix("gitdir: "))
        else:
            return None
    common = snapshot.text(os.path.join(git_dir, "commondir"))
    return Repository(
        top=top,
        git_dir=git_dir,
        common_dir=git_dir if common is None else _named(git_dir, common),
        elsewhere=not stat.S_ISDIR(found.st_mode),
    )


def repository_around(top: str, snapshot: FileSnapshot) -> Repository | None:
    """The repository that git finds when it starts in a directory: there, or in the nearest
    directory above.
    """
    while True:
        try:
            found = repository_of(top, snapshot)
        except PolicyError:  # git can not read it either
            return None
        if found is not None or top == "/":
            return found
        top = os.path.dirname(top)


def _named(base: str, written: str) -> str:
    """Git removes the line end and takes the rest literally."""
    return os.path.normpath(os.path.join(base, written.rstrip("\r\n")))
