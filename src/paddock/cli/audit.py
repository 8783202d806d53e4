"""paddock audit show | tail | query | report | verify"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from paddock.cli.options import Parser
from paddock.cli.terminal_output import complain, say
from paddock.errors import EXIT_PADDOCK, JournalError, UsageError
from paddock.journal import ChainReport, Event, Journal, verify
from paddock.journal.event_text import line
from paddock.journal.query import Query, day, moment
from paddock.journal.reader import parse

_POLL_INTERVAL_S = 0.5


def execute(arguments: list[str]) -> int:
    parser = Parser("audit", "Show, follow, search, report and verify the journal.")
    add = parser.add_argument
    add("act", choices=("show", "tail", "query", "report", "verify"))
    add("--dir", help="read this directory or .jsonl file (default: /var/tmp/paddock-audit-UID)")
    add("--session", help="only this session")
    add(
        "--kind",
        action="append",
        default=[],
        help="query, report: select this kind (exec, network, name, tool, …); repeatable",
    )
    add(
        "--action",
        action="append",
        default=[],
        choices=("allow", "deny", "ask"),
        help="query, report: select this decision",
    )
    add(
        "--rule",
        action="append",
        default=[],
        metavar="ID",
        help="query, report: select decisions of this rule",
    )
    add(
        "--since",
        metavar="TIME",
        help="query, report: select events after this time: 2026-11-16, 2026-11-16T10:30 (UTC), "
        "15m, 2h, 3d",
    )
    add("--until", metavar="TIME", help="query, report: select events before this time")
    add("--day", metavar="DATE", help="query, report: select events of this day (UTC)")
    add("--lines", "-n", type=int, default=20, help="tail: print this many events (default 20)")
    add(
        "--follow",
        "-f",
        action="store_true",
        help="tail, query: print new events as they are written",
    )
    add(
        "--output",
        "-o",
        metavar="FILE",
        help="report: write to this file (default: standard output)",
    )
    add(
        "--json",
        action="store_true",
        help="print the stored events, or the result of verify, as JSON",
    )
    options = parser.parse_args(arguments)
    query = _query(options)
    if options.act == "report" and options.output is None and sys.stdout.isatty():
        raise UsageError(
            "audit report: the report is a page for a browser, and the output is a terminal",
            hint="paddock audit report -o report.html",
        )
    journal = Journal.at(options.dir or f"/var/tmp/paddock-audit-{os.getuid()}")
    match options.act:
        case "show":
            return _show(journal, query, options.json, follow=False)
        case "query":
            return _show(journal, query, options.json, follow=options.follow)
        case "tail":
            return _tail(journal, query, options.lines, options.follow, options.json)
        case "report":
            return _report(journal, query, options)
        case _:
            return _verify(journal, as_json=options.json)


def _query(options: argparse.Namespace) -> Query:
    narrowed = (
        options.kind
        or options.action
        or options.rule
        or options.since
        or options.until
        or options.day
    )
    if narrowed and options.act not in ("query", "report"):
        raise UsageError(
            f"audit {options.act}: only query and report accept filters",
            hint="paddock audit query --help",
        )
    if options.output and options.act != "report":
        raise UsageError(f"audit {options.act}: only report accepts --output")
    if options.day and (options.since or options.until):
        raise UsageError(
            "audit: --day cannot be used with --since or --until",
            hint="give --day, or --since and --until",
        )
    now = datetime.now(UTC)
    since, until = day(options.day) if options.day else (None, None)
    return Query(
        kinds=tuple(options.kind),
        actions=tuple(options.action),
        rules=tuple(options.rule),
        since=moment(options.since, now) if options.since else since,
        until=moment(options.until, now) if options.until else until,
        session=options.session,
    )


def _print(event: Event, as_json: bool) -> None:
    say(event.raw.decode("ascii", "backslashreplace") if as_json else line(event))


def _show(journal: Journal, query: Query, as_json: bool, *, follow: bool) -> int:
    seen, is_there = 0, False
    for event in journal.events():
        seen += 1
        is_there |= event.session == query.session
        if query.fits(event):
            _print(event, as_json)
    if query.session and not (is_there or follow):
        raise _unknown(query.session)
    if follow:
        _follow(journal, seen, lambda event: _print(event, as_json) if query.fits(event) else None)
    return 0


def _unknown(session: str) -> JournalError:
    return JournalError(
        f"the journal has no events of session {session!r}",
        hint="type `paddock audit query --kind session.start` to list the sessions",
    )


def _tail(journal: Journal, query: Query, lines: int, follow: bool, as_json: bool) -> int:
    seen, is_there = 0, False
    last: deque[Event] = deque(maxlen=max(lines, 0))
    for event in journal.events():
        seen += 1
        is_there |= event.session == query.session
        if query.fits(event):
            last.append(event)
    if query.session and not (is_there or follow):
        raise _unknown(query.session)
    for event in last:
        _print(event, as_json)
    if follow:
        _follow(journal, seen, lambda event: _print(event, as_json) if query.fits(event) else None)
    return 0


def _follow(journal: Journal, seen: int, show: Callable[[Event], None]) -> None:
    while True:
        sys.stdout.flush()
        select.select([], [], [], _POLL_INTERVAL_S)
        for number, event in enumerate(journal.events(), 1):
            if number > seen:
                seen = number
                show(event)


def _report(journal: Journal, query: Query, options: argparse.Namespace) -> int:
    from paddock.journal.report import report

    events, unreadable = [], 0
    for path, number, raw in journal.lines():
        fields = parse(raw)
        unreadable += fields is None
        event = Event(file=path.name, line=number, raw=raw, fields=fields or {})
        if fields is not None and query.fits(event):
            events.append(event)
    if options.session and not events:
        raise _unknown(options.session)
    chain: ChainReport | str
    try:
        chain = verify(journal)
    except JournalError as error:
        chain = error.message
    page = report(events, chain=chain, description=_named(options, journal), unreadable=unreadable)
    if options.output is None:
        sys.stdout.write(page)
    else:
        _write(options.output, page)
        say(f"{len(events)} events: {options.output}")
    if isinstance(chain, str) or chain.problems:
        complain(f"the journal {journal.dir} does not verify; the report shows why")
    elif chain.losses:
        complain(_incomplete(journal))
    else:
        return 0
    return EXIT_PADDOCK


def _named(options: argparse.Namespace, journal: Journal) -> str:
    parts = [f"session {options.session}"] if options.session else []
    parts += [
        f"{name} {value}" for name in ("day", "since", "until") if (value := getattr(options, name))
    ]
    parts += [
        f"{name} {', '.join(values)}"
        for name in ("kind", "action", "rule")
        if (values := getattr(options, name))
    ]
    return f"{', '.join(parts) or 'everything'} in {journal.dir / (journal.file or '')}"


def _write(path: str, page: str) -> None:
    """Writes the page completely or not at all, readable for the owner only: it shows what was
    done.
    """
    fresh = f"{path}.{os.getpid()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(page)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise


def _verify(journal: Journal, *, as_json: bool) -> int:
    chain_report = verify(journal)
    if as_json:
        answer = {
            "sound": chain_report.sound,
            "events": chain_report.events,
            "first_seq": chain_report.first_seq,
        }
        losses = [
            {"session": one.session, "count": one.count, "reason": one.reason}
            for one in chain_report.losses
        ]
        endless = list(chain_report.endless)
        say(
            json.dumps(
                {
                    **answer,
                    "problems": list(chain_report.problems),
                    "lost": losses,
                    "without_end": endless,
                }
            )
        )
        return 0 if chain_report.sound else EXIT_PADDOCK
    for problem in (*chain_report.problems, *map(str, chain_report.losses)):
        complain(problem)
    if chain_report.first_seq > 1:
        complain(
            f"the journal begins at event {chain_report.first_seq}: the files of earlier days are "
            "missing"
        )
    for session in chain_report.endless:
        complain(
            f"session {session} has a start event and no end event: it is running, or it was killed"
        )
    if chain_report.sound:
        say(f"journal ok: {chain_report.events} events, the chain is complete: {journal.dir}")
        return 0
    complain(
        f"the journal {journal.dir} was changed after it was written"
        if chain_report.problems
        else _incomplete(journal)
    )
    return EXIT_PADDOCK


def _incomplete(journal: Journal) -> str:
    return f"the journal {journal.dir}: the chain is complete, but some events could not be written"
