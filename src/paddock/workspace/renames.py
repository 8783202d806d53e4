"""Finds renames: an added file with exactly the content of a deleted one."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from paddock.workspace.change import Change, ChangeKind, Type
from paddock.workspace.dir_fd_access import BLOCK_BYTES, opened_file, parent_of


def with_renames(changes: list[Change], upper: int, lower: int) -> list[Change]:
    """Empty files are all alike and are not renames of each other."""
    gone = [
        c
        for c in changes
        if c.kind is ChangeKind.DELETED and c.old and c.old.type is Type.FILE and c.old.size
    ]
    added = [
        c
        for c in changes
        if c.kind is ChangeKind.ADDED and c.new and c.new.type is Type.FILE and c.new.size
    ]
    sizes = {c.old.size for c in gone if c.old} & {c.new.size for c in added if c.new}
    sources: dict[bytes, list[str]] = defaultdict(list)
    for change in gone:
        if change.old and change.old.size in sizes and (digest := _digest(lower, change.path)):
            sources[digest].append(change.path)
    origin: dict[str, str] = {}
    for change in added:
        if (
            change.new
            and change.new.size in sizes
            and (digest := _digest(upper, change.path))
            and sources[digest]
        ):
            source = _likeliest(sources[digest], change.path)
            sources[digest].remove(source)
            origin[change.path] = source
    target = {source: path for path, source in origin.items()}
    return [
        replace(change, renamed_from=origin.get(change.path), renamed_to=target.get(change.path))
        for change in changes
    ]


def _likeliest(sources: Iterable[str], path: str) -> str:
    """Of several files with this content, one of the same name in another directory."""
    return min(
        sources, key=lambda source: (os.path.basename(source) != os.path.basename(path), source)
    )


def _digest(root: int, path: str) -> bytes | None:
    with (
        contextlib.suppress(OSError),
        parent_of(root, path) as (parent, name),
        opened_file(name, parent) as fd,
    ):
        digest = hashlib.blake2b()
        while block := os.read(fd, BLOCK_BYTES):
            digest.update(block)
        return digest.digest()
    return None
