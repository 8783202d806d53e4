"""paddock apply: bring a session's changes into its workspace."""

from __future__ import annotations

import json

from paddock.cli.changes import FLAGGED, as_json, headline, is_flagged_change, merged
from paddock.cli.chosen import SessionArguments, check_named
from paddock.cli.options import Parser, split_command
from paddock.cli.terminal_output import complain, say
from paddock.errors import SessionError, UsageError
from paddock.policy import Origin
from paddock.workspace.apply import ApplyOutcome, choose
from paddock.workspace.change import Obstacle
from paddock.workspace.replace_file import KEPT_DIR
from paddock.workspace.review import Review, recovered, reviewed
from paddock.workspace.sessions import Session

EXIT_LEFT = 1


def execute(arguments: list[str]) -> int:
    words, after = split_command(arguments)
    parser = Parser(
        "apply",
        "Bring the changes of a copy-on-write session, or only some paths of them, into the workspace. What the host "
        "changed since the session started, and protected names that are not named, are left. Exit 0: all that was "
        "asked for is applied; 1: something was left.",
    )
    parser.usage = "paddock apply [--dry-run] [--overwrite] [--json] [SESSION] [PATH …]"
    parser.add_argument(
        "words", nargs="*", metavar="SESSION, PATH", help="only these paths; after -- only paths"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done; change nothing"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="for the named PATHs: the session's version wins over the host's, which is kept in the session",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(words)
    session, selection = SessionArguments(before=options.words, after=after).session(
        Origin.of_process(), newest=False
    )
    if options.overwrite and not selection.paths:
        raise UsageError(
            "apply: --overwrite needs the paths it is for",
            hint="`paddock diff --stat` lists the conflicts",
        )
    with session.locked():
        if not options.dry_run:
            for problem in recovered(session):
                complain(f"left by an interrupted apply: {problem}")
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
            say(f"to remove the session: paddock discard {session.id}")
    return EXIT_LEFT if outcome.left else 0


def _applied(review: Review, session: Session) -> ApplyOutcome:
    try:
        return review.apply()
    except OSError as error:
        raise SessionError(
            f"{session.workspace}: {error.strerror}; not everything was applied, and nothing is lost",
            hint=f"put that right, then run `paddock apply {session.id}` again: what is applied is no change any more",
        ) from error


def _show(outcome: ApplyOutcome, session: Session, *, dry_run: bool) -> None:
    applied = merged(outcome.applied)
    if dry_run:
        for change in applied:
            say(f"would apply: {headline(change)}")
    for change in outcome.left:
        assert change.obstacle is not None
        say(f"left ({change.obstacle.value}): {headline(change)}: {change.reason}")
    if any(change.obstacle is Obstacle.CONFLICT for change in outcome.left):
        say(
            "to let the session win there: paddock apply --overwrite PATH …; the host's version is kept"
        )
    done = "would be applied" if dry_run else "applied"
    left = f", {len(outcome.left)} left" if outcome.left else ""
    say(f"{len(applied)} {done} to {session.workspace}{left}")
    flagged = [change.path for change in outcome.applied if is_flagged_change(change)]
    if flagged and not dry_run:
        say(f"{FLAGGED}: {', '.join(flagged)}")
    if any(change.overwrites for change in outcome.applied) and not dry_run:
        say(f"the host's versions are in {session.path}/{KEPT_DIR}")
