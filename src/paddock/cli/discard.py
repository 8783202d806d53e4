"""paddock discard: remove a session and all that its command wrote."""

from __future__ import annotations

import contextlib

from paddock.cli.options import Parser
from paddock.cli.session_arguments import SessionArguments
from paddock.cli.terminal_output import complain, say
from paddock.errors import SessionError
from paddock.policy import Origin
from paddock.workspace.review import recovered
from paddock.workspace.sessions import (
    BrokenDirectory,
    Session,
    discard,
    read_directory,
    store_of,
)


def execute(arguments: list[str]) -> int:
    parser = Parser(
        "discard",
        "Remove a copy-on-write session and every change that was not applied. Without SESSION: "
        "the only finished session of this directory.",
    )
    parser.add_argument("session", nargs="?", metavar="SESSION")
    options = parser.parse_args(arguments)
    origin = Origin.of_process()
    store = store_of(origin.state_dir)
    one: Session | BrokenDirectory
    if options.session is None:
        one, _ = SessionArguments(before=(), after=None).session(origin, newest=False)
    else:
        one = read_directory(store, options.session)
    with one.locked():
        if isinstance(one, Session):
            with contextlib.suppress(
                SessionError
            ):  # a session without a workspace has nothing to repair
                for problem in recovered(one):
                    complain(f"an interrupted apply left a file: {problem}")
        saved = discard(store, one)
    say(f"discarded: {one.id}")
    if saved is not None:
        say(f"`paddock apply --overwrite` kept your own versions; they are now in {saved}")
    return 0
