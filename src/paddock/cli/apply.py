"""paddock apply: bring a session's changes into its workspace."""

from __future__ import annotations

import json

from paddock.cli.changes import FLAGGED, as_json, headline, is_flagged_change, merged
from paddock.cli.options import Parser, split_at_dashes
from paddock.cli.session_arguments import SessionArguments, check_named
from paddock.cli.terminal_output import complain, say
from paddock.errors import SessionError, UsageError
from paddock.policy import Origin
from paddock.workspace.apply import ApplyOutcome, choose
from paddock.workspace.change import Obstacle
from paddock.workspace.replace_file import HOST_VERSIONS_DIR
from paddock.workspace.review import Review, recovered, reviewed
from paddock.workspace.sessions import Session

EXIT_LEFT = 1


def execute(arguments: list[str]) -> int:
    words, after = split_at_dashes(arguments)
    parser = Parser(
        "apply",
        "Copy the changes of a copy-on-write session into the workspace, all of them or the "
        "given paths. Paddock skips files that the host changed since the session started, and "
        "protected names that are not given as PATH. Exit 0: every requested change is applied; "
        "1: some changes were skipped.",
    )
    parser.usage = "paddock apply [--dry-run] [--overwrite] [--json] [SESSION] [PATH …]"
    parser.add_argument(
        "words",
        nargs="*",
        metavar="SESSION, PATH",
        help="apply to these paths only; every word after -- is a path",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the changes, and change nothing"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="for the given PATHs: replace the host's version, and keep it in the session",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    session, selection = SessionArguments(before=options.words, after=after).session(
        Origin.of_process(), newest=False
    )
    if options.overwrite and not selection.paths:
        raise UsageError(
            "apply: --overwrite needs at least one PATH",
            hint="type `paddock diff --stat` to list the conflicts",
        )
    with session.locked():
        if not options.dry_run:
            for problem in recovered(session):
                complain(f"an interrupted apply left a file: {problem}")
        with reviewed(session, selection=selection, overwrite=options.overwrite) as review:
            check_named(selection, review.changes)
            outcome = (
                choose(list(review.changes), review.terms)
                if options.dry_run
                else _applied(review, session)
            )
    if options.json:
        answer = {
            "applied": [as_json(one) for one in outcome.applied],
            "left": [as_json(one) for one in outcome.left],
        }
        say(json.dumps({"session": session.id, "dry_run": options.dry_run, **answer}))
    else:
        _show(outcome, session, dry_run=options.dry_run)
        if not (options.dry_run or outcome.left or selection.paths):
            say(f"to remove the session, type `paddock discard {session.id}`")
    return EXIT_LEFT if outcome.left else 0


def _applied(review: Review, session: Session) -> ApplyOutcome:
    try:
        return review.apply()
    except OSError as error:
        raise SessionError(
            f"{session.workspace}: {error.strerror}; some changes are not applied, and no change "
            "is lost",
            hint=f"correct this, then type `paddock apply {session.id}` again to apply the rest",
        ) from error


def _show(outcome: ApplyOutcome, session: Session, *, dry_run: bool) -> None:
    applied = merged(outcome.applied)
    if dry_run:
        for change in applied:
            say(f"would apply: {headline(change)}")
    for change in outcome.left:
        assert change.obstacle is not None
        say(f"skipped ({change.obstacle.value}): {headline(change)}: {change.reason}")
    if any(change.obstacle is Obstacle.CONFLICT for change in outcome.left):
        say(
            "to use the session's version, type `paddock apply --overwrite PATH …`; Paddock "
            "keeps the host's version"
        )
    done = "would be applied" if dry_run else "applied"
    left = f", {len(outcome.left)} skipped" if outcome.left else ""
    say(f"{len(applied)} {done} to {session.workspace}{left}")
    flagged = [change.path for change in outcome.applied if is_flagged_change(change)]
    if flagged and not dry_run:
        say(f"{FLAGGED}: {', '.join(flagged)}")
    if any(change.overwrites for change in outcome.applied) and not dry_run:
        say(f"the host's versions are in {session.path}/{HOST_VERSIONS_DIR}")
