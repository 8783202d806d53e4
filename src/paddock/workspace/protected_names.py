"""Decides which names are protected, for many thousand changes.

The patterns are those of the session's run (``files.protect`` and ``files.opened`` of its plan).
They are indexed by their last name: most paths contain no such name and need no pattern match.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from paddock.frozen import dataclass
from paddock.policy.git_layout import is_branch
from paddock.policy.glob import ANY_DEPTH, Glob, component_matches
from paddock.workspace.change import ROOT

_GIT = ".git"


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    workspace: str
    protect: NameGlobs
    # the directories of protected names: a link in place of one would bring its own content
    directories: NameGlobs
    opened: NameGlobs

    @classmethod
    def of(cls, workspace: str, protect: Iterable[str], opened: Iterable[str]) -> Protection:
        patterns = tuple(protect)
        return cls(
            workspace=workspace.rstrip("/"),
            protect=NameGlobs.of(patterns),
            directories=NameGlobs.of(
                sorted(
                    {directory for pattern in patterns for directory in _directories_of(pattern)}
                )
            ),
            opened=NameGlobs.of(opened),
        )

    def __call__(self, path: str, *, directory: bool, link: bool = False) -> bool:
        """Whether the path or a directory above it is protected."""
        full = self.workspace if path == ROOT else f"{self.workspace}/{path}"
        names = full.split("/")
        if link and self.directories.match(full, names[-1]):
            return True
        for end in range(self.workspace.count("/") + 1, len(names)):
            last = end + 1 == len(names)
            # A repository itself is not protected, its critical parts are. A file or link of that
            # name leads elsewhere.
            whole = names[end] == _GIT or names[end - 1 : end + 1] == [".jj", "repo"]
            if whole and not (last and not directory):
                continue
            prefix = "/".join(names[: end + 1])
            if self.protect.match(prefix, names[end]) and not (
                is_branch(prefix) or self._opened(names, end)
            ):
                return True
        return False

    def _opened(self, names: list[str], start: int) -> bool:
        ends = range(start, len(names))
        return any(self.opened.match("/".join(names[: end + 1]), names[end]) for end in ends)


def _directories_of(pattern: str) -> Iterator[str]:
    """``**/.claude`` for ``**/.claude/settings.json``."""
    glob = Glob.parse(pattern)
    for end in range(1, len(glob.parts)):
        if glob.parts[end - 1] != ANY_DEPTH:
            yield Glob(root=glob.root, parts=glob.parts[:end]).text


@dataclass(frozen=True, slots=True, kw_only=True)
class NameGlobs:
    by_name: dict[str, tuple[Glob, ...]]
    others: tuple[Glob, ...]  # with a wildcard at the end

    @classmethod
    def of(cls, patterns: Iterable[str]) -> NameGlobs:
        by_name: dict[str, list[Glob]] = defaultdict(list)
        others = []
        for glob in map(Glob.parse, patterns):
            last = glob.parts[-1] if glob.parts else ANY_DEPTH
            if "*" in last:
                others.append(glob)
            else:
                by_name[last].append(glob)
        return cls(
            by_name={name: tuple(globs) for name, globs in by_name.items()}, others=tuple(others)
        )

    def match(self, path: str, name: str) -> bool:
        if any(glob.matches(path) for glob in self.by_name.get(name, ())):
            return True
        return any(
            (
                not glob.parts
                or glob.parts[-1] == ANY_DEPTH
                or component_matches(glob.parts[-1], name)
            )
            and glob.matches(path)
            for glob in self.others
        )
