"""Previously writable: every place that a fenced command of this user was ever allowed to write.

What one run may write, it may prepare for the next: a link where a grant will lead, a policy file
where one will be read. So the places are remembered. A grant does not follow a link that stands in
one of them, and a policy file in one of them counts only as trusted.

A place is known by its name and, as a directory, by its inode: a person who renames a project keeps
what a command left in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from paddock.errors import PolicyError
from paddock.policy.trust.path_list import Store
from paddock.text.path_walk import Identity, PathWalk, ResolvedPath, Tree, follow

STORE = "reach"

_TEMP_PARENT = "/tmp"  # where plans put private temporary directories

# Their inodes are the kernel's, new at every start of the machine; nobody renames them.
_KERNEL_TREES = ("/dev", "/proc", "/sys")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableHistory:
    trees: tuple[Tree, ...] = ()
    facts: tuple[int, ...] = ()

    @classmethod
    def read(cls, state_dir: str) -> WritableHistory:
        return cls._read(Store(state_dir, STORE))

    @classmethod
    def record(cls, state_dir: str, ways: Iterable[PathWalk]) -> WritableHistory:
        """Add where these lead, if that is not inside what is known already."""
        store = Store(state_dir, STORE)
        with store.locked():
            known = cls._read(store)
            whole = known.including(ways)
            if whole.trees == known.trees:
                return known
            return cls(trees=whole.trees, facts=store.write(map(_line, whole.trees)).facts)

    @classmethod
    def require_recordable(cls, state_dir: str, ways: Iterable[PathWalk]) -> None:
        """Refuse what :meth:`record` would, and write nothing."""
        known = cls.read(state_dir)
        if known.including(ways).trees != known.trees:
            Store(state_dir, STORE).require_writable()

    @classmethod
    def _read(cls, store: Store) -> WritableHistory:
        remembered = store.read()
        try:
            return cls(trees=tuple(map(_parsed, remembered.paths)), facts=remembered.facts)
        except ValueError as error:
            raise PolicyError(f"is damaged: {error}", where=store.path) from None

    def including(self, ways: Iterable[PathWalk]) -> WritableHistory:
        trees = list(self.trees)
        for place in (place for way in ways for place in _given(way)):
            tree = _tree(place)
            named = any(known.names(place.path) for known in trees)
            if named and (tree.identity is None or any(known.holds(place) for known in trees)):
                continue
            trees = [known for known in trees if not _is_renumbered(known, tree)]
            trees.append(tree)
        return replace(self, trees=tuple(trees))

    def holds(self, way: PathWalk) -> bool:
        """Something on the way or at its end lies where a command could write, by its name or by
        its inode.
        """
        names = (way.written, *(place.path for place in way.places))
        return any(
            any(tree.names(name) for name in names)
            or any(tree.holds(place) for place in way.places)
            for tree in self.trees
        )


NOTHING_REACHED = WritableHistory()


def in_private_temp(way: PathWalk, uid: int) -> bool:
    """In the temporary directory of some run of this user, alive or killed."""
    parents = (_TEMP_PARENT, follow(_TEMP_PARENT).end.path)
    begins = tuple(f"{parent}/paddock-{uid}-" for parent in parents)
    return any(
        name.startswith(begins) for name in (way.written, *(place.path for place in way.places))
    )


def _given(way: PathWalk) -> Iterator[ResolvedPath]:
    """Where it leads; and its own name, at which there may be a directory when the command gets to
    write.
    """
    yield way.end
    if not way.straight:
        yield ResolvedPath(path=way.written, object=None, above=())


def _tree(place: ResolvedPath) -> Tree:
    lasting = place.directory and not any(
        Tree(path=tree).names(place.path) for tree in _KERNEL_TREES
    )
    return Tree(path=place.path, identity=place.object if lasting else None)


def _is_renumbered(known: Tree, tree: Tree) -> bool:
    """The same inode, on a device that got another number when the machine was started again."""
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
