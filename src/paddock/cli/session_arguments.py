"""The arguments ``[SESSION] [PATHS…]`` of diff, apply and discard."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from paddock.errors import SessionError, UsageError
from paddock.policy import Origin
from paddock.workspace.change import Change, inside
from paddock.workspace.conflicts import Selection
from paddock.workspace.sessions import Session, find, is_session, of_directory, store_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionArguments:
    """The first word is a session if a session has that name. After ``--`` all words are paths."""

    before: Sequence[str]
    after: Sequence[str] | None

    def session(self, origin: Origin, *, newest: bool) -> tuple[Session, Selection]:
        store = store_of(origin.state_dir)
        if self.before and is_session(store, self.before[0]):
            session, paths = find(store, self.before[0]), self.before[1:]
        else:
            session, paths = _of_here(store, origin.cwd, newest=newest), self.before
        return session, Selection(
            paths=tuple(_relative(word, session, origin) for word in (*paths, *(self.after or ())))
        )


def _of_here(store: str, cwd: str, *, newest: bool) -> Session:
    """The only session that has ended. With ``newest``: the newest ended one, or one that still
    runs.
    """
    here = of_directory(store, cwd)
    ended = [session for session in here if not session.running]
    candidates = ended or (here if newest else [])
    if not candidates:
        running = f"; running: {', '.join(one.id for one in here)}" if here else ""
        raise SessionError(
            f"no finished copy-on-write session of {cwd} exists{running}",
            hint="type `paddock sessions` to list all sessions, or `paddock run --cow -- "
            "COMMAND` to start one",
        )
    if len(candidates) > 1 and not newest:
        raise SessionError(
            f"{candidates[0].workspace} has {len(candidates)} sessions: "
            f"{' '.join(one.id for one in candidates)}",
            hint="give one of these ids; `paddock sessions` shows when each session started",
        )
    return candidates[0]


def _relative(word: str, session: Session, origin: Origin) -> str:
    """Relative to the current directory if it is inside the workspace, else relative to the
    workspace.
    """
    base = origin.cwd if session.holds(origin.cwd) else session.workspace
    path = os.path.normpath(os.path.join(base, word))
    if not session.holds(path):
        raise UsageError(f"{word} is neither a session nor a path in {session.workspace}")
    return os.path.relpath(path, session.workspace)


def check_named(selection: Selection, changes: Sequence[Change]) -> None:
    for path in selection.paths:
        if not any(inside(change.path, path) for change in changes):
            raise UsageError(
                f"{path} is neither a session nor a path with changes",
                hint="type `paddock diff --stat` to list all changes",
            )
