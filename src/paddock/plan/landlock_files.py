"""Files in the landlock tier.

Landlock grants trees and has no deny rule. A denied path inside a grant becomes an ``except`` of
the grant, and the core grants around it. A deny by name (``**/.env``) can not be enforced against
reading. It stops the run, unless it is optional; then it is reported. The core judges each write to
denied and protected names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paddock.errors import PolicyError
from paddock.plan.denied_paths import DeniedPaths
from paddock.plan.grants import RequestedGrant
from paddock.plan.path_containment import carved_directories, outermost, touch, within
from paddock.plan.plan import Level, Notice, PathGrant
from paddock.plan.rights import ACCESS
from paddock.policy.model import Deny


@dataclass(slots=True, kw_only=True)
class Carving:
    denied_paths: DeniedPaths
    strict: bool
    notices: list[Notice]
    unheld: dict[str, Deny]  # optional denies inside a grant

    def grant(self, requested: RequestedGrant) -> PathGrant | None:
        """The grant with its excepts, or None if nothing of it remains."""
        if requested.path == "/":
            raise PolicyError(
                "a grant of / would open the whole machine",
                where=requested.source,
                hint="name the directories that the command needs; the full tier can enforce a "
                "grant of / (`paddock doctor`)",
            )
        excluded = set(self._denied(requested))
        excluded.update(
            path for path in self.denied_paths.unreadable if touch(path, requested.path)
        )
        if requested.writes:
            excluded.update(self._own(requested))
        above = next((path for path in sorted(excluded) if within(requested.path, path)), None)
        if above:
            refuse_denied(requested, above, self.denied_paths, self.notices)
            return None
        excepts = outermost(excluded)
        if excepts and requested.writes:
            directories = ", ".join(carved_directories(requested.path, excepts))
            self._warn(
                f"{requested.source}: {', '.join(excepts)} is denied inside {requested.path}, so "
                "the "
                f"command cannot create a file directly in {directories}"
                + (", nor list it" if "read_dir" in ACCESS[requested.access] else "")
            )
        return requested.grant(except_=excepts)

    def _denied(self, requested: RequestedGrant) -> Iterator[str]:
        for path in self.denied_paths.denied:
            if touch(path, requested.path):
                yield path
        for deny, glob in self.denied_paths.names:
            if glob.may_contain(requested.path):
                self._unholdable(deny, requested)

    def _own(self, requested: RequestedGrant) -> list[str]:
        own = [path for path in self.denied_paths.own if touch(path, requested.path)]
        if own and requested.workspace:
            raise PolicyError(
                f"the workspace {requested.path} contains {own[0]}, which Paddock itself needs",
                where=requested.source,
                hint="start paddock in a project directory; install paddock outside this directory",
            )
        missing = [
            path for path in self.denied_paths.missing_entries if touch(path, requested.path)
        ]
        if missing and requested.workspace:
            raise PolicyError(
                f"the workspace {requested.path} can get a program {missing[0]}, which your PATH "
                "finds before paddock",
                where=requested.source,
                hint="put the directory of paddock first in PATH; the full tier can protect that "
                "name (`paddock doctor`)",
            )
        return own + missing

    def _unholdable(self, deny: Deny, requested: RequestedGrant) -> None:
        text = (
            f"deny {deny.pattern} cannot be enforced inside the grant {requested.path}: Landlock "
            "has no deny by name"
        )
        if deny.optional:
            self.unheld.setdefault(deny.pattern, deny)
        elif self.strict:
            raise PolicyError(
                text,
                where=str(deny.source),
                hint=f"deny whole files or directories, or narrow the grant ({requested.source}); "
                "to "
                "ignore a deny that cannot be enforced, end it with '?', or write "
                "filesystem.require_enforced = false for all",
            )
        else:
            self.notices.append(Notice(level=Level.UNENFORCED, text=f"{deny.source}: {text}"))

    def _warn(self, text: str) -> None:
        self.notices.append(Notice(level=Level.WARNING, text=text))


def refuse_denied(
    requested: RequestedGrant, above: str, denied_paths: DeniedPaths, notices: list[Notice]
) -> None:
    """A grant inside a denied path is dropped with a notice; a workspace there is an error."""
    if requested.workspace and above in denied_paths.journals:
        raise PolicyError(
            f"the workspace {requested.path} is in {above}, which holds a journal",
            where=requested.source,
            hint="work in another directory, or remove that journal",
        )
    if requested.workspace:
        raise PolicyError(
            f"the workspace {requested.path} is denied by {above}",
            where=requested.source,
            hint="start paddock in a project directory",
        )
    remedy = denied_paths.remedy(above)
    text = f"{requested.source}: {requested.path} is not granted, because {above} is denied"
    notices.append(Notice(level=Level.WARNING, text=f"{text}; {remedy}" if remedy else text))
