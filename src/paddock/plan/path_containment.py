"""Paths as text, compared by components: /proj-evil is not within /proj. Opens no file."""

from __future__ import annotations

import os.path
from collections.abc import Iterable


def within(path: str, tree: str) -> bool:
    """Whether ``path`` is the directory ``tree`` or below it."""
    return path == tree or path.startswith(tree if tree == "/" else tree + "/")


def touch(one: str, other: str) -> bool:
    return within(one, other) or within(other, one)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    outer_paths: list[str] = []
    for path in sorted(paths):
        if not any(within(path, outer) for outer in outer_paths):
            outer_paths.append(path)
    return tuple(outer_paths)


def with_parents(path: str) -> list[str]:
    """The path and every directory above it except the root, longest first."""
    found = []
    while path != "/":
        found.append(path)
        path = os.path.dirname(path)
    return found


def carved_directories(path: str, excepts: Iterable[str]) -> list[str]:
    """The directories between a grant and its excepts. They are granted entry by entry, not
    themselves.
    """
    found = set()
    for excluded in excepts:
        parent = os.path.dirname(excluded)
        while within(parent, path):
            found.add(parent)
            if parent == "/":
                break
            parent = os.path.dirname(parent)
    return sorted(found)
