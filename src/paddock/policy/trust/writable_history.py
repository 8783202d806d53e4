"""Previously writable: every path that a sandboxed command of this user was ever allowed to write.

A run may prepare the next one: it can create a link where a grant will lead, or a policy file that
will be read. So the paths are recorded. A grant does not follow a link inside them, and a policy
file inside them counts only if it is trusted.

A tree is known by its name and, as a directory, by its inode, because a renamed project keeps the
files that a command left in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from paddock.errors import PolicyError
from paddock.frozen import dataclass
from paddock.policy.trust.path_list import PathListFile
from paddock.text.path_walk import Identity, PathWalk, ResolvedPath, Tree, follow

STORE = "reach"

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
        """Adds the ends of these walks, unless a known tree contains them."""
        store = PathListFile(state_dir, STORE)
        with store.locked():
            known = cls._read(store)
            whole = known.including(walks)
            if whole.trees == known.trees:
                return known
            return cls(trees=whole.trees, facts=store.write(map(_line, whole.trees)).facts)

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
            named = any(known.names(resolved.path) for known in trees)
            if named and (tree.identity is None or any(known.holds(resolved) for known in trees)):
                continue
            trees = [known for known in trees if not _is_renumbered(known, tree)]
            trees.append(tree)
        return replace(self, trees=tuple(trees))

    def holds(self, walk: PathWalk) -> bool:
        """Whether a link on the walk or its end is in a tree that a command could write, by name or
        by inode.
        """
        names = (walk.written, *(resolved.path for resolved in walk.resolved_paths))
        return any(
            any(tree.names(name) for name in names)
            or any(tree.holds(resolved) for resolved in walk.resolved_paths)
            for tree in self.trees
        )


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
    return Tree(path=resolved.path, identity=resolved.object if lasting else None)


def _is_renumbered(known: Tree, tree: Tree) -> bool:
    """The same inode on a device whose number changed at a reboot."""
    if known.path != tree.path or known.identity is None or tree.identity is None:
        return False
    return known.identity.inode == tree.identity.inode


def _line(tree: Tree) -> str:
    """``/path``, or ``device:inode /path``."""
    return (
        f"{tree.identity.device}:{tree.identity.inode} {tree.path}" if tree.identity else tree.path
    )


def _parsed(line: str) -> Tree:
    if line.startswith("/"):
        return Tree(path=line)
    numbers, _, path = line.partition(" ")
    device, _, inode = numbers.partition(":")
    if not path.startswith("/"):
        raise ValueError(line)
    return Tree(path=path, identity=Identity(int(device), int(inode)))
