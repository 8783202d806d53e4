"""Files that git reads, follows and executes, from git.tsv, which paddock-core also reads.

``core/src/files/git/recognise_git_dirs.rs`` applies the same rules. Paths are taken as written:
relative to a workspace, or whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from functools import cache

from paddock.frozen import dataclass
from paddock.policy.glob import Glob

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "git.tsv")
GIT = ".git"
MAKING = ("HEAD", "objects", "refs", "commondir")


class Key(Enum):
    """The meaning of a configuration value; git.tsv explains it."""

    INCLUDE = "include"
    PATH = "path"
    WORKTREE = "worktree"
    PROGRAM = "program"
    ALIAS = "alias"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    parts: frozenset[str]  # every name directly in a git directory
    written: tuple[Glob, ...]  # the names that git and its tools write there
    protected: tuple[str, ...]  # patterns that are read-only in a git directory and in nested ones
    branches: tuple[tuple[str, ...], ...]
    keys: dict[str, Key]


@cache  # part of the installation, like the code
def layout() -> Layout:
    with open(TABLE, encoding="ascii") as file:
        rows = [line.split("\t") for line in file.read().splitlines() if not line.startswith("#")]
    parts = {name: held for kind, name, _, held in rows if kind == "part"}
    layouts = [name for kind, name, _, _ in rows if kind == "layout"]
    locked = [name for name, held in parts.items() if held == "locked"]
    written = [name for kind, name, _, _ in rows if kind == "written"]
    return Layout(
        parts=frozenset(parts),
        written=tuple(
            Glob.parse(f"/{name}")
            for name in (*(part.split("/")[0] for part in parts), *written, "*.lock")
        ),
        protected=(
            *(name for name, held in parts.items() if held in ("locked", "main")),
            *(f"{directory}/{name}" for directory in layouts for name in locked),
        ),
        branches=tuple(tuple(name.split("/")) for kind, name, _, _ in rows if kind == "branch"),
        keys={name: Key(role) for kind, name, role, _ in rows if kind == "key"},
    )


def key_of(section: str, key: str) -> Key:
    """A key that the table does not have may name a program."""
    keys = layout().keys
    return keys.get(f"{section}.{key}") or keys.get(f"{section}.*") or Key.PROGRAM


def make_one(has: Callable[[str], bool]) -> bool:
    """Git recognises such a directory as a repository under any name (setup.c, is_git_directory).
    With a commondir, objects and refs are elsewhere.
    """
    return has("HEAD") and (has("commondir") or (has("objects") and has("refs")))


def directories_above(path: str) -> Iterator[str]:
    """Directories of the host that are git directories by their parts, innermost first."""
    while (above := os.path.dirname(path)) != path:

        def has(name: str, directory: str = above) -> bool:
            return os.path.lexists(f"{directory}/{name}")

        if os.path.basename(above) != GIT and make_one(has):
            yield above
        path = above


def is_part(inside: str) -> bool:
    """Whether this path, or one above it, is read-only in a git directory. It is relative to that
    directory.
    """
    names = inside.split("/")
    ancestors = ["/" + "/".join(names[: end + 1]) for end in range(len(names))]
    return any(glob.matches(ancestor) for glob in _protected() for ancestor in ancestors)


@cache
def _protected() -> tuple[Glob, ...]:
    return tuple(Glob.parse(f"/{name}") for name in layout().protected)


def is_foreign(name: str) -> bool:
    """Whether git and its tools write no file of this name directly in a git directory. A person
    has put it there, and a command in a configuration can name it.
    """
    is_capital = re.fullmatch("[A-Z_]+", name) is not None
    return not is_capital and not any(glob.matches(f"/{name}") for glob in layout().written)


def is_written(directory: str, git_directories: Collection[str] = ()) -> bool:
    """Whether git writes to names in this directory. Git does so without checking the type of a
    name. A work tree inside a git directory of another name is not part of it.
    """
    if GIT in directory.split("/"):
        return True
    for one in git_directories:
        if directory == one:
            return True
        if (
            directory.startswith(f"{one}/")
            and directory[len(one) + 1 :].split("/")[0] in layout().parts
        ):
            return True
    return False


def is_branch(path: str) -> bool:
    """Whether this is the name of a branch, or a directory of such names, in the repository of a
    submodule. It may have the name of a part of a git directory. No branch name begins with a dot
    (git-check-ref-format), so a nested repository ``.git`` is not a branch.
    """
    *above, name = path.split("/")
    if GIT not in above or name.startswith("."):
        return False
    names = [*above[len(above) - above[::-1].index(GIT) :], name]
    match names:
        case ["worktrees", _, "modules", *rest] | ["modules", *rest]:
            return any(_goes_on_after(rest, beginning) for beginning in layout().branches)
        case _:
            return False


def _goes_on_after(names: list[str], beginning: tuple[str, ...]) -> bool:
    """The first name is that of the submodule."""
    for at in range(1, len(names) - len(beginning)):
        if tuple(names[at : at + len(beginning)]) == beginning:
            return not any(name.startswith(".") for name in names[at + len(beginning) :])
    return False


def patterns() -> tuple[str, ...]:
    """The protected patterns in every git directory named ``.git``, and the file or link with that
    name.
    """
    return (GIT, *(f"{GIT}/{name}" for name in layout().protected))
