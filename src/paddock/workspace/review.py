"""The judged changes of a session: diff shows them and apply does them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from paddock.frozen import dataclass
from paddock.workspace.apply import ApplyOutcome, apply
from paddock.workspace.apply_record import Record
from paddock.workspace.change import Change
from paddock.workspace.conflicts import Selection, Terms, judge
from paddock.workspace.git_state import git_state
from paddock.workspace.renames import with_renames
from paddock.workspace.replace_file import Roots, recover
from paddock.workspace.repositories import repositories_in
from paddock.workspace.scan import scan
from paddock.workspace.sessions import Session, directories_of
from paddock.workspace.trusted_outside import trusted_paths_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    session: Session
    roots: Roots
    terms: Terms
    record: Record
    changes: tuple[Change, ...]

    @property
    def selected(self) -> list[Change]:
        return [change for change in self.changes if self.terms.selection.holds(change)]

    def apply(self) -> ApplyOutcome:
        return apply(self.roots, list(self.changes), self.terms, self.record)


@contextmanager
def reviewed(
    session: Session,
    *,
    selection: Selection | None = None,
    overwrite: bool = False,
    renames: bool = True,
) -> Iterator[Review]:
    with session.roots() as roots:
        record = Record.read(roots.state)
        changes = scan(roots.upper, roots.lower, unseen=record.temporaries)
        if renames:
            changes = with_renames(changes, roots.upper, roots.lower)
        repositories = repositories_in(changes, roots.lower)
        state = git_state(changes, roots.upper, repositories, session.workspace)
        terms = Terms(
            started_ns=session.started_ns,
            directories=directories_of(roots.state),
            hidden=session.hidden,
            mounted=frozenset(_mounted_in(session.workspace)),
            is_protected=session.is_protected,
            trusted_paths=frozenset(
                (
                    *trusted_paths_in(
                        session.workspace, session.is_protected, os.path.expanduser("~")
                    ),
                    *state.harmful,
                )
                if changes
                else ()
            ),
            repositories=repositories,
            contents=state.contents,
            selection=selection or Selection(),
            overwrite=overwrite,
        )
        yield Review(
            session=session,
            roots=roots,
            terms=terms,
            record=record,
            changes=tuple(judge(changes, terms, record)),
        )


def recovered(session: Session) -> list[str]:
    """Settles what an interrupted apply left, before anything is judged. Returns messages about
    what could not be settled.
    """
    with session.roots() as roots:
        return recover(roots, Record.read(roots.state))


def _mounted_in(workspace: str) -> Iterator[str]:
    """The mount points inside the workspace. An overlay does not show their content, so the session
    did not see it.
    """
    below = f"{workspace.rstrip('/')}/"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            mount_point = re.sub(
                r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split(" ")[4]
            )
            if mount_point.startswith(below):
                yield mount_point[len(below) :]
