"""Events as one self-contained HTML page: no script, no address, no external resource.

A command chose the text of events. It is redacted and escaped, and a content security policy of the
page blocks scripts as well.
"""

from __future__ import annotations

import html
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from paddock.core.redact import Redactor
from paddock.journal.chain import ChainReport
from paddock.journal.query import action_of, rule_of, time_of
from paddock.journal.reader import Event
from paddock.shell.redacted_command import shown_command
from paddock.text.printable import printable

MAX_TABLE_ROWS = 1000  # of a table
MAX_CELL_CHARS = 400  # characters of a cell
TIMELINE_BUCKETS = 60

_STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1b; --soft: #5d5d58; --line: #d8d8d2; --ground: \
#fff; --yes: #1a6e35;
  --no: #b02a1a; --other: #8a8a82; }
@media (prefers-color-scheme: dark) { :root { --ink: #ededea; --soft: #a3a39c; --line: #3b3b37; \
--ground: #171716;
  --yes: #6fce8b; --no: #ff9585; } }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; \
color: var(--ink);
  background: var(--ground); }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.soft { color: var(--soft); } .yes, .allow { color: var(--yes); } .no, .deny { color: var(--no); \
font-weight: 600; }
.numbers { display: flex; flex-wrap: wrap; gap: 1.5rem; } .numbers b { display: block; font-size: \
1.5rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: \
1px solid var(--line); }
td { font: .85rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
td, svg text { direction: ltr; unicode-bidi: isolate-override; } td:first-child { white-space: \
nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 11px; }
.fy { fill: var(--yes); } .fn { fill: var(--no); } .fo { fill: var(--other); } .axis { stroke: \
var(--line); }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" \
content="no-referrer">
<title>{title}</title><style>{style}</style></head><body>
{body}
</body></html>
"""


@dataclass(slots=True)
class _Host:
    tried: Counter[str] = field(default_factory=Counter)  # by action
    rules: set[str] = field(default_factory=set)
    sent: int = 0
    received: int = 0


def report(
    events: Iterable[Event], *, chain: ChainReport | str, description: str, unreadable: int = 0
) -> str:
    """``chain``: the result of the verification, or why there was none. ``description``: a
    description of the selected events.
    """
    found = list(events)
    write = _Writer(Redactor())
    body = [
        f"<h1>paddock: {write.text(description)}</h1>",
        _verified(chain, write),
        f'<p class="no">{unreadable} lines of the journal are not events.</p>'
        if unreadable
        else "",
        _numbers(found),
        _timeline(found),
        *_sections(found, write),
    ]
    return _PAGE.format(
        title=f"paddock: {write.text(description)}",
        style=_STYLE,
        body="\n".join(filter(None, body)),
    )


class _OwnText(str):
    """Text of Paddock, which needs no redaction."""

    __slots__ = ()


class _Writer:
    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._known: dict[str, str] = {}

    def text(self, value: object) -> str:
        """One line, without secrets and without markup."""
        if isinstance(value, _OwnText | int):
            return html.escape(str(value))
        text = repr(value)
        if text not in self._known:
            self._known[text] = self._looked_through(value)
        return self._known[text]

    def _looked_through(self, value: object) -> str:
        if isinstance(value, list) and len(value) == 1:  # a path, or a line of shell
            plain = shlex.join([shown_command(str(value[0]), self._redactor, cwd="/")])
        elif isinstance(value, list):
            words = [str(one) for one in self._redactor.all_of([str(one) for one in value])]
            plain = shlex.join(words)
        else:
            plain = self._redactor.redact("" if value is None else str(value))
        plain = printable(plain).replace("\n", "\\n")
        if len(plain) > MAX_CELL_CHARS:
            half = MAX_CELL_CHARS // 2
            plain = f"{plain[:half]} … {len(plain) - MAX_CELL_CHARS} characters … {plain[-half:]}"
        return html.escape(plain.encode("utf-8", "backslashreplace").decode())

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
        """The latest rows, if there are too many."""
        shown = rows[-MAX_TABLE_ROWS:]
        left = (
            f'<p class="soft">{len(rows) - len(shown)} earlier rows are not shown.</p>'
            if len(rows) > len(shown)
            else ""
        )
        head = "".join(f"<th>{html.escape(one)}</th>" for one in heads)
        lines = "".join(f"<tr>{''.join(map(self._cell, row))}</tr>" for row in shown)
        return (
            f'{left}<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div>"
        )

    def _cell(self, value: object) -> str:
        marked = f' class="{value}"' if value in ("allow", "deny") else ""
        return f"<td{marked}>{self.text(value)}</td>"


def _verified(chain: ChainReport | str, write: _Writer) -> str:
    if isinstance(chain, str):
        return (
            f'<p class="no">The chain of the journal could not be verified: {write.text(chain)}</p>'
        )
    endless = _listed(
        "Sessions with a start event and no end event, which are running or were killed:",
        chain.endless,
        write,
    )
    if chain.sound:
        return (
            f'<p class="yes">The chain of the journal is complete: {chain.events} '
            f"events.</p>{endless}"
        )
    altered = _listed("The journal was changed after it was written:", chain.problems, write)
    whole = "" if altered else "The chain of the journal is complete. "
    lost = _listed(f"{whole}Some events could not be written:", [*map(str, chain.losses)], write)
    return altered + lost + endless


def _listed(description: str, found: Sequence[str], write: _Writer) -> str:
    lines = "".join(f"<li>{write.text(one)}</li>" for one in found[:20])
    more = f"<li>and {len(found) - 20} more</li>" if len(found) > 20 else ""
    return f'<p class="no">{description}</p><ul class="no">{lines}{more}</ul>' if found else ""


def _numbers(events: list[Event]) -> str:
    actions = Counter(action_of(event) for event in events)
    counts = {
        "events": len(events),
        "sessions": len({event.session for event in events}),
        "allowed": actions["allow"],
        "denied": actions["deny"],
        "answered by a person or program": sum(_asked(event) for event in events),
    }
    cells = "".join(f"<div><b>{n}</b>{name}</div>" for name, n in counts.items())
    return f'<div class="numbers">{cells}</div>'


def _timeline(events: list[Event]) -> str:
    """The numbers of allowed, denied and other events, over time."""
    timed = [(at, action_of(event)) for event in events if (at := time_of(event)) is not None]
    if not timed:
        return ""
    first, last = min(at for at, _ in timed), max(at for at, _ in timed)
    span = max((last - first).total_seconds(), 1e-3)
    buckets = [Counter[str]() for _ in range(TIMELINE_BUCKETS)]
    for at, action in timed:
        where = min(
            TIMELINE_BUCKETS - 1, int((at - first).total_seconds() / span * TIMELINE_BUCKETS)
        )
        buckets[where][action if action in ("allow", "deny") else "other"] += 1
    highest = max(counts.total() for counts in buckets)
    bars = []
    for index, counts in enumerate(buckets):
        top = 120.0
        for kind, style in (("allow", "fy"), ("other", "fo"), ("deny", "fn")):
            height = counts[kind] / highest * 110
            top -= height
            if counts[kind]:
                geometry = f'x="{index * 12 + 1}" y="{top:.1f}" width="10" height="{height:.1f}"'
                bars.append(
                    f'<rect class="{style}" {geometry}><title>{counts[kind]} {kind}</title></rect>'
                )
    return (
        '<h2>Timeline</h2><svg viewBox="0 0 720 140" role="img" aria-label="Events over time">'
        f'<line class="axis" x1="0" y1="120" x2="720" y2="120"/>{"".join(bars)}'
        f'<text x="0" y="135">{_stamp(first)}</text><text x="720" y="135" '
        f'text-anchor="end">{_stamp(last)}</text></svg>'
        '<p class="soft"><span class="yes">allowed</span>, <span class="no">denied</span>, else '
        "noted</p>"
    )


def _sections(events: list[Event], write: _Writer) -> Iterator[str]:
    yield from _section(
        "Sessions",
        _sessions(events),
        ("session", "from", "directory", "profile", "ended", "command"),
        write,
    )
    asked = [_decision(event) for event in events if _asked(event)]
    yield from _section("Asked", asked, _DECISION, write)
    denied = [_decision(event) for event in events if action_of(event) == "deny"]
    yield from _section("Denied", denied, _DECISION, write)
    hosts = _hosts(events)
    if hosts:
        met = [
            (
                name,
                one.tried["allow"],
                one.tried["deny"],
                one.sent,
                one.received,
                ", ".join(sorted(one.rules)),
            )
            for name, one in hosts.items()
        ]
        yield "<h2>Hosts</h2>"
        yield _bars(
            [(name, one.tried["allow"], one.tried["deny"]) for name, one in hosts.items()], write
        )
        yield write.table(("host", "allowed", "denied", "bytes sent", "received", "rules"), met)
    programs = _programs(events)
    if programs:
        yield "<h2>Programs</h2>"
        started = [(name, tried["allow"], tried["deny"]) for name, tried in programs.items()]
        yield _bars(started, write)
        yield write.table(("program", "started", "denied"), started)
    yield from _section("Files", _files(events), ("time", "what", "path", "note"), write)
    everything = [
        (
            _clock(event),
            event.session[:8],
            event.name,
            action_of(event) or "",
            _about(event),
            rule_of(event) or "",
        )
        for event in events
    ]
    yield from _section(
        "Everything", everything, ("time", "session", "event", "action", "about", "rule"), write
    )


_DECISION = ("time", "event", "action", "about", "rule", "by", "reason")


def _section(name: str, rows: list[Any], heads: Sequence[str], write: _Writer) -> Iterator[str]:
    if rows:
        yield f"<h2>{name}</h2>"
        yield write.table(heads, rows)


def _decision(event: Event) -> tuple[object, ...]:
    fields = event.fields
    why = fields.get("reason") or fields.get("error") or ""
    action = action_of(event) or ""
    return (
        _clock(event),
        event.name,
        action,
        _about(event),
        rule_of(event) or "",
        fields.get("by") or "",
        why,
    )


def _asked(event: Event) -> bool:
    return bool(event.fields.get("by"))


def _sessions(events: list[Event]) -> list[tuple[object, ...]]:
    ends = {
        event.session: event for event in events if event.name in ("session.end", "session.refused")
    }
    rows: list[tuple[object, ...]] = []
    for event in events:
        if event.name == "session.start":
            fields, end = event.fields, ends.get(event.session)
            ended = "" if end is None else end.fields.get("signal") or end.fields.get("exit_code")
            rows.append(
                (
                    event.session[:8],
                    _clock(event),
                    fields.get("cwd"),
                    fields.get("profile"),
                    ended,
                    fields.get("command"),
                )
            )
    return rows


def _hosts(events: list[Event]) -> dict[str, _Host]:
    hosts: dict[str, _Host] = {}
    for event in events:
        if event.name != "network":
            continue
        fields = event.fields
        name = str(fields.get("host") or fields.get("address") or "?")
        host = hosts.setdefault(
            name if fields.get("port") is None else f"{name}:{fields['port']}", _Host()
        )
        host.tried[action_of(event) or ""] += 1
        if rule := rule_of(event):
            host.rules.add(rule)
        host.sent += _number(fields.get("sent"))
        host.received += _number(fields.get("received"))
    return dict(sorted(hosts.items(), key=lambda one: -one[1].tried.total()))


def _programs(events: list[Event]) -> dict[str, Counter[str]]:
    programs: dict[str, Counter[str]] = {}
    for event in events:
        if event.name.partition(".")[0] == "exec":
            programs.setdefault(str(event.fields.get("exe", "?")), Counter())[
                action_of(event) or ""
            ] += 1
    return dict(sorted(programs.items(), key=lambda one: -one[1].total()))


_FILES = {
    "name.flagged": "changed",
    "name.masked": "masked",
    "file.refused": "refused",
}


def _files(events: list[Event]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for event in events:
        fields = event.fields
        if event.name in _FILES:
            note = fields.get("reason") or ""
            rows.append((_clock(event), _FILES[event.name], fields.get("path"), note))
        elif event.name == "tool" and isinstance(subject := fields.get("subject"), list):
            description = f"{fields.get('tool', '')} {action_of(event) or ''}".strip()
            paths = [one for one in subject if isinstance(one, str) and one.startswith("/")]
            rows += [
                (_clock(event), description, path, "")
                for path in paths
                if fields.get("tool") != "bash"
            ]
    return rows


def _about(event: Event) -> object:
    fields = event.fields
    for key in (
        "argv",
        "command",
        "host",
        "path",
        "exe",
        "subject",
        "tool",
        "limit",
        "error",
        "text",
        "address",
    ):
        if fields.get(key):
            return fields[key]
    if event.name == "journal.lost":
        return f"{fields.get('count')} events are missing: {fields.get('reason')}"
    return f"exit {fields['exit_code']}" if "exit_code" in fields else ""


def _bars(rows: Sequence[tuple[str, int, int]], write: _Writer) -> str:
    shown = rows[:15]
    most = max(allowed + denied for _, allowed, denied in shown) or 1
    bars = []
    for index, (name, allowed, denied) in enumerate(shown):
        y, yes, no = index * 20, allowed / most * 380, denied / most * 380
        bars.append(
            f'<text x="255" y="{y + 14}" text-anchor="end">{write.text(name[-40:])}</text>'
            f'<rect class="fy" x="262" y="{y + 3}" width="{yes:.1f}" height="14"/>'
            f'<rect class="fn" x="{262 + yes:.1f}" y="{y + 3}" width="{no:.1f}" height="14"/>'
            f'<text x="{268 + yes + no:.1f}" y="{y + 14}">{allowed + denied}</text>'
        )
    return (
        f'<svg viewBox="0 0 720 {len(shown) * 20 + 4}" role="img" aria-label="How '
        f'often">{"".join(bars)}</svg>'
    )


def _number(value: object) -> int:
    return value if type(value) is int else 0


def _clock(event: Event) -> _OwnText:
    at = time_of(event)
    return _OwnText("") if at is None else _stamp(at)


def _stamp(at: datetime) -> _OwnText:
    return _OwnText(at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"))
