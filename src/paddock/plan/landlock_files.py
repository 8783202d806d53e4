"""Files in the landlock tier.

Landlock grants hierarchies and knows no deny. A place inside a grant that must stay closed becomes
an ``except`` of the grant, which the core carves out. What no carving can express, a deny by name
(``**/.env``), stops the run, unless it is written as optional; protected names are not held at all.
Both are said.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paddock.errors import PolicyError
from paddock.plan.denied_paths import DeniedPaths
from paddock.plan.grants import RequestedGrant
from paddock.plan.model import Level, Notice, PathGrant
from paddock.plan.paths import carved_directories, outermost, touch, within
from paddock.plan.rights import ACCESS
from paddock.policy.model import Deny


@dataclass(slots=True, kw_only=True)
class Carving:
    closed: DeniedPaths
    strict: bool
    notices: list[Notice]
    unheld: dict[str, Deny]  # optional denies that a grant meets

    def grant(self, asked: RequestedGrant) -> PathGrant | None:
        """The grant with its excepts, or None when nothing of it may stand."""
        if asked.path == "/":
            raise PolicyError(
                "a grant of / would open the whole machine",
                where=asked.source,
                hint="name the directories that the command needs; the full tier can enforce a "
                "grant of / (`paddock doctor`)",
            )
        kept_out = set(self._denied(asked))
        kept_out.update(path for path in self.closed.unreadable if touch(path, asked.path))
        if asked.writes:
            kept_out.update(self._own(asked))
        above = next((path for path in sorted(kept_out) if within(asked.path, path)), None)
        if above:
            refuse_closed(asked, above, self.closed, self.notices)
            return None
        excepts = outermost(kept_out)
        if excepts and asked.writes:
            directories = ", ".join(carved_directories(asked.path, excepts))
            self._warn(
                f"{asked.source}: {', '.join(excepts)} is denied inside {asked.path}, so the "
                f"command cannot create a file directly in {directories}"
                + (", nor list it" if "read_dir" in ACCESS[asked.access] else "")
            )
        return asked.grant(except_=excepts)

    def _denied(self, asked: RequestedGrant) -> Iterator[str]:
        for path in self.closed.denied:
            if touch(path, asked.path):
                yield path
        for deny, glob in self.closed.names:
            if glob.may_contain(asked.path):
                self._unholdable(deny, asked)

    def _own(self, asked: RequestedGrant) -> list[str]:
        own = [path for path in self.closed.own if touch(path, asked.path)]
        if own and asked.workspace:
            raise PolicyError(
                f"the workspace {asked.path} contains {own[0]}, which Paddock itself needs",
                where=asked.source,
                hint="start paddock in a project directory; install paddock outside this directory",
            )
        return own

    def _unholdable(self, deny: Deny, asked: RequestedGrant) -> None:
        text = (
            f"deny {deny.pattern} cannot be enforced inside the grant {asked.path}: Landlock "
            "has no deny by name"
        )
        if deny.optional:
            self.unheld.setdefault(deny.pattern, deny)
        elif self.strict:
            raise PolicyError(
                text,
                where=str(deny.source),
                hint=f"deny whole files or directories, or narrow the grant ({asked.source}); to "
                "ignore a deny that cannot be enforced, end it with '?', or write "
                "filesystem.require_enforced = false for all",
            )
        else:
            self.notices.append(Notice(level=Level.UNENFORCED, text=f"{deny.source}: {text}"))

    def _warn(self, text: str) -> None:
        self.notices.append(Notice(level=Level.WARNING, text=text))


def refuse_closed(
    asked: RequestedGrant, above: str, closed: DeniedPaths, notices: list[Notice]
) -> None:
    """A grant inside a closed place is dropped with a word; a workspace there is an error."""
    if asked.workspace and above in closed.journals:
        raise PolicyError(
            f"the workspace {asked.path} is in {above}, which holds a journal",
            where=asked.source,
            hint="work in another directory, or remove that journal",
        )
    if asked.workspace:
        raise PolicyError(f"the workspace {asked.path} is denied by {above}", where=asked.source)
    notices.append(
        Notice(
            level=Level.WARNING,
            text=f"{asked.source}: {asked.path} is not granted, because {above} is denied",
        )
    )
