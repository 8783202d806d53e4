"""paddock discard: remove sessions and all that their commands wrote."""

from __future__ import annotations

import contextlib
import sys

from paddock.cli.options import Parser
from paddock.cli.session_arguments import SessionArguments
from paddock.cli.terminal_output import complain, say
from paddock.errors import EXIT_PADDOCK, SessionError, UsageError
from paddock.policy import Origin
from paddock.workspace.review import recovered, reviewed
from paddock.workspace.sessions import (
    BrokenDirectory,
    Session,
    discard,
    listed,
    read_directory,
    store_of,
)


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "discard",
        "Remove a copy-on-write session and every change that was not applied. Without SESSION: "
        "the only finished session of this directory. On a terminal Paddock asks before it removes "
        "changes.",
    )
    parser.add_argument("session", nargs="?", metavar="SESSION")
    parser.add_argument("--all", action="store_true", help="remove every finished session")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    store = store_of(origin.state_dir)
    chosen: list[Session | BrokenDirectory]
    if options.all:
        if options.session:
            raise UsageError(
                "discard: --all and SESSION contradict each other",
                hint="type `paddock discard --all`, or `paddock discard SESSION`",
            )
        chosen = [one for one in listed(store) if not one.running]
    elif options.session is None:
        chosen = [SessionArguments(before=(), after=None).session(origin, newest=False)[0]]
    else:
        chosen = [read_directory(store, options.session)]
    return max((_discard(store, one, is_sure=options.yes) for one in chosen), default=0)


def _discard(store: str, one: Session | BrokenDirectory, *, is_sure: bool) -> int:
    with one.locked():
        lost = 0
        if isinstance(one, Session):
            with contextlib.suppress(
                SessionError
            ):  # a session without a workspace has nothing to repair
                for problem in recovered(one):
                    complain(f"an interrupted apply left a file: {problem}")
            # A session that can not be compared can still be removed.
            with (
                contextlib.suppress(SessionError, OSError),
                reviewed(one, renames=False) as review,
            ):
                lost = len(review.changes)
        text = f"{lost} change{'' if lost == 1 else 's'} of session {one.id} not applied"
        if lost and not is_sure and not _agrees(text):
            complain(
                "nothing was removed",
                f"type `paddock diff {one.id}` to see the changes, `paddock apply {one.id}` to "
                "apply them",
            )
            return EXIT_PADDOCK
        saved = discard(store, one)
    say(f"discarded: {one.id}")
    if lost:
        complain(f"{text}, and removed")
    if saved is not None:
        say(f"`paddock apply --overwrite` kept your own versions; they are now in {saved}")
    return 0


def _agrees(text: str) -> bool:
    """Without a terminal there is no person to ask."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"paddock: {text}. Remove anyway? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
