"""What a command was not to see in its copy: what it has under such a name is no change of what the
host has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from paddock.workspace.model import inside
from paddock.workspace.protection import NameGlobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """``masked``: paths that were there at a start. ``denied``: patterns; what the host made of
    them later counts too, but not what only the command has.
    """

    workspace: str = ""
    masked: frozenset[str] = frozenset()
    denied: NameGlobs = field(default_factory=lambda: NameGlobs.of(()))

    @classmethod
    def of(cls, workspace: str, masked: Iterable[str], denied: Iterable[str]) -> Hidden:
        return cls(
            workspace=workspace.rstrip("/"), masked=frozenset(masked), denied=NameGlobs.of(denied)
        )

    def __call__(self, path: str, *, on_host: bool) -> bool:
        if any(inside(path, one) for one in self.masked):
            return True
        if not on_host:
            return False
        names = path.split("/")
        ends = range(1, len(names) + 1)
        return any(
            self.denied.match(f"{self.workspace}/{'/'.join(names[:end])}", names[end - 1])
            for end in ends
        )
