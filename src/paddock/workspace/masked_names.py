"""Names that were hidden from the command in its copy. An object of the command under such a name
is not a change of the host's object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from paddock.frozen import dataclass
from paddock.workspace.change import inside
from paddock.workspace.protected_names import NameGlobs


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenNames:
    """``masked``: paths that existed at a start. ``denied``: patterns; they also match objects that
    the host created later, but not objects of the command only.
    """

    workspace: str = ""
    masked: frozenset[str] = frozenset()
    denied: NameGlobs = field(default_factory=lambda: NameGlobs.of(()))

    @classmethod
    def of(cls, workspace: str, masked: Iterable[str], denied: Iterable[str]) -> HiddenNames:
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
