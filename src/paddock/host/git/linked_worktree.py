"""A linked worktree whose main repository is elsewhere: the parts of it that git needs inside the
sandbox.

The ``.git`` file names the repository, and a sandboxed command may have written such a file. So it
opens nothing by itself:

- the repository belongs to the user, lists this worktree, and its path contains no link;

- either the ``.git`` file or the list is in a directory that no earlier run could write, or both
agreed before any run could write them (``worktree_links.py`` records this).
"""

from __future__ import annotations

import os

from paddock.frozen import dataclass
from paddock.host.git.file_snapshot import FileSnapshot
from paddock.host.git.repository import Repository

# The files that add, commit, checkout, stash, rebase and fetch write besides the worktree's own
# entry. Not packed-refs: git replaces it by a new file, and needs the directory for that. Run `git
# gc` and `pack-refs` outside.
WRITTEN = ("objects", "refs", "logs", "reftable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The grants of a worktree: ``read`` as a whole, ``write`` inside of it. ``locked`` stays
    read-only: pointers and programs that the patterns for ``.git`` do not match if a repository has
    another name.
    """

    top: str
    git_dir: str
    read: str
    write: tuple[str, ...]
    locked: tuple[str, ...]


def opening_of(repository: Repository, snapshot: FileSnapshot, *, uid: int) -> Opening | str:
    """The grants, or the reason why there are none."""
    entry, main = repository.git_dir, repository.common_dir
    if (
        os.path.dirname(os.path.dirname(entry)) != main
        or os.path.basename(os.path.dirname(entry)) != "worktrees"
    ):
        return f"{entry} is not a worktree of {main}"
    for directory in (main, entry):
        if os.path.realpath(directory) != directory:
            return f"the path {directory} contains a symbolic link"
        found = snapshot.at(directory)
        if found is None:
            return f"{directory} does not exist"
        if found.st_uid != uid:
            return f"{directory} belongs to uid {found.st_uid}"
    listed = snapshot.text(os.path.join(entry, "gitdir"))
    dot_git = os.path.join(os.path.realpath(repository.top), ".git")
    if listed is None or os.path.normpath(os.path.join(entry, listed.rstrip("\r\n"))) != dot_git:
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
