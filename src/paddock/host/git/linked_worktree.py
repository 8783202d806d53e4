"""A linked worktree whose main repository lies elsewhere: what git inside the fence has to be given
of it.

The ``.git`` file says where that is, and a fenced command may have written such a file. So it opens
nothing by itself:

- the repository belongs to the person, lists this very worktree, and no link is on the way to it;
- either the ``.git`` file or the list lies where no earlier run could write, or the two were seen
  to agree before any could (``worktree_links.py`` remembers).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from paddock.host.git.file_snapshot import Looked
from paddock.host.git.repository import Repository

# What add, commit, checkout, stash, rebase and fetch write beside the worktree's own entry. Not
# packed-refs: git replaces it by a new file, for which it would need the directory; `git gc` and
# `pack-refs` are for outside.
WRITTEN = ("objects", "refs", "logs", "reftable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a worktree needs: ``read`` as a whole, ``write`` inside of it. ``locked`` stays
    read-only: pointers and programs, which the patterns for ``.git`` do not reach where a
    repository has another name.
    """

    top: str
    git_dir: str
    read: str
    write: tuple[str, ...]
    locked: tuple[str, ...]


def opening_of(repository: Repository, looked: Looked, *, uid: int) -> Opening | str:
    """What to open, or why not."""
    entry, main = repository.git_dir, repository.common_dir
    if (
        os.path.dirname(os.path.dirname(entry)) != main
        or os.path.basename(os.path.dirname(entry)) != "worktrees"
    ):
        return f"{entry} is not a worktree of {main}"
    for place in (main, entry):
        if os.path.realpath(place) != place:
            return f"the path {place} contains a symbolic link"
        found = looked.at(place)
        if found is None:
            return f"{place} does not exist"
        if found.st_uid != uid:
            return f"{place} belongs to uid {found.st_uid}"
    listed = looked.text(os.path.join(entry, "gitdir"))
    door = os.path.join(os.path.realpath(repository.top), ".git")
    if listed is None or os.path.normpath(os.path.join(entry, listed.rstrip("\r\n"))) != door:
        return f"{main} does not list this worktree"
    pointers = ("commondir", "gitdir", "config.worktree", "hooks", "modules")
    return Opening(
        top=repository.top,
        git_dir=entry,
        read=main,
        write=(*(os.path.join(main, name) for name in WRITTEN), entry),
        locked=(
            *(os.path.join(entry, name) for name in pointers),
            os.path.join(main, "objects/info/alternates"),
        ),
    )
