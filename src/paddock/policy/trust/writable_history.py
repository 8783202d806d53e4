"""Previously writable: every path that a sandboxed command of this user was ever allowed to write.

A run may prepare the next one: it can create a link where a grant will lead, or a policy file that
will be read. So the paths are recorded. A grant does not follow a link inside them, and a policy
file inside them counts only if it is trusted.

A tree is known by its name and, as a directory, by its inode and birth time, because a renamed
project keeps the files that a command left in it. A directory that is gone from its name was
renamed or removed. If its inode number belongs to another file, it was removed, and its entry goes.
Of the others the list keeps the last ``MAX_GONE``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.trust.path_list import PathListFile
from paddock.text.birth_time import born_object_at
from paddock.text.path_walk import Identity, PathWalk, ResolvedPath, Tree, follow

STORE = "reach"
MAX_GONE = 1000  # each start reads the whole list

_TEMP_PARENT = "/tmp"  # the parent of private temporary directories

# The kernel assigns new inodes here at every boot, and no process renames them.
_KERNEL_TREES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableHistory:
    trees: tuple[Tree, ...] = ()
    facts: tuple[int, ...] = ()

    @classmethod
    def read(cls, state_dir: str) -> WritableHistory:
        return cls._read(PathListFile(state_dir, STORE))

    @classmethod
    def record(cls, state_dir: str, walks: Iterable[PathWalk]) -> WritableHistory:
        """Adds the ends of these walks. A path inside a known tree is added too: the tree may be
        forgotten (``paddock trust --forget``), and the path not.
        """
        store = PathListFile(state_dir, STORE)
        with store.locked():
            known = cls._read(store)
            whole = known.including(walks)
            if whole.trees == known.trees:
                return known
            return cls(trees=whole.trees, facts=store.write(map(_line, whole.trees)).facts)

    @classmethod
    def forget(cls, state_dir: str, path: str) -> WritableHistory:
        """Removes the entries with this name. Entries below it stay."""
        store = PathListFile(state_dir, STORE)
        with store.locked():
            trees = tuple(tree for tree in cls._read(store).trees if tree.path != path)
            return cls(trees=trees, facts=store.write(map(_line, trees)).facts)

    @classmethod
    def require_recordable(cls, state_dir: str, walks: Iterable[PathWalk]) -> None:
        """Raises the errors of :meth:`record` without writing."""
        known = cls.read(state_dir)
        if known.including(walks).trees != known.trees:
            PathListFile(state_dir, STORE).require_writable()

    @classmethod
    def _read(cls, store: PathListFile) -> WritableHistory:
        remembered = store.read()
        try:
            return cls(trees=tuple(map(_parsed, remembered.paths)), facts=remembered.facts)
        except ValueError as error:
            raise PolicyError(f"is damaged: {error}", where=store.path) from None

    def including(self, walks: Iterable[PathWalk]) -> WritableHistory:
        trees = list(self.trees)
        for resolved in (resolved for walk in walks for resolved in _recorded_paths(walk)):
            tree = _tree(resolved)
            if not any(known.path == tree.path and _is_known(known, tree) for known in trees):
                trees = [known for known in trees if not _is_same(known, tree)]
                trees.append(tree)
        known = set(self.trees)
        added = [tree for tree in trees if tree not in known]
        if not added:
            return self
        kept = _lasting([tree for tree in trees if tree in known], added)
        return replace(self, trees=(*kept, *added))

    def holds(self, walk: PathWalk) -> bool:
        return self.holding(walk) is not None

    def holding(self, walk: PathWalk) -> Tree | None:
        """A tree that a command could write, by name or by inode, with a link on the walk or its
        end in it.
        """
        names = (walk.written, *(resolved.path for resolved in walk.resolved_paths))
        holding = (
            tree
            for tree in self.trees
            if any(tree.names(name) for name in names)
            or any(tree.holds(resolved) for resolved in walk.resolved_paths)
        )
        return next(holding, None)


EMPTY_HISTORY = WritableHistory()


def in_private_temp(walk: PathWalk, uid: int) -> bool:
    """Whether it is in the temporary directory of any run of this user, alive or killed."""
    parents = (_TEMP_PARENT, follow(_TEMP_PARENT).end.path)
    begins = tuple(f"{parent}/paddock-{uid}-" for parent in parents)
    return any(
        name.startswith(begins)
        for name in (walk.written, *(resolved.path for resolved in walk.resolved_paths))
    )


def _recorded_paths(walk: PathWalk) -> Iterator[ResolvedPath]:
    """The end of the walk, and its own name, where a directory may exist when the command starts to
    write.
    """
    yield walk.end
    if not walk.straight:
        yield ResolvedPath(path=walk.written, object=None, above=())


def _tree(resolved: ResolvedPath) -> Tree:
    lasting = resolved.directory and not any(
        Tree(path=tree).names(resolved.path) for tree in _KERNEL_TREES
    )
    if not lasting or resolved.object is None:
        return Tree(path=resolved.path)
    born = born_object_at(resolved.path)
    same = born is not None and born[:2] == resolved.object
    return Tree(
        path=resolved.path,
        identity=resolved.object,
        born_ns=born.born_ns if born is not None and same else None,
    )


def _is_known(known: Tree, tree: Tree) -> bool:
    if known.identity is None or tree.identity is None:
        return tree.identity is None
    return known == tree


def _is_same(known: Tree, tree: Tree) -> bool:
    """The same directory: it did not exist, its birth time was unknown, or its device got another
    number at a reboot.
    """
    if known.path != tree.path or tree.identity is None:
        return False
    if known.identity is None:
        return True
    return known.identity.inode == tree.identity.inode and known.born_ns in (None, tree.born_ns)


def _lasting(trees: Sequence[Tree], added: Sequence[Tree]) -> Iterator[Tree]:
    """Without the directories that were removed, and the oldest of those that may be."""
    gone = [_is_gone(tree) for tree in trees]
    births = {tree.identity: tree.born_ns for tree in (*trees, *added) if tree.identity is not None}
    surplus = sum(gone) - MAX_GONE
    for tree, is_gone in zip(trees, gone, strict=True):
        if not is_gone:
            yield tree
            continue
        surplus -= 1
        if tree.identity is None:
            continue
        # The last entry with this number is the youngest.
        removed = tree.born_ns is not None and births[tree.identity] != tree.born_ns
        if surplus < 0 and not removed:
            yield tree


def _is_gone(tree: Tree) -> bool:
    """Whether its name is gone. A closed directory above it may hide it, so an invisible one stays.
    A name without a directory is gone with the directory above it: nothing can be created there.
    """
    path = tree.path if tree.identity else os.path.dirname(tree.path)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return tree.is_replaced()


def _line(tree: Tree) -> str:
    """``/path``, ``device:inode /path``, or ``device:inode:birth /path``."""
    if tree.identity is None:
        return tree.path
    numbers = (*tree.identity, *([] if tree.born_ns is None else [tree.born_ns]))
    return f"{':'.join(map(str, numbers))} {tree.path}"


def _parsed(line: str) -> Tree:
    if line.startswith("/"):
        return Tree(path=line)
    numbers, _, path = line.partition(" ")
    device, inode, *born = map(int, numbers.split(":"))
    if not path.startswith("/") or len(born) > 1:
        raise ValueError(line)
    return Tree(path=path, identity=Identity(device, inode), born_ns=born[0] if born else None)
