"""paddock diff: what a copy-on-write session changed."""

from __future__ import annotations

import json

from paddock.cli.changes import DiffOutput, as_json, merged, show, show_stat, summary
from paddock.cli.options import Parser, split_at_dashes
from paddock.cli.session_arguments import SessionArguments, check_named
from paddock.cli.terminal_output import complain, say
from paddock.policy import Origin
from paddock.workspace.review import reviewed


def execute(arguments: list[str]) -> int:
    words, after = split_at_dashes(arguments)
    parser = Parser(
        "diff",
        "Show the changes of a copy-on-write session, for reading (not as a patch). Without "
        "SESSION: the newest finished session of this directory. A running session can be shown "
        "too.",
    )
    parser.usage = "paddock diff [--stat] [--json] [SESSION] [PATH …]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SESSION, PATH",
        help="apply to these paths only; every word after -- is a path",
    )
    parser.add_argument(
        "--stat", action="store_true", help="print one line for each change, without content"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    origin = Origin.of_process()
    session, selection = SessionArguments(before=options.words, after=after).session(
        origin, newest=True
    )
    with reviewed(session, selection=selection) as review:
        check_named(selection, review.changes)
        changes = merged(review.selected)
        if options.json:
            shown = [as_json(change) for change in changes]
            say(
                json.dumps(
                    {"session": session.id, "workspace": session.workspace, "changes": shown}
                )
            )
            return 0
        if review.record.unfinished:
            complain(
                "an earlier `paddock apply` of this session was interrupted",
                hint=f"type `paddock apply {session.id}` again",
            )
        output = DiffOutput.of_stdout()
        if options.stat:
            show_stat(changes, review.roots, output)
            return 0
        for change in changes:
            show(change, review.roots, output)
        complain(f"session {session.id} of {session.workspace}: {summary(changes)}")
    return 0
