"""paddock audit show | tail | verify"""

from __future__ import annotations

import json
import os
import select
import sys
from collections import deque

from paddock.cli.options import Parser
from paddock.cli.text import complain, say
from paddock.errors import EXIT_PADDOCK
from paddock.journal import Event, Journal, verify
from paddock.journal.text import line


def execute(arguments: list[str]) -> int:
    parser = Parser("audit", "Show, follow and verify the journal.")
    parser.add_argument("act", choices=("show", "tail", "verify"))
    parser.add_argument("--dir", help="directory, or one .jsonl file (default: /var/tmp/paddock-audit-UID)")
    parser.add_argument("--session", help="only this session")
    parser.add_argument("--lines", "-n", type=int, default=20, help="tail: how many (default 20)")
    parser.add_argument("--follow", "-f", action="store_true", help="tail: go on as events come")
    parser.add_argument("--json", action="store_true", help="the events as they are stored, or the verdict as JSON")
    options = parser.parse_args(arguments)
    journal = Journal.at(options.dir or f"/var/tmp/paddock-audit-{os.getuid()}")
    match options.act:
        case "show":
            for event in journal.events():
                _print(event, options.session, options.json)
            return 0
        case "tail":
            return _tail(journal, options.lines, options.follow, options.session, options.json)
        case _:
            return _verify(journal, as_json=options.json)


def _print(event: Event, session: str | None, as_json: bool) -> None:
    if session is None or event.session == session:
        say(event.raw.decode("ascii", "backslashreplace") if as_json else line(event))


def _tail(journal: Journal, lines: int, follow: bool, session: str | None, as_json: bool) -> int:
    seen = 0
    last: deque[Event] = deque(maxlen=max(lines, 0))
    for event in journal.events():
        seen += 1
        if session is None or event.session == session:
            last.append(event)
    for event in last:
        _print(event, session, as_json)
    while follow:
        sys.stdout.flush()
        select.select([], [], [], 0.5)
        for number, event in enumerate(journal.events(), 1):
            if number > seen:
                seen = number
                _print(event, session, as_json)
    return 0


def _verify(journal: Journal, *, as_json: bool) -> int:
    verdict = verify(journal)
    if as_json:
        answer = {"sound": verdict.sound, "events": verdict.events, "first_seq": verdict.first_seq}
        say(json.dumps({**answer, "problems": list(verdict.problems)}))
        return 0 if verdict.sound else EXIT_PADDOCK
    for problem in verdict.problems:
        complain(problem)
    if verdict.first_seq > 1:
        complain(f"the journal begins at event {verdict.first_seq}: earlier days are not there")
    if verdict.sound:
        say(f"journal ok: {verdict.events} events, the chain is whole: {journal.dir}")
        return 0
    complain(f"the journal {journal.dir} has been altered")
    return EXIT_PADDOCK
