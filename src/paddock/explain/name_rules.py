"""Denied and protected names of a plan: which patterns match a path."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

from paddock.plan.plan import Files
from paddock.policy.git_layout import directories_above, is_branch, is_part
from paddock.policy.glob import ANY_DEPTH, Glob, component_matches
from paddock.policy.protected import protected_because

# A directory of such a name is writable. Protected names inside have their own patterns.
OPEN_DIRECTORIES = ("/.git", "/.jj/repo")


class NameRules:
    def __init__(self, files: Files) -> None:
        self._deny = _Patterns(files.denied)
        self._protected = _Patterns(files.protected)
        self._excepted = _Patterns(files.excepted)
        self._protects_any = bool(files.protect)

    def denied_by(self, path: str) -> str | None:
        """The pattern that denies this name. Directories above it are not considered."""
        return self._deny.matching(path)

    def is_opened(self, path: str) -> bool:
        return bool(self._excepted.matching(path))

    def protects(self, path: str) -> bool:
        """Whether this name itself is protected. Directories above it are not considered."""
        return bool(self._protected.matching(path)) and not (
            self.is_opened(path) or _is_open_directory(path) or is_branch(path)
        )

    def is_in_git_directory(self, path: str) -> bool:
        """Whether it is in a directory that git recognises as a repository by its parts."""
        if not self._protects_any or self.is_opened(path):
            return False
        return any(is_part(path[len(git) + 1 :]) for git in directories_above(path))

    def leads_to_protected(self, path: str) -> bool:
        """Whether a protected pattern continues below this name. A link of this name leads programs
        to other files than the protected ones.
        """
        return self._protected.continues(path)


def protected_reason(path: str) -> str:
    why = protected_because(path)
    return "protected: read-only inside writable directories" + (f", because {why}" if why else "")


class _Patterns:
    """Hundreds of patterns, of which few can match one path. Most are found by their last name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._by_name: dict[str, list[Glob]] = defaultdict(list)
        self._wild: list[Glob] = []
        for glob in map(Glob.parse, patterns):
            last = glob.parts[-1] if glob.parts else ""
            (self._wild if "*" in last or not last else self._by_name[last]).append(glob)

        # The same parent directories are asked for many times.
        self.matching = lru_cache(maxsize=4096)(self._matching)

    def _matching(self, path: str) -> str | None:
        """The first pattern that matches the whole path."""
        name = path.rpartition("/")[2]
        wild = (
            glob for glob in self._wild if not glob.parts or component_matches(glob.parts[-1], name)
        )
        return next(
            (glob.text for glob in (*self._by_name.get(name, ()), *wild) if glob.matches(path)),
            None,
        )

    def continues(self, path: str) -> bool:
        """Whether a pattern names this path and then another name below it."""
        every = (glob for globs in (*self._by_name.values(), self._wild) for glob in globs)
        return any(_continues(glob, path) for glob in every)


def _continues(glob: Glob, path: str) -> bool:
    name = path.rpartition("/")[2]
    for at, part in enumerate(glob.parts):
        rest = glob.parts[at + 1 :]
        if (
            part != ANY_DEPTH
            and any(after != ANY_DEPTH for after in rest)
            and component_matches(part, name)
            and Glob(root=glob.root, parts=glob.parts[: at + 1]).matches(path)
        ):
            return True
    return False


def _is_open_directory(path: str) -> bool:
    return path.endswith(OPEN_DIRECTORIES) and os.path.isdir(path) and not os.path.islink(path)
