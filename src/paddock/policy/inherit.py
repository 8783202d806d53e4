"""A file and everything it inherits, as layers, parents first. Each file occurs once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from paddock.errors import PolicyError
from paddock.policy.formats.conf import read_conf
from paddock.policy.formats.fragment import Fragment
from paddock.policy.formats.toml import read_toml
from paddock.policy.model import Policy, PolicyFile, Source, Sourced
from paddock.policy.trust.file_trust import PolicyText, require_agreement
from paddock.policy.trust.origin import Origin
from paddock.policy.trust.search import FoundProfile, ProfileSearch, read_text
from paddock.text.path_walk import ResolvedPath

DEFAULT = "ai-agent"
FLOOR = "base"
MAX_WRITTEN_LEVELS = 3  # a file, its parent, and the parent of that


@dataclass(slots=True)
class Layers:
    """``stack``: the content of each file, lowest first. ``names``: outermost first. ``files``: as
    read.
    """

    origin: Origin
    default: str = DEFAULT  # the parent of a file that names no parent and no file access
    stack: list[Policy] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    files: list[PolicyText] = field(default_factory=list)
    _heights: dict[str, int] = field(
        default_factory=dict
    )  # real path → number of written files from there down

    def add(self, found: FoundProfile, *, agreed: bool) -> None:
        """``agreed``: the user must have trusted the text of this file, and of each file it reaches
        by a path.
        """
        self._visit(found, above=(), agreed=agreed, outer_links=())

    def _visit(
        self,
        found: FoundProfile,
        *,
        above: tuple[FoundProfile, ...],
        agreed: bool,
        outer_links: tuple[ResolvedPath, ...],
    ) -> int:
        chain = (*above, found)
        real = os.path.realpath(found.path)
        if any(os.path.realpath(earlier.path) == real for earlier in above):
            raise PolicyError(f"the files inherit each other: {_arrows(chain)}", where=found.shown)
        own = 0 if found.builtin else 1
        written_above = sum(not earlier.builtin for earlier in above)
        if written_above + self._heights.get(real, own) > MAX_WRITTEN_LEVELS:
            raise PolicyError(
                f"the files inherit more than {MAX_WRITTEN_LEVELS - 1} levels deep: "
                f"{_arrows(chain)}",
                where=chain[0].shown,
            )
        if real in self._heights:
            return self._heights[real]
        name = found.name if found.rung is not None else found.shown
        if name not in self.names:
            self.names.append(name)
        file = self._file(found, outer_links)
        fragment = self._read(found, file, agreed=agreed)
        height = 0
        for parent in fragment.inherit:
            next_found = ProfileSearch(self.origin).find(
                parent.value,
                parent.source,
                relative_to=os.path.dirname(file.path),
                inherited_by=found,
            )
            by_path = next_found.rung is None
            links = file.walk.links if by_path and file.walk else ()
            height = max(
                height,
                self._visit(next_found, above=chain, agreed=agreed and by_path, outer_links=links),
            )
        self.stack.append(fragment.policy)
        self._heights[real] = height + own
        return height + own

    def _file(self, found: FoundProfile, outer_links: tuple[ResolvedPath, ...]) -> PolicyText:
        """``outer_links``: the links that lead to the file whose ``inherit`` names this one. They
        also lead to this one.
        """
        file = read_text(found, self.origin)
        return (
            replace(file, walk=replace(file.walk, links=(*outer_links, *file.walk.links)))
            if file.walk
            else file
        )

    def _read(self, found: FoundProfile, file: PolicyText, *, agreed: bool) -> Fragment:
        if agreed:
            require_agreement(
                file,
                self.origin,
                shown=found.shown,
                why="a repository may not weaken its own sandbox",
                otherwise=f"; or ignore the file: --profile {DEFAULT}",
            )
        fragment = parse(file.text, found, self.origin)
        if found.builtin:
            return fragment
        self.files.append(file)
        notes: list[str] = []
        replaces = ProfileSearch(self.origin).replaces_builtin(found)
        if replaces:
            notes.append(
                f"{found.name} comes from {found.shown}, which replaces the built-in profile"
            )
        if not fragment.inherit:
            parent = self._unnamed_parent(found, fragment, replaces=replaces)
            notes.append(f"{found.shown} has no inherit key: it inherits {parent}")
            source = Source(file=found.shown, line=1, key="inherit")
            fragment = replace(fragment, inherit=(Sourced(parent, source),))
        identity = PolicyFile(
            path=file.path, sha256=file.sha256, found=file.written, facts=file.facts
        )
        return replace(
            fragment, policy=replace(fragment.policy, files=(identity,), notes=tuple(notes))
        )

    def _unnamed_parent(self, found: FoundProfile, fragment: Fragment, *, replaces: bool) -> str:
        """A file with file rules gets the floor profile and grants the rest itself. Any other file
        gets the file layer of the default profile.

        A file that replaces a built-in profile and grants nothing extends the replaced one, because
        the default may inherit that profile.
        """
        if fragment.speaks_of_files:
            return FLOOR
        return found.name if replaces else self.default


def parse(text: str, found: FoundProfile, origin: Origin) -> Fragment:
    if found.path.endswith(".conf"):
        return read_conf(text, found.shown, origin)
    return read_toml(text, found.shown, origin)


def _arrows(chain: tuple[FoundProfile, ...]) -> str:
    return " → ".join(found.shown for found in chain)
