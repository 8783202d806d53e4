"""Files in the landlock tier.

Landlock grants trees and has no deny rule. A denied path inside a grant becomes an ``except`` of
the grant, and the core grants around it. A deny by name (``**/.env``) can not be expressed and
stops the run, unless it is optional. Protected names are not enforced at all. Both cases are
reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paddock.errors import PolicyError
from paddock.plan.denied_paths import DeniedPaths
from paddock.plan.grants import RequestedGrant
from paddock.plan.paths import carved_directories, outermost, touch, within
from paddock.plan.plan import Level, Notice, PathGrant
from paddock.plan.rights import ACCESS
from paddock.policy.model import Deny


@dataclass(slots=True, kw_only=True)
class Carving:
    denied_paths: DeniedPaths
    strict: bool
    notices: list[Notice]
    unheld: dict[str, Deny]  # optional denies inside a grant

    def grant(self, asked: RequestedGrant) -> PathGrant | None:
        """The grant with its excepts, or None if nothing of it remains."""
        if asked.path == "/":
            raise PolicyError(
                "the grant of / names no directory: it would open the whole machine",
                where=asked.source,
                hint="name the directories that are needed; the full tier can hold it (`paddock doctor`)",
            )
        kept_out = set(self._denied(asked))
        kept_out.update(path for path in self.denied_paths.unreadable if touch(path, asked.path))
        if asked.writes:
            kept_out.update(self._own(asked))
        above = next((path for path in sorted(kept_out) if within(asked.path, path)), None)
        if above:
            refuse_denied(asked, above, self.denied_paths, self.notices)
            return None
        excepts = outermost(kept_out)
        if excepts and asked.writes:
            directories = ", ".join(carved_directories(asked.path, excepts))
            self._warn(
                f"{asked.source}: {', '.join(excepts)} stays closed inside {asked.path}; "
                f"so nothing new can be created directly in {directories}"
                + (", nor can it be listed" if "read_dir" in ACCESS[asked.access] else "")
            )
        return asked.grant(except_=excepts)

    def _denied(self, asked: RequestedGrant) -> Iterator[str]:
        for path in self.denied_paths.denied:
            if touch(path, asked.path):
                yield path
        for deny, glob in self.denied_paths.names:
            if glob.may_contain(asked.path):
                self._unholdable(deny, asked)

    def _own(self, asked: RequestedGrant) -> list[str]:
        own = [path for path in self.denied_paths.own if touch(path, asked.path)]
        if own and asked.workspace:
            raise PolicyError(
                f"the workspace {asked.path} holds {own[0]}, which paddock itself relies on",
                where=asked.source,
                hint="start paddock in a project directory; install paddock outside of it",
            )
        return own

    def _unholdable(self, deny: Deny, asked: RequestedGrant) -> None:
        text = f"deny {deny.pattern} can not be held inside the grant {asked.path}: Landlock knows no deny by name"
        if deny.optional:
            self.unheld.setdefault(deny.pattern, deny)
        elif self.strict:
            raise PolicyError(
                text,
                where=str(deny.source),
                hint=f"deny whole files or directories, or narrow the grant ({asked.source}); a deny that ends in '?' "
                "is left out where it can not be held, and so is every one with filesystem.require_enforced = false",
            )
        else:
            self.notices.append(Notice(level=Level.UNENFORCED, text=f"{deny.source}: {text}"))

    def _warn(self, text: str) -> None:
        self.notices.append(Notice(level=Level.WARNING, text=text))


def refuse_denied(
    asked: RequestedGrant, above: str, denied_paths: DeniedPaths, notices: list[Notice]
) -> None:
    """A grant inside a denied path is dropped with a notice; a workspace there is an error."""
    if asked.workspace and above in denied_paths.journals:
        raise PolicyError(
            f"the workspace {asked.path} lies in {above}, where a journal is kept",
            where=asked.source,
            hint="work elsewhere, or remove that journal if nobody needs it",
        )
    if asked.workspace:
        raise PolicyError(f"the workspace {asked.path} is denied by {above}", where=asked.source)
    notices.append(
        Notice(
            level=Level.WARNING,
            text=f"{asked.source}: {asked.path} is not granted: {above} stays closed",
        )
    )
